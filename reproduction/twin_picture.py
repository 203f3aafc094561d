"""The answers as a picture."""

from __future__ import annotations

from pathlib import Path

from kfl.comparison import Comparison, Row
from kfl.comparison.twins import METHODS
from kfl.plots import save
from kfl.plots.style import style_of
from reproduction.twin_plot import SharingPanel, SharingPoint, plot_sharing

FORMATS = ("png", "svg")
COLOURS = {
    "lg-fedavg-stem": "#6f5fc0",
    "lg-fedavg-head": "#a99be0",
    "fedtgp": "#148f77",
    "fedgh": "#b9770e",
    "fedgh-released": "#d9ab5f",
    "fedmrl": "#4d7c0f",
    "fd": "#7f5539",
}
"""Dots have no dashes to be told apart by, so some need a color that is further from the others'."""


def draw(found: Comparison, folder: Path, name: str = "sharing") -> list[Path]:
    """Draw the conditions that have something to show; the files."""
    panels = [panel for condition in found.conditions if (panel := _panel(found, condition)).points]
    if not panels:
        return []
    figure = plot_sharing("Does it share? Points over the best twin that uploads nothing", panels)
    return [save(figure, folder / f"{name}.{kind}") for kind in FORMATS]


def _panel(found: Comparison, condition: str) -> SharingPanel:
    rows = [row for row in found.rows if row.condition == condition]
    points = [point for row in rows if not row.twin and row.bits_up_each > 0 and (point := _point(row)) is not None]
    return SharingPanel(condition, rows[0].reference if rows else "", points)


def _point(row: Row) -> SharingPoint | None:
    gain, held = row.difference, row.held_bits_up_each
    if gain is None:
        return None
    return SharingPoint(
        label=row.label,
        colour=colour_of(row.label),
        kilobits=row.bits_up_each / 1000,
        held_kilobits=None if held is None else held / 1000,
        gain=100 * gain.mean,
        low=None if gain.low is None else 100 * gain.low,
        high=None if gain.high is None else 100 * gain.high,
        shares=row.adds,
        may_share=row.may_add,
    )


def colour_of(label: str) -> str:
    """The color of a method: its algorithm's, or one that follows from its label."""
    if label in COLOURS:
        return COLOURS[label]
    algorithm = METHODS.get(label)
    return style_of(label if algorithm is None else algorithm.name).color
