"""Accuracy against its cost: rounds, joules, seconds, bits.

Runs that differ in nothing but the seed are one line, their mean, with a band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import shortened
from kfl.report.chart import (
    Chart,
    Figure,
    FloatArray,
    Table,
    axis,
    band,
    figure,
    ink,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.groups import Group, over_seeds
from kfl.report.measures import spent_curves, totals, trail_accuracy
from kfl.report.words import about, between, percent, quantity
from kfl.runfolder import RunData

MOST_POINTS = 600
MOST_IN_LEGEND = 8
"""Groups that a chart's own legend names; of more, the list on top of the page does."""
PERCENT = {"tickformat": ".2~%"}
AXES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rounds": ("Rounds", "round", {}),
    "joules": ("Joules", "energy of all devices", {"si": "J"}),
    "seconds": ("Seconds", "time in the cell", {"si": "s"}),
    "bits": ("Bits", "uploaded by all devices", {"si": "bit"}),
}
SMOOTH = {"smooth": True}


def accuracy_chart(groups: Sequence[Group]) -> Chart:
    """Accuracy of all devices, scheduled or not, against rounds and against everything that was spent."""
    alone = is_alone(groups)
    views = {}
    for unit, (label, title, style) in AXES.items():
        if unit != "rounds" and not any(spent_curves(run)[unit][-1:].sum() > 0 for g in groups for run in g.runs):
            continue
        traces: list[Any] = []
        for group in groups:
            traces += _alone(group, unit) if alone else _together(group, unit)
        views[label] = _over(axis(title, rangemode="tozero", **style), traces, legend=len(groups) <= MOST_IN_LEGEND)
    tested = {run.tested for group in groups for run in group.runs}
    told = about([(group.name, _sentence(group)) for group in groups], _range(groups))
    return Chart(
        "accuracy",
        f"Accuracy of {tested.pop() if len(tested) == 1 else 'all tested devices'}",
        f"{told} {over_seeds(groups)}".strip(),
        views,
        "Accuracy against",
        _table(groups),
        wide=True,
        tall=True,
    )


def is_alone(groups: Sequence[Group]) -> bool:
    """Whether there is one run, not a comparison."""
    return len(groups) == 1 and len(groups[0].runs) == 1


def _over(x: dict[str, Any], traces: list[Any], *, legend: bool = True) -> Figure:
    return figure(traces, x, axis("accuracy", **PERCENT), hovermode="x unified", showlegend=legend)


def _alone(group: Group, unit: str) -> list[Any]:
    """One run with the spread over its devices, and its local-only twin."""
    run = group.run
    x, y = _points(run, unit)
    style: dict[str, Any] = {"hovertemplate": "%{y:.2%}", "meta": SMOOTH}
    traces = [
        *_spread(run, unit, ink(group.index)),
        {**group.line(x, y, line={"width": 2.5}, **style), "legendgroup": ""},
    ]
    if run.twin is not None and run.twin.played:
        x, y = _points(run.twin, unit)
        traces.append(line("training alone", x, y, "@muted", line={"dash": "dash"}, **style))
    return traces


def _together(group: Group, unit: str) -> list[Any]:
    tested = group.bundle(tested_accuracy)
    spent = group.bundle(_spent, unit)
    return group.lines(numbers(spent.mean), tested, limits=(0.0, 1.0), hovertemplate="%{y:.2%}", meta=SMOOTH)


def tested_accuracy(run: RunData) -> tuple[NDArray[np.int64], FloatArray]:
    """The rounds in which a run was tested, thinned, and its accuracy then."""
    tested = np.flatnonzero(np.isfinite(run.rounds.accuracy))
    kept = tested[thinned(len(tested), MOST_POINTS)]
    return kept, run.rounds.accuracy[kept]


def _spent(run: RunData, unit: str) -> tuple[NDArray[np.int64], FloatArray]:
    """The rounds in which a run was tested, and what had been spent by then."""
    kept, _ = tested_accuracy(run)
    return kept, spent_curves(run)[unit][kept]


def _points(run: RunData, unit: str) -> tuple[list[Any], list[Any]]:
    """What had been spent when the run was tested, and its accuracy then."""
    return numbers(_spent(run, unit)[1]), numbers(tested_accuracy(run)[1])


def _spread(run: RunData, unit: str, colour: str) -> list[Any]:
    """Where most devices are, and the worst tenth of them."""
    rounds, accuracy = trail_accuracy(run)
    if len(rounds) < 2:
        return []
    x = numbers(spent_curves(run)[unit][rounds])
    known = np.sort(accuracy[:, np.isfinite(accuracy).all(axis=0)], axis=1)
    low, high = np.quantile(known, (0.1, 0.9), axis=1)
    worst = known[:, : max(1, known.shape[1] // 10)].mean(axis=1)
    return [
        *band("8 of 10 devices", x, numbers(low, 4), numbers(high, 4), colour),
        line("worst tenth of devices", x, numbers(worst, 4), "@c2", line={"dash": "dot"}, hovertemplate="%{y:.2%}"),
    ]


def _range(groups: Sequence[Group]) -> str:
    last = [(_last(group), shortened(group.name)) for group in groups]
    known = [(accuracy, name) for accuracy, name in last if accuracy is not None]
    if not known:
        return "No round has been tested yet."
    return f"Accuracy from {between(known, lambda value: percent(value, 2))}."


def _last(group: Group) -> float | None:
    found = [accuracy for run in group.runs if (accuracy := totals(run).accuracy) is not None]
    return float(np.mean(found)) if found else None


def _sentence(group: Group) -> str:
    accuracy = _last(group)
    if accuracy is None:
        return "no round has been tested yet."
    played = max(run.played for run in group.runs)
    if len(group.runs) > 1:
        return f"{percent(accuracy, 2)} after {played:,} rounds, the mean of {group.seeds}."
    run = group.run
    told = f"{percent(accuracy, 2)} after {played:,} rounds (best {percent(totals(run).best_accuracy, 2)})"
    if run.twin is not None and (alone := totals(run.twin).accuracy) is not None:
        points = 100 * (accuracy - alone)
        told += f", {abs(points):.2f} points {'above' if points >= 0 else 'below'} the same devices training alone"
    return told + "."


def _table(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        tested = group.bundle(tested_accuracy)
        ends = tested.ends()
        units = {unit: group.bundle(_spent, unit).mean for unit in AXES}
        for index in thinned(len(tested.rounds), max(4, 40 // len(groups))):
            costs = [quantity(units[u][index], si) for u, si in (("joules", "J"), ("seconds", "s"), ("bits", "bit"))]
            between_ends = (
                () if not any(len(g.runs) > 2 for g in groups) else (_interval(ends, index, len(group.runs)),)
            )
            rounds = str(tested.rounds[index] + 1)
            rows.append((group.name, rounds, percent(tested.mean[index], 2), *between_ends, *costs))
    interval = ("95\N{NO-BREAK SPACE}% interval",) if any(len(group.runs) > 2 for group in groups) else ()
    return table(("run", "rounds", "accuracy", *interval, "energy", "time", "uploaded"), rows, most=80)


def _interval(ends: tuple[FloatArray, FloatArray] | None, index: int, count: int) -> str:
    if ends is None or count < 3:
        return "–"
    return f"{percent(ends[0][index], 2)} to {percent(ends[1][index], 2)}"
