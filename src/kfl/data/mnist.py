"""MNIST: the four original IDX files, 60,000 training and 10,000 test digits, inputs in [0, 1]."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kfl.core.errors import DataError
from kfl.data import idx
from kfl.data.cache import Decoded, cached
from kfl.data.dataset import Dataset

CLASSES = 10
FILES = {
    "train_x": idx.IdxFile("train-images-idx3-ubyte", (60_000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    "train_y": idx.IdxFile("train-labels-idx1-ubyte", (60_000,), "a25bea736e30d166cdddb491f175f624", 9),
    "test_x": idx.IdxFile("t10k-images-idx3-ubyte", (10_000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
    "test_y": idx.IdxFile("t10k-labels-idx1-ubyte", (10_000,), "27ae3e4e09519cfbb04c329615203637", 9),
}
"""md5 of the unzipped content, so that a file zipped again by somebody else is still accepted."""


def load(data_dir: Path, cache_dir: Path) -> Dataset:
    """MNIST from `<data_dir>/mnist/` or `<data_dir>`, gzipped or plain."""
    folders = (data_dir / "mnist", data_dir)
    found = {key: idx.find(file, folders) for key, file in FILES.items()}
    paths = {key: path for key, path in found.items() if path is not None}
    if len(paths) < len(FILES):
        missing = [FILES[key].name for key, path in found.items() if path is None]
        raise DataError(f"MNIST is not complete, {', '.join(missing)} not found: {wanted(data_dir)}.")
    arrays = cached("mnist", list(paths.values()), lambda: _decode(paths), cache_dir).arrays
    return Dataset(
        name="mnist",
        train_x=arrays["train_x"],
        train_y=arrays["train_y"],
        test_x=arrays["test_x"],
        test_y=arrays["test_y"],
        classes=CLASSES,
        scale=1 / 255,
    )


def wanted(data_dir: Path) -> str:
    """What to put where, as the end of a sentence."""
    names = ", ".join(f"{file.name}.gz" for file in FILES.values())
    return (
        f"put {names} into {data_dir / 'mnist'}, or run `kfl data download mnist` to fetch them "
        "(KFL_DATA_DIR names another data folder)"
    )


def _decode(paths: dict[str, Path]) -> Decoded:
    arrays = {key: idx.read(path, FILES[key]) for key, path in paths.items()}
    return Decoded(
        {key: array.astype(np.int64) if key.endswith("_y") else array[:, None] for key, array in arrays.items()}
    )
