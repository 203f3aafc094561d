"""Parts of charts: plain dictionaries for Plotly, each chart with a sentence and a table that say the same.

Colors are roles, such as "@c1" or "@muted", and "@c1/0.2" with an opacity. The page turns them into the colors of its
light or dark theme, and "@scale" into a scale that is visible in both. Text from run folders is escaped where it
enters a chart, because Plotly reads some HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import LONGEST_NAME, for_html, for_terminal
from kfl.core.text import DASH, percent, quantity

Figure = dict[str, Any]
"""`data` and `layout` as Plotly takes them."""
FloatArray = NDArray[np.float64]

COLORS = ("@c1", "@c2", "@c3", "@c4", "@c5", "@c6", "@c7", "@c8")
DASHES = ("solid", "dash", "dot", "dashdot")
SCALE = "@scale"
"""From little to much; its ends are visible on the light page and on the dark one."""
MOST_ROWS = 40
"""Rows of a table; a longer one is thinned to these."""
MOST_COLUMNS = 12
"""Columns up to which the table of a chart takes in what its further views show."""
PERCENT = {"tickformat": ".2~%"}
"""An axis of shares."""


@dataclass(frozen=True)
class Table:
    """A table of texts: a heading per column, and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """Shown under the table, such as how it was thinned."""
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
    """None for the numbers of the figures themselves, see `table_of`."""
    wide: bool = False
    """Whether it takes the whole width of the page."""
    tall: bool = False
    frames: dict[str, Any] | None = None
    """What a slider over rounds moves, where there is one."""

    @property
    def numbers(self) -> Table:
        """The table below the chart."""
        return self.table or table_of(self.views)


def chart_label(name: str) -> str:
    """Return a name for a chart, whose labels are HTML: one short line.

    >>> chart_label("a<b>")
    'a&lt;b&gt;'
    """
    return for_html(for_terminal(name, LONGEST_NAME))


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Return numbers for JSON: as many digits as a plot shows, None for what is not finite.

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
    """Return the indices to keep of `count`: all, or `most` of them evenly spaced, both ends included.

    >>> thinned(5, 9).tolist(), thinned(100, 3).tolist()
    ([0, 1, 2, 3, 4], [0, 50, 99])
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, most)).astype(np.int64))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, total: int | None = None, of: str = "rows"
) -> Table:
    """Return a table, thinned where it is long. A note says so, or that `rows` are only some of a `total`."""
    kept = [tuple(rows[index]) for index in thinned(len(rows), MOST_ROWS)]
    total = len(rows) if total is None else total
    note = f"{len(kept):,} of {total:,} {of}." if len(kept) < total else ""
    return Table(tuple(columns), tuple(kept), note)


def table_of(views: Mapping[str, Figure]) -> Table:
    """Return the numbers of a chart: a row per place on the horizontal axis, a column per line, bar or band.

    Further views add columns while there is room: what they show at the same places, and the places they show the
    same values at.

    >>> spent = figure([line("a", [1, 2], [0.5, 0.75], "@c1")], axis("round"), axis("accuracy", **PERCENT))
    >>> joules = figure([line("a", [3, 4], [0.5, 0.75], "@c1")], axis("energy", si="J"), axis("accuracy"))
    >>> table_of({"Rounds": spent, "Joules": joules}).rows
    (('1', '50.00 %', '3 J'), ('2', '75.00 %', '4 J'))
    """
    first, *others = views.values()
    across = first["layout"]["xaxis"]
    drawn = [trace for trace in first["data"] if trace.get("x")]
    columns = [_places(drawn, across), *_columns(first)]
    for other in others:
        if _title(other["layout"]["xaxis"]) == _title(across):
            more = _columns(other, [heading for heading, _ in columns])
        else:
            more = _other_places(drawn, other)
        columns += more if len(columns) + len(more) <= MOST_COLUMNS else []
    what = _points(drawn)
    if what is not None:
        columns.insert(1, (what, dict(enumerate(map(str, drawn[0]["customdata"])))))
    rows = [tuple(cells.get(place, DASH) for _, cells in columns) for place in columns[0][1]]
    return table([heading for heading, _ in columns], rows)


Column = tuple[str, dict[Any, str]]
"""A heading, and texts by their places."""


def _points(traces: Sequence[Mapping[str, Any]]) -> str | None:
    """What single points are, where several share a place, as uploads share a round; else places are rows."""
    return next((str(trace["meta"]["points"]) for trace in traces if "points" in trace.get("meta", {})), None)


def _at(trace: Mapping[str, Any], values: Sequence[Any], *, single: bool) -> dict[Any, Any]:
    return dict(enumerate(values)) if single else dict(zip(trace["x"], values, strict=True))


def _places(traces: Sequence[Mapping[str, Any]], x_axis: Mapping[str, Any]) -> Column:
    single = _points(traces) is not None
    found = {place: x for trace in traces for place, x in _at(trace, trace["x"], single=single).items()}
    return _title(x_axis), {place: _cell(x, x_axis) for place, x in found.items()}


def _columns(shown: Figure, known: Sequence[str] = ()) -> list[Column]:
    """A column per line or bar, and one per band; with what it shows where its name is `known` as another's."""
    traces, y_axis = [trace for trace in shown["data"] if trace.get("x")], shown["layout"]["yaxis"]
    single = _points(traces) is not None
    names = [trace.get("name", "") for trace in traces if "fill" not in trace and trace.get("showlegend") is not False]
    columns: list[Column] = []
    for before, trace in zip([None, *traces], traces, strict=False):
        cells = [_cell(y, y_axis) for y in trace["y"]]
        heading = trace.get("name", "") if len(names) > 1 or not known else ""
        if trace.get("fill") == "tonexty" and before is not None:  # the upper edge of a band, after its lower one
            cells = [f"{_cell(low, y_axis)} to {high}" for low, high in zip(before["y"], cells, strict=True)]
            heading = f"{heading}, band" if heading in names else heading
        elif trace.get("hoverinfo") == "skip":
            continue
        heading = heading or _title(y_axis)
        heading = f"{heading}: {_title(y_axis)}" if heading in known else heading
        columns.append((heading, _at(trace, cells, single=single)))
    return columns


def _other_places(traces: Sequence[Mapping[str, Any]], other: Figure) -> list[Column]:
    """What the places of another view are, at which it shows the same values: of one run, what it had spent by then."""
    x_axis = other["layout"]["xaxis"]
    pairs = zip(traces, [trace for trace in other["data"] if trace.get("x")], strict=False)
    found = [(ours, theirs) for ours, theirs in pairs if ours["y"] == theirs["y"] and ours.get("hoverinfo") != "skip"]
    if not found or len({trace["meta"]["group"] for trace in traces if "group" in trace.get("meta", {})}) > 1:
        return []
    ours, theirs = found[0]
    return [(_title(x_axis), dict(zip(ours["x"], (_cell(x, x_axis) for x in theirs["x"]), strict=True)))]


def _title(of: Mapping[str, Any]) -> str:
    return str(of["title"]["text"])


def _cell(value: Any, of: Mapping[str, Any]) -> str:
    """A value of an axis as the axis would label it."""
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    if "si" in of:
        return quantity(value, of["si"])
    return percent(value) if "%" in of.get("tickformat", "") else f"{value:,.5g}"


def figure(traces: list[Any], x: dict[str, Any], y: dict[str, Any], **layout: Any) -> Figure:
    """Return traces on two axes; further keywords belong to the layout."""
    return {"data": traces, "layout": {"xaxis": x, "yaxis": y, **layout}}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title.

    With `si="J"` its values are in that unit, and the page chooses the prefix: it scales values and ticks, and writes
    the unit behind the title. In a hover text of such a chart, `[[y]]` stands for the unit.
    """
    return {"title": {"text": title}, **more}


def line(name: str, x: Sequence[Any], y: Sequence[Any], color: str, **more: Any) -> dict[str, Any]:
    """Return a line of a chart."""
    style = {"color": color, "width": 2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": style, **more}


def dots(x: list[Any], y: list[Any], marker: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return separate points."""
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, **more}


def bars(name: str, x: list[Any], y: list[Any], marker: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return bars."""
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": marker, **more}


def hatched(color: str, shape: str, size: int = 6) -> dict[str, Any]:
    """Return the filling of bars: colored and hatched, so that they can be told apart in gray."""
    return {"color": color, "pattern": {"shape": shape, "fillmode": "overlay", "fgcolor": "@panel", "size": size}}


def heat_map(z: Any, x_axis: dict[str, Any], y_axis: dict[str, Any], **more: Any) -> Figure:
    """Return a heat map with the first row on top."""
    down = {**y_axis, "autorange": "reversed", "showgrid": False, "nticks": 12}
    return figure([{"type": "heatmap", "z": z, **more}], {**x_axis, "showgrid": False}, down, hovermode="closest")


def colors_by(values: list[Any], title: str, **style: Any) -> dict[str, Any]:
    """Return what colors the markers of a trace by a value, with a scale next to the chart."""
    return {"color": values, "colorscale": SCALE, "showscale": True, "colorbar": color_bar(title, **style)}


def color_bar(title: str, **style: Any) -> dict[str, Any]:
    """Return the scale next to a chart."""
    return {"title": {"text": title, "side": "right"}, "thickness": 10, **style}


def ink(index: int) -> str:
    """Return the color of a group in a comparison."""
    return COLORS[index % len(COLORS)]


def stroke(index: int) -> dict[str, str]:
    """Return the dashes of a group in a comparison: lines can be told apart without colors, and nine groups, too.

    >>> stroke(0), stroke(8)
    ({'dash': 'solid'}, {'dash': 'dash'})
    """
    return {"dash": DASHES[(index + index // len(COLORS)) % len(DASHES)]}


def band(
    name: str, x: Sequence[Any], low: list[Any], high: list[Any], color: str, opacity: float = 0.16
) -> list[dict[str, Any]]:
    """Return the space between two lines."""
    edge = {"width": 0, "color": color}
    common = {"type": "scatter", "mode": "lines", "x": list(x), "line": edge, "hoverinfo": "skip", "legendgroup": name}
    return [
        {**common, "y": low, "showlegend": False},
        {**common, "y": high, "name": name, "fill": "tonexty", "fillcolor": f"{color}/{opacity:g}"},
    ]


def level(y: float, label: str, *, color: str = "@muted") -> dict[str, Any]:
    """Return the shape and the note of a horizontal line across a chart."""
    anchor = {"xref": "paper", "x": 1, "y": y, "xanchor": "right", "yanchor": "bottom"}
    return {
        "shapes": [dashed(color, xref="paper", x0=0, x1=1, y0=y, y1=y)],
        "annotations": [note(label, color, **anchor)],
    }


def dashed(color: str, **ends: Any) -> dict[str, Any]:
    """Return a dashed line as a shape of the layout."""
    return {"type": "line", "line": {"color": color, "width": 1.5, "dash": "dash"}, **ends}


def note(label: str, color: str, **anchor: Any) -> dict[str, Any]:
    """Return a text in a chart, without an arrow."""
    return {"text": label, "showarrow": False, "font": {"color": color}, **anchor}
