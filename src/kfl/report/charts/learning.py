"""Accuracy: against its cost, against a baseline, and of single devices.

Runs that differ in nothing but the seed are one line, their mean, with a band.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import shortened
from kfl.report.figures import (
    PERCENT,
    Chart,
    Figure,
    FloatArray,
    Table,
    axis,
    band,
    bars,
    dashed,
    figure,
    ink,
    level,
    line,
    note,
    numbers,
    table,
    thinned,
)
from kfl.report.groups import Bundle, Group, difference, is_alone, over_seeds, told_apart
from kfl.report.run_data import Fairness, RunData, fairness
from kfl.report.text import SPACE, about, between, group_fairness, percent

MOST_POINTS = 600
MOST_IN_LEGEND = 8
"""Groups that a chart's own legend names; of more, the list on top of the page does."""
AXES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rounds": ("Rounds", "round", {}),
    "joules": ("Joules", "energy of all devices", {"si": "J"}),
    "seconds": ("Seconds", "time in the cell", {"si": "s"}),
    "bits": ("Bits", "uploaded by all devices", {"si": "bit"}),
}
SMOOTH = {"smooth": True}
"""The page may smooth these lines."""


def accuracy_chart(groups: Sequence[Group]) -> Chart:
    """Accuracy of all devices, scheduled or not, against rounds and against everything that was spent."""
    alone, views = is_alone(groups), {}
    for unit, (label, title, style) in AXES.items():
        if unit != "rounds" and not any(run.spent[unit][-1:].sum() > 0 for group in groups for run in group.runs):
            continue
        traces: list[Any] = []
        for group in groups:
            x = numbers(group.bundle(_spent, unit).mean)
            traces += _spread(group.run, unit, ink(group.index)) if alone else []
            tested = group.bundle(tested_accuracy)
            traces += group.lines(x, tested, limits=(0.0, 1.0), hovertemplate="%{y:.2%}", meta=SMOOTH)
        views[label] = _against(axis(title, rangemode="tozero", **style), traces, legend=len(groups) <= MOST_IN_LEGEND)
    who = {run.tested for group in groups for run in group.runs}
    told = about([(group.name, _reached(group)) for group in groups], _range(groups))
    title = f"Accuracy of {who.pop() if len(who) == 1 else 'all tested devices'}"
    summary = f"{told} {over_seeds(groups)}".strip()
    return Chart("accuracy", title, summary, views, "Accuracy against", wide=True, tall=True)


def _against(x: dict[str, Any], traces: list[Any], *, legend: bool) -> Figure:
    return figure(traces, x, axis("accuracy", **PERCENT), hovermode="x unified", showlegend=legend)


def tested_accuracy(run: RunData) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the rounds in which a run was tested, thinned, and its accuracy then."""
    tested = np.flatnonzero(np.isfinite(run.rounds.accuracy))
    kept = tested[thinned(len(tested), MOST_POINTS)]
    return kept, run.rounds.accuracy[kept]


def _spent(run: RunData, unit: str) -> tuple[NDArray[np.int64], FloatArray]:
    """The rounds in which a run was tested, and what had been spent by then."""
    kept, _ = tested_accuracy(run)
    return kept, run.spent[unit][kept]


def _spread(run: RunData, unit: str, color: str) -> list[Any]:
    """Where most devices are, and the worst tenth of them."""
    rounds, accuracy = run.trail_accuracy
    if len(rounds) < 2:
        return []
    x = numbers(run.spent[unit][rounds])
    known = np.sort(accuracy[:, np.isfinite(accuracy).all(axis=0)], axis=1)
    low, high = np.quantile(known, (0.1, 0.9), axis=1)
    worst = known[:, : max(1, known.shape[1] // 10)].mean(axis=1)
    dotted = {"line": {"dash": "dot"}, "hovertemplate": "%{y:.2%}"}
    return [
        *band("8 of 10 devices", x, numbers(low, 4), numbers(high, 4), color),
        line("worst tenth of devices", x, numbers(worst, 4), "@c2", **dotted),
    ]


def _range(groups: Sequence[Group]) -> str:
    known = [(group.accuracy, shortened(group.name)) for group in groups if group.accuracy is not None]
    if not known:
        return "No round has been tested yet."
    return f"Accuracy from {between(known, lambda value: percent(value, 2))}."


def _reached(group: Group) -> str:
    if group.accuracy is None:
        return "no round has been tested yet."
    told = f"{percent(group.accuracy, 2)} after {max(run.played for run in group.runs):,} rounds"
    if len(group.runs) > 1:
        return f"{told}, the mean of {group.seeds}."
    return f"{told} (best {percent(group.run.best_accuracy, 2)})."


def difference_chart(groups: Sequence[Group], reference: Group) -> Chart | None:
    """Every group minus the reference, over the rounds and at the end; None where nothing can be paired."""
    pairs = [(group, found) for group in groups if group is not reference and (found := _paired(group, reference))]
    if not pairs:
        return None
    traces: list[Any] = []
    for group, found in pairs:
        traces += group.lines(found.x, found, hovertemplate="%{y:+.2f} points", meta=SMOOTH)
    views = {
        "Over rounds": figure(
            traces,
            axis("round", rangemode="tozero"),
            axis("difference, points"),
            **level(0, reference.label),
            hovermode="x unified",
            showlegend=len(groups) <= MOST_IN_LEGEND,
        ),
        "At the end": _at_the_end([group for group, _ in pairs], reference),
    }
    gaps = [(group, difference(group, reference)) for group, _ in pairs[:4]]
    told = " ".join(f"{group.name}: {told_apart(gap)}." for group, gap in gaps if gap is not None)
    summary = f"Points above or below {reference.name}, paired by seed. {told} {over_seeds(groups)}".strip()
    return Chart("difference", f"Difference to {reference.name}", summary, views, "Shown", wide=True)


def _paired(group: Group, reference: Group) -> Bundle | None:
    """Points of accuracy by round, where both were tested, of the seeds that both have."""
    theirs = {run.seed: tested_accuracy(run) for run in reference.runs}
    both = [Bundle.of([tested_accuracy(run), theirs[run.seed]]) for run in group.runs if run.seed in theirs]
    curves = [(one.rounds, 100 * (one.values[0] - one.values[1])) for one in both if len(one.rounds)]
    return Bundle.of(curves) if curves else None


def _at_the_end(groups: Sequence[Group], reference: Group) -> Figure:
    """A dot with its interval for each group."""
    traces = []
    for group in groups:
        gap = difference(group, reference)
        if gap is None:
            continue
        mean, low, high = 100 * gap.mean, gap.low, gap.high
        trace = group.line(
            numbers([mean]), [group.label], mode="markers", hovertemplate="%{x:+.2f} points<extra></extra>"
        )
        trace["marker"] = {"size": 10, "color": ink(group.index)}
        if low is not None and high is not None:
            up, down = numbers([100 * high - mean, mean - 100 * low])
            ends = {"type": "data", "symmetric": False, "array": [up], "arrayminus": [down]}
            trace["error_x"] = {**ends, "thickness": 2, "width": 6}
        traces.append(trace)
    zero = dashed("@muted", yref="paper", x0=0, x1=0, y0=0, y1=1)
    y = axis("", type="category", autorange="reversed")
    x = axis(f"points above {reference.label}, with the 95{SPACE}% confidence interval")
    return figure(traces, x, y, shapes=[zero], showlegend=False, hovermode="closest")


# ── Single devices ───────────────────────────────────────────────────────────

MOST_DEVICE_POINTS = 500
BINS = 25


def sorted_curve(group: Group, values: Callable[[RunData], FloatArray], most: int) -> tuple[FloatArray, FloatArray]:
    """Return sorted values of devices against the share of the devices before each; averaged over a group's runs."""
    found = [values(run) for run in group.runs]
    size = min(len(one) for one in found)
    kept = thinned(size, most)
    share = (kept + 0.5) / max(size, 1)
    if len(found) == 1 or not size:
        return share, found[0][kept] if size else np.empty(0)
    # Runs may have tested different numbers of devices: all are read at the same shares.
    rows = [np.interp(share, (np.arange(len(one)) + 0.5) / len(one), one) for one in found]
    return share, np.asarray(np.mean(rows, axis=0))


def _known(run: RunData) -> FloatArray:
    """Accuracies of the devices that were tested, from the worst to the best."""
    return np.sort(run.accuracy[np.isfinite(run.accuracy)])


def distribution_chart(groups: Sequence[Group]) -> Chart | None:
    """Every device's accuracy, sorted, and for one run a histogram."""
    if not any(_known(run).size for group in groups for run in group.runs):
        return None
    traces = []
    for group in groups:
        share, values = sorted_curve(group, _known, MOST_DEVICE_POINTS)
        exact = len(group.runs) == 1 and _known(group.run).size <= MOST_DEVICE_POINTS
        shape = {"shape": "hvh" if exact else "linear"}
        traces.append(group.line(numbers(share, 4), numbers(values, 4), line=shape, hovertemplate="%{y:.1%}"))
    worst = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": 0.1, "y0": 0, "y1": 1}
    label = {"xref": "x", "x": 0.05, "yref": "paper", "y": 1, "yanchor": "top", "textangle": -90}
    views = {
        "Sorted": figure(
            traces,
            axis("devices, from the worst to the best", tickformat=".0%", range=[0, 1]),
            axis("accuracy", **PERCENT),
            shapes=[{**worst, "line": {"width": 0}, "fillcolor": "@c2/0.1", "layer": "below"}],
            annotations=[note("worst tenth", "@c2", **label)],
        )
    }
    if is_alone(groups):
        views["Histogram"] = _histogram(groups[0].run)
    found = [(group, one) for group in groups if (one := group_fairness(group)) is not None]
    lowest = between([(one.worst_tenth, shortened(group.name)) for group, one in found], percent)
    told = about([(g.name, _fairness(one)) for g, one in found], f"The mean accuracy of the worst tenth is {lowest}.")
    switch = "Accuracy of each device, shown"
    return Chart("devices", "Accuracy of each device", told, views, switch, _fairness_table(found))


def _histogram(run: RunData) -> Figure:
    values = _known(run)
    low = min(float(values.min()), 0.95)
    counts, edges = np.histogram(values, bins=BINS, range=(low, 1.0))
    found, overall = fairness(values), run.last_accuracy
    marks = [] if found is None else [("worst tenth", found.worst_tenth, "@c2")]
    marks = [*([] if overall is None else [("all test samples", overall, "@ink")]), *marks]
    corner = {"yref": "paper", "y": 1, "xanchor": "right", "yanchor": "top", "xshift": -4}
    notes = [
        note(f"{label} {percent(x)}", shade, x=x, yshift=-18 * index, **corner)
        for index, (label, x, shade) in enumerate(marks)
    ]
    middle, width = numbers((edges[:-1] + edges[1:]) / 2, 4), numbers(np.diff(edges) * 0.92, 4)
    hover = {"hovertemplate": "%{y} devices at %{x:.1%}<extra></extra>"}
    return figure(
        [bars("devices", middle, counts.tolist(), {"color": "@c1"}, width=width, **hover)],
        axis("accuracy", **PERCENT),
        axis("devices"),
        shapes=[dashed(shade, yref="paper", x0=x, x1=x, y0=0, y1=1) for _, x, shade in marks],
        annotations=notes,
        hovermode="closest",
        showlegend=False,
    )


def _fairness(found: Fairness) -> str:
    return (
        f"the worst tenth of the devices has a mean accuracy of {percent(found.worst_tenth)}; Jain's index is "
        f"{found.jain:.4f} and the standard deviation over devices {100 * found.deviation:.1f} points."
    )


def _fairness_table(found: Sequence[tuple[Group, Fairness]]) -> Table:
    rows = []
    for group, one in found:
        shares = (one.worst, one.worst_tenth, group.accuracy, one.best, one.deviation)
        rows.append((group.name, f"{one.devices:,}", *(percent(share) for share in shares), f"{one.jain:.4f}"))
    columns = (
        "run",
        "devices tested",
        "worst",
        "worst tenth",
        "all test samples",
        "best",
        "standard deviation",
        "Jain's index",
    )
    return table(columns, rows)


def fairness_chart(groups: Sequence[Group]) -> Chart | None:
    """How the spread over devices changed over the rounds, from the snapshots."""
    shown = [group for group in groups if all(len(run.trail_accuracy[0]) for run in group.runs)]
    if not any(len(run.trail_accuracy[0]) >= 2 for group in shown for run in group.runs):
        return None
    views = {"Spread": _fan(*groups[0].run.trail_accuracy)} if is_alone(groups) else {}
    for label, what, style in (("Worst tenth", "worst_tenth", ".2~%"), ("Jain's index", "jain", ".3~f")):
        traces: list[Any] = []
        for group in shown:
            found = group.bundle(_over_rounds, what)
            traces += group.lines(found.x, found, limits=(0.0, 1.0), meta=SMOOTH)
        y, legend = axis(label.lower(), tickformat=style), 1 < len(groups) <= MOST_IN_LEGEND
        views[label] = figure(traces, axis("round"), y, showlegend=legend, hovermode="x unified")
    worst = [group.bundle(_over_rounds, "worst_tenth").mean for group in shown]
    told = [f"the worst tenth went from {percent(one[0])} to {percent(one[-1])}" for one in worst if len(one)]
    summary = f"Over the rounds {told[0]}." if len(told) == 1 else "Spread over devices during the runs."
    return Chart(
        "fairness", "Fairness over rounds", f"{summary} {over_seeds(groups)}".strip(), views, "Shown over rounds"
    )


def _over_rounds(run: RunData, what: str) -> tuple[NDArray[np.int64], FloatArray]:
    found = [(number, fairness(row)) for number, row in zip(*run.trail_accuracy, strict=True)]
    known = [(number, getattr(one, what)) for number, one in found if one is not None]
    return np.array([number for number, _ in known], dtype=np.int64), np.array([value for _, value in known])


def _fan(rounds: NDArray[np.int64], accuracy: FloatArray) -> Figure:
    known = accuracy[:, np.isfinite(accuracy).all(axis=0)]
    x = [int(number) + 1 for number in rounds]
    ends = (numbers(row, 4) for row in np.quantile(known, (0.0, 0.25, 0.5, 0.75, 1.0), axis=1))
    low, lower, middle, upper, high = ends
    traces = [
        *band("all devices", x, low, high, "@c1", 0.12),
        *band("middle half", x, lower, upper, "@c1", 0.4),
        line("median device", x, middle, "@c1", hovertemplate="%{y:.1%}"),
    ]
    return figure(traces, axis("round"), axis("accuracy", **PERCENT), hovermode="x unified", showlegend=True)
