"""Accuracy against its cost (rounds, joules, seconds, bits), and accuracy of single devices.

Devices are shown from the worst to the best, with how evenly accuracy is spread, at the end and on the way.
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
    ShownRun,
    Table,
    axis,
    band,
    dashed,
    figure,
    ink,
    line,
    note,
    numbers,
    table,
    thinned,
)
from kfl.report.measures import Fairness, fairness, spent_curves, totals, trail_accuracy
from kfl.report.words import about, between, percent, quantity
from kfl.runfolder import RunData

MOST_POINTS = 600
AXES = {
    "rounds": ("Rounds", "round", {}),
    "joules": ("Joules", "energy of all devices, J", {"tickformat": "~s"}),
    "seconds": ("Seconds", "time in the cell, s", {"tickformat": "~s"}),
    "bits": ("Bits", "bits uploaded by all devices", {"tickformat": "~s"}),
}


def accuracy_chart(runs: Sequence[ShownRun]) -> Chart:
    """Accuracy of all devices, scheduled or not, against rounds and against everything that was spent."""
    views = {}
    for unit, (label, title, style) in AXES.items():
        if unit != "rounds" and not any(spent_curves(shown.run)[unit][-1:].sum() > 0 for shown in runs):
            continue
        traces: list[Any] = []
        for shown in runs:
            traces += _traces(shown, unit, alone=len(runs) == 1)
        views[label] = _over(axis(title, rangemode="tozero", **style), traces)
    tested = {shown.run.tested for shown in runs}
    return Chart(
        "accuracy",
        f"Accuracy of {tested.pop() if len(tested) == 1 else 'all tested devices'}",
        about([(shown.name, _sentence(shown.run)) for shown in runs], _range(runs)),
        views,
        "Accuracy against",
        _table(runs),
        wide=True,
        tall=True,
    )


def _over(x: dict[str, Any], traces: list[Any]) -> Figure:
    return figure(traces, x, axis("accuracy", tickformat=".0%"), hovermode="x unified")


def _traces(shown: ShownRun, unit: str, *, alone: bool) -> list[Any]:
    run = shown.run
    traces = _spread(run, unit, ink(shown.colour)) if alone else []
    traces.append(shown.line(*_points(run, unit), line={"width": 2.5 if alone else 2}, hovertemplate="%{y:.2%}"))
    if alone and run.twin is not None and run.twin.played:
        x, y = _points(run.twin, unit)
        dash = {"dash": "dash"}
        traces.append(line("nothing shared (local-only)", x, y, "@muted", line=dash, hovertemplate="%{y:.2%}"))
    return traces


def _points(run: RunData, unit: str) -> tuple[list[Any], list[Any]]:
    """What had been spent when the run was tested, and its accuracy then."""
    tested = np.flatnonzero(np.isfinite(run.rounds.accuracy))
    kept = tested[thinned(len(tested), MOST_POINTS)]
    return numbers(spent_curves(run)[unit][kept]), numbers(run.rounds.accuracy[kept])


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


def _range(runs: Sequence[ShownRun]) -> str:
    last = [(totals(shown.run).accuracy, shortened(shown.name)) for shown in runs]
    known = [(accuracy, name) for accuracy, name in last if accuracy is not None]
    if not known:
        return "No round has been tested yet."
    return f"Accuracy from {between(known, lambda value: percent(value, 2))}."


def _sentence(run: RunData) -> str:
    sums = totals(run)
    if sums.accuracy is None:
        return "no round has been tested yet."
    told = f"{percent(sums.accuracy, 2)} after {run.played:,} rounds (best {percent(sums.best_accuracy, 2)})"
    if run.twin is not None and (alone := totals(run.twin).accuracy) is not None:
        points = 100 * (sums.accuracy - alone)
        told += f", {abs(points):.2f} points {'above' if points >= 0 else 'below'} the same devices with nothing shared"
    return told + "."


def _table(runs: Sequence[ShownRun]) -> Table:
    rows = []
    for shown in runs:
        accuracy, spent = shown.run.rounds.accuracy, spent_curves(shown.run)
        tested = np.flatnonzero(np.isfinite(accuracy))
        for index in tested[thinned(len(tested), max(4, 40 // len(runs)))]:
            costs = [
                quantity(spent[unit][index], si) for unit, si in (("joules", "J"), ("seconds", "s"), ("bits", "bit"))
            ]
            rows.append((shown.name, str(index + 1), percent(accuracy[index], 2), *costs))
    return table(("run", "rounds", "accuracy", "energy", "time", "uploaded"), rows, most=80)


MOST_DEVICE_POINTS = 500
BINS = 25


def distribution_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """Every device's accuracy, sorted, and for one run how many devices have which."""
    known = [np.sort(shown.run.accuracy[np.isfinite(shown.run.accuracy)]) for shown in runs]
    if not any(values.size for values in known):
        return None
    traces = []
    for shown, values in zip(runs, known, strict=True):
        kept = thinned(values.size, MOST_DEVICE_POINTS)
        share = (kept + 0.5) / max(values.size, 1)
        shape = {"shape": "hvh" if values.size <= MOST_DEVICE_POINTS else "linear"}
        traces.append(shown.line(numbers(share, 4), numbers(values[kept], 4), line=shape, hovertemplate="%{y:.1%}"))
    worst = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": 0.1, "y0": 0, "y1": 1}
    label = {"xref": "x", "x": 0.05, "yref": "paper", "y": 1, "yanchor": "top", "textangle": -90}
    font = {"color": "@c2", "size": 12}
    views = {
        "Sorted": figure(
            traces,
            axis("devices, from the worst to the best", tickformat=".0%", range=[0, 1]),
            axis("accuracy", tickformat=".0%"),
            shapes=[{**worst, "line": {"width": 0}, "fillcolor": "@c2/0.1", "layer": "below"}],
            annotations=[note("worst tenth", "@c2", font=font, **label)],
            showlegend=len(runs) > 1,
        )
    }
    if len(runs) == 1:
        views["Histogram"] = _histogram(known[0])
    return Chart(
        "devices",
        "Accuracy of each device",
        about([(shown.name, _fairness(shown.run)) for shown in runs], _device_range(runs)),
        views,
        "Accuracy of each device, shown",
        _fairness_table(runs),
    )


def _histogram(values: FloatArray) -> Figure:
    low = min(float(values.min()), 0.95)
    counts, edges = np.histogram(values, bins=BINS, range=(low, 1.0))
    found = fairness(values)
    marks = [] if found is None else [("mean", found.mean, "@ink"), ("worst tenth", found.worst_tenth, "@c2")]
    lines = [dashed(shade, yref="paper", x0=x, x1=x, y0=0, y1=1) for _, x, shade in marks]
    corner = {"yref": "paper", "y": 1, "xanchor": "right", "yanchor": "top", "xshift": -4}
    notes = [
        note(f"{label} {percent(x)}", shade, x=x, yshift=-18 * index, **corner)
        for index, (label, x, shade) in enumerate(marks)
    ]
    bars = {
        "type": "bar",
        "x": numbers((edges[:-1] + edges[1:]) / 2, 4),
        "y": counts.tolist(),
        "width": numbers(np.diff(edges) * 0.92, 4),
        "marker": {"color": "@c1"},
        "hovertemplate": "%{y} devices at %{x:.1%}<extra></extra>",
    }
    x, y = axis("accuracy", tickformat=".0%"), axis("devices")
    return figure([bars], x, y, shapes=lines, annotations=notes, hovermode="closest", showlegend=False)


def _device_range(runs: Sequence[ShownRun]) -> str:
    found = [(fairness(shown.run.accuracy), shortened(shown.name)) for shown in runs]
    known = [(one.worst_tenth, name) for one, name in found if one is not None]
    return f"The worst tenth of the devices is right in {between(known, percent)} of its tests."


def _fairness(run: RunData) -> str:
    found = fairness(run.accuracy)
    if found is None:
        return "accuracies of single devices are not known yet."
    return (
        f"the worst tenth of the devices is right in {percent(found.worst_tenth)} of its tests, the mean device in "
        f"{percent(found.mean)}; Jain's index is {found.jain:.4f} and the standard deviation "
        f"{100 * found.deviation:.1f} points."
    )


def _fairness_table(runs: Sequence[ShownRun]) -> Table:
    rows = []
    for shown in runs:
        found = fairness(shown.run.accuracy)
        if found is not None:
            shares = (found.worst, found.worst_tenth, found.mean, found.best, found.deviation)
            rows.append((shown.name, f"{found.devices:,}", *(percent(share) for share in shares), f"{found.jain:.4f}"))
    columns = ("run", "devices tested", "worst", "worst tenth", "mean", "best", "standard deviation", "Jain's index")
    return table(columns, rows)


def fairness_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """How the spread over devices changed on the way, from the trails."""
    trails = [_trail(shown.run) for shown in runs]
    if not any(len(trail) >= 2 for trail in trails):
        return None
    views = {}
    if len(runs) == 1:
        views["Spread"] = _fan(*trail_accuracy(runs[0].run))
    for label, what, style in (("Worst tenth", "worst_tenth", ".0%"), ("Jain's index", "jain", ".3f")):
        traces = [
            shown.line(list(trail), numbers([getattr(one, what) for one in trail.values()]))
            for shown, trail in zip(runs, trails, strict=True)
        ]
        y = axis(label.lower(), tickformat=style)
        views[label] = figure(traces, axis("round"), y, showlegend=len(runs) > 1, hovermode="x unified")
    rows, told = [], []
    for shown, trail in zip(runs, trails, strict=True):
        for rounds, one in trail.items():
            shares = (percent(one.worst_tenth), percent(one.mean), percent(one.best))
            rows.append((shown.name, str(rounds), *shares, f"{one.jain:.4f}"))
        if trail:
            first, last = trail[min(trail)], trail[max(trail)]
            told.append(f"the worst tenth went from {percent(first.worst_tenth)} to {percent(last.worst_tenth)}")
    summary = f"Over the rounds {told[0]}." if len(told) == 1 else "The spread over devices as the runs went on."
    columns = ("run", "rounds", "worst tenth", "mean", "best", "Jain's index")
    return Chart("fairness", "Fairness over rounds", summary, views, "Shown over rounds", table(columns, rows))


def _trail(run: RunData) -> dict[int, Fairness]:
    """Fairness by the number of rounds played."""
    found = {int(number) + 1: fairness(row) for number, row in zip(*trail_accuracy(run), strict=True)}
    return {rounds: one for rounds, one in found.items() if one is not None}


def _fan(rounds: NDArray[np.int64], accuracy: FloatArray) -> Figure:
    known = accuracy[:, np.isfinite(accuracy).all(axis=0)]
    x = [int(number) + 1 for number in rounds]
    low, lower, middle, upper, high = (
        numbers(row, 4) for row in np.quantile(known, (0.0, 0.25, 0.5, 0.75, 1.0), axis=1)
    )
    traces = [
        *band("all devices", x, low, high, "@c1"),
        *band("middle half", x, lower, upper, "@c1"),
        line("median device", x, middle, "@c1", hovertemplate="%{y:.1%}"),
    ]
    return _over(axis("round"), traces)
