"""Every device in the same share of the rounds, for the least energy, with a bound on what any schedule must spend.

A device is *owed* p of a participation in each round, and pays one back when it takes part: z ← z + p − α. It waits
until it is owed a whole one, and then until a round costs it no more than z times what its rounds have cost so far, so
that it sits out deep fades and never falls far behind. Among those who are ready, the round minimizes

    Σ_k α_k (E_k − z_k e_k),        e_k the mean joules of the device's rounds so far,

by one price for the band, with the certificate of `dual`. Devices start with different fractions owed, so that about
p K of them are ready in each round.

What comes out has two certificates. After T rounds a device that began with the fraction f_k has taken part exactly
f_k + p (T + 1) − z_k times: who is owed less than p has had its share. And no schedule in which each takes part as
often spends less than `least_energy_j`: the sum of every device's cheapest rounds, each with the whole band to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Range, check_ranges
from kfl.scheduling._large_round import Memory
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.dual import best_priced_set
from kfl.scheduling.uplink import Uplink

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, are spread evenly however many there are."""
ENOUGH = 1.01
"""A round that costs so many times what the others did is not worth waiting any longer."""
URGENT = 1e3
"""A participation that cannot wait is worth so many times what it costs."""


@dataclass(frozen=True)
class LeastEnergy(Scheduler):
    """Every device in the same share of the rounds, with the least energy.

    It takes part in nothing that it need not: a round in which no device is owed anything is empty. Budgets are kept,
    whether they are hard or not; where they do not pay for the share, devices take part as often as theirs does.

    >>> import kfl
    >>> experiment = kfl.Experiment(devices=10, rounds=5, widths=(8,), scheduler=kfl.LeastEnergy(participation=0.4))
    >>> history = kfl.run(experiment)
    >>> [len(entry.devices) for entry in history.rounds], {device["rounds"] for device in history.devices}
    ([4, 4, 4, 4, 4], {2})
    """

    name: ClassVar[str] = "least-energy"
    order_matters: ClassVar[bool] = True
    certifies_energy: ClassVar[bool] = True

    participation: Annotated[float, Range(0, 1, "above 0 and at most 1: a share of the rounds", above=True)] = 0.2
    """Share of the rounds in which every device takes part, p."""

    def __post_init__(self) -> None:
        """Refuse a share that cannot work."""
        check_ranges(self, "scheduler.")

    def init(self, budget_j: FloatArray, horizon: int) -> SchedulerState:
        """Empty queues; each device is owed a fraction of a participation and p."""
        size = len(budget_j)
        owed: FloatArray = (np.arange(size, dtype=np.float64) * GOLDEN) % 1.0 + self.participation
        memory = {"owed": owed, "spent_j": np.zeros(size), "taken": np.zeros(size)}
        return replace(Scheduler.init(self, budget_j, horizon), memory=memory)

    def limited(self, state: SchedulerState, observation: Observation) -> Observation:
        """No device spends more than is left of its budget."""
        return replace(observation, hard_budget=True)

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """The devices that are ready, as far as band and budgets go, with the least energy."""
        seen, worth = self.limited(state, observation), self.worth(state, observation)
        price = np.ones(observation.size)
        decision, bound = best_priced_set(observation, seen, worth, price, lambda _: 0.0, self._memory)
        if not decision.chosen.any():
            return replace(decision, lower_bound=bound)
        value = self.objective(state, observation, decision)
        return replace(decision, objective=value, lower_bound=min(bound, value))

    @cached_property
    def _memory(self) -> Memory:
        return Memory()

    def worth(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """z_k e_k − E_L of those who are owed a participation; below zero for all others."""
        return np.asarray(self._value(state, observation) - observation.base_energy_j)

    def objective(self, state: SchedulerState, observation: Observation, decision: Decision) -> float:
        """Σ E_k − z_k e_k over the chosen devices."""
        energy_j = np.sum(decision.compute_energy_j + decision.upload_energy_j, where=decision.chosen)
        return float(energy_j - np.sum(self._value(state, observation), where=decision.chosen))

    def update(self, state: SchedulerState, decision: Decision, spent_j: FloatArray) -> SchedulerState:
        """Equation (21) for the queues; who took part has been given one of what it is owed."""
        owed, before_j, taken = (state.memory[name] for name in ("owed", "spent_j", "taken"))
        memory = {
            "owed": owed + self.participation - decision.chosen,
            "spent_j": before_j + spent_j,
            "taken": taken + (spent_j > 0),
        }
        return replace(Scheduler.update(self, state, decision, spent_j), memory=memory)

    def _value(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """z_k e_k; far above any cost for a first time, and where no round is left to spare for what will be owed."""
        owed, spent_j, taken = (state.memory[name] for name in ("owed", "spent_j", "taken"))
        mean_j = np.divide(spent_j, taken, out=np.zeros_like(spent_j), where=taken > 0)
        equal = 1.0 / max(self.participation * observation.size, 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            upload_j = observation.curve.energy_j(np.maximum(np.minimum(observation.power_floor, 1.0), equal))
        now_j = np.where(np.isfinite(upload_j), upload_j, 0.0) + observation.base_energy_j
        left = state.horizon - observation.round
        pressing = (taken == 0) | (np.floor(owed + self.participation * (left - 1) + 1e-9) >= left)
        value = ENOUGH * owed * np.where(pressing, np.maximum(URGENT * now_j, mean_j), mean_j)
        # Where nothing costs anything, any worth does.
        return np.where(owed + 1e-9 >= 1, np.maximum(value, np.finfo(float).tiny), -1.0)


def alone_j(uplink: Uplink, compute_energy_j: FloatArray) -> FloatArray:
    """Return the joules of each device's round with the whole band to itself, the fewest that it can cost."""
    with np.errstate(over="ignore"):
        return np.asarray(uplink.base_energy_j(compute_energy_j) + uplink.curve.energy_j(np.ones(len(uplink.gain))))


def least_energy_j(costs_j: FloatArray, participation_count: NDArray[np.int64]) -> float:
    """Return a lower bound on the energy of every schedule in which each device takes part so often.

    >>> least_energy_j(np.array([[1.0, 5.0], [3.0, 2.0], [2.0, 9.0]]), np.array([2, 1]))
    5.0

    Args:
        costs_j: `alone_j` of every round, (rounds, devices).
        participation_count: How often each device takes part.
    """
    ordered = np.cumsum(np.sort(costs_j, axis=0), axis=0)
    devices = np.flatnonzero(participation_count)
    return float(np.sum(ordered[participation_count[devices] - 1, devices]))
