"""Arrays that people give, made into inputs, labels and devices; what cannot be that is one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.errors import DataError

IntArray = NDArray[np.int64]

NOBODY = -1
"""The device of a sample that belongs to no device."""


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
    """`values` as int64. Integers stored as floats are accepted, anything else is not rounded."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} is not one array of labels: its entries differ in shape.") from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}, but must be one label per sample: (samples,).")
    if array.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(array) | (array != np.trunc(array)))
        if len(wrong):
            raise DataError(f"{name}[{wrong[0]}] is {array[wrong[0]]}, but labels must be integers.")
    elif array.dtype.kind not in "bui":
        raise DataError(f"{name} has type {array.dtype}, but labels must be integers.")
    return array.astype(np.int64, copy=False)


def text_classes(*labels: ArrayLike | None) -> tuple[str, ...]:
    """The words that labels are, in order; none where they are not text.

    >>> text_classes(["walk", "sit", "walk"], None), text_classes([1, 2])
    (('sit', 'walk'), ())
    """
    columns = [np.ravel(np.asarray(one)) for one in labels if one is not None and not _is_ragged(one)]
    if not columns or not all(one.dtype.kind == "U" for one in columns):
        return ()
    return tuple(str(word) for word in np.unique(np.concatenate(columns)))


def numbered(names: tuple[str, ...], labels: ArrayLike) -> IntArray:
    """Text labels as the places of their words among these names."""
    return np.searchsorted(np.array(names), np.asarray(labels)).astype(np.int64)


def _is_ragged(values: ArrayLike) -> bool:
    try:
        np.asarray(values)
    except ValueError:
        return True
    return False


PLANES = (1, 3, 4)
"""Channels that images have: gray, color, color with transparency."""


def channels_first(x: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Images whose channels stand last with the channels first, bytes without any with one; and what was done.

    >>> channels_first(np.zeros((5, 32, 32, 3)))[0].shape, channels_first(np.zeros((5, 3, 32, 32)))[1]
    ((5, 3, 32, 32), '')
    """
    if x.ndim == 3 and x.dtype == np.uint8:
        return x[:, None], ""
    if x.ndim == 4 and x.shape[-1] in PLANES and x.shape[1] not in PLANES:
        return x.transpose(0, 3, 1, 2), f"Images of shape {x.shape[1:]} were taken as (height, width, channels)."
    return x, ""


def as_classes(*labels: IntArray) -> tuple[tuple[IntArray, ...], str]:
    """Labels as 0 … C − 1 where they begin elsewhere or have gaps, and what was done.

    A class that no sample has would make networks larger and chance smaller than they are.

    >>> as_classes(np.array([1, 2, 5]), np.array([5, 1]))
    ((array([0, 1, 2]), array([2, 0])), 'Its 3 labels, 1 … 5, are numbered 0 … 2 in order.')
    """
    known = np.unique(np.concatenate(labels))
    if not len(known) or (known[0] == 0 and known[-1] == len(known) - 1):
        return labels, ""
    found = tuple(np.searchsorted(known, own).astype(np.int64) for own in labels)
    return found, f"Its {len(known)} labels, {known[0]} … {known[-1]}, are numbered 0 … {len(known) - 1} in order."


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


def device_numbers(
    train: ArrayLike | None, test: ArrayLike | None = None
) -> tuple[IntArray | None, IntArray | None, tuple[str, ...]]:
    """Ids of any kind as numbers 0 … K − 1 in sorted order, and the names these stand for.

    Who has no training sample is no device.

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


def check_devices(name: str, device: IntArray, samples: int, names: int, least: int) -> None:
    """There is one device for each sample, from `least` to the last that has a name; the first that is not is named."""
    if device.dtype != np.int64 or device.shape != (samples,):
        raise DataError(
            f"{name} has type {device.dtype} and shape {device.shape}, but must be int64, one for each of {samples} "
            "samples."
        )
    wrong = np.flatnonzero((device < least) | (device >= names))
    if len(wrong):
        raise DataError(f"{name}[{wrong[0]}] is {device[wrong[0]]}, but must be {least} … {names - 1}.")
