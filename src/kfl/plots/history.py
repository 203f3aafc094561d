"""The curve of one run: accuracy against rounds, or against what all devices have spent; behind `History.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from kfl.comparison.records import curve
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.core.names import for_plot
from kfl.plots.curves import LABELS, Axis
from kfl.plots.style import plain_axes, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kfl.simulation import History

SIZE_IN = (6.4, 3.8)


def plot_history(history: History, x: Axis = "rounds", axes: Axes | None = None) -> Axes:
    """Draw the accuracy of a run into `axes`, or into a new figure of pyplot, which a notebook shows."""
    if x not in get_args(Axis):
        raise ConfigError("x", x, f"one of {', '.join(get_args(Axis))}", choices=get_args(Axis))
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import EngFormatter, MaxNLocator
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "plot", "Plotting a run") from problem
    if axes is None:
        _, axes = pyplot.subplots(figsize=SIZE_IN, layout="constrained")
    name = str(history.summary.get("algorithm", "run"))
    points, (label, unit) = curve(history.rounds), LABELS[x]
    colour, dashes, width = style_of(name)
    heights = [100 * accuracy for accuracy in points["accuracy"]]
    axes.plot(points[x], heights, color=colour, linestyle=dashes, linewidth=width, label=for_plot(name))
    axes.set_xlabel(label)
    axes.set_ylabel("accuracy over tested devices, %")
    if unit:
        axes.xaxis.set_major_formatter(EngFormatter(unit=unit))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(axes)
    return axes
