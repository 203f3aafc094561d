"""The devices of several runs as one fleet, those of a run one after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kfl.data import Partition
from kfl.data.rows import LazyRows
from kfl.engine.local_data import LocalData
from kfl.models import FleetModels

IntArray = NDArray[np.int64]


def join_data(parts: Sequence[LocalData]) -> LocalData:
    """The devices of several runs as one fleet that shares one stored dataset."""
    first = parts[0]
    if any(part.dataset is not first.dataset for part in parts):
        raise ValueError("Runs at one table need one dataset, the same object for all.")
    split = Partition(
        train=_OneAfterAnother([part.partition.train for part in parts]),
        test=_OneAfterAnother([part.partition.test for part in parts]),
        train_counts=np.concatenate([part.partition.train_counts for part in parts]),
        test_counts=np.concatenate([part.partition.test_counts for part in parts]),
    )
    return LocalData(first.dataset, split)


def join_models(parts: Sequence[FleetModels]) -> FleetModels:
    """The models of several runs as one fleet. Each run's starting models stay its own affair."""
    first = parts[0]
    if any(part.names != first.names or part.profiles != first.profiles for part in parts):
        raise ValueError(f"Runs at one table need the same architectures, not {[part.names for part in parts]}.")
    return replace(first, architecture=np.concatenate([part.architecture for part in parts]))


class _OneAfterAnother(LazyRows):
    """Several sequences as one. Nothing is read of them, and so nothing drawn, before it is asked for."""

    def __init__(self, parts: Sequence[Sequence[IntArray]]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, device: int) -> IntArray:
        """From the sequence that has it."""
        which = bisect_right(self._starts, device) - 1
        return self._parts[which][device - self._starts[which]]
