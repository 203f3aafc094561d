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
NOBODY = -1
"""The device of a sample that belongs to no device."""
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
    train_device: IntArray | None = None
    """Whose sample each is, as the data itself has it: an index into `device_names`. The natural split keeps it."""
    test_device: IntArray | None = None
    """The same of test samples; NOBODY for one of somebody who has no training samples."""
    device_names: tuple[str, ...] = ()
    """What the data calls its devices."""

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
        for split, device, samples in (
            ("train", self.train_device, len(self.train_y)),
            ("test", self.test_device, len(self.test_y)),
        ):
            if device is not None:
                _check_devices(
                    f"{split}_device", device, samples, len(self.device_names), NOBODY if split == "test" else 0
                )

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
        for device in (self.train_device, self.test_device):
            if device is not None:
                digest.update(b"devices" + np.ascontiguousarray(device).tobytes())
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
        train_device: ArrayLike | None = None,
        test_device: ArrayLike | None = None,
    ) -> Dataset:
        """A dataset from arrays. Without a test set, `test_fraction` of each class is set aside as one.

        uint8 stays uint8, all other numbers become float32. `classes` is the largest label plus one unless
        given. `train_device` says whose sample each is, by any integers or strings; a test set is then set aside
        from each device's samples.

        >>> who = np.repeat(["bob", "ann"], 10)
        >>> data = Dataset.from_arrays(np.arange(20.0)[:, None], np.arange(20) % 2, train_device=who)
        >>> data.device_names, np.bincount(data.train_device), np.bincount(data.test_device)
        (('ann', 'bob'), array([8, 8]), array([2, 2]))
        """
        x, y = as_inputs("train_x", train_x), as_labels("train_y", train_y)
        if (test_x is None) != (test_y is None):
            missing = "test_x" if test_x is None else "test_y"
            raise DataError(f"{missing} is missing: give both test_x and test_y, or neither.")
        if len(x) != len(y):
            raise DataError(f"train_x has {len(x)} samples, but train_y has {len(y)} labels.")
        device, other_device, names = device_numbers(train_device, test_device)
        if device is not None and len(device) != len(y):
            raise DataError(f"train_device has {len(device)} entries, but train_y has {len(y)} labels.")
        if test_x is not None and test_y is not None:
            other_x, other_y = as_inputs("test_x", test_x), as_labels("test_y", test_y)
        else:
            aside = set_aside(y, test_fraction, seed, device)
            x, y, other_x, other_y = x[~aside], y[~aside], x[aside], y[aside]
            if device is not None:
                device, other_device = device[~aside], device[aside]
        if other_x.dtype != x.dtype:
            x, other_x = x.astype(np.float32), other_x.astype(np.float32)
        if classes is None:
            classes = 1 + int(max(y.max(initial=0), other_y.max(initial=0)))
        return Dataset(name, x, y, other_x, other_y, classes, scale, mean, std, note, device, other_device, names)

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


def set_aside(y: IntArray, fraction: float, seed: int, device: IntArray | None = None) -> NDArray[np.bool_]:
    """Which samples become the test set: the same fraction of every class, drawn by the seed.

    Where samples have devices, that fraction of each device's samples, and of its classes as nearly as numbers
    allow; every device keeps at least one sample to train with.
    """
    if not 0 < fraction < 1:
        raise ConfigError("test_fraction", fraction, "between 0 and 1")
    if len(y) < 2:
        raise DataError(f"{len(y)} samples cannot be split into a training and a test set: give test_x.")
    aside = np.zeros(len(y), dtype=np.bool_)
    if device is None:
        _set_some_aside(aside, np.arange(len(y)), y, fraction, seed)
        return aside
    order = np.argsort(device, kind="stable")
    cuts = np.flatnonzero(np.diff(device[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows) > 1:
            _set_some_aside(aside, rows, y[rows], fraction, seed, int(device[rows[0]]))
    if not aside.any():
        raise DataError("No device has two samples, so that none can be set aside as a test set: give test_x.")
    return aside


def _set_some_aside(
    aside: NDArray[np.bool_], rows: IntArray, y: IntArray, fraction: float, seed: int, *device: int
) -> None:
    """Mark the fraction of `rows`, whose labels are `y`, in `aside`."""
    present, sizes = np.unique(y, return_counts=True)
    total = min(max(round(len(y) * fraction), 1), len(y) - 1)
    # Ties go to the first class. Of a device they are drawn: else the first classes would be tested on every device.
    order = stream(seed, "test split ties", *device).permutation(len(present)) if device else np.arange(len(present))
    shares = np.empty(len(present), dtype=np.int64)
    shares[order] = largest_remainder(sizes[order] / len(y) * total, total)
    for label, size, share in zip(present.tolist(), sizes.tolist(), shares.tolist(), strict=True):
        chosen = stream(seed, "test split", label, *device).permutation(size)[:share]
        aside[rows[np.flatnonzero(y == label)[chosen]]] = True


def device_numbers(
    train: ArrayLike | None, test: ArrayLike | None = None
) -> tuple[IntArray | None, IntArray | None, tuple[str, ...]]:
    """Ids of any kind as numbers 0 … K − 1 in sorted order, and the names these stand for.

    Who has no training sample is nobody.

    >>> device_numbers([30, 4, 30], [4, 5])
    (array([1, 0, 1]), array([ 0, -1]), ('4', '30'))
    """
    if train is None:
        if test is not None:
            raise DataError("train_device is missing: give it too, or leave test_device out.")
        return None, None, ()
    ids = _ids("train_device", train)
    known, numbers = np.unique(ids, return_inverse=True)
    names = tuple(str(one) for one in known.tolist())
    if test is None:
        return numbers.astype(np.int64), None, names
    others = _ids("test_device", test)
    if others.dtype.kind != ids.dtype.kind:
        raise DataError(f"train_device has type {ids.dtype}, but test_device has {others.dtype}: give both the same.")
    index = np.minimum(np.searchsorted(known, others), max(len(known) - 1, 0))
    return numbers.astype(np.int64), np.where(known[index] == others, index, NOBODY).astype(np.int64), names


def _ids(name: str, values: ArrayLike) -> NDArray[Any]:
    """Ids of devices, one per sample: integers, or strings."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} is not one array of ids: its entries differ in shape.") from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}, but must be one id per sample: (samples,).")
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "f" and bool(((array == np.trunc(array)) & (np.abs(array) < 2**53)).all()):
        array = array.astype(np.int64)
    if array.dtype.kind not in "bui":
        raise DataError(f"{name} has type {array.dtype}, but ids of devices must be integers or strings.")
    return array.astype(np.int64)


def _check_devices(name: str, device: IntArray, samples: int, names: int, least: int) -> None:
    if device.dtype != np.int64 or device.shape != (samples,):
        raise DataError(
            f"{name} has type {device.dtype} and shape {device.shape}, but must be int64, one for each of {samples} "
            "samples."
        )
    wrong = np.flatnonzero((device < least) | (device >= names))
    if len(wrong):
        raise DataError(f"{name}[{wrong[0]}] is {device[wrong[0]]}, but must be {least} … {names - 1}.")


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
