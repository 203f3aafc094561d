"""Runs that belong together: those that differ in nothing but the seed are one group, with one name and one line.

A folder of `kfl compare` says in study.json which run belongs to which label. Without one, runs are grouped by
their configuration without the seed, and a group is named by what tells it apart from the others.

>>> named([{"algorithm": {"name": "kfl"}, "seed": 0}, {"algorithm": {"name": "local"}, "seed": 0}])
['kfl', 'local']
>>> named([{"algorithm": {"name": "kfl", "pull": 0.1}}, {"algorithm": {"name": "kfl", "pull": 0.5}}])
['pull 0.1', 'pull 0.5']
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kfl.comparison.statistics import Difference, paired_difference
from kfl.comparison.store import STUDY, planned_runs
from kfl.core.config import Table, flatten
from kfl.core.text import several, shortened
from kfl.experiment import identity_fields
from kfl.report.chart import FloatArray, band, ink, line, numbers, stroke
from kfl.report.words import chart_label
from kfl.runfolder import RunData, find_runs, is_run_folder, read_run

MAP = STUDY
"""The file of a comparison that says which run belongs to which label."""
MOST_WORDS = 3
"""Settings that a group is named by; where more differ, the table of what differs says which."""
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Bundle:
    """One curve for each run of a group, at the rounds that all of them have."""

    rounds: NDArray[np.int64]
    values: FloatArray
    """(runs, points)"""

    @staticmethod
    def of(curves: Sequence[tuple[NDArray[Any], FloatArray]]) -> Bundle:
        """Curves as rounds and values.

        >>> Bundle.of([(np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0])), (np.array([0, 2]), np.array([3.0, 5.0]))]).mean
        array([2., 4.])
        """
        common = reduce(np.intersect1d, [rounds for rounds, _ in curves])
        rows = [values[np.isin(rounds, common)] for rounds, values in curves]
        return Bundle(common.astype(np.int64), np.stack(rows) if rows else np.empty((0, 0)))

    @property
    def mean(self) -> FloatArray:
        """Over the runs."""
        return np.asarray(self.values.mean(axis=0))

    def ends(self) -> tuple[FloatArray, FloatArray] | None:
        """The 95 % interval of the mean at each point; of two runs, which tell no interval, the two; None of one."""
        count = len(self.values)
        if count < 2:
            return None
        if count == 2:
            return self.values.min(axis=0), self.values.max(axis=0)
        error = self.values.std(axis=0, ddof=1) / np.sqrt(count)
        half = special.stdtrit(count - 1, 0.5 + CONFIDENCE / 2) * error
        return self.mean - half, self.mean + half


@dataclass(frozen=True, eq=False)
class Group:
    """Runs under one name on a page: the same setting with different seeds, or one run."""

    name: str
    runs: tuple[RunData, ...]
    index: int = 0
    """Its place on the page, which gives it colour and dashes."""

    @property
    def run(self) -> RunData:
        """The first run."""
        return self.runs[0]

    @property
    def label(self) -> str:
        """Its name in a chart."""
        return chart_label(self.name)

    @property
    def seeds(self) -> str:
        """How many seeds it has, in words."""
        return several(len(self.runs), "seed")

    @property
    def meta(self) -> dict[str, Any]:
        """What the page's script knows of a trace of this group: whose it is, and that it may be smoothed."""
        return {"group": self.index}

    def mean(self, measure: Callable[[RunData], float]) -> float:
        """A number averaged over the runs."""
        return float(np.mean([measure(run) for run in self.runs]))

    def bundle(self, curve: Callable[..., tuple[NDArray[Any], FloatArray]], *which: object) -> Bundle:
        """A curve of each run; `which` is handed on to `curve`."""
        return Bundle.of([curve(run, *which) for run in self.runs])

    def line(self, x: list[Any], y: list[Any], **more: Any) -> dict[str, Any]:
        """A line in its colour and dashes."""
        style = {**stroke(self.index), **more.pop("line", {})}
        meta = {**self.meta, **more.pop("meta", {})}
        return line(self.label, x, y, ink(self.index), line=style, meta=meta, legendgroup=self.label, **more)

    def lines(
        self, x: list[Any], found: Bundle, *, limits: tuple[float, float] | None = None, **more: Any
    ) -> list[Any]:
        """The mean with its band over seeds, which may not leave `limits`."""
        meta = {**self.meta, **more.pop("meta", {})}
        traces = [self.line(x, numbers(found.mean), meta=meta, **more)]
        if (ends := found.ends()) is None:
            return traces
        low, high = ends if limits is None else (np.clip(end, *limits) for end in ends)
        drawn = band(self.label, x, numbers(low), numbers(high), ink(self.index))
        return [*({**edge, "meta": meta, "showlegend": False} for edge in drawn), *traces]


@dataclass(frozen=True)
class Comparison:
    """The groups of a page, and the one that the others are compared with."""

    groups: tuple[Group, ...]
    reference: Group

    @property
    def runs(self) -> list[RunData]:
        """Every run once."""
        return list({run.path: run for group in self.groups for run in group.runs}.values())

    @property
    def seeded(self) -> bool:
        """Whether any group has several seeds."""
        return any(len(group.runs) > 1 for group in self.groups)


def over_seeds(groups: Sequence[Group]) -> str:
    """What the bands of a chart are, in words; empty where there are none."""
    counts = {len(group.runs) for group in groups} - {1}
    if not counts:
        return ""
    if counts == {2}:
        return "Lines are means over 2 seeds, bands reach from one to the other."
    most = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return f"Lines are means over {most} seeds, bands their 95\N{NO-BREAK SPACE}% intervals."


def difference(ours: Group, theirs: Group, measure: Callable[[RunData], float | None]) -> Difference | None:
    """A measure of ours minus theirs, paired by seed, with the interval of the paired t-test."""
    return paired_difference(_by_seed(ours, measure), _by_seed(theirs, measure))


def told_apart(gap: Difference | None, unit: str = "\N{NO-BREAK SPACE}points") -> str:
    """A difference of accuracies in words, a tie as a tie.

    >>> told_apart(Difference(0.003, -0.002, 0.008, 3)).replace("\\xa0", " ")
    '+0.30 points [−0.20, +0.80], a tie'
    >>> told_apart(Difference(0.003, None, None, 1)).replace("\\xa0", " ")
    '+0.30 points, one seed'
    """
    if gap is None:
        return "no seed in common"
    points = f"{100 * gap.mean:+.2f}{unit}"
    if gap.low is not None and gap.high is not None:
        points += f" [{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
    points = points.replace("-", "\N{MINUS SIGN}")
    if gap.count == 1:
        return f"{points}, one seed"
    return points if gap.clear else f"{points}, a tie"


def _by_seed(group: Group, measure: Callable[[RunData], float | None]) -> dict[int, float]:
    found = {seed_of(run): measure(run) for run in group.runs}
    return {seed: value for seed, value in found.items() if value is not None}


def seed_of(run: RunData) -> int:
    """The seed of a run; -1 where its configuration has none."""
    seed = run.config.get("seed")
    return seed if isinstance(seed, int) else -1


# ── Which runs belong together ───────────────────────────────────────────────


def read_comparison(paths: Sequence[Path]) -> Comparison:
    """The runs of folders, or of folders of run folders, in groups."""
    maps = {path: found for path in paths if not is_run_folder(path) and (found := planned_runs(path)) is not None}
    labelled: list[tuple[str, RunData]] = []
    plain: list[RunData] = []
    known: dict[Path, RunData] = {}
    reference = ""
    for path in paths:
        if path not in maps:
            plain += [known.setdefault(one, read_run(one)) for one in find_runs([path]) if one not in known]
            continue
        entries, chosen = maps[path]
        several_maps = len(maps) > 1
        for label, folders in entries.items():
            name = f"{path.resolve().name}: {label}" if several_maps else label
            reference = reference or (name if label == chosen else "")
            for folder in folders:
                run = known[folder] if folder in known else read_run(folder)
                known[folder] = run
                labelled.append((name, run))
    return _arranged([*_by_label(labelled), *_by_setting(plain)], reference)


def group_runs(runs: Sequence[RunData]) -> Comparison:
    """Runs grouped by their configuration without the seed."""
    return _arranged(_by_setting(runs), "")


def _arranged(groups: Sequence[Group], reference: str) -> Comparison:
    placed = tuple(replace(group, index=index) for index, group in enumerate(groups))
    chosen = [group for group in placed if group.name == reference]
    chosen += [group for group in placed if group.run.algorithm == "local"]
    return Comparison(placed, [*chosen, *placed][0])


def _by_label(found: Sequence[tuple[str, RunData]]) -> list[Group]:
    labels: dict[str, list[RunData]] = {}
    for label, run in found:
        labels.setdefault(label, []).append(run)
    return [Group(label, tuple(runs)) for label, runs in labels.items()]


def _by_setting(runs: Sequence[RunData]) -> list[Group]:
    """Groups in the order of the runs; a second run with the same seed is a group of its own."""
    settings: dict[tuple[str, int], list[RunData]] = {}
    for run in runs:
        key = json.dumps(_without_seed(run.config), sort_keys=True, default=str)
        copy = 0
        while any(seed_of(other) == seed_of(run) for other in settings.get((key, copy), [])):
            copy += 1
        settings.setdefault((key, copy), []).append(run)
    groups = [sorted(found, key=seed_of) for found in settings.values()]
    names = named([found[0].config for found in groups])
    if len(set(names)) < len(names):
        repeated = {name for name in names if names.count(name) > 1}
        folders = _folders([found[0] for found in groups])
        names = [
            f"{name} ({folder})" if name in repeated else name for name, folder in zip(names, folders, strict=True)
        ]
    found_groups = [Group(name, tuple(found)) for name, found in zip(names, groups, strict=True)]
    return sorted(found_groups, key=lambda group: _LAST.get(group.run.algorithm, 1))


_LAST = {"kfl": 0, "fixed-knowledge": 2, "self-knowledge": 2, "local": 3}
"""Groups without labels are in the order of their folders, with what a comparison is about first, baselines last."""


def _folders(runs: Sequence[RunData]) -> list[str]:
    """A name for each folder: its own, with as many folders before it as it takes to tell them apart.

    The number at the end tells apart what is the very same folder given twice in different words.
    """
    names: list[str] = []
    for depth in range(1, 5):
        names = ["/".join(run.path.resolve().parts[-depth:]) for run in runs]
        if len(set(names)) == len(names):
            return names
    return [f"{name} {index + 1}" for index, name in enumerate(names)]


def _without_seed(config: Mapping[str, Any]) -> Table:
    return {name: value for name, value in identity_fields(dict(config)).items() if name != "seed"}


def named(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each setting: what tells it apart from the others, the algorithm first.

    Where that takes many words, names of algorithms, schedulers and data must do, and may be the same.
    """
    tables = [flatten(_without_seed(config)) for config in configs]
    words = [_apart(table, tables) for table in tables]
    if any(len(found) > MOST_WORDS for found in words):
        words = [[word for word in found if word[1]] for found in words]
    names = [" · ".join(dict.fromkeys(word for word, _ in found)) for found in words]
    return [name or str(table.get("algorithm.name", "?")) for name, table in zip(names, tables, strict=True)]


def _apart(table: Table, tables: Sequence[Table]) -> list[tuple[str, bool]]:
    """The settings that tell a table apart, in words, each with whether it is a name."""
    words = [(str(table.get("algorithm.name", "?")), True)] if _differs("algorithm.name", tables) else []
    for field, value in table.items():
        scope = _scope(field)
        peers = tables if scope is None else [one for one in tables if one.get(scope) == table.get(scope)]
        if field != "algorithm.name" and _differs(field, peers):
            words.append((_words(field, value), field.rpartition(".")[2] in _NAMING))
    absent = {field.partition(".")[0] for one in tables for field in one} - {field.partition(".")[0] for field in table}
    return words + [(f"no {part}", True) for part in _OPTIONAL if part in absent]


_NAMING = ("name", "dataset", "model")
"""Fields whose value alone says enough."""
_OPTIONAL = ("radio",)
"""Tables that a configuration may lack as a whole."""


def _differs(field: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    return len({str(table.get(field)) for table in tables if field in table}) > 1


def _scope(field: str) -> str | None:
    """The field by whose value this one belongs to a setting: only such settings can differ in it."""
    part = field.partition(".")[0]
    return f"{part}.name" if part in ("algorithm", "scheduler") and field != f"{part}.name" else None


def _words(field: str, value: Any) -> str:
    """A setting in as few words as tell it apart.

    >>> _words("scheduler.name", "dual"), _words("scheduler.relative_v", 0.5), _words("hard_budget", True)
    ('dual', 'relative v 0.5', 'hard budget')
    """
    last = field.rpartition(".")[2]
    name = last.replace("_", " ")
    if last in _NAMING:
        return str(value)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return shortened(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
