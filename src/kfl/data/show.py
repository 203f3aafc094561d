"""Pictures of a split: devices × classes, as text for a terminal and as a plot."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.data.checks import IntArray
from kfl.data.partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = " ░▒▓█"
MOST_COUNT_ROWS = 30
"""Up to so many devices are listed with their counts; more become a map of shades."""
MOST_CLASS_ROWS = 30
MOST_BUBBLE_DEVICES = 60
MOST_PLOT_COLUMNS = 600


def split_table(partition: Partition, width: int | None = None) -> str:
    """The split as text: counts for a small fleet, else a map of shades, at most `width` characters wide.

    >>> from kfl.data.partition import partition
    >>> labels = np.arange(12) % 3
    >>> print(split_table(partition("iid", labels, labels, 3, 2, seed=0), width=60).splitlines()[0])
    2 devices, 12 training and 12 test samples
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    table = _count_table(partition)
    if partition.devices > MOST_COUNT_ROWS or max(len(line) for line in table) > width:
        table = _shade_map(partition, width)
    return "\n".join([*_summary(partition), "", *table])


def _summary(partition: Partition) -> list[str]:
    samples, tests = partition.train_counts.sum(axis=1), partition.test_counts.sum(axis=1)
    held, devices = np.unique((partition.train_counts > 0).sum(axis=1), return_counts=True)
    devices_by_held = ", ".join(f"{n}: {d:,}" for n, d in zip(held.tolist(), devices.tolist(), strict=True))
    if len(held) > 6:
        devices_by_held = f"{held.min()} to {held.max()}"
    return [
        f"{partition.devices:,} devices, {samples.sum():,} training and {tests.sum():,} test samples",
        f"samples per device: {samples.min():,} to {samples.max():,}, mean {samples.mean():,.1f}",
        f"classes per device (number of devices): {devices_by_held}",
    ]


def _count_table(partition: Partition) -> list[str]:
    """One row per device: samples of each class, their sum, and test samples."""
    if partition.devices > MOST_COUNT_ROWS:
        return [""]
    head = ["device", *(f"{c}" for c in range(partition.classes)), "train", "test"]
    body = [
        [f"{k}", *(f"{n:,}" if n else "·" for n in counts.tolist()), f"{counts.sum():,}", f"{test.sum():,}"]
        for k, (counts, test) in enumerate(zip(partition.train_counts, partition.test_counts, strict=True))
    ]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in [head, *body]]


def _shade_map(partition: Partition, width: int) -> list[str]:
    """Classes down, devices across; the darker, the more of the devices' samples are of that class."""
    class_groups = np.array_split(np.arange(partition.classes), min(partition.classes, MOST_CLASS_ROWS))
    names = [f"{g[0]}" if len(g) == 1 else f"{g[0]}–{g[-1]}" for g in class_groups]
    left = max(len("class"), *(len(name) for name in names))
    per_column = -(-partition.devices // max(1, width - left - 4))
    edges = np.arange(0, partition.devices, per_column)
    shares = _grouped(partition.train_counts, edges)
    shares = np.add.reduceat(shares, [int(g[0]) for g in class_groups], axis=1)
    shares = shares / shares.sum(axis=1, keepdims=True)
    top = shares.max()
    # Rounded, so that 49 % and 51 % look alike; but a class that is there at all is seen.
    level = np.maximum(np.rint(shares / top * (len(SHADES) - 1)), shares > 0).astype(np.int64)
    rows = ["".join(SHADES[value] for value in level[:, row].tolist()) for row in range(len(names))]
    columns = len(edges)
    across = "one device" if per_column == 1 else f"{per_column:,} devices"
    return [
        f"{'class'.rjust(left)}  each column is {across}; █ is {top:.0%} of its samples",
        f"{' ' * left} ┌{'─' * columns}┐",
        *(f"{name.rjust(left)} │{row}│" for name, row in zip(names, rows, strict=True)),
        f"{' ' * left} └{'─' * columns}┘",
        f"{' ' * left}  {_axis(partition.devices, columns)}",
    ]


def _axis(devices: int, columns: int) -> str:
    """The first and the last device under the map."""
    last = f"device {devices - 1}"
    return "0".ljust(columns - len(last)) + last if columns > len(last) + 2 else f"0 … {devices - 1}"


def _grouped(counts: IntArray, edges: IntArray) -> NDArray[np.float64]:
    """Counts of neighbouring devices, added up into one row per edge."""
    return np.add.reduceat(counts, edges, axis=0).astype(np.float64)


def plot_split(partition: Partition, path: Path, title: str | None = None) -> None:
    """Write the split as a picture; the ending of `path` decides the format (png, pdf, svg).

    Bubbles for a small fleet, a heat map for a large one; above it the number of samples of each device.

    >>> import tempfile
    >>> from kfl.data.partition import partition
    >>> path = Path(tempfile.mkdtemp()) / "split.svg"
    >>> plot_split(partition("iid", [0, 1, 0, 1], [0, 1], classes=2, devices=2, seed=0), path)
    >>> path.stat().st_size > 1000
    True
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "Plotting a split") from error
    path = Path(path)
    kind = path.suffix.lstrip(".").lower() or "png"
    figure = Figure(figsize=(9, 2.6 + 0.24 * min(max(partition.classes, 6), 20)), layout="constrained")
    if kind not in figure.canvas.get_supported_filetypes():
        raise DataError(f"{path} ends in .{kind}, but a plot can be written as png, pdf or svg.")
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 3.2], "hspace": 0.02})
    if partition.devices <= MOST_BUBBLE_DEVICES:
        _bubbles(below, partition)
    else:
        _heat_map(below, partition)
    _sizes(above, partition)
    above.set_title(title or f"Training samples of {partition.devices:,} devices", loc="left", fontsize=11)
    figure.align_ylabels([above, below])
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150, bbox_inches="tight", pad_inches=0.1)
    write_atomic(path, buffer.getvalue())


def _bubbles(axes: Axes, partition: Partition) -> None:
    """Area is proportional to the number of samples."""
    device, label = np.nonzero(partition.train_counts)
    counts = partition.train_counts[device, label]
    # In points: about 600 across for the devices; the largest bubble just fits its place.
    largest = min(18.0, 640.0 / partition.devices, max(6.0, 300.0 / partition.classes)) ** 2
    axes.scatter(device, label, s=largest * counts / counts.max(), c="#2b6cb0", alpha=0.85, linewidths=0)
    axes.set_xlim(-0.8, partition.devices - 0.2)
    _class_axis(axes, partition)
    axes.grid(color="#e2e8f0", linewidth=0.6)
    axes.set_axisbelow(True)


def _heat_map(axes: Axes, partition: Partition) -> None:
    """Samples per device and class; neighbouring devices are averaged where there are more than columns."""
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
    """Mean counts of neighbouring devices, (columns, classes), and where each column starts and the last ends."""
    columns = min(partition.devices, MOST_PLOT_COLUMNS)
    edges = np.arange(columns + 1) * partition.devices // columns
    return _grouped(partition.train_counts, edges[:-1]) / np.diff(edges)[:, None], edges


def _class_axis(axes: Axes, partition: Partition) -> None:
    from matplotlib.ticker import MaxNLocator

    margin = 0.7 + 0.01 * partition.classes
    axes.set_ylim(-margin, partition.classes - 1 + margin)
    axes.set_xlabel("device")
    axes.set_ylabel("class")
    if partition.classes <= 20:
        axes.set_yticks(range(partition.classes))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)


def _sizes(axes: Axes, partition: Partition) -> None:
    """Samples of every device as a filled outline."""
    means, edges = _column_means(partition)
    axes.stairs(means.sum(axis=1), edges - 0.5, fill=True, color="#a0aec0")
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("samples")
    axes.set_ylim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
