"""A cell and its scheduler played round by round, as far as there is time for: what the playground shows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kfl.report.playground._settings import Settings
from kfl.scheduling import (
    Decision,
    Dual,
    FloatArray,
    SchedulerState,
    cell_problem,
    data_weight,
    drift_objective,
    round_energy,
)
from kfl.scheduling.serve import outcomes
from kfl.wireless import Cell


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """One round: the decision, what it cost, and how far from the best it can be."""

    decision: Decision
    compute_j: FloatArray
    """Per device; 0 for those that sat out."""
    upload_j: FloatArray
    queue_j: FloatArray
    """Virtual queues before the round."""
    outcome: NDArray[np.int8]
    """What became of each device, as positions in `kfl.scheduling.OUTCOMES`."""
    objective: float
    """Drift plus penalty (22) of this decision, by the V of the settings, whatever the scheduler minimises."""
    lower_bound: float
    """No decision of this round has an objective below this; the dual scheduler's certificate."""

    @property
    def gap(self) -> float:
        """Objective less lower bound."""
        return max(self.objective - self.lower_bound, 0.0)


class Play:
    """The rounds of one state of the playground; `advance` plays on, and can be asked again and again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.problem = cell_problem(
            settings.radio,
            settings.devices,
            settings.rounds,
            settings.seed,
            flops=settings.flops,
            payload_bits=settings.payload_bits,
            samples=settings.samples,
            hard_budget=settings.hard_budget,
        )
        self.rounds: list[PlayedRound] = []
        self._scheduler = settings.make_scheduler()
        self._judge = Dual(v=settings.v, gamma=settings.gamma)
        self._state = self._scheduler.init(self.problem.budget_j, settings.rounds)
        self._spent_j = np.zeros(settings.devices)

    @cached_property
    def cell(self) -> Cell:
        """The devices' positions and processors."""
        return Cell.build(self.settings.radio, self.settings.devices, self.settings.seed)

    @property
    def done(self) -> bool:
        """Whether every round of the horizon is played."""
        return len(self.rounds) >= self.settings.rounds

    def advance(self, seconds: float = float("inf"), clock: Callable[[], float] = time.perf_counter) -> None:
        """Play rounds until this much time is over, at least one; all of them by default."""
        until = clock() + seconds
        while not self.done:
            self._play()
            if clock() >= until:
                break

    def _play(self) -> None:
        """One round, as `kfl.scheduling.schedule` plays it, and the dual's bound for the same queues beside it."""
        observation = self.problem.observation(len(self.rounds), self._spent_j)
        state = self._state
        with np.errstate(invalid="ignore"):
            decision = self._scheduler.decide(state, observation)
            bound = self._bound(state) if math.isnan(decision.lower_bound) else decision.lower_bound
        compute_j, upload_j = round_energy(observation, decision)
        gamma = data_weight(self.settings.gamma, observation.round)
        objective = drift_objective(
            self.settings.v,
            gamma,
            observation.samples,
            state.queue_j,
            decision.chosen,
            observation.compute_energy_j + decision.upload_energy_j,
        )
        outcome = outcomes(observation, decision)
        self._state = self._scheduler.update(state, decision, compute_j + upload_j)
        self._spent_j = self._spent_j + (compute_j + upload_j)
        self.rounds.append(
            PlayedRound(decision, compute_j, upload_j, state.queue_j, outcome, objective, min(bound, objective))
        )

    def _bound(self, state: SchedulerState) -> float:
        observation = self.problem.observation(len(self.rounds), self._spent_j)
        return self._judge.decide(replace(state, memory={}), observation).lower_bound

    @property
    def compute_j(self) -> FloatArray:
        """Spent on computing so far, per device."""
        return np.asarray(np.sum([one.compute_j for one in self.rounds], axis=0))

    @property
    def upload_j(self) -> FloatArray:
        """Spent on sending so far, per device."""
        return np.asarray(np.sum([one.upload_j for one in self.rounds], axis=0))

    @property
    def taken(self) -> NDArray[np.int64]:
        """In how many rounds so far each device was scheduled."""
        return np.asarray(np.sum([one.decision.chosen for one in self.rounds], axis=0, dtype=np.int64))
