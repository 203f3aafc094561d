"""Where a cohort's samples come from, and which of them each step sees.

A table holds samples once; rows of it are gathered for a whole cohort at a time. On a GPU the table is the stored
dataset itself (uint8 where it is stored so), brought there once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfl.data import Dataset, LocalData

Split = Literal["train", "test"]
Batch = tuple[Tensor, Tensor, Tensor | None]
"""Inputs, targets and weights of one step, each with one row per device."""
SCALED_AT_ONCE = 4096


class Table(ABC):
    """Samples that can be gathered by their row."""

    @abstractmethod
    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of rows of any shape; inputs have the shape (*rows.shape, *input_shape)."""


@dataclass(frozen=True, eq=False)
class GivenTable(Table):
    """Given samples."""

    inputs: Tensor
    targets: Tensor

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Pick rows."""
        return self.inputs[rows], self.targets[rows]


@dataclass(frozen=True, eq=False)
class StoredTable(Table):
    """A dataset that stays where it is stored, perhaps in a file, with lazily loaded rows."""

    dataset: Dataset
    split: Split
    dtype: torch.dtype
    where: torch.device

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Read rows."""
        flat = rows.reshape(-1).cpu().numpy()
        inputs, labels = self.dataset.inputs(self.split, flat), self.dataset.labels(self.split, flat)
        inputs = inputs.to(self.where, self.dtype).reshape(*rows.shape, *inputs.shape[1:])
        return inputs, labels.to(self.where).reshape(rows.shape)


class ResidentTable(Table):
    """A dataset in the memory of a GPU, in exactly the numbers that `Dataset` gives.

    It travels as it is stored. `ready`: scaled once, four bytes for each number. Otherwise scaled after gathering.
    """

    def __init__(self, dataset: Dataset, split: Split, dtype: torch.dtype, where: torch.device, *, ready: bool) -> None:
        stored = dataset.train_x if split == "train" else dataset.test_x
        self._labels = dataset.labels(split).to(where)
        self._dtype = dtype
        self._dataset = dataset
        self._inputs = torch.from_numpy(np.array(stored)).to(where)
        self._ready = ready
        if ready:
            scaled = torch.empty(self._inputs.shape, device=where)
            for index in range(0, len(scaled), SCALED_AT_ONCE):
                scaled[index : index + SCALED_AT_ONCE] = self._scaled(self._inputs[index : index + SCALED_AT_ONCE])
            self._inputs = scaled

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Pick rows, and scale them where that is still to do."""
        flat = rows.reshape(-1)
        values = self._inputs.index_select(0, flat)
        values = (values if self._ready else self._scaled(values)).to(self._dtype)
        return values.reshape(*rows.shape, *values.shape[1:]), self._labels.index_select(0, flat).reshape(rows.shape)

    def _scaled(self, values: Tensor) -> Tensor:
        """The values as `Dataset.inputs` gives them; the given ones are not needed any more."""
        return self._dataset.scale_(values.to(torch.float32))


@dataclass(frozen=True, eq=False)
class Steps:
    """What the steps of a cohort see, in two tensors, so that it is two copies to a GPU however many steps."""

    rows: Tensor
    """(steps, devices, samples), rows of a table."""
    weights: Tensor | None
    """The same shape, adding up to 1 for each step and device, 0 for samples that fill up; None: all alike."""
    sizes: tuple[int, ...]
    """How many samples of `rows` each step takes."""
    active: Tensor | None = None
    """(steps, devices): whether a device takes part in a step; None: all in all."""


class Rows:
    """The rows of a table that belong to each device, kept where the engine computes once they were asked for."""

    def __init__(self, data: LocalData, where: torch.device, dtype: torch.dtype) -> None:
        self._partition = data.partition
        self._where = where
        self._dtype = dtype
        self._kept: dict[tuple[int, Split, int], Tensor] = {}

    def of(self, device: int, split: Split) -> NDArray[np.int64]:
        """The rows of one device."""
        return (self._partition.train if split == "train" else self._partition.test)[device]

    def whole(self, devices: Sequence[int], split: Split, size: int) -> Steps:
        """One step over all samples of each device, filled up to `size` with repetitions of its first."""
        sizes = self._partition.train_sizes if split == "train" else self._partition.test_sizes
        counts = sizes[list(devices)][None]
        rows = torch.stack([self._padded(device, split, size) for device in devices])
        return Steps(rows[None], sample_weights(counts, np.array([size]), self._where, self._dtype), (size,))

    def _padded(self, device: int, split: Split, size: int) -> Tensor:
        kept = self._kept.get((device, split, size))
        if kept is None:
            kept = torch.from_numpy(fill_up(self.of(device, split), size)).to(self._where)
            self._kept[device, split, size] = kept
        return kept


def fill_up(rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Rows, then the first one again and again: a sample of the device itself, so that it is nothing unusual."""
    full = np.full(size, rows[0] if len(rows) else 0, dtype=np.int64)
    full[: len(rows)] = rows
    return full


def sample_weights(
    counts: NDArray[np.int64], sizes: NDArray[np.int64], where: torch.device, dtype: torch.dtype
) -> Tensor | None:
    """1/count for the first `count` samples, 0 for the rest; None where nothing was filled up.

    `counts` is (steps, devices), `sizes` the samples of each step.
    """
    if (counts == sizes[:, None]).all():
        return None
    number = torch.from_numpy(counts).to(where)[..., None]
    real = torch.arange(int(sizes.max()), device=where) < number
    return real.to(dtype) / number.clamp(min=1)


def mini_batches(drawn: Sequence[Sequence[NDArray[np.int64]]], where: torch.device, dtype: torch.dtype) -> Steps:
    """The steps of a cohort; `drawn` has the rows of each step of each device.

    A batch that is smaller than the largest of its step is filled up. Where a device has fewer steps than others, the
    rest of its steps weigh nothing, and `active` is false for them.
    """
    count = max(len(of_device) for of_device in drawn)
    counts = np.array([[len(batch) for batch in of_device] + [0] * (count - len(of_device)) for of_device in drawn]).T
    sizes = counts.max(axis=1)
    table = np.empty((count, len(drawn), int(sizes.max())), dtype=np.int64)
    for device, of_device in enumerate(drawn):
        table[:, device] = of_device[0][0]
        for step, batch in enumerate(of_device):
            table[step, device] = fill_up(batch, table.shape[2])
    active = None if (counts > 0).all() else torch.from_numpy(counts > 0).to(where)
    rows, weights = torch.from_numpy(table).to(where), sample_weights(counts, sizes, where, dtype)
    return Steps(rows, weights, tuple(sizes.tolist()), active)
