"""Points gained over the best twin that uploads nothing, against what a device uploads in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kfl.core.names import for_plot
from kfl.plots.style import LONGEST_TITLE, new_figure, plain_axes, spread_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN = (4.6, 3.3)
LABEL_GAP = 0.062
"""Between the names of two methods, as a share of the panel's height."""
LOWEST = -6.0
"""Points below which a method stands at the lower edge with its number: what is far below would flatten the rest."""


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
    """Filled where the gain is above zero after the correction, half-filled where only its own interval is."""
    may_share: bool = False


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
        figure.suptitle(for_plot(title, LONGEST_TITLE), fontsize=10, x=0.01, ha="left")
    return figure


def _panel(axes: Axes, panel: SharingPanel) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.axhline(0, color="#555555", linewidth=0.9)
    axes.set_xscale("log")
    low, high = _range(panel.points)
    for point in panel.points:
        face = point.colour if point.shares else "white"
        filled: Literal["left", "full"] = "left" if point.may_share else "full"
        height, marker = (low, "v") if point.gain < LOWEST else (point.gain, "o")
        if point.low is not None and point.high is not None and marker == "o":
            axes.plot([point.kilobits] * 2, [point.low, point.high], color=point.colour, linewidth=1.3, zorder=2)
        if point.held_kilobits is not None:
            ends = [point.held_kilobits, point.kilobits]
            axes.plot(ends, [height] * 2, color=point.colour, linewidth=0.8, linestyle=":", zorder=1)
            axes.plot(ends[:1], [height], "D", color=point.colour, markerfacecolor=face, markersize=4, zorder=3)
        axes.plot(
            [point.kilobits],
            [height],
            marker,
            color=point.colour,
            markerfacecolor=point.colour if point.may_share else face,
            markerfacecoloralt="white",
            fillstyle=filled,
            markersize=6.5,
            zorder=3,
            clip_on=False,
        )
    axes.margins(x=0.12)
    axes.set_ylim(low, high)
    axes.set_title(for_plot(panel.title, LONGEST_TITLE), loc="left")
    axes.set_xlabel("kbit uploaded by a device in a round")
    axes.set_ylabel(f"points above {for_plot(panel.best_twin)}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    plain_axes(axes)
    _names(axes, panel.points)


def _range(points: Sequence[SharingPoint]) -> tuple[float, float]:
    """The heights that are drawn: every interval of a method that is not far below, and some room."""
    near = [point for point in points if point.gain >= LOWEST]
    ends = [0.0, *(point.gain for point in near)]
    ends += [end for point in near for end in (point.low, point.high) if end is not None]
    low, high = max(min(ends), 1.2 * LOWEST), min(max(ends), 2 * max(ends[: len(near) + 1]) - LOWEST)
    room = 0.12 * max(high - low, 1.0)
    below = len(near) < len(points)
    return low - room * (2 if below else 1), high + room


def _names(axes: Axes, points: Sequence[SharingPoint]) -> None:
    """Names right of the axes, at the heights of the points and apart where they would overlap."""
    low, high = axes.get_ylim()
    # Those at the lower edge in the order of what they are at.
    drawn = {point.label: low + 1e-3 * point.gain if point.gain < LOWEST else point.gain for point in points}
    heights = spread_out({label: (height - low) / (high - low) for label, height in drawn.items()}, LABEL_GAP)
    least = -0.04
    for label in sorted(heights, key=lambda label: heights[label]):  # none below the axis
        heights[label] = max(heights[label], least)
        least = heights[label] + LABEL_GAP
    for point in points:
        number = f" {point.gain:+.0f}".replace("-", "−") if point.gain < LOWEST else ""
        axes.annotate(
            f"{for_plot(point.label)}{number}",
            xy=(point.kilobits, max(drawn[point.label], low)),
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
