"""CSV files: a header, a column of labels, perhaps one of devices, and all others numbers, which are the inputs.

One file, or a folder of files that begin with train and, where there is a test set, test.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.data.roles import DEVICE_WORDS, Y_WORDS, choose, column_words
from kfl.data.samples import Samples, decode
from kfl.data.storage import LARGEST_BYTES, Decoded

DELIMITERS = (",", ";", "\t")


def decode_csv(
    name: str, files: Mapping[str, Sequence[Path]], cache_dir: Path, columns: Mapping[str, str] | None = None
) -> Decoded:
    """Training and test set of some files with the same columns; `columns` names those of labels and devices."""
    given = columns or {}
    train = _read(files["train"], given)
    test = _read(files["test"], given) if files.get("test") else None
    return decode(name, train, test, cache_dir)


def _read(paths: Sequence[Path], given: Mapping[str, str]) -> Samples:
    inputs: list[NDArray[np.float32]] = []
    labels: list[str] = []
    ids: list[str] = []
    header: list[str] = []
    for path in paths:
        lines = _lines(path)
        own = next(lines, (0, []))[1]
        if header and own != header:
            raise DataError(f"{path} has the columns {', '.join(own)}, but {paths[0]} has {', '.join(header)}.")
        header = own
        y, device, rest = _columns(path, header, given)
        for number, cells in lines:
            inputs.append(_numbers(path, number, cells, header, rest))
            labels.append(_filled(path, number, cells[y], header[y]))
            ids += [] if device is None else [_filled(path, number, cells[device], header[device])]
    if not inputs:
        raise DataError(f"{paths[0]} has a header and no rows.")
    return Samples(np.stack(inputs), _integers_or_text(labels), _integers_or_text(ids) if ids else None)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The header and the rows, with the number of each in the file; rows have as many cells as the header."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise DataError(f"{path} is larger than {LARGEST_BYTES >> 30} GiB.")
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(DELIMITERS, key=first.count), strict=True)
            width = 0
            for cells in reader:
                if not cells:
                    continue
                width = width or len(cells)
                if len(cells) != width:
                    raise DataError(f"{path}, line {reader.line_num} has {len(cells)} cells, but the header {width}.")
                yield reader.line_num, [cell.strip() for cell in cells]
    except (OSError, ValueError, csv.Error) as problem:
        raise DataError(f"{path} cannot be read as CSV: {str(problem).rstrip('.')}.") from problem


def _columns(path: Path, header: Sequence[str], given: Mapping[str, str]) -> tuple[int, int | None, list[int]]:
    """The places of labels, devices and inputs."""
    where = str(path)
    if "" in header:
        raise DataError(
            f"{path} has a column without a name, perhaps the index that pandas writes: leave it out (index=False)."
        )
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path} has two columns by the name {twice}.")
    if any(_is_number(name) for name in header):
        raise DataError(f"{path} begins with numbers, but its first line must name the columns.")
    y = choose(where, "y", given.get("y", ""), header, header, Y_WORDS, "labels", like="label")
    device = given.get("device", "")
    if device or any(column_words(name) in DEVICE_WORDS for name in header if name != y):
        others = [name for name in header if name != y]
        device = choose(where, "device", device, others, header, DEVICE_WORDS, "ids of devices")
    rest = [place for place, name in enumerate(header) if name not in (y, device)]
    if not rest:
        raise DataError(f"{path} has no columns of inputs next to {y}{f' and {device}' if device else ''}.")
    return header.index(y), header.index(device) if device else None, rest


def _numbers(
    path: Path, line: int, cells: Sequence[str], header: Sequence[str], places: Sequence[int]
) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # infinite is refused later, with the sample it is in
            return np.array([float(cells[place]) for place in places]).astype(np.float32)
    except ValueError:
        place = next(place for place in places if not _is_number(cells[place]))
        raise DataError(
            f"{path}, line {line}: {header[place]} is {cells[place]!r}, but inputs must be numbers; leave the column "
            "out, or name the labels and devices by ',y=NAME,device=NAME' at the end of the path."
        ) from None


def _filled(path: Path, line: int, cell: str, column: str) -> str:
    if not cell:
        raise DataError(f"{path}, line {line}: {column} is empty.")
    return cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _integers_or_text(cells: Sequence[str]) -> NDArray[Any]:
    """Integers where all cells are such, else text."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        return np.array(cells)
