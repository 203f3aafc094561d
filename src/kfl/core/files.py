"""Files that are either complete or not there: a crash, a full disk or Ctrl-C never leaves half a file.

Everything kfl writes goes through here. The content lands in a temporary file in the same folder, is flushed
to the disk, and only then takes its name, which the file system does in one step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
    with Folder(path.parent) as folder, folder.atomic(path.name, private=private) as file:
        yield file


def is_part(path: Path) -> bool:
    """Whether a file is one that `atomic_file` was writing; left behind, its process was killed."""
    return path.name.startswith(".") and path.name.endswith(".part")


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
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "result.json"
    >>> write_json(path, {"accuracy": float("nan"), "rounds": np.arange(3)})
    >>> json.loads(path.read_text())
    {'accuracy': None, 'rounds': [0, 1, 2]}
    """
    text = for_json(json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))
    write_atomic(path, (text + "\n").encode())


def jsonable(value: object) -> Any:
    """`value` in JSON's own types: NaN and infinities, which JSON does not have, become null.

    What is not known stays as it is, and json says so.

    >>> import numpy as np
    >>> jsonable({"power_w": (np.float64(0.5), math.inf)})
    {'power_w': [0.5, None]}
    """
    if callable(plain := getattr(value, "tolist", None)):  # NumPy's, which a device's node does not import
        value = plain()
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
    with Folder(path.parent) as folder, folder.locked(path.name):
        yield


@contextmanager
def _held(descriptor: int) -> Iterator[None]:
    """Lock an open file while the block runs, and close it."""
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError from None
        yield
    finally:
        os.close(descriptor)


# ── A folder whose files are untrusted ───────────────────────────────


_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)


class UnsafeFileError(OSError):
    """A file that is not opened: a link, no regular file, or larger than its reader allows."""


class Folder:
    """A folder held by its descriptor, so that what is opened in it lies in it.

    Names are single names. Links are refused, and so is what blocks or has no end, such as a pipe or a device. On a
    system without descriptors of folders the same checks are made by path.

    >>> import tempfile
    >>> with Folder(Path(tempfile.mkdtemp())) as folder:
    ...     folder.write("note.txt", b"hello")
    ...     folder.read("note.txt", most_bytes=100), folder.names()
    (b'hello', ['note.txt'])
    """

    def __init__(self, path: Path, *, parent: Folder | None = None) -> None:
        """Open the folder at `path`, or with a `parent` the one of that name in it, which must not be a link.

        Raises:
            OSError: it is not there, or not a folder.
        """
        self.path: Path = path if parent is None else parent.path / _single(path)
        self._descriptor: int | None = None
        if os.open in os.supports_dir_fd:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            if parent is None:
                self._descriptor = os.open(path, flags)
            else:
                self._descriptor = self._inside(parent, flags)

    def _inside(self, parent: Folder, flags: int) -> int:
        try:
            return os.open(self.path.name, flags | _NO_LINK, dir_fd=parent._descriptor)
        except NotADirectoryError:
            if self.path.is_symlink():
                raise UnsafeFileError(errno.ELOOP, "it is a link", str(self.path)) from None
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def names(self) -> list[str]:
        """Return the names in the folder, in order."""
        # pathlib lists paths, and this is an open folder.
        return sorted(os.listdir(self.path if self._descriptor is None else self._descriptor))  # noqa: PTH208

    def refuse_links(self) -> None:
        """Raise UnsafeFileError for the first link in the folder, whatever it leads to."""
        with os.scandir(self.path if self._descriptor is None else self._descriptor) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise UnsafeFileError(errno.ELOOP, "it is a link", str(self.path / entry.name))

    def folder(self, name: str) -> Folder:
        """Open a folder in this one."""
        return Folder(Path(name), parent=self)

    def open_regular(self, name: str, most_bytes: int) -> BinaryIO:
        """Open a file for reading.

        Args:
            name: of the file, without a path.
            most_bytes: a larger file is refused before a byte of it is read.

        Raises:
            UnsafeFileError: it is a link, not a regular file, or too large.
            OSError: it is not there, or cannot be opened.
        """
        # A pipe without a writer would block here, so opening must not wait.
        return _regular(self._open(name, os.O_RDONLY | _NO_WAIT), most_bytes, self.path / name)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return the content of a file of at most `most_bytes`; raises as `open_regular` does."""
        return _whole(self.open_regular(name, most_bytes), most_bytes, self.path / name)

    def write(self, name: str, data: bytes, *, private: bool = False) -> None:
        """Write a file in one step, as `write_atomic` does; a link of that name is replaced, not followed."""
        with self.atomic(name, private=private) as file:
            file.write(data)

    @contextmanager
    def atomic(self, name: str, *, private: bool = False) -> Iterator[BinaryIO]:
        """A file, open for writing, that takes its name when the block ends; see `atomic_file`."""
        part = f".{_single(name)}.{uuid.uuid4().hex[:12]}.part"
        descriptor = self._open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if self._descriptor is None:
                (self.path / part).replace(self.path / name)
            else:
                os.replace(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            self.remove(part)
            raise
        if self._descriptor is not None:  # the new name itself, where the system lets us
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def append(self, name: str, line: bytes = b"") -> None:
        """Add a line to a file in one write, or if it is empty, have the disk keep what is there.

        Raises:
            OSError: it is a link or no regular file, or the disk is full; then nothing is added.
        """
        descriptor = self._open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_WAIT, 0o644)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise UnsafeFileError(errno.EINVAL, "it is not a regular file", str(self.path / name))
            if not line:
                os.fsync(descriptor)
                return
            if (
                facts.st_size and os.pread(descriptor, 1, facts.st_size - 1) != b"\n"
            ):  # a power cut left a part of a line
                line = b"\n" + line
            if (file.write(line) or 0) < len(line):  # a full disk takes a part
                os.ftruncate(descriptor, facts.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return os.stat(_single(name), dir_fd=self._descriptor, follow_symlinks=False).st_size

    def make(self, name: str) -> Folder:
        """Open a folder in this one, which is made if it is not there."""
        with contextlib.suppress(FileExistsError):
            if self._descriptor is None:
                (self.path / _single(name)).mkdir()
            else:
                os.mkdir(_single(name), dir_fd=self._descriptor)
        return self.folder(name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all in it, if it is there; of a link nothing is removed."""
        place: Any = self.path / _single(name) if self._descriptor is None else _single(name)
        shutil.rmtree(place, ignore_errors=True, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if self._descriptor is None:
                (self.path / _single(name)).unlink()
            else:
                os.unlink(_single(name), dir_fd=self._descriptor)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a lock file of the folder while the block runs, as `only_one` does; a link is refused."""
        with _held(self._open(name, os.O_RDWR | os.O_CREAT | _NO_WAIT, 0o644)):
            yield

    def _open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a file in the folder that is no link."""
        path = self.path / _single(name)
        try:
            if self._descriptor is not None:
                return os.open(name, flags | os.O_CLOEXEC | _NO_LINK, mode, dir_fd=self._descriptor)
            if path.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            return os.open(path, flags, mode)
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise UnsafeFileError(problem.errno, "it is a link", str(path)) from None
            if problem.errno == errno.ENXIO:  # a pipe or a socket without a reader
                raise UnsafeFileError(errno.EINVAL, "it is not a regular file", str(path)) from None
            raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file that a person named, which may be a link, but no pipe, no device and no larger.

    Raises:
        UnsafeFileError: it is not a regular file, or too large.
        OSError: it is not there, or cannot be opened.
    """
    return _whole(_regular(os.open(path, os.O_RDONLY | _NO_WAIT), most_bytes, path), most_bytes, path)


def _regular(descriptor: int, most_bytes: int, path: Path) -> BinaryIO:
    """An open file, if it is a regular one of at most so many bytes."""
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise UnsafeFileError(errno.EINVAL, "it is not a regular file", str(path))
        if facts.st_size > most_bytes:
            raise _too_large(f"it has {facts.st_size} bytes, and {most_bytes} are allowed", path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _whole(opened: BinaryIO, most_bytes: int, path: Path) -> bytes:
    """What an open file holds; one that grows while it is read is refused as well."""
    with opened as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(f"it has more than the {most_bytes} bytes that are allowed", path)
    return content


def _too_large(reason: str, path: Path) -> UnsafeFileError:
    return UnsafeFileError(errno.EFBIG, reason, str(path))


def _single(name: str | Path) -> str:
    """Return a name that leads nowhere else; ValueError for a path."""
    text = str(name)
    if text in ("", ".", "..") or "/" in text or os.sep in text or "\0" in text:
        raise ValueError(f"{text!r} is not the name of a file in a folder.")
    return text
