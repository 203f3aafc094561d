"""The top of a page about several runs: what was compared, who is ahead and who is not, one row for each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kfl.core.config import differences
from kfl.core.text import DASH, several, shortened
from kfl.experiment import identity_fields
from kfl.report.chart import Table
from kfl.report.charts_devices import group_fairness
from kfl.report.groups import Bundle, Comparison, Group, difference, seed_of, told_apart
from kfl.report.measures import totals
from kfl.report.overview import state_of
from kfl.report.words import duration, listed, percent, quantity
from kfl.runfolder import RunData

MOST_NAMES = 4
"""Groups that a title names,"""
LONGEST = 60
"""if their names are not longer than this together."""


def title(comparison: Comparison) -> str:
    """What was compared.

    The setting is named as far as all runs have it in common.
    """
    groups, runs = comparison.groups, comparison.runs
    names = listed([group.name for group in groups])
    told = names if len(groups) <= MOST_NAMES and len(names) <= LONGEST else f"{len(groups)} settings"
    if len({run.dataset for run in runs}) == 1:
        told += f" on {shortened(runs[0].dataset)}"
    sizes = [several(count, noun) for noun in ("device", "round") if (count := _common(runs, noun)) is not None]
    counts = {len(group.runs) for group in groups}
    sizes.append(several(counts.pop(), "seed") if len(counts) == 1 else f"{len(runs)} runs")
    return f"{told}: {', '.join(sizes)}"


def _common(runs: Sequence[RunData], noun: str) -> int | None:
    found = {run.devices if noun == "device" else run.planned for run in runs}
    return found.pop() if len(found) == 1 else None


def accuracy_of(run: RunData) -> float | None:
    """Accuracy of a run when last tested."""
    return totals(run).accuracy


def sentence(comparison: Comparison) -> str:
    """Who is ahead, and who cannot be told apart from it."""
    tested = [group for group in comparison.groups if all(accuracy_of(run) is not None for run in group.runs)]
    if not tested:
        return "No round has been tested yet."
    tested = [group for group in tested if all(run.finished for run in group.runs)] or tested
    best = max(tested, key=_mean)
    gaps = [(group, difference(best, group, accuracy_of)) for group in tested if group is not best]
    ties = [group for group, gap in gaps if gap is not None and not gap.clear and (gap.count > 1 or not gap.mean)]
    if ties:
        first = [group for group in comparison.groups if group is best or group in ties]
        reached = listed(list(dict.fromkeys(percent(_mean(group), 2) for group in first)))
        told = f"{listed([group.name for group in first])} tie at the top, with {reached}: "
        told += "these seeds do not tell them apart." if comparison.seeded else "they are equal."
    else:
        told = f"{best.name} has the highest accuracy, {percent(_mean(best), 2)}."
    if any(gap is not None and gap.count == 1 and gap.mean for _, gap in gaps):
        told += " One seed says little: with others the order may change."
    spent = [group for group in tested if _energy(group) > 0]
    if len(spent) > 1:
        least = min(_energy(group) for group in spent)
        thrifty = [group.name for group in spent if _energy(group) <= 1.005 * least]
        if len(thrifty) == len(spent):
            told += f" All spent the same energy, {quantity(least, 'J')}."
        else:
            told += f" {listed(thrifty)} spent the least energy, {quantity(least, 'J')}."
    idle = [group.name for group in comparison.groups if not any(len(run.rounds.device) for run in group.runs)]
    return told + (f" Nobody took part in any round of {listed(idle)}." if idle else "")


def _mean(group: Group) -> float:
    return group.mean(lambda run: totals(run).accuracy or 0.0)


def _energy(group: Group) -> float:
    return group.mean(lambda run: totals(run).energy_j)


def overview(comparison: Comparison) -> Table:
    """One row for each group; numbers are means over its seeds."""
    groups, reference = comparison.groups, comparison.reference
    finished = all(run.finished for run in comparison.runs)
    radio = any(run.cell is not None for run in comparison.runs)
    over = any(totals(run).over_budget for run in comparison.runs)
    same = len({_seeds(group) for group in groups}) == 1
    rows = []
    for group in groups:
        fair = group_fairness(group)
        row = [group.name, *([] if same else [_seeds(group)]), *([] if finished else [_state(group)]), _accuracy(group)]
        if len(groups) > 1:
            gap = None if group is reference else difference(group, reference, accuracy_of)
            row.append(DASH if group is reference else told_apart(gap, unit=""))
        row.append(percent(None if fair is None else fair.worst_tenth))
        has_radio = group.run.cell is not None
        if radio:
            row.append(quantity(_energy(group), "J") if has_radio else DASH)
            row.append(duration(group.mean(lambda run: totals(run).time_s)) if has_radio else DASH)
        if over:
            row.append(f"{group.mean(lambda run: totals(run).over_budget):.3g}")
        row.append(quantity(group.mean(lambda run: totals(run).bits_up), "bit"))
        row.append(f"{group.mean(lambda run: len(run.rounds.device) / max(run.played, 1)):,.3g}")
        rows.append(tuple(row))
    columns = ["run", *([] if same else ["seeds"]), *([] if finished else ["state"]), "accuracy"]
    columns += [f"minus {reference.name}, points"] if len(groups) > 1 else []
    columns += ["worst tenth", *(["energy", "time"] if radio else [])]
    columns += [*(["over budget"] if over else []), "uploaded", "devices a round"]
    note = f"Every run with seed {_seeds(groups[0])}." if same and not comparison.seeded else ""
    if any(len(group.runs) > 2 for group in groups):
        of = f"seeds {_seeds(groups[0])}" if same else "seeds"
        note = (
            f"Means over {of}. Brackets: 95\N{NO-BREAK SPACE}% interval; differences are paired by seed, and one whose "
            "interval holds 0 is a tie."
        )
    return Table(tuple(columns), tuple(rows), note, groups=tuple(group.index for group in groups))


def _seeds(group: Group) -> str:
    found = sorted(seed_of(run) for run in group.runs)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}–{found[-1]}"
    return ", ".join(map(str, found)) if len(found) <= MOST_NAMES else f"{len(found)} seeds"


def _state(group: Group) -> str:
    if len(group.runs) == 1:
        return state_of(group.run)
    return f"{sum(run.finished for run in group.runs)} of {several(len(group.runs), 'run')} finished"


def _accuracy(group: Group) -> str:
    found = [accuracy for run in group.runs if (accuracy := accuracy_of(run)) is not None]
    if not found:
        return DASH
    told = percent(float(np.mean(found)), 2)
    ends = Bundle.of([(np.zeros(1), np.array([one])) for one in found]).ends()
    if ends is None or len(found) < 3:
        return told
    return f"{told} [{100 * ends[0][0]:.2f}, {100 * ends[1][0]:.2f}]"


def what_differs(comparison: Comparison) -> Table:
    """How each configuration differs from the reference's, apart from the seed."""
    first = _plain(comparison.reference.run)
    rows = []
    for group in comparison.groups:
        changed = [line for line in differences(first, _plain(group.run)) if len(line) < 300]
        # Settings that only one of two algorithms has say no more than the algorithm's name.
        changed = [line for line in changed if "(absent)" not in line] or changed
        same = "the others are compared with it" if group is comparison.reference else "the same configuration"
        rows.append((group.name, "; ".join(changed) or same))
    return Table(("run", "configuration"), tuple(rows), groups=tuple(group.index for group in comparison.groups))


def _plain(run: RunData) -> dict[str, object]:
    return {name: value for name, value in identity_fields(run.config).items() if name != "seed"}
