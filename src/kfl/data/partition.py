"""Who holds which samples: the paper's shards, an even split, Dirichlet proportions, draws that overlap, or as the
data itself has it.

Every training sample goes to exactly one device, but for the draws that overlap (`overlap`). The test set
follows the training set, so that a device is tested on its own classes. All draws are addressed by the seed, and
nothing loops over devices, so a fleet of 100,000 is split in about a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.errors import ConfigError, DataError
from kfl.core.randomness import stream, streams
from kfl.data._overlap import DrawnRows, class_members, draw_overlapping
from kfl.data.apportionment import assign_distinct, assign_freely, level_fill, skim
from kfl.data.arrays import NOBODY, IntArray, as_labels, check_labels

PartitionKind = Literal["shards", "iid", "dirichlet", "overlap", "natural"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Sample indices of every device, ascending, and how many of each class that makes.

    >>> split = partition("iid", [0, 1, 0, 1], [0, 1], classes=2, devices=2, seed=0)
    >>> split.devices, split.classes, [len(indices) for indices in split.train], split.train_counts.shape
    (2, 2, [2, 2], (2, 2))
    """

    train: Sequence[IntArray]
    test: Sequence[IntArray]
    """May be empty for a device where the test set is small."""
    train_counts: IntArray
    """(devices, classes)"""
    test_counts: IntArray
    names: tuple[str, ...] = ()
    """What the data calls each device, with the natural split; else empty."""

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return len(self.train)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return int(self.train_counts.shape[1])

    @cached_property
    def train_sizes(self) -> IntArray:
        """How many training samples each device has."""
        return _sizes(self.train, self.train_counts)

    @cached_property
    def test_sizes(self) -> IntArray:
        """How many test samples each device has."""
        return _sizes(self.test, self.test_counts)

    def renumbered(self, rows: IntArray) -> Partition:
        """The same split of training samples that have other numbers: `rows[i]` for i."""
        if isinstance(self.train, DrawnRows):
            return replace(self, train=self.train.renumbered(rows))
        return replace(self, train=tuple(rows[indices] for indices in self.train))


def partition(
    kind: PartitionKind,
    train_y: ArrayLike,
    test_y: ArrayLike,
    classes: int,
    devices: int,
    seed: int,
    *,
    classes_per_device: int = 2,
    distinct: bool = False,
    alpha: float = 0.5,
    samples: int | None = None,
    train_device: IntArray | None = None,
    test_device: IntArray | None = None,
    names: Sequence[str] = (),
) -> Partition:
    """Split samples over `devices`; every device gets at least one training sample.

    - `shards`, as in section V of the paper: each class in mK/C shards, m = `classes_per_device` random ones
      to each device. A device may draw one class twice; `distinct` forbids that. A class has no shard, and
      its samples no device, only where there are fewer shards than classes.
    - `iid`: a random split into equal parts.
    - `dirichlet`: each class is spread in proportions drawn from Dir(`alpha`); small is uneven.
    - `overlap`: each device draws m different classes and `samples` of their samples, no matter who else holds them, so
      that a fleet of any size has data.
    - `natural`: each device holds its own samples, as `train_device` and `test_device` say. Fewer `devices` than there
      are in the data are drawn by the seed. Without `test_device` the test set is spread as each class of the
      training set is, so that a device is tested on its own classes.

    Args:
        kind: One of the words above.
        train_y: Labels of the training set, (n,).
        test_y: Labels of the test set.
        classes: How many there are.
        devices: How many.
        seed: Of all draws.
        classes_per_device: m, of `shards` and `overlap`.
        distinct: Of `shards`: no class twice on one device.
        alpha: Of `dirichlet`.
        samples: Of each device, of `overlap`.
        train_device: Owner of each training sample, of `natural`.
        test_device: Owner of each test sample, of `natural`.
        names: Of the owners, of `natural`.

    Raises:
        ConfigError: There are too few samples or shards for so many devices.

    >>> labels = np.arange(100) % 10
    >>> split = partition("shards", labels, labels, classes=10, devices=10, seed=0, distinct=True)
    >>> (split.train_counts > 0).sum(axis=1).tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    >>> bool((split.train_counts == split.test_counts).all())
    True
    """
    if kind not in get_args(PartitionKind):
        raise ConfigError(
            "partition", kind, f"one of {', '.join(get_args(PartitionKind))}", choices=get_args(PartitionKind)
        )
    classes, devices = _count("classes", classes), _count("devices", devices)
    train, test = as_labels("train_y", train_y), as_labels("test_y", test_y)
    check_labels("train_y", train, classes)
    check_labels("test_y", test, classes)
    if kind == "overlap":
        if samples is None:
            raise ConfigError("samples_per_device", None, "1 or more: how many each device draws with overlap")
        m, each = _count("classes_per_device", classes_per_device), _count("samples_per_device", samples)
        drawn = draw_overlapping(train, test, classes, devices, seed, m, each)
        return Partition(drawn[0], drawn[1], drawn[0].counts, drawn[1].counts)
    if kind == "shards":
        owners = _shards(train, test, classes, devices, seed, classes_per_device, distinct)
    elif kind == "iid":
        owners = _iid(train, test, devices, seed)
    elif kind == "natural":
        owners, names = _natural(train, test, classes, devices, seed, train_device, test_device, names)
    else:
        owners = _dirichlet(train, test, classes, devices, seed, alpha)
    return Partition(
        train=_by_device(owners[0], devices),
        test=_by_device(owners[1], devices),
        train_counts=_counts(owners[0], train, devices, classes),
        test_counts=_counts(owners[1], test, devices, classes),
        names=tuple(names) if kind == "natural" else (),
    )


def can_be_distinct(train_y: ArrayLike, devices: int, classes_per_device: int) -> bool:
    """Whether shards can be dealt so that no device draws a class twice.

    Args:
        train_y: Labels of the training set.
        devices: How many.
        classes_per_device: Shards of each.

    >>> can_be_distinct([0, 1, 2] * 10, devices=5, classes_per_device=3), can_be_distinct([0, 1] * 10, 5, 3)
    (True, False)
    """
    sizes = np.unique(as_labels("train_y", train_y), return_counts=True)[1]
    return bool(np.minimum(sizes, devices).sum() >= classes_per_device * devices)


def _shards(
    train: IntArray, test: IntArray, classes: int, devices: int, seed: int, m: int, distinct: bool
) -> tuple[IntArray, IntArray]:
    """Section V: class c in s_c ≈ mK/C shards, Σ s_c = mK, m shards to each device."""
    m = _count("classes_per_device", m)
    sizes = np.bincount(train, minlength=classes)
    if m * devices > len(train):
        raise DataError(
            f"{devices} devices with {m} shards each need {m * devices} training samples, but there are {len(train)}."
        )
    # Equal shards per class as printed; a class too small for its part (or, with `distinct`, one that would
    # have more shards than there are devices) leaves the rest to the others. Ties by a draw.
    capacity = np.minimum(sizes, devices) if distinct else sizes
    if distinct and not can_be_distinct(train, devices, m):
        raise DataError(
            f"classes_per_device is {m} with distinct classes, but the training set has too few classes, or "
            f"too few samples in them, for {devices} devices."
        )
    shards = level_fill(capacity, m * devices, stream(seed, "partition remainder").permutation(classes))
    draw = stream(seed, "partition shards")
    owner = assign_distinct(shards, devices, m, draw) if distinct else assign_freely(shards, devices, m, draw)
    first = np.cumsum(shards) - shards
    result = []
    for split, y in (("train", train), ("test", test)):
        owners = np.full(len(y), NOBODY, dtype=np.int64)
        draws = streams(seed, f"partition {split}", classes)
        for label, members in enumerate(class_members(y, classes)):
            shuffled = draws[label].permutation(members)
            # Shard of position i: the inverse of the cut points j·n/s, so sizes differ by at most one.
            shard = np.arange(len(members)) * int(shards[label]) // max(len(members), 1)
            if shards[label]:
                owners[shuffled] = owner[first[label] + shard]
        result.append(owners)
    return result[0], result[1]


def _iid(train: IntArray, test: IntArray, devices: int, seed: int) -> tuple[IntArray, IntArray]:
    """A random order, cut into parts whose sizes differ by at most one."""
    _check_enough(train, devices)
    result = []
    for split, y in (("train", train), ("test", test)):
        owners = np.empty(len(y), dtype=np.int64)
        order = stream(seed, f"partition {split}").permutation(len(y))
        owners[order] = np.arange(len(y)) * devices // max(len(y), 1)
        result.append(owners)
    return result[0], result[1]


def _dirichlet(
    train: IntArray, test: IntArray, classes: int, devices: int, seed: int, alpha: float
) -> tuple[IntArray, IntArray]:
    """Class c over the devices in proportions p_c ~ Dir(α, …, α); the test set as the training set came out."""
    if not 0 < alpha < math.inf:
        raise ConfigError("alpha", alpha, "a positive, finite number")
    _check_enough(train, devices)
    train_owners = np.empty(len(train), dtype=np.int64)
    for label, members in enumerate(class_members(train, classes)):
        shares = _proportions(stream(seed, "partition proportions", label), alpha, devices)
        shuffled = stream(seed, "partition train", label).permutation(members)
        train_owners[shuffled] = _spread(shares, len(members))
    _repair(train_owners, devices, seed)
    return train_owners, _like_training(train_owners, train, test, classes, devices, seed)


def _like_training(
    owners: IntArray, train: IntArray, test: IntArray, classes: int, devices: int, seed: int
) -> IntArray:
    """The devices of the test samples: each class spread as the training samples of that class are."""
    test_owners = np.full(len(test), NOBODY, dtype=np.int64)
    for label, members in enumerate(class_members(test, classes)):
        holders = owners[train == label]
        held = np.bincount(holders[holders != NOBODY], minlength=devices)
        if held.any():
            shuffled = stream(seed, "partition test", label).permutation(members)
            test_owners[shuffled] = _spread(held / held.sum(), len(members))
    return test_owners


def _natural(
    train: IntArray,
    test: IntArray,
    classes: int,
    devices: int,
    seed: int,
    train_device: IntArray | None,
    test_device: IntArray | None,
    names: Sequence[str],
) -> tuple[tuple[IntArray, IntArray], tuple[str, ...]]:
    """Whose each sample is, and what the data calls the devices that take part, in its order."""
    if train_device is None:
        raise DataError(
            "split is 'natural', but the data does not say whose each sample is: give it a device column, or choose "
            "shards, iid, dirichlet or overlap."
        )
    present = np.arange(max(int(train_device.max(initial=-1)) + 1, len(names)))
    if devices > len(present):
        raise ConfigError("devices", devices, f"at most {len(present)}, the devices in the data, or 0 for all of them")
    chosen = present
    if devices < len(present):
        chosen = np.sort(stream(seed, "natural devices").choice(present, devices, replace=False))
    number = np.full(len(present) + 1, NOBODY, dtype=np.int64)  # the last place is no device's
    number[chosen] = np.arange(devices)
    owners = number[train_device]
    if test_device is None:
        tested = _like_training(owners, train, test, classes, devices, seed)
    else:
        tested = number[np.where(test_device < len(present), test_device, NOBODY)]
    return (owners, tested), tuple(names[index] for index in chosen.tolist()) if names else ()


def _proportions(draw: np.random.Generator, alpha: float, devices: int) -> NDArray[np.float64]:
    """Dir(α) over the devices; its limits where α is too extreme to draw in floating point."""
    shares = draw.dirichlet(np.full(devices, alpha))
    if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
        return shares
    if alpha > 1:
        return np.full(devices, 1 / devices)
    shares = np.zeros(devices)
    shares[draw.integers(devices)] = 1.0
    return shares


def _spread(shares: NDArray[np.float64], samples: int) -> IntArray:
    """The device of each of `samples` positions: cuts at the rounded running sum of the shares."""
    cuts = np.rint(np.cumsum(shares) * samples).astype(np.int64)
    cuts[int(np.flatnonzero(shares)[-1]) :] = samples  # the running sum may miss 1 by a rounding error
    return np.searchsorted(cuts, np.arange(samples), side="right")


def _repair(owners: IntArray, devices: int, seed: int) -> None:
    """Give every device without a sample one, taken at random from those that then hold the most.

    A device without data could not take part; the paper's split never makes one, Dirichlet draws do.
    """
    sizes = np.bincount(owners, minlength=devices)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    draw = stream(seed, "partition repair")
    taken = skim(sizes, len(empty), draw.permutation(devices))
    order = np.lexsort((draw.random(len(owners)), owners))
    rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = order[rank < np.repeat(taken, sizes)]
    owners[moved] = draw.permutation(empty)


def _by_device(owners: IntArray, devices: int) -> tuple[IntArray, ...]:
    """The sample indices of every device, ascending."""
    order = np.argsort(owners, kind="stable")
    cuts = np.searchsorted(owners[order], np.arange(devices + 1)).tolist()
    return tuple(order[start:stop] for start, stop in pairwise(cuts))


def _counts(owners: IntArray, y: IntArray, devices: int, classes: int) -> IntArray:
    held = owners != NOBODY
    flat = np.bincount(owners[held] * classes + y[held], minlength=devices * classes)
    return flat.reshape(devices, classes)


def _sizes(rows: Sequence[IntArray], counts: IntArray) -> IntArray:
    """Rows in memory are counted; rows that are drawn when they are read have their counts."""
    if isinstance(rows, DrawnRows):
        sizes: IntArray = counts.sum(axis=1)
        return sizes
    return np.array([len(indices) for indices in rows], dtype=np.int64)


def _check_enough(train: IntArray, devices: int) -> None:
    if devices > len(train):
        raise DataError(f"{devices} devices need a training sample each, but there are only {len(train)}.")


def _count(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(field, value, "an integer of at least 1")
    return int(value)
