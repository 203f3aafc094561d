"""Reading problems: the documented format, as JSON and as CSV. `kfl.scheduling.problem_writer` writes it.

>>> problem = read_problem('{"bandwidth_hz": 1e6, "payload_bits": 1e6, "devices": [{"id": "a", "gain_db": -90}]}')
>>> problem.ids, problem.gain, problem.bandwidth_hz
(('a',), array([[1.e-09]]), 1000000.0)
>>> read_problem('{"devices": [{"id": "a", "gain": -1, "payload_bits": 1}]}')
Traceback (most recent call last):
...
kfl.core.errors.ConfigError: gain of device 'a' is -1.0, but must be a number from 0 to 1: a channel does not amplify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.files import read_regular
from kfl.scheduling._problem_text import Table, table_from_csv, table_from_json
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.problem_schema import (
    DEVICE_FIELDS,
    EACH_ROUND,
    SIZES,
    FileTop,
    ProblemError,
    absurd,
    refuse_both,
    validate_column,
    validate_top,
)
from kfl.scheduling.uplink import LARGEST_POWER_W, DeviceEnergyModel

MOST_BYTES = 1 << 31
"""Of a problem file: some million devices."""


def read_problem(source: str | Path, **changes: object) -> CellProblem:
    """Read a problem from a file, or from text in JSON or CSV.

    `changes` are fields that go on top of what the file says at its top, for example `bandwidth_hz=1e6`.
    A file is JSON or CSV by its name, anything else by its first character.

    Args:
        source: A path, or the text itself.
        **changes: Fields of the problem.

    Raises:
        ProblemError: The file is no problem; the sentence names the line and the field.

    >>> read_problem("id,gain,payload_bits\\na,1e-9,5e4\\nb,2e-9,5e4\\n", rounds=10).rounds
    10
    """
    text, kind = _text(source)
    table = table_from_json(text) if kind == "json" else table_from_csv(text)
    top = {**table.top, **{name: value for name, value in changes.items() if value is not None}}
    return _assemble(replace(table, top=top))


def _text(source: str | Path) -> tuple[str, str]:
    """The text and its kind."""
    if isinstance(source, str) and (not source.strip() or source.lstrip()[0] in "{[#" or "\n" in source):
        return _not_empty(source, "The problem"), _kind(source)
    path = Path(source)
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
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


# ── Table to problem ─────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Fields:
    """The checked values of a file as arrays: (devices,), or (rounds, devices) for what may change."""

    top: FileTop
    ids: tuple[str, ...]
    described: int
    values: Mapping[str, FloatArray]
    where: Mapping[str, BoolArray]
    """Where devices themselves give a field."""

    @classmethod
    def of(cls, table: Table, top: FileTop) -> _Fields:
        """Check the devices of a table and return their columns."""
        ids, size = tuple(row["id"] for row in table.rows), table.described
        values, where = {}, {}
        for name in sorted(set().union(*table.rows) - {"id"}):
            if name in EACH_ROUND:
                nothing = [None] * size
                raw = [value for row in table.rows for value in row.get(name, nothing)]
                column = validate_column(name, raw, partial(_in_round, ids, size, top.round), strict=table.strict)
                column = column.reshape(-1, size).T
            else:
                raw = [row.get(name) for row in table.rows]
                column = validate_column(name, raw, partial(_in_round, ids, 1, 0), strict=table.strict)
            values[name], where[name] = np.nan_to_num(column), ~np.isnan(column)
        return cls(top, ids, size, values, where)

    @property
    def shape(self) -> tuple[int, int]:
        """Rounds and devices."""
        return self.described, len(self.ids)

    def given(self, name: str) -> BoolArray:
        """Return where devices themselves give a field."""
        return self.where.get(name, np.zeros(len(self.ids), bool))

    def at_top(self, name: str) -> bool:
        """Whether the top gives a field for all devices."""
        return name in self.top.model_fields_set

    def anywhere(self, name: str) -> BoolArray:
        """Return for which devices a field is given."""
        return self.given(name) | self.at_top(name)

    def pick(self, name: str, wanted: BoolArray | None = None) -> FloatArray:
        """Return a field of every device: its own, else the top's, else the default.

        Raises:
            ProblemError: There is none of these where the field is `wanted`.
        """
        shape = self.shape if name in EACH_ROUND else self.shape[1:]
        given = np.broadcast_to(self.given(name), shape)
        values = np.broadcast_to(self.values.get(name, np.zeros(shape)), shape)
        spare = getattr(self.top, name)
        if spare is not None:
            return np.where(given, values, float(spare))
        missing = ~given if wanted is None else wanted & ~given
        if missing.any():
            self.refuse_missing(name, tuple(int(index) for index in np.argwhere(missing)[0]))
        return np.where(given, values, 0.0)

    def refuse_missing(self, name: str, where: tuple[int, ...]) -> NoReturn:
        """Raise for a field that a device needs and nothing gives."""
        when = f" in round {self.top.round + where[0]}" if len(where) > 1 and self.described > 1 else ""
        ways = {
            "gain": "give gain (linear) or gain_db; 0 is a device that is not heard",
            "cpu_hz": "give it together with flops, or compute_time_s and compute_energy_j in place of both",
            "flops": "give it together with cpu_hz, or compute_time_s and compute_energy_j in place of both",
        }
        how = ways.get(name, f"{DEVICE_FIELDS[name].meaning}; give it for the device, or at the top for all")
        raise ProblemError(f"{name} of device {self.ids[where[-1]]!r}{when} is missing: {how}.")

    def refuse(self, name: str, values: FloatArray, bad: BoolArray, right: str, limit: FloatArray | float) -> None:
        """Raise for the first bad value, where there is one: it must be `right`, which ends in a limit."""
        if bad.any():
            k = int(bad.argmax())
            words = f"{right}, {float(np.broadcast_to(limit, bad.shape)[k]):g}"
            raise ConfigError(f"{name} of device {self.ids[k]!r}", float(values[k]), words)

    def refuse_alone(self, bad: BoolArray, sentence: str) -> None:
        """Raise for the first device that gives one field without the other that it needs."""
        if bad.any():
            raise ProblemError(f"Device {self.ids[int(bad.argmax())]!r} has {sentence}")

    def either(self, first: Sequence[str], second: Sequence[str]) -> BoolArray:
        """Return where the second way to say something is used; a device that says it in both ways is refused.

        What a device says itself comes before what the top says for all.
        """
        own = [np.logical_or.reduce([self.given(name) for name in names]) for names in (first, second)]
        both = np.atleast_2d(own[0] & own[1]).any(0)
        if both.any():
            device = int(both.argmax())
            names = [next(name for name in way if self.given(name)[..., device].any()) for way in (first, second)]
            refuse_both(f"Device {self.ids[device]!r}", *names)
        tops = [[name for name in names if self.at_top(name)] for names in (first, second)]
        if tops[0] and tops[1]:
            refuse_both("The top of the file", tops[0][0], tops[1][0])
        return np.asarray(own[1] | (~own[0] & bool(tops[1])))


def _in_round(ids: Sequence[str], rounds: int, first: int, position: int) -> str:
    """Return what an error calls the value at a position: its device and, in a trace, its round."""
    device, t = divmod(position, rounds)
    return f"device {ids[device]!r}" + (f" in round {first + t}" if rounds > 1 else "")


def _assemble(table: Table) -> CellProblem:
    """Return the problem of a table: every value checked, defaults filled in, costs derived."""
    top = validate_top(table.top)
    fields = _Fields.of(table, top)
    _refuse_twice(fields.ids)
    rounds = _horizon(top, table.described)
    available = fields.pick("available") > 0
    compute_s, compute_j = _computation(fields)
    max_power_w = _power(fields, "max_power")
    charge_j, harvest_j = _batteries(fields)
    budget_j, spent_j, notes = _energy(fields)
    return CellProblem(
        ids=fields.ids,
        bandwidth_hz=top.bandwidth_hz,
        noise_dbm_per_hz=top.noise_dbm_per_hz,
        rounds=rounds,
        round=top.round,
        seed=top.seed,
        hard_budget=top.hard_budget,
        gain=_gain(fields, available),
        available=available,
        samples=fields.pick("samples"),
        payload_bits=fields.pick("payload_bits"),
        deadline_s=fields.pick("deadline_s"),
        max_power_w=max_power_w,
        compute_energy_j=compute_j,
        budget_j=budget_j,
        spent_j=spent_j,
        queue_j=fields.pick("queue_j"),
        memory={name: np.array(values, float) for name, values in top.memory.items()},
        notes=(*table.notes, *notes, *_doubts(fields.ids, max_power_w)),
        device=_device(fields, compute_s, compute_j, max_power_w),
        resource_blocks=top.resource_blocks,
        battery_capacity_j=top.battery_capacity_j,
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


def _horizon(top: FileTop, described: int) -> int:
    first, last = top.round, top.round + described
    rounds = last if top.rounds is None else top.rounds
    if first >= rounds:
        played = f"round is {first} and rounds is {rounds}: every round of this horizon has been played"
        raise ProblemError(f"{played}; raise rounds to go on.")
    if last > rounds:
        raise ConfigError("rounds", rounds, f"{last} or more, because the file describes rounds {first} to {last - 1}")
    return rounds


def _refuse_twice(ids: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for number, name in enumerate(ids, 1):
        if seen.setdefault(name, number) != number:
            raise ProblemError(f"Two devices have the id {name!r}: number {seen[name]} and number {number}.")


def _gain(fields: _Fields, available: BoolArray) -> FloatArray:
    """Linear gains of every round. A device that is not available needs none."""
    decibels = fields.either(("gain",), ("gain_db",))
    linear = fields.pick("gain", available & ~decibels)
    return np.where(decibels, 10.0 ** (fields.pick("gain_db", available & decibels) / 10.0), linear)


def _power(fields: _Fields, name: str) -> FloatArray:
    """A radiated power in watts, given as such or in dBm."""
    watts, dbm = f"{name}_w", f"{name}_dbm"
    decibels = fields.either((watts,), (dbm,))
    from_dbm = 10.0 ** ((fields.pick(dbm, decibels) - 30.0) / 10.0)
    return np.where(decibels, from_dbm, fields.pick(watts))


def _computation(fields: _Fields) -> tuple[FloatArray, FloatArray]:
    """Time and energy of the computation: as given, or by equations (10) and (11); 0 for devices that only send."""
    times = ("compute_time_s", "compute_energy_j")
    derived = fields.either(times, ("flops",))
    given = [fields.anywhere(name) for name in times]
    alone = ~derived & ~given[0] & ~given[1] & fields.anywhere("cpu_hz")
    if alone.any():
        fields.refuse_missing("flops", (int(alone.argmax()),))
    half = ~derived & (given[0] != given[1])
    have, lack = times if given[0][half.argmax()] else times[::-1]
    fields.refuse_alone(half, f"{have} but no {lack}; give both (0 is allowed).")
    # Who says its times has no operations, whatever the top says for the others.
    flops = np.where(derived, fields.pick("flops", derived), 0.0)
    clock = np.where(derived, fields.pick("cpu_hz", derived), 1.0)
    cycle, kappa = fields.pick("flops_per_cycle"), fields.pick("power_coefficient")
    # Equations (10) and (11), with κ D C f² / n as cycles times joules per cycle.
    with np.errstate(over="ignore"):
        found = flops / (clock * cycle), kappa * flops / cycle * clock**2
    for name, values in zip(times, found, strict=True):
        bad = absurd(values)
        if bad.any():
            who = f"{name} of device {fields.ids[int(bad.argmax())]!r}, from its flops and cpu_hz,"
            raise ConfigError(who, float(values[bad][0]), SIZES)
    time_s, energy_j = (np.where(derived, new, fields.pick(name)) for name, new in zip(times, found, strict=True))
    return time_s, energy_j


def _device(
    fields: _Fields, compute_time_s: FloatArray, compute_energy_j: FloatArray, max_power_w: FloatArray
) -> DeviceEnergyModel:
    """What devices draw: time and energy at the fastest clock say everything about a processor but how slow it gets."""
    clocked = fields.anywhere("cpu_hz")
    cpu_hz = np.where(clocked, fields.pick("cpu_hz", clocked), np.nan)
    fields.refuse_alone(
        fields.given("min_cpu_hz") & ~clocked, "min_cpu_hz but no cpu_hz, the fastest clock; give both."
    )
    slows = clocked & fields.anywhere("min_cpu_hz")
    min_cpu_hz = np.where(slows, fields.pick("min_cpu_hz", slows), cpu_hz)
    fields.refuse("min_cpu_hz", min_cpu_hz, min_cpu_hz > cpu_hz, "at most its cpu_hz", cpu_hz)
    min_power_w = _power(fields, "min_power")
    above = (min_power_w > 0) & (min_power_w >= max_power_w)
    fields.refuse("min_power_w", min_power_w, above, "below its max_power_w", max_power_w)
    slower = np.where(min_cpu_hz < cpu_hz, cpu_hz / min_cpu_hz, 1.0)
    return DeviceEnergyModel(
        fastest_s=compute_time_s,
        slowest_s=compute_time_s * slower,
        work_j_s2=compute_energy_j * compute_time_s**2,  # κW³ = E t²
        static_power_w=fields.pick("static_power_w"),
        circuit_power_w=fields.pick("circuit_power_w"),
        amplifier_efficiency=fields.pick("amplifier_efficiency"),
        min_power_w=min_power_w,
        tail_j=np.where(fields.pick("payload_bits") > 0, fields.pick("tail_energy_j"), 0.0),
        receiving_j=fields.pick("receive_energy_j"),
        cpu_hz=cpu_hz,
        min_cpu_hz=min_cpu_hz,
    )


def _energy(fields: _Fields) -> tuple[FloatArray, FloatArray, list[str]]:
    """Budgets (infinite where there is none) and what was spent, given as such or as what is left."""
    limited = fields.anywhere("budget_j")
    budget_j = np.where(limited, fields.pick("budget_j", limited), np.inf)
    by_battery = fields.either(("spent_j",), ("battery_j",))
    battery_j = fields.pick("battery_j", by_battery)
    fields.refuse_alone(by_battery & ~limited, "battery_j but no budget_j, which says what it had at the start.")
    fields.refuse("battery_j", battery_j, by_battery & (battery_j > budget_j), "at most its budget_j", budget_j)
    spent_j = np.where(by_battery, np.where(limited, budget_j, 0.0) - battery_j, fields.pick("spent_j"))
    note = "rounds is not given, so every budget_j is taken to be for this one round."
    alone = limited.any() and not fields.at_top("rounds") and fields.described == 1
    return budget_j, spent_j, [note] if alone else []


def _batteries(fields: _Fields) -> tuple[FloatArray | None, FloatArray | None]:
    """Charges, and joules harvested in each round; None where there are no batteries, or nothing fills them."""
    capacity_j = fields.top.battery_capacity_j
    given = [name for name in ("charge_j", "harvest_j") if fields.anywhere(name).any()]
    if capacity_j is None:
        if given:
            raise ProblemError(f"{given[0]} is given but no battery_capacity_j, which says what batteries hold.")
        return None, None
    charged = fields.anywhere("charge_j")
    charge_j = np.where(charged, fields.pick("charge_j", charged), capacity_j)
    fields.refuse("charge_j", charge_j, charge_j > capacity_j, "at most battery_capacity_j", capacity_j)
    return charge_j, fields.pick("harvest_j", np.zeros(fields.shape, bool)) if "harvest_j" in given else None
