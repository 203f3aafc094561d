"""Bandwidth and power for a given set of devices: the problem, its optimality condition, its solution.

Problem P₂ (equation 25), for the devices S that take part, with w_k the price of a joule of device k:

    minimize    Σ_{k∈S} w_k E_k(θ_k),          E_k(θ) = a_k θ (e^{b_k/θ} − 1)
    subject to  Σ_{k∈S} θ_k ≤ 1                                                        (14c)
                θ_k^min ≤ θ_k ≤ 1,             θ_k^min ln(1 + s_k/θ_k^min) = b_k       (25a)

with a_k, b_k, s_k as in `kfl.scheduling.curve`. By Proposition 1 the upload uses all the time left, so the
power is p_k = E_k(θ_k) / T_k, and (25a) says p_k ≤ p_max. A caller may raise θ_k^min (`share_floor`).

Each E_k is convex and falling, so the whole band is used and the optimum is the point where

    a_k w_k G(b_k/θ_k) = μ                     if θ_k > θ_k^min       (stationarity, equation 28)
    a_k w_k G(b_k/θ_k) ≤ μ                     if θ_k = θ_k^min
    Σ_k θ_k = 1                                                       (μ > 0, so the band is full)

for one multiplier μ, that is θ_k = max(θ_k(μ), θ_k^min) with Σ_k max(θ_k(μ), θ_k^min) = 1. θ_k ≤ 1 follows.

Where we leave the paper: Algorithm 2 looks for Σ θ_k(μ) = 1 and lifts the shares to θ^min afterward, so they
add up to more than 1 whenever a minimum binds; its bracket for μ is then too small; and its tolerance on μ is
absolute. The tests keep it for comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
class Allocation:
    """The solution. Where it is infeasible, shares, powers and energies are 0 and the objective is infinite."""

    share: FloatArray
    """θ_k, (n,)."""
    power_w: FloatArray
    energy_j: FloatArray
    """What the share costs: the energy of the upload, E_U; of whole devices, all beyond their cheapest computation."""
    upload_time_s: FloatArray
    """Duration of the upload; 0 for a device without a share."""
    multiplier: FloatArray
    """μ, the price of the whole band."""
    residual: FloatArray
    """Largest relative violation of the optimality conditions above."""
    objective: FloatArray
    """Σ w_k E_k."""
    feasible: BoolArray
    status: Status | tuple[Status, ...]
    """Why no allocation exists, if so."""
    compute_time_s: FloatArray | None = None
    """Seconds of computing, which say the clock; None in the printed model, where they are given."""


def allocate(uplink: Uplink | AllocationProblem, weight: ArrayLike = 1.0, share_floor: ArrayLike = 0.0) -> Allocation:
    """Split the band among given devices at the least weighted energy: problem P₂, solved to rounding error.

    Args:
        uplink: the band and the devices that share it. A device without time left makes the problem infeasible.
        weight: price w_k ≥ 0 of a joule of each device. If all are zero, the total energy is minimized.
        share_floor: lower limit on each share, beyond the one that the power limit sets.

    Returns:
        Shares, powers and energies; where no split lets all devices finish, `feasible` is False and `status` says why.

    Raises:
        ConfigError: a value is not a number that it can be; the message names it and its device.

    >>> from dataclasses import replace
    >>> two = Uplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...              payload_bits=np.full(2, 1e6), time_s=np.ones(2), max_power_w=np.ones(2))
    >>> best = allocate(two)
    >>> best.share.round(3), best.status.ok, bool(best.residual < 1e-12)
    (array([0.206, 0.794]), True, True)
    >>> print(allocate(replace(two, time_s=np.array([1.0, -0.5]))).status)
    Device 1 computes past the deadline: the time left for its upload is -0.5 s.

    Devices that may slow their clocks, and whose radios draw more than they radiate:

    >>> device = DeviceEnergyModel(fastest_s=0.5, slowest_s=5.0, work_j_s2=0.025, circuit_power_w=0.2)
    >>> whole = allocate(replace(two, gain=np.full(2, 1e-10), payload_bits=np.full(2, 1e5), time_s=1.5, device=device))
    >>> whole.compute_time_s.round(2), whole.upload_time_s.round(2), bool((whole.power_w > 1e-4).all())
    (array([1.48, 1.48]), array([0.02, 0.02]), True)
    """
    if isinstance(uplink, AllocationProblem):
        warnings.warn("AllocationProblem goes: use allocate(Uplink(...), weight)", DeprecationWarning, stacklevel=2)
        weight, share_floor, uplink = uplink.weight, uplink.share_floor, uplink.uplink
    checked, weights, floors = _checked(uplink, weight, share_floor)
    return solve_shares(checked, weights, np.maximum(checked.power_floor(), floors))


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Arguments of `allocate` in one object, as release 0.1 took them; it goes with the next release.

    >>> two = np.ones(2)
    >>> old = AllocationProblem(1e6, 4e-21, 1e-10 * two, 1e5 * two, upload_time_s=two, max_power_w=two, weight=two)
    >>> allocate(old.uplink, old.weight).share
    array([0.5, 0.5])
    """

    bandwidth_hz: float
    noise_w_per_hz: float
    gain: ArrayLike
    payload_bits: ArrayLike
    upload_time_s: ArrayLike
    """Time left after computing at the fastest clock."""
    max_power_w: ArrayLike
    weight: ArrayLike
    share_floor: ArrayLike = 0.0
    fastest_s: ArrayLike = 0.0
    slowest_s: ArrayLike | None = None
    work_j_s2: ArrayLike = 0.0
    static_power_w: ArrayLike = 0.0
    circuit_power_w: ArrayLike = 0.0
    amplifier_efficiency: ArrayLike = 1.0
    min_power_w: ArrayLike = 0.0

    @property
    def uplink(self) -> Uplink:
        """The uplink of these devices."""
        fastest_s = np.asarray(self.fastest_s, float)
        names = ("work_j_s2", "static_power_w", "circuit_power_w", "amplifier_efficiency", "min_power_w")
        own = {name: np.asarray(getattr(self, name), float) for name in names}
        slowest_s = fastest_s if self.slowest_s is None else np.asarray(self.slowest_s, float)
        return Uplink(
            bandwidth_hz=self.bandwidth_hz,
            noise_w_per_hz=self.noise_w_per_hz,
            gain=np.asarray(self.gain, float),
            payload_bits=np.asarray(self.payload_bits, float),
            time_s=np.asarray(self.upload_time_s, float) + fastest_s,
            max_power_w=np.asarray(self.max_power_w, float),
            device=DeviceEnergyModel(fastest_s=fastest_s, slowest_s=slowest_s, **own),
        )


def solve_shares(uplink: Uplink, weight: FloatArray, floor: FloatArray) -> Allocation:
    """Solve P₂ for devices whose least shares are known, as checked arrays (n,).

    Arrays (m, n) are a batch of problems, of which the results have one entry each.
    """
    batch, devices = weight.shape[:-1], weight.shape[-1]
    rows = uplink.rows()
    weights, floors = weight.reshape(-1, devices), floor.reshape(-1, devices)
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
    reasons = [Status() if good else _why(rows, floors, row) for row, good in enumerate(feasible)]
    with np.errstate(over="ignore"):  # a price beyond floats is infinite
        price = np.exp(log_price)
    return Allocation(
        share=share.reshape(weight.shape),
        power_w=run.power_w.reshape(weight.shape),
        energy_j=energy.reshape(weight.shape),
        upload_time_s=run.upload_time_s.reshape(weight.shape),
        multiplier=np.where(feasible, price, np.nan).reshape(batch),
        residual=np.where(feasible, residual, np.nan).reshape(batch),
        objective=np.where(feasible, true_cost.sum(-1), np.inf).reshape(batch),
        feasible=feasible.reshape(batch),
        status=tuple(reasons) if batch else reasons[0],
        compute_time_s=None if run.compute_time_s is None else run.compute_time_s.reshape(weight.shape),
    )


def _prices(weight: FloatArray, sends: BoolArray, feasible: BoolArray) -> FloatArray:
    """The weights, or 1 for all devices in a problem where no device's joules have a price."""
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


def _why(uplink: Uplink, floors: FloatArray, row: int) -> Status:
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
    facts = {"devices": len(floor), "total": float(floor.sum()), "largest": float(floor[k])}
    return Status("crowded", {"crowded": (k,)}, facts)


# ── Checks ───────────────────────────────────────────────────────────────────

_AT_LEAST_0 = "a finite number, 0 or more"
_Test = Callable[[FloatArray, Uplink], BoolArray]


def _not_negative(values: FloatArray, _: Uplink) -> BoolArray:
    return np.asarray(values >= 0)


_RADIO: dict[str, tuple[str, _Test]] = {
    "gain": (_AT_LEAST_0, _not_negative),
    "payload_bits": (_AT_LEAST_0, _not_negative),
    "time_s": ("a finite number", lambda values, _: np.isfinite(values)),
    "max_power_w": (_AT_LEAST_0, _not_negative),
}
_DEVICE: dict[str, tuple[str, _Test]] = {
    "fastest_s": ("a finite number of seconds, 0 or more", _not_negative),
    "slowest_s": ("a finite number of seconds, 0 or more", _not_negative),
    "work_j_s2": (_AT_LEAST_0, _not_negative),
    "static_power_w": ("a finite number of watts, 0 or more", _not_negative),
    "circuit_power_w": ("a finite number of watts, 0 or more", _not_negative),
    "amplifier_efficiency": ("above 0 and at most 1", lambda values, _: (values > 0) & (values <= 1)),
    "min_power_w": (
        "a finite number of watts, 0 or more and at most max_power_w",
        lambda values, uplink: (values >= 0) & (values <= uplink.max_power_w),
    ),
}


def _checked(uplink: Uplink, weight: ArrayLike, share_floor: ArrayLike) -> tuple[Uplink, FloatArray, FloatArray]:
    """Return everything as arrays (n,); ConfigError for the first bad entry, with its device."""
    for name in ("bandwidth_hz", "noise_w_per_hz"):
        value = np.asarray(getattr(uplink, name), float)
        if value.ndim or not (np.isfinite(value) and value > 0):
            raise ConfigError(name, value.tolist(), "a finite number greater than 0")
    given = {name: np.asarray(getattr(uplink, name), float) for name in _RADIO}
    size = given["gain"].shape
    if len(size) != 1 or not size[0]:
        raise ConfigError("gain", given["gain"].shape, "an array with one entry for each of at least one device")
    radio = {name: _one_each(name, values, size) for name, values in given.items()}
    device = {name: _one_each(name, getattr(uplink.device, name), size) for name in _DEVICE}
    spread = replace(
        uplink,
        gain=radio["gain"],
        payload_bits=radio["payload_bits"],
        time_s=radio["time_s"],
        max_power_w=radio["max_power_w"],
    )
    for name, (expected, fits) in {**_RADIO, **_DEVICE}.items():
        _refuse_unless(name, {**radio, **device}[name], fits({**radio, **device}[name], spread), expected)
    own = {"weight": _one_each("weight", weight, size), "share_floor": _one_each("share_floor", share_floor, size)}
    for name, values in own.items():
        _refuse_unless(name, values, values >= 0, _AT_LEAST_0)
    if not uplink.device.is_paper_model or np.ndim(uplink.device.fastest_s):
        spread = replace(spread, device=replace(uplink.device, **device))
    return spread, own["weight"], own["share_floor"]


def _one_each(name: str, values: ArrayLike, size: tuple[int, ...]) -> FloatArray:
    array = np.asarray(values, float)
    if array.shape not in ((), (1,), size):
        raise ConfigError(name, array.shape, f"a number or an array with one entry for each of {size[0]} devices")
    return np.broadcast_to(array, size)


def _refuse_unless(name: str, values: FloatArray, right: BoolArray, expected: str) -> None:
    wrong = np.flatnonzero(~(right & np.isfinite(values)))
    if len(wrong):
        raise ConfigError(f"{name} of device {wrong[0]}", float(values[wrong[0]]), expected)
