"""Figures in the style of a journal: small panels with bands over seeds and names at the lines, or rows of dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from kfl.core.names import for_plot
from kfl.plots.curves import LABELS, Axis, Curve, scale_x, y_range
from kfl.plots.style import LONGEST_TITLE, Style, new_figure, plain_axes, spread_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN = (3.7, 2.75)
"""Width and height of one panel with its margins, in inches."""
DOT_ROWS_IN = 0.42
DOT_LABEL = 42
"""Characters in a line of a row's name."""
NAME_GAP = 0.075
"""Between the names of two lines, as a share of the panel's height."""
NEAR = 2.0
"""Differences that end within these points of zero decide the range of their panels; larger ones leave it."""
TICKS = 5
"""Roughly how many ticks a horizontal axis has."""
PURPOSE = "Drawing the figures"


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes: curves, each with the style of its name."""

    title: str
    curves: Sequence[Curve]
    styles: Mapping[str, Style]
    across: Axis
    """What the horizontal axis counts."""
    energy: bool = False
    """Whether the curves are energy in per cent of the budget, not accuracy."""
    minus: str = ""
    """What the curves are differences to, in points of accuracy; empty where they are accuracies."""


@dataclass(frozen=True)
class Differences:
    """One row of dots: a mean difference for each rival, with its interval where there is one."""

    title: str
    rivals: Sequence[tuple[str, str]]
    """Name and color of each."""
    found: Sequence[tuple[float, float | None, float | None] | None]
    """Mean, low and high end; None for a rival that was not run."""


def plot_panels(title: str, panels: Sequence[Panel], columns: int, *, note: str = "", colour: str = "black") -> Figure:
    """Panels in a grid, under one title; those of a row have one vertical range. The note stands below them."""
    rows = -(-len(panels) // columns)
    figure = new_figure(PURPOSE, layout="constrained")
    with _journal():
        figure.set_size_inches(PANEL_IN[0] * columns, PANEL_IN[1] * rows + 0.45)
        grid = figure.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < len(panels):
                row = index - index % columns
                _panel(axes, panels[index], _range(panels[row : row + columns]))
            else:
                axes.set_visible(False)
        _title(figure, title, colour)
        _note(figure, note)
    return figure


def plot_differences(title: str, rows: Sequence[Differences], *, note: str = "", colour: str = "black") -> Figure:
    """Differences between two algorithms, one row for each condition."""
    figure = new_figure(PURPOSE, layout="constrained")
    with _journal():
        figure.set_size_inches(7.4, DOT_ROWS_IN * len(rows) + 1.2)
        axes = figure.subplots()
        for index, row in enumerate(rows):
            _dots(axes, row, index)
        axes.axvline(0, color="#555555", linewidth=0.9)
        axes.set_yticks(range(len(rows)), [fill(for_plot(row.title, LONGEST_TITLE), DOT_LABEL) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("points of accuracy")
        plain_axes(axes, "x")
        rivals = len(rows[0].rivals)
        if rivals:
            # Above the axes, where it cannot cover a row.
            axes.legend(
                loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=rivals, handletextpad=0.2, borderpad=0
            )
        _title(figure, title, colour)
        _note(figure, note)
    return figure


def _journal() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    return rc_context({"font.size": 8.5, "axes.titlesize": 8.5, "font.family": "DejaVu Sans"})


def _title(figure: Figure, title: str, colour: str) -> None:
    figure.suptitle(for_plot(title, LONGEST_TITLE), fontsize=10, x=0.01, ha="left", color=colour)


def _note(figure: Figure, note: str) -> None:
    if note:
        figure.supxlabel(note, fontsize=8, x=0.01, ha="left", color="#555555")


def _range(panels: Sequence[Panel]) -> tuple[float, float]:
    """The vertical range of all panels of a row, so that they can be compared by eye."""
    curves = [curve for panel in panels for curve in panel.curves]
    if panels[0].energy:
        return 0.0, 1.06 * max(100.0, *(float(curve.mean.max()) for curve in curves))
    if not panels[0].minus:
        return y_range(curves)
    ends = [float(abs(curve.mean[-1]) + curve.deviation[-1]) for curve in curves]
    most = max(0.5, 2.5 * max((end for end in ends if end <= NEAR), default=min(ends)))
    return -most, most


def _panel(axes: Axes, panel: Panel, ends: tuple[float, float]) -> None:
    low, end = scale_x(axes, panel.curves, panel.across, ticks=TICKS)
    for curve in reversed(panel.curves):  # the first on top
        style = panel.styles[curve.name]
        x, mean, deviation = curve.drawn(low, end)
        axes.fill_between(x, mean - deviation, mean + deviation, color=style.color, alpha=0.13, linewidth=0)
        marker = "o" if len(x) == 1 else ""  # a run that used up its energy before its second evaluation
        axes.plot(
            x, mean, color=style.color, linestyle=style.dashes, linewidth=style.width, marker=marker, markersize=4
        )
    axes.set_title(for_plot(panel.title, LONGEST_TITLE), loc="left")
    axes.set_xlabel("round" if panel.across == "rounds" else LABELS[panel.across][0])
    said = f"points above {panel.minus}" if panel.minus else "accuracy over all devices, %"
    axes.set_ylabel("energy used, % of the budget" if panel.energy else said)
    axes.set_ylim(*ends)
    if panel.minus:
        axes.axhline(0, color="#888888", linewidth=0.8)
    if panel.energy:
        axes.axhline(100, color="#888888", linewidth=0.8)
    plain_axes(axes)
    _names(axes, panel, end)


def _names(axes: Axes, panel: Panel, end: float) -> None:
    """Names right of the axes at the height of the lines' ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    wanted = {curve.name: (float(np.clip(curve.mean[-1], low, high)) - low) / (high - low) for curve in panel.curves}
    for curve in panel.curves:
        if not curve.flat and curve.x[-1] < end:  # a line that ends early is led to its name
            y = low + wanted[curve.name] * (high - low)
            colour = panel.styles[curve.name].color
            axes.plot([curve.x[-1], end], [y, y], color=colour, linewidth=0.6, linestyle=":")
    lead = {"arrowstyle": "-", "linewidth": 0.6, "linestyle": ":", "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
    for name, height in _below_the_title(spread_out(wanted, NAME_GAP)).items():
        colour = panel.styles[name].color
        last = next(float(curve.mean[-1]) for curve in panel.curves if curve.name == name)
        axes.annotate(
            f"{for_plot(name)} {_signed(last)}" if panel.minus else for_plot(name),
            xy=(1.0, wanted[name]),
            xytext=(1.06, height),
            xycoords="axes fraction",
            color=colour,
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={**lead, "color": colour},
        )


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "\N{MINUS SIGN}")


def _below_the_title(heights: Mapping[str, float]) -> dict[str, float]:
    """The same heights, pushed down where the highest would run into the title."""
    found, most = {}, 0.98
    for name in sorted(heights, key=lambda name: -heights[name]):
        found[name] = min(heights[name], most)
        most = found[name] - NAME_GAP
    return found


def _dots(axes: Axes, row: Differences, index: int) -> None:
    for rival, ((name, colour), found) in enumerate(zip(row.rivals, row.found, strict=True)):
        if found is None:
            continue
        mean, low, high = found
        y = index + 0.24 * (rival - 1)
        if low is not None and high is not None:
            axes.plot([low, high], [y, y], color=colour, linewidth=1.6)
        label = f"minus {for_plot(name)}" if index == 0 else None
        axes.plot([mean], [y], "so^"[rival], color=colour, markersize=5, label=label)
