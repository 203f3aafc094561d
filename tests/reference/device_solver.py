"""General solvers for sharing a band among whole devices, and a proof of optimality by weak duality.

Clarabel, by cvxpy, solves the whole problem at once, over shares, durations and clocks. With x = c/(θ t) the radiated
energy is a c (eˣ − 1)/x = a c ∫₀¹ e^{sx} ds, of which Gauss's rule with 24 points leaves nothing, so

    minimize    Σ w (a c Σ_i g_i e^{s_i x} + p_c t_u + work/t_c² + p_s t_c)
    subject to  ln x + ln θ + ln t_u ≥ ln c,     t_c + t_u ≤ T,     Σ θ ≤ 1,
                ln r + ln t_u ≥ ln c,            r ≤ θ ln(1 + s/θ)            (full power: s = p_max h/(B N₀))

is a problem of exponential and power cones. A least power is no convex constraint on (θ, t_u), although E* stays
convex: there SciPy's SLSQP searches over the shares, with `least_energy_j` as its objective.

Both only suggest shares; values are computed by `least_energy_j`. A multiplier μ proves how good a value is: no
split costs less than Σ min_θ (w E*(θ) + μ θ) − μ.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling.allocation import Allocation, solve_shares
from tests.reference.uplinks import device_uplink
from tests.reference.whole_device import Devices, FloatArray, golden, random_devices

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS
_RESCALINGS = 6


@dataclass(frozen=True, eq=False)
class SharingProblem:
    """Devices, and the price of a joule of each."""

    devices: Devices
    weight: FloatArray

    def value(self, share: FloatArray) -> float:
        """Σ w E*(θ), beyond the base."""
        priced = self.weight > 0
        return float(np.sum(self.weight[priced] * self.devices.least_energy_j(share)[priced]))

    def bound(self, multiplier: float, floor: FloatArray) -> float:
        """No split of the band has a smaller value."""
        devices, weight = self.devices, self.weight

        def cost(log_share: FloatArray) -> FloatArray:
            share = np.maximum(np.exp(log_share), floor)
            return np.where(weight > 0, weight * devices.least_energy_j(share), 0.0) + multiplier * share

        trials = (np.log(floor), golden(cost, np.log(floor), np.zeros(len(floor))), np.zeros(len(floor)))
        return float(np.sum(np.min([cost(t) for t in trials], 0))) - multiplier


def problems(count: int, seed: int, largest: int = 12) -> list[SharingProblem]:
    """Random problems of up to `largest` devices whose least shares fit the band."""
    found: list[SharingProblem] = []
    draw = stream(seed, "whole-devices")
    while len(found) < count:
        size = int(np.exp(draw.uniform(0.0, np.log(largest + 1.0))))
        devices = random_devices(draw, size)
        weight = 10 ** draw.uniform(-4, 4, size) * (draw.random(size) > draw.choice([0.0, 0.3]))
        floor = devices.least_share()
        if np.isfinite(floor).all() and floor.sum() <= 1 and weight.any():
            found.append(SharingProblem(devices, weight))
    return found


def ours(problem: SharingProblem) -> tuple[Allocation, FloatArray]:
    """The library's answer, and the least shares it starts from."""
    d = problem.devices
    uplink = device_uplink(
        bandwidth_hz=d.bandwidth_hz,
        noise_w_per_hz=d.noise_w_per_hz,
        gain=d.gain,
        payload_bits=d.payload_bits,
        upload_time_s=d.time_s - d.fastest_s,
        max_power_w=d.max_power_w,
        fastest_s=d.fastest_s,
        slowest_s=d.slowest_s,
        work_j_s2=d.work_j_s2,
        static_power_w=d.static_power_w,
        circuit_power_w=d.circuit_power_w,
        amplifier_efficiency=d.amplifier_efficiency,
        min_power_w=d.min_power_w,
        once_j=np.zeros(len(d)),
    )
    return solve_shares(uplink, problem.weight, uplink.power_floor()), uplink.power_floor()


# ── The solvers ──────────────────────────────────────────────────────────────


def solver_shares(problem: SharingProblem) -> FloatArray | None:
    """Shares by Clarabel, or by SLSQP where a device has a least power; None where the solver never finishes.

    A device whose joules are free keeps its least share. Nothing comes from our allocator: the first point splits in
    proportion to what the devices must have.
    """
    floor = problem.devices.least_share()
    priced = problem.weight > 0
    share = floor.copy()
    band = 1.0 - float(share[~priced].sum())
    inner = SharingProblem(problem.devices.take(priced), problem.weight[priced])
    low = floor[priced]
    around = low + (band - low.sum()) * low / low.sum()
    solve = _by_slsqp if (inner.devices.min_power_w > 0).any() else _by_clarabel
    best: FloatArray | None = None
    for _ in range(_RESCALINGS):
        found = solve(inner, low, band, around)
        if found is None:
            break
        gained = np.inf if best is None else 1.0 - inner.value(found) / inner.value(best)
        if gained > 0:
            around = best = found
        if gained < 1e-11:
            break
    if best is None:
        return None
    share[priced] = best
    return share


def _on_the_band(share: FloatArray, floor: FloatArray, band: float) -> FloatArray:
    """The nearest thing to these shares that uses the whole band and no more."""
    above = np.maximum(share - floor, 0.0)
    spare = max(band - float(floor.sum()), 0.0)
    return floor + above * (spare / float(above.sum())) if above.sum() > 0 else floor


def _by_slsqp(problem: SharingProblem, floor: FloatArray, band: float, around: FloatArray) -> FloatArray | None:
    from scipy.optimize import minimize

    scale, step = problem.value(around), 1e-6

    def value(part: FloatArray) -> float:
        return problem.value(np.maximum(part * around, floor)) / scale

    def slope(part: FloatArray) -> FloatArray:
        low, high = (np.maximum(part * around * factor, floor) for factor in (1 - step, 1 + step))
        rise = problem.devices.least_energy_j(high) - problem.devices.least_energy_j(low)
        return np.asarray(problem.weight * rise / (high - low) * around / scale)

    search: Callable[..., Any] = minimize
    result = search(
        value,
        np.ones(len(floor)),
        method="SLSQP",
        jac=slope,
        bounds=[(least, None) for least in floor / around],
        constraints={"type": "ineq", "fun": lambda part: 1 - part @ around / band, "jac": lambda _: -around / band},
        options={"ftol": 1e-15, "maxiter": 200},
    )
    return _on_the_band(result.x * around, floor, band) if np.isfinite(result.x).all() else None


def _by_clarabel(problem: SharingProblem, floor: FloatArray, band: float, around: FloatArray) -> FloatArray | None:
    """One call of the solver in variables that are all 1 at the point it is scaled around."""
    import cvxpy
    from cvxpy.atoms.affine.binary_operators import multiply

    cp: Any = cvxpy
    d, w, size = problem.devices, problem.weight / problem.value(around), len(floor)
    upload_s = d.best_upload_s(around)
    compute_s = np.minimum(d.cheapest_s, d.time_s - upload_s)
    exponent = d.nats / (around * upload_s)
    noise_w = d.bandwidth_hz * d.noise_w_per_hz / d.gain
    scale = w * noise_w / d.amplifier_efficiency * d.nats
    room = d.max_power_w / noise_w / around  # s/θ₀
    share, upload, compute, x, r = (cp.Variable(size, pos=True) for _ in range(5))
    energy = upload @ (w * d.circuit_power_w * upload_s)
    free = w * (d.slowest_s > d.fastest_s)  # a fixed clock costs the same whatever happens
    energy += cp.power(compute, -2) @ (free * d.work_j_s2 / compute_s**2)
    energy += compute @ (free * d.static_power_w * compute_s)
    for s, g in zip(_NODES, _WEIGHTS, strict=True):
        energy += cp.exp(multiply(s * exponent, x - 1)) @ (scale * g * np.exp(s * exponent))
    reached = multiply(share, np.log1p(room)) - cp.rel_entr(share, multiply(share + room, 1 / (1 + room)))
    program = cp.Problem(
        cp.Minimize(energy),
        [
            cp.log(x) + cp.log(share) + cp.log(upload) >= 0,
            cp.log(r) + cp.log(upload) >= 0,
            multiply(reached, around * upload_s / d.nats) >= r,
            multiply(compute, compute_s) + multiply(upload, upload_s) <= d.time_s,
            compute >= d.fastest_s / compute_s,
            compute <= d.slowest_s / compute_s,
            share @ around <= band,
        ],
    )
    tolerances = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "solution may be inaccurate": we judge that ourselves
            program.solve(solver=cp.CLARABEL, **tolerances)
    except cp.error.SolverError:
        return None
    if share.value is None or not np.isfinite(share.value).all():
        return None
    return _on_the_band(np.asarray(share.value, float) * around, floor, band)


# ── The comparison ───────────────────────────────────────────────────────────


@dataclass
class Summary:
    """What came out of a comparison."""

    outcomes: Counter[str] = field(default_factory=Counter)
    worst_excess: float = 0.0
    """Largest relative excess of our value over the solver's."""
    worst_gap: float = 0.0
    """Largest relative distance of our value from the bound that our multiplier proves."""
    worst_energy: float = 0.0
    """Largest relative difference between our energies and the reference at the same shares."""
    worst_floor: float = 0.0
    worst_sum: float = 0.0
    ours_s: float = 0.0
    solver_s: float = 0.0
    worse: list[int] = field(default_factory=list)
    """Problems on which ours was worse or not proven."""

    def __str__(self) -> str:
        """The summary as a table."""
        lines = [f"{name:<58}{count:>6}" for name, count in sorted(self.outcomes.items())]
        return "\n".join(
            [
                *lines,
                f"{'our value above the solver, relative':<58}{self.worst_excess:>10.1e}",
                f"{'our value above the bound by weak duality, relative':<58}{self.worst_gap:>10.1e}",
                f"{'our energies against the reference, relative':<58}{self.worst_energy:>10.1e}",
                f"{'our least shares against the reference, relative':<58}{self.worst_floor:>10.1e}",
                f"{'sum of shares above 1':<58}{self.worst_sum:>10.1e}",
                f"{'seconds, ours':<58}{self.ours_s:>10.3f}",
                f"{'seconds, solver':<58}{self.solver_s:>10.1f}",
            ]
        )


def compare(cases: list[SharingProblem], tolerance: float = 1e-7) -> Summary:
    """Solve each problem both ways, and prove ours."""
    summary = Summary()
    for number, problem in enumerate(cases):
        start = time.perf_counter()
        found, least = ours(problem)
        summary.ours_s += time.perf_counter() - start
        kind = "a least power: SLSQP" if (problem.devices.min_power_w > 0).any() else "Clarabel"
        floor = problem.devices.least_share()
        summary.worst_floor = max(summary.worst_floor, float(np.max(np.abs(least / floor - 1))))
        if not found.feasible:
            summary.outcomes["OURS INFEASIBLE"] += 1
            summary.worse.append(number)
            continue
        share = np.maximum(found.share, floor)  # the last bits of a least share that is computed in two ways
        value = problem.value(share)
        priced = problem.weight > 0
        reference = problem.devices.least_energy_j(share)[priced]
        summary.worst_energy = max(summary.worst_energy, float(np.max(np.abs(found.energy_j[priced] / reference - 1))))
        summary.worst_sum = max(summary.worst_sum, float(found.share.sum()) - 1.0)
        gap = (value - problem.bound(float(found.multiplier), floor)) / value
        summary.worst_gap = max(summary.worst_gap, gap)
        start = time.perf_counter()
        theirs = solver_shares(problem)
        summary.solver_s += time.perf_counter() - start
        excess = np.nan if theirs is None else value / problem.value(theirs) - 1.0
        summary.worst_excess = max(summary.worst_excess, 0.0 if np.isnan(excess) else excess)
        if excess > tolerance or gap > tolerance:
            summary.outcomes[f"{kind}: OURS WORSE OR NOT PROVEN"] += 1
            summary.worse.append(number)
        elif np.isnan(excess):
            summary.outcomes[f"{kind}: failed, ours is proven"] += 1
        elif excess < -tolerance:
            summary.outcomes[f"{kind}: worse than ours, ours is proven"] += 1
        else:
            summary.outcomes[f"{kind}: agrees"] += 1
    return summary
