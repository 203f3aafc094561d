"""A cell and its devices as arrays: the input of `kfl schedule`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.scheduling.accounts import Accounts, Batteries, RoundInputs
from kfl.scheduling.base import Scheduler
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.uplink import DeviceEnergyModel, Uplink


@dataclass(frozen=True, eq=False)
class CellProblem:
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
    device: DeviceEnergyModel
    """What devices draw."""
    compute_energy_j: FloatArray
    """At the fastest clock, where a device can choose."""
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
    resource_blocks: int | None = None
    """Shares of the band come in multiples of 1/this; None: they are real numbers."""
    battery_capacity_j: float | None = None
    """What the battery of a device holds; None: there is only a budget."""
    charge_j: FloatArray | None = None
    """Charge of the batteries before the first round described here."""
    harvest_j: FloatArray | None = None
    """Joules harvested in each round, (rounds described, devices); None where nothing fills the batteries."""

    @property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.ids)

    @property
    def described(self) -> int:
        """How many rounds are described here."""
        return len(self.gain)

    @cached_property
    def compute_time_s(self) -> FloatArray:
        """Seconds of computing at the fastest clock, where a device can choose."""
        return np.asarray(np.broadcast_to(self.device.fastest_s, self.size))

    @property
    def too_slow(self) -> BoolArray:
        """Devices whose computation alone takes until the deadline: they can never be scheduled."""
        return np.asarray(self.compute_time_s >= self.deadline_s)

    def accounts(self, scheduler: Scheduler) -> Accounts:
        """Return the accounts when the first round begins.

        Raises:
            ConfigError: The memory has not the size that the scheduler keeps.
        """
        batteries = None
        if self.battery_capacity_j is not None:
            full_j = np.full(self.size, self.battery_capacity_j)
            batteries = Batteries.holding(self.battery_capacity_j, full_j if self.charge_j is None else self.charge_j)
        fills = self.harvest_j is not None
        accounts = Accounts.start(scheduler, self.budget_j, self.rounds, batteries, fills=fills)
        state = accounts.scheduler
        for name, values in self.memory.items():
            if name in state.memory and values.shape != state.memory[name].shape:
                right = f"a list of {state.memory[name].size}, as {scheduler.name} keeps it"
                raise ConfigError(f"memory.{name}", values.tolist(), right)
        queue_j = state.queue_j if batteries is not None and fills else self.queue_j
        state = replace(state, queue_j=queue_j, memory={**state.memory, **self.memory})
        return replace(accounts, round=self.round, scheduler=state, compute_j=self.spent_j)

    def rounds_described(self) -> Iterator[RoundInputs]:
        """Yield what each round brings."""
        for index in range(self.described):
            uplink = Uplink(
                bandwidth_hz=self.bandwidth_hz,
                noise_w_per_hz=dbm_to_watt(self.noise_dbm_per_hz),
                gain=self.gain[index],
                payload_bits=self.payload_bits,
                time_s=self.deadline_s,
                max_power_w=self.max_power_w,
                device=self.device,
            )
            yield RoundInputs(
                seed=self.seed,
                samples=self.samples,
                available=self.available[index],
                uplink=uplink,
                compute_energy_j=self.compute_energy_j,
                harvest_j=None if self.harvest_j is None else self.harvest_j[index],
            )

    def after(self, accounts: Accounts) -> CellProblem:
        """Return the problem of the round that follows, with the last gains known: replace them by what is measured."""
        batteries = accounts.batteries
        return replace(
            self,
            round=accounts.round,
            gain=self.gain[-1:],
            available=self.available[-1:],
            spent_j=accounts.spent_j,
            queue_j=accounts.scheduler.queue_j,
            memory=accounts.scheduler.memory,
            notes=(),
            charge_j=None if batteries is None else batteries.charge_j,
            harvest_j=None if self.harvest_j is None else self.harvest_j[-1:],
        )
