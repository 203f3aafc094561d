"""What arrays must satisfy before they may be called a dataset; each failure is one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.errors import DataError

IntArray = NDArray[np.int64]


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
