"""A lock between processes, which the system releases when its process ends, however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]  # a module elsewhere, nothing on Windows


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; LockedError if another process holds it.

    The file stays when the block ends: removing it would let two processes lock two files of the same name. On a
    system without file locks nothing is locked.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with only_one(path):
    ...     with only_one(path):
    ...         pass
    Traceback (most recent call last):
    ...
    kfl.core.lock.LockedError
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
