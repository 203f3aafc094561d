"""A dataset: images or vectors with labels, kept as they are stored and scaled only when read.

Arrays are checked before they may be called a dataset; each failure is one sentence. Nothing here imports PyTorch
before samples are read.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.errors import ConfigError, DataError
from kfl.data.arrays import (
    NOBODY,
    IntArray,
    as_classes,
    as_inputs,
    as_labels,
    channels_first,
    check_devices,
    check_split,
    device_numbers,
    numbered,
    text_classes,
)
from kfl.data.holdout import set_aside

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Data: TypeAlias = "Dataset | Sequence[Any] | torch.utils.data.Dataset[Any]"
    """What `run` takes as data: a dataset, (x, y), (x, y, test_x, test_y), ((x, y), (test_x, test_y)) or PyTorch's."""

RIGHT = "a kfl.Dataset, arrays (x, y) or (x, y, test_x, test_y), or a torch.utils.data.Dataset"
Split = Literal["train", "test"]

MOST_CLASSES = 100_000
"""Memory grows with the classes, and they are counted from the largest label, which may be a mistake."""
FINGERPRINT_ROWS = 256
"""Samples of each set that enter the fingerprint; labels enter completely."""


@dataclass(frozen=True)
class View:
    """What the samples of a dataset were before an encoder made numbers of them, and what that costs a device."""

    encoder: str
    flops: float
    """Of one sample."""
    download_bits: float
    """What a device must download to compute it; 0 where formulas say it all."""
    whitened: bool
    """Whether all numbers vary about alike within classes, around a common origin."""


@dataclass(frozen=True, eq=False, repr=False)
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
    """The same of test samples; NOBODY for one of a device that has no training samples."""
    device_names: tuple[str, ...] = ()
    """What the data calls its devices."""
    view: View | None = None
    """The encoder that made these samples; None for samples as they are."""
    class_names: tuple[str, ...] = ()
    """What the data calls its classes, where labels are text."""

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
                check_devices(
                    f"{split}_device", device, samples, len(self.device_names), NOBODY if split == "test" else 0
                )

    def __repr__(self) -> str:
        sizes = f"{len(self.train_y):,} training and {len(self.test_y):,} test samples"
        return f"<Dataset {self.name}: {sizes} of shape {self.input_shape}, {self.classes} classes>"

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample: (channels, height, width) for images."""
        return tuple(self.train_x.shape[1:])

    @property
    def input_size(self) -> int:
        """Numbers of one sample."""
        return math.prod(self.input_shape)

    @property
    def whitened(self) -> bool:
        """Whether an encoder made the samples, and all their numbers vary about alike within classes."""
        return self.view is not None and self.view.whitened

    def inputs(self, split: Split, indices: ArrayLike | None = None) -> torch.Tensor:
        """Samples as float32, scaled and standardized; all of them where no indices are given."""
        import torch

        x = self._of(split, self.train_x, self.test_x)
        rows = np.array(x) if indices is None else x[_index(indices)]
        return self.scale_(torch.from_numpy(rows).to(torch.float32))

    def unstandardized(self, split: Split, indices: ArrayLike) -> torch.Tensor:
        """Samples as float32 and scaled, but not standardized: images from 0 to 1."""
        import torch

        rows = self._of(split, self.train_x, self.test_x)[_index(indices)]
        return torch.from_numpy(np.array(rows)).to(torch.float32).mul_(self.scale)

    def scale_(self, values: torch.Tensor) -> torch.Tensor:
        """Scale and standardize inputs as they are stored, in place: `(x · scale − mean) / std`.

        Args:
            values: (…, *input_shape), floating point, on any processor.
        """
        if self.scale != 1.0:
            values.mul_(self.scale)
        if self.mean is not None:
            values.sub_(_by_channel(self.mean, len(self.input_shape), values.device))
        if self.std is not None:
            values.div_(_by_channel(self.std, len(self.input_shape), values.device))
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
    def of(given: Data) -> Dataset:
        """A dataset from data as people have it: arrays, PyTorch's datasets, or a dataset.

        Raises:
            DataError: In one sentence, for what is none of these.

        >>> x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
        >>> [len(Dataset.of(one).test_y) for one in ((x, y), (x, y, x, y), ((x, y), (x, y)))]
        [4, 20, 20]
        """
        if isinstance(given, Dataset):
            return given
        if isinstance(given, str):
            where = f"kfl.Experiment(dataset={given!r})"
            raise DataError(f"dataset is {given!r}, a name: give it to the experiment, {where}.")
        if isinstance(given, list | tuple):
            return _of_several(list(given))
        if _is_torch(given):
            return Dataset.from_torch(cast("torch.utils.data.Dataset[Any]", given))
        raise DataError(f"dataset is {_what(given)}, but must be {RIGHT}.")

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
        scale: float | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        note: str = "",
        train_device: ArrayLike | None = None,
        test_device: ArrayLike | None = None,
    ) -> Dataset:
        """A dataset from arrays. Without a test set, `test_fraction` of each class is set aside as one.

        Labels may be text; `class_names` then has them in order.

        uint8 stays uint8 and is divided by 255 when it is read unless `scale` is given; all other numbers become
        float32. Images may have their channels last. Where `classes` is not given, labels that begin above 0 or have
        gaps are numbered anew. What was changed is in the dataset's note.

        `train_device` says whose sample each is, by any integers or strings; a test set is then set aside from each
        device's samples.

        >>> who = np.repeat(["bob", "ann"], 10)
        >>> data = Dataset.from_arrays(np.arange(20.0)[:, None], np.arange(20) % 2, train_device=who)
        >>> data.device_names, np.bincount(data.train_device), np.bincount(data.test_device)
        (('ann', 'bob'), array([8, 8]), array([2, 2]))
        """
        x, class_names = as_inputs("train_x", train_x), text_classes(train_y, test_y)
        if class_names:
            train_y, test_y = numbered(class_names, train_y), None if test_y is None else numbered(class_names, test_y)
            classes = len(class_names) if classes is None else classes
        y = as_labels("train_y", train_y)
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
        (x, turned), (other_x, _) = channels_first(x), channels_first(other_x)
        renamed = ""
        if classes is None:
            if min(y.min(initial=0), other_y.min(initial=0)) >= 0:  # a negative label is a mistake, and named below
                (y, other_y), renamed = as_classes(y, other_y)
            classes = 1 + int(max(y.max(initial=0), other_y.max(initial=0)))
        if scale is None:
            scale = 1 / 255 if x.dtype == np.uint8 else 1.0
        note = " ".join(part for part in (note, turned, renamed) if part)
        whose = (device, other_device, names)
        return Dataset(name, x, y, other_x, other_y, classes, scale, mean, std, note, *whose, class_names=class_names)

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


@lru_cache(maxsize=32)
def _by_channel(values: tuple[float, ...], dimensions: int, where: torch.device) -> torch.Tensor:
    """One number per channel, which is the first dimension of an input; kept, since a copy to a GPU waits for it."""
    import torch

    return torch.tensor(values, dtype=torch.float32, device=where).reshape(-1, *[1] * (dimensions - 1))


def _of_several(given: list[Any]) -> Dataset:
    if given and all(_is_torch(one) for one in given) and len(given) <= 2:
        return Dataset.from_torch(*given)
    if len(given) == 2 and all(isinstance(one, list | tuple) and len(one) == 2 for one in given):
        pairs = [_arrays(pair) for pair in given]
        if all(len(x) == len(y) and x.ndim > y.ndim for x, y in pairs):
            return Dataset.from_arrays(*pairs[0], *pairs[1])
    if len(given) not in (2, 4):
        raise DataError(f"dataset is {len(given)} things, but must be {RIGHT}.")
    arrays = _arrays(given)
    if len(arrays) == 4 and arrays[1].ndim > 1 and arrays[2].ndim == 1:
        raise DataError(
            "dataset is (x, test_x, y, test_y), the order of scikit-learn's train_test_split, but must be "
            "(x, y, test_x, test_y)."
        )
    if len(arrays) == 2 and arrays[0].ndim == 1 and arrays[1].ndim > 1:
        raise DataError("dataset is (y, x), the labels first, but must be (x, y).")
    return Dataset.from_arrays(*arrays)


def _arrays(given: Sequence[Any]) -> list[NDArray[Any]]:
    found = []
    for index, one in enumerate(given):
        values = one.detach().cpu().numpy() if hasattr(one, "detach") else one
        try:
            found.append(np.asarray(values))
        except ValueError as problem:
            raise DataError(f"dataset[{index}] is not one array: its rows differ in length.") from problem
        if found[-1].dtype == object:
            raise DataError(f"dataset[{index}] is {_what(one)}, but must be an array of numbers.")
    return found


def _is_torch(given: object) -> bool:
    import torch

    return isinstance(given, torch.utils.data.Dataset)


def _what(given: object) -> str:
    """What was given, in a few words."""
    if isinstance(given, np.ndarray) or hasattr(given, "detach"):
        return f"one array of shape {tuple(getattr(given, 'shape', ()))}, without labels"
    return f"of type {type(given).__name__}"
