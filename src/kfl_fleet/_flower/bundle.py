"""The app that a run plays, as Flower packed it: checked, unpacked once, and kept under the hash of its bytes."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kfl.core.errors import KflError
from kfl.core.parse import read_toml

MOST_FILES = 10_000
MOST_BYTES = 1 << 28


def installed(folder: Path, name: str) -> Path | None:
    """Where the app of this hash lies; None where it must be fetched first."""
    found = folder / name
    return found if name.isalnum() and found.is_dir() else None


def install(folder: Path, name: str, content: bytes) -> Path:
    """Unpack an app under its hash, and remove those that were there before."""
    if hashlib.sha256(content).hexdigest() != name:
        raise KflError("The app that the server sent is not the one its run names.")
    folder.mkdir(parents=True, exist_ok=True)
    target = Path(tempfile.mkdtemp(dir=folder, prefix=".part-"))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive)
            archive.extractall(target)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, EOFError, OSError) as problem:
        shutil.rmtree(target, ignore_errors=True)
        raise KflError(f"The app that the server sent cannot be unpacked ({problem}).") from problem
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return target.rename(folder / name)


def configuration(app: Path, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The app's own configuration, with what the run changed in it."""
    try:
        found = read_toml(app / "pyproject.toml")["tool"]["flwr"]["app"].get("config", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise KflError(f"The app that the server sent has no configuration ({problem}).") from problem
    return {**{key: value for key, value in found.items() if isinstance(value, str | int | float)}, **overrides}


def _check(archive: zipfile.ZipFile) -> None:
    """Refuse an archive that would write elsewhere, or fill the disk."""
    entries = archive.infolist()
    if len(entries) > MOST_FILES or sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise ValueError("it is too large")
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or entry.external_attr >> 28 == 0xA:
            raise ValueError("it has a file that lies elsewhere")
