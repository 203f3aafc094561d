"""What a scheduler sees, what it decides and what it remembers.

A scheduler is pure: state in, decision and state out. The runner holds the only copy of the state, so a
checkpoint is that state and a scheduler can be asked twice about the same round with the same answer.

    observation ──> decide ──> Decision ──> (the round happens) ──> update ──> next state

Everything is an array with one entry per device, in SI units. A scheduler is a frozen dataclass of its
parameters; a new one is one small class and one line in `kfl.scheduling.SCHEDULERS`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from kfl.scheduling.cost import BoolArray, CostCurve, FloatArray, Index, Uplink, UploadCurve
from kfl.scheduling.status import Status


@dataclass(frozen=True, eq=False)
class Observation:
    """What the server knows when a round starts, one entry per device."""

    round: int
    """Counted from 0."""
    seed: int
    """The run's seed: a scheduler that draws uses `stream(seed, "schedule", round)`."""
    samples: FloatArray
    available: BoolArray
    compute_time_s: FloatArray
    compute_energy_j: FloatArray
    battery_j: FloatArray
    """Budget left; infinite where there is none."""
    hard_budget: bool
    """True: no device may spend more than `battery_j`. False: the budget is only a long-term target."""
    uplink: Uplink | None
    """None when the run has no radio: then uploads are free and instant."""

    @property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.samples)

    @property
    def curve(self) -> CostCurve:
        """What a share of the band costs each device; without a radio, of an upload of nothing."""
        return UploadCurve.silent(self.size) if self.uplink is None else self.uplink.curve

    def take(self, index: Index) -> Observation:
        """The same observation of some of the devices."""
        per_device = ("samples", "available", "compute_time_s", "compute_energy_j", "battery_j")
        arrays = {name: getattr(self, name)[index] for name in per_device}
        return replace(self, **arrays, uplink=None if self.uplink is None else self.uplink.take(index))


@dataclass(frozen=True, eq=False)
class Decision:
    """Who takes part in a round, with which share of the band and which power, and what that will cost."""

    chosen: BoolArray
    share: FloatArray
    """Fraction of the band; 0 for devices that are not chosen. Sums to at most 1."""
    power_w: FloatArray
    upload_energy_j: FloatArray
    upload_time_s: FloatArray
    objective: float = float("nan")
    """Value of what the scheduler minimises; NaN where it minimises nothing."""
    lower_bound: float = float("nan")
    """No decision can have an objective below this; NaN where the scheduler does not know."""
    status: Status = field(default_factory=Status)
    """For example why fewer devices were chosen than asked for; `describe(status)` is the sentence."""

    @property
    def gap(self) -> float:
        """Certified distance to the best possible decision, objective − lower bound."""
        return self.objective - self.lower_bound


@dataclass(frozen=True, eq=False)
class SchedulerState:
    """What a scheduler remembers between rounds: plain arrays, so it can be checkpointed."""

    horizon: int
    """Number of rounds T."""
    allowance_j: FloatArray
    """Budget per round, E_k / T; infinite where there is no budget."""
    queue_j: FloatArray
    """Virtual energy queues q_k: how far each device is ahead of its allowance."""
    memory: Mapping[str, FloatArray] = field(default_factory=dict)
    """Anything else one scheduler needs, by name."""


@dataclass(frozen=True)
class Scheduler(ABC):
    """Decides each round who takes part, with which share of the band and which transmit power."""

    name: ClassVar[str]
    """The word that selects it on the command line and in files."""
    order_matters: ClassVar[bool] = False
    """True: devices that are alike may be treated differently, because it draws or takes turns."""
    needs_radio: ClassVar[bool] = False
    """True: it cannot decide where uploads are free."""

    @classmethod
    def about(cls) -> str:
        """What it does, in one line for help texts and pages: the first line of its docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    def drift_weights(self, rounds: int) -> tuple[float, FloatArray]:
        """V, and γ_t of every round, as Proposition 2 has them: V = 0 for a scheduler that weighs no data."""
        return 0.0, 1.0 / np.arange(1, rounds + 1)

    def init(self, budget_j: FloatArray, horizon: int) -> SchedulerState:
        """The state before round 0: empty queues.

        `budget_j` is each device's energy budget E_k for all `horizon` rounds, infinite where there is none.
        """
        return SchedulerState(
            horizon=horizon,
            allowance_j=budget_j / max(horizon, 1),
            queue_j=np.zeros(len(budget_j)),
        )

    @abstractmethod
    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """Choose devices, shares and powers for one round."""

    def update(self, state: SchedulerState, decision: Decision, spent_j: FloatArray) -> SchedulerState:
        """The state after a round in which device k really spent `spent_j[k]` (0 where it sat out).

        Equation (21): q_k(t+1) = max(q_k(t) + α_k E_k(t) − E_k/T, 0).
        """
        queue = np.maximum(state.queue_j + spent_j - state.allowance_j, 0.0)
        return SchedulerState(state.horizon, state.allowance_j, queue, state.memory)
