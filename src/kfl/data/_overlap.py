"""Splits in which devices share samples: each draws its own from all there are, when it is asked for them.

So a fleet may hold more samples than were ever stored, and 100,000 devices cost no more memory than their class counts:
the samples of a device are its seed until it takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.data.arrays import IntArray

DRAWN_AT_ONCE = 4096
"""Devices whose classes are drawn in one go, so that many classes need little memory."""


@dataclass(frozen=True, eq=False)
class DrawnRows(Sequence[IntArray]):
    """The sample indices of every device, ascending, drawn anew whenever they are read, always the same.

    >>> rows = DrawnRows((np.array([0, 2]), np.array([1, 3, 5])), np.array([[1, 0], [2, 3]]), seed=0, purpose="example")
    >>> len(rows), len(rows[0]), rows[1].tolist()
    (2, 1, [0, 1, 2, 3, 5])
    """

    members: tuple[IntArray, ...]
    """The samples of each class."""
    counts: IntArray
    """(devices, classes): how many a device draws of each."""
    seed: int
    purpose: str

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, index: int) -> IntArray: ...
    @overload
    def __getitem__(self, index: slice) -> list[IntArray]: ...
    def __getitem__(self, index: int | slice) -> IntArray | list[IntArray]:
        devices = range(len(self))[index]
        return [self._draw(device) for device in devices] if isinstance(devices, range) else self._draw(devices)

    def _draw(self, device: int) -> IntArray:
        draw, own = stream(self.seed, self.purpose, device), self.counts[device]
        drawn = [draw.choice(self.members[label], own[label], replace=False) for label in np.flatnonzero(own)]
        return np.sort(np.concatenate(drawn)) if drawn else np.zeros(0, dtype=np.int64)

    def renumbered(self, rows: IntArray) -> DrawnRows:
        """The same draws from samples that have other numbers: `rows[i]` for i."""
        return replace(self, members=tuple(rows[some] for some in self.members))


def draw_overlapping(
    train: IntArray, test: IntArray, classes: int, devices: int, seed: int, m: int, samples: int
) -> tuple[DrawnRows, DrawnRows]:
    """Each device draws m classes and, in equal parts of them, `samples` training samples, none of them twice.

    A class that has fewer samples than such a part is no device's. Of the test set a device draws equal parts of the
    same classes, what `samples` is of the training set, at least one of each class that has any.
    """
    of_train, of_test = (class_members(labels, classes) for labels in (train, test))
    sizes, test_sizes = (np.array([len(some) for some in of_one]) for of_one in (of_train, of_test))
    part = -(-samples // m)
    able = np.flatnonzero(sizes >= part)
    if m > np.count_nonzero(sizes):
        raise ConfigError("classes_per_device", m, f"at most {np.count_nonzero(sizes)}, the training set has no more")
    if m > len(able):
        most = m * int(np.sort(sizes)[-m])
        raise ConfigError("samples_per_device", samples, f"at most {most}: {m} classes have {most // m} samples each")
    held = able[_choices(stream(seed, "overlap classes"), devices, len(able), m)]
    counts = _in_parts(held, np.ones(held.shape, dtype=bool), samples, classes)
    tests = round(samples * len(test) / len(train))
    # From the other end: a class that is one ahead in training samples is not so in test samples too.
    back = held[:, ::-1]
    tested = np.take_along_axis(counts, back, axis=1) > 0
    test_counts = np.minimum(_in_parts(back, tested & (test_sizes[back] > 0), tests, classes, least=1), test_sizes)
    return (
        DrawnRows(of_train, counts, seed, "overlap train"),
        DrawnRows(of_test, test_counts, seed, "overlap test"),
    )


def class_members(labels: IntArray, classes: int) -> tuple[IntArray, ...]:
    """The sample indices of every class, ascending."""
    order = np.argsort(labels, kind="stable")
    return tuple(np.split(order, np.cumsum(np.bincount(labels, minlength=classes))[:-1]))


def _choices(draw: np.random.Generator, devices: int, among: int, m: int) -> IntArray:
    """m different numbers below `among` for each device, in random order."""
    parts = []
    for start in range(0, devices, DRAWN_AT_ONCE):
        count = min(DRAWN_AT_ONCE, devices - start)
        parts.append(draw.random((count, among)).argsort(axis=1)[:, :m])
    return np.concatenate(parts)


def _in_parts(held: IntArray, usable: NDArray[np.bool_], samples: int, classes: int, least: int = 0) -> IntArray:
    """`samples` over the usable classes of each device as evenly as possible, at least `least` each.

    The first ones get what is left over.
    """
    parts = np.maximum(usable.sum(axis=1, keepdims=True), 1)
    total = np.maximum(samples, least * parts)
    number = usable.cumsum(axis=1) - 1
    each = np.where(usable, total // parts + (number < total % parts), 0)
    counts = np.zeros((len(held), classes), dtype=np.int64)
    np.put_along_axis(counts, held, each, axis=1)
    return counts
