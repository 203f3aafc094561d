"""CIFAR-10: 50,000 training and 10,000 test images, standardised per channel.

Two forms are read: the original binary version (what `kfl data download cifar10` fetches; no pickle), and
parquet files with encoded images. Where both are there, the original pixels win.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.cache import Decoded, cached
from kfl.data.checks import check_labels
from kfl.data.dataset import Dataset
from kfl.data.image_table import read_images

CLASSES, SIZE = 10, 32
ROWS = {"train": 50_000, "test": 10_000}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Of the training set, per channel, in [0, 1]."""

BINARY_FOLDER = "cifar-10-batches-bin"
BINARY_FILES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
IMAGES_PER_FILE = 10_000
RECORD_BYTES = 1 + 3 * SIZE * SIZE
"""A label, then the red, green and blue planes."""
JPEG_NOTE = "CIFAR-10 images went through JPEG once: results can differ a little from the original pixels."


def load(data_dir: Path, cache_dir: Path) -> Dataset:
    """CIFAR-10 from `<data_dir>/cifar10/` or `<data_dir>`: the binary version, else parquet."""
    binary, parquet = _find_binary(data_dir), _find_parquet(data_dir)
    if binary is not None:
        sources = [binary / name for names in BINARY_FILES.values() for name in names]
        found = cached("cifar10", sources, lambda: _decode_binary(binary), cache_dir)
    elif parquet is not None:
        sources = [parquet / f"{split}.parquet" for split in ROWS]
        found = cached("cifar10", sources, lambda: _decode_parquet(parquet), cache_dir)
    else:
        raise DataError(f"CIFAR-10 is not there or not complete: {wanted(data_dir)}.")
    return Dataset(
        name="cifar10",
        train_x=found.arrays["train_x"],
        train_y=found.arrays["train_y"],
        test_x=found.arrays["test_x"],
        test_y=found.arrays["test_y"],
        classes=CLASSES,
        scale=1 / 255,
        mean=MEAN,
        std=STD,
        note=found.note,
    )


def wanted(data_dir: Path) -> str:
    """What to put where, as the end of a sentence."""
    names = ", ".join(name for names in BINARY_FILES.values() for name in names)
    folder = data_dir / "cifar10"
    return (
        f"put {names} into {folder / BINARY_FOLDER}, or train.parquet and test.parquet (columns img, label) "
        f"into {folder}, or run `kfl data download cifar10` to fetch it (KFL_DATA_DIR names another data folder)"
    )


def _find_binary(data_dir: Path) -> Path | None:
    names = [name for names in BINARY_FILES.values() for name in names]
    for folder in (data_dir / "cifar10" / BINARY_FOLDER, data_dir / BINARY_FOLDER):
        if all((folder / name).is_file() for name in names):
            return folder
    return None


def _find_parquet(data_dir: Path) -> Path | None:
    # Not in data_dir itself: train.parquet there could be anything.
    folder = data_dir / "cifar10"
    return folder if all((folder / f"{split}.parquet").is_file() for split in ROWS) else None


def _decode_binary(folder: Path) -> Decoded:
    arrays: dict[str, NDArray[np.uint8] | NDArray[np.int64]] = {}
    for split, names in BINARY_FILES.items():
        records = np.concatenate([_records(folder / name) for name in names])
        arrays[f"{split}_x"] = np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, SIZE, SIZE)
        arrays[f"{split}_y"] = labels = records[:, 0].astype(np.int64)
        _check(folder, split, labels)
    return Decoded(arrays)


def _records(path: Path) -> NDArray[np.uint8]:
    found, expected = path.stat().st_size, IMAGES_PER_FILE * RECORD_BYTES
    if found != expected:
        raise DataError(f"{path} has {found} bytes, but must have {expected}: fetch it again.")
    return np.fromfile(path, dtype=np.uint8).reshape(IMAGES_PER_FILE, RECORD_BYTES)


def _decode_parquet(folder: Path) -> Decoded:
    arrays: dict[str, NDArray[np.uint8] | NDArray[np.int64]] = {}
    any_jpeg = False
    for split, rows in ROWS.items():
        path = folder / f"{split}.parquet"
        images, labels, jpeg = read_images(path, rows, SIZE)
        _check(path, split, labels)
        arrays |= {f"{split}_x": images, f"{split}_y": labels}
        any_jpeg = any_jpeg or jpeg
    return Decoded(arrays, JPEG_NOTE if any_jpeg else "")


def _check(path: Path, split: str, labels: NDArray[np.int64]) -> None:
    """Labels are 0 … 9 and every class is equally large."""
    check_labels(f"{path}: {split} label", labels, CLASSES)
    counts = np.bincount(labels, minlength=CLASSES)
    expected = ROWS[split] // CLASSES
    if (counts != expected).any():
        wrong = int(np.argmax(counts != expected))
        raise DataError(
            f"{path} has {counts[wrong]} {split} images of class {wrong}, but must have {expected} of each."
        )
