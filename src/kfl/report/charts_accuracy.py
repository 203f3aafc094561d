"""Accuracy against its cost (rounds, joules, seconds, bits), and accuracy of single devices.

Devices are shown from the worst to the best, with how evenly accuracy is spread, at the end and on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfl.core.text import shortened
from kfl.report.chart import Chart, Figure, axis, band, ink, line, numbers, stroke, table, thinned
from kfl.report.measures import fairness, spent_curves, totals, trail_accuracy
from kfl.report.words import about, between, percent, quantity, text
from kfl.runfolder import RunData

MOST_POINTS = 600
AXES = {
    "rounds": ("Rounds", "round", {}),
    "joules": ("Joules", "energy of all devices, J", {"tickformat": "~s"}),
    "seconds": ("Seconds", "time in the cell, s", {"tickformat": "~s"}),
    "bits": ("Bits", "bits uploaded by all devices", {"tickformat": "~s"}),
}


def accuracy_chart(runs: list[RunData], names: list[str], colours: list[int]) -> Chart:
    """Accuracy of all devices, scheduled or not, against rounds and against everything that was spent."""
    views = {}
    for unit, (label, title, style) in AXES.items():
        if unit != "rounds" and not any(spent_curves(run)[unit][-1:].sum() > 0 for run in runs):
            continue
        traces: list[Any] = []
        for index, run in enumerate(runs):
            traces += _traces(run, names[index], unit, colours[index], alone=len(runs) == 1)
        views[label] = _figure(traces, axis(title, rangemode="tozero", **style))
    return Chart(
        "accuracy",
        f"Accuracy of {runs[0].tested if len({run.tested for run in runs}) == 1 else 'all tested devices'}",
        about([(name, _sentence(run)) for run, name in zip(runs, names, strict=True)], _range(runs, names)),
        views,
        "Accuracy against",
        _table(runs, names),
        wide=True,
        tall=True,
    )


def _figure(traces: list[Any], x: dict[str, Any]) -> Figure:
    layout = {"xaxis": x, "yaxis": axis("accuracy", tickformat=".0%"), "hovermode": "x unified"}
    return {"data": traces, "layout": layout}


def _traces(run: RunData, name: str, unit: str, colour: int, *, alone: bool) -> list[Any]:
    traces = _spread(run, unit, ink(colour)) if alone else []
    traces.append(_curve(run, name, unit, ink(colour), {**stroke(colour), "width": 2.5 if alone else 2}))
    if alone and run.twin is not None and run.twin.played:
        traces.append(_curve(run.twin, "nothing shared (local-only)", unit, "@muted", {"dash": "dash"}))
    return traces


def _curve(run: RunData, name: str, unit: str, colour: str, style: dict[str, Any]) -> dict[str, Any]:
    tested = np.flatnonzero(np.isfinite(run.rounds.accuracy))
    kept = tested[thinned(len(tested), MOST_POINTS)]
    spent = spent_curves(run)[unit]
    return line(
        text(shortened(name)),
        numbers(spent[kept]),
        numbers(run.rounds.accuracy[kept]),
        colour,
        line=style,
        hovertemplate="%{y:.2%}",
    )


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


def _range(runs: list[RunData], names: list[str]) -> str:
    last = [(totals(run).accuracy, name) for run, name in zip(runs, names, strict=True)]
    known = [(accuracy, shortened(name)) for accuracy, name in last if accuracy is not None]
    return (
        f"Accuracy from {between(known, lambda value: percent(value, 2))}."
        if known
        else "No round has been tested yet."
    )


def _sentence(run: RunData) -> str:
    sums = totals(run)
    if sums.accuracy is None:
        return "no round has been tested yet."
    told = f"{percent(sums.accuracy, 2)} after {run.played:,} rounds (best {percent(sums.best_accuracy, 2)})"
    if run.twin is not None and (alone := totals(run.twin).accuracy) is not None:
        points = 100 * (sums.accuracy - alone)
        told += f", {abs(points):.2f} points {'above' if points >= 0 else 'below'} the same devices with nothing shared"
    return told + "."


def _table(runs: list[RunData], names: list[str]) -> Any:
    rows = []
    for run, name in zip(runs, names, strict=True):
        spent = spent_curves(run)
        tested = np.flatnonzero(np.isfinite(run.rounds.accuracy))
        for index in tested[thinned(len(tested), max(4, 40 // len(runs)))]:
            rows.append(
                (
                    name,
                    str(index + 1),
                    percent(run.rounds.accuracy[index], 2),
                    quantity(spent["joules"][index], "J"),
                    quantity(spent["seconds"][index], "s"),
                    quantity(spent["bits"][index], "bit"),
                )
            )
    return table(("run", "rounds", "accuracy", "energy", "time", "uploaded"), rows, most=80)


MOST_DEVICE_POINTS = 500
BINS = 25


def distribution_chart(runs: list[RunData], names: list[str], colours: list[int]) -> Chart | None:
    """Every device's accuracy, sorted, and for one run how many devices have which."""
    known = [np.sort(run.accuracy[np.isfinite(run.accuracy)]) for run in runs]
    if not any(values.size for values in known):
        return None
    traces = []
    for name, values, colour in zip(names, known, colours, strict=True):
        kept = thinned(values.size, MOST_DEVICE_POINTS)
        share = (kept + 0.5) / max(values.size, 1)
        style = {**stroke(colour), "shape": "hvh" if values.size <= MOST_DEVICE_POINTS else "linear"}
        x, y = numbers(share, 4), numbers(values[kept], 4)
        traces.append(line(text(shortened(name)), x, y, ink(colour), line=style, hovertemplate="%{y:.1%}"))
    worst = {"type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": 0.1, "y0": 0, "y1": 1}
    layout = {
        "xaxis": axis("devices, from the worst to the best", tickformat=".0%", range=[0, 1]),
        "yaxis": axis("accuracy", tickformat=".0%"),
        "shapes": [{**worst, "line": {"width": 0}, "fillcolor": "@c2/0.1", "layer": "below"}],
        "annotations": [_note("worst tenth", 0.05)],
        "showlegend": len(runs) > 1,
    }
    views = {"Sorted": {"data": traces, "layout": layout}}
    if len(runs) == 1:
        views["Histogram"] = _histogram(known[0])
    return Chart(
        "devices",
        "Accuracy of each device",
        about([(name, _fairness(run)) for run, name in zip(runs, names, strict=True)], _device_range(runs, names)),
        views,
        "Accuracy of each device, shown",
        fairness_table(runs, names),
    )


def _note(label: str, x: float) -> dict[str, Any]:
    anchor = {"xref": "x", "x": x, "yref": "paper", "y": 1, "yanchor": "top", "textangle": -90}
    return {**anchor, "text": label, "showarrow": False, "font": {"color": "@c2", "size": 12}}


def _histogram(values: Any) -> dict[str, Any]:
    low = min(float(values.min()), 0.95)
    counts, edges = np.histogram(values, bins=BINS, range=(low, 1.0))
    found = fairness(values)
    marks = [] if found is None else [("mean", found.mean, "@ink"), ("worst tenth", found.worst_tenth, "@c2")]
    lines = [
        {
            "type": "line",
            "yref": "paper",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "line": {"color": shade, "width": 1.5, "dash": "dash"},
        }
        for _, x, shade in marks
    ]
    notes = [
        {
            "x": x,
            "yref": "paper",
            "y": 1,
            "text": f"{label} {percent(x)}",
            "showarrow": False,
            "xanchor": "right",
            "yanchor": "top",
            "font": {"color": shade},
            "yshift": -18 * index,
            "xshift": -4,
        }
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
    layout = {"xaxis": axis("accuracy", tickformat=".0%"), "yaxis": axis("devices"), "shapes": lines}
    return {"data": [bars], "layout": {**layout, "annotations": notes, "hovermode": "closest", "showlegend": False}}


def _device_range(runs: list[RunData], names: list[str]) -> str:
    found = [(fairness(run.accuracy), shortened(name)) for run, name in zip(runs, names, strict=True)]
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


def fairness_table(runs: list[RunData], names: list[str]) -> Any:
    """Fairness of each run in a row."""
    rows = []
    for run, name in zip(runs, names, strict=True):
        found = fairness(run.accuracy)
        if found is not None:
            shares = (found.worst, found.worst_tenth, found.mean, found.best, found.deviation)
            rows.append((name, f"{found.devices:,}", *(percent(share) for share in shares), f"{found.jain:.4f}"))
    columns = ("run", "devices tested", "worst", "worst tenth", "mean", "best", "standard deviation", "Jain's index")
    return table(columns, rows)


def fairness_chart(runs: list[RunData], names: list[str], colours: list[int]) -> Chart | None:
    """How the spread over devices changed on the way, from the trails."""
    trails = [trail_accuracy(run) for run in runs]
    if not any(len(rounds) >= 2 for rounds, _ in trails):
        return None
    views = {}
    if len(runs) == 1:
        views["Spread"] = _fan(*trails[0])
    for label, what, style in (("Worst tenth", "worst_tenth", ".0%"), ("Jain's index", "jain", ".3f")):
        traces = []
        for (rounds, accuracy), name, colour in zip(trails, names, colours, strict=True):
            found = [fairness(row) for row in accuracy]
            y = numbers([getattr(one, what) for one in found if one is not None])
            x = [int(number) + 1 for number in rounds]
            traces.append(line(text(shortened(name)), x, y, ink(colour), line=stroke(colour)))
        layout = {"xaxis": axis("round"), "yaxis": axis(label.lower(), tickformat=style), "showlegend": len(runs) > 1}
        views[label] = {"data": traces, "layout": {**layout, "hovermode": "x unified"}}
    first = [fairness(accuracy[0]) for _, accuracy in trails if len(accuracy)]
    last = [fairness(accuracy[-1]) for _, accuracy in trails if len(accuracy)]
    told = [
        f"the worst tenth went from {percent(a.worst_tenth)} to {percent(b.worst_tenth)}"
        for a, b in zip(first, last, strict=True)
        if a is not None and b is not None
    ]
    rows = []
    for (rounds, accuracy), name in zip(trails, names, strict=True):
        for number, row in zip(rounds, accuracy, strict=True):
            one = fairness(row)
            if one is not None:
                shares = (percent(one.worst_tenth), percent(one.mean), percent(one.best))
                rows.append((name, str(number + 1), *shares, f"{one.jain:.4f}"))
    summary = f"Over the rounds {told[0]}." if len(told) == 1 else "The spread over devices as the runs went on."
    columns = ("run", "rounds", "worst tenth", "mean", "best", "Jain's index")
    return Chart("fairness", "Fairness over rounds", summary, views, "Shown over rounds", table(columns, rows))


def _fan(rounds: Any, accuracy: Any) -> dict[str, Any]:
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
    layout = {"xaxis": axis("round"), "yaxis": axis("accuracy", tickformat=".0%"), "hovermode": "x unified"}
    return {"data": traces, "layout": layout}
