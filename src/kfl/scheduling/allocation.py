"""Bandwidth and power for a given set of devices: the problem, its optimality condition, its solution.

Problem P₂ (equation 25), for the devices S that take part, with w_k the price of a joule of device k:

    minimise    Σ_{k∈S} w_k E_k(θ_k),          E_k(θ) = a_k θ (e^{b_k/θ} − 1)
    subject to  Σ_{k∈S} θ_k ≤ 1                                                        (14c)
                θ_k^min ≤ θ_k ≤ 1,             θ_k^min ln(1 + s_k/θ_k^min) = b_k       (25a)

with a_k, b_k, s_k as in `kfl.scheduling.curve`. By Proposition 1 the upload uses all the time left, so the
power is p_k = E_k(θ_k) / T_k, and (25a) says p_k ≤ p_max. A caller may raise θ_k^min (`share_floor`).

Each E_k is convex and falling, so the whole band is used and the optimum is the point where

    a_k w_k G(b_k/θ_k) = μ                     if θ_k > θ_k^min       (stationarity, equation 28)
    a_k w_k G(b_k/θ_k) ≤ μ                     if θ_k = θ_k^min
    Σ_k θ_k = 1                                                       (μ > 0, so the band is full)

for one multiplier μ, that is θ_k = max(θ_k(μ), θ_k^min) with Σ_k max(θ_k(μ), θ_k^min) = 1. θ_k ≤ 1 follows.

Where we leave the paper: Algorithm 2 looks for Σ θ_k(μ) = 1 and lifts the shares to θ^min afterwards, so they
add up to more than 1 whenever a minimum binds; its bracket for μ is then too small; and its tolerance on μ is
absolute. `kfl.scheduling.as_printed` keeps it for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfl.scheduling.base import BoolArray, FloatArray
from kfl.scheduling.curve import log_marginal_saving, share_at_price, upload_energy
from kfl.scheduling.multiplier import solve_log_multiplier
from kfl.scheduling.problem import AllocationProblem, Curves
from kfl.scheduling.status import Status

__all__ = ["SHARE_TOLERANCE", "Allocation", "AllocationProblem", "allocate"]

SHARE_TOLERANCE = 1e-12
"""How far rounding may push Σ θ above 1."""


@dataclass(frozen=True, eq=False)
class Allocation:
    """The solution. Where it is infeasible, shares, powers and energies are 0 and the objective is infinite."""

    share: FloatArray
    """θ_k, (..., n)."""
    power_w: FloatArray
    energy_j: FloatArray
    """Energy of the upload, E_U."""
    multiplier: FloatArray
    """μ, the price of the whole band, (...,)."""
    residual: FloatArray
    """Largest relative violation of the optimality conditions above, (...,)."""
    objective: FloatArray
    """Σ w_k E_k, (...,)."""
    feasible: BoolArray
    status: Status | tuple[Status, ...]
    """Why no allocation exists, if so; a tuple with one entry per problem of a batch."""


def allocate(problem: AllocationProblem) -> Allocation:
    """Solve P₂ to rounding error.

    >>> from dataclasses import replace
    >>> two = AllocationProblem(
    ...     bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]), payload_bits=np.full(2, 1e6),
    ...     upload_time_s=np.ones(2), max_power_w=np.ones(2), weight=np.ones(2))
    >>> best = allocate(two)
    >>> best.share.round(3), best.status.ok, bool(best.residual < 1e-12)
    (array([0.206, 0.794]), True, True)
    >>> print(allocate(replace(two, upload_time_s=np.array([1.0, -0.5]))).status)
    Device 1 computes past the deadline: the time left for its upload is -0.5 s.
    """
    curves = Curves.of(problem)
    feasible, reasons = _feasibility(curves)
    weight = _prices(curves, feasible)
    with np.errstate(divide="ignore"):
        log_cost = np.log(np.where(curves.sends, curves.scale_j, 1.0)) + np.log(weight)
    live = feasible & ((log_cost > -np.inf) & curves.sends).any(-1)
    log_price = np.full(len(feasible), -np.inf)
    share = np.where(feasible[:, None], curves.floor, 0.0)
    if live.any():
        log_price[live] = solve_log_multiplier(log_cost[live], curves.exponent[live], curves.floor[live])
        share[live] = _shares(log_price[live], log_cost[live], curves.exponent[live], curves.floor[live])
    energy = np.where(feasible[:, None], upload_energy(curves.scale_j, curves.exponent, share), 0.0)
    power = energy / np.where(curves.time_s > 0, curves.time_s, 1.0)
    true_cost = np.where(energy > 0, curves.weight, 0.0) * energy
    residual = _residual(log_price, log_cost, share, curves)
    shape = curves.batch_shape
    return Allocation(
        share=share.reshape(*shape, -1),
        power_w=power.reshape(*shape, -1),
        energy_j=energy.reshape(*shape, -1),
        multiplier=np.where(feasible, np.exp(log_price), np.nan).reshape(shape),
        residual=np.where(feasible, residual, np.nan).reshape(shape),
        objective=np.where(feasible, true_cost.sum(-1), np.inf).reshape(shape),
        feasible=feasible.reshape(shape),
        status=tuple(reasons) if shape else reasons[0],
    )


def _prices(curves: Curves, feasible: BoolArray) -> FloatArray:
    """The weights, or 1 for everybody in a problem where nobody's joules have a price."""
    free = feasible & ~((curves.weight > 0) & curves.sends).any(-1)
    return np.where(free[:, None], 1.0, curves.weight)


def _shares(log_price: FloatArray, log_cost: FloatArray, exponent: FloatArray, floor: FloatArray) -> FloatArray:
    """θ_k = max(θ_k(μ), θ_k^min), with the last rounding error of Σ θ = 1 spread over the free devices."""
    wanted = share_at_price(log_price[:, None], log_cost, exponent)
    free = wanted > floor
    bound_sum = np.where(free, 0.0, floor).sum(-1, keepdims=True)
    free_sum = np.where(free, wanted, 0.0).sum(-1, keepdims=True)
    scale = (1.0 - bound_sum) / np.where(free_sum > 0, free_sum, 1.0)
    return np.where(free, np.maximum(wanted * scale, floor), floor)


def _residual(log_price: FloatArray, log_cost: FloatArray, share: FloatArray, curves: Curves) -> FloatArray:
    """Stationarity, complementary slackness and Σ θ = 1, each relative; the largest violation."""
    live = curves.sends & (log_cost > -np.inf) & (share > 0)
    x = np.where(live, curves.exponent, 1.0) / np.where(live, share, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = np.expm1(log_cost + log_marginal_saving(x) - log_price[:, None])  # a w G(b/θ)/μ − 1
    violation = np.where(share > curves.floor, np.abs(excess), np.maximum(excess, 0.0))
    stationarity = np.where(live, violation, 0.0).max(-1, initial=0.0)
    total = share.sum(-1)
    band = np.where(live.any(-1), np.abs(total - 1.0), np.maximum(total - 1.0, 0.0))
    return np.asarray(np.maximum(stationarity, band))


# ── Feasibility ──────────────────────────────────────────────────────────────


def _feasibility(curves: Curves) -> tuple[BoolArray, list[Status]]:
    """Which problems of the batch have a solution, and why the others have none."""
    late = curves.included & (curves.time_s <= 0)
    weak = curves.included & ~late & ~(curves.floor <= 1.0 + SHARE_TOLERANCE)
    with np.errstate(invalid="ignore"):
        total = np.where(curves.included, curves.floor, 0.0).sum(-1)
    feasible = ~late.any(-1) & ~weak.any(-1) & (total <= 1.0 + SHARE_TOLERANCE)
    return feasible, [Status() if good else _why(curves, row, late, weak) for row, good in enumerate(feasible)]


def _why(curves: Curves, row: int, late: BoolArray, weak: BoolArray) -> Status:
    if late[row].any():
        k = int(late[row].argmax())
        time_s = float(curves.time_s[row, k])
        return Status("past_deadline", {"past_deadline": (k,)}, {"upload_time_s": time_s})
    if weak[row].any():
        k = int(weak[row].argmax())
        if curves.share_floor[row, k] > 1.0:
            share_floor = float(curves.share_floor[row, k])
            return Status("floor_above_band", {"crowded": (k,)}, {"share_floor": share_floor})
        needed = float(curves.exponent[row, k] / np.log(2))
        reached = float(np.log1p(curves.snr[row, k]) / np.log(2))
        return Status("out_of_reach", {"out_of_reach": (k,)}, {"needed": needed, "reached": reached})
    floor = np.where(curves.included[row], curves.floor[row], 0.0)
    k = int(floor.argmax())
    facts = {
        "devices": int(curves.included[row].sum()),
        "total": float(floor.sum()),
        "largest": float(floor[k]),
    }
    return Status("crowded", {"crowded": (k,)}, facts)
