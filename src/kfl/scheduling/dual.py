"""The dual scheduler: the best set of devices, with a certificate of how far it can be from the best.

It minimizes what Algorithm 3 minimizes, equation (22), but does not grow a set device by device. One price for
the band separates the problem over devices (`kfl.scheduling._relaxation`), which gives a lower bound on the
value of every set; the set the price suggests is then mended (`kfl.scheduling._repair`). The distance between
the two is printed with every decision and is at most one device's worth, V γ_t D_k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._band_price import Candidates, band_log_price
from kfl.scheduling._large_round import LARGE, LargeRound, Memory, is_large
from kfl.scheduling._relaxation import critical_log_prices, fitted_shares, relax
from kfl.scheduling._repair import repair
from kfl.scheduling.base import Decision, Observation, SchedulerState
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.objective import DriftScheduler, data_weight
from kfl.scheduling.share_band import by_reason, decision_for, nobody_there, share_floor, standing
from kfl.scheduling.status import Status


@dataclass(frozen=True)
class Dual(DriftScheduler):
    """The objective of Algorithm 3, solved by a price for the band, with a proof of how good the answer is.

    It takes O(K log K). `Lyapunov` has the same objective (22), so their values can be compared.

    >>> import kfl
    >>> scarce = {"devices": 10, "rounds": 3, "widths": (8,), "radio": "paper-mnist"}
    >>> history = kfl.run(kfl.Experiment(**scarce, scheduler=kfl.Dual()))
    >>> [len(entry.devices) for entry in history.rounds]
    [10, 2, 0]
    """

    name: ClassVar[str] = "dual"

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """A set close to the best one, its shares and powers, its objective and a bound on that of any other set."""
        v, gamma = self.round_v(state, observation), data_weight(self.gamma, observation.round)
        seen = self.limited(state, observation)

        def tiny(chosen: NDArray[np.intp]) -> float:
            return self._tiny_price(self.small_price(state, seen), seen, chosen, v * gamma)

        worth = self.worth(state, observation)
        decision, bound = best_priced_set(observation, seen, worth, state.queue_j, tiny, self._memory)
        if not decision.chosen.any():
            return replace(decision, lower_bound=bound)
        value = self.objective(state, observation, decision)
        return replace(decision, objective=value, lower_bound=min(bound, value))

    @cached_property
    def _memory(self) -> Memory:
        return Memory()

    def _tiny_price(self, tiny: float, seen: Observation, chosen: NDArray[np.intp], value: float) -> float:
        """ε, or less: sharing the band by q + ε costs at most ε Σ E_U, kept under 0.1 % of one device's worth.

        Where devices are whole it is ε: the joules that shares save are mostly within budgets, and worth a little gap.
        """
        if seen.uplink is None or not seen.uplink.device.is_paper_model:
            return tiny
        total_j = float(np.sum(seen.uplink.most_energy_j()[chosen]))
        return min(tiny, 1e-3 * value * float(np.min(seen.samples[chosen])) / total_j) if total_j > 0 else tiny


def best_priced_set(
    observation: Observation,
    seen: Observation,
    worth: FloatArray,
    price: FloatArray,
    extra_price: Callable[[NDArray[np.intp]], float],
    memory: Memory,
) -> tuple[Decision, float]:
    """Return the set, with its shares, that nearly minimizes Σ price_k E_U,k − worth_k, and a bound on every set.

    Args:
        observation: The round.
        seen: The same with the limits that the scheduler adds.
        worth: What each device's part is worth before its upload, in priced joules; devices with 0 or less stay out.
        price: What a joule of each device weighs in the choice of the set.
        extra_price: What a joule weighs on top when the band is shared, given the chosen devices.
        memory: What makes the next large round quicker.

    Returns:
        The decision, whose objective is 0 for no device and NaN otherwise, and the bound.
    """
    if is_large(observation):
        found = _large_set(observation, seen, worth, price, extra_price, memory)
        if found is not None:
            return found
    size = observation.size
    members = np.flatnonzero(observation.available & (worth > 0))
    if not len(members):
        there = observation.available.any()
        return _nobody(size, Status("nobody_worth") if there else nobody_there(observation)), 0.0
    only = seen.take(members)
    floor = share_floor(only)
    able = np.isfinite(floor)
    if not able.any():
        unable = by_reason(standing(observation), observation.available & (worth > 0))
        return _nobody(size, Status("nobody_worth_able", unable) if unable else Status("nobody_worth")), 0.0
    if not able.all():
        members, only, floor = members[able], only.take(able), floor[able]
    if only.uplink is None:
        positions, bound = np.arange(len(members)), float(-np.sum(worth[members]))
        share = energy = np.zeros(len(members))
    else:
        devices = Candidates.of(only.curve, floor, price[members], worth[members])
        magnitude = float(np.sum(worth[members] + 2 * price[members] * only.base_energy_j))
        positions, bound = _best_set(devices, magnitude)
        share, energy = _share_band(devices.take(positions), extra_price(members[positions]))
    if not len(positions):
        return _nobody(size, Status("nobody_worth")), bound
    return decision_for(observation, members[positions], share, energy), bound


def _large_set(
    observation: Observation,
    seen: Observation,
    worth: FloatArray,
    price: FloatArray,
    extra_price: Callable[[NDArray[np.intp]], float],
    memory: Memory,
) -> tuple[Decision, float] | None:
    """`best_priced_set` of many devices, by compiled functions; None for a round that they are not made for."""
    uplink, members = seen.uplink, np.flatnonzero(observation.available)
    if uplink is None or len(members) < LARGE:
        return None
    everybody = LargeRound(seen, members, worth, price, memory)
    magnitude = float(np.sum(np.maximum(worth, 0.0)) + 2 * np.dot(price, seen.base_energy_j))
    solution = everybody.solve(magnitude)
    if solution is None:
        return None
    chosen = solution.chosen
    shared = everybody.share_band(chosen, extra_price(chosen), solution.log_price)
    if shared is None:
        return None
    share, upload_s = shared
    energy_j, drawn_w = everybody.spend(chosen, share, upload_s)
    run = None
    if not uplink.device.is_paper_model:
        devices = uplink.devices.take(chosen)
        compute_s = devices.slow_s - np.maximum(upload_s - devices.calm_s, 0.0)
        run = uplink.take(chosen).operation_at(compute_s, upload_s, devices.efficiency * drawn_w)
    decision = decision_for(observation, chosen, share, energy_j, run=run)
    everybody.close(solution.log_price)
    return decision, solution.lower_bound


def _share_band(devices: Candidates, tiny: float) -> tuple[FloatArray, FloatArray]:
    """Shares that minimize Σ (q_k + ε) E_U,k for a set that fits, and the energies.

    The paper gives a device with q = 0 the smallest share that works, where it sends at full power all the
    time; a small price on its joules avoids that at no cost to the others.
    """
    price = devices.queue_j + tiny
    if not price.any():
        price = np.ones_like(price)  # no device's joules count: then save as many as possible
    priced = devices.with_prices(price)
    share = fitted_shares(priced, band_log_price(priced))
    return share, devices.curve.energy_j(share)


def _best_set(devices: Candidates, magnitude: float) -> tuple[NDArray[np.intp], float]:
    """Positions of the devices to schedule, and a lower bound on the objective of any set."""
    log_price = critical_log_prices(devices)
    order = np.argsort(-log_price, kind="stable")
    order = order[: int(np.count_nonzero(log_price > -np.inf))]
    if not len(order):
        return order, 0.0
    ordered = devices.take(order)
    relaxation = relax(ordered, log_price[order], magnitude)
    return order[repair(ordered, relaxation)], relaxation.lower_bound


def _nobody(size: int, status: Status) -> Decision:
    return Decision.nobody(size, status, objective=0.0, lower_bound=0.0)
