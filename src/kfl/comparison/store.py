"""Results of a comparison or a study on disk: one line per run, found by the digest of its experiment.

    study.json        what was asked: by label and condition the digest of each seed; written before the first run
    results.jsonl     one line per finished run, written as the run ends
    diverged.jsonl    runs that have no result because their training diverged; they are not tried again
    <run folder>/     one for each run, where run folders are kept

A folder may hold several files `results*.jsonl`, plain or gzip, one for each machine or session that shared the work:
collected in one folder they are one store. The files of earlier versions are read as well: `comparison.json` instead
of `study.json`, and lines with the name of the run in place of a label.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kfl.comparison.records import (
    RESULTS,
    Record,
    check_results,
    label_of,
    read_lines,
    results_in,
    stored,
    write_records,
)
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.files import write_json
from kfl.core.kinds import TEXT, first_wrong
from kfl.core.parse import read_json
from kfl.core.text import several
from kfl.experiment import Experiment
from kfl.runfolder import is_run_folder, runs_in

if TYPE_CHECKING:
    from kfl.comparison.sources import Fingerprints

T = TypeVar("T")
STUDY = "study.json"
OLD_STUDY = "comparison.json"
"""The name of `STUDY` in folders of earlier versions."""
DIVERGED = "diverged.jsonl"
FORMAT = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """One part of the work: number `index` (from 1) of `count`."""

    index: int = 1
    count: int = 1

    @staticmethod
    def parse(text: str) -> Shard:
        """Read i/n.

        >>> Shard.parse("2/4")
        Shard(index=2, count=4)
        """
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise ConfigError("shard", text, "i/n with i from 1 to n, such as 2/4")
        return Shard(int(first), int(second))

    @property
    def file(self) -> str:
        """Where its results go."""
        return RESULTS if self.count == 1 else f"results-{self.index}of{self.count}.jsonl"

    def part(self, runs: Sequence[T]) -> list[T]:
        """Its part of some runs: every n-th."""
        return list(runs[self.index - 1 :: self.count])


@dataclass(frozen=True)
class PlannedRow:
    """One entry of a plan: the digest of its run for each seed."""

    label: str
    runs: Mapping[int, str]
    condition: str = ""
    searched: Mapping[str, Any] | None = None
    """In a search, the fields that this trial changes."""
    is_start: bool = False
    """In a search, whether this is the setting it started from."""
    tuned: str = ""
    """Where its settings come from; empty for defaults."""


@dataclass(frozen=True)
class Plan:
    """What was asked of a folder last."""

    rows: tuple[PlannedRow, ...] = ()
    trials: tuple[PlannedRow, ...] = ()
    """Those of the search that came before, every one of every entry."""
    reference: str | None = None
    twins: bool = False
    """Whether the reference of each condition is its best twin."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Labels that were left out, and why."""

    def to_table(self) -> dict[str, Any]:
        """Plain values for `STUDY`."""
        return {
            "format": FORMAT,
            "reference": self.reference,
            "twins": self.twins,
            "entries": [_row_table(row) for row in self.rows],
            "trials": [_row_table(row) for row in self.trials],
            "unfit": dict(self.unfit),
        }


def _row_table(row: PlannedRow) -> dict[str, Any]:
    table: dict[str, Any] = {"label": row.label, "runs": {str(seed): digest for seed, digest in row.runs.items()}}
    table |= {name: value for name in ("condition", "tuned") if (value := getattr(row, name))}
    return table if row.searched is None else {**table, "searched": dict(row.searched), "start": row.is_start}


@dataclass
class ResultStore:
    """Results by the digest of the experiment."""

    folder: Path
    file: str = RESULTS
    """Where new results go."""
    rows: dict[str, Record] = field(default_factory=dict)
    diverged: dict[str, Record] = field(default_factory=dict)
    """Runs whose training diverged: digest, name, and the sentence that says it."""
    _own: dict[str, Record] = field(default_factory=dict, repr=False)
    """The lines of `file`."""

    @classmethod
    def open(cls, folder: str | Path, shard: Shard | None = None) -> ResultStore:
        """Read what a folder holds; a new folder holds nothing."""
        file = stored(Path(folder, (shard or Shard()).file)).name
        store = cls(Path(folder), file)
        for path in results_in(store.folder):
            found = check_results(path, read_lines(path, "kfl compare", ("digest",)))
            lines = {line["digest"]: line for line in found}
            store.rows |= lines
            if path.name == store.file:
                store._own = lines
        if (store.folder / DIVERGED).exists():
            noted = read_lines(store.folder / DIVERGED, "kfl compare", ("digest", "problem"))
            for number, line in enumerate(noted, 1):
                if wrong := first_wrong(line, dict.fromkeys(("digest", "problem", "run"), TEXT)):
                    raise RunFolderError(f"{store.folder / DIVERGED} is damaged (line {number}: {wrong}).")
            store.diverged = {str(line["digest"]): line for line in noted}
        return store

    def holds(self, experiment: Experiment) -> bool:
        """Whether this very run is finished, or known to diverge."""
        digest = experiment.digest()
        return digest in self.rows or digest in self.diverged

    def of(self, experiment: Experiment) -> Record | None:
        """The result of a run; None where there is none."""
        return self.rows.get(experiment.digest())

    def add(self, row: Record, order: Iterable[str] = ()) -> None:
        """Keep a new result and write it down at once: lines in this order of digests, then the others."""
        self.rows[row["digest"]] = self._own[row["digest"]] = row
        self._own = {digest: self._own[digest] for digest in (*order, *self._own) if digest in self._own}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / self.file, self._own.values())

    def add_diverged(self, digest: str, name: str, problem: str) -> None:
        """Note a run whose training diverged."""
        self.diverged[digest] = {"run": name, "digest": digest, "problem": problem}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / DIVERGED, self.diverged.values())

    def forget_outdated(self, runs: Mapping[Path, Experiment], now: Fingerprints) -> None:
        """Drop results of the user's own modules and data that have changed since; say so once for each thing."""
        from kfl.comparison.sources import facts_of_run  # PyTorch, which pages do not need

        dropped: dict[str, int] = {}
        for path, experiment in runs.items():
            digest = experiment.digest()
            row = self.rows.get(digest)
            if row is None:
                continue
            is_there = is_run_folder(path)
            before = facts_of_run(path) if is_there else {}
            before |= {name: row[name] for name in ("sources", "data") if name in row}
            what = now.changed(before, experiment)
            if what is None:
                continue
            del self.rows[digest]
            self._own.pop(digest, None)
            if not is_there:  # one that is there is set aside, and spoken of, when it is run again
                dropped[what] = dropped.get(what, 0) + 1
        for what, count in dropped.items():
            log.warning("%s has changed since: %s repeated.", what, several(count, "run is", "runs are"))

    def write_plan(self, plan: Plan) -> None:
        """Write down what is asked, before it runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / STUDY, plan.to_table())

    def read_plan(self) -> Plan | None:
        """What was asked last; None where unknown."""
        if (self.folder / STUDY).exists():
            return read_plan(self.folder / STUDY)
        return _read_old_plan(self.folder / OLD_STUDY)

    def planned(self, row: PlannedRow) -> dict[int, Record]:
        """The results of a row of a plan that are there, by seed, each with its label and condition."""
        named = {"label": row.label, **({"condition": row.condition} if row.condition else {})}
        return {
            seed: {**named, **{k: v for k, v in self.rows[digest].items() if k not in ("label", "condition", "run")}}
            for seed, digest in row.runs.items()
            if digest in self.rows
        }


def planned_runs(folder: Path) -> tuple[dict[str, list[Path]], str] | None:
    """The run folders of a comparison by label, and the label of the reference; None where there is none.

    Only folders directly inside are found, whatever an untrusted file says.
    """
    try:
        plan = read_plan(folder / STUDY) if (folder / STUDY).exists() else _read_old_plan(folder / OLD_STUDY)
    except RunFolderError:
        return None
    if plan is None:
        return None
    present = {path.name.rpartition("-")[2]: path for path in runs_in(folder)}
    labels: dict[str, list[Path]] = {}
    for row in plan.rows:
        runs = [present[digest] for digest in row.runs.values() if digest in present]
        if runs:
            labels[f"{row.condition}: {row.label}" if row.condition else row.label] = runs
    return (labels, plan.reference or "") if labels else None


def read_plan(path: Path) -> Plan:
    """Read `STUDY`; RunFolderError for a file that cannot be read."""
    try:
        table = read_json(path)
        return Plan(
            rows=tuple(map(_read_row, table["entries"])),
            trials=tuple(map(_read_row, table.get("trials", ()))),
            reference=None if table.get("reference") is None else str(table["reference"]),
            twins=bool(table.get("twins", False)),
            unfit={str(label): str(why) for label, why in dict(table.get("unfit", {})).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise RunFolderError(f"{path} is damaged ({problem}).") from problem


def _read_row(table: Mapping[str, Any]) -> PlannedRow:
    runs = {int(seed): str(digest) for seed, digest in table["runs"].items()}
    searched = table.get("searched")
    words = [str(table.get(name, "")) for name in ("condition", "tuned")]
    return PlannedRow(str(table["label"]), runs, words[0], searched, bool(table.get("start")), words[1])


def _read_old_plan(path: Path) -> Plan | None:
    """What a folder of an earlier version was asked: run folders by label and seed, whose names end in the digest."""
    try:
        table = read_json(path)
        rows = [
            PlannedRow(str(label), {int(seed): str(name).rpartition("-")[2] for seed, name in entry["runs"].items()})
            for label, entry in table["entries"].items()
        ]
        reference = table.get("reference")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Plan(tuple(rows), reference=None if reference is None else str(reference))


def rows_without_plan(records: Sequence[Record]) -> list[PlannedRow]:
    """Rows of lines that were not planned: by their label, or by the name of the run in a study of an earlier version.

    >>> [row.label for row in rows_without_plan([{"digest": "a", "algorithm": "kfl", "seed": 0}])]
    ['kfl']
    >>> rows_without_plan([{"digest": "b", "run": "mnist-m2, kfl, searched, seed 3", "algorithm": "kfl", "seed": 3}])
    [PlannedRow(label='kfl', runs={3: 'b'}, condition='mnist-m2, searched', searched=None, is_start=False, tuned='')]
    """
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    for line in records:
        parts = str(line.get("run", "")).split(", ")
        if len(parts) == 4 and parts[3].startswith("seed "):
            if parts[0].startswith("search in "):
                continue
            key = (f"{parts[0]}, {parts[2]}", parts[1])
        else:
            key = (str(line.get("condition", "")), label_of(line))
        digests = found.setdefault(key, {}).setdefault(int(line["seed"]), [])
        digests.append(str(line["digest"]))
    # Several settings under one name and seed are the trials of a search, and none of them is the row's result.
    single = {key: {seed: one[0] for seed, one in runs.items() if len(set(one)) == 1} for key, runs in found.items()}
    return [PlannedRow(label, runs, condition) for (condition, label), runs in single.items() if runs]
