"""What server and devices say to each other: small tables and arrays, with a version on every message.

    server → device   kind = "profile"   what do you have?
    device → server   kind = "profile"   samples, model, processor (`kfl.deploy.profile`)
    server → device   kind = "round"     the algorithm, the knowledge, and advice on share and power
    device → server   kind = "round"     the upload, the energy spent, right test predictions

A side that hears a version it does not speak answers, or notes, one sentence and goes on. Whatever comes from the other
side is a stranger's: it is checked before it is used, and its texts are scrubbed before anybody reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfl.core.errors import KflError
from kfl.core.refusals import describe
from kfl.core.text import scrub

PROTOCOL_VERSION = 1
RECORD = "kfl"
"""Name of the table in a message."""
ARRAYS = "arrays"
"""Name of the arrays in a message."""

Values = dict[str, Any]


class RefusedError(KflError):
    """What the other side sent cannot be used: a code of `kfl.core.refusals`, and its facts.

    >>> print(RefusedError("missing_array", array="means"))
    it has no array means
    """

    def __init__(self, code: str, /, **facts: Any) -> None:
        self.code, self.facts = code, facts
        super().__init__(describe(code, facts))


@dataclass(frozen=True)
class RawArray:
    """An array as it came over the wire: what the sender says it is, and the bytes of a npy file."""

    dtype: str
    shape: tuple[int, ...]
    kind: str
    """How it is stored; only numpy.ndarray is read."""
    data: bytes


def check_version(values: Mapping[str, Any]) -> None:
    """Refuse a message in another version of the protocol.

    >>> check_version({"protocol": 1})
    >>> check_version({"protocol": 7})
    Traceback (most recent call last):
    ...
    kfl.deploy.protocol.RefusedError: it speaks version 7 of the fleet protocol, and this side speaks version 1
    """
    version = values.get("protocol")
    if type(version) is not int or version != PROTOCOL_VERSION:
        found = version if type(version) is int else "an unknown one"
        raise RefusedError("version", found=found, expected=PROTOCOL_VERSION)


def number(values: Mapping[str, Any], name: str) -> float:
    """A field that must be a real number, finite or not; whole numbers and booleans of the wire are told apart."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError("not_number", field=name)
    return float(value)


def whole(values: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A field that must be a whole number between two bounds.

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
