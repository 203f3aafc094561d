"""The messages between server and devices: a small table and arrays in one frame of bytes, with a version on each.

    server → device   kind = "profile"   asks for the device's profile
    device → server   kind = "profile"   samples, model, processor (`kfl_fleet.messages.profile`)
    server → device   kind = "round"     the algorithm, the knowledge, and advice on share and power
    device → server   kind = "round"     the upload, the energy spent, right test predictions

Every object of a Flower message is an HTTP request of its own, so a message is as few of them as can be: one record
with the version and the frame (`frames`). Large arrays are a second record, which a message to many devices
has in common and the server stores once.

A side that receives a version it does not know refuses the message and goes on. Whatever comes from the other side is
untrusted: it is checked before it is used, and its texts are scrubbed before anything reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfl.core.errors import KflError
from kfl.core.refusals import describe
from kfl.core.text import scrub

PROTOCOL_VERSION = 2
RECORD, MORE = "kfl", "arrays"
"""Names of a message's records."""
VERSION, FRAME, ARRAYS = "protocol", "frame", "arrays"
"""Names of the entries in them."""

Values = dict[str, Any]


class RefusedError(KflError):
    """What the other side sent cannot be used: a code of `kfl.core.refusals`, and its facts.

    >>> print(RefusedError("missing_array", array="means"))
    it has no array means
    """

    def __init__(self, code: str, /, **facts: Any) -> None:
        self.code, self.facts = code, facts
        super().__init__(describe(code, facts))

    def to_dict(self) -> Values:
        """As plain values for a run folder; `kfl.core.refusals.stored_refusal` reads them."""
        return {"code": self.code, **self.facts}


def check_version(values: Mapping[str, Any]) -> None:
    """Refuse a message in another version of the protocol.

    >>> check_version({"protocol": 2})
    >>> check_version({"protocol": 7})
    Traceback (most recent call last):
    ...
    kfl_fleet.messages.protocol.RefusedError: it speaks version 7 of the fleet protocol, and this side speaks version 2
    """
    version = values.get(VERSION)
    if type(version) is not int or version != PROTOCOL_VERSION:
        found = version if type(version) is int else "an unknown one"
        raise RefusedError("version", found=found, expected=PROTOCOL_VERSION)


def refusal(problem: RefusedError) -> Values:
    """The answer to a message that cannot be read; servers of every version find their way through it."""
    return {VERSION: PROTOCOL_VERSION, "kind": "refused", "status": "refused", "reason": str(problem)}


def number(values: Mapping[str, Any], name: str) -> float:
    """A field that must be a number, finite or not; booleans are not numbers."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError("not_number", field=name)
    return float(value)


def whole(values: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A field that must be an integer between two bounds.

    >>> whole({"round": 3}, "round", 0, 9)
    3
    """
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError("not_whole_number", field=name)
    if not least <= value <= most:
        raise RefusedError("out_of_range", field=name, found=value, least=least, most=most)
    return value


def word(values: Mapping[str, Any], name: str) -> str:
    """A field that must be a text, scrubbed."""
    value = values.get(name)
    if not isinstance(value, str):
        raise RefusedError("not_text", field=name)
    return scrub(value)


Parts = tuple[bytes, ...]
"""A message as it travels: its frame, and where its arrays are large, a second frame of arrays alone."""


def from_entries(entries: Mapping[str, Any]) -> Parts:
    """The frames among the entries of a message's records; its version is ours."""
    check_version(entries)
    frames = tuple(entries[name] for name in (FRAME, ARRAYS) if name in entries)
    if FRAME not in entries or not all(isinstance(frame, bytes) for frame in frames):
        raise RefusedError("no_frame")
    return frames
