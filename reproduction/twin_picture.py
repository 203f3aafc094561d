"""The answers as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kfl.plots import save
from kfl.plots.style import style_of
from kfl.sharing.answer import Answer, Standing
from kfl.sharing.methods import LABELS
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
"""Dots have no dashes to be told apart by, so some need a colour that is further from the others'."""


def draw(answers: Sequence[Answer], folder: Path, name: str = "sharing") -> list[Path]:
    """Draw the answers that have something to show; the files."""
    panels = [panel for answer in answers if (panel := _panel(answer)).points]
    if not panels:
        return []
    figure = plot_sharing("Does it share? Points over the best twin that uploads nothing", panels)
    return [save(figure, folder / f"{name}.{kind}") for kind in FORMATS]


def _panel(answer: Answer) -> SharingPanel:
    points = [_point(one) for one in answer.standings if not one.twin and one.gain is not None and one.bits_up > 0]
    return SharingPanel(answer.condition.title, answer.best_twin, points)


def _point(one: Standing) -> SharingPoint:
    gain = one.gain
    assert gain is not None  # the caller asked
    return SharingPoint(
        label=one.label,
        colour=colour_of(one.label),
        kilobits=one.bits_up / 1000,
        held_kilobits=None if one.held_bits_up is None else one.held_bits_up / 1000,
        gain=100 * gain.mean,
        low=None if gain.low is None else 100 * gain.low,
        high=None if gain.high is None else 100 * gain.high,
        shares=one.shares,
        may_share=one.may_share,
    )


def colour_of(label: str) -> str:
    """The colour of a method: its algorithm's, or one that follows from its label."""
    if label in COLOURS:
        return COLOURS[label]
    algorithm = LABELS.get(label)
    return style_of(label if algorithm is None else algorithm.name).color
