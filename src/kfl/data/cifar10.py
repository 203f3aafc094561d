"""CIFAR-10: 50,000 training and 10,000 test images, standardised per channel.

Two forms are read: the original binary version (what `kfl data download cifar10` fetches; no pickle), and
parquet files with encoded images. Where both are there, the original pixels win.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError, MissingExtraError
from kfl.data.dataset import Dataset, check_labels
from kfl.data.source import Download, RemoteFile, Source
from kfl.data.storage import Decoded, cached

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
JPEG_MAGIC = b"\xff\xd8\xff"
JPEG_NOTE = "CIFAR-10 images went through JPEG once: results can differ a little from the original pixels."


def load(data_dir: Path, cache_dir: Path) -> Dataset:
    """CIFAR-10 from `<data_dir>/cifar10/` or `<data_dir>`: the binary version, else parquet."""
    files = _files(data_dir)
    if not files:
        raise DataError(f"CIFAR-10 is not there or not complete: {SOURCE.how_to_get(data_dir)}.")
    decode = _decode_parquet if files[0].suffix == ".parquet" else _decode_binary
    found = cached("cifar10", files, lambda: decode(files[0].parent), cache_dir)
    return Dataset(name="cifar10", **found.arrays, classes=CLASSES, scale=1 / 255, mean=MEAN, std=STD, note=found.note)


def _files(data_dir: Path) -> list[Path]:
    """All files of the binary version or, where it is not complete, of the parquet version."""
    below = data_dir / "cifar10"
    names = [name for names in BINARY_FILES.values() for name in names]
    choices = [[folder / name for name in names] for folder in (below / BINARY_FOLDER, data_dir / BINARY_FOLDER)]
    # Not in data_dir itself: train.parquet there could be anything.
    choices.append([below / f"{split}.parquet" for split in ROWS])
    return next((files for files in choices if all(path.is_file() for path in files)), [])


def _by_hand(data_dir: Path) -> str:
    names = ", ".join(name for names in BINARY_FILES.values() for name in names)
    folder = data_dir / "cifar10"
    return (
        f"put {names} into {folder / BINARY_FOLDER}, or train.parquet and test.parquet (columns img, label) "
        f"into {folder}"
    )


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


def read_images(path: Path, rows: int, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], bool]:
    """Images (rows, 3, size, size), labels, and whether any image was stored as JPEG.

    The column `img` holds bytes, or a struct with a field `bytes` as Hugging Face writes it.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data", f"Reading {path}") from error
    try:
        with parquet.ParquetFile(path) as table:
            _check_columns(path, table)
            if table.metadata.num_rows != rows:
                raise DataError(f"{path} has {table.metadata.num_rows} rows, but must have {rows}.")
            return _decode_rows(path, table, rows, size)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {str(error).rstrip('.')}.") from error


def _check_columns(path: Path, table: Any) -> None:
    names = table.schema_arrow.names
    if not {"img", "label"} <= set(names):
        raise DataError(f"{path} has the columns {', '.join(names)}, but must have img and label.")
    kind = str(table.schema_arrow.field("label").type)
    if not kind.startswith(("int", "uint")):
        raise DataError(f"{path} has labels of type {kind}, but labels must be integers.")


def _decode_rows(path: Path, table: Any, rows: int, size: int) -> tuple[Any, Any, bool]:
    images = np.empty((rows, size, size, 3), dtype=np.uint8)
    labels = np.empty(rows, dtype=np.int64)
    row, jpeg = 0, False
    for batch in table.iter_batches(batch_size=2048, columns=["img", "label"]):
        pairs = zip(batch.column("img").to_pylist(), batch.column("label").to_pylist(), strict=True)
        for cell, label in pairs:
            data = cell.get("bytes") if isinstance(cell, dict) else cell
            if not isinstance(data, bytes) or label is None:
                raise DataError(f"{path}, row {row}: image bytes or label are missing.")
            images[row] = _pixels(path, row, data, size)
            labels[row] = label
            jpeg = jpeg or data.startswith(JPEG_MAGIC)
            row += 1
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels, jpeg


def _pixels(path: Path, row: int, data: bytes, size: int) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "data", f"Reading {path}") from error
    try:
        with Image.open(io.BytesIO(data)) as image:
            # The size is in the header: check it before any pixel is decoded.
            if image.size == (size, size):
                return np.asarray(image.convert("RGB"))
            width, height = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}, row {row}: the image cannot be decoded ({str(error).partition(' <')[0]}).") from error
    raise DataError(f"{path}, row {row}: the image has {width}×{height} pixels, but must have {size}×{size}.")


SOURCE = Source(
    name="cifar10",
    description="CIFAR-10, 50,000 + 10,000 colour images of 32×32 pixels",
    load=load,
    files=_files,
    by_hand=_by_hand,
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
    radio="paper-cifar10",
)
