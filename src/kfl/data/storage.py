"""Where datasets are kept, and decoded copies of them that are read the second time.

Datasets are decoded once: arrays are kept as .npy files and memory-mapped afterward. A cache entry is a folder
`<name>-<key>` with one .npy per array and `index.json`, which is written last and holds the checksum of each. The key
covers the source files (path, size, time of change) and the version of the decoder, so an entry can be stale only by
being unreachable. A damaged entry is rebuilt; a folder that cannot be written means no cache, never a failure.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kfl.core.files import atomic_file, write_json
from kfl.core.parse import parse_json

CACHE_VERSION = 2
"""Raise this when a decoder changes what it returns."""

IN_MEMORY_BYTES = 1 << 28
"""Arrays up to this size are decoded in memory."""
LARGEST_BYTES = 1 << 36
"""No array of a dataset is larger (64 GiB): a file that declares one is wrong, or means harm."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """What a decoder returns and a cache entry holds."""

    arrays: Mapping[str, Any]
    """NumPy arrays by name."""
    note: str = ""


def resolve_data_dir(data_dir: Path | None = None) -> Path:
    """The folder that holds datasets: the argument, else KFL_DATA_DIR, else the user's data folder.

    >>> resolve_data_dir(Path("my/data")) == Path("my/data")
    True
    """
    return _first(data_dir, "KFL_DATA_DIR", "XDG_DATA_HOME", Path(".local/share"))


def resolve_cache_dir(cache_dir: Path | None = None) -> Path:
    """The folder for decoded copies: the argument, else KFL_CACHE_DIR, else the user's cache folder."""
    return _first(cache_dir, "KFL_CACHE_DIR", "XDG_CACHE_HOME", Path(".cache"))


def _first(given: Path | None, variable: str, xdg_variable: str, below_home: Path) -> Path:
    if given is not None:
        return Path(given).expanduser()
    if own := os.environ.get(variable):
        return Path(own).expanduser()
    if xdg := os.environ.get(xdg_variable):
        return Path(xdg).expanduser() / "kfl"
    return Path("~").expanduser() / below_home / "kfl"


def cached(name: str, sources: Sequence[Path], decode: Callable[[], Decoded], cache_dir: Path) -> Decoded:
    """The arrays of `decode()`, from the cache where it holds them for exactly these source files.

    Args:
        name: Of the entry in the cache.
        sources: Files that the arrays come from; changed ones are decoded again.
        decode: Reads the sources.
        cache_dir: The cache's folder.
    """
    return _cached(_entry(name, sources, cache_dir), decode)


def kept(name: str, decode: Callable[[], Decoded], cache_dir: Path) -> Decoded:
    """The arrays of `decode()`, from the cache where it holds any under this name, which says all they depend on."""
    return _cached(cache_dir / name, decode)


def _cached(entry: Path, decode: Callable[[], Decoded]) -> Decoded:
    found = _read(entry)
    if found is not None:
        return found
    decoded = decode()
    if not _write(entry, decoded):
        return decoded
    return _read(entry) or decoded


def spacious(shape: tuple[int, ...], dtype: DTypeLike, cache_dir: Path) -> NDArray[Any]:
    """An array to decode into: in memory, or where it is large in a file that vanishes with it, so that it need not
    fit into memory; in memory too where that file cannot be made.

    >>> spacious((2, 3), np.uint8, Path("unused")).shape
    (2, 3)
    """
    if math.prod(shape) * np.dtype(dtype).itemsize <= IN_MEMORY_BYTES:
        return np.empty(shape, dtype)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_dir) as file:
            return np.memmap(file, dtype, "w+", shape=shape)
    except OSError:
        return np.empty(shape, dtype)


def is_cached(name: str, sources: Sequence[Path], cache_dir: Path) -> bool:
    """Whether there is an entry for exactly these source files."""
    return (_entry(name, sources, cache_dir) / "index.json").exists()


def _entry(name: str, sources: Sequence[Path], cache_dir: Path) -> Path:
    digest = hashlib.blake2b(f"version {CACHE_VERSION}".encode(), digest_size=8)
    for source in sources:
        status = source.stat()
        digest.update(os.fsencode(f"\n{source.resolve()} {status.st_size} {status.st_mtime_ns}"))
    return cache_dir / f"{name}-{digest.hexdigest()}"


def _read(entry: Path) -> Decoded | None:
    """The entry, or None where it is absent or damaged in any way."""
    try:
        index = parse_json((entry / "index.json").read_text())
        arrays = {}
        for name, checksum in index["crc32"].items():
            if Path(name).name != name:
                return None  # it leads out of the folder
            array = np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if _crc32(array) != checksum:
                return None
            arrays[name] = array
        return Decoded(arrays, str(index["note"]))
    except Exception:  # NumPy raises anything from SyntaxError to TokenError for a header that is not one
        return None


def _write(entry: Path, decoded: Decoded) -> bool:
    """Store the entry, index last; False where the folder cannot be written."""
    try:
        entry.mkdir(parents=True, exist_ok=True)
        for name, array in decoded.arrays.items():
            with atomic_file(entry / f"{name}.npy") as file:
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        checksums = {name: _crc32(np.ascontiguousarray(array)) for name, array in decoded.arrays.items()}
        write_json(entry / "index.json", {"note": decoded.note, "crc32": checksums})
    except OSError:
        return False
    return True


def _crc32(array: NDArray[Any]) -> int:
    """Checksum of type, shape and bytes, without a copy of the bytes."""
    head = zlib.crc32(f"{array.dtype.str} {array.shape}".encode())
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, head)
