"""The energy account of a finished run: who is over budget, what decides, what the paper's bound says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.runfolder import RoundLog
from kfl.scheduling import EnergyAccount, Scheduler, data_weight, proposition2_energy

if TYPE_CHECKING:
    from kfl.simulation.air import Site

MOST_ENTRIES = 20_000_000
"""Rounds × devices up to which the whole account is laid out; larger runs skip Proposition 2."""


def energy_account(logs: Sequence[RoundLog], budget_j: np.ndarray[Any, np.dtype[np.float64]]) -> EnergyAccount:
    """Every joule of a run, one row per round and one column per device."""
    compute, upload = np.zeros((2, len(logs), len(budget_j)))
    for row, log in enumerate(logs):
        compute[row, list(log.devices)] = log.compute_energy_j
        upload[row, list(log.devices)] = log.upload_energy_j
    return EnergyAccount(compute, upload, budget_j)


def energy_facts(world: Site, logs: Sequence[RoundLog]) -> dict[str, Any]:
    """What the summary says about energy; empty without a radio."""
    if world.cell is None or len(logs) * world.devices > MOST_ENTRIES:
        return {}
    account = energy_account(logs, world.budget_j)
    used = account.energy_j.sum(axis=0) / world.budget_j
    scheduler = world.experiment.scheduler
    facts: dict[str, Any] = {
        "devices_over_budget": int((used > 1 + 1e-9).sum()),
        "largest_use_of_budget": float(used.max()),
        "mean_use_of_budget": float(used.mean()),
    }
    if np.isfinite(world.budget_j).all():
        v, gamma = drift_weights(scheduler, len(logs))
        facts["proposition2"] = asdict(proposition2_energy(account, world.samples, v, gamma))
    return facts


def drift_weights(scheduler: Scheduler, rounds: int) -> tuple[float, np.ndarray[Any, np.dtype[np.float64]]]:
    """V and γ_t of a scheduler; V = 0 for one that weighs no data, where the bound is only about the queues."""
    v = float(getattr(scheduler, "v", 0.0))
    name = getattr(scheduler, "gamma", "inverse")
    return v, np.array([data_weight(name, t) for t in range(rounds)])
