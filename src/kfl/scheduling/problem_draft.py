"""From what a file says to a `Problem`: every value checked, defaults filled in, costs derived.

Readers of JSON and of CSV both end in a `Draft`, so that the two formats cannot differ in meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kfl.core.errors import ConfigError
from kfl.scheduling.cell_problem import Problem
from kfl.scheduling.cost import BoolArray, FloatArray
from kfl.scheduling.problem_fields import (
    CELL_FIELDS,
    DEVICE_FIELDS,
    EACH_ROUND,
    WHOLE,
    ProblemError,
    refuse_unknown,
    refuse_wrong,
)
from kfl.wireless import compute_energy, compute_time

_BESIDE_DEVICES = tuple(name for name in DEVICE_FIELDS if name != "id")


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


def assemble(draft: Draft) -> Problem:
    """Check a draft and make it a problem."""
    top = check_top(draft.top)
    draft = Draft(top, draft.ids, draft.columns, draft.described, draft.notes)
    first = int(_once(top, "round"))
    _refuse_twice(draft.ids)
    for name, column in draft.columns.items():
        refuse_wrong(
            DEVICE_FIELDS[name], column.values, column.given, draft.ids, first if draft.described > 1 else None
        )
    rounds = _horizon(top, first, draft.described)
    available = _pick(draft, "available") > 0
    compute_s, compute_j = _computation(draft)
    budget_j, spent_j, notes = _energy(draft, top)
    return Problem(
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
        max_power_w=_power(draft),
        compute_time_s=compute_s,
        compute_energy_j=compute_j,
        budget_j=budget_j,
        spent_j=spent_j,
        queue_j=_pick(draft, "queue_j"),
        memory={name: np.array(values, float) for name, values in top.get("memory", {}).items()},
        notes=(*draft.notes, *notes),
    )


# ── Fields that stand once ───────────────────────────────────────────────────


def check_top(top: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that stand once, without those left empty; the first wrong one raises."""
    refuse_unknown(top, (*CELL_FIELDS, *_BESIDE_DEVICES), " at the top")
    given = {name: value for name, value in top.items() if value is not None}
    for name, value in given.items():
        if name == "memory":
            _check_memory(value)
        else:
            _check_number(name, value)
    return given


def _check_number(name: str, value: Any) -> None:
    field = CELL_FIELDS.get(name) or DEVICE_FIELDS[name]
    wants_bool = name in ("hard_budget", "available")
    if isinstance(value, bool) != wants_bool or not isinstance(value, int | float):
        raise ConfigError(name, value, field.right)
    if wants_bool:
        return
    number = _as_float(value)
    if bool(field.wrong(np.array(number))) or (name in WHOLE and value != int(value)):
        raise ConfigError(name, value if np.isfinite(number) else number, field.right_for(number))


def _once(top: Mapping[str, Any], name: str) -> float:
    """A checked number of the cell, or its default."""
    value = top.get(name, CELL_FIELDS[name].default)
    assert value is not None  # asked only of fields with a default
    return float(value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return float("inf")


def _check_memory(memory: Any) -> None:
    right = CELL_FIELDS["memory"].right
    if not isinstance(memory, Mapping):
        raise ConfigError("memory", memory, right)
    for name, values in memory.items():
        plain = isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if not plain or not all(np.isfinite(_as_float(value)) for value in values):
            raise ConfigError(f"memory.{name}", values, "a list of finite numbers")


def _horizon(top: Mapping[str, Any], first: int, described: int) -> int:
    last = first + described
    rounds = int(top.get("rounds", last))
    if first >= rounds:
        played = f"round is {first} and rounds is {rounds}: every round of this horizon has been played"
        raise ProblemError(f"{played}; raise rounds to go on.")
    if last > rounds:
        raise ConfigError("rounds", rounds, f"{last} or more, because the file describes rounds {first} to {last - 1}")
    return rounds


# ── Fields of devices ────────────────────────────────────────────────────────


def _refuse_twice(ids: Sequence[str]) -> None:
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for place, name in enumerate(ids):
        if name in seen:
            raise ProblemError(f"Two devices have the id {name!r}: number {seen[name] + 1} and number {place + 1}.")
        seen[name] = place


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
        _refuse_missing(draft, name, tuple(int(place) for place in np.argwhere(missing)[0]))
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
    zeros = np.zeros(draft.shape[1], bool)
    own = [
        np.broadcast_to(_or([_given(draft, name) for name in names], zeros), draft.shape) for names in (first, second)
    ]
    both = own[0] & own[1]
    if both.any():
        device = int(np.argwhere(both)[0][-1])
        names = [next(name for name in way if _given(draft, name)[..., device].any()) for way in (first, second)]
        _refuse_both(f"Device {draft.ids[device]!r}", names)
    tops = [[name for name in names if name in draft.top] for names in (first, second)]
    if tops[0] and tops[1]:
        _refuse_both("The top of the file", [tops[0][0], tops[1][0]])
    return own[1] | (~own[0] & bool(tops[1]))


def _or(masks: Sequence[BoolArray], start: BoolArray) -> BoolArray:
    for mask in masks:
        start = start | mask
    return start


def _refuse_both(who: str, names: Sequence[str]) -> NoReturn:
    raise ProblemError(f"{who} gives both {names[0]} and {names[1]}; give one of them.")


def _gain(draft: Draft, available: BoolArray) -> FloatArray:
    """Linear gains of every round. A device that is not available needs none."""
    decibels = _either(draft, ("gain",), ("gain_db",))
    linear = _pick(draft, "gain", available & ~decibels)
    return np.where(decibels, 10.0 ** (_pick(draft, "gain_db", available & decibels) / 10.0), linear)


def _power(draft: Draft) -> FloatArray:
    decibels = _either(draft, ("max_power_w",), ("max_power_dbm",))[0]
    from_dbm = 10.0 ** ((_pick(draft, "max_power_dbm", decibels) - 30.0) / 10.0)
    return np.where(decibels, from_dbm, _pick(draft, "max_power_w"))


def _computation(draft: Draft) -> tuple[FloatArray, FloatArray]:
    """Time and energy of the computation: as given, or by equations (10) and (11); 0 for devices that only send."""
    times = ("compute_time_s", "compute_energy_j")
    derived = _either(draft, times, ("flops", "cpu_hz"))[0]
    given = [_given(draft, name) | (name in draft.top) for name in times]
    half = ~derived & (given[0] != given[1])
    if half.any():
        device = int(half.argmax())
        have, lack = times if given[0][device] else times[::-1]
        raise ProblemError(f"Device {draft.ids[device]!r} has {have} but no {lack}; give both (0 is allowed).")
    flops, clock = _pick(draft, "flops", derived), _pick(draft, "cpu_hz", derived)
    clock = np.where(derived, clock, 1.0)
    cycle, kappa = _pick(draft, "flops_per_cycle"), _pick(draft, "power_coefficient")
    with np.errstate(over="ignore"):
        time_s = compute_time(flops, clock * cycle, 1.0)
        energy_j = compute_energy(kappa * flops / cycle, clock, 1.0, 1.0)
    _refuse_derived(draft, time_s, "compute_time_s")
    _refuse_derived(draft, energy_j, "compute_energy_j")
    return np.where(derived, time_s, _pick(draft, times[0])), np.where(derived, energy_j, _pick(draft, times[1]))


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
