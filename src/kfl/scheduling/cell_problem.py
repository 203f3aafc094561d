"""A cell and its devices as arrays: what `kfl schedule` is asked, for one round or for a channel trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from kfl.core.units import dbm_to_watt
from kfl.scheduling.base import Observation, SchedulerState
from kfl.scheduling.cost import BoolArray, FloatArray, Uplink


@dataclass(frozen=True, eq=False)
class Problem:
    """Devices of one cell in one round, or in several rounds that follow each other. `read_problem` makes one.

    Arrays have one entry per device, in SI units; those that change from round to round have one row per round.
    """

    ids: tuple[str, ...]
    bandwidth_hz: float
    noise_dbm_per_hz: float
    rounds: int
    """The horizon T: budgets are for this many rounds."""
    round: int
    """The first round described here, counted from 0."""
    seed: int
    hard_budget: bool
    gain: FloatArray
    """Channel power gains, linear, (rounds described, devices)."""
    available: BoolArray
    """(rounds described, devices)."""
    samples: FloatArray
    payload_bits: FloatArray
    deadline_s: FloatArray
    max_power_w: FloatArray
    compute_time_s: FloatArray
    compute_energy_j: FloatArray
    budget_j: FloatArray
    """For all rounds together; infinite where there is none."""
    spent_j: FloatArray
    """Energy spent before the first round described here."""
    queue_j: FloatArray
    """Virtual queues before the first round described here."""
    memory: Mapping[str, FloatArray] = field(default_factory=dict)
    """What the scheduler remembers besides the queues."""
    notes: tuple[str, ...] = ()
    """What a reader of the file should know: a sentence each."""

    @property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.ids)

    @property
    def described(self) -> int:
        """How many rounds are described here."""
        return len(self.gain)

    @property
    def too_slow(self) -> BoolArray:
        """Devices whose computation alone takes until the deadline: they can never be scheduled."""
        return np.asarray(self.compute_time_s >= self.deadline_s)

    def observation(self, index: int, spent_j: FloatArray) -> Observation:
        """What a scheduler sees in the `index`-th round described here, when devices have spent `spent_j` so far."""
        return Observation(
            round=self.round + index,
            seed=self.seed,
            samples=self.samples,
            available=self.available[index],
            compute_time_s=self.compute_time_s,
            compute_energy_j=self.compute_energy_j,
            battery_j=self.budget_j - spent_j,
            hard_budget=self.hard_budget,
            uplink=Uplink(
                bandwidth_hz=self.bandwidth_hz,
                noise_w_per_hz=dbm_to_watt(self.noise_dbm_per_hz),
                gain=self.gain[index],
                payload_bits=self.payload_bits,
                upload_time_s=self.deadline_s - self.compute_time_s,
                max_power_w=self.max_power_w,
            ),
        )

    def after(self, state: SchedulerState, spent_j: FloatArray) -> Problem:
        """The problem of the round that follows, with the last gains known: replace them by what is measured then."""
        return replace(
            self,
            round=self.round + self.described,
            gain=self.gain[-1:],
            available=self.available[-1:],
            spent_j=spent_j,
            queue_j=state.queue_j,
            memory=state.memory,
            notes=(),
        )
