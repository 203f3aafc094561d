"""From text to a draft: problems as CSV and as JSON. Both end in a `Draft`, so that the two cannot differ in meaning.

CSV has one row per device, or per device and round when there is a column `round`. Fields that stand once are lines
`# name = value` above the header; other lines that begin with # are comments. JSON has a list of devices, and lists
with one value per round in place of rows.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.names import from_csv
from kfl.core.parse import parse_json
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.problem_fields import (
    CELL_FIELDS,
    DEVICE_FIELDS,
    EACH_ROUND,
    LISTS,
    TOP_FIELDS,
    TRACES,
    ProblemError,
    as_float,
    check_top,
    refuse_both,
    refuse_unknown,
)

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Column:
    """One field of all devices: values, and where the file gives one. (devices,), or (rounds, devices)."""

    values: FloatArray
    given: BoolArray


@dataclass(frozen=True, eq=False)
class Draft:
    """What a file says."""

    top: Mapping[str, Any]
    """Fields that stand once: the cell's, and device fields that hold for all."""
    ids: Sequence[str]
    columns: Mapping[str, Column]
    described: int
    """How many rounds the file describes."""
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Rounds and devices."""
        return self.described, len(self.ids)


# ── CSV ──────────────────────────────────────────────────────────────────────

_COLUMNS = ("round", *DEVICE_FIELDS)
_WORDS = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}


def draft_from_csv(text: str) -> Draft:
    """What a CSV text says; raises with the line where it is not well formed."""
    top, header, rows = _csv_parts(text)
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    ids = [from_csv(name.strip()) for name in table.pop("id")]
    if not all(ids):
        raise ProblemError(f"id in row {ids.index('') + 1} below the header is empty: a text or a whole number.")
    if "round" not in table:
        columns = {name: _csv_column(cells, ids, name) for name, cells in table.items()}
        return Draft(top, ids, columns, 1)
    return _csv_trace(top, ids, table)


def _csv_parts(text: str) -> tuple[dict[str, Any], list[str], list[list[str]]]:
    """Fields at the top, the header, and the rows."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    bare = [_without_marks(line) for line in lines]
    start = next((number for number, line in enumerate(bare) if line and not line.startswith("#")), None)
    if start is None:
        raise ProblemError("This CSV has no header line; it begins, for example, with: id,gain,payload_bits.")
    top: dict[str, Any] = {}
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
            rows.append(row)
    except csv.Error as problem:
        raise ProblemError(f"Line {start + reader.line_num} of the CSV cannot be read: {problem}.") from problem
    rows = [row for row in rows if any(row)]
    if not rows:
        raise ProblemError("The CSV has a header but no rows; a problem needs at least one device.")
    return top, header, rows


def _without_marks(line: str) -> str:
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
    refuse_unknown([name], TOP_FIELDS, " at the top")
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


def _csv_column(cells: Sequence[str], ids: Sequence[str], name: str) -> Column:
    """One field of all rows. An empty cell is a value that is not given."""
    return _column([cell.strip() or None for cell in cells], ids, name, _csv_truth if name == "available" else float)


def _csv_truth(cell: str) -> float:
    return _WORDS[cell.lower()]


def _csv_trace(top: dict[str, Any], row_ids: Sequence[str], table: Mapping[str, Sequence[str]]) -> Draft:
    """Rows of several rounds: what may change becomes (rounds, devices), the rest must stay the same."""
    first, row = _csv_rounds(_csv_column(table["round"], row_ids, "round"), row_ids)
    if int(check_top(top).get("round", first)) != first:
        raise ProblemError(f"round is {top['round']} at the top, but the first round in the column is {first}.")
    positions: dict[str, int] = {}
    device = np.array([positions.setdefault(name, len(positions)) for name in row_ids], dtype=np.intp)
    ids, rounds = list(positions), int(row.max()) + 1
    _refuse_two_rows(device, row, ids, first, (rounds, len(ids)))
    columns = {}
    for name, cells in table.items():
        if name == "round":
            continue
        column = _csv_column(cells, row_ids, name)
        if name in EACH_ROUND:
            columns[name] = _each_round(column, row, device, (rounds, len(ids)))
        else:
            columns[name] = _one_value(column, device, row + first, ids, name)
    there = np.zeros((rounds, len(ids)), bool)
    there[row, device] = True
    gaps = int((~there).sum())
    if gaps:
        columns["available"] = _without_gaps(columns.get("available"), there, bool(top.get("available", True)))
    note = f"A device without a row in a round is not available in it: {gaps} times here."
    return Draft({**top, "round": first}, ids, columns, rounds, (note,) if gaps else ())


def _csv_rounds(column: Column, row_ids: Sequence[str]) -> tuple[int, Indices]:
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


def _refuse_two_rows(device: Indices, row: Indices, ids: Sequence[str], first: int, shape: tuple[int, int]) -> None:
    counts = np.bincount(row * shape[1] + device, minlength=shape[0] * shape[1])
    if counts.max() > 1:
        when, who = divmod(int(counts.argmax()), shape[1])
        raise ProblemError(f"Two rows have the id {ids[who]!r} in round {when + first}.")


def _each_round(column: Column, row: Indices, device: Indices, shape: tuple[int, int]) -> Column:
    values, given = np.zeros(shape), np.zeros(shape, bool)
    values[row, device], given[row, device] = column.values, column.given
    return Column(values, given)


def _one_value(column: Column, device: Indices, when: Indices, ids: Sequence[str], name: str) -> Column:
    """One value per device, given in any of its rows and the same wherever it is given."""
    values, given = np.zeros(len(ids)), np.zeros(len(ids), bool)
    who, given_values = device[column.given], column.values[column.given]
    values[who[::-1]], given[who] = given_values[::-1], True  # backwards, so that the first one stays
    differs = (given_values != values[who]) & ~(np.isnan(given_values) & np.isnan(values[who]))
    if differs.any():
        k = int(differs.argmax())
        start = f"{name} of device {ids[who[k]]!r} is {values[who[k]]:g} and in round {when[column.given][k]}"
        raise ProblemError(f"{start} {given_values[k]:g}; only {', '.join(EACH_ROUND)} may change from round to round.")
    return Column(values, given)


def _without_gaps(available: Column | None, there: BoolArray, spare: bool) -> Column:
    """Availability with every missing row as "not available"."""
    values: FloatArray = np.full(there.shape, float(spare))
    if available is not None:
        values = np.where(available.given, available.values, values)
    return Column(np.where(there, values, 0.0), np.ones(there.shape, bool))


# ── JSON ─────────────────────────────────────────────────────────────────────

_KNOWN = frozenset((*DEVICE_FIELDS, *TRACES))


def draft_from_json(text: str) -> Draft:
    """What a JSON text says; raises with line and column where it is not JSON."""
    top = _parse_json(text)
    if not isinstance(top, dict):
        raise ProblemError('A problem is a JSON object with a list of devices: {"devices": [...]}.')
    top = dict(top)
    if "devices" not in top:
        refuse_unknown([name for name in top if name.lower().startswith("dev")], ("devices",), " at the top")
        raise ProblemError("devices is missing: a list with one object for each device.")
    devices = top.pop("devices")
    if not isinstance(devices, list):
        raise ConfigError("devices", _short(devices), "a list with one object for each device")
    if not devices:
        raise ProblemError("devices is an empty list; a problem needs at least one device.")
    ids = _json_ids(devices)
    for name, device in zip(ids, devices, strict=True):
        if not _KNOWN.issuperset(device):
            refuse_unknown(device, tuple(sorted(_KNOWN)), f" of device {name!r}")
    present = set().union(*devices)
    described = _described(devices, ids, present)
    columns = {
        name: _json_column(devices, ids, name, described)
        for name in DEVICE_FIELDS
        if name != "id" and (name in present or any(name == TRACES[trace] for trace in present & set(TRACES)))
    }
    return Draft(top, ids, columns, described)


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


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; JSON itself would silently keep the last of two equal names."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        where = f" of device {table['id']!r}" if "id" in table else ""
        raise ProblemError(f"{twice!r}{where} is given twice.")
    return table


def _json_ids(devices: Sequence[Any]) -> list[str]:
    ids = []
    for number, device in enumerate(devices, 1):
        if not isinstance(device, dict):
            raise ConfigError(f"device number {number}", _short(device), "an object with fields such as id and gain")
        name = device.get("id")
        if name is None:
            refuse_unknown(device, tuple(sorted(_KNOWN)), f" of device number {number}")
            raise ProblemError(f"id of device number {number} is missing: a text or a whole number.")
        if not isinstance(name, str | int) or isinstance(name, bool) or not str(name).strip():
            raise ConfigError(f"id of device number {number}", name, "a text or a whole number")
        ids.append(str(name).strip())
    return ids


def _described(devices: Sequence[Mapping[str, Any]], ids: Sequence[str], present: set[str]) -> int:
    """How many rounds the lists have; all must have the same number of entries. 1 where there is no list."""
    traces = [name for name in (*TRACES, *LISTS) if name in present]
    first: tuple[int, str, str] | None = None
    for field in traces:
        for name, device in zip(ids, devices, strict=True):
            values = device.get(field)
            if values is None or (field in LISTS and not isinstance(values, list)):
                continue
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{field} of device {name!r}", _short(values), "a list with one value per round")
            if first is None:
                first = (len(values), field, name)
            if len(values) != first[0]:
                like = f"{first[0]}, as many as {first[1]} of device {first[2]!r} has: one per round"
                raise ProblemError(f"{field} of device {name!r} has {len(values)} entries, but must have {like}.")
    return 1 if first is None else first[0]


def _json_column(devices: Sequence[Mapping[str, Any]], ids: Sequence[str], name: str, described: int) -> Column:
    """One field of all devices as numbers. One value alone holds for every round."""
    number = _json_truth if name == "available" else _json_number
    if name not in EACH_ROUND:
        return _column([device.get(name) for device in devices], ids, name, number)
    trace = next((trace for trace, field in TRACES.items() if field == name), None)
    raw: list[Any] = []
    for who, device in zip(ids, devices, strict=True):
        value = device.get(name)
        listed = device.get(trace) if trace is not None else (value if isinstance(value, list) else None)
        if trace is not None and listed is not None and value is not None:
            refuse_both(f"Device {who!r}", name, trace)
        raw += [value] * described if listed is None else listed
    column = _column(raw, [who for who in ids for _ in range(described)], name, number)
    shape = len(ids), described
    return Column(column.values.reshape(shape).T, column.given.reshape(shape).T)


def _json_number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return as_float(value)


def _json_truth(value: Any) -> float:
    if type(value) is not bool:
        raise TypeError
    return float(value)


# ── Both ─────────────────────────────────────────────────────────────────────


def _column(raw: Sequence[Any], ids: Sequence[str], name: str, number: Callable[[Any], float]) -> Column:
    """A field as floats, and where there are any; the first value that is not a `number` raises, naming the device."""
    values = np.zeros(len(raw))
    for index, value in enumerate(raw):
        if value is not None:
            try:
                values[index] = number(value)
            except (KeyError, TypeError, ValueError):
                field = DEVICE_FIELDS.get(name) or CELL_FIELDS[name]
                raise ConfigError(f"{name} of device {ids[index]!r}", _short(value), field.right) from None
    return Column(values, np.array([value is not None for value in raw]))


def _short(value: Any) -> Any:
    """A value as an error may quote it: long lists and objects in a word."""
    if isinstance(value, dict):
        return {} if not value else _Words("an object")
    if isinstance(value, list):
        return value if len(value) <= 4 else _Words(f"a list of {len(value)}")
    return value


class _Words(str):
    """A text that is quoted without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
