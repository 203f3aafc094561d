"""The files of a run folder: their names, and how one is read or refused. No other module spells these names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kfl.core.errors import RunFolderError
from kfl.core.files import Folder, atomic_file, jsonable, write_json
from kfl.core.names import for_json
from kfl.core.parse import parse_json

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
ROUNDS = "rounds.jsonl"
TRAIL = "trail.jsonl"
CHECKPOINTS = "state"
DEVICES = "devices.json"
DEVICE_COLUMNS = "devices.npz"
"""In place of `DEVICES` where there are many."""
COLUMNS = "columns"
"""Folder with what is too long for a line of `ROUNDS`."""
SERVER = "server.npz"
OLD_SERVER = "knowledge.npz"
"""The name of `SERVER` in folders of earlier versions."""
MODELS = "models"
SUMMARY = "summary.json"
FLEET = "fleet.json"
FLEET_ROUNDS = "fleet.jsonl"
ASKED = "asked.json"
"""Who was there in the round that a real fleet's server asks devices in, written before it asks."""
JOB = "job.json"
"""How `kfl run` was asked to carry out the run, for `kfl resume`."""
TRACKER_RUNS = "trackers.json"
"""Which runs of experiment trackers belong to this one."""
ELSEWHERE = "choose another folder (--out FOLDER, or folder=… in Python)"
"""How errors about a folder end."""
LOCK = ".lock"
LOCAL_ONLY = "local-only"
"""Run folder inside a run folder: the same run with nothing shared, as `kfl run` of earlier versions added it."""


MOST_BYTES, MOST_LINES, MOST_ARRAYS = 1 << 28, 1 << 32, 1 << 34
"""Of a file with a table, of one with a line a round, and of one with arrays: far more than kfl writes."""


def is_run_folder(path: Path) -> bool:
    """Whether a folder holds a run, finished or not. A configuration that is no file makes it a damaged one."""
    return os.path.lexists(path / CONFIG)


def is_finished(path: Path) -> bool:
    """Whether a folder holds a finished run: the summary is written last."""
    return os.path.lexists(path / SUMMARY)


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file right inside a run folder, which is regular, no link and not too large.

    Raises:
        FileNotFoundError: it is not there, nor is its folder.
        RunFolderError: it is something else.
    """
    try:
        with Folder(path.parent) as folder:
            return folder.read(path.name, most_bytes)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as problem:
        raise damaged(path, problem.strerror or problem) from problem


def read_value(path: Path) -> Any:
    """Return the value in a file with JSON; raises as `read_file`, and RunFolderError where it is none."""
    try:
        return parse_json(read_file(path))
    except ValueError as problem:
        raise damaged(path, problem) from problem


def is_held(path: Path) -> bool:
    """Whether a process is writing into a run folder now. Only reads, so any user who may read the folder may ask."""
    try:
        import fcntl

        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (ImportError, OSError):
        return False
    try:
        # The writer holds an exclusive lock, which cannot be shared.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find_runs(paths: list[Path]) -> list[Path]:
    """The run folders that were named; a folder of run folders, such as kfl compare's, stands for those in it."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if is_run_folder(path) else runs_in(path)
        if not inside:
            raise RunFolderError(f"{path} is not a run folder: it has no {CONFIG}, nor has any folder in it.")
        found += inside
    return list(dict.fromkeys(found))


def runs_in(path: Path) -> list[Path]:
    """The run folders directly inside a folder, in the order of their names."""
    return sorted(file.parent for file in path.glob(f"*/{CONFIG}")) if path.is_dir() else []


def require_run_folder(path: Path) -> None:
    """Raise a sentence where a folder holds no run."""
    if not is_run_folder(path):
        raise RunFolderError(f"{path} is not a run folder: it has no {CONFIG}.")


def read_note(path: Path, name: str) -> dict[str, Any]:
    """A note next to the run, such as `JOB`; empty where it is missing.

    Args:
        path: The run folder.
        name: Of the note's file.
    """
    return read_object(path / name)


def write_note(path: Path, name: str, note: object) -> None:
    """Leave a note next to the run.

    Args:
        path: The run folder.
        name: Of the note's file.
        note: What JSON can hold.
    """
    try:
        write_json(path / name, note)
    except OSError as problem:
        raise cannot_write(path, problem) from problem


def read_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object; empty where there is no such file."""
    try:
        found = read_value(path)
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise damaged(path, "it does not hold a JSON object")
    return found


def whole_lines(path: Path) -> list[str]:
    """Complete lines of a file that grows. A last line without a line break was torn by a crash and does not count."""
    try:
        return read_file(path, MOST_LINES).decode(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []


def damaged(path: Path, problem: object) -> RunFolderError:
    """The error for a file that does not hold what was written there."""
    return RunFolderError(f"{path} is damaged ({problem}).")


def cannot_write(path: Path, problem: OSError) -> RunFolderError:
    """The error for a folder that cannot be written.

    Args:
        path: What was to be written.
        problem: What the system said.
    """
    return RunFolderError(f"The run folder {path} cannot be written ({problem.strerror or problem}); {ELSEWHERE}.")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a file of lines that may still be growing.

    A last line without its line break is not complete yet; that and every line that does not hold an object is left
    out. A file that does not exist has no lines.
    """
    found = []
    for line in whole_lines(path):
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def write_rows(path: Path, rows: Iterable[object]) -> None:
    """Write rows as one JSON list, a line for each, as `write_json` writes values. No more than a row is in memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "devices.json"
    >>> write_rows(path, [{"device": 0}, {"device": 1}])
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
