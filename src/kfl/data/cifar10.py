"""CIFAR-10: 50,000 training and 10,000 test images, standardized per channel.

Two forms are read: the original binary version (what `kfl data download cifar10` fetches; no pickle), and
parquet files with encoded images. Where both are there, the original pixels win.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.arrays import as_labels, check_labels
from kfl.data.dataset import Dataset
from kfl.data.parquet import Columns, read_table
from kfl.data.source import Download, RemoteFile, Source
from kfl.data.storage import Decoded

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


class Cifar10(Source):
    """The set in either form."""

    def files(self, data_dir: Path) -> list[Path]:
        """All files of the binary version or, where it is not complete, of the parquet version."""
        below = data_dir / "cifar10"
        names = [name for names in BINARY_FILES.values() for name in names]
        choices = [[folder / name for name in names] for folder in (below / BINARY_FOLDER, data_dir / BINARY_FOLDER)]
        # Not in data_dir itself: train.parquet there could be anything.
        choices.append([below / f"{split}.parquet" for split in ROWS])
        return next((files for files in choices if all(path.is_file() for path in files)), [])

    def by_hand(self, data_dir: Path) -> str:
        """The files of either form."""
        names = ", ".join(name for names in BINARY_FILES.values() for name in names)
        folder = data_dir / "cifar10"
        return (
            f"put {names} into {folder / BINARY_FOLDER}, or train.parquet and test.parquet (columns img, label) "
            f"into {folder}"
        )

    def decode(self, data_dir: Path, cache_dir: Path) -> Decoded:
        """The arrays of the form that is there."""
        first = self.files(data_dir)[0]
        return _decode_parquet(first.parent, cache_dir) if first.suffix == ".parquet" else _decode_binary(first.parent)

    def load(self, data_dir: Path, cache_dir: Path) -> Dataset:
        """The set, with the published mean and deviation of its channels."""
        return replace(super().load(data_dir, cache_dir), mean=MEAN, std=STD)


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


def _decode_parquet(folder: Path, cache_dir: Path) -> Decoded:
    arrays: dict[str, NDArray[np.uint8] | NDArray[np.int64]] = {}
    any_jpeg = False
    for split, rows in ROWS.items():
        path = folder / f"{split}.parquet"
        table = read_table([path], cache_dir, Columns("img", "label"), (3, SIZE, SIZE), rows=rows)
        labels = as_labels(f"{path}: {split} label", table.y)
        _check(path, split, labels)
        arrays |= {f"{split}_x": table.x, f"{split}_y": labels}
        any_jpeg = any_jpeg or table.jpeg
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


SOURCE = Cifar10(
    name="cifar10",
    description="CIFAR-10, 50,000 + 10,000 color images of 32×32 pixels",
    classes=CLASSES,
    download=Download(
        base_url="https://www.cs.toronto.edu/~kriz/",
        folder="cifar10",
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
                members={
                    f"{BINARY_FOLDER}/{name}": IMAGES_PER_FILE * RECORD_BYTES
                    for names in BINARY_FILES.values()
                    for name in names
                },
            ),
        ),
    ),
)
