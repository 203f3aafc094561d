"""Energy: what each device spent against its budget, and how fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import DASH, several, shortened
from kfl.report.chart import (
    Chart,
    Figure,
    FloatArray,
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
from kfl.report.charts_accuracy import MOST_IN_LEGEND, is_alone
from kfl.report.charts_devices import sorted_curve
from kfl.report.groups import Group, over_seeds
from kfl.report.measures import device_energy, energy_parts, part_ink, part_mark, totals
from kfl.report.words import SPACE, about, between, percent, quantity
from kfl.runfolder import RunData
from kfl.scheduling import by_part
from kfl.wireless import ENERGY_PARTS

MOST_BARS = 150
"""Devices up to which each is a bar of its own; beyond, a line through the sorted devices says the same."""
MOST_POINTS = 400


def budget_chart(groups: Sequence[Group]) -> Chart | None:
    """Each device's energy, sorted, as a share of its budget and in joules."""
    with_radio = [group for group in groups if group.run.cell is not None]
    if not with_radio:
        return None
    views = {}
    if all(math.isfinite(run.budget_j) for group in with_radio for run in group.runs):
        views["Of budget"] = _sorted_energy(groups, relative=True)
    views["Joules"] = _sorted_energy(groups, relative=False)
    told = [(group.name, _sentence(group)) for group in with_radio]
    spent = [(group.mean(lambda run: float(device_energy(run).mean())), shortened(group.name)) for group in groups]
    summary = about(told, f"A device spent {between(spent, lambda value: quantity(value, 'J'))} on average.")
    shown = _table(groups[0].run) if is_alone(groups) else _group_table(with_radio)
    return Chart("energy", "Energy of each device", summary, views, "Energy shown", shown)


def _sorted_energy(groups: Sequence[Group], *, relative: bool) -> Figure:
    if relative:
        y = axis("energy, share of budget", rangemode="tozero", tickformat=".2~%")
    else:
        y = axis("energy", rangemode="tozero", si="J")
    known = {run.budget_j for group in groups for run in group.runs if math.isfinite(run.budget_j)}
    budgets = {1.0} if relative else known
    marked = level(budgets.pop(), "budget") if len(budgets) == 1 else {}
    only = groups[0].run
    if is_alone(groups) and only.devices <= MOST_BARS:
        bars = _bars(only, only.budget_j if relative else 1.0)
        x = axis("device, most energy first", type="category", nticks=12)
        return figure(bars, x, y, barmode="stack", bargap=0.15, **marked)
    lines = [_curve(group, relative=relative) for group in groups if group.run.cell is not None]
    legend = 1 < len(groups) <= MOST_IN_LEGEND
    return figure(lines, axis("devices, most energy first", tickformat=".0%"), y, showlegend=legend, **marked)


def _bars(run: RunData, scale: float) -> list[Any]:
    order = np.argsort(-device_energy(run), kind="stable")
    return [
        {
            "type": "bar",
            "name": name,
            "x": [str(device) for device in order],
            "y": numbers(run.rounds.per_device(run.devices, values)[order] / scale),
            "marker": part_mark(name),
            "hovertemplate": f"device %{{x}}, {name}: "
            + ("%{y:.3~g} [[y]]" if scale == 1.0 else "%{y:.2%}")
            + "<extra></extra>",
        }
        for name, values in energy_parts(run).items()
    ]


def _curve(group: Group, *, relative: bool) -> dict[str, Any]:
    def spent(run: RunData) -> FloatArray:
        return np.sort(device_energy(run))[::-1] / (run.budget_j if relative else 1.0)

    share, values = sorted_curve(group, spent, MOST_POINTS)
    return group.line(numbers(share, 4), numbers(values))


def _sentence(group: Group) -> str:
    used = group.mean(lambda run: float(device_energy(run).mean()))
    most = max(float(device_energy(run).max(initial=0.0)) for run in group.runs)
    if not math.isfinite(group.run.budget_j):
        return f"a device spent {quantity(used, 'J')} on average and at most {quantity(most, 'J')}."
    budget_j = group.run.budget_j
    counts = [totals(run).over_budget for run in group.runs]
    over = several(counts[0], "device") if len(counts) == 1 else f"{np.mean(counts):.3g} devices on average"
    return (
        f"a device used {percent(used / budget_j)} of its budget of {quantity(budget_j, 'J')} on average and "
        f"at most {percent(most / budget_j)}; {over} went over it."
    )


def _table(run: RunData) -> Table:
    """The devices of one run."""
    rows = []
    spent = device_energy(run)
    upload = run.rounds.per_device(run.devices, run.rounds.upload_energy_j)
    taken = run.rounds.per_device(run.devices)
    order = np.argsort(-spent, kind="stable")
    for device in order[thinned(run.devices, 40)]:
        share = percent(spent[device] / run.budget_j) if math.isfinite(run.budget_j) else "no budget"
        joules = (quantity(spent[device], "J"), quantity(upload[device], "J"))
        rows.append((str(device), f"{taken[device]:.0f}", *joules, share))
    columns = ("device", "rounds", "energy", "of it sending", "of its budget")
    return table(columns, rows, total=run.devices, of="devices")


def _group_table(groups: Sequence[Group]) -> Table:
    """What the devices of each group spent; means over seeds."""
    rows = []
    for group in groups:
        spent = [device_energy(run) for run in group.runs]
        least, mean, most = (float(np.mean([how(one) for one in spent])) for how in _WAYS)
        limited = math.isfinite(group.run.budget_j)
        over = f"{group.mean(lambda run: totals(run).over_budget):.3g}" if limited else DASH
        sending = group.mean(lambda run: totals(run).upload_energy_j / max(totals(run).energy_j, 1e-300))
        rows.append((group.name, *(quantity(value, "J") for value in (least, mean, most)), percent(sending), over))
    return table(("run", "least of a device", "mean", "most", "of it sending", "devices over budget"), rows)


_WAYS: tuple[Callable[[FloatArray], float], ...] = (np.min, np.mean, np.max)
"""The least, the mean and the most of the devices."""


def pace_chart(groups: Sequence[Group]) -> Chart | None:
    """Energy of a device as the rounds go by, beside a budget spent evenly."""
    with_radio = [group for group in groups if group.run.cell is not None and all(run.played for run in group.runs)]
    if not with_radio:
        return None
    alone = is_alone(groups)
    traces: list[Any] = []
    rows = []
    for group in with_radio:
        least, mean, most = (group.bundle(_running, how) for how in _WAYS)
        x = [int(number) + 1 for number in mean.rounds]
        if alone:
            traces += band("all devices", x, numbers(least.mean), numbers(most.mean), ink(group.index))
            traces.append({**group.line(x, numbers(mean.mean)), "name": "mean device", "legendgroup": ""})
        else:
            traces += group.lines(x, mean)
        rows += [
            (group.name, str(number), quantity(a, "J"), quantity(b, "J"))
            for number, a, b in zip(x, mean.mean.tolist(), most.mean.tolist(), strict=True)
        ]
    budgets = {(g.run.budget_j, g.run.planned) for g in with_radio if math.isfinite(g.run.budget_j)}
    for budget_j, planned in sorted(budgets):
        even = {"dash": "dash", "width": 1.5}
        traces.append(line("budget spent evenly", [0, planned], numbers([0.0, budget_j]), "@muted", line=even))
    y = axis("energy of a device so far", si="J")
    legend = len(groups) <= MOST_IN_LEGEND
    told = "Energy a device has spent up to each round" + (
        "; the dashed line spends the budget evenly." if budgets else "."
    )
    return Chart(
        "pace",
        "Energy over rounds",
        f"{told} {over_seeds(with_radio)}".strip(),
        {"": figure(traces, axis("round"), y, hovermode="x unified", showlegend=legend)},
        table=table(("run", "rounds", "mean device", "most of a device"), rows),
    )


MOST_STEPS = 120
"""Rounds up to which each is a bar of its own; beyond, several share one."""


def parts_chart(groups: Sequence[Group]) -> Chart | None:
    """Where the joules went, by part: over the rounds of one run, or side by side. None in the printed model alone."""
    told = [group for group in groups if group.run.cell is not None and all(len(r.rounds.device) for r in group.runs)]
    if not any(run.rounds.parts_j for group in told for run in group.runs):
        return None
    sums = {group.name: _sums(group) for group in told}
    sentences = [(group.name, _parts_sentence(sums[group.name])) for group in told]
    dear = [(max(part.values()) / sum(part.values()), shortened(name)) for name, part in sums.items()]
    summary = about(sentences, f"The dearest part takes {between(dear, percent)} of the energy.")
    views = _parts_over_rounds(told[0].run) if is_alone(groups) else _parts_side_by_side(told, sums)
    times = {group.name: group.mean(lambda run: float(len(run.rounds.device))) for group in told}
    rows = [
        (group.name, part, quantity(energy_j, "J"), percent(energy_j / sum(sums[group.name].values())),
         quantity(energy_j / times[group.name], "J"))
        for group in told for part, energy_j in sums[group.name].items()
    ]  # fmt: skip
    columns = ("run", "part", "energy", "of all", "each time a device took part")
    return Chart("parts", "Where the joules went", summary, views, "Shown", table(columns, rows, most=200))


def _sums(group: Group) -> dict[str, float]:
    """Joules of all devices and rounds by part, averaged over seeds; radiating for sending in the printed model."""
    words = {"sending": "radiating"}
    found: dict[str, float] = {}
    for run in group.runs:
        for name, values in energy_parts(run).items():
            part = words.get(name, name)
            found[part] = found.get(part, 0.0) + float(values.sum()) / len(group.runs)
    return found


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
        style = {"marker": part_mark(name), "name": name}
        hover = {"hovertemplate": f"{name}: %{{y:.3~g}} [[y]]<extra></extra>"}
        each.append({"type": "bar", "x": x, "y": numbers(mean), "width": numbers(width), **style, **hover})
        area = {"stackgroup": "joules", "fillcolor": f"{part_ink(name)}/0.6", "line": {"width": 0.5}, **hover}
        ends, total = [int(edge) for edge in edges[1:]], np.cumsum(joules)[edges[1:] - 1]
        so_far.append(line(name, ends, numbers(total), part_ink(name), **area))
    across = axis("round")
    per_round = axis("energy of a round", si="J", rangemode="tozero")
    summed = axis("energy so far", si="J", rangemode="tozero")
    return {
        "So far": figure(so_far, across, summed, hovermode="x unified"),
        "Each round": figure(each, across, per_round, barmode="stack", bargap=0, hovermode="x unified"),
    }


def _parts_side_by_side(groups: Sequence[Group], sums: dict[str, dict[str, float]]) -> dict[str, Figure]:
    names = [group.label for group in groups]

    def bars(scale: list[float], shown_as: str) -> list[Any]:
        met = [part for part in ENERGY_PARTS if any(sums[group.name].get(part) for group in groups)]
        return [
            {
                "type": "bar",
                "name": part,
                "x": names,
                "y": numbers([sums[group.name].get(part, 0.0) / one for group, one in zip(groups, scale, strict=True)]),
                "marker": part_mark(part),
                "meta": {"groups": [group.index for group in groups]},
                "hovertemplate": f"%{{x}}, {part}: {shown_as}<extra></extra>",
            }
            for part in met
        ]

    whole = [sum(sums[group.name].values()) or 1.0 for group in groups]
    across = axis("", type="category")
    joules = axis("energy of all devices", si="J", rangemode="tozero")
    share = axis("share of the run's energy", tickformat=".0%")
    return {
        "Joules": figure(bars([1.0] * len(groups), "%{y:.3~g} [[y]]"), across, joules, barmode="stack"),
        "Shares": figure(bars(whole, "%{y:.1%}"), across, share, barmode="stack"),
    }


def _running(run: RunData, how: Callable[[FloatArray], float]) -> tuple[NDArray[np.int64], FloatArray]:
    """Rounds, and the least, mean or most energy of a device up to each."""
    kept = thinned(run.played, 200)
    ends = np.searchsorted(run.rounds.round, kept, side="right")
    spent, before = np.zeros(run.devices), 0
    found = []
    for end in ends:
        which = slice(before, end)
        spent += np.bincount(run.rounds.device[which], weights=run.rounds.energy_j[which], minlength=run.devices)
        found.append(float(how(spent)))
        before = end
    return kept, np.array(found)
