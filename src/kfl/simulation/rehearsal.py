"""The rounds of a run decided without any learning: what a scheduler is going to spend, and what another would.

Gains, costs and availability follow from seed and round, so all decisions of a run are known before it starts, except
where its algorithm says from round to round what a device is worth. Faults and lost broadcasts are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import Algorithm
from kfl.core.text import percent
from kfl.scheduling import Scheduler, Uniform
from kfl.scheduling.accounts import Accounts, decide, settle
from kfl.scheduling.baselines import RandomDevices
from kfl.scheduling.least_energy import alone_j, least_energy_j
from kfl.scheduling.simulate import MOST_LOOKS
from kfl.simulation.round import initial_state

if TYPE_CHECKING:
    from kfl.simulation.fleet import Fleet
    from kfl.simulation.logs import RoundLog
    from kfl.simulation.state import RunState


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What the rounds of a run take, as planned; one entry per device."""

    spent_j: NDArray[np.float64]
    participation_count: NDArray[np.int64]


def rehearse(fleet: Fleet, scheduler: Scheduler) -> Rehearsal | None:
    """Decide every round of a run; None where that cannot be known, such as for real devices, or takes too long."""
    experiment = fleet.experiment
    learns_worth = type(experiment.algorithm).worth is not Algorithm.worth
    if not fleet.foreseeable or fleet.cell is None or learns_worth or fleet.table.size * experiment.rounds > MOST_LOOKS:
        return None
    batteries, blocks = fleet.cell.batteries(), fleet.cell.config.resource_blocks
    start = Accounts.start(scheduler, fleet.table.budget_j, experiment.rounds, batteries, fills=fleet.harvests)
    state = replace(initial_state(fleet), accounts=start)
    while state.round < experiment.rounds:
        conditions = fleet.observe(state)
        assert conditions.link is not None  # there is a cell
        seen, harvest_j = conditions.observation, conditions.harvest_j
        decision = decide(scheduler, state.accounts, seen, blocks)
        accounts = settle(scheduler, state.accounts, seen, decision, *decision.energy_j(), harvest_j)
        state = replace(state, accounts=accounts, fading=conditions.link.fading)
    return Rehearsal(state.accounts.spent_j, state.accounts.participation_count)


def budget_warnings(fleet: Fleet) -> list[str]:
    """What to say before a run that will not keep the budgets of its devices."""
    budget_j = fleet.table.budget_j
    if fleet.experiment.hard_budget or fleet.harvests or not np.isfinite(budget_j).any():
        return []
    found = rehearse(fleet, fleet.experiment.scheduler)
    if found is None or not (over := found.spent_j > budget_j * (1 + 1e-9)).any():
        return []
    with np.errstate(over="ignore"):  # as in `energy_facts`
        most = float((found.spent_j / budget_j).max())
    return [
        f"These settings will not keep the energy budgets: {int(over.sum()):,} of {len(budget_j):,} devices are going "
        f"to exceed theirs, the most with {percent(most, 0)} of it. --hard-budget keeps every one."
    ]


def least_energy(fleet: Fleet, state: RunState, logs: Sequence[RoundLog]) -> float | None:
    """A bound on the joules of every schedule in which each device takes part as often; None if not requested.

    With faults devices do less than a round, and there is none.
    """
    cell, table, rounds = fleet.cell, fleet.table, fleet.experiment.rounds
    if not fleet.experiment.scheduler.certifies_energy or not fleet.foreseeable or cell is None:
        return None
    if table.size * rounds > MOST_LOOKS or any(log.faults or log.missed for log in logs):
        return None
    costs_j, fading = np.empty((rounds, table.size)), None
    for number in range(rounds):
        link = cell.link_state(number, table.flops, table.bits_up, fading)
        costs_j[number], fading = alone_j(link.uplink, link.compute_energy_j), link.fading
    return least_energy_j(costs_j, state.accounts.participation_count)


def random_devices(fleet: Fleet, logs: Sequence[RoundLog]) -> dict[str, Any] | None:
    """What as many random devices a round would take, at most as many as `uniform` takes; None for random devices."""
    scheduler = fleet.experiment.scheduler
    if isinstance(scheduler, RandomDevices) or not logs:
        return None
    mean = math.ceil(sum(len(log.devices) for log in logs) / len(logs))
    count = max(1, min(Uniform().count, mean))
    found = rehearse(fleet, Uniform(count))
    if found is None:
        return None
    return {
        "count": count,
        "energy_j": float(found.spent_j.sum()),
        "participations": int(found.participation_count.sum()),
        "bits_up": float(found.participation_count @ fleet.table.bits_up),
    }
