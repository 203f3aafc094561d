"""Accuracy of single devices: from the worst to the best, and how evenly it is spread, at the end and on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    dashed,
    figure,
    line,
    note,
    numbers,
    table,
    thinned,
)
from kfl.report.charts_accuracy import MOST_IN_LEGEND, PERCENT, SMOOTH, is_alone
from kfl.report.groups import Group, over_seeds
from kfl.report.measures import Fairness, fairness, trail_accuracy
from kfl.report.words import about, between, percent
from kfl.runfolder import RunData

MOST_DEVICE_POINTS = 500
BINS = 25


def sorted_curve(group: Group, values: Callable[[RunData], FloatArray], most: int) -> tuple[FloatArray, FloatArray]:
    """Devices from first to last as a share of all, and their values, sorted; averaged over the runs of a group."""
    found = [values(run) for run in group.runs]
    size = min(len(one) for one in found)
    kept = thinned(size, most)
    share = (kept + 0.5) / max(size, 1)
    if len(found) == 1 or not size:
        return share, found[0][kept] if size else np.empty(0)
    rows = [np.interp(share, (np.arange(len(one)) + 0.5) / len(one), one) for one in found]
    return share, np.asarray(np.mean(rows, axis=0))


def known_accuracy(run: RunData) -> FloatArray:
    """Accuracies of the devices that were tested, from the worst to the best."""
    return np.sort(run.accuracy[np.isfinite(run.accuracy)])


def distribution_chart(groups: Sequence[Group]) -> Chart | None:
    """Every device's accuracy, sorted, and for one run how many devices have which."""
    if not any(known_accuracy(run).size for group in groups for run in group.runs):
        return None
    traces = []
    for group in groups:
        share, values = sorted_curve(group, known_accuracy, MOST_DEVICE_POINTS)
        exact = len(group.runs) == 1 and known_accuracy(group.run).size <= MOST_DEVICE_POINTS
        shape = {"shape": "hvh" if exact else "linear"}
        traces.append(group.line(numbers(share, 4), numbers(values, 4), line=shape, hovertemplate="%{y:.1%}"))
    worst = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": 0.1, "y0": 0, "y1": 1}
    label = {"xref": "x", "x": 0.05, "yref": "paper", "y": 1, "yanchor": "top", "textangle": -90}
    font = {"color": "@c2", "size": 12}
    views = {
        "Sorted": figure(
            traces,
            axis("devices, from the worst to the best", tickformat=".0%", range=[0, 1]),
            axis("accuracy", **PERCENT),
            shapes=[{**worst, "line": {"width": 0}, "fillcolor": "@c2/0.1", "layer": "below"}],
            annotations=[note("worst tenth", "@c2", font=font, **label)],
            showlegend=1 < len(groups) <= MOST_IN_LEGEND,
        )
    }
    if is_alone(groups):
        views["Histogram"] = _histogram(known_accuracy(groups[0].run))
    return Chart(
        "devices",
        "Accuracy of each device",
        about([(group.name, _fairness(group)) for group in groups], _device_range(groups)),
        views,
        "Accuracy of each device, shown",
        _fairness_table(groups),
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
    x, y = axis("accuracy", **PERCENT), axis("devices")
    return figure([bars], x, y, shapes=lines, annotations=notes, hovermode="closest", showlegend=False)


def group_fairness(group: Group) -> Fairness | None:
    """Fairness averaged over the runs of a group."""
    found = [one for run in group.runs if (one := fairness(run.accuracy)) is not None]
    if not found:
        return None
    means = {name: float(np.mean([getattr(one, name) for one in found])) for name in Fairness.__dataclass_fields__}
    return Fairness(**{**means, "devices": found[0].devices})  # type: ignore[arg-type]


def _device_range(groups: Sequence[Group]) -> str:
    found = [(group_fairness(group), shortened(group.name)) for group in groups]
    known = [(one.worst_tenth, name) for one, name in found if one is not None]
    return f"The worst tenth of the devices is right in {between(known, percent)} of its tests."


def _fairness(group: Group) -> str:
    found = group_fairness(group)
    if found is None:
        return "accuracies of single devices are not known yet."
    return (
        f"the worst tenth of the devices is right in {percent(found.worst_tenth)} of its tests, the mean device in "
        f"{percent(found.mean)}; Jain's index is {found.jain:.4f} and the standard deviation "
        f"{100 * found.deviation:.1f} points."
    )


def _fairness_table(groups: Sequence[Group]) -> Table:
    rows = []
    for group in groups:
        found = group_fairness(group)
        if found is not None:
            shares = (found.worst, found.worst_tenth, found.mean, found.best, found.deviation)
            rows.append((group.name, f"{found.devices:,}", *(percent(share) for share in shares), f"{found.jain:.4f}"))
    columns = ("run", "devices tested", "worst", "worst tenth", "mean", "best", "standard deviation", "Jain's index")
    return table(columns, rows)


def fairness_chart(groups: Sequence[Group]) -> Chart | None:
    """How the spread over devices changed on the way, from the trails."""
    shown = [group for group in groups if all(_trail(run) for run in group.runs)]
    if not any(len(_trail(run)) >= 2 for group in shown for run in group.runs):
        return None
    views = {}
    if is_alone(groups):
        views["Spread"] = _fan(*trail_accuracy(groups[0].run))
    for label, what, style in (("Worst tenth", "worst_tenth", ".2~%"), ("Jain's index", "jain", ".3~f")):
        traces: list[Any] = []
        for group in shown:
            found = group.bundle(_over_rounds, what)
            traces += group.lines(found.rounds.tolist(), found, limits=(0.0, 1.0), meta=SMOOTH)
        y = axis(label.lower(), tickformat=style)
        legend = 1 < len(groups) <= MOST_IN_LEGEND
        views[label] = figure(traces, axis("round"), y, showlegend=legend, hovermode="x unified")
    rows = []
    for group in shown:
        curves = {what: group.bundle(_over_rounds, what) for what in _TOLD}
        for index, rounds in enumerate(curves["mean"].rounds):
            shares = (percent(curves[what].mean[index]) for what in ("worst_tenth", "mean", "best"))
            rows.append((group.name, str(rounds), *shares, f"{curves['jain'].mean[index]:.4f}"))
    worst = [group.bundle(_over_rounds, "worst_tenth").mean for group in shown]
    told = [f"the worst tenth went from {percent(one[0])} to {percent(one[-1])}" for one in worst if len(one)]
    summary = f"Over the rounds {told[0]}." if len(told) == 1 else "The spread over devices as the runs went on."
    summary = f"{summary} {over_seeds(groups)}".strip()
    columns = ("run", "rounds", "worst tenth", "mean", "best", "Jain's index")
    return Chart("fairness", "Fairness over rounds", summary, views, "Shown over rounds", table(columns, rows))


_TOLD = ("worst_tenth", "mean", "best", "jain")


def _over_rounds(run: RunData, what: str) -> tuple[NDArray[np.int64], FloatArray]:
    trail = _trail(run)
    return np.array(list(trail), dtype=np.int64), np.array([getattr(one, what) for one in trail.values()])


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
        *band("all devices", x, low, high, "@c1", 0.12),
        *band("middle half", x, lower, upper, "@c1", 0.4),
        line("median device", x, middle, "@c1", hovertemplate="%{y:.1%}"),
    ]
    y = axis("accuracy", **PERCENT)
    return figure(traces, axis("round"), y, hovermode="x unified", showlegend=True)
