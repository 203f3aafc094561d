"""Finished runs of the paper's experiments, found by key and seed, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kfl.comparison import ResultStore
from kfl.comparison.records import Record
from kfl.comparison.statistics import Difference, paired_difference
from kfl.core.text import percent
from kfl.experiment import Experiment
from reproduction.setting import Line, Scale, run_key
from reproduction.verdict import FEWEST_SEEDS

NOT_RUN = "not run"
"""Stands where a number is missing."""
IDENTICAL = "identical runs"
"""Stands where two lines chose and learned the same in every round."""


@dataclass
class Store:
    """Results by the name of the run, read by the lines of figures."""

    rows: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, wanted: Mapping[str, Experiment]) -> Store:
        """Read the results of these runs, found by their settings: those of others under the same name do not count."""
        found = ResultStore.open(folder).rows
        digests = {name: experiment.digest() for name, experiment in wanted.items()}
        return cls(
            {
                name: {"budget_j": _budget_j(wanted[name]), **found[digest]}
                for name, digest in digests.items()
                if digest in found
            }
        )

    def seeds(self, line: Line | str, scale: Scale) -> dict[int, Record]:
        """The results of a line by seed."""
        key = line if isinstance(line, str) else line.key
        found = {seed: self.rows.get(run_key(key, seed, scale)) for seed in scale.seeds}
        return {seed: row for seed, row in found.items() if row is not None}

    def missing(self, lines: Iterable[Line], scale: Scale) -> int:
        """How many runs of these lines have no result."""
        return sum(len(scale.seeds) - len(self.seeds(line, scale)) for line in lines)


def _budget_j(experiment: Experiment) -> float | None:
    """The budgets of all devices together; None without a cell."""
    cell = experiment.cell_config
    return None if cell is None else cell.budget_j_per_round * experiment.rounds * experiment.devices


Measure = Callable[[Record], float]


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


def used_by_round_30(row: Record) -> float:
    """Energy spent in the first 30 rounds, as a share of the budgets for the whole run."""
    return used(row, 30 / row["rounds"])


def used_evenly(row: Record) -> float:
    """Energy of the first half of the rounds minus half of all, as a share of the budgets."""
    return used(row, 0.5) - used(row) / 2


def trained_early(row: Record) -> float:
    """Part of all training that fell into the first half of the rounds, above one half.

    KFL's uploads all have the same size, so bits count how often devices took part.
    """
    rounds, bits = np.array(row["curve"]["rounds"]), np.array(row["curve"]["bits"])
    return float(np.interp(row["rounds"] / 2, np.append(0, rounds), np.append(0, bits)) / bits[-1]) - 0.5


def trained_late(row: Record) -> float:
    """Part of all training that fell into the second half of the rounds, above one half."""
    return -trained_early(row)


def half_trained(row: Record) -> float:
    """Accuracy when half of all training is done, per cent, however many rounds that took."""
    bits, accuracy = np.array(row["curve"]["bits"]), np.array(row["curve"]["accuracy"])
    return 100 * float(np.interp(bits[-1] / 2, bits, accuracy))


def half_spent(row: Record) -> float:
    """Accuracy when half of the budget is spent, per cent, or at the end where less is."""
    joules, accuracy = np.array(row["curve"]["joules"]), np.array(row["curve"]["accuracy"])
    return 100 * float(np.interp(row["budget_j"] / 2, joules, accuracy))


def gap(store: Store, scale: Scale, ours: str, theirs: str | None, measure: Measure = final) -> Difference | None:
    """Ours minus theirs, paired by seed; ours minus nothing where `theirs` is None."""
    one = {seed: measure(row) for seed, row in store.seeds(ours, scale).items()}
    if theirs is None:
        return paired_difference(one, dict.fromkeys(one, 0.0))
    other = {seed: measure(row) for seed, row in store.seeds(theirs, scale).items()}
    return paired_difference(one, other)


def identical(store: Store, scale: Scale, ours: str, theirs: str | None) -> bool:
    """Whether two lines are the same runs for every seed: the same uploads and the same accuracy in all rounds, or
    the same algorithm with every device in every round (arithmetic may then differ between versions and machines).
    """
    if theirs is None:
        return False
    one, other = store.seeds(ours, scale), store.seeds(theirs, scale)
    seeds = set(one) & set(other)
    return bool(seeds) and all(_the_same(one[seed], other[seed]) for seed in seeds)


def _the_same(one: Record, other: Record) -> bool:
    if all(row["devices_per_round"] == row["devices"] for row in (one, other)):
        return all(one[name] == other[name] for name in ("algorithm", "settings", "dataset", "widths", "rounds"))
    return one["accuracy"] == other["accuracy"] and all(
        one["curve"][name] == other["curve"][name] for name in ("rounds", "accuracy", "bits")
    )


def told(difference: Difference | None, digits: int = 2) -> str:
    """A difference with its interval, or that there is none; and of how many seeds, where they are too few to judge.

    >>> told(Difference(2.0, 1.5, 2.5, 5)), told(Difference(2.0, 1.5, 2.5, 3))
    ('+2.00 [+1.50, +2.50]', '+2.00 [+1.50, +2.50] (3 seeds)')
    """
    if difference is None:
        return NOT_RUN
    text = f"{difference.mean:+.{digits}f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    few = "" if difference.count >= FEWEST_SEEDS else f" ({difference.count} seed{'s' * (difference.count > 1)})"
    return text.replace("-", "−") + few


def between(values: Iterable[int]) -> str:
    """From the least to the most.

    >>> between([2, 0, 5]), between([3, 3])
    ('0 to 5', '3')
    """
    low, high = min(values := list(values)), max(values)
    return str(low) if low == high else f"{low} to {high}"


def worst_use(rows: Iterable[Record]) -> str:
    """The largest part of its own budget that any device used in any of these runs; a dash where a run does not say."""
    uses: list[float | None] = [row.get("largest_use_of_budget") for row in rows]
    known = [use for use in uses if use is not None]
    return percent(max(known) if known and len(known) == len(uses) else None)


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
