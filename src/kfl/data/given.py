"""Data as people have it: a dataset, a tuple of arrays, PyTorch's datasets; what is none of these is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    Data = Dataset | Sequence[Any] | torch.utils.data.Dataset[Any]
    """What `run` takes as data: a dataset, (x, y), (x, y, test_x, test_y), ((x, y), (test_x, test_y)) or PyTorch's."""

RIGHT = "a kfl.Dataset, arrays (x, y) or (x, y, test_x, test_y), or a torch.utils.data.Dataset"


def given_dataset(given: Data) -> Dataset:
    """A dataset from what people have.

    >>> x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    >>> [len(given_dataset(one).test_y) for one in ((x, y), (x, y, x, y), ((x, y), (x, y)))]
    [4, 20, 20]
    >>> given_dataset("mnist")
    Traceback (most recent call last):
    ...
    kfl.core.errors.DataError: dataset is 'mnist', a name: give it to the experiment, kfl.Experiment(dataset='mnist').
    """
    if isinstance(given, Dataset):
        return given
    if isinstance(given, str):
        raise DataError(f"dataset is {given!r}, a name: give it to the experiment, kfl.Experiment(dataset={given!r}).")
    if isinstance(given, list | tuple):
        return _of_several(list(given))
    if _is_torch(given):
        return Dataset.from_torch(cast("torch.utils.data.Dataset[Any]", given))
    raise DataError(f"dataset is {_what(given)}, but must be {RIGHT}.")


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
    """What somebody gave, in a few words."""
    if isinstance(given, np.ndarray) or hasattr(given, "detach"):
        return f"one array of shape {tuple(getattr(given, 'shape', ()))}, without labels"
    return f"of type {type(given).__name__}"
