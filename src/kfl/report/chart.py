"""What a page is made of: charts as plain dictionaries for Plotly, each with a sentence and a table that say the same.

Colours are roles, such as "@c1" or "@muted", and "@c1/0.2" with an opacity; the page turns them into the colours of
its light or dark theme. Text from run folders is escaped where it is put into a chart, because Plotly reads some HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.text import shortened
from kfl.report.words import text
from kfl.runfolder import RunData

Figure = dict[str, Any]
"""`data` and `layout` as Plotly takes them."""
FloatArray = NDArray[np.float64]

COLOURS = ("@c1", "@c2", "@c3", "@c4", "@c5", "@c6", "@c7", "@c8")
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_ROWS = 40
"""Rows of a table that are shown; a table is thinned to these."""


@dataclass(frozen=True)
class Table:
    """A table of texts: a heading per column, and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """Said under the table, such as how it was thinned."""


@dataclass(frozen=True)
class Chart:
    """One chart of a page."""

    name: str
    """Its anchor on the page."""
    title: str
    summary: str
    """One or two sentences with what there is to see, for those who see it and those who do not. Plain text."""
    views: dict[str, Figure] = field(default_factory=dict)
    """By label; the first is shown, and a switch offers the others."""
    switch: str = ""
    """What the switch selects, for screen readers."""
    table: Table | None = None
    wide: bool = False
    """Whether it takes the whole width of the page."""
    tall: bool = False
    frames: dict[str, Any] | None = None
    """What a slider over rounds moves, where there is one."""


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Numbers for JSON: as many digits as a plot shows, null for what is not finite.

    >>> numbers([1 / 3, float("nan"), 2.0])
    [0.33333, None, 2]
    """
    return [_short(float(value), digits) for value in values]


def _short(value: float, digits: int) -> float | None:
    if not abs(value) < 1e300:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def thinned(count: int, most: int) -> NDArray[np.int64]:
    """Indices to keep of `count`: all, or `most` of them evenly spaced, both ends included.

    >>> thinned(5, 9).tolist(), thinned(100, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 50, 99])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(np.int64))


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    most: int = MOST_ROWS,
    *,
    total: int | None = None,
    of: str = "rows",
) -> Table:
    """A table, thinned where it is long. A note says so, or that `rows` are only some of a `total`.

    >>> table(["round"], [["1"], ["2"], ["3"]], most=2)
    Table(columns=('round',), rows=(('1',), ('3',)), note='2 of 3 rows.')
    """
    kept = [tuple(rows[index]) for index in thinned(len(rows), most)]
    total = len(rows) if total is None else total
    note = f"{len(kept):,} of {total:,} {of}." if len(kept) < total else ""
    return Table(tuple(columns), tuple(kept), note)


def figure(traces: list[Any], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """Traces on two axes; further keywords belong to the layout."""
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title}, **more}


def line(name: str, x: list[Any], y: list[Any], colour: str, **more: Any) -> dict[str, Any]:
    """A line of a chart."""
    style = {"color": colour, "width": 2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": style, **more}


def dots(x: list[Any], y: list[Any], marker: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Separate points."""
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, **more}


def colours_by(values: list[Any], title: str, **style: Any) -> dict[str, Any]:
    """What colours the markers of a trace by a value, with a scale beside the chart."""
    return {"color": values, "colorscale": "Cividis", "showscale": True, "colorbar": colour_bar(title, **style)}


def colour_bar(title: str, **style: Any) -> dict[str, Any]:
    """The scale beside a chart."""
    return {"title": {"text": title, "side": "right"}, "thickness": 10, **style}


def ink(index: int) -> str:
    """The colour of a run in a comparison."""
    return COLOURS[index % len(COLOURS)]


def stroke(index: int) -> dict[str, str]:
    """The kind of line of a run in a comparison, so that lines can be told apart without colours."""
    return {"dash": DASHES[index % len(DASHES)]}


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A run on a page, with its name and its colour there."""

    run: RunData
    name: str
    colour: int = 0

    @property
    def label(self) -> str:
        """Its name in a chart."""
        return text(shortened(self.name))

    def line(self, x: list[Any], y: list[Any], **more: Any) -> dict[str, Any]:
        """A line in its colour and dashes."""
        style = {**stroke(self.colour), **more.pop("line", {})}
        return line(self.label, x, y, ink(self.colour), line=style, **more)


def gathered(chart: Chart, runs: Sequence[ShownRun], kinds: Mapping[str, int]) -> Chart:
    """A chart of too many runs for a legend: thin lines, and one entry for each kind."""
    names = {shown.label for shown in runs}
    keys = [line(text(kind), [None], [None], ink(index), line=stroke(index)) for kind, index in kinds.items()]

    def thin(trace: dict[str, Any]) -> dict[str, Any]:
        if trace.get("name") not in names:
            return trace
        return {**trace, "showlegend": False, "line": {**trace["line"], "width": 1.2}, "opacity": 0.8}

    views = {
        label: {
            "data": [*map(thin, figure["data"]), *keys],
            "layout": {**figure["layout"], "showlegend": True, "hovermode": "closest"},
        }
        for label, figure in chart.views.items()
    }
    return replace(chart, views=views)


def band(name: str, x: list[Any], low: list[Any], high: list[Any], colour: str) -> list[dict[str, Any]]:
    """The space between two lines."""
    edge = {"width": 0, "color": colour}
    common = {"type": "scatter", "mode": "lines", "x": x, "line": edge, "hoverinfo": "skip", "legendgroup": name}
    return [
        {**common, "y": low, "showlegend": False},
        {**common, "y": high, "name": name, "fill": "tonexty", "fillcolor": f"{colour}/0.16"},
    ]


def level(y: float, label: str, *, colour: str = "@muted") -> dict[str, Any]:
    """Shapes and notes for a horizontal line across a chart."""
    anchor = {"xref": "paper", "x": 1, "y": y, "xanchor": "right", "yanchor": "bottom"}
    return {
        "shapes": [dashed(colour, xref="paper", x0=0, x1=1, y0=y, y1=y)],
        "annotations": [note(label, colour, **anchor)],
    }


def dashed(colour: str, **ends: Any) -> dict[str, Any]:
    """A dashed line as a shape of the layout."""
    return {"type": "line", "line": {"color": colour, "width": 1.5, "dash": "dash"}, **ends}


def note(label: str, colour: str, **anchor: Any) -> dict[str, Any]:
    """A text in a chart, without an arrow."""
    return {"text": label, "showarrow": False, "font": {"color": colour}, **anchor}
