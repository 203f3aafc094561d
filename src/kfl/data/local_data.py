"""Each device's own samples, read from one stored dataset through its indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kfl.data.dataset import Dataset
    from kfl.data.partition import Partition


@dataclass(frozen=True, eq=False)
class SharedSamples:
    """Samples of several devices: each sample once, however many devices hold it, and whose rows are whose.

    >>> import torch
    >>> samples = SharedSamples(torch.eye(3), torch.arange(3), np.array([0, 1, 1]), np.array([0, 2, 3]))
    >>> len(samples), samples[1].tolist(), samples.padded(np.array([0, 1]))[1].tolist()
    (2, [1], [[True, True], [True, False]])
    """

    inputs: Tensor
    """(samples, …), float32."""
    labels: Tensor
    rows: NDArray[np.int64]
    """Rows of `inputs`, those of one device after those of another."""
    starts: NDArray[np.int64]
    """Where each device's rows begin, and the end: (devices + 1,)."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """The rows of one device, by its place."""
        return self.rows[self.starts[index] : self.starts[index + 1]]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of samples of each device."""
        return np.diff(self.starts)

    def of(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of some devices in a row, and for each of them the place of its device among `places`."""
        sizes = self.sizes[places]
        whose = np.repeat(np.arange(len(places)), sizes)
        within = np.arange(len(whose)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.rows[self.starts[places][whose] + within], whose

    def padded(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The rows of some devices side by side, row 0 where a device has fewer, and which are its own."""
        rows = self.of(places)[0]
        sizes = self.sizes[places]
        there = np.arange(sizes.max(initial=0)) < sizes[:, None]
        found = np.zeros(there.shape, dtype=np.int64)
        found[there] = rows
        return found, there


@dataclass(frozen=True, eq=False)
class LocalData:
    """A dataset and who holds which part of it. Samples are stored once and converted when they are read."""

    dataset: Dataset
    partition: Partition
    proxy: NDArray[np.int64] | None = None
    """Training samples that belong to no device but are known to all, where an algorithm asks for them."""

    def read(self, device: int, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Inputs (float32) and labels of a device."""
        indices = self.indices(device, split)
        return self.dataset.inputs(split, indices), self.dataset.labels(split, indices)

    def read_shared(self, devices: Sequence[int], split: Literal["train", "test"]) -> SharedSamples:
        """Inputs (float32) and labels of several devices, each sample read once.

        Args:
            devices: Their numbers.
            split: The training or the test set.
        """
        held = [self.indices(device, split) for device in devices]
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in held], dtype=np.int64)])
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *held])
        stored = len(self.dataset.train_y if split == "train" else self.dataset.test_y)
        if len(rows) >= stored:
            return SharedSamples(self.dataset.inputs(split), self.dataset.labels(split), rows, starts)
        read, rows = np.unique(rows, return_inverse=True)
        return SharedSamples(self.dataset.inputs(split, read), self.dataset.labels(split, read), rows, starts)

    def labels(self, device: int, split: Literal["train", "test"]) -> Tensor:
        """Labels of a device."""
        return self.dataset.labels(split, self.indices(device, split))

    def indices(self, device: int, split: Literal["train", "test"]) -> NDArray[np.int64]:
        """Rows of the dataset that a device holds."""
        return (self.partition.train if split == "train" else self.partition.test)[device]

    def size(self, device: int, split: Literal["train", "test"]) -> int:
        """Number of samples of a device."""
        return int((self.partition.train_sizes if split == "train" else self.partition.test_sizes)[device])

    def read_proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs (float32) and labels of the proxy samples; empty where there are none."""
        indices = np.zeros(0, dtype=np.int64) if self.proxy is None else self.proxy
        return self.dataset.inputs("train", indices), self.dataset.labels("train", indices)
