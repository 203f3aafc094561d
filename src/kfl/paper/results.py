"""Finished runs of the paper's experiments as JSON lines, found by key and seed, and what is read off them.

A folder may hold several files `results*.jsonl`, one for each machine or session that shared the work: collected in one
folder they are one store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kfl.paper.setting import Line, Scale, run_key
from kfl.paper.verdict import FEWEST_SEEDS, NOT_RUN, Finding, Judge, better, together
from kfl.simulation.records import RESULTS, Record, read_lines, write_records
from kfl.simulation.statistics import Difference, paired_difference


@dataclass
class Store:
    """Results by the name of the run."""

    folder: Path
    file: str = RESULTS
    """Where new results go."""
    rows: dict[str, Record] = field(default_factory=dict)
    _own: dict[str, Record] = field(default_factory=dict)

    @staticmethod
    def open(folder: Path, file: str = RESULTS) -> Store:
        """What a folder holds; a new folder holds nothing."""
        store = Store(folder, file)
        for path in sorted(folder.glob("results*.jsonl")):
            for row in read_lines(path, "kfl paper", ("run",)):
                store.rows[row["run"]] = row
                if path.name == file:
                    store._own[row["run"]] = row
        return store

    def add(self, rows: Mapping[str, Record]) -> None:
        """Keep new results, and write them down at once."""
        for name, row in rows.items():
            self.rows[name] = self._own[name] = {"run": name, **row}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / self.file, [self._own[name] for name in sorted(self._own)])

    def has(self, name: str, digest: str) -> bool:
        """Whether this very run is finished: a result of other settings under the same name does not count."""
        return name in self.rows and self.rows[name]["digest"] == digest

    def seeds(self, line: Line | str, scale: Scale) -> dict[int, Record]:
        """The results of a line by seed."""
        key = line if isinstance(line, str) else line.key
        found = {seed: self.rows.get(run_key(key, seed, scale)) for seed in scale.seeds}
        return {seed: row for seed, row in found.items() if row is not None}

    def missing(self, lines: Iterable[Line], scale: Scale) -> int:
        """How many runs of these lines have no result."""
        return sum(len(scale.seeds) - len(self.seeds(line, scale)) for line in lines)


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
    text = f"{difference.mean:+.{digits}f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    few = "" if difference.count >= FEWEST_SEEDS else f" ({difference.count} seed{'s' * (difference.count > 1)})"
    return text.replace("-", "−") + few


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


class Pair(NamedTuple):
    """Two lines of which the first is said to be better."""

    label: str
    ours: str
    theirs: str
    margin: float
    """What counts as equal."""


def judge_above(pairs: Sequence[Pair], measure: Measure = final, digits: int = 2) -> Judge:
    """Judge whether the first line of every pair is better than the second."""

    def judge(store: Store, scale: Scale) -> Finding:
        gaps = [gap(store, scale, pair.ours, pair.theirs, measure) for pair in pairs]
        parts = [f"{pair.label} {told(found, digits)}" for pair, found in zip(pairs, gaps, strict=True)]
        verdicts = [better(found, pair.margin) for pair, found in zip(pairs, gaps, strict=True)]
        return Finding.of("; ".join(parts), together(verdicts), gaps)

    return judge
