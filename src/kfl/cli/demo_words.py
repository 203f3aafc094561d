"""What `kfl demo` says: the setting, the table, the plot, what the numbers show, what they do not, what to type next.

Every sentence follows from the numbers, whatever they are. Whether an upload was worth its joules is asked of the best
method that uploads and the best that does not, both chosen after the fact.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kfl.cli.plain_text import PlotLine
from kfl.comparison.records import Record
from kfl.comparison.rows import Row
from kfl.comparison.statistics import Difference, Spread, paired_difference
from kfl.core.text import DASH, bit_count, in_short, quantity
from kfl.experiment import Experiment
from kfl.plots.curves import LABELS, curves_of
from kfl.scheduling import describe

ALONE, TWIN, KNOWLEDGE = "local", "fixed-knowledge", "kfl"
ONE_SEED_TIE = 0.04
"""Accuracies of one seed that are nearer than this are called level: two seeds of one method differ by as much."""

TEXTS = {
    "shared-stem": "uploads updates of the first layers, 4 bits a value",
    KNOWLEDGE: "uploads the mean features of its classes, its knowledge",
    TWIN: "twin of both: their pull, to fixed points; uploads nothing",
    ALONE: "trains alone; uploads nothing",
    "fedavg": "uploads the whole network",
}
"""What each method does, in a few words."""


class Verdict(NamedTuple):
    """How one method compares with another."""

    word: Literal["above", "level", "below"]
    points: float
    """Accuracy of the one minus that of the other, in points."""
    interval: tuple[float, float] | None
    """The 95 % interval of it, in points; none for one seed."""

    @property
    def size(self) -> str:
        """The difference without its sign, and its interval.

        >>> Verdict("below", -3.24, None).size, Verdict("above", 9.0, (7.04, 11.0)).size
        ('3.2 points', '9.0 points [7.0, 11.0]')
        """
        if self.interval is None:
            return f"{abs(self.points):.1f} points"
        ends = sorted((-1 if self.points < 0 else 1) * end for end in self.interval)
        return f"{abs(self.points):.1f} points [{_plain(ends[0])}, {_plain(ends[1])}]"


def introduction(setting: Experiment, radio: str, methods: Iterable[str]) -> list[str]:
    """What is compared, and in which cell."""
    cell, names = setting.cell_config, list(methods)
    if cell is None:
        raise ValueError("the demo needs a cell")
    battery, width = quantity(cell.budget_j_per_round * setting.rounds, "J"), max(map(len, names))
    said = (
        f"{setting.devices} devices, each with {setting.samples_per_device} images of {setting.classes_per_device} "
        f"digits and the same small network. Cell {radio}: a battery of {battery} for each device, "
        f"{quantity(cell.bandwidth_hz, 'Hz')} of band for all, {setting.rounds} rounds of at most "
        f"{quantity(cell.deadline_s, 's')}. Computing and sending drain the battery, and nobody can overdraw it. "
        f"Who takes part in a round, the same scheduler ({setting.scheduler.name}) decides for all:"
    )
    return [*textwrap.wrap(said, 80), "", *(f"  {name:<{width}}  {TEXTS[name]}" for name in names)]


def columns(rows: Sequence[Row], records: Sequence[Record]) -> dict[str, list[str]]:
    """The table: cells by column, one per row."""
    steps = {line["algorithm"]: line["settings"]["local_steps"] for line in records}
    return {
        "method": [row.label for row in rows],
        "accuracy, %": [_percent(row.accuracy) for row in rows],
        f"minus {ALONE}": [_difference(row) for row in rows],
        "worst tenth, %": [f"{100 * row.worst_tenth.mean:.1f}" for row in rows],
        "energy": [quantity(row.energy_j, "J") for row in rows],
        "time": [quantity(row.time_s, "s") for row in rows],
        "uploaded": [bit_count(row.bits_up) for row in rows],
        "rounds × steps": [f"{rounds_each(row, records):.1f} × {steps[row.label]}" for row in rows],
    }


def rounds_each(row: Row, records: Sequence[Record]) -> float:
    """Rounds in which a device took part, on average over devices."""
    return row.devices_per_round * float(records[0]["rounds"] / records[0]["devices"])


def lines_of(records: Sequence[Record]) -> tuple[list[PlotLine], str, str]:
    """Accuracy against the joules of all devices, a line for each method that ran; and the labels of the axes."""
    label, unit = LABELS["joules"]
    lines = [
        PlotLine(f"{curve.name} {curve.mean[-1]:.1f}", curve.x.tolist(), curve.mean.tolist())
        for curve in curves_of(records, "joules")
        if curve.feasible
    ]
    return lines, f"{unit} {label}".replace("energy ", ""), "accuracy, %"


def account(rows: Sequence[Row], records: Sequence[Record]) -> list[str]:
    """What was learnt, what was not, and of how many seeds."""
    return [f"Learnt: {learnt(rows, records)}", f"Not learnt: {not_learnt(rows, records)}", seeds_of(records)]


def learnt(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Whether what was uploaded was worth its joules, and what became of whole networks."""
    able = [row for row in rows if row.feasible]
    sending = [row for row in rows if row.bits_up > 0]
    silent = [row for row in able if row.bits_up == 0]
    if not able:
        return f"no method could run in this cell. {_why(rows[0])}".rstrip()
    if not sending or not silent:
        return f"{_best(able).label} is the best of those that could run." + _stopped(rows, _best(able), records)
    ours, theirs = _best(sending), _best(silent)
    verdict = compare(ours.label, theirs.label, records)
    spent = f"{quantity(ours.energy_j, 'J')} against {quantity(theirs.energy_j, 'J')}"
    if verdict.word == "above":
        said = f"{ours.label} ends {verdict.size} above {theirs.label}, the best that uploads nothing"
        if theirs.label != ALONE and any(row.label == ALONE for row in silent):
            said += f", and {compare(ours.label, ALONE, records).size} above training alone"
        said += f", for {spent}: here its upload is worth the energy."
    elif verdict.word == "below":
        said = f"{theirs.label}, which uploads nothing, ends {verdict.size} above {ours.label}, the best that "
        said += (
            f"uploads, for {quantity(theirs.energy_j, 'J')} against {quantity(ours.energy_j, 'J')}: here the energy "
        )
        said += "is better spent on training."
    else:
        said = f"{ours.label}, the best that uploads, and {theirs.label}, which uploads nothing, are level "
        said += (
            f"({_percent(ours.accuracy)} and {_percent(theirs.accuracy)} %; {spent}): no upload shows its worth here."
        )
    return said + _stopped(rows, ours, records)


def not_learnt(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """What these numbers do not show: that knowledge helps, where its twin does as well; anything beyond this cell."""
    beyond = "how it is in another cell, with other data or other networks."
    named = {row.label: row for row in rows if row.feasible}
    if KNOWLEDGE not in named or TWIN not in named:
        return beyond
    verdict = compare(KNOWLEDGE, TWIN, records)
    if verdict.word == "above":
        return beyond
    where = "is level with it" if verdict.word == "level" else f"ends {verdict.size} above it"
    return f"that {KNOWLEDGE}'s knowledge helps: {TWIN}, the same pull without an upload, {where}. Nor {beyond}"


def seeds_of(records: Sequence[Record]) -> str:
    """How many seeds there are, and what follows from it."""
    seeds = sorted({line["seed"] for line in records})
    if len(seeds) == 1:
        return f"One seed ({seeds[0]}); seeds differ by several points. Five, with intervals: kfl demo --seeds 0..4"
    return (
        f"Seeds {in_short(seeds)}: mean ± standard deviation; differences are paired by seed, with the 95 % interval "
        "of the t-test."
    )


def compare(name: str, other: str, records: Sequence[Record]) -> Verdict:
    """One method against another: by the interval of the paired difference, or of one seed by its size."""
    found = _paired(name, other, records)
    points = 100 * found.mean
    if found.low is None or found.high is None:
        level, interval = abs(found.mean) < ONE_SEED_TIE, None
    else:
        level, interval = not found.clear, (100 * found.low, 100 * found.high)
    return Verdict("level" if level else "above" if points > 0 else "below", points, interval)


def next_commands(folder: Path, setting_file: Path, methods_file: Path) -> list[str]:
    """What to type next."""
    quoted = {name: shlex.quote(str(path)) for name, path in (("runs", folder), ("cell", setting_file))}
    return [
        "Next:",
        f"  kfl report {quoted['runs']} --open",
        "      these runs as a page: who took part, where the joules went",
        f"  kfl compare --config {quoted['cell']} --settings {shlex.quote(str(methods_file))} \\",
        "      --algorithms fedproto,shared-stem,local --seeds 0..2",
        "      another method in this cell; my_module:MyAlgorithm is one of your own",
        "  kfl schedule --example | kfl schedule -",
        "      who sends, with which share and power: devices of your own in a file",
    ]


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.accuracy.mean)


def _paired(name: str, other: str, records: Sequence[Record]) -> Difference:
    by_seed: dict[str, dict[int, float]] = {}
    for line in records:
        by_seed.setdefault(line["algorithm"], {})[line["seed"]] = line["accuracy"]
    found = paired_difference(by_seed[name], by_seed[other])
    if found is None:
        raise ValueError(f"{name} and {other} have no seed in common")
    return found


def _stopped(rows: Sequence[Row], beside: Row, records: Sequence[Record]) -> str:
    """Which methods could not run, and which, by the size of their uploads, ran far less often than one `beside`."""
    told, most = [], rounds_each(beside, records)
    for row in rows:
        taken = rounds_each(row, records)
        if not row.feasible:
            told.append(f" {row.label} could not run: {_why(row)}".rstrip())
        elif row.bits_up > beside.bits_up and taken < 0.6 * most:
            size = bit_count(row.bits_up / (taken * records[0]["devices"]))
            told.append(
                f" {row.label} uploads {size} at a time and got into {taken:.1f} rounds per device, "
                f"{beside.label} into {most:.1f}."
            )
    return "".join(told)


def _why(row: Row) -> str:
    return "" if row.why_nobody is None else describe(row.why_nobody)


def _percent(value: Spread) -> str:
    """In per cent.

    >>> _percent(Spread(0.7912, 0.0131, 5)), _percent(Spread(0.5, None, 1))
    ('79.1 ± 1.3', '50.0')
    """
    return f"{100 * value.mean:.1f}" + ("" if value.deviation is None else f" ± {100 * value.deviation:.1f}")


def _difference(row: Row) -> str:
    found = row.difference
    if not row.feasible:
        return "not feasible"
    if found is None:
        return DASH
    if found.low is None or found.high is None:
        return _signed(100 * found.mean)
    return f"{_signed(100 * found.mean)} [{_signed(100 * found.low)}, {_signed(100 * found.high)}]"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _plain(value: float) -> str:
    return f"{value:.1f}".replace("-", "−")
