"""Problems as JSON: reading one into a draft, and JSON that a person can read and edit, one device per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfl.core.errors import ConfigError
from kfl.scheduling.problem_draft import Column, Draft
from kfl.scheduling.problem_fields import DEVICE_FIELDS, EACH_ROUND, TRACES, ProblemError, refuse_unknown

_KNOWN = frozenset((*DEVICE_FIELDS, *TRACES))


def draft_from_json(text: str) -> Draft:
    """What a JSON text says; raises with line and column where it is not JSON."""
    top = _parse(text)
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
    ids = _ids(devices)
    for name, device in zip(ids, devices, strict=True):
        if not _KNOWN.issuperset(device):
            refuse_unknown(device, tuple(sorted(_KNOWN)), f" of device {name!r}")
    present = set().union(*devices)
    described = _described(devices, ids, present)
    columns = {
        name: _column(devices, ids, name, described)
        for name in DEVICE_FIELDS
        if name != "id" and (name in present or any(name == TRACES[trace] for trace in present & set(TRACES)))
    }
    return Draft(top, ids, columns, described)


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}"
        raise ProblemError(f"This is not valid JSON: {problem.msg} at {place}.") from problem
    except RecursionError as problem:
        raise ProblemError("This is not a problem: its JSON is nested too deeply.") from problem
    except ValueError as problem:  # json's only other complaint
        raise ProblemError("This JSON cannot be read: a number in it has thousands of digits.") from problem


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; JSON itself would silently keep the last of two equal names."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        where = f" of device {table['id']!r}" if "id" in table else ""
        raise ProblemError(f"{twice!r}{where} is given twice.")
    return table


def _ids(devices: Sequence[Any]) -> list[str]:
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


# ── Rounds ───────────────────────────────────────────────────────────────────


def _described(devices: Sequence[Mapping[str, Any]], ids: Sequence[str], present: set[str]) -> int:
    """How many rounds the lists have; all must have the same number of entries. 1 where there is no list."""
    traces = [name for name in (*TRACES, "available") if name in present]
    first: tuple[int, str, str] | None = None
    for field in traces:
        for name, device in zip(ids, devices, strict=True):
            values = device.get(field)
            if values is None or (field == "available" and not isinstance(values, list)):
                continue
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{field} of device {name!r}", _short(values), "a list with one value per round")
            if first is None:
                first = (len(values), field, name)
            if len(values) != first[0]:
                like = f"{first[0]}, as many as {first[1]} of device {first[2]!r} has: one per round"
                raise ProblemError(f"{field} of device {name!r} has {len(values)} entries, but must have {like}.")
    return 1 if first is None else first[0]


# ── Columns ──────────────────────────────────────────────────────────────────


def _column(devices: Sequence[Mapping[str, Any]], ids: Sequence[str], name: str, described: int) -> Column:
    """One field of all devices as numbers; true and false are 1 and 0."""
    raw = [device.get(name) for device in devices]
    trace = next((trace for trace, field in TRACES.items() if field == name), None)
    if name in EACH_ROUND and described > 1:
        return _trace_column(devices, ids, name, trace, raw, described)
    if trace is not None:  # lists with one entry
        raw = [
            _one_of(device, ids[k], name, trace, value)
            for k, (device, value) in enumerate(zip(devices, raw, strict=True))
        ]
    if name == "available":
        raw = [value[0] if isinstance(value, list) else value for value in raw]
    values, given = _numbers(raw, ids, name)
    return Column(values, given)


def _one_of(device: Mapping[str, Any], who: str, name: str, trace: str, value: Any) -> Any:
    listed = device.get(trace)
    if listed is None:
        return value
    if value is not None:
        raise ProblemError(f"Device {who!r} gives both {name} and {trace}; give one of them.")
    return listed[0]


def _trace_column(
    devices: Sequence[Mapping[str, Any]], ids: Sequence[str], name: str, trace: str | None, raw: list[Any], rounds: int
) -> Column:
    """A field that changes from round to round, (rounds, devices); one value alone holds for all rounds."""
    values = np.zeros((rounds, len(ids)))
    given = np.zeros((rounds, len(ids)), bool)
    for k, (device, value) in enumerate(zip(devices, raw, strict=True)):
        listed = device.get(trace) if trace is not None else (value if isinstance(value, list) else None)
        if trace is not None and listed is not None and value is not None:
            raise ProblemError(f"Device {ids[k]!r} gives both {name} and {trace}; give one of them.")
        column, here = _numbers([value] if listed is None else listed, [ids[k]] * rounds, name)
        values[:, k], given[:, k] = column, here
    return Column(values, given)


def _numbers(raw: Sequence[Any], ids: Sequence[str], name: str) -> tuple[Any, Any]:
    """Values as floats and where there are any; a value of another type raises, naming the device."""
    allowed: set[type] = {bool} if name == "available" else {int, float}
    if not set(map(type, raw)) <= allowed | {type(None)}:
        wrong = next(place for place, value in enumerate(raw) if value is not None and type(value) not in allowed)
        field = DEVICE_FIELDS[name]
        raise ConfigError(f"{name} of device {ids[wrong]!r}", _short(raw[wrong]), field.right)
    given = np.array([value is not None for value in raw])
    try:
        values = np.array([0.0 if value is None else float(value) for value in raw])
    except OverflowError:  # a whole number of more than 308 digits is as good as infinite, and refused as such
        values = np.array([_large(value) for value in raw])
    return values, given


def _large(value: Any) -> float:
    try:
        return 0.0 if value is None else float(value)
    except OverflowError:
        return float("inf")


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


# ── Writing ──────────────────────────────────────────────────────────────────


def json_text(value: Any, depth: int = 0) -> str:
    """JSON without NaN, laid out for people: lists of objects have one object per line.

    >>> print(json_text({"rounds": 2, "devices": [{"id": "a", "gain": 1.0}, {"id": "b", "gain": 2.0}]}), end="")
    {
      "rounds": 2,
      "devices": [
        {"id": "a", "gain": 1.0},
        {"id": "b", "gain": 2.0}
      ]
    }
    """
    text = _laid_out(value, depth)
    return text if depth else text + "\n"


def _laid_out(value: Any, depth: int) -> str:
    inside, outside = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value and (depth == 0 or any(map(_has_rows, value.values()))):
        parts = [
            f"{inside}{json.dumps(name, ensure_ascii=False)}: {_laid_out(v, depth + 1)}" for name, v in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{outside}}}"
    if _has_rows(value):
        return "[\n" + ",\n".join(inside + _laid_out(v, depth + 1) for v in value) + f"\n{outside}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict | str)
