"""The dual scheduler: the best set of devices, with a certificate of how far it can be from the best.

It minimises what Algorithm 3 minimises, equation (22), but does not grow a set device by device. One price for
the band separates the problem over devices (`kfl.scheduling.relaxation`), which gives a lower bound on the
value of every set; the set the price suggests is then mended (`kfl.scheduling.repair`). The distance between
the two is printed with every decision and is at most one device's worth, V γ_t D_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.scheduling import curve
from kfl.scheduling.base import Decision, FloatArray, Observation, Scheduler, SchedulerState, Uplink
from kfl.scheduling.drift import Gamma, drift_objective, gamma_weight
from kfl.scheduling.relaxation import Devices, critical_log_prices, relax
from kfl.scheduling.repair import repair
from kfl.scheduling.serve import serve, share_floor


@dataclass(frozen=True)
class Dual(Scheduler):
    """Minimises the drift-plus-penalty (22) by its dual, in O(K log K), and says how good the answer is.

    The paper's Algorithm 3 is `Lyapunov`; both have the same objective, so their values can be compared.
    """

    name: ClassVar[str] = "dual"

    v: float = 0.01
    """Weight V of learning against energy."""
    gamma: Gamma = "harmonic"
    """Weight γ_t of a round: "harmonic" is 1/(t+1), "constant" is 1."""
    epsilon: float = 1e-6
    """Price of a joule, beside its queue, when the band is shared: a device with an empty queue is not free."""

    def __post_init__(self) -> None:
        for name in ("v", "epsilon"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f"{self.name}.{name}", value, "zero or a positive number")

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """A set close to the best one, its shares and powers, its objective and a bound on everybody's."""
        weight = self.v * gamma_weight(self.gamma, observation.round)
        worth = weight * observation.samples - state.queue_j * observation.compute_energy_j
        members = np.flatnonzero(observation.available & (worth > 0))
        if not len(members):
            return _nobody(len(worth), "No available device is worth its energy in this round.")
        within = _only(observation, members)
        floor = share_floor(within)
        able = np.isfinite(floor)
        members, within, floor = members[able], _only(within, np.flatnonzero(able)), floor[able]
        if not len(members):
            return _nobody(len(worth), "No device worth its energy can finish in time and within its budget.")
        queue = state.queue_j[members]
        if within.uplink is None:
            positions, bound = np.arange(len(members)), float(-np.sum(worth[members]))
        else:
            magnitude = float(np.sum(weight * within.samples + queue * within.compute_energy_j))
            positions, bound = _best_set(_devices(worth[members], queue, floor, within.uplink), magnitude)
        if not len(positions):
            return replace(_nobody(len(worth), "No device is worth its energy in this round."), lower_bound=bound)
        return self._decision(state, observation, members[positions], weight, bound)

    def _decision(
        self,
        state: SchedulerState,
        observation: Observation,
        chosen: NDArray[np.intp],
        weight: float,
        bound: float,
    ) -> Decision:
        """Share the band among the chosen devices, and value the result by (22) with the true queues."""
        only = _only(observation, chosen)
        queue = state.queue_j[chosen]
        price = queue + _small_price(self.epsilon, weight, only)
        served = serve(only, np.ones(len(chosen), dtype=bool), price)
        size = len(observation.samples)
        mask = np.zeros(size, dtype=bool)
        mask[chosen] = served.chosen
        energy = only.compute_energy_j + served.upload_energy_j
        value = drift_objective(weight, 1.0, only.samples, queue, served.chosen, energy)
        return Decision(
            chosen=mask,
            share=_spread(served.share, chosen, size),
            power_w=_spread(served.power_w, chosen, size),
            upload_energy_j=_spread(served.upload_energy_j, chosen, size),
            upload_time_s=_spread(served.upload_time_s, chosen, size),
            objective=value,
            lower_bound=min(bound, value),
        )


def _small_price(epsilon: float, weight: float, only: Observation) -> float:
    """ε, or less: sharing the band by q + ε instead of q costs at most ε Σ E_U, kept under 0.1 % of one device."""
    if only.uplink is None:
        return epsilon
    most_j = float(np.sum(only.uplink.max_power_w * np.maximum(only.uplink.upload_time_s, 0.0)))
    least = 1e-3 * weight * float(np.min(only.samples))
    return min(epsilon, least / most_j) if most_j > 0 else epsilon


def _best_set(devices: Devices, magnitude: float) -> tuple[NDArray[np.intp], float]:
    """Positions of the devices to schedule, and a lower bound on the objective of any set."""
    log_price = critical_log_prices(devices)
    order = np.argsort(-log_price, kind="stable")
    order = order[: int(np.count_nonzero(log_price > -np.inf))]
    if not len(order):
        return order, 0.0
    ordered = devices.take(order)
    relaxation = relax(ordered, log_price[order], magnitude)
    return order[repair(ordered, relaxation)], relaxation.lower_bound


def _devices(worth: FloatArray, queue: FloatArray, floor: FloatArray, uplink: Uplink) -> Devices:
    """The upload curves of these devices, beside what they are worth."""
    scale = curve.energy_scale(uplink.bandwidth_hz, uplink.noise_w_per_hz, uplink.upload_time_s, uplink.gain)
    exponent = curve.required_exponent(uplink.payload_bits, uplink.bandwidth_hz, uplink.upload_time_s)
    with np.errstate(divide="ignore"):
        log_cost = np.log(scale) + np.log(queue)
    return Devices(worth, queue, scale, exponent, floor, log_cost)


def _nobody(size: int, status: str) -> Decision:
    nothing = np.zeros(size)
    return Decision(nothing.astype(bool), nothing, nothing, nothing, nothing, 0.0, 0.0, status)


def _only(observation: Observation, members: NDArray[np.intp]) -> Observation:
    """The same observation of fewer devices."""
    uplink = observation.uplink
    if uplink is not None:
        uplink = replace(
            uplink,
            gain=uplink.gain[members],
            payload_bits=uplink.payload_bits[members],
            upload_time_s=uplink.upload_time_s[members],
            max_power_w=uplink.max_power_w[members],
        )
    return replace(
        observation,
        samples=observation.samples[members],
        available=observation.available[members],
        compute_time_s=observation.compute_time_s[members],
        compute_energy_j=observation.compute_energy_j[members],
        battery_j=observation.battery_j[members],
        uplink=uplink,
    )


def _spread(values: FloatArray, members: NDArray[np.intp], size: int) -> FloatArray:
    full = np.zeros(size)
    full[members] = values
    return full
