"""The split of a dataset as a plot: devices × classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import for_plot
from kfl.data import Partition
from kfl.plots.style import LONGEST_TITLE, new_figure, plain_axes, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    IntArray = NDArray[np.int64]

MOST_BUBBLE_DEVICES = 60
MOST_PLOT_COLUMNS = 600


def plot_split(partition: Partition, path: Path, title: str | None = None) -> None:
    """Write the split as a picture; the ending of `path` decides the format (png, pdf, svg).

    Bubbles for a small fleet, a heat map for a large one; above it the number of samples of each device.

    Args:
        partition: Who holds what.
        path: The file to write.
        title: Above the plot; None for the usual one.

    >>> import tempfile
    >>> from kfl.data.partition import partition
    >>> path = Path(tempfile.mkdtemp()) / "split.svg"
    >>> plot_split(partition("iid", [0, 1, 0, 1], [0, 1], classes=2, devices=2, seed=0), path)
    >>> path.stat().st_size > 1000
    True
    """
    figure = new_figure(
        "Plotting a split", figsize=(9, 2.6 + 0.24 * min(max(partition.classes, 6), 20)), layout="constrained"
    )
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 3.2], "hspace": 0.02})
    if partition.devices <= MOST_BUBBLE_DEVICES:
        _bubbles(below, partition)
    else:
        _heat_map(below, partition)
    _sizes(above, partition)
    above.set_title(
        for_plot(title, LONGEST_TITLE) or f"Training samples of {partition.devices:,} devices", loc="left", fontsize=11
    )
    figure.align_ylabels([above, below])
    save(figure, Path(path), tight=True)


def _bubbles(axes: Axes, partition: Partition) -> None:
    """Area is proportional to the number of samples."""
    device, label = np.nonzero(partition.train_counts)
    counts = partition.train_counts[device, label]
    # In points: about 600 across for the devices; the largest bubble just fits its place.
    largest = min(18.0, 640.0 / partition.devices, max(6.0, 300.0 / partition.classes)) ** 2
    axes.scatter(device, label, s=largest * counts / counts.max(), c="#2b6cb0", alpha=0.85, linewidths=0)
    axes.set_xlim(-0.8, partition.devices - 0.2)
    _class_axis(axes, partition)
    plain_axes(axes)


def _heat_map(axes: Axes, partition: Partition) -> None:
    """Samples per device and class; neighboring devices are averaged where there are more than columns."""
    mean = _column_means(partition)[0]
    image = axes.imshow(
        np.ma.masked_equal(mean.T, 0),
        cmap="Blues",
        vmin=0,
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=(-0.5, partition.devices - 0.5, -0.5, partition.classes - 0.5),
    )
    axes.figure.colorbar(image, ax=axes, label="samples per device", pad=0.01, aspect=18)
    _class_axis(axes, partition)


def _column_means(partition: Partition) -> tuple[NDArray[np.float64], IntArray]:
    """Mean counts of neighboring devices, (columns, classes), and where each column starts and the last ends."""
    columns = min(partition.devices, MOST_PLOT_COLUMNS)
    edges = np.arange(columns + 1) * partition.devices // columns
    return np.add.reduceat(partition.train_counts, edges[:-1], axis=0) / np.diff(edges)[:, None], edges


def _class_axis(axes: Axes, partition: Partition) -> None:
    from matplotlib.ticker import MaxNLocator

    margin = 0.7 + 0.01 * partition.classes
    axes.set_ylim(-margin, partition.classes - 1 + margin)
    axes.set_xlabel("device")
    axes.set_ylabel("class")
    if partition.classes <= 20:
        axes.set_yticks(range(partition.classes))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    plain_axes(axes, "none")


def _sizes(axes: Axes, partition: Partition) -> None:
    """Samples of every device as a filled outline."""
    means, edges = _column_means(partition)
    axes.stairs(means.sum(axis=1), edges - 0.5, fill=True, color="#a0aec0")
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("samples")
    axes.set_ylim(0, None)
    plain_axes(axes, "none")
