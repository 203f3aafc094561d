"""Numbers about a run that no file of its folder holds ready: fairness over devices, energy against budgets, totals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfl.runfolder import RunData

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Fairness:
    """How evenly accuracy is spread over the devices that have test samples."""

    devices: int
    mean: float
    """Over devices, each counting the same."""
    worst_tenth: float
    """Mean of the worst tenth of the devices."""
    worst: float
    best: float
    deviation: float
    """Standard deviation over devices."""
    jain: float
    """Jain's index (Σa)² / (n Σa²): 1 where all are equal, 1/n where one has everything."""


def fairness(accuracy: FloatArray) -> Fairness | None:
    """Fairness of accuracies, one per device; None where none is known.

    >>> fairness(np.array([1.0, 0.5, np.nan])).jain
    0.9
    """
    known = np.sort(accuracy[np.isfinite(accuracy)])
    if not known.size:
        return None
    squares = float((known**2).sum())
    return Fairness(
        devices=known.size,
        mean=float(known.mean()),
        worst_tenth=float(known[: max(1, known.size // 10)].mean()),
        worst=float(known[0]),
        best=float(known[-1]),
        deviation=float(known.std()),
        jain=float(known.sum() ** 2 / (known.size * squares)) if squares > 0 else 1.0,
    )


@dataclass(frozen=True)
class Totals:
    """The sums of a run so far."""

    accuracy: float | None
    """Of all devices when last tested."""
    best_accuracy: float | None
    energy_j: float
    upload_energy_j: float
    time_s: float
    bits_up: float
    uploads: int
    """Times a device took part."""
    use_of_budget: float | None
    """Energy of all devices over all their budgets; None without budgets."""
    over_budget: int
    """Devices that spent more than their budget."""


def totals(run: RunData) -> Totals:
    """Sum up a run."""
    rounds = run.rounds
    tested = rounds.accuracy[np.isfinite(rounds.accuracy)]
    spent = device_energy(run)
    limited = math.isfinite(run.budget_j)
    return Totals(
        accuracy=float(tested[-1]) if tested.size else None,
        best_accuracy=float(tested.max()) if tested.size else None,
        energy_j=float(spent.sum()),
        upload_energy_j=float(rounds.upload_energy_j.sum()),
        time_s=float(np.nansum(rounds.time_s)),
        bits_up=float(np.nansum(rounds.bits_up)),
        uploads=len(rounds.device),
        use_of_budget=float(spent.mean()) / run.budget_j if limited else None,
        over_budget=int((spent > run.budget_j * (1 + 1e-9)).sum()) if limited else 0,
    )


def device_energy(run: RunData) -> FloatArray:
    """Joules each device spent so far."""
    return run.rounds.per_device(run.devices, run.rounds.energy_j)


def spent_curves(run: RunData) -> dict[str, FloatArray]:
    """What all devices together had spent after each round, by the unit it is counted in."""
    rounds = run.rounds
    return {
        "rounds": np.arange(1.0, rounds.count + 1),
        "joules": np.cumsum(rounds.per_round(rounds.energy_j)),
        "seconds": np.cumsum(np.nan_to_num(rounds.time_s)),
        "bits": np.cumsum(np.nan_to_num(rounds.bits_up)),
    }


def trail_accuracy(run: RunData) -> tuple[NDArray[np.int64], FloatArray]:
    """Rounds of the trail that hold accuracies, and these: one row per round, one column per device."""
    seen = [s for s in run.trail if s.accuracy is not None and len(s.accuracy) == run.devices]
    seen = [s for s in seen if s.accuracy is not None and np.isfinite(s.accuracy).any()]
    rows = [s.accuracy for s in seen if s.accuracy is not None]
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty((0, run.devices))
    return np.array([s.round for s in seen]), np.stack(rows)
