"""The fields of a problem file: what each means, what it may hold, and what holds when it is left out.

This is the format's only description: reading validates against these models, `kfl schedule --fields` and the
reference print them. Defaults of the cell are the paper's, as in `kfl.wireless.CellConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NoReturn

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo

from kfl.core.errors import ConfigError, KflError
from kfl.core.suggest import nearest
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.uplink import MOST_POWER_W


class ProblemError(KflError):
    """A problem file cannot be read, or something in it is missing or given twice."""


# ── What a value may be ──────────────────────────────────────────────────────

_SMALL, _LARGE = 1e-45, 1e45  # wider than ±400 dB
SIZES = f"0, or of a size between {_SMALL:g} and {_LARGE:g}"
_MOST_ONCE_J = 1e6


def absurd(values: FloatArray | float) -> BoolArray:
    """Return which numbers are so small or large that no cell has them: products of a few would leave the floats."""
    size = np.abs(values)
    return np.asarray((size != 0) & ((size < _SMALL) | (size > _LARGE)))


def _sized(value: float) -> float:
    if value != 0 and not _SMALL <= abs(value) <= _LARGE:
        raise ValueError
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Sized = Annotated[float, AfterValidator(_sized)]
NonNegative = Annotated[Sized, Field(ge=0)]
Positive = Annotated[Sized, Field(gt=0)]
Decibels = Annotated[Sized, Field(ge=-400, le=400)]
Watts = Annotated[Sized, Field(ge=0, le=MOST_POWER_W)]
Once = Annotated[Sized, Field(ge=0, le=_MOST_ONCE_J)]
Share = Annotated[Sized, Field(gt=0, le=1)]
Gain = Annotated[Sized, Field(ge=0, le=1)]
GainDb = Annotated[Sized, Field(ge=-400, le=0)]
State = Annotated[float, Field(ge=0)]
"""Computed from round to round: any finite value that was written can be read back."""
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=10**12)]

_NUMBER, _DECIBELS = "a finite number, 0 or more", "a number of decibels between -400 and 400"
_WATTS = f"a number of watts from 0 to {MOST_POWER_W:,.0f}"
_JOULES = f"a number of joules from 0 to {_MOST_ONCE_J:,.0f}"
_WHOLE, _TRUTH = "an integer, 0 or more", "true or false"


def _about(meaning: str, right: str, default: Any = None, otherwise: str = "", **limits: Any) -> Any:
    """Describe a field: its meaning, the end of "… must be", its default, and that default in words."""
    words = otherwise or ("required" if default is None else f"{default:g}")
    return Field(default, description=meaning, json_schema_extra={"right": right, "otherwise": words}, **limits)


# ── The model ────────────────────────────────────────────────────────────────


class FileTop(BaseModel):
    """What may stand at the top of a file: fields of the cell, and fields of devices without their own."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    bandwidth_hz: Positive = _about(
        "the whole uplink band B, shared by the scheduled devices", "a positive number of hertz", 5e6, "5 MHz"
    )
    noise_dbm_per_hz: Decibels = _about("noise power density N₀", _DECIBELS, -174.0)
    rounds: Whole | None = _about(
        "the horizon T: budgets are for this many rounds",
        "an integer, 1 or more",
        None,
        "up to the last round of the file",
        ge=1,
    )
    round: Whole = _about("the first round of the file, counted from 0", _WHOLE, 0)
    hard_budget: bool = _about(
        "true: no device may spend more than its battery holds", _TRUTH, default=False, otherwise="false"
    )
    seed: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=2**63)] = _about(
        "names the draws of schedulers that draw", _WHOLE, 0
    )
    resource_blocks: Whole | None = _about(
        "shares of the band come in multiples of 1/this",
        "an integer of blocks from 1 to 1e9",
        None,
        "shares are real numbers",
        ge=1,
        le=10**9,
    )
    battery_capacity_j: Positive | None = _about(
        "what the battery of a device holds; a device without the charge sits out",
        "a positive number of joules",
        None,
        "no battery, only a budget",
    )
    memory: dict[str, list[float]] = _about(
        "what the scheduler remembers, as --next writes it", "an object of lists of numbers", {}, "none"
    )

    gain: Gain | None = _about("channel power gain h, linear", "a number from 0 to 1: a channel does not amplify")
    gain_db: GainDb | None = _about(
        "the same in decibels", "a number of decibels between -400 and 0: a channel does not amplify", None, "gain"
    )
    payload_bits: NonNegative | None = _about("bits to upload in a round", _NUMBER)
    available: bool = _about("false: the device cannot take part in the round", _TRUTH, default=True, otherwise="true")
    samples: NonNegative = _about("training samples D: what scheduling the device is worth", _NUMBER, 1.0)
    deadline_s: Positive = _about(
        "computation and upload must end within this time", "a positive number of seconds", 1.0
    )
    max_power_w: NonNegative = _about("largest transmit power", _NUMBER, 1.0)
    max_power_dbm: Decibels | None = _about("the same in dBm", _DECIBELS, None, "max_power_w")
    compute_time_s: NonNegative = _about("time to compute before the upload", _NUMBER, 0.0)
    compute_energy_j: NonNegative = _about("energy of that computation", _NUMBER, 0.0)
    flops: NonNegative | None = _about(
        "or, in place of the two: operations of a round", _NUMBER, None, "compute_time_s"
    )
    cpu_hz: Positive | None = _about(
        "with flops: clock frequency f; the fastest one, where there is min_cpu_hz",
        "a positive number of hertz",
        None,
        "required with flops",
    )
    flops_per_cycle: Positive = _about("with flops: operations per clock cycle n", "a positive number", 4.0)
    power_coefficient: NonNegative = _about("with flops: κ, a cycle costs κ f² joule", _NUMBER, 1e-27)
    min_cpu_hz: Positive | None = _about(
        "slowest clock of a device that may slow down to save energy",
        "a positive number of hertz",
        None,
        "cpu_hz: the clock is fixed",
    )
    static_power_w: Watts = _about("drawn while the processor computes, besides κ f³", _WATTS, 0.0)
    amplifier_efficiency: Share = _about(
        "radiated power over what the amplifier draws for it, η",
        "above 0 and at most 1: radiated over drawn power",
        1.0,
    )
    circuit_power_w: Watts = _about("drawn by the radio while it sends, besides the amplifier", _WATTS, 0.0)
    min_power_w: NonNegative = _about("least radiated power while sending", _NUMBER, 0.0)
    min_power_dbm: Decibels | None = _about("the same in dBm", _DECIBELS, None, "min_power_w")
    tail_energy_j: Once = _about(
        "to open the connection and keep it after the last packet, once per round in which the device sends",
        _JOULES,
        0.0,
    )
    receive_energy_j: Once = _about("to hear the broadcast of a round", _JOULES, 0.0)
    budget_j: Positive | None = _about(
        "energy budget for the whole horizon",
        "a positive number of joules for all rounds together; leave it out for a device without a budget",
        None,
        "no budget",
    )
    spent_j: State = _about("energy spent in earlier rounds", _NUMBER, 0.0)
    battery_j: NonNegative | None = _about(
        "or, in place of spent_j: what is left of budget_j", _NUMBER, None, "budget_j − spent_j"
    )
    queue_j: State = _about("virtual queue q before this round", _NUMBER, 0.0)
    charge_j: State | None = _about("charge of its battery before this round", _NUMBER, None, "battery_capacity_j")
    harvest_j: NonNegative | None = _about(
        "joules harvested in a round, which fill the battery for the next one",
        _NUMBER,
        None,
        "0; none anywhere: nothing fills the batteries",
    )


# ── The fields in words ──────────────────────────────────────────────────────


@dataclass(frozen=True)
class FieldWords:
    """What is said of one field."""

    name: str
    meaning: str
    right: str
    """What a good value is: the end of the sentence "… must be"."""
    otherwise: str
    """What holds when the field is left out."""

    @classmethod
    def of(cls, name: str, field: FieldInfo) -> FieldWords:
        """Return the words with which a model declares a field."""
        extra: Any = field.json_schema_extra
        return cls(name, field.description or "", extra["right"], extra["otherwise"])


_OF = {name: FieldWords.of(name, field) for name, field in FileTop.model_fields.items()}
_NAMES = list(_OF)
_FIRST = _NAMES.index("gain")

CELL_FIELDS = {name: _OF[name] for name in _NAMES[:_FIRST]}
"""Fields that stand once in a file: at the top of JSON, or in lines `# name = value` above a CSV."""

DEVICE_FIELDS = {
    "id": FieldWords("id", "the device's name; no two are the same", "a text or an integer", "required"),
    **{name: _OF[name] for name in _NAMES[_FIRST:]},
}
"""Fields of a device. All but `id` may also stand at the top: then they hold for devices without their own."""

EACH_ROUND = ("gain", "gain_db", "available", "harvest_j")
"""Fields that may change from round to round."""

TRACES = {"gains": "gain", "gains_db": "gain_db"}
"""JSON's lists with one value per round, and the field each is a trace of. CSV has a column `round` instead."""

LISTS = ("available", "harvest_j")
"""Fields that may be such a list under their own names."""

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


# ── Validating ───────────────────────────────────────────────────────────────


def validate_top(top: Mapping[str, Any]) -> FileTop:
    """Return the checked fields at the top of a file; those that are None count as left out.

    Raises:
        ConfigError: A value is wrong.
        ProblemError: A field is unknown.
    """
    refuse_unknown(top, FileTop.model_fields, " at the top")
    try:
        return FileTop.model_validate({name: value for name, value in top.items() if value is not None})
    except ValidationError as problem:
        name, *inside = problem.errors()[0]["loc"]
        if name == "memory" and inside:
            raise ConfigError(f"memory.{inside[0]}", top["memory"][inside[0]], "a list of finite numbers") from None
        _refuse(str(name), str(name), top[str(name)])


def validate_column(name: str, values: list[Any], who: Callable[[int], str], *, strict: bool) -> FloatArray:
    """Return one field of all devices as numbers, NaN where a value is None.

    Args:
        name: The field.
        values: What the file gives. In a CSV, which is not `strict`, numbers and words are still text.
        who: What an error calls the value at a position.
        strict: Whether text is refused where a number is meant.

    Raises:
        ConfigError: A value is wrong.
    """
    try:
        return np.array(_column_type(name).validate_python(values, strict=strict), float)
    except ValidationError as problem:
        position = problem.errors()[0]["loc"][0]
        assert isinstance(position, int)
        _refuse(name, f"{name} of {who(position)}", values[position])


@cache
def _column_type(name: str) -> TypeAdapter[list[float | None]]:
    """Return the list of a field's values, which stops at the first wrong one."""
    field = FileTop.model_fields[name]
    value: Any = Annotated[field.annotation, field.description, *field.metadata]
    return TypeAdapter(Annotated[list[value | None], Field(fail_fast=True)], config=ConfigDict(allow_inf_nan=False))


def _refuse(name: str, where: str, value: Any) -> NoReturn:
    """Raise for a value that a field cannot hold."""
    words = CELL_FIELDS.get(name) or DEVICE_FIELDS[name]
    number = None if words.right == _TRUTH or name == "memory" else _as_float(value)
    if number is None:
        raise ConfigError(where, short(value), words.right)
    any_size = name in ("spent_j", "queue_j", "charge_j") or not np.isfinite(number)
    shown = value if where == name and np.isfinite(number) else number
    raise ConfigError(where, shown, SIZES if absurd(number) and not any_size else words.right)


def _as_float(value: Any) -> float | None:
    """A number of a file, or the text of one, as a float; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except OverflowError:  # an integer of more than 308 digits
        return float("inf")
    except (TypeError, ValueError):
        return None


def refuse_unknown(names: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise for the first name that is not known, with the nearest one that is."""
    for name in names:
        if name not in known:
            near = nearest(name, known, _MEANT)
            hint = f"did you mean {near}?" if near else "kfl schedule --fields lists them all."
            raise ProblemError(f"{name!r}{where} is not a field of a problem; {hint}")


def refuse_both(who: str, first: str, second: str) -> NoReturn:
    """Raise for a quantity that is given in two ways."""
    raise ProblemError(f"{who} gives both {first} and {second}; give one of them.")


def short(value: Any) -> Any:
    """Return a value as an error may quote it: long lists and objects in a word."""
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
