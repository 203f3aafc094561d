"""Rounds and devices of large fleets as columns in .npz files, where lines and objects of JSON would be too many.

    rounds.jsonl                  {"round": 42, …, "columns": {"names": ["devices", …], "sum": "…"}}
    columns/round-000042.npz      the fields that are named there, one array each
    devices.npz                   in place of devices.json

A file of columns is on the disk before the line that has its checksum, so a line whose columns are missing or damaged
is a damaged line, and what holds for lines (checkpoints, kills, torn writes) holds for columns.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.columns import Column, Records
from kfl.core.files import Folder, atomic_file
from kfl.data.untrusted import read_npz
from kfl.runfolder import _files as files
from kfl.simulation.logs import COLUMNS

FIELD = "columns"
"""Of a line whose columns are in a file."""


def without_columns(path: Path, number: int, values: dict[str, Any]) -> dict[str, Any]:
    """Write the columns of a round next to its history; return what is left for its line.

    Args:
        path: The run folder.
        number: Of the round.
        values: Of the round, by `RoundLog.to_dict`.

    Raises:
        OSError: They cannot be written.
    """
    arrays = {name: value.values for name, value in values.items() if isinstance(value, Column)}
    if not arrays:
        return values
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy types its keyword arguments as a flag
    data = buffer.getvalue()
    with Folder(path) as folder, folder.make(files.COLUMNS) as inside:
        inside.write(_name(number), data)
    kept = {name: value for name, value in values.items() if name not in arrays}
    return {**kept, FIELD: {"names": sorted(arrays), "sum": _sum(data)}}


def with_columns(path: Path, number: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a line with the columns that it names; ValueError where these are missing or damaged.

    Args:
        path: The run folder.
        number: Of the round.
        values: The line.
    """
    said = values.get(FIELD)
    if said is None:
        return values
    names = said.get("names") if isinstance(said, dict) else None
    if not isinstance(names, list) or not set(names) <= set(COLUMNS):
        raise ValueError("it does not say which columns it has")
    try:
        with Folder(path) as folder, folder.folder(files.COLUMNS) as inside:
            data = inside.read(_name(number), files.MOST_ARRAYS)
    except OSError as problem:
        raise ValueError(f"its columns cannot be read, {problem.strerror or problem}") from problem
    if _sum(data) != said.get("sum"):
        raise ValueError(f"the checksum of {files.COLUMNS}/{_name(number)} is wrong")
    arrays = read_npz(data)
    if sorted(arrays) != names:
        raise ValueError(f"{files.COLUMNS}/{_name(number)} holds other columns than its line says")
    return {**values, **{name: Column(array) for name, array in arrays.items()}}


def write_records(path: Path, records: Records) -> None:
    """Write the columns of the devices of a run, in one step."""
    arrays: Mapping[str, NDArray[Any]] = records.arrays
    with atomic_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # as above


def read_records(path: Path) -> Records | None:
    """The columns of the devices of a run; None where there is no such file."""
    try:
        data = files.read_file(path, files.MOST_ARRAYS)
    except FileNotFoundError:
        return None
    try:
        return Records(read_npz(data), stored=True)
    except ValueError as problem:
        raise files.damaged(path, problem) from problem


def _name(number: int) -> str:
    return f"round-{number:06d}.npz"


def _sum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
