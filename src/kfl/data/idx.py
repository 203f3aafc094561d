"""IDX files, the format of MNIST: a magic number, the dimensions, then one byte per value."""

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


def find(file: IdxFile, folders: tuple[Path, ...]) -> Path | None:
    """The file in the first folder that has it, gzipped or plain."""
    candidates = [folder / name for folder in folders for name in (f"{file.name}.gz", file.name)]
    return next((path for path in candidates if path.is_file()), None)


def read(path: Path, file: IdxFile) -> NDArray[np.uint8]:
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
