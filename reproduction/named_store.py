"""Results of the figures: one line per run, found by name, written as each run ends, never run twice.

A folder may hold several files `results*.jsonl`, plain or gzip, one for each machine or session that shared the work:
collected in one folder they are one store. Runs whose training diverged have no result, and would have none another
time: they are noted in `diverged.jsonl`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kfl.comparison.execution import Execution, RunsFailedError, play_all, run_paths
from kfl.comparison.records import (
    RESULTS,
    Record,
    data_note,
    read_lines,
    record,
    results_in,
    stored,
    write_records,
)
from kfl.experiment import Experiment
from kfl.progress import Progress
from kfl.simulation.logs import History

DIVERGED = "diverged.jsonl"
"""File of the runs that have no result because their training ran off to infinity."""
DIGITS = 5
"""Digits of the numbers of a curve that are kept."""


@dataclass
class ResultStore:
    """Results by the name of the run."""

    folder: Path
    file: str = RESULTS
    """Where new results go."""
    rows: dict[str, Record] = field(default_factory=dict)
    diverged: dict[str, Record] = field(default_factory=dict)
    """Runs that ran off to infinity, by name: the hash of their settings, and the sentence that says it."""
    _own: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, file: str = RESULTS) -> Self:
        """What a folder holds; a new folder holds nothing."""
        store = cls(folder, file := stored(folder / file).name)
        for path in results_in(folder):
            for row in read_lines(path, "a study", ("run",)):
                store.rows[row["run"]] = row
                if path.name == file:
                    store._own[row["run"]] = row
        if (folder / DIVERGED).exists():
            store.diverged = {row["run"]: row for row in read_lines(folder / DIVERGED, "a study", ("run", "digest"))}
        return store

    def add(self, rows: Mapping[str, Record]) -> None:
        """Keep new results, and write them down at once."""
        for name, row in rows.items():
            self.rows[name] = self._own[name] = {"run": name, **row}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / self.file, [self._own[name] for name in sorted(self._own)])

    def add_diverged(self, names: Sequence[str], digest: str, problem: str) -> None:
        """Note a run that ran off to infinity, under all its names."""
        for name in names:
            self.diverged[name] = {"run": name, "digest": digest, "problem": problem}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / DIVERGED, [self.diverged[name] for name in sorted(self.diverged)])

    def has(self, name: str, digest: str) -> bool:
        """Whether this very run is finished: a result of other settings under the same name does not count."""
        return name in self.rows and self.rows[name]["digest"] == digest

    def has_diverged(self, name: str, digest: str) -> bool:
        """Whether this very run is known to run off to infinity."""
        return name in self.diverged and self.diverged[name]["digest"] == digest

    def current(self, digests: Mapping[str, str]) -> Self:
        """Only what was run with the settings that a run of this name has today, to be read."""
        kept = {name: row for name, row in self.rows.items() if name in digests and self.has(name, digests[name])}
        return type(self)(self.folder, self.file, kept)

    def copy_twins(self, digests: Mapping[str, str]) -> None:
        """A run that stands under another name with the very same settings is that result."""
        known = {row["digest"]: row for row in self.rows.values()}
        twins = {
            name: {key: value for key, value in known[its].items() if key != "run"}
            for name, its in digests.items()
            if its in known and not self.has(name, its)
        }
        if twins:
            self.add(twins)


def run_missing(
    store: ResultStore,
    wanted: Mapping[str, Experiment],
    execution: Execution,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    more: Callable[[Experiment, History], Record] | None = None,
) -> None:
    """Run what the store does not hold yet, and write each result as its run ends.

    An interrupted run stays in `runs/` below the store's folder and is taken up there; a finished one is removed once
    its result is written, unless `keep_runs`. `more` adds to a result what only this study needs. A run that diverges
    is noted and not tried again; RunsFailedError is for whatever else went wrong.
    """
    digests = {name: experiment.digest() for name, experiment in wanted.items()}
    store.copy_twins(digests)
    # Long and short ones mixed: what is done then tells how long the rest takes.
    order = sorted(wanted, key=lambda name: digests[name])
    known = {name for name in order if store.has(name, digests[name]) or store.has_diverged(name, digests[name])}
    todo = {name: wanted[name] for name in order if name not in known}
    if not todo:
        return
    paths = run_paths(list(todo.values()), store.folder / "runs")
    names: dict[str, list[str]] = {}
    for path, name in zip(paths, todo, strict=True):
        names.setdefault(path.name, []).append(name)

    def finished(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(replace(progress, name=names[progress.name][0]))
        if progress.diverged and progress.problem is not None:
            first = names[progress.name][0]
            store.add_diverged(names[progress.name], digests[first], progress.problem)
        if progress.history is None or progress.history.folder is None:
            return
        folder = Path(progress.history.folder)
        experiment = todo[names[progress.name][0]]
        row = {
            **_short(record(experiment, progress.history, data_note(folder))),
            **({} if more is None else more(experiment, progress.history)),
            "device": execution.device,
            "precision": execution.precision,
        }
        store.add(dict.fromkeys(names[progress.name], row))
        if not execution.keep_runs:
            shutil.rmtree(folder, ignore_errors=True)

    try:
        play_all(list(todo.values()), store.folder / "runs", execution, finished)
    except RunsFailedError as failed:
        if not failed.only_diverged:
            raise


def _short(row: Record) -> Record:
    """What tables and plots need; a curve's numbers to five digits."""
    curve: dict[str, Any] = row["curve"]
    return {
        **row,
        "curve": {name: [float(f"{value:.{DIGITS}g}") for value in values] for name, values in curve.items()},
    }
