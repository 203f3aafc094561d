"""Energy: what each device spent against its budget, and how fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import several, shortened
from kfl.report.chart import (
    Chart,
    Figure,
    FloatArray,
    ShownRun,
    Table,
    axis,
    band,
    figure,
    ink,
    level,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.measures import device_energy, energy_parts, part_ink, totals
from kfl.report.words import SPACE, about, between, percent, quantity
from kfl.runfolder import RunData
from kfl.scheduling import by_part
from kfl.wireless import ENERGY_PARTS

MOST_BARS = 150
"""Devices up to which each is a bar of its own; beyond, a line through the sorted devices says the same."""
MOST_POINTS = 400


def budget_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """Each device's energy, sorted, as a share of its budget and in joules."""
    with_radio = [shown for shown in runs if shown.run.cell is not None]
    if not with_radio:
        return None
    views = {}
    if all(math.isfinite(shown.run.budget_j) for shown in with_radio):
        views["Of budget"] = _sorted_energy(runs, relative=True)
    views["Joules"] = _sorted_energy(runs, relative=False)
    told = [(shown.name, _sentence(shown.run)) for shown in with_radio]
    spent = [(float(device_energy(shown.run).mean()), shortened(shown.name)) for shown in runs]
    summary = about(told, f"A device spent {between(spent, lambda value: quantity(value, 'J'))} on average.")
    return Chart("energy", "Energy of each device", summary, views, "Energy shown", _table(runs))


def _sorted_energy(runs: Sequence[ShownRun], *, relative: bool) -> Figure:
    if relative:
        y = axis("energy, share of budget", rangemode="tozero", tickformat=".0%")
    else:
        y = axis("energy, J", rangemode="tozero", tickformat="~s")
    budgets = {1.0} if relative else {s.run.budget_j for s in runs if math.isfinite(s.run.budget_j)}
    marked = level(budgets.pop(), "budget") if len(budgets) == 1 else {}
    only = runs[0].run
    if len(runs) == 1 and only.devices <= MOST_BARS:
        bars = _bars(only, only.budget_j if relative else 1.0)
        x = axis("device, most energy first", type="category", nticks=12)
        return figure(bars, x, y, barmode="stack", bargap=0.15, **marked)
    lines = [_curve(shown, shown.run.budget_j if relative else 1.0) for shown in runs if shown.run.cell is not None]
    return figure(lines, axis("devices, most energy first", tickformat=".0%"), y, showlegend=len(runs) > 1, **marked)


def _bars(run: RunData, scale: float) -> list[Any]:
    order = np.argsort(-device_energy(run), kind="stable")
    return [
        {
            "type": "bar",
            "name": name,
            "x": [str(device) for device in order],
            "y": numbers(run.rounds.per_device(run.devices, values)[order] / scale),
            "marker": {"color": part_ink(name)},
            "hovertemplate": f"device %{{x}}, {name}: "
            + ("%{y:.3~s} J" if scale == 1.0 else "%{y:.2%}")
            + "<extra></extra>",
        }
        for name, values in energy_parts(run).items()
    ]


def _curve(shown: ShownRun, scale: float) -> dict[str, Any]:
    spent = np.sort(device_energy(shown.run))[::-1] / scale
    kept = thinned(shown.run.devices, MOST_POINTS)
    share = (kept + 0.5) / shown.run.devices
    return shown.line(numbers(share, 4), numbers(spent[kept]))


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


def _table(runs: Sequence[ShownRun]) -> Table:
    rows = []
    for shown in runs:
        run, spent = shown.run, device_energy(shown.run)
        upload = run.rounds.per_device(run.devices, run.rounds.upload_energy_j)
        taken = run.rounds.per_device(run.devices)
        order = np.argsort(-spent, kind="stable")
        for device in order[thinned(run.devices, max(5, 40 // len(runs)))]:
            share = percent(spent[device] / run.budget_j) if math.isfinite(run.budget_j) else "no budget"
            joules = (quantity(spent[device], "J"), quantity(upload[device], "J"))
            rows.append((shown.name, str(device), f"{taken[device]:.0f}", *joules, share))
    return table(("run", "device", "rounds", "energy", "of it sending", "of its budget"), rows, most=80)


def pace_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """Energy of a device as the rounds go by, beside a budget spent evenly."""
    with_radio = [shown for shown in runs if shown.run.cell is not None and shown.run.played]
    if not with_radio:
        return None
    traces: list[Any] = []
    rows = []
    for shown in with_radio:
        rounds, least, mean, most = _running(shown.run)
        x = [int(number) + 1 for number in rounds]
        if len(runs) == 1:
            traces += band("all devices", x, numbers(least), numbers(most), ink(shown.colour))
        label = {} if len(runs) > 1 else {"name": "mean device"}
        traces.append({**shown.line(x, numbers(mean)), **label})
        rows += [
            (shown.name, str(number), quantity(a, "J"), quantity(b, "J"))
            for number, a, b in zip(x, mean.tolist(), most.tolist(), strict=True)
        ]
    budgets = {(s.run.budget_j, s.run.planned) for s in with_radio if math.isfinite(s.run.budget_j)}
    for budget_j, planned in sorted(budgets):
        even = {"dash": "dash", "width": 1.5}
        traces.append(line("budget spent evenly", [0, planned], numbers([0.0, budget_j]), "@muted", line=even))
    y = axis("energy of a device so far, J", tickformat="~s")
    return Chart(
        "pace",
        "Energy over rounds",
        "Energy a device has spent up to each round"
        + ("; the dashed line spends the budget evenly." if budgets else "."),
        {"": figure(traces, axis("round"), y, hovermode="x unified")},
        table=table(("run", "rounds", "mean device", "most of a device"), rows),
    )


MOST_STEPS = 120
"""Rounds up to which each is a bar of its own; beyond, several share one."""


def parts_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """Where the joules went, by part: over the rounds of one run, or side by side. None in the printed model alone."""
    told = [shown for shown in runs if shown.run.cell is not None and len(shown.run.rounds.device)]
    if not any(shown.run.rounds.parts_j for shown in told):
        return None
    alone = len(runs) == 1
    sums = {shown.name: _sums(shown.run) for shown in told}
    sentences = [(shown.name, _parts_sentence(sums[shown.name])) for shown in told]
    dear = [(max(part.values()) / sum(part.values()), shortened(name)) for name, part in sums.items()]
    summary = about(sentences, f"The dearest part takes {between(dear, percent)} of the energy.")
    views = _parts_over_rounds(told[0].run) if alone else _parts_side_by_side(told, sums)
    rows = [
        (shown.name, part, quantity(energy_j, "J"), percent(energy_j / sum(sums[shown.name].values())),
         quantity(energy_j / len(shown.run.rounds.device), "J"))
        for shown in told for part, energy_j in sums[shown.name].items()
    ]  # fmt: skip
    columns = ("run", "part", "energy", "of all", "each time a device took part")
    return Chart("parts", "Where the joules went", summary, views, "Shown", table(columns, rows, most=200))


def _sums(run: RunData) -> dict[str, float]:
    """Joules of all devices and rounds by part; radiating in place of sending in the printed model."""
    words = {"sending": "radiating"}
    return {words.get(name, name): float(values.sum()) for name, values in energy_parts(run).items()}


def _parts_sentence(sums: dict[str, float]) -> str:
    told = by_part(sums)
    return told[0].lower() + told[1:].replace(" %", f"{SPACE}%")


def _parts_over_rounds(run: RunData) -> dict[str, Figure]:
    edges = thinned(run.played + 1, MOST_STEPS + 1)
    width = np.diff(edges)
    x = numbers(edges[:-1] + (width + 1) / 2)
    each, so_far = [], []
    for name, values in energy_parts(run).items():
        joules = run.rounds.per_round(values)
        mean = np.add.reduceat(joules, edges[:-1]) / width
        style = {"marker": {"color": part_ink(name)}, "name": name}
        hover = {"hovertemplate": f"{name}: %{{y:.3~s}}J<extra></extra>"}
        each.append({"type": "bar", "x": x, "y": numbers(mean), "width": numbers(width), **style, **hover})
        area = {"stackgroup": "joules", "fillcolor": f"{part_ink(name)}/0.6", "line": {"width": 0.5}, **hover}
        ends, total = [int(edge) for edge in edges[1:]], np.cumsum(joules)[edges[1:] - 1]
        so_far.append(line(name, ends, numbers(total), part_ink(name), **area))
    across = axis("round")
    per_round = axis("energy of a round, J", tickformat="~s", rangemode="tozero")
    summed = axis("energy so far, J", tickformat="~s", rangemode="tozero")
    return {
        "So far": figure(so_far, across, summed, hovermode="x unified"),
        "Each round": figure(each, across, per_round, barmode="stack", bargap=0, hovermode="x unified"),
    }


def _parts_side_by_side(runs: Sequence[ShownRun], sums: dict[str, dict[str, float]]) -> dict[str, Figure]:
    names = [shown.label for shown in runs]

    def bars(scale: list[float], shown_as: str) -> list[Any]:
        met = [part for part in ENERGY_PARTS if any(sums[shown.name].get(part) for shown in runs)]
        return [
            {
                "type": "bar",
                "name": part,
                "x": names,
                "y": numbers([sums[shown.name].get(part, 0.0) / one for shown, one in zip(runs, scale, strict=True)]),
                "marker": {"color": part_ink(part)},
                "hovertemplate": f"%{{x}}, {part}: {shown_as}<extra></extra>",
            }
            for part in met
        ]

    whole = [sum(sums[shown.name].values()) or 1.0 for shown in runs]
    across = axis("", type="category")
    joules = axis("energy of all devices, J", tickformat="~s", rangemode="tozero")
    share = axis("share of the run's energy", tickformat=".0%")
    return {
        "Joules": figure(bars([1.0] * len(runs), "%{y:.3~s}J"), across, joules, barmode="stack"),
        "Shares": figure(bars(whole, "%{y:.1%}"), across, share, barmode="stack"),
    }


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
