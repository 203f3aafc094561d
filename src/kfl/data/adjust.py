"""Changes to a finished split: fewer samples per device, a few of a class it has never met, or fewer devices tested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.data.arrays import IntArray
from kfl.data.holdout import turn_within_class
from kfl.data.partition import Partition


def limit_samples(split: Partition, train_y: IntArray, most: int, seed: int) -> Partition:
    """At most `most` training samples on each device, its classes taken in turn, so that none is lost early.

    Args:
        split: Who holds what.
        train_y: Labels of the training set.
        most: Samples that a device keeps.
        seed: Of the draw.

    >>> from kfl.data import partition
    >>> labels = np.arange(100) % 10
    >>> split = partition("shards", labels, labels, classes=10, devices=10, seed=0, distinct=True)
    >>> limit_samples(split, labels, 4, seed=0).train_counts.max(axis=1).tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    if most < 1:
        raise ConfigError("samples_per_device", most, "1 or more")
    train, counts = [], split.train_counts.copy()
    for device, held in enumerate(split.train):
        order = stream(seed, "sample limit", device).permutation(held)
        turns = np.argsort(turn_within_class(train_y[order]), kind="stable")
        train.append(np.sort(order[turns[:most]]))
        counts[device] = np.bincount(train_y[train[-1]], minlength=split.classes)
    return replace(split, train=tuple(train), train_counts=counts)


def add_new_class(split: Partition, train_y: IntArray, test_y: IntArray, count: int, seed: int) -> Partition:
    """Give each device `count` training samples of one class it does not hold, and test it on that class alone.

    The class is drawn for each device. Samples are drawn from all of that class, so devices may share them; as many
    test samples are drawn as the device had before.

    Args:
        split: Who holds what.
        train_y: Labels of the training set.
        test_y: Labels of the test set.
        count: Samples of the new class for each device.
        seed: Of the draws.

    >>> from kfl.data import partition
    >>> labels = np.arange(100) % 10
    >>> split = partition("shards", labels, labels, classes=10, devices=10, seed=0, distinct=True)
    >>> new = add_new_class(split, labels, labels, 3, seed=0)
    >>> (new.train_counts > 0).sum(axis=1).tolist(), (new.test_counts > 0).sum(axis=1).tolist()
    ([3, 3, 3, 3, 3, 3, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    """
    if count < 1:
        raise ConfigError("new_class_samples", count, "1 or more")
    train, test = [], []
    train_counts, test_counts = split.train_counts.copy(), np.zeros_like(split.test_counts)
    for device, held in enumerate(split.train):
        draw = stream(seed, "new class", device)
        unknown = np.flatnonzero(split.train_counts[device] == 0)
        if not len(unknown):
            raise ConfigError("new_class_samples", count, f"0: device {device} holds every class already")
        label = int(draw.choice(unknown))
        samples, tests = np.flatnonzero(train_y == label), np.flatnonzero(test_y == label)
        if len(samples) < count:
            raise ConfigError("new_class_samples", count, f"at most {len(samples)}, class {label} has no more")
        train.append(np.union1d(held, draw.choice(samples, count, replace=False)))
        test.append(np.sort(draw.choice(tests, min(len(tests), max(len(split.test[device]), 1)), replace=False)))
        train_counts[device, label] += count
        test_counts[device, label] = len(test[-1])
    return replace(split, train=tuple(train), test=tuple(test), train_counts=train_counts, test_counts=test_counts)


def limit_tested(split: Partition, most: int, seed: int) -> Partition:
    """Leave test samples to `most` devices, drawn once; the others are not tested.

    Args:
        split: Who holds what.
        most: Devices that keep their test samples.
        seed: Of the draw.

    >>> from kfl.data import partition
    >>> labels = np.arange(100) % 10
    >>> split = partition("iid", labels, labels, classes=10, devices=10, seed=0)
    >>> limit_tested(split, 2, seed=0).test_sizes.tolist()
    [10, 0, 0, 0, 0, 10, 0, 0, 0, 0]
    """
    if most < 1:
        raise ConfigError("tested_devices", most, "1 or more")
    able = np.flatnonzero(split.test_sizes)
    if most >= len(able):
        return split
    tested = set(stream(seed, "tested devices").choice(able, most, replace=False).tolist())
    none = np.zeros(0, dtype=np.int64)
    counts = np.zeros_like(split.test_counts)
    counts[sorted(tested)] = split.test_counts[sorted(tested)]
    test = tuple(split.test[device] if device in tested else none for device in range(split.devices))
    return replace(split, test=test, test_counts=counts)
