"""From what files hold to a dataset: labels of any kind become classes, ids of any kind devices, and where there is no
test set one is set aside. Every format ends here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kfl.core.errors import DataError
from kfl.data.arrays import IntArray, as_classes, as_labels, device_numbers
from kfl.data.dataset import Dataset
from kfl.data.holdout import set_aside
from kfl.data.storage import Decoded, spacious

HELD_OUT = 0.2
"""Part of the samples that becomes the test set where there is none."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Samples:
    """What files say of a training or test set: nothing of it is checked yet."""

    x: NDArray[Any]
    """(samples, …): bytes, or numbers that become float32."""
    y: NDArray[Any]
    """One label per sample: integers, or strings."""
    device: NDArray[Any] | None = None
    """Whose each sample is: integers, or strings."""
    jpeg: bool = False
    """Whether any of them was an image that was stored as JPEG."""


def decode(name: str, train: Samples, test: Samples | None, cache_dir: Path, note: str = "") -> Decoded:
    """Arrays for `as_dataset`, to be cached. `name` stands for the files in sentences."""
    sets = [("training", train)] + ([] if test is None else [("test", test)])
    for split, found in sets:
        _check_lengths(f"{name}: the {split} set", found)
    labels, renumbered, class_names = _classes(name, [found.y for _, found in sets])
    other_ids = None if train.device is None or test is None else test.device
    try:
        device, other_device, names = device_numbers(train.device, other_ids)
        aside = set_aside(labels[0], HELD_OUT, 0, device) if test is None else None
    except DataError as problem:
        raise DataError(f"{name}: {problem}") from problem
    notes = [note, renumbered]
    if test is None:
        assert aside is not None
        x, other_x = (_rows(train.x, np.flatnonzero(chosen), cache_dir) for chosen in (~aside, aside))
        y, other_y = labels[0][~aside], labels[0][aside]
        if device is not None:
            device, other_device = device[~aside], device[aside]
        whose = "class's" if device is None else "device's"
        notes.append(f"There is no test set, so {HELD_OUT:.0%} of each {whose} samples are held out as one.")
    else:
        x, other_x, y, other_y = train.x, test.x, labels[0], labels[1]
    kind = np.uint8 if x.dtype == other_x.dtype == np.uint8 else np.float32
    x, other_x = _stored(x, kind, cache_dir), _stored(other_x, kind, cache_dir)
    arrays = {"train_x": x, "train_y": y, "test_x": other_x, "test_y": other_y}
    if len(class_names):
        arrays["class_names"] = class_names
    if device is not None:
        arrays |= {"train_device": device, "device_names": np.array(names)}
    if other_device is not None:
        arrays["test_device"] = other_device
    return Decoded(arrays, " ".join(one for one in notes if one))


def as_dataset(name: str, decoded: Decoded, *, standardise: bool = False, classes: int | None = None) -> Dataset:
    """The dataset of some decoded arrays: bytes are scaled to [0, 1], all else is taken as it is.

    With `standardise`, inputs with three channels are standardized by mean and deviation of each, as images in color
    usually are.
    """
    arrays = dict(decoded.arrays)
    names, class_names = (tuple(map(str, arrays.pop(key, ()))) for key in ("device_names", "class_names"))
    mean, std = (arrays.pop(key, None) for key in ("mean", "std"))
    if classes is None:
        classes = 1 + int(max(arrays[key].max(initial=0) for key in ("train_y", "test_y")))
    return Dataset(
        name=name,
        **arrays,
        classes=classes,
        scale=1 / 255 if arrays["train_x"].dtype == np.uint8 else 1.0,
        mean=None if mean is None or not standardise else tuple(mean.tolist()),
        std=None if std is None or not standardise else tuple(std.tolist()),
        note=decoded.note,
        device_names=names,
        class_names=class_names,
    )


def channel_moments(x: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
    """Mean and standard deviation of each channel of bytes in [0, 1], exact but for four decimals.

    >>> moments = channel_moments(np.tile(np.array([0, 255], dtype=np.uint8), (5, 3, 1)))
    >>> moments["mean"].tolist(), moments["std"].tolist()
    ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    """
    counts = np.zeros((x.shape[1], 256), dtype=np.int64)
    for start in range(0, len(x), ROWS_AT_ONCE):
        piece = x[start : start + ROWS_AT_ONCE]
        for channel in range(x.shape[1]):
            counts[channel] += np.bincount(piece[:, channel].reshape(-1), minlength=256)
    values = np.arange(256) / 255
    weights = counts / counts.sum(axis=1, keepdims=True)
    mean = weights @ values
    std = np.sqrt(weights @ values**2 - mean**2)
    return {"mean": np.round(mean, 4), "std": np.maximum(np.round(std, 4), 1e-4)}  # a constant channel is possible


def _check_lengths(name: str, found: Samples) -> None:
    for word, values in (("labels", found.y), ("device ids", found.device)):
        if values is not None and len(found.x) != len(values):
            raise DataError(f"{name} has {len(found.x)} samples, but {len(values)} {word}.")


def _classes(name: str, labels: Sequence[NDArray[Any]]) -> tuple[list[IntArray], str, NDArray[Any]]:
    """Labels as classes 0 … C − 1, numbered in order, a sentence where that changed numbers, and the names of texts."""
    columns = [one[:, 0] if one.ndim == 2 and one.shape[1] == 1 else one for one in labels]
    if all(one.dtype.kind in "US" and one.ndim == 1 for one in columns):
        columns = [np.char.decode(one, "utf-8", "replace") if one.dtype.kind == "S" else one for one in columns]
        known = np.unique(np.concatenate(columns))
        return [np.searchsorted(known, one).astype(np.int64) for one in columns], "", known
    numbers, told = as_classes(*(as_labels(f"{name}: labels", one) for one in columns))
    return list(numbers), told, np.empty(0, "U1")


def _rows(x: NDArray[Any], rows: IntArray, cache_dir: Path) -> NDArray[Any]:
    """Some rows of an array that may be larger than memory."""
    out = spacious((len(rows), *x.shape[1:]), x.dtype, cache_dir)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        out[start : start + ROWS_AT_ONCE] = x[rows[start : start + ROWS_AT_ONCE]]
    return out


def _stored(x: NDArray[Any], dtype: DTypeLike, cache_dir: Path) -> NDArray[Any]:
    """The same numbers in another type and in the order of their indices; the array may be larger than memory."""
    if x.dtype == dtype and x.flags.c_contiguous:
        return x
    out = spacious(x.shape, dtype, cache_dir)
    with np.errstate(over="ignore"):  # infinite is refused later, with the sample it is in
        for start in range(0, len(x), ROWS_AT_ONCE):
            out[start : start + ROWS_AT_ONCE] = x[start : start + ROWS_AT_ONCE]
    return out
