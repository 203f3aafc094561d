"""A dataset: images or vectors with labels, kept as they are stored and scaled only when read.

Arrays are checked before they may be called a dataset; each failure is one sentence. Nothing here imports PyTorch
before samples are read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.errors import ConfigError, DataError
from kfl.core.randomness import stream

if TYPE_CHECKING:
    import torch

IntArray = NDArray[np.int64]
Split = Literal["train", "test"]

MOST_CLASSES = 100_000
"""Memory grows with the classes, and they are counted from the largest label, which may be a mistake."""
FINGERPRINT_ROWS = 256
"""Samples of each set that enter the fingerprint; labels enter completely."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples. Inputs are `(x · scale − mean) / std`, computed when they are read.

    >>> data = Dataset.from_arrays(np.arange(40.0).reshape(20, 2), np.arange(20) % 2, name="toy")
    >>> data.input_shape, data.classes, len(data.train_y), len(data.test_y)
    ((2,), 2, 16, 4)
    >>> data.inputs("train", [0, 1]).shape
    torch.Size([2, 2])
    """

    name: str
    train_x: NDArray[Any]
    """(samples, *input_shape), uint8 or float32; may be memory-mapped."""
    train_y: IntArray
    test_x: NDArray[Any]
    test_y: IntArray
    classes: int
    scale: float = 1.0
    mean: tuple[float, ...] | None = None
    """Per channel (first input dimension), after scaling."""
    std: tuple[float, ...] | None = None
    note: str = ""
    """What a reader of results must know about this copy of the data; shown wherever results are."""

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= MOST_CLASSES:
            raise DataError(f"classes is {self.classes}, but must be at least 1 and at most {MOST_CLASSES}.")
        check_split("train", self.train_x, self.train_y, self.classes)
        check_split("test", self.test_x, self.test_y, self.classes)
        if self.train_x.shape[1:] != self.test_x.shape[1:]:
            raise DataError(
                f"One training sample has shape {self.train_x.shape[1:]}, but one test sample has "
                f"{self.test_x.shape[1:]}."
            )
        for field, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.input_shape[0]:
                raise DataError(f"{field} has {len(values)} values, but inputs have {self.input_shape[0]} channels.")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise DataError(f"std is {self.std}, but every value must be positive.")

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) for images."""
        return tuple(self.train_x.shape[1:])

    def inputs(self, split: Split, indices: ArrayLike | None = None) -> torch.Tensor:
        """Samples as float32, scaled and standardised; all of them where no indices are given."""
        import torch

        x = self._of(split, self.train_x, self.test_x)
        rows = np.array(x) if indices is None else x[_index(indices)]
        values = torch.from_numpy(rows).to(torch.float32)
        if self.scale != 1.0:
            values = values * self.scale
        channel = (-1, *[1] * (len(self.input_shape) - 1))
        if self.mean is not None:
            values = values - torch.tensor(self.mean).reshape(channel)
        if self.std is not None:
            values = values / torch.tensor(self.std).reshape(channel)
        return values

    def labels(self, split: Split, indices: ArrayLike | None = None) -> torch.Tensor:
        """Labels as int64; all of them where no indices are given."""
        import torch

        y = self._of(split, self.train_y, self.test_y)
        return torch.from_numpy(np.array(y) if indices is None else y[_index(indices)])

    def fingerprint(self) -> str:
        """A short hash of the contents for the run folder: all labels, some samples, shapes and scaling."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(repr((self.classes, self.scale, self.mean, self.std)).encode())
        for x, y in ((self.train_x, self.train_y), (self.test_x, self.test_y)):
            rows = x[:: max(1, len(x) // FINGERPRINT_ROWS)]
            digest.update(repr((x.shape, x.dtype.str)).encode())
            digest.update(np.ascontiguousarray(rows).tobytes())
            digest.update(np.ascontiguousarray(y).tobytes())
        return digest.hexdigest()

    def _of(self, split: str, train: NDArray[Any], test: NDArray[Any]) -> NDArray[Any]:
        if split not in ("train", "test"):
            raise ConfigError("split", split, "'train' or 'test'")
        return train if split == "train" else test

    @staticmethod
    def from_arrays(
        train_x: ArrayLike,
        train_y: ArrayLike,
        test_x: ArrayLike | None = None,
        test_y: ArrayLike | None = None,
        *,
        name: str = "arrays",
        classes: int | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        scale: float = 1.0,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        note: str = "",
    ) -> Dataset:
        """A dataset from arrays. Without a test set, `test_fraction` of each class is set aside as one.

        uint8 stays uint8, all other numbers become float32. `classes` is the largest label plus one unless
        given.
        """
        x, y = as_inputs("train_x", train_x), as_labels("train_y", train_y)
        if (test_x is None) != (test_y is None):
            missing = "test_x" if test_x is None else "test_y"
            raise DataError(f"{missing} is missing: give both test_x and test_y, or neither.")
        if len(x) != len(y):
            raise DataError(f"train_x has {len(x)} samples, but train_y has {len(y)} labels.")
        if test_x is not None and test_y is not None:
            other_x, other_y = as_inputs("test_x", test_x), as_labels("test_y", test_y)
        else:
            aside = _set_aside(y, test_fraction, seed)
            x, y, other_x, other_y = x[~aside], y[~aside], x[aside], y[aside]
        if other_x.dtype != x.dtype:
            x, other_x = x.astype(np.float32), other_x.astype(np.float32)
        if classes is None:
            classes = 1 + int(max(y.max(initial=0), other_y.max(initial=0)))
        return Dataset(name, x, y, other_x, other_y, classes, scale, mean, std, note)

    @staticmethod
    def from_torch(
        train: torch.utils.data.Dataset[Any],
        test: torch.utils.data.Dataset[Any] | None = None,
        *,
        name: str = "torch",
        classes: int | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        note: str = "",
    ) -> Dataset:
        """A dataset from PyTorch's kind: every (x, y) pair is read once, transforms included.

        >>> import torch
        >>> pairs = torch.utils.data.TensorDataset(torch.rand(10, 3), torch.arange(10) % 2)
        >>> Dataset.from_torch(pairs).input_shape
        (3,)
        """
        train_x, train_y = _pairs("train", train)
        test_x, test_y = (None, None) if test is None else _pairs("test", test)
        return Dataset.from_arrays(
            train_x,
            train_y,
            test_x,
            test_y,
            name=name,
            classes=classes,
            test_fraction=test_fraction,
            seed=seed,
            note=note,
        )


def _index(indices: ArrayLike) -> IntArray:
    array = np.asarray(indices)
    return array.astype(np.int64) if array.size == 0 else array


def _set_aside(y: IntArray, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which samples become the test set: the same fraction of every class, drawn by the seed."""
    if not 0 < fraction < 1:
        raise ConfigError("test_fraction", fraction, "between 0 and 1")
    if len(y) < 2:
        raise DataError(f"{len(y)} samples cannot be split into a training and a test set: give test_x.")
    present, sizes = np.unique(y, return_counts=True)
    total = min(max(round(len(y) * fraction), 1), len(y) - 1)
    aside = np.zeros(len(y), dtype=np.bool_)
    shares = largest_remainder(sizes / len(y) * total, total)
    for label, size, share in zip(present.tolist(), sizes.tolist(), shares.tolist(), strict=True):
        chosen = stream(seed, "test split", label).permutation(size)[:share]
        aside[np.flatnonzero(y == label)[chosen]] = True
    return aside


def largest_remainder(quotas: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Integers with sum `total`, each within one of its quota (quotas sum to `total`); ties to the first.

    >>> largest_remainder(np.array([1.2, 0.7, 1.1]), 3).tolist()
    [1, 1, 1]
    """
    counts = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def _pairs(split: str, dataset: torch.utils.data.Dataset[Any]) -> tuple[list[Any], list[Any]]:
    size = getattr(dataset, "__len__", None)
    if size is None:
        raise DataError(f"The {split} dataset has no length: only datasets with len() can be read.")
    xs, ys = [], []
    for index in range(size()):
        try:
            x, y = dataset[index]
        except (TypeError, ValueError) as error:
            raise DataError(f"Sample {index} of the {split} dataset is not a pair (x, y): {error}.") from error
        xs.append(np.asarray(x))
        ys.append(np.asarray(y))
    return xs, ys


def as_inputs(name: str, values: ArrayLike) -> NDArray[Any]:
    """`values` as uint8 or float32, one sample per row."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} is not one array: its samples differ in shape.") from error
    if array.dtype.kind not in "buif":
        raise DataError(f"{name} has type {array.dtype}, but must hold numbers.")
    return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)


def as_labels(name: str, values: ArrayLike) -> IntArray:
    """`values` as int64. Whole numbers stored as floats are accepted, anything else is not rounded."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} is not one array of labels: its entries differ in shape.") from error
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}, but must be one label per sample: (samples,).")
    if array.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(array) | (array != np.trunc(array)))
        if len(wrong):
            raise DataError(f"{name}[{wrong[0]}] is {array[wrong[0]]}, but labels must be integers.")
    elif array.dtype.kind not in "bui":
        raise DataError(f"{name} has type {array.dtype}, but labels must be integers.")
    return array.astype(np.int64, copy=False)


def check_split(split: str, x: NDArray[Any], y: NDArray[Any], classes: int) -> None:
    """A train or test set is not empty, agrees in length, is finite and has labels 0 … classes − 1."""
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{split}_x has shape {x.shape}, but must be (samples, …) with at least one input.")
    if x.dtype not in (np.uint8, np.float32):
        raise DataError(f"{split}_x has type {x.dtype}, but must be uint8 or float32.")
    if y.ndim != 1 or y.dtype != np.int64:
        raise DataError(f"{split}_y has type {y.dtype} and shape {y.shape}, but must be int64, (samples,).")
    if len(x) != len(y):
        raise DataError(f"{split}_x has {len(x)} samples, but {split}_y has {len(y)} labels.")
    if not len(y):
        raise DataError(f"The {split} set is empty, but must have at least one sample.")
    check_labels(f"{split}_y", y, classes)
    _check_finite(f"{split}_x", x)


def check_labels(name: str, y: NDArray[Any], classes: int) -> None:
    """Labels are 0 … classes − 1; the first that is not is named."""
    wrong = np.flatnonzero((y < 0) | (y >= classes))
    if len(wrong):
        raise DataError(f"{name}[{wrong[0]}] is {y[wrong[0]]}, but labels must be 0 … {classes - 1}.")


def _check_finite(name: str, x: NDArray[Any], rows_at_once: int = 4096) -> None:
    """No NaN and no infinity; in pieces, so that the check needs no memory of its own."""
    if x.dtype == np.uint8:
        return
    for start in range(0, len(x), rows_at_once):
        piece = x[start : start + rows_at_once]
        wrong = np.flatnonzero(~np.isfinite(piece).reshape(len(piece), -1).all(axis=1))
        if len(wrong):
            raise DataError(f"{name}[{start + wrong[0]}] holds NaN or infinity, but inputs must be finite.")
