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
    DriftScheduler,
    Dual,
    FloatArray,
    data_weight,
    drift_objective,
    energy_parts,
)
from kfl.scheduling.horizon import PlayedRound, play
from kfl.wireless import Cell


@dataclass(frozen=True, eq=False)
class JudgedRound(PlayedRound):
    """One round, and how far from the best its decision can be."""

    objective: float
    """Drift plus penalty (22) of this decision, by the relative V of the settings, whatever the scheduler minimises."""
    lower_bound: float
    """No decision of this round within the scheduler's limits has an objective below this: `dual`'s certificate."""

    parts_j: dict[str, FloatArray]
    """Where the joules of each device went; computing and sending in the printed model."""

    @property
    def gap(self) -> float:
        """Objective less lower bound."""
        return max(self.objective - self.lower_bound, 0.0)


class Play:
    """The rounds of one state of the playground; `advance` plays on, and can be asked again and again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.problem = self.cell.problem(
            settings.rounds,
            flops=settings.flops,
            payload_bits=settings.payload_bits,
            samples=settings.samples,
            hard_budget=settings.hard_budget,
        )
        self.rounds: list[JudgedRound] = []
        scheduler = settings.make_scheduler()
        self._ahead = play(self.problem, scheduler)
        judge = Dual(relative_v=settings.relative_v, gamma=settings.gamma)
        self._v = judge.printed_v(judge.init(self.problem.budget_j, settings.rounds), self.problem.samples)
        # A scheduler that sends in the deepest fade is measured against decisions that may, too.
        self._judge = judge if isinstance(scheduler, DriftScheduler) else Dual(v=self._v, gamma=settings.gamma)

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
            self.rounds.append(self._judged(next(self._ahead)))
            if clock() >= until:
                break

    def _judged(self, one: PlayedRound) -> JudgedRound:
        """A round with its objective, and the dual's bound for the same queues."""
        observation, decision = one.observation, one.decision
        bound = decision.lower_bound
        if math.isnan(bound):
            with np.errstate(invalid="ignore"):
                bound = self._judge.decide(replace(one.before, memory={}), observation).lower_bound
        objective = drift_objective(
            self._v,
            data_weight(self.settings.gamma, observation.round),
            observation.samples,
            one.before.queue_j,
            decision.chosen,
            decision.compute_energy_j + decision.upload_energy_j,
        )
        return JudgedRound(
            **vars(one), objective=objective, lower_bound=min(bound, objective), parts_j=self._parts(one)
        )

    def _parts(self, one: PlayedRound) -> dict[str, FloatArray]:
        if self.problem.device.is_paper_model:
            return {"computing": one.compute_j, "sending": one.upload_j}
        return energy_parts(one.observation, one.decision)

    @property
    def parts_j(self) -> dict[str, FloatArray]:
        """Where the joules of each device went so far, without parts that took nothing."""
        names = self.rounds[0].parts_j if self.rounds else ()
        sums = {name: np.asarray(np.sum([one.parts_j[name] for one in self.rounds], axis=0)) for name in names}
        return (
            sums
            if self.problem.device.is_paper_model
            else {name: joules for name, joules in sums.items() if joules.any()}
        )

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
