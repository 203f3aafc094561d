"""Accuracy curves: of a comparison, means over seeds with bands and names at the ends of the lines; of one run.

Every line has its own color, dashes and label, so that the plot can be read in grayscale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kfl.comparison.records import curve
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.core.names import for_plot
from kfl.plots.style import LONGEST_TITLE, Style, new_figure, plain_axes, save, spread_out, style_of, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kfl.comparison.records import Record
    from kfl.simulation import History

    FloatArray = NDArray[np.float64]

Axis = Literal["rounds", "joules", "seconds", "bits"]

LABELS: dict[Axis, tuple[str, str]] = {
    "rounds": ("rounds", ""),
    "joules": ("energy spent by all devices", "J"),
    "seconds": ("time in the cell", "s"),
    "bits": ("uploaded by all devices", "bit"),
}
"""The label of each axis, and its unit."""

HEAVY = 2.0
"""A line wider than this, in points, is the one that a comparison is about: on top, its name in bold."""
SIZE_IN = (8.2, 4.8)
"""Width and height of the plot of a comparison in inches,"""
HISTORY_IN = (6.4, 3.8)
"""and of one run."""
ROOM = 20
"""Letters of a name that fit next to the plot; longer ones make the picture wider."""
LETTER_IN = 0.08
"""Width of a letter of a name, in inches."""
GRID = 200
"""Points at which curves of different seeds are interpolated."""
LOG_FROM = 20.0
"""The axis is logarithmic where the ends of the curves differ by more than this factor."""


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean of one entry's curves and its standard deviation, in per cent."""

    name: str
    x: FloatArray
    mean: FloatArray
    deviation: FloatArray
    feasible: bool
    """False where no device could take part in any round."""

    @property
    def flat(self) -> bool:
        """Whether nothing was spent: then it is a level, not a curve."""
        return bool(self.x[-1] == 0)

    def drawn(self, low: float, high: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What is drawn between these ends of the axis, with mean and deviation: the curve, or a level across."""
        if not self.flat:
            return self.x, self.mean, self.deviation
        return np.array([low, high]), np.repeat(self.mean[-1:], 2), np.repeat(self.deviation[-1:], 2)


def curves_of(records: Sequence[Record], x: Axis) -> list[Curve]:
    """One line per label, in the order of the records.

    Args:
        records: The results of runs.
        x: Rounds, joules, seconds or bits.
    """
    curves: dict[str, list[Record]] = {}
    for record in records:
        curves.setdefault(str(record.get("label", record["algorithm"])), []).append(record)
    return [_curve(name, some, x) for name, some in curves.items()]


def _curve(name: str, records: Sequence[Record], x: Axis) -> Curve:
    """The mean of the seeds, round by round: of what they had spent by then, and of their accuracy.

    So a line ends where the runs end on average, with their mean accuracy. Runs that were tested in different rounds
    are read off at common points instead, as far as all of them go.
    """
    feasible = any(r["devices_per_round"] > 0 for r in records)
    if len({tuple(r["curve"]["rounds"]) for r in records}) == 1:
        spent = np.array([r["curve"][x] for r in records], dtype=np.float64).mean(axis=0)
        values = 100 * np.array([r["curve"]["accuracy"] for r in records])
        at, values = _rising(spent, values)
    else:
        seeds = [_rising(np.array(r["curve"][x]), 100 * np.array(r["curve"]["accuracy"])) for r in records]
        start, end = max(float(xs[0]) for xs, _ in seeds), min(float(xs[-1]) for xs, _ in seeds)
        at = np.linspace(start, end, GRID) if start < end else np.array([end])
        values = np.array([np.interp(at, xs, ys) for xs, ys in seeds])
    deviation = values.std(axis=0, ddof=1) if len(records) > 1 else np.zeros(len(at))
    return Curve(name, at, values.mean(axis=0), deviation, feasible)


def _rising(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where several rounds cost nothing, the accuracy after the last of them; accuracies are along the last axis."""
    last = np.append(x[1:] > x[:-1], True)
    return x[last], y[..., last]


def plot_curves(records: Sequence[Record], x: Axis, files: Sequence[Path], title: str) -> Figure:
    """Draw the comparison, and write it into files; their endings decide the formats (png, svg, pdf).

    Args:
        records: The results of runs.
        x: Rounds, joules, seconds or bits.
        files: What to write.
        title: Above the plot.
    """
    lines = curves_of(records, x)
    styles = styles_of([line.name for line in lines])
    longest = max(len(_name(line)) for line in lines)
    width = SIZE_IN[0] + max(0, longest - ROOM) * LETTER_IN  # the plot stays, the margin grows
    figure = new_figure("Plotting a comparison", figsize=(width, SIZE_IN[1]))
    axes = figure.add_axes((0.085 * SIZE_IN[0] / width, 0.125, 0.70 * SIZE_IN[0] / width, 0.775))
    _scale(axes, lines, x)
    for line in sorted(lines, key=lambda line: styles[line.name].width > HEAVY):
        if line.feasible:
            _draw(axes, line, styles[line.name])
    _labels(axes, lines, styles)
    axes.set_title(for_plot(title, LONGEST_TITLE), loc="left", fontsize=10.5)
    some = any("tested_devices" in record for record in records)
    axes.set_ylabel(f"accuracy over {'tested' if some else 'all'} devices, %")
    for path in files:
        save(figure, path)
    return figure


def _scale(axes: Axes, lines: Sequence[Curve], x: Axis) -> None:
    """Axes that show the differences: the first steep rise may leave the picture below."""
    scale_x(axes, lines, x, ticks=8)
    across = "; lines across the picture: nothing at all" if any(line.flat and line.feasible for line in lines) else ""
    axes.set_xlabel(LABELS[x][0] + across)
    axes.set_ylim(*y_range(lines))
    plain_axes(axes)


def scale_x(axes: Axes, lines: Sequence[Curve], x: Axis, ticks: int) -> tuple[float, float]:
    """The horizontal axis, logarithmic where lines end far apart, with roughly `ticks` ticks; its two ends."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    curves = [line for line in lines if not line.flat]
    ends = [float(line.x[-1]) for line in curves]
    low, high = 0.0, max(ends, default=1.0)
    if ends and high > LOG_FROM * min(ends) and x != "rounds":
        low = min(float(line.x[line.x > 0][0]) for line in curves)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=ticks))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=x == "rounds"))
    axes.set_xlim(low, high)
    if LABELS[x][1]:
        axes.xaxis.set_major_formatter(EngFormatter(unit=LABELS[x][1]))
    return low, high


def y_range(lines: Sequence[Curve]) -> tuple[float, float]:
    """All of every curve but its first tenth, which may be a steep rise that would press the rest together."""
    lines = [line for line in lines if line.feasible] or lines
    top = max(float((line.mean + line.deviation).max()) for line in lines)
    bottom = min(float((line.mean - line.deviation)[line.x >= 0.1 * line.x[-1]].min()) for line in lines)
    bottom = min(bottom, top - 1.0)
    margin = 0.04 * (top - bottom)
    return max(0.0, bottom - margin), min(100.5, top + margin)


def _draw(axes: Axes, line: Curve, drawn: Style) -> None:
    color, style, width = drawn
    x, mean, deviation = line.drawn(*axes.get_xlim())
    axes.fill_between(x, mean - deviation, mean + deviation, color=color, alpha=0.1, linewidth=0)
    axes.plot(x, mean, color=color, linestyle=style, linewidth=width)
    if not line.flat:
        axes.plot(x[-1:], mean[-1:], "o", color=color, markersize=4.5, clip_on=False, zorder=5)


def _labels(axes: Axes, lines: Sequence[Curve], styles: Mapping[str, Style]) -> None:
    """Names in the right margin at the height of the line's end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    size = SIZE_IN[1] * axes.get_position().height * 72  # points
    # What could not run has no line; its name stands at the bottom.
    wanted = {line.name: (float(line.mean[-1]) - low) / (high - low) if line.feasible else 0.0 for line in lines}
    heights = spread_out(wanted, 12.5 / size)
    to_fraction = axes.transData + axes.transAxes.inverted()
    right = axes.get_xlim()[1]
    for line in lines:
        color = styles[line.name].color
        end = right if line.flat else float(line.x[-1])
        x_end, y_end = to_fraction.transform((end, float(line.mean[-1])))
        height = heights[line.name]
        if line.feasible:
            _connect(axes, (x_end, y_end), height, color)
        bold = "bold" if styles[line.name].width > HEAVY else "normal"
        axes.text(
            1.052,
            height,
            _name(line),
            transform=axes.transAxes,
            color=color,
            fontsize=9.5,
            fontweight=bold,
            va="center",
            linespacing=1.0,
        )


def _connect(axes: Axes, end: tuple[float, float], height: float, color: str) -> None:
    """A thin line from the end of a curve to its name; dotted, so that it is not mistaken for a curve."""
    x, y = [end[0] + 0.008, 1.032, 1.045], [end[1], height, height]
    axes.plot(x, y, transform=axes.transAxes, color=color, linewidth=0.8, linestyle=":", clip_on=False)


def _name(line: Curve) -> str:
    name = for_plot(line.name)
    return name if line.feasible else f"{name}: not feasible"


def plot_history(history: History, x: Axis = "rounds", axes: Axes | None = None) -> Axes:
    """Draw the accuracy of one run; behind `History.plot`.

    Args:
        history: the run.
        x: what accuracy is drawn against.
        axes: Matplotlib axes to draw into; None for a new figure of pyplot, which a notebook shows.

    Returns:
        The axes.
    """
    if x not in get_args(Axis):
        raise ConfigError("x", x, f"one of {', '.join(get_args(Axis))}", choices=get_args(Axis))
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "plot", "Plotting a run") from problem
    if axes is None:
        _, axes = pyplot.subplots(figsize=HISTORY_IN, layout="constrained")
    name = str(history.summary.get("algorithm", "run"))
    points, (label, unit) = curve(history.rounds), LABELS[x]
    color, dashes, width = style_of(name)
    heights = [100 * accuracy for accuracy in points["accuracy"]]
    axes.plot(points[x], heights, color=color, linestyle=dashes, linewidth=width, label=for_plot(name))
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy over tested devices, %")
    if unit:
        axes.xaxis.set_major_formatter(EngFormatter(unit=unit))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(axes)
    return axes
