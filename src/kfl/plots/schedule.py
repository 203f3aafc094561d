"""The energy of each device in a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kfl.core.errors import MissingExtraError
from kfl.core.names import for_plot
from kfl.plots.style import plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kfl.scheduling import ScheduleResult

COMPUTING, UPLOAD = "#0072b2", "#d55e00"
MOST_NAMES = 30
"""Devices above which the axis has numbers in place of names."""


def plot_schedule(result: ScheduleResult, axes: Axes | None = None) -> Axes:
    """Draw the energy of each device as bars; behind `ScheduleResult.plot`.

    Args:
        result: The schedule.
        axes: Matplotlib axes to draw into; None for a new figure of pyplot, which a notebook shows.

    Returns:
        The axes.
    """
    try:
        from matplotlib import pyplot
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "plot", "Plotting a schedule") from problem
    if axes is None:
        _, axes = pyplot.subplots(figsize=(7.0, 3.5), layout="constrained")
    at = np.arange(result.problem.size)
    axes.bar(at, result.compute_energy_j, color=COMPUTING, label="computing")
    axes.bar(at, result.upload_energy_j, bottom=result.compute_energy_j, color=UPLOAD, label="upload")
    if result.problem.size <= MOST_NAMES:
        axes.set_xticks(at, [for_plot(name) for name in result.problem.ids], rotation=45, ha="right")
    axes.set_xlabel("device")
    axes.set_ylabel("energy, J")
    axes.legend(frameon=False)
    plain_axes(axes, "none")
    return axes
