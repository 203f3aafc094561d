"""Images in a parquet file: one row per image, encoded bytes (JPEG, PNG) and a label."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError, MissingExtraError

JPEG_MAGIC = b"\xff\xd8\xff"


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
            return _decode(path, table, rows, size)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {str(error).rstrip('.')}.") from error


def _check_columns(path: Path, table: Any) -> None:
    names = table.schema_arrow.names
    if not {"img", "label"} <= set(names):
        raise DataError(f"{path} has the columns {', '.join(names)}, but must have img and label.")
    kind = str(table.schema_arrow.field("label").type)
    if not kind.startswith(("int", "uint")):
        raise DataError(f"{path} has labels of type {kind}, but labels must be integers.")


def _decode(path: Path, table: Any, rows: int, size: int) -> tuple[Any, Any, bool]:
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
            # The size stands in the header: check it before any pixel is decoded.
            if image.size == (size, size):
                return np.asarray(image.convert("RGB"))
            width, height = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}, row {row}: the image cannot be decoded ({str(error).partition(' <')[0]}).") from error
    raise DataError(f"{path}, row {row}: the image has {width}×{height} pixels, but must have {size}×{size}.")
