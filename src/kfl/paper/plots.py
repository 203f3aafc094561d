"""Figures in the style of a journal: small panels, bands over seeds, names at the lines, readable in grey."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.core.errors import MissingExtraError
from kfl.core.files import write_atomic
from kfl.paper.measures import gap
from kfl.paper.setting import Figure, Panel, Scale
from kfl.paper.store import Store
from kfl.simulation.curves import LABELS, STYLES, lines_of, scale_x, spread_out, y_range
from kfl.simulation.curves import Line as Curve
from kfl.simulation.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MORE_STYLES: dict[str, tuple[str, Any, float]] = {
    "descend": ("#0b3d91", "-", 2.2),
    "uniform": ("#b07d00", (0, (5, 2)), 1.8),
    "ascend": ("#00805a", (0, (1, 1.2)), 2.0),
    "v0.1": ("#0b3d91", "-", 2.2),
    "v0.01": ("#3a9bd9", (0, (7, 1.5)), 2.0),
    "round-robin": ("#b07d00", (0, (4, 1, 1, 1)), 1.8),
    "myopic": ("#333333", (0, (1, 1.2)), 1.8),
}
PANEL_IN = (3.7, 2.75)
"""Width and height of one panel with its margins, in inches."""
DOT_ROWS_IN = 0.42
DOT_LABEL = 42
"""Characters in a line of a condition's name."""
NAME_GAP = 0.075
"""Between the names of two lines, as a share of the panel's height."""
TICKS = 5
"""About so many on a horizontal axis."""
KINDS = ("png", "svg", "pdf")


def draw(figure: Figure, store: Store, scale: Scale, folder: Path) -> list[Path]:
    """Draw what there is of a figure as PNG, SVG and PDF; the files."""
    drawing = picture(figure, store, scale)
    if drawing is None:
        return []
    with _style():
        return [_save(drawing, folder / f"{figure.name}{'-quick' * scale.quick}.{kind}") for kind in KINDS]


def picture(figure: Figure, store: Store, scale: Scale) -> Drawing | None:
    """What there is of a figure, drawn; None where there is nothing."""
    try:
        from matplotlib.figure import Figure as Drawing
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "plot", "Drawing the figures") from problem
    panels = [panel for panel in figure.panels if any(store.seeds(line, scale) for line in panel.lines)]
    if not panels:
        return None
    with _style():
        drawing = Drawing(layout="constrained")
        if figure.shows == "difference":
            _dots(drawing, panels, store, scale)
        else:
            _grid(drawing, figure, panels, store, scale)
        mark = f"\n{scale.mark}" if scale.mark else ""
        drawing.suptitle(
            figure.title + mark, fontsize=10, x=0.01, ha="left", color="#a02020" if scale.quick else "black"
        )
    return drawing


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context

    return rc_context({"font.size": 8.5, "axes.titlesize": 8.5, "svg.hashsalt": "kfl", "font.family": "DejaVu Sans"})


def _save(drawing: Drawing, path: Path) -> Path:
    buffer, kind = io.BytesIO(), path.suffix.lstrip(".")
    # With no date, so that the same results give the same file.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    drawing.savefig(buffer, format=kind, dpi=170, metadata=metadata)
    write_atomic(path, buffer.getvalue())
    return path


def _grid(drawing: Drawing, figure: Figure, panels: Sequence[Panel], store: Store, scale: Scale) -> None:
    rows = -(-len(panels) // figure.columns)
    drawing.set_size_inches(PANEL_IN[0] * figure.columns, PANEL_IN[1] * rows + 0.45)
    axes = drawing.subplots(rows, figure.columns, squeeze=False)
    for place, spot in enumerate(axes.flat):
        if place < len(panels):
            _panel(spot, panels[place], figure, store, scale)
        else:
            spot.set_visible(False)


def _panel(axes: Axes, panel: Panel, figure: Figure, store: Store, scale: Scale) -> None:
    styles = {line.label: STYLES.get(line.style) or MORE_STYLES[line.style] for line in panel.lines}
    rows = [
        {**_shown(row, figure), "algorithm": line.label}
        for line in panel.lines
        for row in store.seeds(line, scale).values()
    ]
    curves = lines_of(rows, panel.across)
    low, end = scale_x(axes, curves, panel.across, ticks=TICKS)
    for curve in reversed(curves):  # the first line on top
        colour, dashes, width = styles[curve.name]
        x, mean, deviation = curve.drawn(low, end)
        axes.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.13, linewidth=0)
        marker = "o" if len(x) == 1 else ""  # a run that was done with its energy before its second test
        axes.plot(x, mean, color=colour, linestyle=dashes, linewidth=width, marker=marker, markersize=4)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("round" if panel.across == "rounds" else LABELS[panel.across][0])
    energy = figure.shows == "energy"
    axes.set_ylabel("energy used, % of the budget" if energy else "accuracy over all devices, %")
    top = max(100.0, *(float(curve.mean.max()) for curve in curves))
    axes.set_ylim(*((0.0, 1.06 * top) if energy else y_range(curves)))
    if energy:
        axes.axhline(100, color="#888888", linewidth=0.8)
    axes.grid(color="#e3e6ea", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _names(axes, curves, styles, end)


def _names(axes: Axes, curves: Sequence[Curve], styles: dict[str, tuple[str, Any, float]], end: float) -> None:
    """Names right of the axes at the height of the lines' ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    wanted = {curve.name: (float(np.clip(curve.mean[-1], low, high)) - low) / (high - low) for curve in curves}
    for curve in curves:
        if not curve.flat and curve.x[-1] < end:  # a line that ends early is led to its name
            y = low + wanted[curve.name] * (high - low)
            axes.plot([curve.x[-1], end], [y, y], color=styles[curve.name][0], linewidth=0.6, linestyle=":")
    lead = {"arrowstyle": "-", "linewidth": 0.6, "linestyle": ":", "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)}
    for name, place in _below_the_title(spread_out(wanted, NAME_GAP)).items():
        axes.annotate(
            name,
            xy=(1.0, wanted[name]),
            xytext=(1.06, place),
            xycoords="axes fraction",
            color=styles[name][0],
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={**lead, "color": styles[name][0]},
        )


def _below_the_title(places: dict[str, float]) -> dict[str, float]:
    """The same heights, pushed down where the highest would run into the title."""
    found, most = {}, 0.98
    for name in sorted(places, key=lambda name: -places[name]):
        found[name] = min(places[name], most)
        most = found[name] - NAME_GAP
    return found


def _shown(row: Record, figure: Figure) -> Record:
    """The row as the curves want it: what is drawn goes where accuracy is read."""
    if figure.shows != "energy":
        return row
    share = [joules / row["budget_j"] for joules in row["curve"]["joules"]]
    return {**row, "curve": {**row["curve"], "accuracy": share}}


def _dots(drawing: Drawing, panels: Sequence[Panel], store: Store, scale: Scale) -> None:
    """The first line minus each other, one row per panel, with its interval."""
    drawing.set_size_inches(7.4, DOT_ROWS_IN * len(panels) + 1.2)
    axes = drawing.subplots()
    rivals = panels[0].lines[1:]
    for row, panel in enumerate(panels):
        for place, rival in enumerate(panel.lines[1:]):
            found = gap(store, scale, panel.lines[0].key, rival.key)
            if found is None:
                continue
            y = row + 0.24 * (place - 1)
            colour = STYLES[rival.style][0]
            if found.low is not None and found.high is not None:
                axes.plot([found.low, found.high], [y, y], color=colour, linewidth=1.6)
            marker = "so^"[place]
            label = f"minus {rival.label}" if row == 0 else None
            axes.plot([found.mean], [y], marker, color=colour, markersize=5, label=label)
    axes.axvline(0, color="#555555", linewidth=0.9)
    axes.set_yticks(range(len(panels)), [fill(panel.title, DOT_LABEL) for panel in panels])
    axes.set_ylim(len(panels) - 0.4, -0.6)
    axes.set_xlabel("points of accuracy, with the 95 % interval over seeds")
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if rivals:
        # Above, where no condition can lie under it.
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=len(rivals), handletextpad=0.2, borderpad=0
        )
