"""What goes wrong with devices, as options of the world: each with a probability, drawn by name.

A fault hits a chosen device at one point of its round, and what it costs follows from where that is:

    leave, join     the device is not there (yet, or any more) and cannot be chosen
    drop_before     it goes silent before it trains          nothing is spent, nothing changes
    battery_empty   its battery dies while it works          part of the round's energy is spent, nothing changes
    drop_after      it goes silent after it trained          computing is paid, its model has learned, no upload
    late            its upload misses the deadline           everything is paid, its model has learned, upload lost
    outage          its upload is lost on the channel        the same
    corrupt         its upload arrives as rubbish            the same; the server must notice
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream

if TYPE_CHECKING:
    from kfl.algorithms import Upload

IN_ROUND = ("drop_before", "battery_empty", "drop_after", "late", "outage", "corrupt")
"""Faults of a chosen device, in the order in which they can strike: the first that does decides."""
UPLOAD_LOST = ("drop_after", "late", "outage")
NOT_TRAINED = ("drop_before", "battery_empty")


@dataclass(frozen=True)
class Faults:
    """Probabilities of what can go wrong. All zero: nothing does."""

    drop_before: float = 0.0
    """A chosen device goes silent before it trains."""
    battery_empty: float = 0.0
    """A chosen device's battery dies while it works: part of the energy is spent, nothing comes of it."""
    drop_after: float = 0.0
    """A chosen device goes silent after it trained: its model has learned, nothing is uploaded."""
    late: float = 0.0
    """An upload misses the deadline and does not count, though all its energy is spent."""
    outage: float = 0.0
    """An upload is lost on the channel, though all its energy is spent."""
    corrupt: float = 0.0
    """An upload arrives as rubbish: not a number, infinite, of another shape, or cut short."""
    join: float = 0.0
    """Share of the devices that are not there from the start but join in a random round."""
    leave: float = 0.0
    """Share of the devices that leave for good in a random round."""

    def validate(self) -> None:
        """Raise ConfigError for a probability that is none."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ConfigError(f"faults.{field.name}", value, "between 0 and 1")

    @property
    def any(self) -> bool:
        """Whether anything can go wrong at all."""
        return any(getattr(self, field.name) > 0 for field in fields(self))

    def present(self, seed: int, round_index: int, devices: int, rounds: int) -> NDArray[np.bool_]:
        """Which devices are there in a round: those that have joined and not left."""
        there = np.ones(devices, dtype=bool)
        if self.join > 0:
            joins = stream(seed, "fault join").random((devices, 2))
            there &= ~((joins[:, 0] < self.join) & (round_index < joins[:, 1] * rounds))
        if self.leave > 0:
            leaves = stream(seed, "fault leave").random((devices, 2))
            there &= ~((leaves[:, 0] < self.leave) & (round_index >= leaves[:, 1] * rounds))
        return there

    def strike(self, seed: int, round_index: int, chosen: list[int], devices: int) -> dict[int, str]:
        """What hits which of the chosen devices in a round."""
        struck: dict[int, str] = {}
        for kind in IN_ROUND:
            chance = getattr(self, kind)
            if chance > 0:
                draw = stream(seed, f"fault {kind}", round_index).random(devices)
                for device in chosen:
                    if draw[device] < chance:
                        struck.setdefault(device, kind)
        return struck


def spent_fraction(seed: int, round_index: int, device: int) -> float:
    """How far a device had come when its battery died."""
    return float(stream(seed, "fault battery fraction", round_index, device).random())


def corrupted(upload: Upload, seed: int, round_index: int) -> Upload:
    """The upload as rubbish: one of its arrays spoiled in one of the ways transmissions and bugs do it."""
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


def tally(struck: Mapping[int, str]) -> tuple[dict[str, object], ...]:
    """Faults as the log wants them."""
    return tuple({"device": device, "fault": kind} for device, kind in sorted(struck.items()))
