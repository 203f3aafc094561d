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
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from kfl.scheduling.curve import (
    BoolArray,
    CostCurve,
    FloatArray,
    Index,
    UploadCurve,
    energy_scale,
    min_share,
    required_exponent,
)
from kfl.scheduling.status import Status
from kfl.wireless import transmit_power


@dataclass(frozen=True, eq=False)
class Uplink:
    """The shared band in one round, one entry per device: what the radio says, the least shares, the cost curves.

    >>> link = Uplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...               payload_bits=np.full(2, 1e6), upload_time_s=np.ones(2), max_power_w=np.ones(2))
    >>> link.curve.energy_j(np.array([0.2, 0.8])).round(6)
    array([2.50e-05, 4.41e-04])
    >>> link.power_floor().round(4)
    array([0.0446, 0.0657])
    """

    bandwidth_hz: float | FloatArray
    noise_w_per_hz: float | FloatArray
    gain: FloatArray
    """Channel power gain h_k, linear."""
    payload_bits: FloatArray
    upload_time_s: FloatArray
    """Time left for the upload, T_max − T_L. Zero or less: the device computes past the deadline."""
    max_power_w: FloatArray

    @cached_property
    def curve(self) -> CostCurve:
        """The energy of each device's upload over its share."""
        time_s = np.maximum(self.upload_time_s, 0.0)
        heard = np.where(self.gain > 0, self.gain, 1.0)  # a device that is not heard has no share that is enough
        return UploadCurve.of(
            energy_scale(self.bandwidth_hz, self.noise_w_per_hz, time_s, heard), self._required_exponent
        )

    @cached_property
    def _required_exponent(self) -> FloatArray:
        return required_exponent(self.payload_bits, self.bandwidth_hz, self.upload_time_s)

    @property
    def snr(self) -> FloatArray:
        """s = p_max h / (B N₀): signal over noise at full power with the whole band."""
        with np.errstate(over="ignore"):
            return np.asarray(self.max_power_w * self.gain / (self.bandwidth_hz * self.noise_w_per_hz))

    def power_floor(self) -> FloatArray:
        """θ^min from the power limit, constraint (25a); infinite where no share is enough, or no time is left."""
        return min_share(self.snr, self._required_exponent)

    def power_w(self, share: ArrayLike) -> FloatArray:
        """Equation (24): the power with which an upload ends exactly in time; infinite where none does."""
        return transmit_power(
            share, self.payload_bits, self.upload_time_s, self.gain, self.bandwidth_hz, self.noise_w_per_hz
        )

    def most_energy_j(self) -> FloatArray:
        """Nobody can spend more on an upload: full power for all the time left."""
        return np.asarray(self.max_power_w * self.upload_time_s)

    def transmission(self, share: FloatArray, energy_j: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Power in watts and duration in seconds of an upload with these shares, which costs these joules.

        By Proposition 1 an upload takes all the time left.
        """
        time_s = np.where(self.upload_time_s > 0, self.upload_time_s, 1.0)
        return np.asarray(energy_j / time_s), np.where(share > 0, self.upload_time_s, 0.0)

    def take(self, index: Index) -> Self:
        """Some of the devices."""
        return replace(self, **{name: values[index] for name, values in self._arrays().items()})

    def rows(self) -> Self:
        """The same problems as a plain batch: arrays (..., n) become (m, n)."""
        return replace(self, **{name: values.reshape(-1, values.shape[-1]) for name, values in self._arrays().items()})

    def _arrays(self) -> dict[str, FloatArray]:
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in arrays.items() if np.ndim(values)}


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
    empty: BoolArray | None = None
    """Devices that are there without the charge to take part, and so not available; None where nobody is."""

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
        per_device = ("samples", "available", "compute_time_s", "compute_energy_j", "battery_j")
        arrays = {name: getattr(self, name)[index] for name in per_device}
        empty = None if self.empty is None else self.empty[index]
        return replace(self, **arrays, empty=empty, uplink=None if self.uplink is None else self.uplink.take(index))


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
    """No decision within the scheduler's limits has an objective below this; NaN where it does not know."""
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
    income_j: FloatArray | None = None
    """What each device harvested in the round that `update` is about; None: its allowance."""


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

    def drift_weights(self, budget_j: FloatArray, horizon: int, samples: FloatArray) -> tuple[float, FloatArray] | None:
        """V, and γ_t of every round, of a scheduler that minimises the drift-plus-penalty (22) in each round.

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
        """The value of what this scheduler minimises; NaN where it minimises nothing."""
        return float("nan")

    def update(self, state: SchedulerState, decision: Decision, spent_j: FloatArray) -> SchedulerState:
        """The state after a round in which device k really spent `spent_j[k]` (0 where it sat out).

        Equation (21): q_k(t+1) = max(q_k(t) + α_k E_k(t) − E_k/T, 0), with the round's harvest in place of E_k/T
        where there is one.
        """
        income_j = state.allowance_j if state.income_j is None else state.income_j
        return replace(state, queue_j=np.maximum(state.queue_j + spent_j - income_j, 0.0), income_j=None)
