"""What a page is made of: charts as plain dictionaries for Plotly, each with a sentence and a table that say the same.

Colours are roles, such as "@c1" or "@muted", and "@c1/0.2" with an opacity; the page turns them into the colours of
its light or dark theme, and "@scale" into a scale that can be seen there. Text from run folders is escaped where it is
put into a chart, because Plotly reads some HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Figure = dict[str, Any]
"""`data` and `layout` as Plotly takes them."""
FloatArray = NDArray[np.float64]

COLOURS = ("@c1", "@c2", "@c3", "@c4", "@c5", "@c6", "@c7", "@c8")
DASHES = ("solid", "dash", "dot", "dashdot")
SCALE = "@scale"
"""From little to much; its ends can be seen on the light page and on the dark one."""
MOST_ROWS = 40
"""Rows of a table that are shown; a table is thinned to these."""


@dataclass(frozen=True)
class Table:
    """A table of texts: a heading per column, and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """Said under the table, such as how it was thinned."""
    groups: tuple[int, ...] = ()
    """The group of a comparison that each row is about, where rows are."""


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
    Table(columns=('round',), rows=(('1',), ('3',)), note='2 of 3 rows.', groups=())
    """
    kept = [tuple(rows[index]) for index in thinned(len(rows), most)]
    total = len(rows) if total is None else total
    note = f"{len(kept):,} of {total:,} {of}." if len(kept) < total else ""
    return Table(tuple(columns), tuple(kept), note)


def figure(traces: list[Any], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """Traces on two axes; further keywords belong to the layout."""
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title.

    With `si="J"` its values are in that unit, and the page chooses the prefix: it scales values and ticks, and writes
    the unit behind the title. In a hover text of such a chart, `[[y]]` stands for the unit.
    """
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
    return {"color": values, "colorscale": SCALE, "showscale": True, "colorbar": colour_bar(title, **style)}


def colour_bar(title: str, **style: Any) -> dict[str, Any]:
    """The scale beside a chart."""
    return {"title": {"text": title, "side": "right"}, "thickness": 10, **style}


def ink(index: int) -> str:
    """The colour of a group in a comparison."""
    return COLOURS[index % len(COLOURS)]


def stroke(index: int) -> dict[str, str]:
    """The dashes of a group in a comparison, so that lines can be told apart without colours, and nine groups too.

    >>> stroke(0), stroke(8)
    ({'dash': 'solid'}, {'dash': 'dash'})
    """
    return {"dash": DASHES[(index + index // len(COLOURS)) % len(DASHES)]}


def band(
    name: str, x: list[Any], low: list[Any], high: list[Any], colour: str, opacity: float = 0.16
) -> list[dict[str, Any]]:
    """The space between two lines."""
    edge = {"width": 0, "color": colour}
    common = {"type": "scatter", "mode": "lines", "x": x, "line": edge, "hoverinfo": "skip", "legendgroup": name}
    return [
        {**common, "y": low, "showlegend": False},
        {**common, "y": high, "name": name, "fill": "tonexty", "fillcolor": f"{colour}/{opacity:g}"},
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
