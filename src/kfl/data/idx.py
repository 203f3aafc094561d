"""IDX files, the format of MNIST and its many successors: a magic number, the dimensions, then one byte per value.

A set is four files: images and labels, for training and for tests. A new one that has a name is an `IdxSet` in
`named.py`; others are read by the path of their folder.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.roles import split_of
from kfl.data.samples import Samples, decode
from kfl.data.source import Source
from kfl.data.storage import Decoded

LARGEST = 1 << 32
"""Bytes of an IDX file, at most."""
PATTERN = re.compile(r"(?P<prefix>.*?)(?P<split>train|test|t10k)-(?P<what>images|labels)-idx\d-ubyte(\.gz)?", re.I)
KEYS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True)
class IdxFile:
    """One file as it must be: its name, its dimensions and the md5 of its content (unzipped)."""

    name: str
    shape: tuple[int, ...]
    """A first dimension of 0 is for any number of samples."""
    md5: str = ""
    """Empty where none is published."""
    largest: int = 255

    @property
    def header(self) -> bytes:
        """Magic number (type 8 = unsigned byte, number of dimensions) and dimensions, big-endian."""
        return struct.pack(f">BBBB{len(self.shape)}I", 0, 0, 8, len(self.shape), *self.shape)

    @property
    def size(self) -> int:
        """Bytes of the unzipped file."""
        return len(self.header) + math.prod(self.shape)


@dataclass(frozen=True)
class IdxSet(Source):
    """A set of IDX files that has a name."""

    members: Mapping[str, IdxFile]
    """By the names of a dataset's arrays."""
    first_label: int = 0
    """The label of class 0."""
    transposed: bool = False
    """Whether rows and columns of the images are swapped in the files."""
    below: tuple[str, ...] = ()
    """Folders below its own in which the files may be, too."""
    alone: bool = False
    """Never look in the data folder itself: what is there under the same file names may be another set."""

    @property
    def folder(self) -> str:
        """Its own, below the data folder."""
        return self.name if self.download is None else self.download.folder

    def files(self, data_dir: Path) -> list[Path]:
        """The files in `<data_dir>/<its folder>/` or `<data_dir>`, gzipped or plain."""
        own = data_dir / self.folder
        folders = (own, *(own / name for name in self.below), *(() if self.alone else (data_dir,)))
        found = [path for file in self.members.values() if (path := find_idx(file, folders)) is not None]
        return found if len(found) == len(self.members) else []

    def decode(self, data_dir: Path, _cache_dir: Path) -> Decoded:
        """The arrays, which must be exactly as declared."""
        paths = zip(self.members.items(), self.files(data_dir), strict=True)
        arrays = {key: read_idx(path, file) for (key, file), path in paths}
        images = {key: upright(arrays[key], self.transposed)[:, None] for key in ("train_x", "test_x")}
        labels = {key: arrays[key].astype(np.int64) - self.first_label for key in ("train_y", "test_y")}
        return Decoded({key: images[key] if key in images else labels[key] for key in KEYS})

    def by_hand(self, data_dir: Path) -> str:
        """All files into the folder."""
        return f"put {', '.join(f'{file.name}.gz' for file in self.members.values())} into {data_dir / self.folder}"


def find_idx(file: IdxFile, folders: tuple[Path, ...]) -> Path | None:
    """The file in the first folder that has it, gzipped or plain."""
    candidates = [folder / name for folder in folders for name in (f"{file.name}.gz", file.name)]
    return next((path for path in candidates if path.is_file()), None)


def idx_files(path: Path) -> dict[str, Path]:
    """The four files of a set by the names of a dataset's arrays: in a folder, or next to one that is named.

    Empty where there is no IDX file; DataError where the four are not complete, or not clear.
    """
    folder, only = (path, None) if path.is_dir() else (path.parent, PATTERN.fullmatch(path.name))
    sets: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        match = PATTERN.fullmatch(file.name)
        if match is not None and file.is_file() and (only is None or match["prefix"] == only["prefix"]):
            key = f"{split_of([match['split'].lower()])}_{'x' if match['what'].lower() == 'images' else 'y'}"
            sets.setdefault(match["prefix"], {}).setdefault(key, file)  # plain before .gz: both hold the same
    if not sets:
        return {}
    if len(sets) > 1:
        names = " and ".join(f"{prefix}…" for prefix in sets)
        raise DataError(f"{folder} has the IDX files {names}: name one of the files of the set that is meant.")
    (found,) = sets.values()
    lost = [key.replace("_x", " images").replace("_y", " labels") for key in KEYS[:2] if key not in found]
    if len(found) == 3:
        lost = [key.replace("_x", " images").replace("_y", " labels") for key in KEYS if key not in found]
    if lost:
        raise DataError(f"{folder} has IDX files, but none with the {' and the '.join(lost)}.")
    return found


def decode_idx(path: Path, files: Mapping[str, Path], cache_dir: Path) -> Decoded:
    """The arrays of a set without a name: as its files declare. Without test files a part is held out."""
    arrays = {key: read_idx(file, declared(file, 1 if key.endswith("y") else None)) for key, file in files.items()}
    swapped = files["train_x"].name.startswith("emnist-")  # the one known set that stores columns first

    def samples(split: str) -> Samples:
        x = upright(arrays[f"{split}_x"], swapped)
        return Samples(x[:, None] if x.ndim == 3 else x, arrays[f"{split}_y"])

    return decode(str(path), samples("train"), samples("test") if "test_x" in arrays else None, cache_dir)


def upright(images: NDArray[np.uint8], transposed: bool) -> NDArray[np.uint8]:
    """Images with their rows first."""
    return np.ascontiguousarray(images.transpose(0, 2, 1)) if transposed else images


def declared(path: Path, dimensions: int | None = None) -> IdxFile:
    """What a file says of itself in its header, which `read_idx` then holds it to."""
    head, trouble = _content(path, 4)
    if len(head) < 4 or head[:3] != b"\0\0\x08" or not 1 <= head[3] <= 4:
        why = f" ({trouble})" if trouble else ""
        begin = f"starts with {head.hex(' ')}" if head else "is empty"
        raise DataError(f"{path} {begin}{why}, but an IDX file of bytes starts with 00 00 08 and its dimensions.")
    if dimensions not in (None, head[3]) or (dimensions is None and head[3] == 1):
        wanted = "one label per sample" if dimensions else "images, two dimensions or more"
        raise DataError(f"{path} has {head[3]} dimensions, but must hold {wanted}.")
    head, _ = _content(path, 4 + 4 * head[3])
    if len(head) < 4 + 4 * head[3]:
        raise DataError(f"{path} is damaged or truncated: its header ends after {len(head)} bytes.")
    shape = struct.unpack(f">{head[3]}I", head[4:])
    if 0 in shape or math.prod(shape) > LARGEST:
        raise DataError(f"{path} has dimensions {shape}, but must have some, and at most {LARGEST} bytes in all.")
    return IdxFile(path.name, shape)


def read_idx(path: Path, file: IdxFile) -> NDArray[np.uint8]:
    """The values of an IDX file, after every check the format allows."""
    if file.shape[0] == 0:
        shape = declared(path, len(file.shape)).shape
        if shape[1:] != file.shape[1:]:
            raise DataError(f"{path} has dimensions {shape}, but must have {('any', *file.shape[1:])}.")
        file = replace(file, shape=shape)
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
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() if file.md5 else ""
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
