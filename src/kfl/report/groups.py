"""Runs that belong together: those that differ in the seed only are one group, with one name and one line.

A folder of `kfl compare` says which run belongs to which label. Without one, runs are grouped by their configuration
without the seed, and a group is named by what tells it apart from the others.

>>> named([{"algorithm": {"name": "kfl"}}, {"algorithm": {"name": "local"}}])
['kfl', 'local']
>>> named([{"algorithm": {"name": "kfl", "pull": 0.1}}, {"algorithm": {"name": "kfl", "pull": 0.5}}])
['pull 0.1', 'pull 0.5']
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kfl.comparison.result import Comparison
from kfl.comparison.statistics import Difference, paired_difference
from kfl.comparison.store import STUDY, planned_runs
from kfl.core.config import Table, flatten
from kfl.core.errors import KflError
from kfl.core.names import shortened
from kfl.core.text import several
from kfl.report.figures import FloatArray, band, chart_label, ink, line, numbers, stroke
from kfl.report.run_data import RunData, read_run
from kfl.runfolder import LOCAL_ONLY, find_runs, is_run_folder

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
        """Return curves, given as rounds and values, where they have rounds in common.

        >>> Bundle.of([(np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0])), (np.array([0, 2]), np.array([3.0, 5.0]))]).mean
        array([2., 4.])
        """
        common = reduce(np.intersect1d, [rounds for rounds, _ in curves])
        rows = [values[np.isin(rounds, common)] for rounds, values in curves]
        return Bundle(common.astype(np.int64), np.stack(rows))

    @property
    def x(self) -> list[int]:
        """The rounds, counted from 1."""
        return [int(number) + 1 for number in self.rounds]

    @property
    def mean(self) -> FloatArray:
        """Over the runs."""
        return np.asarray(self.values.mean(axis=0))

    def ends(self) -> tuple[FloatArray, FloatArray] | None:
        """Return the 95 % interval of the mean at each point; of two runs, too few for one, the two; None of one."""
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
    """Its place on the page, which gives it color and dashes."""

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

    def mean(self, measure: Callable[[RunData], float]) -> float:
        """Return a number averaged over the runs."""
        return float(np.mean([measure(run) for run in self.runs]))

    @property
    def accuracy(self) -> float | None:
        """Accuracy when last tested, averaged over the runs; None where none was tested."""
        found = [run.last_accuracy for run in self.runs if run.last_accuracy is not None]
        return float(np.mean(found)) if found else None

    def bundle(self, curve: Callable[..., tuple[NDArray[Any], FloatArray]], *which: object) -> Bundle:
        """Return a curve of each run; `which` is handed on to `curve`."""
        return Bundle.of([curve(run, *which) for run in self.runs])

    def line(self, x: Sequence[Any], y: Sequence[Any], **more: Any) -> dict[str, Any]:
        """Return a line in its color and dashes; the page hides it with its group."""
        style = {**stroke(self.index), **more.pop("line", {})}
        more = {"name": self.label, "legendgroup": self.label, **more}
        meta = {"group": self.index, **more.pop("meta", {})}
        return line(more.pop("name"), x, y, ink(self.index), line=style, meta=meta, **more)

    def lines(
        self, x: Sequence[Any], found: Bundle, *, limits: tuple[float, float] | None = None, **more: Any
    ) -> list[Any]:
        """Return the mean with its band over seeds, which may not leave `limits`."""
        mean = self.line(x, numbers(found.mean), **more)
        if (ends := found.ends()) is None:
            return [mean]
        low, high = ends if limits is None else (np.clip(end, *limits) for end in ends)
        drawn = band(self.label, x, numbers(low), numbers(high), ink(self.index))
        return [*({**edge, "meta": mean["meta"], "showlegend": False} for edge in drawn), mean]


@dataclass(frozen=True)
class PageGroups:
    """The groups of a page, the one that the others are compared with, and the run that is shown in detail."""

    groups: tuple[Group, ...]
    reference: Group
    detailed: RunData | None = None
    fairness: tuple[str, ...] = ()
    """What was equal in all of several groups, in a line each what was not, and what the comparison says."""

    @property
    def runs(self) -> list[RunData]:
        """Every run once."""
        return list({run.path: run for group in self.groups for run in group.runs}.values())

    @property
    def seeded(self) -> bool:
        """Whether any group has several seeds."""
        return any(len(group.runs) > 1 for group in self.groups)


def is_alone(groups: Sequence[Group]) -> bool:
    """Return whether there is one run, not a comparison."""
    return len(groups) == 1 and len(groups[0].runs) == 1


def over_seeds(groups: Sequence[Group]) -> str:
    """Return what the bands of a chart are, in words; empty where there are none."""
    counts = {len(group.runs) for group in groups} - {1}
    if not counts:
        return ""
    if counts == {2}:
        return "Lines are means over 2 seeds, bands reach from one to the other."
    most = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return f"Lines are means over {most} seeds, bands their 95\N{NO-BREAK SPACE}% intervals."


def difference(ours: Group, theirs: Group) -> Difference | None:
    """Return the accuracy of ours minus theirs, paired by seed, with the interval of the paired t-test."""

    def by_seed(group: Group) -> dict[int, float]:
        return {run.seed: run.last_accuracy for run in group.runs if run.last_accuracy is not None}

    return paired_difference(by_seed(ours), by_seed(theirs))


def told_apart(gap: Difference | None, unit: str = "\N{NO-BREAK SPACE}points") -> str:
    """Return a difference of accuracies in words, a tie as a tie.

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


# ── Which runs belong together ───────────────────────────────────────────────


def read_groups(paths: Sequence[Path]) -> PageGroups:
    """Read the runs of folders, or of folders of run folders, in groups.

    One run alone is shown in detail. A run folder of an earlier version may hold the same devices training alone,
    which is a second run on its page.
    """
    maps = {path: found for path in paths if not is_run_folder(path) and (found := planned_runs(path)) is not None}
    labeled: dict[str, list[RunData]] = {}
    plain: list[RunData] = []
    known: dict[Path, RunData] = {}
    reference = ""
    for path in paths:
        if path not in maps:
            plain += [known.setdefault(one, read_run(one)) for one in find_runs([path]) if one not in known]
            continue
        entries, chosen = maps[path]
        for label, folders in entries.items():
            name = f"{path.resolve().name}: {label}" if len(maps) > 1 else label
            reference = reference or (name if label == chosen else "")
            for folder in folders:
                known[folder] = known[folder] if folder in known else read_run(folder)
                labeled.setdefault(name, []).append(known[folder])
    single = plain[0] if len(known) == 1 and plain else None
    if single is not None and is_run_folder(single.path / LOCAL_ONLY):
        plain += _readable(single.path / LOCAL_ONLY)
    groups = [Group(label, tuple(runs)) for label, runs in labeled.items()]
    compared = None
    if len(maps) == 1 and not plain:
        with suppress(KflError):
            compared = Comparison.load(next(iter(maps)))
    if compared is not None:
        groups = _as_in_its_table(groups, compared)
    page = replace(_arranged([*groups, *_by_setting(plain)], reference), detailed=single)
    return replace(page, fairness=fairness_of(page.groups, compared))


def fairness_of(groups: Sequence[Group], compared: Comparison | None) -> tuple[str, ...]:
    """Return what was equal in all groups, what was not, and the conclusion: of a comparison as it recorded it."""
    if compared is not None and compared.records:
        return (*compared.equal, *compared.unequal, *compared.conclusion)
    if len(groups) < 2:
        return ()
    compared = Comparison(tuple(_record(run, group.name) for group in groups for run in group.runs if run.played))
    return (*compared.equal, *compared.unequal)


def _as_in_its_table(groups: Sequence[Group], compared: Comparison) -> list[Group]:
    """Groups in the order of the rows that the terminal shows."""
    tables = compared.tables() if len(compared.conditions) == 1 else []
    order = next((next(iter(table.cells.values())) for table in tables), [])
    return sorted(groups, key=lambda group: order.index(group.name) if group.name in order else len(order))


def _record(run: RunData, label: str) -> dict[str, Any]:
    """A run, finished or not, as a comparison keeps it."""
    algorithm, scheduler = ({**_table(run.config.get(part))} for part in ("algorithm", "scheduler"))
    widths = run.config.get("widths")
    diverged = sum(one.kind == "diverged" for one in run.rounds.incidents)
    return {
        "label": label,
        "algorithm": algorithm.pop("name", "?"),
        "settings": algorithm,
        "seed": run.seed,
        "dataset": run.dataset,
        "devices": run.devices,
        "rounds": run.played,
        "model": run.config.get("model"),
        "widths": widths if isinstance(widths, list) else (),
        "scheduler": scheduler.pop("name", "?"),
        "scheduler_settings": scheduler,
        "radio": run.cell is not None,
        "hard_budget": bool(run.config.get("hard_budget")),
        "note": "",
        "accuracy": run.last_accuracy or 0.0,
        "worst_tenth": 0.0,
        "energy_j": run.energy_j,
        "time_s": run.time_s,
        "bits_up": run.bits_up,
        "devices_per_round": run.uploads / run.played,
        "rounds_with_nobody": 0,
        "devices_over_budget": run.over_budget,
        "devices_never_chosen": 0,
        "why_nobody": None,
        "curve": {"rounds": [], "accuracy": [], "joules": []},
        **({"diverged": diverged} if diverged else {}),
    }


def _table(part: object) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else {"name": part or "?"}


def _readable(path: Path) -> list[RunData]:
    try:
        return [read_run(path)]
    except KflError:
        return []  # the run itself is what was asked for


def group_runs(runs: Sequence[RunData]) -> PageGroups:
    """Return runs grouped by their configuration without the seed."""
    return replace(_arranged(_by_setting(runs), ""), detailed=runs[0] if len(runs) == 1 else None)


def _arranged(groups: Sequence[Group], reference: str) -> PageGroups:
    placed = tuple(replace(group, index=index) for index, group in enumerate(groups))
    chosen = [group for group in placed if group.name == reference]
    chosen += [group for group in placed if group.run.algorithm == "local"]
    return PageGroups(placed, [*chosen, *placed][0])


def _by_setting(runs: Sequence[RunData]) -> list[Group]:
    """Groups in the order of the runs; a second run with the same seed is a group of its own."""
    settings: dict[tuple[str, int], list[RunData]] = {}
    for run in runs:
        key = json.dumps(run.setting, sort_keys=True, default=str)
        copy = 0
        while any(other.seed == run.seed for other in settings.get((key, copy), [])):
            copy += 1
        settings.setdefault((key, copy), []).append(run)
    groups = [sorted(found, key=lambda run: run.seed) for found in settings.values()]
    names = named([found[0].setting for found in groups])
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


def named(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each setting: what tells it apart from the others, the algorithm first.

    Where that takes many words, names of algorithms, schedulers and data must do, and may be the same.
    """
    tables = [flatten(dict(setting)) for setting in settings]
    words = [_apart(table, tables) for table in tables]
    if any(len(found) > MOST_WORDS for found in words):
        words = [[word for word in found if word[1]] for found in words]
    names = [" · ".join(dict.fromkeys(word for word, _ in found)) for found in words]
    return [name or str(table.get("algorithm.name", "?")) for name, table in zip(names, tables, strict=True)]


def _apart(table: Table, tables: Sequence[Table]) -> list[tuple[str, bool]]:
    """The settings that tell a table apart, in words, each with whether it is a name."""
    words = [(str(table.get("algorithm.name", "?")), True)] if _differs("algorithm.name", tables) else []
    for name, value in table.items():
        # Only settings of the same algorithm or scheduler can differ in its fields.
        part, last = name.partition(".")[0], name.rpartition(".")[2]
        scope = f"{part}.name" if part in ("algorithm", "scheduler") and name != f"{part}.name" else None
        peers = tables if scope is None else [one for one in tables if one.get(scope) == table.get(scope)]
        if name != "algorithm.name" and _differs(name, peers):
            words.append((_words(name, value), last in _NAMING))
    absent = {name.partition(".")[0] for one in tables for name in one} - {name.partition(".")[0] for name in table}
    return words + [(f"no {part}", True) for part in _OPTIONAL if part in absent]


_NAMING = ("name", "dataset", "model")
"""Fields whose value alone says enough."""
_OPTIONAL = ("radio",)
"""Tables that a configuration may lack as a whole."""


def _differs(name: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    return len({str(table.get(name)) for table in tables if name in table}) > 1


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
