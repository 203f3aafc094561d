"""Batteries that fill: charge over the rounds, what was harvested and wasted, and who was without charge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import several
from kfl.report.chart import Chart, FloatArray, axis, band, figure, ink, level, line, numbers, table, thinned
from kfl.report.charts_accuracy import MOST_IN_LEGEND, is_alone
from kfl.report.groups import Bundle, Group, over_seeds
from kfl.report.measures import BatteryCurves, battery_curves
from kfl.report.words import about, percent, quantity
from kfl.runfolder import RunData

MOST_POINTS = 300


def battery_chart(groups: Sequence[Group]) -> Chart | None:
    """The charge of the batteries, where the harvest went, and devices without charge; None without batteries."""
    found = [(group, curves) for group in groups if (curves := _curves(group)) is not None]
    if not found:
        return None
    alone = is_alone(groups)
    charge, joules, empty, rows = [], [], [], []
    for group, curves in found:
        mean, without = (_bundle(group, name) for name in ("mean_j", "empty"))
        kept = mean.rounds
        x = [int(number) + 1 for number in kept]
        if alone:
            charge += band("all devices", x, numbers(curves[0].least_j[kept]), numbers(curves[0].most_j[kept]), ink(0))
            charge.append({**group.line(x, numbers(mean.mean)), "name": "mean device", "legendgroup": ""})
            joules += _joules(curves[0], x, kept)
            empty.append({**group.line(x, numbers(without.mean)), "name": "devices"})
        else:
            charge += group.lines(x, mean)
            stored = Bundle.of([(kept, (one.harvested_j - one.wasted_j)[kept]) for one in curves])
            joules += group.lines(x, stored)
            empty += group.lines(x, without)
        columns = [_bundle(group, name).mean for name in ("least_j", "mean_j", "harvested_j", "wasted_j", "empty")]
        rows += [
            (group.name, str(round_), *(quantity(value, "J") for value in joules_), f"{nobody:.3g}")
            for round_, *joules_, nobody in zip(x, *columns, strict=True)
        ]
    capacities = {curves[0].capacity_j for _, curves in found}
    marked = level(capacities.pop(), "full") if len(capacities) == 1 else {}
    across, unified = axis("round"), {"hovermode": "x unified", "showlegend": len(groups) <= MOST_IN_LEGEND}
    views = {
        "Charge": figure(charge, across, axis("charge", si="J", rangemode="tozero"), **marked, **unified),
        "Joules": figure(joules, across, axis("all devices so far", si="J", rangemode="tozero"), **unified),
        "Without charge": figure(empty, across, axis("devices without charge", rangemode="tozero"), **unified),
    }
    told = about([(g.name, _sentence(curves[0])) for g, curves in found], "Batteries that fill, over the rounds.")
    columns_ = ("run", "round", "least charge", "mean charge", "harvested so far", "wasted so far", "without charge")
    summary = f"{told} {over_seeds([group for group, _ in found])}".strip()
    return Chart("battery", "Batteries", summary, views, "Shown", table(columns_, rows))


def _curves(group: Group) -> list[BatteryCurves] | None:
    found = [curves for run in group.runs if (curves := battery_curves(run)) is not None]
    return found if len(found) == len(group.runs) else None


def _bundle(group: Group, name: str) -> Bundle:
    def curve(run: RunData) -> tuple[NDArray[np.int64], FloatArray]:
        kept = thinned(run.played, MOST_POINTS)
        return kept, np.asarray(getattr(battery_curves(run), name), dtype=np.float64)[kept]

    return group.bundle(curve)


def _joules(curves: BatteryCurves, x: list[int], kept: NDArray[np.int64]) -> list[Any]:
    """Harvested, spent and wasted of one run."""
    parts = {"harvested": (curves.harvested_j, "@c3", "solid"), "spent": (curves.spent_j, "@c1", "dash")}
    parts["wasted, because full"] = (curves.wasted_j, "@c5", "dot")
    return [
        line(name, x, numbers(values[kept]), colour, line={"dash": dash})
        for name, (values, colour, dash) in parts.items()
    ]


def _sentence(curves: BatteryCurves) -> str:
    harvested, wasted = float(curves.harvested_j[-1]), float(curves.wasted_j[-1])
    told = f"devices harvested {quantity(harvested, 'J')} and spent {quantity(float(curves.spent_j[-1]), 'J')}"
    if harvested > 0:
        told += f"; {percent(wasted / harvested)} of the harvest came while a battery was full"
    most = int(curves.empty.max(initial=0))
    without = f"at most {several(most, 'device')} without charge in a round" if most else "nobody was without charge"
    return f"{told}. At the end the mean charge is {percent(curves.mean_j[-1] / curves.capacity_j)}; {without}."
