"""Energy: of each device against its budget, over the rounds, by part, and the batteries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import shortened
from kfl.core.text import DASH, several
from kfl.report.charts.learning import MOST_IN_LEGEND, sorted_curve
from kfl.report.figures import (
    MOST_ROWS,
    Chart,
    Figure,
    FloatArray,
    Table,
    axis,
    band,
    bars,
    figure,
    hatched,
    ink,
    level,
    line,
    numbers,
    table,
    thinned,
)
from kfl.report.groups import Bundle, Group, is_alone, over_seeds
from kfl.report.run_data import BatteryCurves, RunData
from kfl.report.text import SPACE, about, between, percent, quantity
from kfl.scheduling.energy_report import by_part
from kfl.scheduling.uplink import ENERGY_PARTS
from kfl.wireless import Cell

MOST_BARS = 150
"""Devices up to which each is a bar of its own; beyond, a line through the sorted devices says the same."""
MOST_POINTS = 400
MOST_QUEUES = 5000
"""Rounds up to which virtual queues are followed."""
MOST_STEPS = 120
"""Rounds up to which each is a bar of its own; beyond, several share one."""
_INKS = dict(zip(ENERGY_PARTS, ("@c1", "@c6", "@c5", "@c2", "@c4", "@c3"), strict=True))
_PATTERNS = dict(zip(ENERGY_PARTS, ("", ".", "/", "x", "-", "|"), strict=True))
SENDING = "radiating"
"""Part of the whole-device model that has the color of sending in the printed one."""


def _part_ink(part: str) -> str:
    return _INKS.get(part, _INKS[SENDING])


def _part_mark(part: str) -> dict[str, Any]:
    found = hatched(_part_ink(part), _PATTERNS.get(part, _PATTERNS[SENDING]), 5)
    return {**found, "pattern": {**found["pattern"], "solidity": 0.35}}


def with_radio(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose energy is counted."""
    return [group for group in groups if group.run.cell is not None]


def budget_chart(groups: Sequence[Group]) -> Chart | None:
    """Each device's energy, sorted, as a share of its budget and in joules."""
    shown = with_radio(groups)
    if not shown:
        return None
    limited = all(math.isfinite(run.budget_j) for group in shown for run in group.runs)
    views = {"Of budget": _sorted_energy(groups, shown, relative=True)} if limited else {}
    views["Joules"] = _sorted_energy(groups, shown, relative=False)
    told = [(group.name, _of_budget(group)) for group in shown]
    spent = [(group.mean(lambda run: float(run.device_energy_j.mean())), shortened(group.name)) for group in shown]
    summary = about(told, f"A device spent {between(spent, lambda value: quantity(value, 'J'))} on average.")
    cell = shown[0].run.cell
    found = devices_table(shown[0].run, cell) if is_alone(groups) and cell is not None else _group_table(shown)
    return Chart("energy", "Energy of each device", summary, views, "Energy shown", found)


def _sorted_energy(groups: Sequence[Group], shown: Sequence[Group], *, relative: bool) -> Figure:
    if relative:
        y = axis("energy, share of budget", rangemode="tozero", tickformat=".2~%")
    else:
        y = axis("energy", rangemode="tozero", si="J")
    known = {run.budget_j for group in shown for run in group.runs if math.isfinite(run.budget_j)}
    budgets = {1.0} if relative else known
    marked = level(budgets.pop(), "budget") if len(budgets) == 1 else {}
    only = groups[0].run
    if is_alone(groups) and only.devices <= MOST_BARS:
        x = axis("device, most energy first", type="category", nticks=12)
        drawn = _device_bars(only, only.budget_j if relative else 1.0)
        return figure(drawn, x, y, barmode="stack", bargap=0.15, **marked)

    def spent(run: RunData) -> FloatArray:
        return np.sort(run.device_energy_j)[::-1] / (run.budget_j if relative else 1.0)

    curves = [(group, *sorted_curve(group, spent, MOST_POINTS)) for group in shown]
    lines = [group.line(numbers(share, 4), numbers(values)) for group, share, values in curves]
    legend = 1 < len(groups) <= MOST_IN_LEGEND
    return figure(lines, axis("devices, most energy first", tickformat=".0%"), y, showlegend=legend, **marked)


def _device_bars(run: RunData, scale: float) -> list[Any]:
    order = np.argsort(-run.device_energy_j, kind="stable")
    shown = "%{y:.3~g} [[y]]" if scale == 1.0 else "%{y:.2%}"
    return [
        bars(
            part,
            [str(device) for device in order],
            numbers(run.rounds.per_device(run.devices, values)[order] / scale),
            _part_mark(part),
            hovertemplate=f"device %{{x}}, {part}: {shown}<extra></extra>",
        )
        for part, values in run.parts_j.items()
    ]


def _of_budget(group: Group) -> str:
    used = group.mean(lambda run: float(run.device_energy_j.mean()))
    most = max(float(run.device_energy_j.max(initial=0.0)) for run in group.runs)
    budget_j = group.run.budget_j
    if not math.isfinite(budget_j):
        return f"a device spent {quantity(used, 'J')} on average and at most {quantity(most, 'J')}."
    counts = [run.over_budget for run in group.runs]
    over = several(counts[0], "device") if len(counts) == 1 else f"{np.mean(counts):.3g} devices on average"
    return (
        f"a device used {percent(used / budget_j)} of its budget of {quantity(budget_j, 'J')} on average and "
        f"at most {percent(most / budget_j)}; {over} exceeded it."
    )


def devices_table(run: RunData, cell: Cell) -> Table:
    """Return what each device did and spent, most energy first."""
    spent, sending = run.device_energy_j, run.rounds.per_device(run.devices, run.rounds.upload_energy_j)
    columns: dict[str, Callable[[int], str]] = {
        "device": str,
        "distance": lambda device: f"{cell.distance_m[device]:.0f} m",
        "processor": lambda device: quantity(float(cell.hardware.cpu_hz[device]), "Hz"),
        "rounds": lambda device: f"{run.participation[device]:.0f}",
        "energy": lambda device: quantity(spent[device], "J"),
        "of it sending": lambda device: quantity(sending[device], "J"),
    }
    if math.isfinite(run.budget_j):
        columns["of its budget"] = lambda device: percent(spent[device] / run.budget_j)
    columns["accuracy"] = lambda device: percent(float(run.accuracy[device]))
    shown = np.argsort(-spent, kind="stable")[thinned(run.devices, MOST_ROWS)]
    rows = [tuple(tell(device) for tell in columns.values()) for device in shown]
    return table(tuple(columns), rows, total=run.devices, of="devices")


def _group_table(groups: Sequence[Group]) -> Table:
    """What the devices of each group spent; means over seeds."""
    rows = []
    for group in groups:
        spent = [[float(how(run.device_energy_j)) for run in group.runs] for how in _WAYS]
        joules = [quantity(float(np.mean(values)), "J") for values in spent]
        over = f"{group.mean(lambda run: run.over_budget):.3g}" if math.isfinite(group.run.budget_j) else DASH
        sending = group.mean(lambda run: run.upload_energy_j / max(run.energy_j, 1e-300))
        rows.append((group.name, *joules, percent(sending), over))
    return table(("run", "least of a device", "mean", "most", "of it sending", "devices over budget"), rows)


_WAYS: tuple[Callable[[FloatArray], float], ...] = (np.min, np.mean, np.max)
"""The least, the mean and the most of the devices."""


def pace_chart(groups: Sequence[Group]) -> Chart | None:
    """Energy of a device over the rounds, next to a budget spent evenly."""
    shown = [group for group in with_radio(groups) if all(run.played for run in group.runs)]
    if not shown:
        return None
    traces: list[Any] = []
    for group in shown:
        found = [group.bundle(_running, index) for index in range(len(_WAYS))]
        traces += _range_of_devices(group, *found, alone=is_alone(groups))
    budgets = {(g.run.budget_j, g.run.planned) for g in shown if math.isfinite(g.run.budget_j)}
    for budget_j, planned in sorted(budgets):
        even = {"dash": "dash", "width": 1.5}
        traces.append(line("budget spent evenly", [0, planned], numbers([0.0, budget_j]), "@muted", line=even))
    told = "Energy a device has spent up to each round"
    told += "; the dashed line spends the budget evenly." if budgets else "."
    unified = {"hovermode": "x unified", "showlegend": len(groups) <= MOST_IN_LEGEND}
    so_far = figure(traces, axis("round"), axis("energy of a device so far", si="J"), **unified)
    views = {"Energy": so_far} | (_queues(shown[0]) if is_alone(groups) and budgets else {})
    return Chart("pace", "Energy over rounds", f"{told} {over_seeds(shown)}".strip(), views, "Shown")


def _queues(group: Group) -> dict[str, Figure]:
    """The virtual queues after each round: what devices spent beyond an even use of their budgets, equation (21)."""
    run = group.run
    if run.played > MOST_QUEUES:
        return {}
    queue_j, found = np.zeros(run.devices), []
    for energy_j in run.energy_between(np.arange(run.played)):
        queue_j = np.maximum(queue_j + energy_j - run.budget_j / run.planned, 0.0)
        found.append((queue_j.mean(), queue_j.max()))
    mean, largest = (numbers(values) for values in zip(*found, strict=True))
    x = list(range(1, run.played + 1))
    lines = [line("largest", x, largest, "@c2"), line("mean", x, mean, "@c1", line={"dash": "dash"})]
    y = axis("virtual queue", si="J", rangemode="tozero")
    return {"Queues": figure(lines, axis("round"), y, hovermode="x unified")}


def _range_of_devices(group: Group, least: Bundle, mean: Bundle, most: Bundle, *, alone: bool) -> list[Any]:
    """The mean device, with all devices around it or with a band over seeds."""
    if not alone:
        return group.lines(mean.x, mean)
    around = band("all devices", mean.x, numbers(least.mean), numbers(most.mean), ink(group.index))
    return [*around, group.line(mean.x, numbers(mean.mean), name="mean device", legendgroup="")]


def _running(run: RunData, how: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Rounds, and the least, mean or most energy of a device up to each."""
    kept, spent, found = thinned(run.played, 200), np.zeros(run.devices), []
    for energy_j in run.energy_between(kept):
        spent += energy_j
        found.append(float(_WAYS[how](spent)))
    return kept, np.array(found)


# ── By part ──────────────────────────────────────────────────────────────────


def parts_chart(groups: Sequence[Group]) -> Chart | None:
    """Energy by part: over the rounds of one run, or of each group. None in the printed model alone."""
    shown = [group for group in with_radio(groups) if all(run.uploads for run in group.runs)]
    if not any(run.rounds.parts_j for group in shown for run in group.runs):
        return None
    sums = {group.name: _sums(group) for group in shown}
    sentences = [(name, _largest(part)) for name, part in sums.items()]
    largest = [(max(part.values()) / sum(part.values()), shortened(name)) for name, part in sums.items()]
    summary = about(sentences, f"The largest part takes {between(largest, percent)} of the energy.")
    views = _parts_over_rounds(shown[0].run) if is_alone(groups) else _parts_side_by_side(shown, sums)
    return Chart("parts", "Energy breakdown", summary, views, "Shown")


def _sums(group: Group) -> dict[str, float]:
    """Joules of all devices and rounds by part, averaged over seeds; radiating for sending in the printed model."""
    found: dict[str, float] = {}
    for run in group.runs:
        for name, values in run.parts_j.items():
            part = SENDING if name == "sending" else name
            found[part] = found.get(part, 0.0) + float(values.sum()) / len(group.runs)
    return found


def _largest(sums: dict[str, float]) -> str:
    told = by_part(sums)
    return told[0].lower() + told[1:].replace(" %", f"{SPACE}%")


def _parts_over_rounds(run: RunData) -> dict[str, Figure]:
    edges = thinned(run.played + 1, MOST_STEPS + 1)
    width = np.diff(edges)
    x = numbers(edges[:-1] + (width + 1) / 2)
    each, so_far = [], []
    for part, values in run.parts_j.items():
        joules = run.rounds.per_round(values)
        mean = np.add.reduceat(joules, edges[:-1]) / width
        hover = {"hovertemplate": f"{part}: %{{y:.3~g}} [[y]]<extra></extra>"}
        each.append(bars(part, x, numbers(mean), _part_mark(part), width=numbers(width), **hover))
        area = {"stackgroup": "joules", "fillcolor": f"{_part_ink(part)}/0.6", "line": {"width": 0.5}, **hover}
        ends, total = [int(edge) for edge in edges[1:]], np.cumsum(joules)[edges[1:] - 1]
        so_far.append(line(part, ends, numbers(total), _part_ink(part), **area))
    across, unified = axis("round"), {"hovermode": "x unified"}
    per_round = axis("energy of a round", si="J", rangemode="tozero")
    return {
        "So far": figure(so_far, across, axis("energy so far", si="J", rangemode="tozero"), **unified),
        "Each round": figure(each, across, per_round, barmode="stack", bargap=0, **unified),
    }


def _parts_side_by_side(groups: Sequence[Group], sums: dict[str, dict[str, float]]) -> dict[str, Figure]:
    met = [part for part in ENERGY_PARTS if any(sums[group.name].get(part) for group in groups)]

    def stacked(scale: list[float], shown_as: str) -> list[Any]:
        return [
            bars(
                part,
                [group.label for group in groups],
                numbers([sums[group.name].get(part, 0.0) / one for group, one in zip(groups, scale, strict=True)]),
                _part_mark(part),
                meta={"groups": [group.index for group in groups]},
                hovertemplate=f"%{{x}}, {part}: {shown_as}<extra></extra>",
            )
            for part in met
        ]

    whole = [sum(sums[group.name].values()) or 1.0 for group in groups]
    across = axis("run", type="category")
    joules = axis("energy of all devices", si="J", rangemode="tozero")
    share = axis("share of the run's energy", tickformat=".0%")
    return {
        "Joules": figure(stacked([1.0] * len(groups), "%{y:.3~g} [[y]]"), across, joules, barmode="stack"),
        "Shares": figure(stacked(whole, "%{y:.1%}"), across, share, barmode="stack"),
    }


# ── Batteries ────────────────────────────────────────────────────────────────


def battery_chart(groups: Sequence[Group]) -> Chart | None:
    """Charge of the batteries, harvest and waste, and devices without charge; None without batteries."""
    shown = [group for group in groups if all(run.batteries is not None for run in group.runs)]
    if not shown:
        return None
    alone = is_alone(groups)
    charge, joules, empty = [], [], []
    for group in shown:
        least, mean, most = (group.bundle(_battery, name) for name in ("least_j", "mean_j", "most_j"))
        without = group.bundle(_battery, "empty")
        charge += _range_of_devices(group, least, mean, most, alone=alone)
        if alone:
            joules += _harvest_lines(group)
            empty.append(group.line(without.x, numbers(without.mean), name="devices", legendgroup=""))
        else:
            joules += group.lines(mean.x, group.bundle(_stored))
            empty += group.lines(without.x, without)
    found = [run.batteries for group in shown for run in group.runs if run.batteries is not None]
    capacities = {one.capacity_j for one in found}
    marked = level(capacities.pop(), "full") if len(capacities) == 1 else {}
    across, unified = axis("round"), {"hovermode": "x unified", "showlegend": len(groups) <= MOST_IN_LEGEND}
    views = {
        "Charge": figure(charge, across, axis("charge", si="J", rangemode="tozero"), **marked, **unified),
        "Joules": figure(joules, across, axis("all devices so far", si="J", rangemode="tozero"), **unified),
        "Empty": figure(empty, across, axis("devices with empty batteries", rangemode="tozero"), **unified),
    }
    told = [(group.name, _harvest(group.run.batteries)) for group in shown if group.run.batteries is not None]
    summary = f"{about(told, 'Charge of batteries that harvest, over the rounds.')} {over_seeds(shown)}".strip()
    return Chart("battery", "Batteries", summary, views, "Shown")


def _battery(run: RunData, name: str) -> tuple[NDArray[np.int64], FloatArray]:
    kept = thinned(run.played, 300)
    return kept, np.asarray(getattr(run.batteries, name), dtype=np.float64)[kept]


def _stored(run: RunData) -> tuple[NDArray[np.int64], FloatArray]:
    """Harvested joules that a battery had room for."""
    kept, harvested = _battery(run, "harvested_j")
    return kept, harvested - _battery(run, "wasted_j")[1]


def _harvest_lines(group: Group) -> list[Any]:
    """Harvested, spent and wasted of one run."""
    kinds = {"harvested": ("harvested_j", "@c3", "solid"), "spent": ("spent_j", "@c1", "dash")}
    kinds["wasted on full batteries"] = ("wasted_j", "@c5", "dot")
    curves = {name: group.bundle(_battery, part) for name, (part, _, _) in kinds.items()}
    return [
        line(name, curves[name].x, numbers(curves[name].mean), color, line={"dash": dash})
        for name, (_, color, dash) in kinds.items()
    ]


def _harvest(curves: BatteryCurves) -> str:
    harvested, wasted = float(curves.harvested_j[-1]), float(curves.wasted_j[-1])
    told = f"devices harvested {quantity(harvested, 'J')} and spent {quantity(float(curves.spent_j[-1]), 'J')}"
    if harvested > 0:
        told += f"; {percent(wasted / harvested)} of the harvest was wasted on full batteries"
    most = int(curves.empty.max(initial=0))
    without = f"at most {several(most, 'battery', 'batteries')} empty in a round" if most else "no battery ran empty"
    return f"{told}. At the end the mean charge is {percent(curves.mean_j[-1] / curves.capacity_j)}; {without}."
