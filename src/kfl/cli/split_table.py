"""The split of a dataset as text for a terminal: devices × classes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kfl.core.names import for_terminal
from kfl.core.text import percent
from kfl.data.arrays import IntArray
from kfl.data.dataset import Dataset
from kfl.data.partition import Partition

SHADES = " ░▒▓█"
MOST_COUNT_ROWS = 30
"""Up to so many devices are listed with their counts; more become a map of shades."""
MOST_CLASS_ROWS = 30
LONGEST_CLASS = 16
"""Characters of the name of a class."""


def data_line(data: Dataset) -> str:
    """What a dataset holds, in one line.

    >>> data_line(Dataset.from_arrays(np.eye(4), [0, 1, 0, 1], [[0.0] * 4], [0], name="toy"))
    'toy: 4 + 1 samples of shape 4, 2 classes; inputs as they are stored'
    """
    shape = "×".join(map(str, data.input_shape))
    devices = f", {len(data.device_names):,} devices" if data.device_names else ""
    scaled = "inputs as they are stored" if data.scale == 1.0 else f"inputs × {data.scale:.4g}"
    if abs(data.scale * 255 - 1) < 1e-12:
        scaled = "bytes scaled to [0, 1]"
    standardized = "" if data.std is None else ", each channel standardized"
    return (
        f"{data.name}: {len(data.train_y):,} + {len(data.test_y):,} samples of shape {shape}, "
        f"{data.classes} classes{devices}; {scaled}{standardized}"
    )


def split_table(partition: Partition, width: int | None = None, class_names: Sequence[str] = ()) -> str:
    """The split as text: counts for a small fleet, else a map of shades, at most `width` characters wide.

    Classes have their names where the data has any.

    >>> from kfl.data.partition import partition
    >>> labels = np.arange(12) % 3
    >>> print(split_table(partition("iid", labels, labels, 3, 2, seed=0), width=60).splitlines()[0])
    2 devices, 12 training and 12 test samples
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    words = [for_terminal(name, LONGEST_CLASS) for name in class_names] or list(map(str, range(partition.classes)))
    table = _count_table(partition, words)
    if partition.devices > MOST_COUNT_ROWS or max(len(line) for line in table) > width:
        table = _shade_map(partition, width, words)
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


def _count_table(partition: Partition, words: Sequence[str]) -> list[str]:
    """One row per device: samples of each class, their sum, and test samples."""
    if partition.devices > MOST_COUNT_ROWS:
        return [""]
    names = partition.names or tuple(map(str, range(partition.devices)))
    head = ["device", *words, "train", "test"]
    body = [
        [
            for_terminal(names[k], 24),
            *(f"{n:,}" if n else "·" for n in counts.tolist()),
            f"{counts.sum():,}",
            f"{test.sum():,}",
        ]
        for k, (counts, test) in enumerate(zip(partition.train_counts, partition.test_counts, strict=True))
    ]
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in [head, *body]]


def _shade_map(partition: Partition, width: int, words: Sequence[str]) -> list[str]:
    """Classes down, devices across; the darker, the more of the devices' samples are of that class."""
    class_groups = np.array_split(np.arange(partition.classes), min(partition.classes, MOST_CLASS_ROWS))
    names = [words[g[0]] if len(g) == 1 else f"{words[g[0]]}–{words[g[-1]]}" for g in class_groups]
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
        f"{'class'.rjust(left)}  each column is {across}; █ is {percent(top, 0)} of its samples",
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
    """Counts of neighboring devices, added up into one row per edge."""
    return np.add.reduceat(counts, edges, axis=0).astype(np.float64)
