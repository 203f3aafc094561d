"""The price of the band: the μ at which the shares that devices want, or must have, just fill it.

    S(μ) = Σ_k max(θ_k(μ), θ_k^min) = 1,        θ_k(μ) = b_k / G⁻¹(μ / (a_k w_k))

S falls with μ, and is solved for λ = ln μ: multipliers of real rounds lie anywhere between 1e-12 and 1e6, so
only their logarithm has a natural tolerance (the paper's absolute one is meaningless at its own numbers).
"""

from __future__ import annotations

import numpy as np

from kfl.scheduling.base import FloatArray
from kfl.scheduling.curve import inverse_marginal_saving, log_marginal_saving, saving_elasticity

_MAX_STEPS = 200
_NEWTON_STEPS = 40  # after these every other step is a bisection, so that the bracket must shrink
_TOLERANCE = 4 * float(np.finfo(float).eps)


def solve_log_multiplier(log_cost: FloatArray, exponent: FloatArray, floor: FloatArray) -> FloatArray:
    """λ with Σ_k max(θ_k(λ), θ_k^min) = 1 for each row of a batch (m, n).

    `log_cost` is ln(a w), −∞ where joules are free; `exponent` is b, 0 for a device that sends nothing (then
    its floor must be 0 too). Each row needs Σ θ^min ≤ 1 and one device with a payload and a price.

    Bracket: split what the floors leave of the band in proportion to b. At the largest marginal value
    a w G(b/θ) of this split every device wants its part or less, at the smallest its part or more. The upper
    end is never above max a w G(b/θ^min); the paper's own (equation 29, for equal shares) can be too small.
    """
    live = (exponent > 0) & (log_cost > -np.inf)
    spare = np.maximum(1.0 - floor.sum(-1, keepdims=True), 0.0)
    wanted = np.where(live, exponent, 0.0)
    split = floor + spare * wanted / wanted.sum(-1, keepdims=True)
    x = np.where(live, exponent, 1.0) / np.where(live, split, 1.0)
    value = np.where(live, log_cost + log_marginal_saving(x), 0.0)
    low = np.where(live, value, np.inf).min(-1)
    high = np.where(live, value, -np.inf).max(-1)
    # One Newton step away from the split, all devices at once.
    pull = np.where(live, split * saving_elasticity(x), 0.0)
    start = (pull * value).sum(-1) / pull.sum(-1)
    return _safeguarded_newton(np.clip(start, low, high), low, high, log_cost, exponent, floor)


def _safeguarded_newton(
    guess: FloatArray,
    low: FloatArray,
    high: FloatArray,
    log_cost: FloatArray,
    exponent: FloatArray,
    floor: FloatArray,
) -> FloatArray:
    """Newton on ln S(λ), which is close to a straight line; a step that leaves the bracket becomes a bisection."""
    result = guess.copy()
    rows = np.arange(len(guess))
    lam = guess
    for count in range(_MAX_STEPS):
        total, slope = demand(lam[:, None], log_cost[rows], exponent[rows], floor[rows])
        low = np.where(total >= 1.0, lam, low)
        high = np.where(total <= 1.0, lam, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.log(total) * total / slope
        proposal = lam + np.where(np.isfinite(step), step, np.inf)
        inside = (proposal >= low) & (proposal <= high)
        if count >= _NEWTON_STEPS and count % 2:
            inside[:] = False
        moved = np.where(inside, proposal, 0.5 * (low + high))
        result[rows] = moved
        open_rows = (np.abs(moved - lam) > _TOLERANCE * np.maximum(np.abs(moved), 1.0)) & (low < high)
        if not open_rows.any():
            break
        rows, lam, low, high = rows[open_rows], moved[open_rows], low[open_rows], high[open_rows]
    return result


def demand(
    log_price: FloatArray, log_cost: FloatArray, exponent: FloatArray, floor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """S(λ) and −dS/dλ, summed over the last axis: what all devices together take of the band at price e^λ."""
    x = inverse_marginal_saving(log_price - log_cost)
    with np.errstate(divide="ignore", under="ignore"):
        wanted = np.where(exponent > 0, exponent / x, 0.0)
    free = wanted > floor
    total = np.where(free, wanted, floor).sum(-1)
    slope = np.where(free, wanted * saving_elasticity(np.where(free, x, 1.0)), 0.0).sum(-1)
    return total, slope
