"""Files that are either complete or not there: a crash, a full disk or Ctrl-C never leaves half a file.

Everything kfl writes goes through here. The content lands in a temporary file in the same folder, is flushed
to the disk, and only then takes its name, which the file system does in one step.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kfl.core.names import for_json

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]  # a module elsewhere, nothing on Windows


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A binary file, open for writing, that becomes `path` when the block ends and vanishes when it raises.

    The temporary name ends in `.part` and is unique, so two processes may write the same path: the last wins. A
    `private` one can be read by its owner only, from the start and also where it replaces one that others could read.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_file(folder / "a.bin") as file:
    ...     _ = file.write(b"whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.bin']
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        with open(part, "xb", opener=_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def is_part(path: Path) -> bool:
    """Whether a file is one that `atomic_file` was writing; left behind, its process was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


def _sync_folder(folder: Path) -> None:
    """Flush the new name itself, where the system lets us (Windows does not)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` so that readers see the old file or the new one, never a part; `private`: its owner only.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_atomic(path, b"hello")
    >>> path.read_bytes()
    b'hello'
    """
    with atomic_file(path, private=private) as file:
        file.write(data)


def write_json(path: Path, value: object) -> None:
    """Write `value` as readable JSON. NaN and infinities, which JSON does not have, become null.

    NumPy numbers and arrays, tuples and paths are accepted and come out as plain JSON.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "result.json"
    >>> write_json(path, {"accuracy": float("nan"), "rounds": np.arange(3)})
    >>> json.loads(path.read_text())
    {'accuracy': None, 'rounds': [0, 1, 2]}
    """
    text = for_json(json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))
    write_atomic(path, (text + "\n").encode())


def write_json_list(path: Path, rows: Iterable[object]) -> None:
    """Write rows as one JSON list, a line for each, as `write_json` writes values. No more than a row is in memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "devices.json"
    >>> write_json_list(path, [{"device": 0}, {"device": 1}])
    >>> print(path.read_text(), end="")
    [
    {"device": 0},
    {"device": 1}
    ]
    """
    with atomic_file(path) as file:
        file.write(b"[")
        for index, row in enumerate(rows):
            text = for_json(json.dumps(jsonable(row), ensure_ascii=False, allow_nan=False))
            file.write(f"{',' if index else ''}\n{text}".encode())
        file.write(b"\n]\n")


def jsonable(value: object) -> Any:
    """`value` in JSON's own types: NaN and infinities, which JSON does not have, become null.

    What is not known stays as it is, and json says so.

    >>> jsonable({"power_w": (np.float64(0.5), math.inf)})
    {'power_w': [0.5, None]}
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value


# ── A lock between processes ─────────────────────────────────────────────────


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; LockedError if another process holds it.

    The system releases it when its process ends, however it ends. The file stays when the block ends: removing it would
    let two processes lock two files of the same name. On a system without file locks nothing is locked.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with only_one(path):
    ...     with only_one(path):
    ...         pass
    Traceback (most recent call last):
    ...
    kfl.core.files.LockedError
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError from None
        yield
    finally:
        os.close(descriptor)
