"""One accounting of a round, shared by its callers: the simulator, real devices, and `kfl schedule`.

    observe(accounts, inputs)  ──>  decide  ──>  (the round happens)  ──>  settle  ──>  accounts of the next round

`Accounts` is what a round leaves to the next: joules spent, virtual queues, charges, and who took part how often. The
functions are pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.blocks import quantize_to_blocks
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.uplink import Uplink

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batteries:
    """The battery of each device, between two rounds: what it holds, was harvested, and could not be taken.

        b ← min(b − spent + harvested, capacity)

    A round is paid out of the charge at its start; what is harvested during it counts from the next round on.

    >>> full = Batteries.charged(10.0, 1.0, devices=2)
    >>> after = full.after(np.array([4.0, 0.0]), np.array([1.0, 3.0]), np.array([False, False]))
    >>> after.charge_j, after.wasted_j
    (array([ 7., 10.]), array([0., 3.]))
    """

    capacity_j: float
    charge_j: FloatArray
    harvested_j: FloatArray
    """Since the start, wasted joules included."""
    wasted_j: FloatArray
    """What came while the battery was full."""
    empty_rounds: IntArray
    """Rounds in which a device had not the charge to take part."""

    @staticmethod
    def holding(capacity_j: float, charge_j: FloatArray) -> Batteries:
        """Return batteries with these charges and no history."""
        nothing = np.zeros(len(charge_j))
        return Batteries(capacity_j, charge_j, nothing, nothing, np.zeros(len(charge_j), dtype=np.int64))

    @staticmethod
    def charged(capacity_j: float, fraction: float, devices: int) -> Batteries:
        """Return batteries that are all charged to this fraction of their capacity."""
        return Batteries.holding(capacity_j, np.full(devices, capacity_j * fraction))

    def after(self, spent_j: FloatArray, harvest_j: FloatArray, empty: BoolArray) -> Batteries:
        """Return the batteries after a round."""
        # What a real device measures may be more than this model of its battery holds.
        filled_j = np.maximum(self.charge_j - spent_j, 0.0) + harvest_j
        charge_j = np.minimum(filled_j, self.capacity_j)
        return Batteries(
            self.capacity_j,
            charge_j,
            self.harvested_j + harvest_j,
            self.wasted_j + (filled_j - charge_j),
            self.empty_rounds + empty,
        )

    def running_dry(self, needed_j: FloatArray) -> BoolArray:
        """Return the devices that a round which needs so much would leave without charge before its end.

        A relative 1e-9 is granted, as for deadlines: a plan may use the last joule.
        """
        return np.asarray(needed_j > self.charge_j * (1 + 1e-9))


@dataclass(frozen=True, eq=False)
class Accounts:
    """What a round leaves to the next, one entry per device."""

    round: int
    """The next round to play, counted from 0."""
    scheduler: SchedulerState
    """Virtual queues, and what else the scheduler remembers."""
    compute_j: FloatArray
    """Spent on computing so far."""
    upload_j: FloatArray
    """Spent on sending so far."""
    participation_count: IntArray
    """Rounds each device took part in."""
    batteries: Batteries | None = None
    """None where devices have no batteries but only a budget."""

    @staticmethod
    def start(
        scheduler: Scheduler, budget_j: FloatArray, horizon: int, batteries: Batteries | None = None, *, fills: bool
    ) -> Accounts:
        """Return the accounts before round 0.

        Args:
            scheduler: The scheduler that will decide.
            budget_j: Each device's budget for the whole horizon; infinite where there is none.
            horizon: Number of rounds T.
            batteries: None where devices have only a budget.
            fills: Whether a harvest fills the batteries.
        """
        state, nothing = scheduler.init(budget_j, horizon), np.zeros(len(budget_j))
        count = np.zeros(len(budget_j), dtype=np.int64)
        return Accounts(0, _charged(scheduler, state, batteries, fills), nothing, nothing, count, batteries)

    @property
    def spent_j(self) -> FloatArray:
        """Joules of each device so far."""
        return np.asarray(self.compute_j + self.upload_j)


@dataclass(frozen=True, eq=False)
class RoundInputs:
    """What a round brings, simulated or real; one entry per device."""

    seed: int
    """The run's seed."""
    samples: FloatArray
    available: BoolArray
    """Devices that are there, with or without charge."""
    uplink: Uplink | None
    """None when the run has no radio: then uploads are free and instant."""
    compute_energy_j: FloatArray
    """Joules of computing at the fastest clock."""
    harvest_j: FloatArray | None = None
    """Joules harvested during the round; None where nothing fills the batteries."""


def observe(accounts: Accounts, inputs: RoundInputs, *, budget_j: FloatArray, hard_budget: bool) -> Observation:
    """Return what the server knows when a round starts.

    Args:
        accounts: What the rounds before left.
        inputs: What this round brings.
        budget_j: Each device's budget for the whole horizon; infinite where there is none.
        hard_budget: True: no device may spend more than it has left.
    """
    uplink, nothing = inputs.uplink, np.zeros(len(inputs.samples))
    base_j = nothing if uplink is None else uplink.base_energy_j(inputs.compute_energy_j)
    available, empty, capacity_j = inputs.available, None, None
    battery_j = budget_j - accounts.compute_j - accounts.upload_j
    if accounts.batteries is not None and uplink is not None:
        fills, charge_j = inputs.harvest_j is not None, accounts.batteries.charge_j
        # A budget that nothing fills up again still ends; a harvest has no other end than the charge.
        battery_j = charge_j if fills else np.minimum(charge_j, battery_j)
        capacity_j = accounts.batteries.capacity_j if fills else None
        empty = available & (charge_j < base_j)
        available = available & ~empty
    return Observation(
        round=accounts.round,
        seed=inputs.seed,
        samples=inputs.samples,
        available=available,
        compute_time_s=nothing if uplink is None else nothing + uplink.device.fastest_s,
        base_energy_j=base_j,
        battery_j=battery_j,
        hard_budget=hard_budget,
        uplink=uplink,
        empty=empty,
        capacity_j=capacity_j,
    )


def decide(
    scheduler: Scheduler, accounts: Accounts, observation: Observation, resource_blocks: int | None = None
) -> Decision:
    """Return the scheduler's decision, with its shares in resource blocks where the band has any.

    Args:
        scheduler: Who decides.
        accounts: Queues, charges and joules so far.
        observation: What is known of the round.
        resource_blocks: Equal parts of the band; None where any share can be given.
    """
    # 0/0 of a gain of 0 with no time left, and queues beyond all bounds: of devices that cannot be chosen.
    with np.errstate(over="ignore", invalid="ignore"):
        decision = scheduler.decide(accounts.scheduler, observation)
    if resource_blocks is None:
        return decision
    return quantize_to_blocks(decision, scheduler, accounts.scheduler, observation, resource_blocks)


def settle(
    scheduler: Scheduler,
    accounts: Accounts,
    observation: Observation,
    decision: Decision,
    compute_j: FloatArray,
    upload_j: FloatArray,
    harvest_j: FloatArray | None = None,
) -> Accounts:
    """Return the accounts after a round.

    Args:
        scheduler: The scheduler that decided.
        accounts: The accounts before the round.
        observation: What the scheduler saw.
        decision: What it decided.
        compute_j: Joules that each device really spent on computing; 0 where it sat out.
        upload_j: The same for sending.
        harvest_j: Joules harvested during the round; None where nothing fills the batteries.
    """
    spent_j, batteries = compute_j + upload_j, accounts.batteries
    if batteries is not None:
        nothing = np.zeros(len(spent_j))
        empty = nothing > 0 if observation.empty is None else observation.empty
        batteries = batteries.after(spent_j, nothing if harvest_j is None else harvest_j, empty)
    state = scheduler.update(accounts.scheduler, decision, spent_j)
    return Accounts(
        round=accounts.round + 1,
        scheduler=_charged(scheduler, state, batteries, harvest_j is not None),
        compute_j=accounts.compute_j + compute_j,
        upload_j=accounts.upload_j + upload_j,
        participation_count=accounts.participation_count + decision.chosen,
        batteries=batteries,
    )


def _charged(scheduler: Scheduler, state: SchedulerState, batteries: Batteries | None, fills: bool) -> SchedulerState:
    """Return the state with queues that are what batteries lack to be full, where a harvest fills them."""
    if batteries is None or not fills:
        return state
    return scheduler.charged(state, batteries.charge_j, batteries.capacity_j)
