"""What the runs of `kfl demo` show and what they do not, in sentences that follow from the numbers.

Whether an upload was worth its joules is asked of the best method that uploads and the best that does not, both chosen
after the fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from kfl.comparison.fairness import unequal
from kfl.comparison.presets import demo_tuning
from kfl.comparison.records import Record, label_of
from kfl.comparison.rows import Row, summarise_rows
from kfl.comparison.statistics import paired_difference
from kfl.core.text import bit_count, in_short, quantity
from kfl.scheduling.status import describe

ALONE, TWIN, KNOWLEDGE = "local", "fixed-knowledge", "kfl"
ONE_SEED_TIE = 4.0
"""Accuracies of one seed that are nearer than these points are called level: two seeds of one method differ by as
much."""


class Verdict(NamedTuple):
    """How one method compares with another."""

    word: Literal["above", "level", "below"]
    size: str
    """The difference in points without its sign, and its interval where there are several seeds."""


def rounds_each(row: Row, records: Sequence[Record]) -> float:
    """Rounds in which a device took part, on average over devices."""
    return row.devices_per_round * float(records[0]["rounds"] / records[0]["devices"])


def account(records: Sequence[Record]) -> list[str]:
    """Return what the runs show, what they do not show, and what to take away with how sure it is."""
    rows = summarise_rows(records, ALONE)
    return [
        f"Findings: {findings(rows, records)}",
        f"Not shown: {not_shown(rows, records)}",
        f"Conclusion: {conclusion(rows, records)} {seeds_of(records)}".replace("  ", " "),
    ]


def not_equal(records: Sequence[Record]) -> str:
    """What was not equal for the methods, in a sentence each."""
    rows = summarise_rows(records, ALONE)
    return f"Not equal: {' '.join(unequal(rows, records, tuned=demo_tuning(), kind='algorithm'))}"


def findings(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Whether what was uploaded was worth its joules, and what became of whole networks."""
    able = [row for row in rows if row.feasible]
    sending = [row for row in rows if row.bits_up > 0]
    silent = [row for row in able if row.bits_up == 0]
    if not able:
        return f"no method could run in this cell. {_why(rows[0])}".rstrip()
    if not sending or not silent:
        return f"{_best(able).label} is the best of those that could run." + _stopped(rows, _best(able), records)
    ours, theirs = _best(sending), _best(silent)
    verdict = verdict_of(ours.label, theirs.label, records)
    spent = f"{quantity(ours.energy_j, 'J')} against {quantity(theirs.energy_j, 'J')}"
    if verdict.word == "above":
        said = f"{ours.label} ends {verdict.size} above {theirs.label}, the best that uploads nothing"
        if theirs.label != ALONE and any(row.label == ALONE for row in silent):
            said += f", and {verdict_of(ours.label, ALONE, records).size} above training alone"
        said += f", for {spent}: here its upload is worth the energy."
    elif verdict.word == "below":
        said = f"{theirs.label}, which uploads nothing, ends {verdict.size} above {ours.label}, the best that "
        said += (
            f"uploads, for {quantity(theirs.energy_j, 'J')} against {quantity(ours.energy_j, 'J')}: here the energy "
        )
        said += "is better spent on training."
    else:
        said = f"{ours.label}, the best that uploads, and {theirs.label}, which uploads nothing, are level "
        said += f"({ours.accuracy.text(1)} and {theirs.accuracy.text(1)} %; {spent}): no upload shows its worth here."
    return said + _stopped(rows, ours, records)


def not_shown(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """What these numbers do not show: that knowledge helps, where its twin does as well; anything beyond this cell."""
    beyond = "how it is in another cell, with other data or other networks."
    named = {row.label: row for row in rows if row.feasible}
    if KNOWLEDGE not in named or TWIN not in named:
        return beyond
    verdict = verdict_of(KNOWLEDGE, TWIN, records)
    if verdict.word == "above":
        return beyond
    where = "is level with it" if verdict.word == "level" else f"ends {verdict.size} above it"
    return f"that {KNOWLEDGE}'s knowledge helps: {TWIN}, the same pull without an upload, {where}. Nor {beyond}"


def seeds_of(records: Sequence[Record]) -> str:
    """Return how many seeds there are, and how sure that makes a difference."""
    seeds = sorted({line["seed"] for line in records})
    if len(seeds) == 1:
        return f"One seed ({seeds[0]}), and seeds differ by several points; with intervals: kfl demo --seeds 0..4"
    return (
        f"Seeds {in_short(seeds)}: mean ± standard deviation; differences are paired by seed, with the 95 % interval "
        "of the t-test."
    )


def conclusion(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Return one sentence to take away; empty where there is nothing to compare."""
    sending = [row for row in rows if row.bits_up > 0]
    silent = [row for row in rows if row.feasible and row.bits_up == 0]
    if not sending or not silent:
        return ""
    ours, theirs = _best(sending), _best(silent)
    verdict = verdict_of(ours.label, theirs.label, records)
    if verdict.word == "above":
        size = bit_count(ours.bits_up / records[0]["devices"])
        return f"in this cell {size} uploaded per device gain {verdict.size} over the best method without uploads."
    gain = "no measurable accuracy" if verdict.word == "level" else "nothing"
    return f"in this cell uploads gain {gain} over training with {theirs.label}, which uploads nothing."


def verdict_of(name: str, other: str, records: Sequence[Record]) -> Verdict:
    """One method against another: by the interval of the paired difference, or of one seed by its size."""
    first, second = (
        {line["seed"]: 100 * line["accuracy"] for line in records if label_of(line) == one} for one in (name, other)
    )
    found = paired_difference(first, second)
    if found is None:
        raise ValueError(f"{name} and {other} have no seed in common")
    size = f"{abs(found.mean):.1f} points"
    level = abs(found.mean) < ONE_SEED_TIE
    if found.low is not None and found.high is not None:
        low, high = sorted((-1 if found.mean < 0 else 1) * end for end in (found.low, found.high))
        size, level = f"{size} [{low:.1f}, {high:.1f}]".replace("-", "−"), not found.clear
    return Verdict("level" if level else "above" if found.mean > 0 else "below", size)


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.accuracy.mean)


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
