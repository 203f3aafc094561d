"""A test set for data that has none: a part of the samples, set aside before any device learns from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, DataError
from kfl.core.randomness import stream
from kfl.data.arrays import IntArray


def set_aside(y: IntArray, fraction: float, seed: int, device: IntArray | None = None) -> NDArray[np.bool_]:
    """Which samples become the test set: the same fraction of every class, drawn by the seed.

    Where samples have devices, that fraction of each device's samples, and of its classes as nearly as numbers
    allow; every device keeps at least one sample to train with.
    """
    if not 0 < fraction < 1:
        raise ConfigError("test_fraction", fraction, "between 0 and 1")
    if len(y) < 2:
        raise DataError(f"{len(y)} sample cannot be split into a training and a test set: give more, or a test set.")
    aside = np.zeros(len(y), dtype=np.bool_)
    if device is None:
        present, sizes = np.unique(y, return_counts=True)
        shares = largest_remainder(sizes / len(y) * _part(len(y), fraction), _part(len(y), fraction))
        for label, size, share in zip(present.tolist(), sizes.tolist(), shares.tolist(), strict=True):
            chosen = stream(seed, "test split", label).permutation(size)[:share]
            aside[np.flatnonzero(y == label)[chosen]] = True
        return aside
    order = np.argsort(device, kind="stable")
    cuts = np.flatnonzero(np.diff(device[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows) > 1:
            draw = stream(seed, "test split of a device", int(device[rows[0]]))
            shuffled = draw.permutation(rows)
            # Classes in turn, in proportion to their sizes: the k-th of n samples of a class stands at (k + u) / n, u
            # drawn, so that no class is ahead on every device.
            _, label, sizes = np.unique(y[shuffled], return_inverse=True, return_counts=True)
            place = (turn_within_class(label) + draw.random(len(sizes))[label]) / sizes[label]
            aside[shuffled[np.argsort(place, kind="stable")[: _part(len(rows), fraction)]]] = True
    if not aside.any():
        raise DataError("Every device has fewer than two samples; pass a test set.")
    return aside


def _part(samples: int, fraction: float) -> int:
    """How many of so many samples are set aside: at least one, and never all."""
    return min(max(round(samples * fraction), 1), samples - 1)


def largest_remainder(quotas: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers with sum `total`, each within one of its quota (quotas sum to `total`); ties to the first.

    >>> largest_remainder(np.array([1.2, 0.7, 1.1]), 3).tolist()
    [1, 1, 1]
    """
    counts = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def turn_within_class(labels: IntArray) -> IntArray:
    """For each sample, how many of its class stand before it."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order])
    turns = np.empty(len(labels), dtype=np.int64)
    turns[order] = np.arange(len(labels)) - starts
    return turns
