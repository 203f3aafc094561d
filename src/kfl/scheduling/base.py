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
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Fields
from kfl.scheduling.curve import BoolArray, CostCurve, FloatArray, Index, UploadCurve
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import ENERGY_PARTS, Codes, Uplink


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
    """Seconds of local work, at the fastest clock where a device can choose."""
    base_energy_j: FloatArray
    """Joules of taking part that no share of the band changes: E_L in the printed model; else the cheapest
    computation, and what a round costs once. What a share costs beyond them is the `curve`."""
    battery_j: FloatArray
    """Budget left; infinite where there is none."""
    hard_budget: bool
    """True: no device may spend more than `battery_j`. False: the budget is only a long-term target."""
    uplink: Uplink | None
    """None when the run has no radio: then uploads are free and instant."""
    empty: BoolArray | None = None
    """Devices that are there without the charge to take part, and so not available; None where no device is."""
    capacity_j: float | None = None
    """What the battery of a device holds, where a harvest fills it."""

    @property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.samples)

    @property
    def present(self) -> BoolArray:
        """Devices that are there, with or without charge."""
        return self.available if self.empty is None else self.available | self.empty

    @property
    def curve(self) -> CostCurve:
        """What a share of the band costs each device; without a radio, of an upload of nothing."""
        return UploadCurve.silent(self.size) if self.uplink is None else self.uplink.curve

    @cached_property
    def power_floor(self) -> FloatArray:
        """The least share of each device by its power limit; 0 without a radio."""
        return np.zeros(self.size) if self.uplink is None else self.uplink.power_floor()

    def take(self, index: Index) -> Observation:
        """The same observation of some of the devices."""
        per_device = ("samples", "available", "compute_time_s", "base_energy_j", "battery_j")
        arrays = {name: getattr(self, name)[index] for name in per_device}
        empty = None if self.empty is None else self.empty[index]
        return replace(self, **arrays, empty=empty, uplink=None if self.uplink is None else self.uplink.take(index))


@dataclass(frozen=True, eq=False)
class Decision:
    """Who takes part in a round, with which share of the band, power and clock, and what that will cost.

    Joules and seconds are 0 for devices that are not chosen. For the others `compute_energy_j + upload_energy_j` is
    the observation's `base_energy_j` and what its `curve` says of the share.
    """

    chosen: BoolArray
    share: FloatArray
    """Fraction of the band; 0 for devices that are not chosen. Sums to at most 1."""
    power_w: FloatArray
    """Radiated while sending."""
    upload_energy_j: FloatArray
    """All that the radio spends."""
    upload_time_s: FloatArray
    compute_energy_j: FloatArray
    """All that the processor spends."""
    compute_time_s: FloatArray
    clock_hz: FloatArray | None = None
    """Clock of each processor; None where the model leaves no choice."""
    objective: float = float("nan")
    """Value of what the scheduler minimizes; NaN where it minimizes nothing."""
    lower_bound: float = float("nan")
    """No decision within the scheduler's limits has an objective below this; NaN where it does not know."""
    status: Status = field(default_factory=Status)
    """For example why fewer devices were chosen than asked for; `describe(status)` is the sentence."""

    @property
    def gap(self) -> float:
        """Certified distance to the best possible decision, objective − lower bound."""
        return self.objective - self.lower_bound

    def energy_j(self) -> tuple[FloatArray, FloatArray]:
        """Return what the round costs each device: its processor and its radio; 0 for devices that sit out."""
        compute_j = np.where(self.chosen, self.compute_energy_j, 0.0)
        return compute_j, np.where(self.chosen, self.upload_energy_j, 0.0)

    def parts_j(self, uplink: Uplink | None) -> dict[str, FloatArray]:
        """Return where the joules go, for each device, by the words of `kfl.scheduling.uplink.ENERGY_PARTS`.

        The first two are `compute_energy_j`, the others `upload_energy_j`. The paper's model knows computing and
        radiating alone. `uplink` is that of the observation.
        """
        compute_j, upload_j = self.energy_j()
        if uplink is None or uplink.device.is_paper_model:
            nothing = np.zeros(len(compute_j))
            return {**dict.fromkeys(ENERGY_PARTS, nothing), "computing": compute_j, "radiating": upload_j}
        members, parts = np.flatnonzero(self.chosen), {name: np.zeros(len(compute_j)) for name in ENERGY_PARTS}
        for name, energy_j in uplink.take(members).parts_j(*self._run(members)).items():
            parts[name][members] = energy_j
        return parts

    def decided_by(self, uplink: Uplink) -> tuple[Codes, Codes]:
        """Return what decided each chosen device's upload time and clock; positions in `UPLOAD_BY` and `CLOCK_BY`."""
        members = np.flatnonzero(self.chosen)
        return uplink.take(members).decided_by(*self._run(members))

    def _run(self, members: NDArray[np.intp]) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.compute_time_s[members], self.upload_time_s[members], self.power_w[members]

    @staticmethod
    def nobody(
        size: int, status: Status, objective: float = float("nan"), lower_bound: float = float("nan")
    ) -> Decision:
        """A round in which none of so many devices takes part."""
        nothing = np.zeros(size)
        return Decision(
            chosen=np.zeros(size, bool),
            share=nothing,
            power_w=nothing,
            upload_energy_j=nothing,
            upload_time_s=nothing,
            compute_energy_j=nothing,
            compute_time_s=nothing,
            objective=objective,
            lower_bound=lower_bound,
            status=status,
        )


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
class Scheduler(Fields, ABC):
    """Decides each round who takes part, with which share of the band and which transmit power."""

    name: ClassVar[str]
    """The word that selects it on the command line and in files."""
    order_matters: ClassVar[bool] = False
    """True: devices that are alike may be treated differently, because it draws or takes turns."""
    needs_radio: ClassVar[bool] = False
    """True: it cannot decide where uploads are free."""
    certifies_energy: ClassVar[bool] = False
    """True: a run ends with the least energy of all schedules in which each device takes part as often."""

    @classmethod
    def about(cls) -> str:
        """What it does, in one line for help texts and pages: the first line of its docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    def drift_weights(self, budget_j: FloatArray, horizon: int, samples: FloatArray) -> tuple[float, FloatArray] | None:
        """V, and γ_t of every round, of a scheduler that minimizes the drift-plus-penalty (22) in each round.

        None for all others: Proposition 2 is not about them. `budget_j` is each device's budget for all `horizon`
        rounds, `samples` its data D_k.
        """
        return None

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

    def limited(self, state: SchedulerState, observation: Observation) -> Observation:
        """The observation with the limits that this scheduler adds to those of the cell; by default none."""
        return observation

    def energy_weight(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """What a joule of each device weighs when the band is shared; by default all weigh the same."""
        return np.ones(observation.size)

    def worth(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """What each device's part is worth before its upload, in weighted joules; infinite: more than any upload."""
        return np.full(observation.size, np.inf)

    def objective(self, state: SchedulerState, observation: Observation, decision: Decision) -> float:
        """The value of what this scheduler minimizes; NaN where it minimizes nothing."""
        return float("nan")

    def update(self, state: SchedulerState, decision: Decision, spent_j: FloatArray) -> SchedulerState:
        """The state after a round in which device k really spent `spent_j[k]` (0 where it sat out).

        Equation (21): q_k(t+1) = max(q_k(t) + α_k E_k(t) − E_k/T, 0).
        """
        return replace(state, queue_j=np.maximum(state.queue_j + spent_j - state.allowance_j, 0.0))

    def charged(self, state: SchedulerState, charge_j: FloatArray, capacity_j: float) -> SchedulerState:
        """The state of a fleet whose batteries a harvest fills: its queues are what the batteries lack to be full.

        This is equation (21) with the harvest of the round in place of E_k/T: the charge moves by what is harvested
        less what is spent, and what a full battery cannot take is the max(…, 0).
        """
        return replace(state, queue_j=capacity_j - charge_j)
