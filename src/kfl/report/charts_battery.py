"""Batteries that fill: charge over the rounds, what was harvested and wasted, and who was without charge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kfl.core.text import several
from kfl.report.chart import Chart, ShownRun, axis, band, figure, ink, level, line, numbers, table, thinned
from kfl.report.measures import BatteryCurves, battery_curves
from kfl.report.words import about, percent, quantity

MOST_POINTS = 300


def battery_chart(runs: Sequence[ShownRun]) -> Chart | None:
    """The charge of the batteries, where the harvest went, and devices without charge; None without batteries."""
    found = [(shown, curves) for shown in runs if (curves := battery_curves(shown.run)) is not None]
    if not found:
        return None
    charge, joules, empty, rows = [], [], [], []
    for shown, curves in found:
        kept = thinned(shown.run.played, MOST_POINTS)
        x = [int(number) + 1 for number in kept]
        if len(runs) == 1:
            charge += band("all devices", x, numbers(curves.least_j[kept]), numbers(curves.most_j[kept]), ink(0))
        label = {} if len(runs) > 1 else {"name": "mean device"}
        charge.append({**shown.line(x, numbers(curves.mean_j[kept])), **label})
        joules += _joules(shown, curves, x, kept, alone=len(runs) == 1)
        empty.append({**shown.line(x, numbers(curves.empty[kept])), **({"name": "devices"} if label else {})})
        rows += [
            (shown.name, str(round_), quantity(curves.least_j[k], "J"), quantity(curves.mean_j[k], "J"),
             quantity(curves.harvested_j[k], "J"), quantity(curves.wasted_j[k], "J"), str(int(curves.empty[k])))
            for round_, k in zip(x, kept, strict=True)
        ]  # fmt: skip
    capacities = {curves.capacity_j for _, curves in found}
    marked = level(capacities.pop(), "full") if len(capacities) == 1 else {}
    across, unified = axis("round"), {"hovermode": "x unified"}
    views = {
        "Charge": figure(charge, across, axis("charge, J", tickformat="~s", rangemode="tozero"), **marked, **unified),
        "Joules": figure(joules, across, axis("all devices so far, J", tickformat="~s", rangemode="tozero"), **unified),
        "Without charge": figure(empty, across, axis("devices without charge", rangemode="tozero"), **unified),
    }
    told = about([(shown.name, _sentence(curves)) for shown, curves in found], "Batteries that fill, over the rounds.")
    columns = ("run", "round", "least charge", "mean charge", "harvested so far", "wasted so far", "without charge")
    return Chart("battery", "Batteries", told, views, "Shown", table(columns, rows))


def _joules(shown: ShownRun, curves: BatteryCurves, x: list[int], kept: Any, *, alone: bool) -> list[Any]:
    """Harvested, spent and wasted of one run; of several, what was harvested and could be stored."""
    if not alone:
        return [shown.line(x, numbers((curves.harvested_j - curves.wasted_j)[kept]))]
    parts = {"harvested": (curves.harvested_j, "@c3"), "spent": (curves.spent_j, "@c1")}
    parts["wasted, because full"] = (curves.wasted_j, "@c5")
    return [line(name, x, numbers(values[kept]), colour) for name, (values, colour) in parts.items()]


def _sentence(curves: BatteryCurves) -> str:
    harvested, wasted = float(curves.harvested_j[-1]), float(curves.wasted_j[-1])
    told = f"devices harvested {quantity(harvested, 'J')} and spent {quantity(float(curves.spent_j[-1]), 'J')}"
    if harvested > 0:
        told += f"; {percent(wasted / harvested)} of the harvest came while a battery was full"
    most = int(curves.empty.max(initial=0))
    without = f"at most {several(most, 'device')} without charge in a round" if most else "nobody was without charge"
    return f"{told}. At the end the mean charge is {percent(curves.mean_j[-1] / curves.capacity_j)}; {without}."
