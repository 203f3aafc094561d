"""Plots as files, with Matplotlib: curves of a comparison, the split of a dataset.

The same data gives the same file, byte for byte.
"""

from kfl.plots.curves import Axis, Curve, curves_of, plot_curves, plot_history
from kfl.plots.schedule import plot_schedule
from kfl.plots.split import plot_split
from kfl.plots.style import FORMATS, Style, new_figure, save, style_of

__all__ = [
    "FORMATS",
    "Axis",
    "Curve",
    "Style",
    "curves_of",
    "new_figure",
    "plot_curves",
    "plot_history",
    "plot_schedule",
    "plot_split",
    "save",
    "style_of",
]
