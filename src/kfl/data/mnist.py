"""MNIST: the four original IDX files, 60,000 training and 10,000 test digits, inputs in [0, 1].

IDX is a magic number, the dimensions, then one byte per value.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.dataset import Dataset
from kfl.data.source import Download, RemoteFile, Source
from kfl.data.storage import Decoded, cached

CLASSES = 10


@dataclass(frozen=True)
class IdxFile:
    """One file as it must be: its name, its dimensions and the md5 of its content (unzipped)."""

    name: str
    shape: tuple[int, ...]
    md5: str
    largest: int = 255

    @property
    def header(self) -> bytes:
        """Magic number (type 8 = unsigned byte, number of dimensions) and dimensions, big-endian."""
        return struct.pack(f">BBBB{len(self.shape)}I", 0, 0, 8, len(self.shape), *self.shape)

    @property
    def size(self) -> int:
        """Bytes of the unzipped file."""
        return len(self.header) + int(np.prod(self.shape))


FILES = {
    "train_x": IdxFile("train-images-idx3-ubyte", (60_000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    "train_y": IdxFile("train-labels-idx1-ubyte", (60_000,), "a25bea736e30d166cdddb491f175f624", 9),
    "test_x": IdxFile("t10k-images-idx3-ubyte", (10_000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
    "test_y": IdxFile("t10k-labels-idx1-ubyte", (10_000,), "27ae3e4e09519cfbb04c329615203637", 9),
}
"""md5 of the unzipped content, so that a file that was compressed again is still accepted."""


def load(data_dir: Path, cache_dir: Path) -> Dataset:
    """MNIST from `<data_dir>/mnist/` or `<data_dir>`, gzipped or plain."""
    found = _find(data_dir)
    missing = [FILES[key].name for key in FILES if key not in found]
    if missing:
        raise DataError(f"MNIST is not complete, {', '.join(missing)} not found: {SOURCE.how_to_get(data_dir)}.")
    arrays = cached("mnist", list(found.values()), lambda: _decode(found), cache_dir).arrays
    return Dataset(name="mnist", **arrays, classes=CLASSES, scale=1 / 255)


def _find(data_dir: Path) -> dict[str, Path]:
    """The files that are there, by their key."""
    found = {key: find_idx(file, (data_dir / "mnist", data_dir)) for key, file in FILES.items()}
    return {key: path for key, path in found.items() if path is not None}


def _files(data_dir: Path) -> list[Path]:
    found = _find(data_dir)
    return list(found.values()) if len(found) == len(FILES) else []


def _by_hand(data_dir: Path) -> str:
    return f"put {', '.join(f'{file.name}.gz' for file in FILES.values())} into {data_dir / 'mnist'}"


def _decode(paths: dict[str, Path]) -> Decoded:
    arrays = {key: read_idx(path, FILES[key]) for key, path in paths.items()}
    return Decoded(
        {key: array.astype(np.int64) if key.endswith("_y") else array[:, None] for key, array in arrays.items()}
    )


def find_idx(file: IdxFile, folders: tuple[Path, ...]) -> Path | None:
    """The file in the first folder that has it, gzipped or plain."""
    candidates = [folder / name for folder in folders for name in (f"{file.name}.gz", file.name)]
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path, file: IdxFile) -> NDArray[np.uint8]:
    """The values of an IDX file, after every check the format allows."""
    content, trouble = _content(path, file.size + 1)
    if content[:4] != file.header[:4] and len(content) >= 4:
        raise DataError(
            f"{path} starts with {content[:4].hex(' ')}, but an IDX file of this kind starts with "
            f"{file.header[:4].hex(' ')}."
        )
    if content[: len(file.header)] != file.header and len(content) >= len(file.header):
        found = struct.unpack(f">{len(file.shape)}I", content[4 : len(file.header)])
        raise DataError(f"{path} has dimensions {found}, but must have {file.shape}.")
    if trouble or len(content) != file.size:
        more = "more than " if len(content) > file.size else ""
        why = f" ({trouble})" if trouble else ""
        raise DataError(
            f"{path} is damaged or truncated{why}: expected {file.size} bytes unzipped, "
            f"found {more}{min(len(content), file.size)}."
        )
    values = np.frombuffer(content, dtype=np.uint8, offset=len(file.header)).reshape(file.shape)
    if values.max() > file.largest:
        where = int(np.argmax(values.reshape(-1) > file.largest))
        raise DataError(
            f"{path} has value {values.reshape(-1)[where]} at index {where}, but values must be 0 … {file.largest}."
        )
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != file.md5:
        raise DataError(f"{path} is not the expected file: its content has md5 {md5}, not {file.md5}.")
    return values


def _content(path: Path, limit: int) -> tuple[bytes, str]:
    """Up to `limit` bytes, unzipped, and what went wrong on the way: what could be read is still returned."""
    pieces: list[bytes] = []
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while limit > 0 and (piece := file.read(min(limit, 1 << 16))):
                pieces.append(piece)
                limit -= len(piece)
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(pieces), str(error)
    return b"".join(pieces), ""


SOURCE = Source(
    name="mnist",
    description="MNIST, 60,000 + 10,000 digits of 28×28 pixels",
    load=load,
    files=_files,
    by_hand=_by_hand,
    download=Download(
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        folder="mnist",
        files=(
            RemoteFile("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            RemoteFile("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            RemoteFile("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            RemoteFile("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
)
