"""From text to a table: problems as CSV and as JSON. Both end in a `Table`, so that the two cannot differ in meaning.

CSV has one row per device, or per device and round when there is a column `round`. Fields that stand once are lines
`# name = value` above the header; other lines that begin with # are comments. JSON has a list of devices, and lists
with one value per round in place of rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kfl.core.errors import ConfigError
from kfl.core.names import from_csv
from kfl.core.parse import parse_json
from kfl.scheduling.problem_schema import (
    CELL_FIELDS,
    DEVICE_FIELDS,
    EACH_ROUND,
    TRACES,
    FileTop,
    ProblemError,
    refuse_both,
    refuse_unknown,
    short,
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """What a file says, before its values are checked."""

    top: Mapping[str, Any]
    """Fields that stand once: the cell's, and device fields that hold for all."""
    rows: Sequence[Row]
    """One per device, with what it gives; fields of `EACH_ROUND` are lists with an entry for each round described."""
    described: int
    """How many rounds the file describes."""
    strict: bool
    """Whether numbers are numbers; in a CSV they are text."""
    notes: tuple[str, ...] = ()


# ── CSV ──────────────────────────────────────────────────────────────────────


def table_from_csv(text: str) -> Table:
    """Return what a CSV text says; raise with the line where it is not well formed."""
    top, header, lines = _csv_parts(text)
    rows = [{name: cell.strip() for name, cell in zip(header, line, strict=True) if cell.strip()} for line in lines]
    for number, row in enumerate(rows, 1):
        if "id" not in row:
            raise ProblemError(f"id in row {number} below the header is empty: {DEVICE_FIELDS['id'].right}.")
        row["id"] = from_csv(row["id"])
    if "round" in header:
        return _csv_trace(top, rows)
    return Table(top, [_listed(row, 1) for row in rows], 1, strict=False)


def _csv_parts(text: str) -> tuple[Row, list[str], list[list[str]]]:
    """Return the fields at the top, the header, and the rows."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    bare = [_without_marks(line) for line in lines]
    start = next((number for number, line in enumerate(bare) if line and not line.startswith("#")), None)
    if start is None:
        raise ProblemError("This CSV has no header line; it begins, for example, with: id,gain,payload_bits.")
    top: Row = {}
    for line in bare[:start]:
        _read_top(line, top)
    reader = csv.reader((f"{line}\n" for line in lines[start:]), strict=True)  # a quoted id may have a line break
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
            if any(row):
                rows.append(row)
    except csv.Error as problem:
        raise ProblemError(f"Line {start + reader.line_num} of the CSV cannot be read: {problem}.") from problem
    if not rows:
        raise ProblemError("The CSV has a header but no rows; a problem needs at least one device.")
    return top, header, rows


def _without_marks(line: str) -> str:
    """Return a line without what spreadsheets put around a comment: quotes, and commas up to the last column."""
    return line.strip().rstrip(",").strip('"').strip()


def _read_top(line: str, top: Row) -> None:
    """Read a line `# name = value`; a comment without an equals sign is skipped."""
    name, equals, value = line.lstrip("#").partition("=")
    name, value = name.strip(), value.strip()
    if not equals:
        return
    if name in top:
        raise ProblemError(f"{name!r} is given twice at the top of the CSV.")
    refuse_unknown([name], FileTop.model_fields, " at the top")
    top[name] = _literal(value)


def _literal(text: str) -> Any:
    """Return a value at the top: what JSON would make of it, a number written otherwise, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for reader in (parse_json, float):
        try:
            return reader(text)
        except ValueError:
            pass
    return text or None


def _check_header(header: Sequence[str]) -> None:
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise ProblemError("The columns of the CSV must be separated by commas (and decimals written with a point).")
    refuse_unknown(header, ("round", *DEVICE_FIELDS), " in the header of the CSV")
    for name in header:
        if header.count(name) > 1:
            raise ProblemError(f"The column {name!r} stands twice in the header of the CSV.")
    if "id" not in header:
        raise ProblemError("The CSV has no column id, the device's name.")


def _csv_trace(top: Row, lines: Sequence[Row]) -> Table:
    """Rows of several rounds: what may change becomes a list, the rest is given once or stays the same."""
    numbers = [_round_of(line, number) for number, line in enumerate(lines, 1)]
    first = min(numbers)
    _refuse_jumps(numbers)
    if top.get("round") is None:
        top = {**top, "round": first}
    elif type(top["round"]) in (int, float) and top["round"] != first:
        raise ProblemError(f"round is {top['round']} at the top, but the first round in the column is {first}.")
    rounds = max(numbers) - first + 1
    rows: dict[str, Row] = {}
    seen: set[tuple[str, int]] = set()
    for line, number in zip(lines, numbers, strict=True):
        name = line["id"]
        if (name, number) in seen:
            raise ProblemError(f"Two rows have the id {name!r} in round {number}.")
        seen.add((name, number))
        row = rows.setdefault(name, {})
        for field, cell in line.items():
            if field in EACH_ROUND:
                row.setdefault(field, [None] * rounds)[number - first] = cell
            elif field != "round" and not _same(row.setdefault(field, cell), cell):
                differs = f"{field} of device {name!r} is {row[field]} and in round {number} {cell}"
                raise ProblemError(f"{differs}; only {', '.join(EACH_ROUND)} may change from round to round.")
    gaps = [(name, t) for name in rows for t in range(rounds) if (name, first + t) not in seen]
    for name, t in gaps:
        rows[name].setdefault("available", [None] * rounds)[t] = False
    note = f"A device without a row in a round is not available in it: {len(gaps)} times here."
    return Table(top, list(rows.values()), rounds, strict=False, notes=(note,) if gaps else ())


def _round_of(line: Row, number: int) -> int:
    """Return the round of a row."""
    cell = line.get("round", "")
    value: float | str = cell
    with suppress(ValueError):
        value = float(cell)
        if 0 <= value <= 1e12 and value.is_integer():
            return int(value)
    where = f"round of device {line['id']!r}, row {number} below the header,"
    raise ConfigError(where, value, CELL_FIELDS["round"].right)


def _refuse_jumps(numbers: Sequence[int]) -> None:
    different = sorted(set(numbers))
    for one, following in pairwise(different):
        if following != one + 1:
            raise ProblemError(f"The column round jumps from {one} to {following}; rounds must follow each other.")


def _same(one: Any, other: Any) -> bool:
    """Whether two cells hold the same number or text."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False


# ── JSON ─────────────────────────────────────────────────────────────────────


def table_from_json(text: str) -> Table:
    """Return what a JSON text says; raise with line and column where it is not JSON."""
    top = _parse_json(text)
    if not isinstance(top, dict):
        raise ProblemError('A problem is a JSON object with a list of devices: {"devices": [...]}.')
    if "devices" not in top:
        refuse_unknown([name for name in top if name.lower().startswith("dev")], ("devices",), " at the top")
        raise ProblemError("devices is missing: a list with one object for each device.")
    devices = top.pop("devices")
    if not isinstance(devices, list):
        raise ConfigError("devices", short(devices), "a list with one object for each device")
    if not devices:
        raise ProblemError("devices is an empty list; a problem needs at least one device.")
    rows = [_one_way(device, number) for number, device in enumerate(devices, 1)]
    described = _described(rows)
    rows = [_listed(row, described) for row in rows]
    return Table(top, rows, described, strict=True)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_json_object)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}"
        raise ProblemError(f"This is not valid JSON: {problem.msg} at {where}.") from problem
    except RecursionError as problem:
        raise ProblemError("This is not a problem: its JSON is nested too deeply.") from problem
    except ValueError as problem:  # json's only other complaint
        raise ProblemError("This JSON cannot be read: a number in it has thousands of digits.") from problem


def _json_object(pairs: list[tuple[str, Any]]) -> Row:
    """Return an object; JSON itself would silently keep the last of two equal names."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        where = f" of device {table['id']!r}" if "id" in table else ""
        raise ProblemError(f"{twice!r}{where} is given twice.")
    return table


_KNOWN = {*DEVICE_FIELDS, *TRACES}


def _one_way(device: Any, number: int) -> Row:
    """Return what a device gives, without what is null, and its traces under the names of their fields."""
    if not isinstance(device, dict):
        raise ConfigError(f"device number {number}", short(device), "an object with fields such as id and gain")
    name = device.get("id")
    who = f"device number {number}" if name is None else f"device {str(name).strip()!r}"
    if not _KNOWN.issuperset(device):
        refuse_unknown(device, sorted(_KNOWN), f" of {who}")
    if name is None:
        raise ProblemError(f"id of {who} is missing: {DEVICE_FIELDS['id'].right}.")
    if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
        raise ConfigError(f"id of device number {number}", name, DEVICE_FIELDS["id"].right)
    row = {field: value for field, value in device.items() if value is not None} | {"id": str(name).strip()}
    for trace, field in TRACES.items():
        if trace in row:
            if field in row:
                refuse_both(f"Device {row['id']!r}", field, trace)
            if not isinstance(row[trace], list):
                raise ConfigError(f"{trace} of {who}", short(row[trace]), _ONE_PER_ROUND)
            row[field] = row.pop(trace)
        elif isinstance(row.get(field), list):
            raise ConfigError(f"{field} of {who}", short(row[field]), DEVICE_FIELDS[field].right)
    return row


_ONE_PER_ROUND = "a list with one value per round"


def _described(rows: Sequence[Row]) -> int:
    """Return how many rounds the lists have; all must have the same number of entries. 1 where there is no list."""
    first: tuple[int, str] | None = None
    for field in EACH_ROUND:
        listed = next((trace for trace, name in TRACES.items() if name == field), field)
        for row in rows:
            values, where = row.get(field), f"{listed} of device {row['id']!r}"
            if isinstance(values, list):
                if not values:
                    raise ConfigError(where, values, _ONE_PER_ROUND)
                first = first or (len(values), where)
                if len(values) != first[0]:
                    like = f"{first[0]}, as many as {first[1]} has: one per round"
                    raise ProblemError(f"{where} has {len(values)} entries, but must have {like}.")
    return 1 if first is None else first[0]


def _listed(row: Row, described: int) -> Row:
    """Return a row in which a value that may change from round to round, given once, holds for every round."""
    once = {field: [row[field]] * described for field in EACH_ROUND if not isinstance(row.get(field, []), list)}
    return {**row, **once}
