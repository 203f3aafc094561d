"""Dealing in integers: samples to devices, shards to classes, shards to devices."""

from __future__ import annotations

import numpy as np

from kfl.data.arrays import IntArray


def level_fill(capacity: IntArray, total: int, priority: IntArray) -> IntArray:
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


def _largest_level(capacity: IntArray, total: int) -> int:
    """The largest integer level with Σ min(capacity, level) ≤ total, by bisection."""
    low, high = 0, int(capacity.max(initial=0)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if int(np.minimum(capacity, middle).sum()) <= total:
            low = middle
        else:
            high = middle
    return low


def skim(sizes: IntArray, total: int, priority: IntArray) -> IntArray:
    """How many to take from each size, always from the largest, so that `total` are taken.

    >>> skim(np.array([9, 1, 7]), 3, np.array([0, 1, 2])).tolist()
    [2, 0, 1]
    """
    return sizes - level_fill(sizes, int(sizes.sum()) - total, priority)


def assign_freely(shards: IntArray, devices: int, m: int, draw: np.random.Generator) -> IntArray:
    """The device of every shard: a random deal of m to each, whatever their classes, as the paper prints it."""
    owner = np.empty(m * devices, dtype=np.int64)
    owner[draw.permutation(m * devices)] = np.repeat(np.arange(devices), m)
    return owner


def assign_distinct(shards: IntArray, devices: int, m: int, draw: np.random.Generator) -> IntArray:
    """The device of every shard, so that no device has a class twice.

    Needs shards[c] ≤ devices for every class and Σ shards = m · devices; then it always succeeds: dealing
    the shards class by class around the table gives a class at most once to each device. That start is far
    from random, so devices then meet in random pairs and trade: both keep what they have in common, and the
    rest is dealt anew (the global Curveball chain, Carstens, Hamann, Meyer, Penschuck, Tran & Wagner 2018,
    whose stationary distribution is uniform over all valid deals).
    """
    if m == 1:
        return assign_freely(shards, devices, m, draw)
    order = draw.permutation(len(shards))
    by_class = np.repeat(order, shards[order])
    hands = by_class.reshape(m, devices).T[draw.permutation(devices)]
    for _ in range(10 + 2 * devices.bit_length()):
        _trade(hands, draw)
    # Shards of a class to its holders in random order.
    holders = np.repeat(np.arange(devices), m)
    return holders[np.lexsort((draw.random(m * devices), hands.reshape(-1)))]


def _trade(hands: IntArray, draw: np.random.Generator) -> None:
    """One round of trades between random pairs, in place; `hands` is (devices, m), one class per place."""
    devices, m = hands.shape
    pairs = draw.permutation(devices)[: devices // 2 * 2].reshape(2, -1)
    table = np.sort(np.concatenate([hands[pairs[0]], hands[pairs[1]]], axis=1), axis=1)
    common = table[:, 1:] == table[:, :-1]
    order = draw.random(table.shape)
    # What both hold lies side by side: one copy first (to the one), the other last (to the other).
    order[:, :-1][common] = -1.0
    order[:, 1:][common] = 2.0
    dealt = np.take_along_axis(table, np.argsort(order, axis=1), axis=1)
    hands[pairs[0]], hands[pairs[1]] = dealt[:, :m], dealt[:, m:]
