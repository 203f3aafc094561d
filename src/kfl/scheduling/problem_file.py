"""Reading and writing problems: the documented format, as JSON and as CSV.

>>> problem = read_problem('{"bandwidth_hz": 1e6, "payload_bits": 1e6, "devices": [{"id": "a", "gain_db": -90}]}')
>>> problem.ids, problem.gain, problem.bandwidth_hz
(('a',), array([[1.e-09]]), 1000000.0)
>>> read_problem('{"devices": [{"id": "a", "gain": -1, "payload_bits": 1}]}')
Traceback (most recent call last):
...
kfl.core.errors.ConfigError: gain of device 'a' is -1.0, but must be a number from 0 to 1: a channel does not amplify.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.files import write_atomic
from kfl.core.names import for_csv, for_json
from kfl.scheduling._problem_text import Draft, draft_from_csv, draft_from_json
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.problem_fields import (
    CELL_FIELDS,
    DEVICE_FIELDS,
    EACH_ROUND,
    LISTS,
    ProblemError,
    check_top,
    refuse_both,
    refuse_wrong,
)
from kfl.scheduling.uplink import LARGEST_POWER_W, DeviceEnergyModel

_DRAWN = {
    "cpu_hz": "cpu_hz",
    "min_cpu_hz": "min_cpu_hz",
    "min_power_w": "min_power_w",
    "static_power_w": "static_power_w",
    "amplifier_efficiency": "amplifier_efficiency",
    "circuit_power_w": "circuit_power_w",
    "tail_energy_j": "tail_j",
    "receive_energy_j": "receiving_j",
}
"""Fields of a file for which the paper's energy model has no use, with their names in `DeviceEnergyModel`."""


def read_problem(source: str | Path, **changes: object) -> CellProblem:
    """Read a problem from a file, or from text in JSON or CSV.

    `changes` are fields that go on top of what the file says at its top, for example `bandwidth_hz=1e6`.
    A file is JSON or CSV by its name, anything else by its first character.

    >>> read_problem("id,gain,payload_bits\\na,1e-9,5e4\\nb,2e-9,5e4\\n", rounds=10).rounds
    10
    """
    text, kind = _text(source)
    draft = draft_from_json(text) if kind == "json" else draft_from_csv(text)
    top = {**draft.top, **{name: value for name, value in changes.items() if value is not None}}
    return _assemble(replace(draft, top=top))


def _text(source: str | Path) -> tuple[str, str]:
    """The text and its kind."""
    if isinstance(source, str) and (not source.strip() or source.lstrip()[0] in "{[#" or "\n" in source):
        return _not_empty(source, "The problem"), _kind(source)
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ProblemError(f"{path} is not text in UTF-8: byte {problem.start} cannot be read.") from problem
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ProblemError(f"Cannot read {str(path)!r}: {reason}.") from problem
    kinds = {".json": "json", ".csv": "csv"}
    return _not_empty(text, str(path)), kinds.get(path.suffix.lower(), _kind(text))


def _not_empty(text: str, name: str) -> str:
    if not text.strip():
        raise ProblemError(f"{name} is empty; kfl schedule --example prints one to start from.")
    return text


def _kind(text: str) -> str:
    return "json" if text.lstrip()[:1] in ("{", "[") else "csv"


# ── Draft to problem ─────────────────────────────────────────────────────────


def _assemble(draft: Draft) -> CellProblem:
    """Every value checked, defaults filled in, costs derived."""
    top = check_top(draft.top)
    draft = replace(draft, top=top)
    first = int(_once(top, "round"))
    _refuse_twice(draft.ids)
    for name, column in draft.columns.items():
        refuse_wrong(
            DEVICE_FIELDS[name], column.values, column.given, draft.ids, first if draft.described > 1 else None
        )
    rounds = _horizon(top, first, draft.described)
    available = _pick(draft, "available") > 0
    compute_s, compute_j = _computation(draft)
    max_power_w = _power(draft, "max_power")
    charge_j, harvest_j = _batteries(draft, top)
    budget_j, spent_j, notes = _energy(draft, top)
    notes += _doubts(draft.ids, max_power_w)
    return CellProblem(
        ids=tuple(draft.ids),
        bandwidth_hz=_once(top, "bandwidth_hz"),
        noise_dbm_per_hz=_once(top, "noise_dbm_per_hz"),
        rounds=rounds,
        round=first,
        seed=int(top.get("seed", 0)),
        hard_budget=bool(top.get("hard_budget", False)),
        gain=_gain(draft, available),
        available=available,
        samples=_pick(draft, "samples"),
        payload_bits=_pick(draft, "payload_bits"),
        deadline_s=_pick(draft, "deadline_s"),
        max_power_w=max_power_w,
        compute_energy_j=compute_j,
        budget_j=budget_j,
        spent_j=spent_j,
        queue_j=_pick(draft, "queue_j"),
        memory={name: np.array(values, float) for name, values in top.get("memory", {}).items()},
        notes=(*draft.notes, *notes),
        device=_device(draft, compute_s, compute_j, max_power_w),
        resource_blocks=None if "resource_blocks" not in top else int(top["resource_blocks"]),
        battery_capacity_j=None if charge_j is None else float(top["battery_capacity_j"]),
        charge_j=charge_j,
        harvest_j=harvest_j,
    )


def _doubts(ids: Sequence[str], max_power_w: FloatArray) -> list[str]:
    """Powers that no such radio has, in a sentence: the unit is probably wrong."""
    strong = np.flatnonzero(max_power_w > LARGEST_POWER_W)
    if not len(strong):
        return []
    watts, more = float(max_power_w[strong[0]]), f" and {len(strong) - 1} more" if len(strong) > 1 else ""
    return [
        f"The transmit power of device {ids[strong[0]]}{more} is {watts:g} W, more than any battery device has: "
        f"if {watts:g} dBm were meant, give max_power_dbm."
    ]


def _once(top: Mapping[str, Any], name: str) -> float:
    """A checked number of the cell, or its default."""
    value = top.get(name, CELL_FIELDS[name].default)
    assert value is not None  # asked only of fields with a default
    return float(value)


def _horizon(top: Mapping[str, Any], first: int, described: int) -> int:
    last = first + described
    rounds = int(top.get("rounds", last))
    if first >= rounds:
        played = f"round is {first} and rounds is {rounds}: every round of this horizon has been played"
        raise ProblemError(f"{played}; raise rounds to go on.")
    if last > rounds:
        raise ConfigError("rounds", rounds, f"{last} or more, because the file describes rounds {first} to {last - 1}")
    return rounds


def _refuse_twice(ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for index, name in enumerate(ids):
        if name in seen:
            raise ProblemError(f"Two devices have the id {name!r}: number {seen[name] + 1} and number {index + 1}.")
        seen[name] = index


def _given(draft: Draft, name: str) -> BoolArray:
    """Where devices themselves give a field."""
    column = draft.columns.get(name)
    return np.zeros(draft.shape[1], bool) if column is None else column.given


def _pick(draft: Draft, name: str, wanted: BoolArray | None = None) -> FloatArray:
    """A field of every device: its own, else the top's, else the default; raises where it is wanted and missing."""
    shape = draft.shape if name in EACH_ROUND else draft.shape[1:]
    column, default = draft.columns.get(name), DEVICE_FIELDS[name].default
    given = np.zeros(shape, bool) if column is None else np.broadcast_to(column.given, shape)
    values = np.zeros(shape) if column is None else np.broadcast_to(column.values, shape)
    spare = draft.top.get(name, default)
    if spare is not None:
        return np.where(given, values, float(spare))
    missing = ~given if wanted is None else wanted & ~given
    if missing.any():
        _refuse_missing(draft, name, tuple(int(index) for index in np.argwhere(missing)[0]))
    return np.where(given, values, 0.0)


def _refuse_missing(draft: Draft, name: str, where: tuple[int, ...]) -> NoReturn:
    when = f" in round {int(draft.top.get('round', 0)) + where[0]}" if len(where) > 1 and draft.described > 1 else ""
    ways = {
        "gain": "give gain (linear) or gain_db; 0 is a device that is not heard",
        "cpu_hz": "give it beside flops, or compute_time_s and compute_energy_j in place of both",
        "flops": "give it beside cpu_hz, or compute_time_s and compute_energy_j in place of both",
    }
    how = ways.get(name, f"{DEVICE_FIELDS[name].meaning}; give it for the device, or at the top for all")
    raise ProblemError(f"{name} of device {draft.ids[where[-1]]!r}{when} is missing: {how}.")


def _either(draft: Draft, first: Sequence[str], second: Sequence[str]) -> BoolArray:
    """Where the second way to say something is used; a device that says it in both ways is refused.

    What a device says itself comes before what the top says for all.
    """
    own = [
        np.broadcast_to(np.logical_or.reduce([_given(draft, name) for name in names]), draft.shape)
        for names in (first, second)
    ]
    both = own[0] & own[1]
    if both.any():
        device = int(np.argwhere(both)[0][-1])
        names = [next(name for name in way if _given(draft, name)[..., device].any()) for way in (first, second)]
        refuse_both(f"Device {draft.ids[device]!r}", *names)
    tops = [[name for name in names if name in draft.top] for names in (first, second)]
    if tops[0] and tops[1]:
        refuse_both("The top of the file", tops[0][0], tops[1][0])
    return own[1] | (~own[0] & bool(tops[1]))


def _gain(draft: Draft, available: BoolArray) -> FloatArray:
    """Linear gains of every round. A device that is not available needs none."""
    decibels = _either(draft, ("gain",), ("gain_db",))
    linear = _pick(draft, "gain", available & ~decibels)
    return np.where(decibels, 10.0 ** (_pick(draft, "gain_db", available & decibels) / 10.0), linear)


def _power(draft: Draft, name: str) -> FloatArray:
    """A radiated power in watts, given as such or in dBm."""
    watts, dbm = f"{name}_w", f"{name}_dbm"
    decibels = _either(draft, (watts,), (dbm,))[0]
    from_dbm = 10.0 ** ((_pick(draft, dbm, decibels) - 30.0) / 10.0)
    return np.where(decibels, from_dbm, _pick(draft, watts))


def _computation(draft: Draft) -> tuple[FloatArray, FloatArray]:
    """Time and energy of the computation: as given, or by equations (10) and (11); 0 for devices that only send."""
    times = ("compute_time_s", "compute_energy_j")
    derived = _either(draft, times, ("flops",))[0]
    given = [_given(draft, name) | (name in draft.top) for name in times]
    alone = ~derived & ~given[0] & ~given[1] & (_given(draft, "cpu_hz") | ("cpu_hz" in draft.top))
    if alone.any():
        _refuse_missing(draft, "flops", (int(alone.argmax()),))
    half = ~derived & (given[0] != given[1])
    if half.any():
        device = int(half.argmax())
        have, lack = times if given[0][device] else times[::-1]
        raise ProblemError(f"Device {draft.ids[device]!r} has {have} but no {lack}; give both (0 is allowed).")
    # Who says its times has no operations, whatever the top says for the others.
    flops = np.where(derived, _pick(draft, "flops", derived), 0.0)
    clock = np.where(derived, _pick(draft, "cpu_hz", derived), 1.0)
    cycle, kappa = _pick(draft, "flops_per_cycle"), _pick(draft, "power_coefficient")
    # Equations (10) and (11), with κ D C f² / n as cycles times joules per cycle.
    with np.errstate(over="ignore"):
        time_s, energy_j = flops / (clock * cycle), kappa * flops / cycle * clock**2
    _refuse_derived(draft, time_s, "compute_time_s")
    _refuse_derived(draft, energy_j, "compute_energy_j")
    return np.where(derived, time_s, _pick(draft, times[0])), np.where(derived, energy_j, _pick(draft, times[1]))


def _device(
    draft: Draft, compute_time_s: FloatArray, compute_energy_j: FloatArray, max_power_w: FloatArray
) -> DeviceEnergyModel:
    """What devices draw: time and energy at the fastest clock say everything about a processor but how slow it gets."""
    clocked = _given(draft, "cpu_hz") | ("cpu_hz" in draft.top)
    cpu_hz = np.where(clocked, _pick(draft, "cpu_hz", clocked), np.nan)
    own = _given(draft, "min_cpu_hz")
    if (own & ~clocked).any():
        who = draft.ids[int((own & ~clocked).argmax())]
        raise ProblemError(f"Device {who!r} has min_cpu_hz but no cpu_hz, the fastest clock; give both.")
    slows = clocked & (own | ("min_cpu_hz" in draft.top))
    min_cpu_hz = np.where(slows, _pick(draft, "min_cpu_hz", slows), cpu_hz)
    _refuse_above(draft, "min_cpu_hz", min_cpu_hz, min_cpu_hz > cpu_hz, "at most its cpu_hz", cpu_hz)
    min_power_w = _power(draft, "min_power")
    above = (min_power_w > 0) & (min_power_w >= max_power_w)
    _refuse_above(draft, "min_power_w", min_power_w, above, "below its max_power_w", max_power_w)
    slower = np.where(min_cpu_hz < cpu_hz, cpu_hz / min_cpu_hz, 1.0)
    return DeviceEnergyModel(
        fastest_s=compute_time_s,
        slowest_s=compute_time_s * slower,
        work_j_s2=compute_energy_j * compute_time_s**2,  # κW³ = E t²
        static_power_w=_pick(draft, "static_power_w"),
        circuit_power_w=_pick(draft, "circuit_power_w"),
        amplifier_efficiency=_pick(draft, "amplifier_efficiency"),
        min_power_w=min_power_w,
        tail_j=np.where(_pick(draft, "payload_bits") > 0, _pick(draft, "tail_energy_j"), 0.0),
        receiving_j=_pick(draft, "receive_energy_j"),
        cpu_hz=cpu_hz,
        min_cpu_hz=min_cpu_hz,
    )


def _refuse_above(draft: Draft, name: str, values: FloatArray, above: BoolArray, right: str, limit: FloatArray) -> None:
    if above.any():
        k = int(above.argmax())
        raise ConfigError(f"{name} of device {draft.ids[k]!r}", float(values[k]), f"{right}, {limit[k]:g}")


def _refuse_derived(draft: Draft, values: FloatArray, name: str) -> None:
    field = DEVICE_FIELDS[name]
    bad = field.wrong(values)
    if bad.any():
        who = f"{name} of device {draft.ids[int(bad.argmax())]!r}, from its flops and cpu_hz,"
        value = float(values[bad][0])
        raise ConfigError(who, value, field.right_for(value))


def _energy(draft: Draft, top: Mapping[str, Any]) -> tuple[FloatArray, FloatArray, list[str]]:
    """Budgets (infinite where there is none) and what was spent, given as such or as what is left."""
    limited = _given(draft, "budget_j") | ("budget_j" in top)
    budget_j = np.where(limited, _pick(draft, "budget_j", limited), np.inf)
    by_battery = _either(draft, ("spent_j",), ("battery_j",))[0]
    battery_j = _pick(draft, "battery_j", by_battery)
    if (by_battery & ~limited).any():
        who = draft.ids[int((by_battery & ~limited).argmax())]
        raise ProblemError(f"Device {who!r} has battery_j but no budget_j, which says what it had at the start.")
    above = by_battery & (battery_j > budget_j)
    if above.any():
        k = int(above.argmax())
        right = f"at most its budget_j, {budget_j[k]:g}"
        raise ConfigError(f"battery_j of device {draft.ids[k]!r}", float(battery_j[k]), right)
    spent_j = np.where(by_battery, np.where(limited, budget_j, 0.0) - battery_j, _pick(draft, "spent_j"))
    note = "rounds is not given, so every budget_j is taken to be for this one round."
    alone = limited.any() and "rounds" not in top and draft.described == 1
    return budget_j, spent_j, [note] if alone else []


def _batteries(draft: Draft, top: Mapping[str, Any]) -> tuple[FloatArray | None, FloatArray | None]:
    """Charges, and joules harvested in each round; None where there are no batteries, or nothing fills them."""
    capacity_j = top.get("battery_capacity_j")
    given = [name for name in ("charge_j", "harvest_j") if name in top or _given(draft, name).any()]
    if capacity_j is None:
        if given:
            raise ProblemError(f"{given[0]} is given but no battery_capacity_j, which says what batteries hold.")
        return None, None
    charged = _given(draft, "charge_j") | ("charge_j" in top)
    charge_j = np.where(charged, _pick(draft, "charge_j", charged), float(capacity_j))
    above, limit = charge_j > capacity_j, np.full(len(charge_j), float(capacity_j))
    _refuse_above(draft, "charge_j", charge_j, above, "at most battery_capacity_j", limit)
    if "harvest_j" not in given:
        return charge_j, None
    column = draft.columns.get("harvest_j")
    spare = float(top.get("harvest_j", 0.0))
    harvest_j = spare if column is None else np.where(column.given, column.values, spare)
    return charge_j, np.array(np.broadcast_to(harvest_j, draft.shape))


# ── Writing ──────────────────────────────────────────────────────────────────


def write_problem(problem: CellProblem, path: str | Path) -> None:
    """Write a problem so that `read_problem` gives it back to the last bit: CSV by its name, else JSON.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cell.csv"
    >>> write_problem(read_problem("id,gain,payload_bits\\na,1e-9,5e4\\n"), path)
    >>> read_problem(path).gain
    array([[1.e-09]])
    """
    path = Path(path)
    top, rows = problem_table(problem)
    as_csv = path.suffix.lower() == ".csv"
    text = csv_text(top, rows, problem.round) if as_csv else json_text({**top, "devices": rows})
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise ProblemError(f"Cannot write {str(path)!r}: {error.strerror or error}.") from error


def problem_table(problem: CellProblem) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields at the top and one table per device, as JSON has them: everything spelled out."""
    top: dict[str, Any] = {
        "bandwidth_hz": problem.bandwidth_hz,
        "noise_dbm_per_hz": problem.noise_dbm_per_hz,
        "rounds": problem.rounds,
        "round": problem.round,
        "seed": problem.seed,
        "hard_budget": problem.hard_budget,
    }
    if problem.resource_blocks is not None:
        top["resource_blocks"] = problem.resource_blocks
    if problem.battery_capacity_j is not None:
        top["battery_capacity_j"] = problem.battery_capacity_j
    if problem.memory:
        top["memory"] = {name: np.asarray(values).tolist() for name, values in problem.memory.items()}
    trace = problem.described > 1
    columns: dict[str, list[Any]] = {
        "id": list(problem.ids),
        "gains" if trace else "gain": (problem.gain.T if trace else problem.gain[0]).tolist(),
        "available": (problem.available.T if trace else problem.available[0]).tolist(),
    }
    fixed = ("samples", "payload_bits", "deadline_s", "max_power_w", "compute_time_s", "compute_energy_j")
    for name in (*fixed, "budget_j", "spent_j", "queue_j"):
        columns[name] = getattr(problem, name).tolist()
    if problem.charge_j is not None:
        columns["charge_j"] = problem.charge_j.tolist()
    if problem.harvest_j is not None:
        columns["harvest_j"] = (problem.harvest_j.T if trace else problem.harvest_j[0]).tolist()
    if not problem.device.is_paper_model:
        for name, own in _DRAWN.items():
            columns[name] = np.broadcast_to(getattr(problem.device, own), problem.size).tolist()
    names = list(columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        if row["budget_j"] == np.inf:
            del row["budget_j"]
        if np.isnan(row.get("cpu_hz", 0.0)):
            del row["cpu_hz"], row["min_cpu_hz"]
    return top, rows


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
        writer.writerows([_cell(device.get(name), name) for name in names] for device in devices)
        return out.getvalue()
    changing = [name for name in LISTS if name in names]
    fixed = [name for name in names if name not in ("id", "gains", *changing)]
    writer.writerow(["round", "id", "gain", *changing, *fixed])
    for t in range(len(devices[0]["gains"])):
        for device in devices:
            same = [_cell(device.get(name)) if t == 0 else "" for name in fixed]
            now = [_cell(device[name][t]) for name in changing]
            writer.writerow([first + t, for_csv(device["id"]), device["gains"][t], *now, *same])
    return out.getvalue()


def _cell(value: Any, name: str = "") -> Any:
    if name == "id":
        return for_csv(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


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
    text = for_json(_laid_out(value, depth))
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
