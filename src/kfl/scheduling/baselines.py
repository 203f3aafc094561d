"""The schedulers that others are compared with: fixed patterns, round robin, myopic, and two that look at joules.

The paper's section V compares temporal patterns (uniform, ascend, descend) and, in V-C, round robin and myopic.
It does not say how these share the band; here each minimizes the total energy of the devices it chose. The two
at the end of this module, the cheapest devices and a fixed set, are what work on wireless learning compares with.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.share_band import by_reason, reachable, serve, standing
from kfl.scheduling.status import Status


def _serve_all(observation: Observation, chosen: BoolArray) -> Decision:
    """Share the band among the chosen devices with the least total energy; the status says where there is none."""
    if not chosen.any():
        unable = by_reason(standing(observation), np.ones_like(chosen))
        return Decision.nobody(len(chosen), Status("nobody_able", unable))
    return serve(observation, chosen, np.ones(len(chosen)))


def _check_count(count: int) -> None:
    if count < 1:
        raise ConfigError("scheduler.count", count, "at least 1")


@dataclass(frozen=True)
class AllDevices(Scheduler):
    """Every device that can take part, in every round.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=3, widths=(8,), scheduler=kfl.AllDevices()))
    >>> [len(entry.devices) for entry in history.rounds]
    [10, 10, 10]
    """

    name: ClassVar[str] = "all"

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """All available devices that can finish in time; where the band is too narrow, as many as fit."""
        return _serve_all(observation, reachable(observation)[0])


@dataclass(frozen=True)
class RandomDevices(Scheduler):
    """A number of devices that depends on the round alone, drawn at random: what the three patterns share."""

    order_matters: ClassVar[bool] = True

    count: int = 10
    """Devices per round, on average over the run."""

    def __post_init__(self) -> None:
        _check_count(self.count)

    @abstractmethod
    def size(self, round_index: int, horizon: int) -> int:
        """How many devices round `round_index` of `horizon` asks for."""

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """Draw the round's number of devices among those that can take part.

        Each device draws a ticket and the lowest tickets win, so that a device that drops out makes room for
        one other and changes no other device's luck.
        """
        able = reachable(observation)[0]
        wanted = self.size(observation.round, state.horizon)
        ticket = stream(observation.seed, "schedule", observation.round).random(len(able))
        winners = np.argsort(np.where(able, ticket, np.inf), kind="stable")[:wanted]
        chosen = _mask(winners, len(able)) & able
        decision = _serve_all(observation, chosen)
        if decision.status.ok and int(chosen.sum()) < wanted:
            return replace(decision, status=Status("too_few", facts={"able": int(chosen.sum()), "wanted": wanted}))
        return decision


@dataclass(frozen=True)
class Uniform(RandomDevices):
    """The same number of random devices in every round; elsewhere called random-k.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=3, widths=(8,), scheduler=kfl.Uniform(count=4)))
    >>> [len(entry.devices) for entry in history.rounds]
    [4, 4, 4]
    """

    name: ClassVar[str] = "uniform"

    def size(self, round_index: int, horizon: int) -> int:
        """Always `count`."""
        return self.count


def rising_size(round_index: int, horizon: int, average: int) -> int:
    """1 to 2·average − 1 in `horizon` nearly equal steps, with a total of exactly average · horizon.

    The paper prints 1 → 20 "with an average of 10", which averages 10.5 and would compare unequal totals. The
    second half mirrors the first, so that rounding cannot change the total.

    >>> [rising_size(t, 5, 10) for t in range(5)], sum(rising_size(t, 200, 10) for t in range(200))
    ([1, 6, 10, 14, 19], 2000)
    """
    mirror = horizon - 1 - round_index
    if round_index >= mirror:
        return average if round_index == mirror else 2 * average - rising_size(mirror, horizon, average)
    steps = horizon - 1
    # 1 + (2·average − 2) t / (T − 1), rounded to the nearest integer, halves up, in integers.
    return 1 + (2 * (2 * average - 2) * round_index + steps) // (2 * steps)


@dataclass(frozen=True)
class Ascend(RandomDevices):
    """More and more random devices: from 1 to 2·count − 1, with the same total as `Uniform`.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=3, widths=(8,), scheduler=kfl.Ascend(count=3)))
    >>> [len(entry.devices) for entry in history.rounds]
    [1, 3, 5]
    """

    name: ClassVar[str] = "ascend"

    def size(self, round_index: int, horizon: int) -> int:
        """`rising_size`."""
        return rising_size(min(round_index, horizon - 1), horizon, self.count)


@dataclass(frozen=True)
class Descend(RandomDevices):
    """Fewer and fewer random devices: from 2·count − 1 to 1, with the same total as `Uniform`.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=3, widths=(8,), scheduler=kfl.Descend(count=3)))
    >>> [len(entry.devices) for entry in history.rounds]
    [5, 3, 1]
    """

    name: ClassVar[str] = "descend"

    def size(self, round_index: int, horizon: int) -> int:
        """`rising_size`, backwards."""
        return rising_size(max(horizon - 1 - round_index, 0), horizon, self.count)


@dataclass(frozen=True)
class RoundRobin(Scheduler):
    """Devices in turn, a fixed number per round, skipping those without the energy for it (section V-C).

    >>> import kfl
    >>> scarce = {"devices": 10, "rounds": 3, "widths": (8,), "radio": "paper-mnist"}
    >>> history = kfl.run(kfl.Experiment(**scarce, scheduler=kfl.RoundRobin(count=5)))
    >>> [len(entry.devices) for entry in history.rounds]
    [5, 2, 0]
    """

    name: ClassVar[str] = "round-robin"
    order_matters: ClassVar[bool] = True

    count: int = 5
    """Devices per round; the paper's 5 is what its own scheduler averages."""

    def __post_init__(self) -> None:
        _check_count(self.count)

    def init(self, budget_j: FloatArray, horizon: int) -> SchedulerState:
        """Empty queues, and device 0 is next."""
        return replace(Scheduler.init(self, budget_j, horizon), memory={"next": np.zeros(1)})

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """The next devices in turn that can take part and whose battery covers the round.

        What the upload will cost is not known before the band is shared, so it is estimated at an equal share.
        """
        able, floor = reachable(observation)
        able = able & (self._estimated_energy(observation, floor) <= observation.battery_j)
        turn = np.roll(np.arange(len(able)), -int(state.memory["next"][0]))
        return _serve_all(observation, _mask(turn[able[turn]][: self.count], len(able)))

    def _estimated_energy(self, observation: Observation, floor: FloatArray) -> FloatArray:
        share = np.maximum(np.where(np.isfinite(floor), floor, 1.0), 1.0 / self.count)
        return observation.base_energy_j + observation.curve.energy_j(share)

    def update(self, state: SchedulerState, decision: Decision, spent_j: FloatArray) -> SchedulerState:
        """Equation (21) for the queues; the turn goes on behind the last device that was chosen."""
        following = Scheduler.update(self, state, decision, spent_j)
        if not decision.chosen.any():
            return following
        first, size = int(state.memory["next"][0]), len(decision.chosen)
        last = int(((np.flatnonzero(decision.chosen) - first) % size).max())
        return replace(following, memory={"next": np.array([float((first + last + 1) % size)])})


@dataclass(frozen=True)
class Myopic(Scheduler):
    """Every device that can pay for the round out of what it has left, divided by the rounds left (section V-C).

    What fits into this allowance depends on the share, and so on the others:
    a device fits from some share on, and if these shares together exceed the band, the largest are left out.
    No device then spends more than the allowance. The paper divides by T − t + 1 with t from 1, here T − t with t
    from 0. Where one round of computation costs several allowances, myopic waits until the last rounds, so
    beating it means little.

    >>> import kfl
    >>> scarce = {"devices": 10, "rounds": 3, "widths": (8,), "radio": "paper-mnist"}
    >>> history = kfl.run(kfl.Experiment(**scarce, scheduler=kfl.Myopic()))
    >>> [len(entry.devices) for entry in history.rounds]
    [0, 2, 5]
    """

    name: ClassVar[str] = "myopic"
    needs_radio: ClassVar[bool] = True

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """As many devices as fit their allowance and the band together."""
        if observation.uplink is None:
            raise ConfigError(
                "scheduler", self.name, "another one when there is no radio: without it no device spends energy"
            )
        rounds_left = max(state.horizon - observation.round, 1)
        allowance_j = observation.battery_j / rounds_left
        allowed = replace(observation, battery_j=allowance_j, hard_budget=True)
        decision = _serve_all(allowed, reachable(allowed)[0])
        if decision.status.code == "nobody_able" and reachable(observation)[0].any():
            return replace(decision, status=replace(decision.status, code="nobody_affords"))
        return decision


@dataclass(frozen=True)
class GreedyEnergy(Scheduler):
    """The devices for which the round costs the fewest joules, whatever their data and their past.

    Devices are sorted by what the round would cost each with an equal part of the band. A device that has not enough
    left of its budget is passed over, so cheap devices empty their batteries first and the others follow.

    >>> import kfl
    >>> scarce = {"devices": 10, "rounds": 3, "widths": (8,), "radio": "paper-mnist"}
    >>> history = kfl.run(kfl.Experiment(**scarce, scheduler=kfl.GreedyEnergy(count=4)))
    >>> [len(entry.devices) for entry in history.rounds]
    [4, 3, 0]
    """

    name: ClassVar[str] = "greedy-energy"

    count: int | None = None
    """Devices per round; none: as many as the fleet's budget per round, Σ E_k/T, pays for; all where there is none."""

    def __post_init__(self) -> None:
        if self.count is not None:
            _check_count(self.count)

    def limited(self, state: SchedulerState, observation: Observation) -> Observation:
        """No device spends more than is left of its budget, whether budgets are hard or not."""
        return replace(observation, hard_budget=True)

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """The cheapest devices, as many as `count` or the fleet's budget per round allows."""
        seen = self.limited(state, observation)
        order = self._cheapest_first(seen)
        if self.count is not None:
            return _serve_all(seen, _mask(order[: self.count], seen.size))
        limit_j = float(np.sum(state.allowance_j))
        # The least energy of the n cheapest devices grows with n: bisect for the longest run within the limit.
        few, many = 0, len(order) + 1
        while many - few > 1:
            middle = (few + many) // 2
            decision = _serve_all(seen, _mask(order[:middle], seen.size))
            spent_j = np.where(decision.chosen, decision.compute_energy_j + decision.upload_energy_j, 0.0)
            few, many = (middle, many) if float(np.sum(spent_j)) <= limit_j else (few, middle)
        decision = _serve_all(seen, _mask(order[:few], seen.size))
        if not few and len(order):
            return replace(decision, status=Status("nobody_affords"))
        return decision

    def _cheapest_first(self, observation: Observation) -> NDArray[np.intp]:
        """The devices that can take part, by what an equal part of the band, or their least share, costs them."""
        able, floor = reachable(observation)
        members = np.flatnonzero(able)
        equal = 1.0 / (self.count or max(len(members), 1))
        share = np.maximum(floor[members], equal)
        curve = observation.curve.take(members)
        cost_j = observation.base_energy_j[members] + curve.energy_j(share)
        # Where the estimate overflows, its logarithm decides.
        return members[np.lexsort((curve.log_energy_j(share), cost_j))]


@dataclass(frozen=True)
class FixedSet(Scheduler):
    """The same devices in every round, drawn once, with the least total energy over band, power and clock.

    Yang, Chen, Saad, Hong and Shikh-Bahaei, "Energy efficient federated learning over wireless communication
    networks", IEEE Trans. Wireless Commun. 20(3), 2021 (arXiv 1911.02417): every user takes part in every round, and
    transmission time, bandwidth, power and clock are chosen for the least total energy within a completion time.
    Theirs is the problem. They alternate between closed forms for some of the variables and also choose how exactly
    users solve their local problem; here the local work is given and the cost curves' optimum is exact. Clocks are
    free where the cell's are (`min_cpu_hz`). With at least as many as there are devices it is `all`.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=3, widths=(8,), scheduler=kfl.FixedSet(count=4)))
    >>> [entry.devices for entry in history.rounds]
    [(2, 5, 7, 8), (2, 5, 7, 8), (2, 5, 7, 8)]
    """

    name: ClassVar[str] = "fixed-set"
    order_matters: ClassVar[bool] = True

    count: int = 10
    """Devices in the set."""

    def __post_init__(self) -> None:
        _check_count(self.count)

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """Those of the set that can take part; no device stands in for the others."""
        ticket = stream(observation.seed, "fixed-set").random(observation.size)
        members = np.argsort(ticket, kind="stable")[: self.count]
        chosen = _mask(members, observation.size)
        return serve(observation, chosen, np.ones(observation.size))


def _mask(members: NDArray[np.intp], size: int) -> BoolArray:
    chosen = np.zeros(size, dtype=bool)
    chosen[members] = True
    return chosen
