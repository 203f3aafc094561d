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

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from kfl.core.errors import ConfigError
from kfl.scheduling._band_price import log_prices
from kfl.scheduling.curve import BoolArray, CostCurve, FloatArray
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import DeviceEnergyModel, Uplink

SHARE_TOLERANCE = 1e-12
"""How far rounding may push Σ θ above 1."""


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Devices that share one band in one round; leading axes, if any, are a batch of such problems.

    >>> ones = np.ones(2)
    >>> problem = AllocationProblem(
    ...     bandwidth_hz=1e6,
    ...     noise_w_per_hz=4e-21,
    ...     gain=ones * 1e-10,
    ...     payload_bits=ones * 1e5,
    ...     upload_time_s=ones,
    ...     max_power_w=ones,
    ...     weight=ones,
    ... )
    >>> allocate(problem).share
    array([0.5, 0.5])

    Of whole devices, which may slow their clocks and whose radios draw more than they radiate:

    >>> from dataclasses import replace
    >>> whole = allocate(replace(problem, fastest_s=0.5, slowest_s=5.0, work_j_s2=0.025, circuit_power_w=0.2))
    >>> whole.compute_time_s.round(2), whole.upload_time_s.round(2), bool((whole.power_w > 1e-4).all())
    (array([1.48, 1.48]), array([0.02, 0.02]), True)
    """

    bandwidth_hz: ArrayLike
    """The whole band B; a number, or one per problem of the batch."""
    noise_w_per_hz: ArrayLike
    """Noise density N₀; a number, or one per problem of the batch."""
    gain: ArrayLike
    """Channel power gains h_k, linear, (..., n). Zero: the device cannot be heard."""
    payload_bits: ArrayLike
    upload_time_s: ArrayLike
    """Time left for the upload, T_max − T_L, after computing at the fastest clock; zero or less makes a problem
    infeasible, not wrong."""
    max_power_w: ArrayLike
    weight: ArrayLike
    """Price w_k ≥ 0 of a joule of device k. If all are zero, the total energy is minimised."""
    share_floor: ArrayLike = 0.0
    """A lower limit on each share, beyond the one from the power limit."""
    included: ArrayLike | None = None
    """Mask (..., n) for batches of problems with different numbers of devices; None: all take part."""
    fastest_s: ArrayLike = 0.0
    """Seconds of computing at the fastest clock. This and what follows describes whole devices; its defaults mean the
    printed model."""
    slowest_s: ArrayLike | None = None
    """Seconds of computing at the slowest clock; None: the clock is fixed."""
    work_j_s2: ArrayLike = 0.0
    """κ W³: computing for t seconds takes this over t² joules."""
    static_power_w: ArrayLike = 0.0
    """Drawn while the processor computes."""
    circuit_power_w: ArrayLike = 0.0
    """Drawn while the radio sends."""
    amplifier_efficiency: ArrayLike = 1.0
    """Radiated over drawn power, in (0, 1]."""
    min_power_w: ArrayLike = 0.0
    """Least radiated power while sending."""

    @property
    def printed_model(self) -> bool:
        """Whether the energy model is the paper's: a fixed clock, and the radiated power alone."""
        drawn = np.any(self.circuit_power_w) or np.any(self.min_power_w) or np.any(self.static_power_w)
        return self.slowest_s is None and not drawn and bool(np.all(np.asarray(self.amplifier_efficiency) == 1))

    def checked(self) -> tuple[Uplink, FloatArray, FloatArray, BoolArray]:
        """The problem as arrays of one shape (..., n): the uplink, weights, floors, and who is included.

        A bad value raises `ConfigError`. Devices that are not included send nothing.
        """
        included, band, noise, arrays = _checked(self)
        uplink = Uplink(
            bandwidth_hz=band,
            noise_w_per_hz=noise,
            gain=arrays["gain"],
            payload_bits=arrays["payload_bits"],
            time_s=arrays["upload_time_s"],
            max_power_w=arrays["max_power_w"],
        )
        if not self.printed_model:
            device = DeviceEnergyModel(**{name: arrays[name] for name in _DEVICE_RULES})
            uplink = replace(uplink, time_s=arrays["upload_time_s"] + arrays["fastest_s"], device=device)
        floor = np.maximum(uplink.power_floor(), arrays["share_floor"])
        return uplink, arrays["weight"], floor, included


@dataclass(frozen=True, eq=False)
class Allocation:
    """The solution. Where it is infeasible, shares, powers and energies are 0 and the objective is infinite."""

    share: FloatArray
    """θ_k, (..., n)."""
    power_w: FloatArray
    energy_j: FloatArray
    """What the share costs: the energy of the upload, E_U; of whole devices, all beyond their cheapest computation."""
    upload_time_s: FloatArray
    """Duration of the upload; 0 for a device without a share."""
    multiplier: FloatArray
    """μ, the price of the whole band, (...,)."""
    residual: FloatArray
    """Largest relative violation of the optimality conditions above, (...,)."""
    objective: FloatArray
    """Σ w_k E_k, (...,)."""
    feasible: BoolArray
    status: Status | tuple[Status, ...]
    """Why no allocation exists, if so; a tuple with one entry per problem of a batch."""
    compute_time_s: FloatArray | None = None
    """Seconds of computing, which say the clock; None in the printed model, where they are given."""


def allocate(problem: AllocationProblem) -> Allocation:
    """Split the band among given devices at the least weighted energy: problem P₂, solved to rounding error.

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
    return share_band(*problem.checked())


def share_band(uplink: Uplink, weight: FloatArray, floor: FloatArray, included: BoolArray | None = None) -> Allocation:
    """`allocate` for devices whose least shares are known, as checked arrays (..., n)."""
    batch, devices = weight.shape[:-1], weight.shape[-1]
    rows = uplink.rows()
    weights, floors = weight.reshape(-1, devices), floor.reshape(-1, devices)
    members = np.ones_like(floors, bool) if included is None else included.reshape(-1, devices)
    curve, feasible = rows.curve, _feasible(rows, floors)
    sends = curve.sends & np.isfinite(floors)
    with np.errstate(divide="ignore"):
        log_weight = np.log(_prices(weights, sends, feasible))
    live = feasible & (curve.priced(log_weight) & sends).any(-1)
    log_price = np.full(len(feasible), -np.inf)
    share = np.where(feasible[:, None], floors, 0.0)
    if live.any():
        solved = curve.take(live), log_weight[live], floors[live]
        log_price[live] = log_prices(*solved)
        share[live] = _shares(log_price[live], *solved)
    energy = np.where(feasible[:, None], curve.energy_j(share), 0.0)
    run = rows.operation(share, energy)
    true_cost = np.where(energy > 0, weights, 0.0) * energy
    residual = _residual(log_price, share, curve, log_weight, floors)
    reasons = [Status() if good else _why(rows, floors, members, row) for row, good in enumerate(feasible)]
    return Allocation(
        share=share.reshape(weight.shape),
        power_w=run.power_w.reshape(weight.shape),
        energy_j=energy.reshape(weight.shape),
        upload_time_s=run.upload_time_s.reshape(weight.shape),
        multiplier=np.where(feasible, np.exp(log_price), np.nan).reshape(batch),
        residual=np.where(feasible, residual, np.nan).reshape(batch),
        objective=np.where(feasible, true_cost.sum(-1), np.inf).reshape(batch),
        feasible=feasible.reshape(batch),
        status=tuple(reasons) if batch else reasons[0],
        compute_time_s=None if run.compute_time_s is None else run.compute_time_s.reshape(weight.shape),
    )


def _prices(weight: FloatArray, sends: BoolArray, feasible: BoolArray) -> FloatArray:
    """The weights, or 1 for everybody in a problem where nobody's joules have a price."""
    free = feasible & ~((weight > 0) & sends).any(-1)
    return np.where(free[:, None], 1.0, weight)


def _shares(log_price: FloatArray, curve: CostCurve, log_weight: FloatArray, floor: FloatArray) -> FloatArray:
    """θ_k = max(θ_k(μ), θ_k^min), with the last rounding error of Σ θ = 1 spread over the free devices."""
    wanted = curve.share_at_price(log_price[:, None], log_weight)
    free = wanted > floor
    bound_sum = np.where(free, 0.0, floor).sum(-1, keepdims=True)
    free_sum = np.where(free, wanted, 0.0).sum(-1, keepdims=True)
    scale = (1.0 - bound_sum) / np.where(free_sum > 0, free_sum, 1.0)
    return np.where(free, np.maximum(wanted * scale, floor), floor)


def _residual(
    log_price: FloatArray, share: FloatArray, curve: CostCurve, log_weight: FloatArray, floor: FloatArray
) -> FloatArray:
    """Stationarity, complementary slackness and Σ θ = 1, each relative; the largest violation."""
    live = curve.priced(log_weight) & np.isfinite(floor) & (share > 0)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = np.expm1(curve.mismatch(share, log_price[:, None], log_weight))  # a w G(b/θ)/μ − 1
    violation = np.where(share > floor, np.abs(excess), np.maximum(excess, 0.0))
    stationarity = np.where(live, violation, 0.0).max(-1, initial=0.0)
    total = share.sum(-1)
    band = np.where(live.any(-1), np.abs(total - 1.0), np.maximum(total - 1.0, 0.0))
    return np.asarray(np.maximum(stationarity, band))


# ── Feasibility ──────────────────────────────────────────────────────────────


def _feasible(uplink: Uplink, floor: FloatArray) -> BoolArray:
    """Which problems of the batch have a solution."""
    late = uplink.upload_time_s <= 0
    return np.asarray(~late.any(-1) & (floor.sum(-1) <= 1.0 + SHARE_TOLERANCE))


def _why(uplink: Uplink, floors: FloatArray, included: BoolArray, row: int) -> Status:
    """Why this problem of the batch has no solution, by the first device to blame."""
    one, floor = uplink.take(slice(row, row + 1)), floors[row]
    late, weak = one.upload_time_s[0] <= 0, floor > 1.0 + SHARE_TOLERANCE
    if late.any():
        k = int(late.argmax())
        return Status("past_deadline", {"past_deadline": (k,)}, {"upload_time_s": float(one.upload_time_s[0, k])})
    if weak.any():
        k = int(weak.argmax())
        if np.isfinite(floor[k]):
            return Status("floor_above_band", {"crowded": (k,)}, {"share_floor": float(floor[k])})
        needed = one.payload_bits[0, k] / np.ravel(one.bandwidth_hz)[0] / one.upload_time_s[0, k]
        reached = np.log1p(one.snr[0, k]) / np.log(2)
        return Status("out_of_reach", {"out_of_reach": (k,)}, {"needed": float(needed), "reached": float(reached)})
    k = int(floor.argmax())
    facts = {"devices": int(included[row].sum()), "total": float(floor.sum()), "largest": float(floor[k])}
    return Status("crowded", {"crowded": (k,)}, facts)


# ── Checks ───────────────────────────────────────────────────────────────────

_RULES: dict[str, tuple[str, float]] = {
    "gain": ("a finite number, 0 or more", 0.0),
    "payload_bits": ("a finite number, 0 or more", 0.0),
    "upload_time_s": ("a finite number", -np.inf),
    "max_power_w": ("a finite number, 0 or more", 0.0),
    "weight": ("a finite number, 0 or more", 0.0),
    "share_floor": ("a finite number, 0 or more", 0.0),
}
_DEVICE_RULES: dict[str, tuple[str, float]] = {
    "fastest_s": ("a finite number of seconds, 0 or more", 0.0),
    "slowest_s": ("a finite number of seconds, at least fastest_s", 0.0),
    "work_j_s2": ("a finite number, 0 or more", 0.0),
    "static_power_w": ("a finite number of watts, 0 or more", 0.0),
    "circuit_power_w": ("a finite number of watts, 0 or more", 0.0),
    "amplifier_efficiency": ("above 0 and at most 1", 0.0),
    "min_power_w": ("a finite number of watts, 0 or more and at most max_power_w", 0.0),
}
_NEUTRAL = {"upload_time_s": 1.0, "amplifier_efficiency": 1.0}


def _checked(
    problem: AllocationProblem,
) -> tuple[BoolArray, FloatArray, FloatArray, dict[str, FloatArray]]:
    """Every field as an array (..., n); the first bad entry is named with its device."""
    rules = _RULES if problem.printed_model else {**_RULES, **_DEVICE_RULES}
    given = {name: getattr(problem, name) for name in rules}
    if given.get("slowest_s", 0.0) is None:
        given["slowest_s"] = problem.fastest_s
    raw = {name: np.asarray(value, float) for name, value in given.items()}
    mask = np.asarray(True if problem.included is None else problem.included, bool)
    try:
        shape = np.broadcast_shapes(*(array.shape for array in raw.values()), mask.shape)
    except ValueError:
        sizes = ", ".join(f"{name} {array.shape}" for name, array in raw.items())
        raise ConfigError("the devices' fields", sizes, "arrays of one common shape (..., devices)") from None
    if not shape or shape[-1] == 0:
        raise ConfigError("gain", [], "an array with one entry for each of at least one device")
    included = np.broadcast_to(mask, shape)
    arrays = {}
    for name, (rule, least) in rules.items():
        array = np.broadcast_to(raw[name], shape)
        bad = ~(np.isfinite(array) & (array >= least) & _beside(name, array, raw)) & included
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ConfigError(f"{name} of device {where[-1]}{_row(where)}", float(array[where]), rule)
        arrays[name] = np.where(included, array, _NEUTRAL.get(name, 0.0))
    band = _positive("bandwidth_hz", problem.bandwidth_hz, shape)
    noise = _positive("noise_w_per_hz", problem.noise_w_per_hz, shape)
    return included, band, noise, arrays


def _beside(name: str, array: FloatArray, raw: Mapping[str, FloatArray]) -> BoolArray:
    """Whether values fit what is said of the same devices beside them."""
    if name == "slowest_s":
        return np.asarray(array >= raw["fastest_s"])
    if name == "min_power_w":
        return np.asarray(array <= raw["max_power_w"])
    if name == "amplifier_efficiency":
        return np.asarray((array > 0) & (array <= 1))
    return np.ones_like(array, bool)


def _positive(name: str, value: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value, float)
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        raise ConfigError(name, float(array[bad].flat[0]), "a finite number greater than 0")
    try:
        return np.broadcast_to(array, shape[:-1])[..., None]
    except ValueError:
        raise ConfigError(name, array.shape, f"a number or an array of the batch shape {shape[:-1]}") from None


def _row(where: tuple[int, ...]) -> str:
    return f" in problem {', '.join(map(str, where[:-1]))}" if len(where) > 1 else ""
