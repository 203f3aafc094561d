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

    def write(self, device: int, split: Literal["train", "test"], out: Tensor, stored: Tensor) -> None:
        """The inputs of `read`, written into `out` with no other memory than `stored`.

        `out` is float32 and has the shape of the inputs, in any order in memory; `stored` has that shape too and
        the type in which samples are stored, and takes them as they are.
        """
        import torch

        data = self.dataset
        indices = self.indices(device, split)
        source = data.train_x if split == "train" else data.test_x
        # With "clip" NumPy writes straight into `out`; indices were checked when the data was split.
        np.take(source, indices, axis=0, out=stored.numpy(), mode="clip")
        out.copy_(stored)
        if data.scale != 1.0:
            out.mul_(data.scale)
        channel = (-1, *[1] * (len(data.input_shape) - 1))
        if data.mean is not None:
            out.sub_(torch.tensor(data.mean).reshape(channel))
        if data.std is not None:
            out.div_(torch.tensor(data.std).reshape(channel))

    def byte_table(self) -> Tensor | None:
        """The number each of the 256 bytes stands for in each channel, float32.

        None where samples are not bytes in contiguous memory.
        """
        import torch

        data = self.dataset
        if not all(x.dtype == np.uint8 and x.flags.c_contiguous for x in (data.train_x, data.test_x)):
            return None
        values = torch.arange(256, dtype=torch.float32).expand(data.input_shape[0], 256) * data.scale
        if data.mean is not None:
            values = values - torch.tensor(data.mean)[:, None]
        if data.std is not None:
            values = values / torch.tensor(data.std)[:, None]
        return values.contiguous()

    def size(self, device: int, split: Literal["train", "test"]) -> int:
        """Number of samples of a device."""
        return int((self.partition.train_sizes if split == "train" else self.partition.test_sizes)[device])

    def read_proxy(self) -> tuple[Tensor, Tensor]:
        """Inputs (float32) and labels of the proxy samples; empty where there are none."""
        indices = np.zeros(0, dtype=np.int64) if self.proxy is None else self.proxy
        return self.dataset.inputs("train", indices), self.dataset.labels("train", indices)
