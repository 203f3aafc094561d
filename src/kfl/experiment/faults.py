"""What goes wrong with devices: each fault with a probability or a schedule, drawn by name.

A fault strikes a chosen device at one point of its round, which decides what it costs:

    leave, join     the device is absent (no longer, or not yet, there) and cannot be chosen
    drop_before     it drops out before training             no energy is spent, nothing changes
    battery_empty   its battery dies while it works          part of the round's energy is spent, nothing changes
    drop_after      it drops out after training              computing is paid, its model has learned, no upload
    late            its upload misses the deadline           all energy is paid, its model has learned, upload lost
    outage          its upload is lost on the channel        the same
    corrupt         its upload arrives corrupted             the same; the server must notice
    poisoned        it uploads harmful values on purpose     the same; nothing about it looks wrong

A draw belongs to a fault, a round and a device, so one fault never shifts the draws of another, or of anything else.

A schedule sets faults at fixed times, one text each, `fault:rounds:devices`:

    late:12:3,7        the uploads of devices 3 and 7 are late in round 12
    outage:20-29:all   nothing arrives from any device in rounds 20 to 29
    leave:50:4         device 4 leaves before round 50 and does not come back
    join:10:5,6        devices 5 and 6 are absent before round 10
    poisoned:0:2       device 2 uploads harmful values from round 0 on

Rounds count from 0, as in the history. A fault strikes only a device that takes part in the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Fields
from kfl.core.errors import ConfigError
from kfl.core.randomness import stream

if TYPE_CHECKING:
    from kfl.algorithms import Upload

IN_ROUND = ("drop_before", "battery_empty", "drop_after", "late", "outage", "corrupt")
"""Faults of a chosen device, in the order in which they can strike: the first that does decides."""
LASTING = ("join", "leave", "poisoned")
"""Faults of a device from some round on."""
KINDS = (*IN_ROUND, *LASTING)
UPLOAD_LOST = ("drop_after", "late", "outage")
NOT_TRAINED = ("drop_before", "battery_empty")
RAN_DRY = "ran_dry"
"""Not drawn but what happens where batteries are modeled: a chosen device's charge did not last for its round."""
Poison = Literal["flip", "scale", "noise"]
FORM = "fault:rounds:devices, such as late:12:3,7 or outage:20-29:all"


@dataclass(frozen=True)
class Faults(Fields):
    """What can go wrong, with probabilities and by schedule. All zero and empty: nothing does.

    >>> faults = Faults(schedule=("late:2:0,1", "outage:4-6:all"))
    >>> faults.strike(0, 2, [1, 3], devices=5), faults.strike(0, 5, [1, 3], devices=5)
    ({1: 'late'}, {1: 'outage', 3: 'outage'})
    """

    drop_before: float = 0.0
    """A chosen device drops out before it trains."""
    battery_empty: float = 0.0
    """A chosen device's battery dies while it works: part of the energy is spent for nothing."""
    drop_after: float = 0.0
    """A chosen device drops out after it trained: its model has learned, nothing is uploaded."""
    late: float = 0.0
    """An upload misses the deadline and does not count, though all its energy is spent."""
    outage: float = 0.0
    """An upload is lost on the channel, though all its energy is spent."""
    corrupt: float = 0.0
    """An upload arrives corrupted: NaN, infinite, of another shape, or cut short."""
    join: float = 0.0
    """Share of the devices that are absent at the start and join in a random round."""
    leave: float = 0.0
    """Share of the devices that leave for good in a random round."""
    poisoned: float = 0.0
    """Share of the devices (rounded to whole ones) that upload harmful values in every round."""
    poison: Poison = "flip"
    """What poisoned devices do to the values they upload: flip the sign, scale by 100, or replace by noise."""
    schedule: tuple[str, ...] = ()
    """Faults at fixed times, such as late:12:3,7 (fault:round:devices) or outage:20-29:all; rounds count from 0."""

    def validate(self, devices: int | None = None) -> None:
        """Raise ConfigError for a value that is not a probability, or an entry of the schedule that cannot be read."""
        for name in KINDS:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"faults.{name}", value, "between 0 and 1")
        if self.poison not in get_args(Poison):
            raise ConfigError(
                "faults.poison", self.poison, f"one of {', '.join(get_args(Poison))}", choices=get_args(Poison)
            )
        for index, text in enumerate(self.schedule):
            entry = parse_entry(f"faults.schedule[{index}]", text)
            if devices is not None and entry.devices and max(entry.devices) >= devices:
                raise ConfigError(f"faults.schedule[{index}]", text, f"for devices 0 to {devices - 1}")

    @property
    def any(self) -> bool:
        """Whether anything can go wrong at all."""
        return bool(self.schedule) or any(getattr(self, name) > 0 for name in KINDS)

    def present(self, seed: int, round_index: int, devices: int, rounds: int) -> NDArray[np.bool_]:
        """Which devices are present in a round: those that have joined and not left."""
        present = np.ones(devices, dtype=bool)
        if self.join > 0:
            joins = stream(seed, "fault join").random((devices, 2))
            present &= ~((joins[:, 0] < self.join) & (round_index < joins[:, 1] * rounds))
        if self.leave > 0:
            leaves = stream(seed, "fault leave").random((devices, 2))
            present &= ~((leaves[:, 0] < self.leave) & (round_index >= leaves[:, 1] * rounds))
        for entry in self._entries("join"):
            if round_index < entry.first:
                present[entry.indices(devices)] = False
        for entry in self._entries("leave"):
            if round_index >= entry.first:
                present[entry.indices(devices)] = False
        return present

    def strike(self, seed: int, round_index: int, chosen: list[int], devices: int) -> dict[int, str]:
        """The fault that strikes each of the chosen devices in a round: the first in the order of `IN_ROUND`."""
        struck: dict[int, str] = {}
        for kind in IN_ROUND:
            hit = np.zeros(devices, dtype=bool)
            chance = getattr(self, kind)
            if chance > 0:
                hit |= stream(seed, f"fault {kind}", round_index).random(devices) < chance
            for entry in self._entries(kind):
                if entry.first <= round_index <= entry.last:
                    hit[entry.indices(devices)] = True
            for device in chosen:
                if hit[device]:
                    struck.setdefault(device, kind)
        harmful = self.harmful(seed, round_index, devices)
        for device in chosen:
            if device in harmful:
                struck.setdefault(device, "poisoned")
        return struck

    def harmful(self, seed: int, round_index: int, devices: int) -> set[int]:
        """The devices that are poisoned in a round."""
        found: set[int] = set()
        if self.poisoned > 0:
            found |= set(stream(seed, "fault poisoned").permutation(devices)[: round(self.poisoned * devices)].tolist())
        for entry in self._entries("poisoned"):
            if round_index >= entry.first:
                found |= set(entry.indices(devices))
        return found

    def _entries(self, kind: str) -> list[Entry]:
        mine = [text for text in self.schedule if text.partition(":")[0].strip() == kind]
        return [parse_entry("faults.schedule", text) for text in mine]


@dataclass(frozen=True)
class Entry:
    """One entry of a schedule."""

    kind: str
    first: int
    last: int
    devices: tuple[int, ...]
    """Empty for all devices."""

    def indices(self, count: int) -> list[int]:
        """The devices it is about, in a fleet of `count`."""
        return [device for device in self.devices if device < count] if self.devices else list(range(count))


def parse_entry(where: str, text: str) -> Entry:
    """Read an entry of a schedule; a ConfigError says what is wrong with it.

    >>> parse_entry("schedule", "late:12:3,7")
    Entry(kind='late', first=12, last=12, devices=(3, 7))
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3:
        raise ConfigError(where, text, FORM)
    kind, rounds, devices = parts
    if kind not in KINDS:
        raise ConfigError(where, text, f"{FORM}; the faults are {', '.join(KINDS)}")
    first, dash, last = rounds.partition("-")
    start = _number(where, text, first)
    entry = Entry(kind, start, _number(where, text, last) if dash else start, _devices(where, text, devices))
    if entry.last < entry.first:
        raise ConfigError(where, text, f"{FORM}; the first round comes before the last")
    if dash and kind in LASTING:
        raise ConfigError(where, text, f"{FORM}; {kind} takes one round, from which on it holds")
    return entry


def _devices(where: str, text: str, devices: str) -> tuple[int, ...]:
    if devices == "all":
        return ()
    return tuple(_number(where, text, device) for device in devices.split(","))


def _number(where: str, text: str, word: str) -> int:
    word = word.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise ConfigError(where, text, FORM)
    return int(word)


def spent_fraction(seed: int, round_index: int, device: int) -> float:
    """Fraction of its round's work a device had done when its battery died."""
    return float(stream(seed, "fault battery fraction", round_index, device).random())


def corrupted(upload: Upload, seed: int, round_index: int) -> Upload:
    """The upload with one array corrupted, in one of the ways that transmissions and bugs do it."""
    import torch

    draw = stream(seed, "fault rubbish", round_index, upload.device)
    arrays = dict(upload.arrays)
    if not arrays:
        return upload
    name = sorted(arrays)[int(draw.integers(len(arrays)))]
    way = ("nan", "infinite", "cut", "shape", "missing")[int(draw.integers(5))]
    value = arrays[name].clone()
    if way == "missing":
        del arrays[name]
    elif way == "shape":
        arrays[name] = value.flatten()[None, None]
    elif way == "cut":
        arrays[name] = value.flatten()[: value.numel() // 2]
    else:
        spoiled = value.double().flatten()
        spoiled[int(draw.integers(len(spoiled)))] = torch.nan if way == "nan" else torch.inf
        arrays[name] = spoiled.reshape(value.shape)
    return replace(upload, arrays=arrays)


def poisoned(upload: Upload, way: Poison, seed: int, round_index: int) -> Upload:
    """The upload of a malicious device: its values are negated, scaled up or replaced by noise.

    Counts stay honest, so that nothing but the values tells such an upload from another.
    """
    import torch

    draw = stream(seed, "fault poison", round_index, upload.device)
    arrays = dict(upload.arrays)
    for name, value in upload.arrays.items():
        if not value.is_floating_point() or name in ("counts", "samples"):
            continue
        if way == "noise":
            noise = torch.from_numpy(draw.normal(size=tuple(value.shape))).to(value)
            arrays[name] = noise * 10 * value.abs().mean()
        else:
            arrays[name] = value * (-1.0 if way == "flip" else 100.0)
    return replace(upload, arrays=arrays)


def tally(struck: Mapping[int, str], spent: Mapping[int, float]) -> tuple[dict[str, object], ...]:
    """Faults as a round's log holds them, with the part of its joules a device had spent when its battery died.

    >>> tally({3: "late", 1: "battery_empty"}, {1: 0.25})
    ({'device': 1, 'fault': 'battery_empty', 'spent_fraction': 0.25}, {'device': 3, 'fault': 'late'})
    """
    return tuple(
        {"device": device, "fault": kind} | ({"spent_fraction": spent[device]} if device in spent else {})
        for device, kind in sorted(struck.items())
    )
