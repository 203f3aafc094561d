"""Whole numbers from fractions: seats to parties, samples to devices, shards to classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def largest_remainder(quotas: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers with sum `total`, each within one of its quota (quotas sum to `total`); ties to the first.

    >>> largest_remainder(np.array([1.2, 0.7, 1.1]), 3).tolist()
    [1, 1, 1]
    """
    counts = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def level_fill(capacity: NDArray[np.int64], total: int, priority: NDArray[np.int64]) -> NDArray[np.int64]:
    """As equal as the capacities allow: min(capacity, level), the last units in order of `priority`.

    The sum is exactly `total`, which must not exceed the sum of the capacities.

    >>> level_fill(np.array([9, 1, 9]), 8, np.array([2, 0, 1])).tolist()
    [3, 1, 4]
    """
    level = _largest_level(capacity, total)
    filled = np.minimum(capacity, level)
    open_places = priority[capacity[priority] > level]
    filled[open_places[: total - int(filled.sum())]] += 1
    return filled


def _largest_level(capacity: NDArray[np.int64], total: int) -> int:
    """The largest integer level with Σ min(capacity, level) ≤ total, by bisection."""
    low, high = 0, int(capacity.max(initial=0)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if int(np.minimum(capacity, middle).sum()) <= total:
            low = middle
        else:
            high = middle
    return low


def skim(sizes: NDArray[np.int64], total: int, priority: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many to take from each size, always from the largest, so that `total` are taken.

    >>> skim(np.array([9, 1, 7]), 3, np.array([0, 1, 2])).tolist()
    [2, 0, 1]
    """
    return sizes - level_fill(sizes, int(sizes.sum()) - total, priority)
