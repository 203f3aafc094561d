"""The fields of a problem file: what each means, what it may hold, and what holds when it is left out.

This is the format's only description in code: reading checks against it, `kfl schedule --fields` prints it.
Defaults of the cell are the paper's, as in `kfl.wireless.CellConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kfl.core.errors import ConfigError, KflError
from kfl.core.suggest import nearest
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.uplink import MOST_POWER_W


class ProblemError(KflError):
    """A problem file cannot be read, or something in it is missing or given twice."""


@dataclass(frozen=True)
class Field:
    """One field of the format."""

    name: str
    meaning: str
    right: str
    """What a good value is: the end of the sentence "… must be"."""
    least: float = 0.0
    most: float = np.inf
    positive: bool = False
    """The least value itself is not allowed."""
    default: float | None = None
    shown_default: str = ""
    """The default in words, where a number alone does not say it."""
    any_size: bool = False
    """Computed from round to round: any finite value that was written can be read back."""

    def wrong(self, values: FloatArray) -> BoolArray:
        """Which of these values the field cannot hold; NaN, infinities and absurd sizes never are right."""
        low = values > self.least if self.positive else values >= self.least
        outside = ~(np.isfinite(values) & low & (values <= self.most))
        return np.asarray(outside if self.any_size else outside | absurd(values))

    def right_for(self, value: float) -> str:
        """What would be right in place of this wrong value."""
        return _SIZES if bool(absurd(np.array(value))) and not self.any_size else self.right

    @property
    def otherwise(self) -> str:
        """What holds when the field is left out, in words."""
        return self.shown_default or ("required" if self.default is None else f"{self.default:g}")


_SMALL, _LARGE = 1e-45, 1e45  # wider than ±400 dB
_SIZES = f"0, or of a size between {_SMALL:g} and {_LARGE:g}"


def absurd(values: FloatArray) -> BoolArray:
    """Finite numbers so small or large that no cell has them: products of a few would leave the range of floats."""
    size = np.abs(values)
    return np.asarray(np.isfinite(values) & (values != 0) & ((size < _SMALL) | (size > _LARGE)))


_AT_LEAST_ZERO = "a finite number, 0 or more"
_DECIBELS = "a number of decibels between -400 and 400"
_WATTS = f"a number of watts from 0 to {MOST_POWER_W:,.0f}"
_MOST_ONCE_J = 1e6
_ONCE = f"a number of joules from 0 to {_MOST_ONCE_J:,.0f}"

CELL_FIELDS = {
    field.name: field
    for field in (
        Field(
            "bandwidth_hz",
            "the whole uplink band B, shared by the scheduled devices",
            "a positive number of hertz",
            positive=True,
            default=5e6,
            shown_default="5 MHz",
        ),
        Field(
            "noise_dbm_per_hz",
            "noise power density N₀",
            _DECIBELS,
            -400.0,
            400.0,
            default=-174.0,
        ),
        Field(
            "rounds",
            "the horizon T: budgets are for this many rounds",
            "a whole number, 1 or more",
            1.0,
            1e12,
            shown_default="up to the last round of the file",
        ),
        Field(
            "round", "the first round of the file, counted from 0", "a whole number, 0 or more", 0.0, 1e12, default=0.0
        ),
        Field(
            "hard_budget", "true: nobody may spend more than its battery holds", "true or false", shown_default="false"
        ),
        Field(
            "seed", "names the draws of schedulers that draw", "a whole number, 0 or more", 0.0, 2.0**63, default=0.0
        ),
        Field(
            "resource_blocks",
            "shares of the band come in multiples of 1/this",
            "a whole number of blocks from 1 to 1e9",
            1.0,
            1e9,
            shown_default="shares are real numbers",
        ),
        Field(
            "battery_capacity_j",
            "what the battery of a device holds; a device without the charge sits out",
            "a positive number of joules",
            positive=True,
            shown_default="no battery, only a budget",
        ),
        Field(
            "memory",
            "what the scheduler remembers, as --next writes it",
            "an object of lists of numbers",
            shown_default="none",
        ),
    )
}
"""Fields that stand once in a file: at the top of JSON, or in lines `# name = value` above a CSV."""

DEVICE_FIELDS = {
    field.name: field
    for field in (
        Field("id", "the device's name; no two are the same", "a text or a whole number"),
        Field(
            "gain",
            "channel power gain h, linear",
            "a number from 0 to 1: a channel does not amplify",
            most=1.0,
        ),
        Field(
            "gain_db",
            "the same in decibels",
            "a number of decibels between -400 and 0: a channel does not amplify",
            -400.0,
            0.0,
            shown_default="gain",
        ),
        Field("payload_bits", "bits to upload in a round", _AT_LEAST_ZERO),
        Field(
            "available",
            "false: the device cannot take part in the round",
            "true or false",
            default=1.0,
            shown_default="true",
        ),
        Field("samples", "training samples D: what scheduling the device is worth", _AT_LEAST_ZERO, default=1.0),
        Field(
            "deadline_s",
            "computation and upload must end within this time",
            "a positive number of seconds",
            positive=True,
            default=1.0,
        ),
        Field("max_power_w", "largest transmit power", _AT_LEAST_ZERO, default=1.0),
        Field("max_power_dbm", "the same in dBm", _DECIBELS, -400.0, 400.0, shown_default="max_power_w"),
        Field("compute_time_s", "time to compute before the upload", _AT_LEAST_ZERO, default=0.0),
        Field("compute_energy_j", "energy of that computation", _AT_LEAST_ZERO, default=0.0),
        Field(
            "flops", "or, in place of the two: operations of a round", _AT_LEAST_ZERO, shown_default="compute_time_s"
        ),
        Field(
            "cpu_hz",
            "with flops: clock frequency f; the fastest one, where there is min_cpu_hz",
            "a positive number of hertz",
            positive=True,
            shown_default="required with flops",
        ),
        Field(
            "flops_per_cycle",
            "with flops: operations per clock cycle n",
            "a positive number",
            positive=True,
            default=4.0,
        ),
        Field(
            "power_coefficient",
            "with flops: κ, a cycle costs κ f² joule",
            _AT_LEAST_ZERO,
            default=1e-27,
        ),
        Field(
            "min_cpu_hz",
            "slowest clock of a device that may slow down to save energy",
            "a positive number of hertz",
            positive=True,
            shown_default="cpu_hz: the clock is fixed",
        ),
        Field(
            "static_power_w",
            "drawn while the processor computes, besides κ f³",
            _WATTS,
            most=MOST_POWER_W,
            default=0.0,
        ),
        Field(
            "amplifier_efficiency",
            "radiated power over what the amplifier draws for it, η",
            "above 0 and at most 1: radiated over drawn power",
            most=1.0,
            positive=True,
            default=1.0,
        ),
        Field(
            "circuit_power_w",
            "drawn by the radio while it sends, besides the amplifier",
            _WATTS,
            most=MOST_POWER_W,
            default=0.0,
        ),
        Field("min_power_w", "least radiated power while sending", _AT_LEAST_ZERO, default=0.0),
        Field("min_power_dbm", "the same in dBm", _DECIBELS, -400.0, 400.0, shown_default="min_power_w"),
        Field(
            "tail_energy_j",
            "to open the connection and keep it after the last packet, once per round in which the device sends",
            _ONCE,
            most=_MOST_ONCE_J,
            default=0.0,
        ),
        Field("receive_energy_j", "to hear the broadcast of a round", _ONCE, most=_MOST_ONCE_J, default=0.0),
        Field(
            "budget_j",
            "energy budget for the whole horizon",
            "a positive number of joules for all rounds together; leave it out for a device without a budget",
            positive=True,
            shown_default="no budget",
        ),
        Field("spent_j", "energy spent in earlier rounds", _AT_LEAST_ZERO, default=0.0, any_size=True),
        Field(
            "battery_j",
            "or, in place of spent_j: what is left of budget_j",
            _AT_LEAST_ZERO,
            shown_default="budget_j − spent_j",
        ),
        Field("queue_j", "virtual queue q before this round", _AT_LEAST_ZERO, default=0.0, any_size=True),
        Field(
            "charge_j",
            "charge of its battery before this round",
            _AT_LEAST_ZERO,
            shown_default="battery_capacity_j",
            any_size=True,
        ),
        Field(
            "harvest_j",
            "joules harvested in a round, which fill the battery for the next one",
            _AT_LEAST_ZERO,
            shown_default="0; none anywhere: nothing fills the batteries",
        ),
    )
}
"""Fields of a device. All but `id` may also stand at the top: then they hold for devices without their own."""

TRACES = {"gains": "gain", "gains_db": "gain_db"}
"""JSON's lists with one value per round, and the field each is a trace of. CSV has a column `round` instead."""

LISTS = ("available", "harvest_j")
"""Fields that may be such a list under their own names."""

EACH_ROUND = ("gain", "gain_db", "available", "harvest_j")
"""Fields that may change from round to round."""

WHOLE = ("rounds", "round", "seed", "resource_blocks")

TOP_FIELDS = (*CELL_FIELDS, *(name for name in DEVICE_FIELDS if name != "id"))
"""Everything that may stand at the top of a file."""

_MEANT = {
    "horizon": "rounds",
    "h": "gain",
    "channel": "gain",
    "power_w": "max_power_w",
    "power_dbm": "max_power_dbm",
    "name": "id",
    "device": "id",
    "device_id": "id",
    "client": "id",
    "user": "id",
    "bits": "payload_bits",
    "bandwidth": "bandwidth_hz",
    "band_hz": "bandwidth_hz",
    "budget": "budget_j",
    "battery": "battery_j",
    "queue": "queue_j",
    "deadline": "deadline_s",
}
"""What people call the fields of a problem."""


def refuse_unknown(names: Iterable[str], known: Sequence[str], where: str = "") -> None:
    """Raise for the first name that is not known, with the nearest one that is."""
    for name in names:
        if name not in known:
            near = nearest(name, known, _MEANT)
            hint = f"did you mean {near}?" if near else "kfl schedule --fields lists them all."
            raise ProblemError(f"{name!r}{where} is not a field of a problem; {hint}")


def refuse_both(who: str, first: str, second: str) -> NoReturn:
    """Raise for a quantity that is given in two ways."""
    raise ProblemError(f"{who} gives both {first} and {second}; give one of them.")


def refuse_wrong(
    field: Field, values: FloatArray, given: BoolArray, ids: Sequence[str], first_round: int | None = None
) -> None:
    """Raise for the first value that the field cannot hold, naming the device (and the round, in a trace)."""
    bad = given & field.wrong(values)
    if bad.any():
        where = tuple(int(index) for index in np.argwhere(bad)[0])
        when = f" in round {where[0] + first_round}" if first_round is not None and len(where) > 1 else ""
        value = float(values[where])
        raise ConfigError(f"{field.name} of device {ids[where[-1]]!r}{when}", value, field.right_for(value))


def check_top(top: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that stand once, without those left empty; the first wrong one raises."""
    refuse_unknown(top, TOP_FIELDS, " at the top")
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
    number = as_float(value)
    if bool(field.wrong(np.array(number))) or (name in WHOLE and value != int(value)):
        raise ConfigError(name, value if np.isfinite(number) else number, field.right_for(number))


def as_float(value: float) -> float:
    """A number of a file as a float; one that is too large is infinite, and refused as such."""
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
        if not plain or not all(np.isfinite(as_float(value)) for value in values):
            raise ConfigError(f"memory.{name}", values, "a list of finite numbers")
