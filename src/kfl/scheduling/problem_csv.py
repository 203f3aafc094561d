"""Problems as CSV: one row per device, or per device and round when there is a column `round`.

Fields that stand once are lines `# name = value` above the header; other lines that begin with # are comments.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.parse import parse_json
from kfl.scheduling.cost import BoolArray, FloatArray
from kfl.scheduling.problem_draft import Column, Draft, check_top
from kfl.scheduling.problem_fields import CELL_FIELDS, DEVICE_FIELDS, EACH_ROUND, ProblemError, refuse_unknown

_COLUMNS = ("round", *DEVICE_FIELDS)
_WORDS = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}

Indices = NDArray[np.intp]


def draft_from_csv(text: str) -> Draft:
    """What a CSV text says; raises with the line where it is not well formed."""
    top, header, rows = _split(text)
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    ids = [name.strip() for name in table.pop("id")]
    if not all(ids):
        raise ProblemError(f"id in row {ids.index('') + 1} below the header is empty: a text or a whole number.")
    if "round" not in table:
        columns = {name: _column(cells, ids, name) for name, cells in table.items()}
        return Draft(top, ids, columns, 1)
    return _trace(top, ids, table)


# ── Text to cells ────────────────────────────────────────────────────────────


def _split(text: str) -> tuple[dict[str, Any], list[str], list[list[str]]]:
    """Fields at the top, the header, and the rows."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    bare = [_bare(line) for line in lines]
    start = next((place for place, line in enumerate(bare) if line and not line.startswith("#")), None)
    if start is None:
        raise ProblemError("This CSV has no header line; it begins, for example, with: id,gain,payload_bits.")
    top: dict[str, Any] = {}
    for line in bare[:start]:
        _read_top(line, top)
    reader = csv.reader(lines[start:], strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        _check_header(header)
        rows = []
        for row in reader:
            if len(row) != len(header):
                if not any(cell.strip() for cell in row):
                    continue
                where = f"Line {start + reader.line_num} of the CSV"
                raise ProblemError(f"{where} has {len(row)} values, but the header has {len(header)}.")
            rows.append(row)
    except csv.Error as problem:
        raise ProblemError(f"Line {start + reader.line_num} of the CSV cannot be read: {problem}.") from problem
    rows = [row for row in rows if any(row)]
    if not rows:
        raise ProblemError("The CSV has a header but no rows; a problem needs at least one device.")
    return top, header, rows


def _bare(line: str) -> str:
    """A line without what spreadsheets put around a comment: quotes, and commas up to the last column."""
    return line.strip().rstrip(",").strip('"').strip()


def _read_top(line: str, top: dict[str, Any]) -> None:
    """A line `# name = value`; a comment without an equals sign is skipped."""
    name, equals, value = line.lstrip("#").partition("=")
    name, value = name.strip(), value.strip()
    if not equals:
        return
    if name in top:
        raise ProblemError(f"{name!r} is given twice at the top of the CSV.")
    refuse_unknown([name], (*CELL_FIELDS, *(field for field in DEVICE_FIELDS if field != "id")), " at the top")
    top[name] = _literal(value)


def _literal(text: str) -> Any:
    """A value at the top: what JSON would make of it, a number written otherwise, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text or None


def _check_header(header: Sequence[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise ProblemError("The columns of the CSV must be separated by commas (and decimals written with a point).")
    refuse_unknown(header, _COLUMNS, " in the header of the CSV")
    for name in header:
        if header.count(name) > 1:
            raise ProblemError(f"The column {name!r} stands twice in the header of the CSV.")
    if "id" not in header:
        raise ProblemError("The CSV has no column id, the device's name.")


# ── Cells to numbers ─────────────────────────────────────────────────────────


def _column(cells: Sequence[str], ids: Sequence[str], name: str) -> Column:
    """One field of all rows. An empty cell is a value that is not given."""
    given = np.array([bool(cell) and not cell.isspace() for cell in cells])
    filled = cells if given.all() else [cell if here else "0" for cell, here in zip(cells, given.tolist(), strict=True)]
    try:
        if name == "available":
            values = np.array([_WORDS[cell.strip().lower()] for cell in filled])
        else:
            values = np.array(list(map(float, filled)))
    except (KeyError, ValueError):
        wrong = next(place for place, cell in enumerate(filled) if not _readable(cell, name))
        right = DEVICE_FIELDS[name].right if name in DEVICE_FIELDS else CELL_FIELDS[name].right
        raise ConfigError(f"{name} of device {ids[wrong]!r}", cells[wrong].strip(), right) from None
    return Column(values, given)


def _readable(cell: str, name: str) -> bool:
    if name == "available":
        return cell.strip().lower() in _WORDS
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ── Rows to rounds ───────────────────────────────────────────────────────────


def _trace(top: dict[str, Any], row_ids: Sequence[str], table: Mapping[str, Sequence[str]]) -> Draft:
    """Rows of several rounds: what may change becomes (rounds, devices), the rest must stay the same."""
    first, row = _rounds(_column(table["round"], row_ids, "round"), row_ids)
    if int(check_top(top).get("round", first)) != first:
        raise ProblemError(f"round is {top['round']} at the top, but the first round in the column is {first}.")
    places: dict[str, int] = {}
    device = np.array([places.setdefault(name, len(places)) for name in row_ids], dtype=np.intp)
    ids, rounds = list(places), int(row.max()) + 1
    _refuse_twice(device, row, ids, first, (rounds, len(ids)))
    columns = {}
    for name, cells in table.items():
        if name == "round":
            continue
        column = _column(cells, row_ids, name)
        if name in EACH_ROUND:
            columns[name] = _spread(column, row, device, (rounds, len(ids)))
        else:
            columns[name] = _constant(column, device, row + first, ids, name)
    there = np.zeros((rounds, len(ids)), bool)
    there[row, device] = True
    gaps = int((~there).sum())
    if gaps:
        columns["available"] = _without_gaps(columns.get("available"), there, bool(top.get("available", True)))
    note = f"A device without a row in a round is not available in it: {gaps} times here."
    return Draft({**top, "round": first}, ids, columns, rounds, (note,) if gaps else ())


def _rounds(column: Column, row_ids: Sequence[str]) -> tuple[int, Indices]:
    """The first round, and each row's round counted from there; they must follow each other."""
    right = CELL_FIELDS["round"].right
    bad = ~column.given | CELL_FIELDS["round"].wrong(column.values) | (column.values != np.floor(column.values))
    if bad.any():
        k = int(bad.argmax())
        value: object = float(column.values[k]) if column.given[k] else ""
        raise ConfigError(f"round of device {row_ids[k]!r}, row {k + 1} below the header,", value, right)
    numbers = np.unique(column.values)
    gap = np.flatnonzero(np.diff(numbers) != 1)
    if len(gap):
        after = int(numbers[gap[0]])
        raise ProblemError(
            f"The column round jumps from {after} to {int(numbers[gap[0] + 1])}; rounds must follow each other."
        )
    return int(numbers[0]), (column.values - numbers[0]).astype(np.intp)


def _refuse_twice(device: Indices, row: Indices, ids: Sequence[str], first: int, shape: tuple[int, int]) -> None:
    counts = np.bincount(row * shape[1] + device, minlength=shape[0] * shape[1])
    if counts.max() > 1:
        when, who = divmod(int(counts.argmax()), shape[1])
        raise ProblemError(f"Two rows have the id {ids[who]!r} in round {when + first}.")


def _spread(column: Column, row: Indices, device: Indices, shape: tuple[int, int]) -> Column:
    values, given = np.zeros(shape), np.zeros(shape, bool)
    values[row, device], given[row, device] = column.values, column.given
    return Column(values, given)


def _constant(column: Column, device: Indices, when: Indices, ids: Sequence[str], name: str) -> Column:
    """One value per device, given in any of its rows and the same wherever it is given."""
    values, given = np.zeros(len(ids)), np.zeros(len(ids), bool)
    who, said = device[column.given], column.values[column.given]
    values[who[::-1]], given[who] = said[::-1], True  # backwards, so that the first one stays
    differs = (said != values[who]) & ~(np.isnan(said) & np.isnan(values[who]))
    if differs.any():
        k = int(differs.argmax())
        start = f"{name} of device {ids[who[k]]!r} is {values[who[k]]:g} and in round {when[column.given][k]}"
        raise ProblemError(f"{start} {said[k]:g}; only {', '.join(EACH_ROUND)} may change from round to round.")
    return Column(values, given)


def _without_gaps(available: Column | None, there: BoolArray, spare: bool) -> Column:
    """Availability with every missing row as "not available"."""
    values: FloatArray = np.full(there.shape, float(spare))
    if available is not None:
        values = np.where(available.given, available.values, values)
    return Column(np.where(there, values, 0.0), np.ones(there.shape, bool))


# ── Writing ──────────────────────────────────────────────────────────────────


def csv_text(top: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], first: int) -> str:
    """The fields at the top as comment lines, and the devices as rows; traces become one row per round."""
    out = io.StringIO()
    for name, value in top.items():
        if name != "round" or "gains" not in devices[0]:
            out.write(f"# {name} = {json.dumps(value)}\n")
    names = [name for name in (*DEVICE_FIELDS, "gains") if any(name in device for device in devices)]
    writer = csv.writer(out, lineterminator="\n")
    if "gains" not in names:
        writer.writerow(names)
        writer.writerows([_cell(device.get(name)) for name in names] for device in devices)
        return out.getvalue()
    fixed = [name for name in names if name not in ("id", "gains", "available")]
    writer.writerow(["round", "id", "gain", "available", *fixed])
    for t in range(len(devices[0]["gains"])):
        for device in devices:
            same = [_cell(device.get(name)) if t == 0 else "" for name in fixed]
            writer.writerow([first + t, device["id"], device["gains"][t], _cell(device["available"][t]), *same])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value
