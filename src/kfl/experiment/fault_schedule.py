"""Faults at set times, one text each: `fault:rounds:devices`.

    late:12:3,7        the uploads of devices 3 and 7 are late in round 12
    outage:20-29:all   nothing arrives from anybody in rounds 20 to 29
    leave:50:4         device 4 leaves before round 50 and does not come back
    join:10:5,6        devices 5 and 6 are not there before round 10
    poisoned:0:2       device 2 uploads harm from round 0 on

Rounds count from 0, as in the history. A fault hits only a device that takes part in the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfl.core.errors import ConfigError

FORM = "fault:rounds:devices, such as late:12:3,7 or outage:20-29:all"


@dataclass(frozen=True)
class Entry:
    """One line of a schedule, taken apart."""

    kind: str
    first: int
    last: int
    devices: tuple[int, ...]
    """Empty for all devices."""

    def which(self, count: int) -> list[int]:
        """The devices it is about, in a fleet of this size."""
        return [device for device in self.devices if device < count] if self.devices else list(range(count))


def parse_entry(where: str, text: str, kinds: Sequence[str]) -> Entry:
    """Take an entry apart, or say what is wrong with it.

    >>> parse_entry("schedule", "late:12:3,7", ["late"])
    Entry(kind='late', first=12, last=12, devices=(3, 7))
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3:
        raise ConfigError(where, text, FORM)
    kind, rounds, devices = parts
    if kind not in kinds:
        raise ConfigError(where, text, f"{FORM}; the faults are {', '.join(kinds)}")
    first, dash, last = rounds.partition("-")
    start = _number(where, text, first)
    entry = Entry(kind, start, _number(where, text, last) if dash else start, _devices(where, text, devices))
    if entry.last < entry.first:
        raise ConfigError(where, text, f"{FORM}; the first round comes before the last")
    if dash and kind in ("join", "leave", "poisoned"):
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
