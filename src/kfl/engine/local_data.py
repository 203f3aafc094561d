"""Each device's own samples, read from one stored dataset through its indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.data import Dataset, Partition


@dataclass(frozen=True, eq=False)
class LocalData:
    """A dataset and who holds which part of it. Samples are stored once and converted when they are read."""

    dataset: Dataset
    partition: Partition

    def read(self, device: int, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Inputs (float32) and labels of a device."""
        indices = (self.partition.train if split == "train" else self.partition.test)[device]
        return self.dataset.inputs(split, indices), self.dataset.labels(split, indices)

    def size(self, device: int, split: Literal["train", "test"]) -> int:
        """Number of samples of a device."""
        return len((self.partition.train if split == "train" else self.partition.test)[device])
