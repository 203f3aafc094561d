"""The price of the band: the μ at which the shares that devices want, or must have, just fill it.

    S(μ) = Σ_k max(θ_k(μ), θ_k^min) = 1,        −w_k dE_k/dθ (θ_k(μ)) = μ

S falls with μ, and is solved for λ = ln μ: multipliers of real rounds lie anywhere between 1e-12 and 1e6, so only
their logarithm has a natural tolerance (the paper's absolute one is meaningless at its own numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kfl.scheduling.curve import CostCurve, FloatArray, Index

_MAX_STEPS = 200
_NEWTON_STEPS = 40  # after these every other step is a bisection, so that the bracket must shrink
_TOLERANCE = 4 * float(np.finfo(float).eps)
_LONG_TOLERANCE = 1e-5  # of a long row: a Newton step leaves about the square of its size

CHUNK = 32_768
"""Devices at a time: intermediate arrays stay in the cache."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Devices that may take part in a round, one entry each. Make them with `Candidates.of`."""

    curve: CostCurve
    floor: FloatArray
    """Smallest share f_k that power limit and hard budget allow."""
    queue_j: FloatArray
    """q_k: the price of a joule in the objective."""
    value: FloatArray
    """v_k: what taking part is worth."""
    log_weight: FloatArray
    """ln(q_k + ε): the price of a joule where the band is shared; −∞ where joules are free."""
    extra: float = 0.0
    """ε."""
    base_energy_j: FloatArray | float = 0.0
    """E_L,k; 0 where it is taken off the value already."""

    @staticmethod
    def of(
        curve: CostCurve,
        floor: FloatArray,
        queue_j: FloatArray,
        value: FloatArray,
        base_energy_j: FloatArray | float = 0.0,
        extra: float = 0.0,
    ) -> Candidates:
        """Candidates with the logarithms of their prices."""
        return Candidates(curve, floor, queue_j, value, _log(queue_j + extra), extra, base_energy_j)

    def __len__(self) -> int:
        return len(self.value)

    @property
    def weight(self) -> FloatArray:
        """q + ε, the price of a joule where the band is shared."""
        return self.queue_j + self.extra

    def take(self, index: Index) -> Candidates:
        """Return some of them."""
        return Candidates(
            self.curve.take(index),
            self.floor[index],
            self.queue_j[index],
            self.value[index],
            self.log_weight[index],
            self.extra,
            self.base_energy_j[index] if isinstance(self.base_energy_j, np.ndarray) else self.base_energy_j,
        )

    def first(self, count: int) -> Candidates:
        """Return the first `count`."""
        return self.take(slice(count))

    def pieces(self) -> Iterator[tuple[slice, Candidates]]:
        """Yield all devices in pieces that fit the cache, each with its place."""
        for start in range(0, len(self), CHUNK):
            piece = slice(start, start + CHUNK)
            yield piece, self.take(piece)

    def with_prices(self, price: FloatArray) -> Candidates:
        """Return the same devices with other prices of a joule."""
        return replace(self, queue_j=price, log_weight=_log(price), extra=0.0)


def _log(price: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(price))


# ── One set of devices, of any size ──────────────────────────────────────────


def band_log_price(candidates: Candidates) -> float:
    """ln μ at which these devices fill the band; −∞ where no device's joules have a price and floors suffice."""
    if not np.any(candidates.curve.priced(candidates.log_weight)):
        return -math.inf
    row = candidates.curve.only(np.ones((1, len(candidates)), bool))
    return float(log_prices(row, candidates.log_weight[None], candidates.floor[None])[0])


def total_demand(candidates: Candidates, log_price: float) -> tuple[float, float]:
    """Σ θ_k(μ) and −dΣ/d ln μ over all devices."""
    total, slope = _demand(np.asarray(log_price), candidates.curve, candidates.log_weight, candidates.floor)
    return float(total), float(slope)


# ── A batch of sets ──────────────────────────────────────────────────────────


def log_prices(curve: CostCurve, log_weight: FloatArray, floor: FloatArray) -> FloatArray:
    """λ with Σ_k max(θ_k(λ), θ_k^min) = 1 for each row of a batch (m, n).

    A device that sends nothing must have the floor 0. Each row needs Σ θ^min ≤ 1 and one device with a payload
    and a price.

    Bracket: split what the floors leave of the band in proportion to the devices' needs. At the largest marginal
    value of this split every device wants its part or less, at the smallest its part or more. The upper end is
    never above the marginal value at θ^min; the paper's own (equation 29, for equal shares) can be too small.
    """
    live = curve.priced(log_weight)
    spare = np.maximum(1.0 - floor.sum(-1, keepdims=True), 0.0)
    wanted = np.where(live, curve.need, 0.0)
    split = floor + spare * wanted / wanted.sum(-1, keepdims=True)
    value = np.where(live, curve.log_saving(split, log_weight), 0.0)
    low = np.where(live, value, np.inf).min(-1)
    high = np.where(live, value, -np.inf).max(-1)
    # One Newton step away from the split, all devices at once.
    pull = np.where(live, split * curve.elasticity(split), 0.0)
    start = (pull * value).sum(-1) / pull.sum(-1)
    return _safeguarded_newton(np.clip(start, low, high), low, high, curve, log_weight, floor)


def _safeguarded_newton(
    guess: FloatArray,
    low: FloatArray,
    high: FloatArray,
    curve: CostCurve,
    log_weight: FloatArray,
    floor: FloatArray,
) -> FloatArray:
    """Newton on ln S(λ), which is close to a straight line; a step that leaves the bracket becomes a bisection.

    Rows leave the batch as they arrive: `rows` says which are left.
    """
    result = guess.copy()
    rows = np.arange(len(guess))
    tolerance = _TOLERANCE if floor.shape[-1] <= CHUNK else _LONG_TOLERANCE
    lam = guess
    for count in range(_MAX_STEPS):
        # S falls with λ, so each evaluation tightens one side of the bracket.
        total, slope = _demand(lam[:, None], curve, log_weight, floor)
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
        going = (np.abs(moved - lam) > tolerance * np.maximum(np.abs(moved), 1.0)) & (low < high)
        if going.all():
            lam = moved
            continue
        if not going.any():
            break
        rows, lam, low, high = rows[going], moved[going], low[going], high[going]
        curve, log_weight, floor = curve.take(going), log_weight[going], floor[going]
    return result


def _demand(
    log_price: FloatArray, curve: CostCurve, log_weight: FloatArray, floor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """S(λ) and −dS/dλ, summed over the last axis: what all devices together take of the band at price e^λ."""
    size = floor.shape[-1]
    if size > CHUNK:  # piece by piece, so that intermediate arrays stay in the cache
        pieces = [(..., slice(start, start + CHUNK)) for start in range(0, size, CHUNK)]
        parts = [_demand(log_price, curve.take(piece), log_weight[piece], floor[piece]) for piece in pieces]
        return np.asarray(sum(total for total, _ in parts)), np.asarray(sum(slope for _, slope in parts))
    wanted, elasticity = curve.demand(log_price, log_weight)
    free = wanted > floor
    total = np.where(free, wanted, floor).sum(-1)
    with np.errstate(invalid="ignore"):
        slope = np.where(free, wanted * elasticity, 0.0).sum(-1)
    return total, slope
