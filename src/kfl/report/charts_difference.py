"""Accuracy minus a baseline's, paired by seed: where curves coincide, this is what there is to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kfl.report.chart import Chart, Figure, axis, dashed, figure, line, note, numbers, table, thinned
from kfl.report.charts_accuracy import MOST_IN_LEGEND, SMOOTH, tested_accuracy
from kfl.report.companions import Companions
from kfl.report.groups import Bundle, Group, difference, over_seeds, seed_of, told_apart
from kfl.report.measures import totals
from kfl.runfolder import RunData


def difference_chart(groups: Sequence[Group], reference: Group) -> Chart | None:
    """Every group minus the reference, over the rounds and at the end; None where nothing can be paired."""
    pairs = [(group, found) for group in groups if group is not reference and (found := _paired(group, reference))]
    if not pairs:
        return None
    traces, rows = [], []
    for group, found in pairs:
        x = [int(number) + 1 for number in found.rounds]
        traces += group.lines(x, found, hovertemplate="%{y:+.2f} points", meta=SMOOTH)
        ends = found.ends()
        for index in thinned(len(x), max(4, 40 // len(pairs))):
            interval = "–" if ends is None else f"{ends[0][index]:+.2f} to {ends[1][index]:+.2f}"
            rows.append((group.name, str(x[index]), f"{found.mean[index]:+.2f}", interval))
    views = {"Over rounds": _over_rounds(traces, reference.label, legend=len(groups) <= MOST_IN_LEGEND)}
    views["At the end"] = _at_the_end([group for group, _ in pairs], reference)
    told = " ".join(
        f"{group.name}: {told_apart(gap)}."
        for group, _ in pairs[:4]
        if (gap := difference(group, reference, lambda run: totals(run).accuracy)) is not None
    )
    summary = f"Points above or below {reference.name}, paired by seed. {told} {over_seeds(groups)}"
    columns = ("run", "rounds", "difference, points", "interval")
    shown = table(columns, rows, most=80)
    return Chart("difference", f"Difference to {reference.name}", summary.strip(), views, "Shown", shown, wide=True)


def own_difference_chart(run: RunData, beside: Companions) -> Chart | None:
    """One run minus its companions."""
    others = [("training alone", beside.alone, "@c1", "solid")]
    if beside.pulled is not None:
        others.append((f"{beside.pulled.algorithm}, which uploads nothing", beside.pulled, "@c2", "dash"))
    traces, rows, told = [], [], []
    for name, other, colour, dash in others:
        if other is None:
            continue
        found = Bundle.of([_gap(run, other)])
        if not len(found.rounds):
            continue
        x, points = [int(number) + 1 for number in found.rounds], found.mean
        style: dict[str, Any] = {"hovertemplate": "%{y:+.2f} points", "meta": SMOOTH}
        traces.append(line(f"minus {name}", x, numbers(points), colour, line={"dash": dash}, **style))
        rows += [(name, str(x[index]), f"{points[index]:+.2f}") for index in thinned(len(x), 40)]
        told.append(f"{points[-1]:+.2f} points".replace("-", "\N{MINUS SIGN}") + f" against {name}")
    if not traces:
        return None
    summary = f"At the end {' and '.join(told)}, over all tested devices. This is one seed: repeat it with others."
    shown = table(("minus", "rounds", "difference, points"), rows)
    view = _over_rounds(traces, "the same accuracy", legend=True)
    return Chart(
        "difference",
        "Difference to training alone" if beside.alone is not None else "Difference to no upload",
        summary,
        {"": view},
        table=shown,
        wide=True,
    )


def _gap(ours: RunData, theirs: RunData) -> tuple[Any, Any]:
    """Points of accuracy by round, where both were tested."""
    both = Bundle.of([tested_accuracy(ours), tested_accuracy(theirs)])
    return both.rounds, 100 * (both.values[0] - both.values[1])


def _paired(group: Group, reference: Group) -> Bundle | None:
    theirs = {seed_of(run): run for run in reference.runs}
    curves = [_gap(run, theirs[seed_of(run)]) for run in group.runs if seed_of(run) in theirs]
    curves = [curve for curve in curves if len(curve[0])]
    return Bundle.of(curves) if curves else None


def _over_rounds(traces: list[Any], zero: str, *, legend: bool) -> Figure:
    level = dashed("@muted", xref="paper", x0=0, x1=1, y0=0, y1=0)
    anchor = {"xref": "paper", "x": 1, "y": 0, "xanchor": "right", "yanchor": "bottom"}
    return figure(
        traces,
        axis("round", rangemode="tozero"),
        axis("difference, points"),
        shapes=[level],
        annotations=[note(zero, "@muted", **anchor)],
        hovermode="x unified",
        showlegend=legend,
    )


def _at_the_end(groups: Sequence[Group], reference: Group) -> Figure:
    """A dot with its interval for each group."""
    traces = []
    for group in groups:
        gap = difference(group, reference, lambda run: totals(run).accuracy)
        if gap is None:
            continue
        error = {} if gap.low is None or gap.high is None else {"error_x": _error(gap.mean, gap.low, gap.high)}
        trace = group.line(
            numbers([100 * gap.mean]), [group.label], mode="markers", hovertemplate="%{x:+.2f} points<extra></extra>"
        )
        traces.append({**trace, "marker": {"size": 10, "color": trace["line"]["color"]}, **error})
    level = dashed("@muted", yref="paper", x0=0, x1=0, y0=0, y1=1)
    y = axis("", type="category", autorange="reversed")
    x = axis(f"points above {reference.label}, with the 95\N{NO-BREAK SPACE}% interval")
    return figure(traces, x, y, shapes=[level], showlegend=False, hovermode="closest")


def _error(mean: float, low: float, high: float) -> dict[str, Any]:
    up, down = numbers([100 * (high - mean), 100 * (mean - low)])
    return {"type": "data", "symmetric": False, "array": [up], "arrayminus": [down], "thickness": 2, "width": 6}
