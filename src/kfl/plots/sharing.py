"""Points gained over the best twin that uploads nothing, against what a device uploads in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.plots.style import new_figure, plain_axes, spread_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN = (4.6, 3.3)
LABEL_GAP = 0.062
"""Between the names of two methods, as a share of the panel's height."""


@dataclass(frozen=True)
class SharingPoint:
    """One method in a panel."""

    label: str
    colour: str
    kilobits: float
    """Uploaded by a device in a round."""
    held_kilobits: float | None
    """The same without what the paper charges for classes that a device does not hold; None for others."""
    gain: float
    """Points over the best twin."""
    low: float | None
    high: float | None
    shares: bool
    """Filled where the gain is above zero after the correction."""


@dataclass(frozen=True)
class SharingPanel:
    """One condition."""

    title: str
    best_twin: str
    points: Sequence[SharingPoint]


def plot_sharing(title: str, panels: Sequence[SharingPanel], columns: int = 2) -> Figure:
    """A panel for each condition; what is above the line adds something, and further left it costs less."""
    from matplotlib import rc_context

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure("Drawing what sharing adds", layout="constrained")
    with rc_context({"font.size": 8.5, "axes.titlesize": 9, "font.family": "DejaVu Sans"}):
        figure.set_size_inches(PANEL_IN[0] * columns, PANEL_IN[1] * rows + 0.4)
        grid = figure.subplots(rows, columns, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < len(panels):
                _panel(axes, panels[index])
            else:
                axes.set_visible(False)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _panel(axes: Axes, panel: SharingPanel) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.axhline(0, color="#555555", linewidth=0.9)
    axes.set_xscale("log")
    for point in panel.points:
        face = point.colour if point.shares else "white"
        if point.low is not None and point.high is not None:
            axes.plot([point.kilobits] * 2, [point.low, point.high], color=point.colour, linewidth=1.3, zorder=2)
        if point.held_kilobits is not None:
            ends = [point.held_kilobits, point.kilobits]
            axes.plot(ends, [point.gain] * 2, color=point.colour, linewidth=0.8, linestyle=":", zorder=1)
            axes.plot(ends[:1], [point.gain], "D", color=point.colour, markerfacecolor=face, markersize=4, zorder=3)
        axes.plot(
            [point.kilobits], [point.gain], "o", color=point.colour, markerfacecolor=face, markersize=6.5, zorder=3
        )
    axes.margins(x=0.12, y=0.12)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("kbit uploaded by a device in a round")
    axes.set_ylabel(f"points above {panel.best_twin}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plain_axes(axes)
    _names(axes, panel.points)


def _names(axes: Axes, points: Sequence[SharingPoint]) -> None:
    """Names right of the axes, at the heights of the points and apart where they would overlap."""
    low, high = axes.get_ylim()
    wanted = {point.label: (point.gain - low) / (high - low) for point in points}
    heights = spread_out(wanted, LABEL_GAP)
    for point in points:
        axes.annotate(
            point.label,
            xy=(point.kilobits, point.gain),
            xytext=(1.03, heights[point.label]),
            textcoords="axes fraction",
            color=point.colour,
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "linestyle": ":",
                "color": point.colour,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
