"""Each device's own samples, read from one stored dataset through its indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from kfl.data.dataset import Dataset
    from kfl.data.partition import Partition


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
