"""Dealing shards to devices. A shard belongs to one class; shards are numbered class by class."""

from __future__ import annotations

import numpy as np

from kfl.data.checks import IntArray


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
