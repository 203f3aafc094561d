"""What is read off finished runs: accuracy at the end and early, energy against the budget, numbers per upload."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kfl.paper.setting import Scale
from kfl.paper.store import Store
from kfl.paper.verdict import FEWEST_SEEDS
from kfl.simulation.records import Record
from kfl.simulation.statistics import Difference, paired_difference

Measure = Callable[[Record], float]
NOT_RUN = "not run"
"""Stands where a number is missing."""


def final(row: Record) -> float:
    """Accuracy at the end, per cent."""
    return 100 * float(row["accuracy"])


def early(row: Record) -> float:
    """Speed of learning: the mean accuracy over the first quarter of the rounds, per cent."""
    rounds, accuracy = np.array(row["curve"]["rounds"]), np.array(row["curve"]["accuracy"])
    return 100 * float(accuracy[rounds <= row["rounds"] / 4].mean())


def used(row: Record, at: float = 1.0) -> float:
    """Energy spent by all devices up to a part of the rounds, as a share of their budgets for the whole run."""
    rounds, joules = np.array(row["curve"]["rounds"]), np.array(row["curve"]["joules"])
    return float(np.interp(at * row["rounds"], np.append(0, rounds), np.append(0, joules))) / float(row["budget_j"])


def numbers_per_upload(row: Record) -> float:
    """Numbers that one device sends in one round."""
    uploads = row["devices_per_round"] * row["rounds"]
    return float(row["bits_up"] / 32 / uploads) if uploads else 0.0


def gap(store: Store, scale: Scale, ours: str, theirs: str, measure: Measure = final) -> Difference | None:
    """Ours minus theirs, paired by seed."""
    one = {seed: measure(row) for seed, row in store.seeds(ours, scale).items()}
    other = {seed: measure(row) for seed, row in store.seeds(theirs, scale).items()}
    return paired_difference(one, other)


def told(difference: Difference | None, digits: int = 2) -> str:
    """A difference with its interval, or that there is none; and of how many seeds, where they are too few to judge.

    >>> told(Difference(2.0, 1.5, 2.5, 5)), told(Difference(2.0, 1.5, 2.5, 3))
    ('+2.00 [+1.50, +2.50]', '+2.00 [+1.50, +2.50] (3 seeds)')
    """
    if difference is None:
        return NOT_RUN
    said = f"{difference.mean:+.{digits}f}"
    if difference.low is not None and difference.high is not None:
        said += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    few = "" if difference.count >= FEWEST_SEEDS else f" ({difference.count} seed{'s' * (difference.count > 1)})"
    return said.replace("-", "−") + few


def beyond(difference: Difference | None, claimed: float) -> str:
    """A remark where the interval leaves out the number that was claimed.

    >>> beyond(Difference(0.4, -0.2, 1.1, 5), 9.35), beyond(Difference(2.0, 1.5, 2.5, 5), 2.1)
    ('; the paper’s number is above the interval', '')
    """
    if difference is None or difference.low is None or difference.high is None:
        return ""
    if difference.high < claimed:
        return "; the paper’s number is above the interval"
    return "; the paper’s number is below the interval" if claimed < difference.low else ""
