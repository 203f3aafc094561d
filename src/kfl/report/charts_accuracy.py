"""Accuracy against what it cost: rounds, joules, seconds, bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from kfl.core.text import shortened
from kfl.report.chart import Chart, Figure, axis, band, ink, line, numbers, stroke, table, thinned
from kfl.report.measures import spent_curves, totals, trail_accuracy
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
        for place, run in enumerate(runs):
            traces += _traces(run, names[place], unit, colours[place], alone=len(runs) == 1)
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
        for place in tested[thinned(len(tested), max(4, 40 // len(runs)))]:
            rows.append(
                (
                    name,
                    str(place + 1),
                    percent(run.rounds.accuracy[place], 2),
                    quantity(spent["joules"][place], "J"),
                    quantity(spent["seconds"][place], "s"),
                    quantity(spent["bits"][place], "bit"),
                )
            )
    return table(("run", "rounds", "accuracy", "energy", "time", "uploaded"), rows, most=80)
