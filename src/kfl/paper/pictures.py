"""The paper's figures as pictures: finished runs as curves in panels, or as differences with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kfl.paper.results import Store, gap
from kfl.paper.setting import EQUAL_WORK, Figure, Panel, Scale
from kfl.plots import FORMATS, Differences, Style, curves_of, plot_differences, plot_panels, save, style_of
from kfl.plots import Panel as DrawnPanel
from kfl.simulation.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

LINE_STYLES: dict[str, Style] = {
    EQUAL_WORK: style_of("fedrep")._replace(dashes=(0, (1, 1.2))),
    "descend": Style("#0b3d91", "-", 2.2),
    "uniform": Style("#b07d00", (0, (5, 2)), 1.8),
    "ascend": Style("#00805a", (0, (1, 1.2)), 2.0),
    "v0.1": Style("#0b3d91", "-", 2.2),
    "v0.01": Style("#3a9bd9", (0, (7, 1.5)), 2.0),
    "round-robin": Style("#b07d00", (0, (4, 1, 1, 1)), 1.8),
    "myopic": Style("#333333", (0, (1, 1.2)), 1.8),
}
"""Lines that are schedulers, or an algorithm once more; algorithms have styles of their own."""


def draw(figure: Figure, store: Store, scale: Scale, folder: Path) -> list[Path]:
    """Draw what there is of a figure as PNG, SVG and PDF; the files."""
    drawing = picture(figure, store, scale)
    if drawing is None:
        return []
    return [save(drawing, folder / f"{figure.name}{'-quick' * scale.quick}.{kind}") for kind in FORMATS]


def picture(figure: Figure, store: Store, scale: Scale) -> Drawing | None:
    """What there is of a figure, drawn; None where there is nothing."""
    panels = [panel for panel in figure.panels if any(store.seeds(line, scale) for line in panel.lines)]
    if not panels:
        return None
    title = figure.title + (f"\n{scale.mark}" if scale.mark else "")
    colour = "#a02020" if scale.quick else "black"
    if figure.shows == "difference":
        return plot_differences(title, [_differences(panel, store, scale) for panel in panels], colour=colour)
    drawn = [_drawn(panel, figure, store, scale) for panel in panels]
    return plot_panels(title, drawn, figure.columns, colour=colour)


def _drawn(panel: Panel, figure: Figure, store: Store, scale: Scale) -> DrawnPanel:
    energy = figure.shows == "energy"
    rows = [
        {**(_as_energy(row) if energy else row), "algorithm": line.label}
        for line in panel.lines
        for row in store.seeds(line, scale).values()
    ]
    styles = {line.label: LINE_STYLES.get(line.style) or style_of(line.style) for line in panel.lines}
    return DrawnPanel(panel.title, curves_of(rows, panel.across), styles, panel.across, energy)


def _as_energy(row: Record) -> Record:
    """The row with the share of the budget that was used where the curves read accuracy."""
    share = [joules / row["budget_j"] for joules in row["curve"]["joules"]]
    return {**row, "curve": {**row["curve"], "accuracy": share}}


def _differences(panel: Panel, store: Store, scale: Scale) -> Differences:
    """The first line of a panel minus each other."""
    ours, *rivals = panel.lines
    gaps = [gap(store, scale, ours.key, rival.key) for rival in rivals]
    return Differences(
        title=panel.title,
        rivals=[(rival.label, style_of(rival.style).colour) for rival in rivals],
        found=[None if found is None else (found.mean, found.low, found.high) for found in gaps],
    )
