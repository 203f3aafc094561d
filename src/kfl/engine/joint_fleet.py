"""The devices of several runs as one fleet, those of a run one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kfl.data import Partition
from kfl.engine.local_data import LocalData
from kfl.models import FleetModels


def join_data(parts: Sequence[LocalData]) -> LocalData:
    """The devices of several runs as one fleet that shares one stored dataset."""
    first = parts[0]
    if any(part.dataset is not first.dataset for part in parts):
        raise ValueError("Runs at one table need one dataset, the same object for all.")
    split = Partition(
        train=tuple(rows for part in parts for rows in part.partition.train),
        test=tuple(rows for part in parts for rows in part.partition.test),
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
