"""Energy: what each device spent against its budget, and how fast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import several, shortened
from kfl.report.chart import Chart, axis, band, ink, level, line, numbers, stroke, table, thinned
from kfl.report.measures import device_energy, totals
from kfl.report.words import about, between, percent, quantity, text
from kfl.runfolder import RunData

MOST_BARS = 150
"""Devices up to which each is a bar of its own; beyond, a line through the sorted devices says the same."""
MOST_POINTS = 400

FloatArray = NDArray[np.float64]


def budget_chart(runs: list[RunData], names: list[str], colours: list[int]) -> Chart | None:
    """Each device's energy, sorted, as a share of its budget and in joules."""
    runs_with = [run for run in runs if run.cell is not None]
    if not runs_with:
        return None
    views = {}
    if all(math.isfinite(run.budget_j) for run in runs_with):
        views["Of budget"] = _sorted_energy(runs, names, colours, relative=True)
    views["Joules"] = _sorted_energy(runs, names, colours, relative=False)
    told = [(name, _sentence(run)) for run, name in zip(runs, names, strict=True) if run.cell is not None]
    spent = [(float(device_energy(run).mean()), shortened(name)) for run, name in zip(runs, names, strict=True)]
    summary = about(told, f"A device spent {between(spent, lambda value: quantity(value, 'J'))} on average.")
    return Chart("energy", "Energy of each device", summary, views, "Energy shown", _table(runs, names))


def _sorted_energy(runs: list[RunData], names: list[str], colours: list[int], *, relative: bool) -> dict[str, Any]:
    unit = {"tickformat": ".0%"} if relative else {"tickformat": "~s"}
    title = "energy, share of budget" if relative else "energy, J"
    layout: dict[str, Any] = {"yaxis": axis(title, rangemode="tozero", **unit)}
    only = runs[0]
    if len(runs) == 1 and only.devices <= MOST_BARS:
        traces: list[Any] = _bars(only, only.budget_j if relative else 1.0)
        layout |= {
            "barmode": "stack",
            "bargap": 0.15,
            "xaxis": axis("device, most energy first", type="category", nticks=12),
        }
    else:
        traces = [
            _curve(run, name, colour, run.budget_j if relative else 1.0)
            for run, name, colour in zip(runs, names, colours, strict=True)
            if run.cell is not None
        ]
        layout |= {"xaxis": axis("devices, most energy first", tickformat=".0%"), "showlegend": len(runs) > 1}
    budgets = {run.budget_j for run in runs if math.isfinite(run.budget_j)}
    if relative:
        layout |= level(1.0, "budget")
    elif len(budgets) == 1:
        layout |= level(budgets.pop(), "budget")
    return {"data": traces, "layout": layout}


def _bars(run: RunData, scale: float) -> list[Any]:
    order = np.argsort(-device_energy(run), kind="stable")
    parts = {"computing": run.rounds.compute_energy_j, "sending": run.rounds.upload_energy_j}
    return [
        {
            "type": "bar",
            "name": name,
            "x": [str(device) for device in order],
            "y": numbers(run.rounds.per_device(run.devices, values)[order] / scale),
            "marker": {"color": colour},
            "hovertemplate": f"device %{{x}}, {name}: "
            + ("%{y:.3~s} J" if scale == 1.0 else "%{y:.2%}")
            + "<extra></extra>",
        }
        for (name, values), colour in zip(parts.items(), ("@c1", "@c5"), strict=True)
    ]


def _curve(run: RunData, name: str, colour: int, scale: float) -> dict[str, Any]:
    spent = np.sort(device_energy(run))[::-1] / scale
    kept = thinned(run.devices, MOST_POINTS)
    share = (kept + 0.5) / run.devices
    return line(text(shortened(name)), numbers(share, 4), numbers(spent[kept]), ink(colour), line=stroke(colour))


def _sentence(run: RunData) -> str:
    sums, spent = totals(run), device_energy(run)
    most = float(spent.max(initial=0.0))
    if not math.isfinite(run.budget_j):
        return f"a device spent {quantity(float(spent.mean()), 'J')} on average and at most {quantity(most, 'J')}."
    over = several(sums.over_budget, "device")
    return (
        f"a device used {percent(sums.use_of_budget)} of its budget of {quantity(run.budget_j, 'J')} on average and "
        f"at most {percent(most / run.budget_j)}; {over} went over it."
    )


def _table(runs: list[RunData], names: list[str]) -> Any:
    rows = []
    for run, name in zip(runs, names, strict=True):
        spent = device_energy(run)
        upload = run.rounds.per_device(run.devices, run.rounds.upload_energy_j)
        taken = run.rounds.per_device(run.devices)
        order = np.argsort(-spent, kind="stable")
        for device in order[thinned(run.devices, max(5, 40 // len(runs)))]:
            share = percent(spent[device] / run.budget_j) if math.isfinite(run.budget_j) else "no budget"
            joules = (quantity(spent[device], "J"), quantity(upload[device], "J"))
            rows.append((name, str(device), f"{taken[device]:.0f}", *joules, share))
    return table(("run", "device", "rounds", "energy", "of it sending", "of its budget"), rows, most=80)


def pace_chart(runs: list[RunData], names: list[str], colours: list[int]) -> Chart | None:
    """Energy of a device as the rounds go by, beside a budget spent evenly."""
    runs_with = [
        (run, n, c) for run, n, c in zip(runs, names, colours, strict=True) if run.cell is not None and run.played
    ]
    if not runs_with:
        return None
    traces: list[Any] = []
    rows = []
    for run, name, colour in runs_with:
        rounds, least, mean, most = _running(run)
        x = [int(number) + 1 for number in rounds]
        if len(runs) == 1:
            traces += band("all devices", x, numbers(least), numbers(most), ink(colour))
        label = text(shortened(name)) if len(runs) > 1 else "mean device"
        traces.append(line(label, x, numbers(mean), ink(colour), line=stroke(colour)))
        rows += [
            (name, str(number), quantity(a, "J"), quantity(b, "J"))
            for number, a, b in zip(x, mean.tolist(), most.tolist(), strict=True)
        ]
    budgets = {(run.budget_j, run.planned) for run, _, _ in runs_with if math.isfinite(run.budget_j)}
    for budget_j, planned in sorted(budgets):
        even = {"dash": "dash", "width": 1.5}
        traces.append(line("budget spent evenly", [0, planned], numbers([0.0, budget_j]), "@muted", line=even))
    layout = {
        "xaxis": axis("round"),
        "yaxis": axis("energy of a device so far, J", tickformat="~s"),
        "hovermode": "x unified",
    }
    shown = table(("run", "rounds", "mean device", "most of a device"), rows)
    return Chart(
        "pace",
        "Energy over rounds",
        "Energy a device has spent up to each round; the dashed line spends the budget evenly.",
        {"": {"data": traces, "layout": layout}},
        table=shown,
    )


def _running(run: RunData) -> tuple[NDArray[np.int64], FloatArray, FloatArray, FloatArray]:
    """Rounds, and the least, mean and most energy of a device up to each."""
    kept = thinned(run.played, 200)
    ends = np.searchsorted(run.rounds.round, kept, side="right")
    spent, before = np.zeros(run.devices), 0
    rows = []
    for end in ends:
        spent += np.bincount(
            run.rounds.device[before:end], weights=run.rounds.energy_j[before:end], minlength=run.devices
        )
        rows.append((spent.min(), spent.mean(), spent.max()))
        before = end
    least, mean, most = np.array(rows).T
    return kept, least, mean, most
