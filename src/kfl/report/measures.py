"""Numbers about a run that no file of its folder holds ready: fairness over devices, energy against budgets, totals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.runfolder import RunData
from kfl.wireless import ENERGY_PARTS

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


_INKS = dict(zip(ENERGY_PARTS, ("@c1", "@c6", "@c5", "@c2", "@c4", "@c3"), strict=True))


def part_ink(part: str) -> str:
    """The colour of a part of the energy, the same in every chart; sending, in the printed model, is radiating."""
    return _INKS.get(part, _INKS["radiating"])


_PATTERNS = dict(zip(ENERGY_PARTS, ("", ".", "/", "x", "-", "|"), strict=True))


def part_mark(part: str) -> dict[str, Any]:
    """How a bar of a part of the energy is filled: coloured, and hatched, so that parts can be told apart in grey."""
    pattern = {"shape": _PATTERNS.get(part, _PATTERNS["radiating"]), "fillmode": "overlay", "fgcolor": "@panel"}
    return {"color": part_ink(part), "pattern": {**pattern, "size": 5, "solidity": 0.35}}


def energy_parts(run: RunData) -> dict[str, FloatArray]:
    """Where the joules went, for each time a device took part, without parts that took nothing.

    In the printed model these are computing and sending.
    """
    rounds = run.rounds
    if rounds.parts_j is None:
        return {"computing": rounds.compute_energy_j, "sending": rounds.upload_energy_j}
    return {name: energy_j for name, energy_j in rounds.parts_j.items() if energy_j.any()}


@dataclass(frozen=True, eq=False)
class BatteryCurves:
    """The batteries of a run after each round, all devices together or as they are spread."""

    capacity_j: float
    least_j: FloatArray
    """Charge of the emptiest device,"""
    mean_j: FloatArray
    most_j: FloatArray
    harvested_j: FloatArray
    """of all devices since the start, wasted joules included,"""
    spent_j: FloatArray
    wasted_j: FloatArray
    """and what came while a battery was full."""
    empty: NDArray[np.int64]
    """Devices that had not the charge to take part in the round."""


def battery_curves(run: RunData) -> BatteryCurves | None:
    """What became of the batteries; None where devices have none. It follows from the joules of every round."""
    batteries = None if run.cell is None else run.cell.batteries()
    if batteries is None or not run.played:
        return None
    rounds = run.rounds
    ends = np.searchsorted(rounds.round, np.arange(run.played), side="right")
    nothing, nobody = np.zeros(run.devices), np.zeros(run.devices, dtype=bool)
    charge, totals_j, before = [], [], 0
    for index, end in enumerate(ends):
        which = slice(before, end)
        spent_j = np.zeros(run.devices)
        spent_j += np.bincount(rounds.device[which], weights=rounds.energy_j[which], minlength=run.devices)
        harvest_j = nothing if rounds.harvest_j is None else np.nan_to_num(rounds.harvest_j[index])
        batteries = batteries.after(spent_j, harvest_j, nobody)
        charge.append((batteries.charge_j.min(), batteries.charge_j.mean(), batteries.charge_j.max()))
        totals_j.append((batteries.harvested_j.sum(), spent_j.sum(), batteries.wasted_j.sum()))
        before = int(end)
    least, mean, most = np.array(charge).T
    harvested, spent, wasted = np.array(totals_j).T
    return BatteryCurves(
        capacity_j=batteries.capacity_j,
        least_j=least,
        mean_j=mean,
        most_j=most,
        harvested_j=harvested,
        spent_j=np.cumsum(spent),
        wasted_j=wasted,
        empty=rounds.empty,
    )
