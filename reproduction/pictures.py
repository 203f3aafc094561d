"""The paper's figures as pictures: finished runs as curves in panels, or as differences with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.comparison.records import Record
from kfl.plots import FORMATS, Style, curves_of, save, style_of
from reproduction.panels import Differences, plot_differences, plot_panels
from reproduction.panels import Panel as DrawnPanel
from reproduction.results import Store, gap
from reproduction.setting import EQUAL_WORK, Figure, Panel, Scale

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
    seeds = _seeds(panels, store, scale)
    if figure.shows == "difference":
        rows = [_differences(panel, store, scale) for panel in panels]
        note = f"Dots: means over {seeds}; lines: 95 % intervals, paired by seed."
        return plot_differences(title, rows, note=note, colour=colour)
    drawn: list[DrawnPanel] = []
    for first in range(0, len(panels), figure.columns):
        row = panels[first : first + figure.columns]
        curves = [_drawn(panel, figure, store, scale) for panel in row]
        drawn += curves
        if figure.shows == "accuracy" and len(row) == figure.columns and all(map(_coincide, curves)):
            drawn += [_minus(panel, store, scale) for panel in row]
    note = f"Lines: means over {seeds}; bands: ± one standard deviation over them."
    return plot_panels(title, drawn, figure.columns, note=note, colour=colour)


def _seeds(panels: Sequence[Panel], store: Store, scale: Scale) -> str:
    """The seeds of a figure, in words."""
    found = sorted({seed for panel in panels for line in panel.lines for seed in store.seeds(line, scale)})
    return f"seeds {found[0]} to {found[-1]}" if len(found) > 1 else f"seed {found[0]} alone"


COINCIDE = 1.0
"""Points: curves that end nearer than this to another are hard to tell apart."""


def _coincide(panel: DrawnPanel) -> bool:
    """Whether lines over rounds end so near to each other that their difference is what there is to see."""
    ends = sorted(float(curve.mean[-1]) for curve in panel.curves if curve.feasible)
    near = any(b - a < COINCIDE for a, b in pairwise(ends))
    return panel.across == "rounds" and near


def _minus(panel: Panel, store: Store, scale: Scale) -> DrawnPanel:
    """The other lines of a panel minus the first, seed by seed."""
    baseline = panel.lines[0]
    theirs = store.seeds(baseline, scale)
    rows = [
        {**_less(row, theirs[seed]), "algorithm": line.style, "label": line.label}
        for line in panel.lines[1:]
        for seed, row in store.seeds(line, scale).items()
        if seed in theirs
    ]
    styles = {line.label: LINE_STYLES.get(line.style) or style_of(line.style) for line in panel.lines}
    curves = curves_of(rows, panel.across)
    return DrawnPanel(f"the same, minus {baseline.label}", curves, styles, panel.across, minus=baseline.label)


def _less(row: Record, other: Record) -> Record:
    """The row with its accuracy less the other's, in the rounds in which both were tested."""
    known = dict(zip(other["curve"]["rounds"], other["curve"]["accuracy"], strict=True))
    kept = [index for index, number in enumerate(row["curve"]["rounds"]) if number in known]
    curve = {name: [values[index] for index in kept] for name, values in row["curve"].items()}
    curve["accuracy"] = [a - known[number] for a, number in zip(curve["accuracy"], curve["rounds"], strict=True)]
    return {**row, "curve": curve}


def _drawn(panel: Panel, figure: Figure, store: Store, scale: Scale) -> DrawnPanel:
    energy = figure.shows == "energy"
    rows = [
        {**(_as_energy(row) if energy else row), "algorithm": line.style, "label": line.label}
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
        rivals=[(rival.label, style_of(rival.style).color) for rival in rivals],
        found=[None if found is None else (found.mean, found.low, found.high) for found in gaps],
    )
