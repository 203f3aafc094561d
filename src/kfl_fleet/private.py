"""Private files and memory: files and folders that only their owner can enter, and no memory written to disk.

Folders are 0700 and files 0600 from the moment they exist, whatever the umask. What an earlier version or a copy left
wider is narrowed when it is written again; a key that is wider than that is worth a sentence (`exposed`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # a module elsewhere, nothing on Windows

UMASK = 0o077
"""For processes whose files are all private."""
NO_CORE = 1
"""Bytes of a core file. With 0, Linux would still hand the memory to a program that /proc/sys/kernel/core_pattern
names; a limit of 1 tells it not to."""


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there already is narrowed to that.

    >>> import tempfile
    >>> made = private_folder(Path(tempfile.mkdtemp()) / "keys")
    >>> oct(made.stat().st_mode & 0o777)
    '0o700'
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    narrow(path)
    return path


def narrow(path: Path) -> None:
    """Take from group and others what they may do with a file or folder, if it is there and ours to change."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & 0o700)


def exposed(keys: Iterable[Path]) -> str | None:
    """One sentence about private keys that others can read or change; None where all is well.

    Where the owner is someone else, who let this process in by its group, as Kubernetes does, the group may read.

    >>> import tempfile
    >>> key = Path(tempfile.mkdtemp()) / "device-0"
    >>> key.touch(0o600)
    >>> exposed([key])
    >>> key.chmod(0o644)
    >>> print(exposed([key]).replace(str(key.parent), "keys"))
    Other users of this machine can read keys/device-0 (-rw-r--r--): chmod 600 keys/device-0
    """
    found = []
    for key in keys:
        with contextlib.suppress(OSError):
            facts = key.stat()
            if facts.st_mode & (0o077 if facts.st_uid == _self() else 0o007):
                found.append((key, stat.filemode(facts.st_mode)))
    if not found:
        return None
    key, mode = found[0]
    what = f"{key} ({mode})" if len(found) == 1 else f"{len(found)} private files, such as {key} ({mode})"
    return f"Other users of this machine can read {what}: chmod 600 {' '.join(str(key) for key, _ in found[:5])}" + (
        " …" if len(found) > 5 else ""
    )


def keep_private() -> None:
    """For a process that holds keys: what it and its children write is private, and a crash leaves no memory behind."""
    os.umask(UMASK)
    no_core_file()


def no_core_file() -> None:
    """A crash of this process, or of one it starts, writes no core file, nor hands its memory to another program."""
    if resource is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE, NO_CORE))


def _self() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0
