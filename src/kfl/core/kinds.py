"""What a value in a JSON file must be: kinds of values by name, and the first field of a table that is of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kfl.core.names import shortened

Kind = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and whether it is."""
MOST = 2**53
"""Larger integers are not exact as a float."""


def is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    return isinstance(value, float) or is_count(value) or (type(value) is int and -MOST <= value < 0)


def is_count(value: Any) -> bool:
    """Whether a value is an integer from 0 that a float holds exactly."""
    return type(value) is int and 0 <= value <= MOST


def list_of(inner: Kind) -> Kind:
    """A list of values of one kind."""
    return f"a list, each {inner[0]}", lambda value: isinstance(value, list) and all(inner[1](item) for item in value)


def or_null(inner: Kind) -> Kind:
    """A value of a kind, or null."""
    return f"{inner[0]} or null", lambda value: value is None or inner[1](value)


COUNT: Kind = "an integer from 0", is_count
NUMBER: Kind = "a number", is_number
TEXT: Kind = "a text", lambda value: isinstance(value, str)
SWITCH: Kind = "true or false", lambda value: isinstance(value, bool)
TABLE: Kind = "an object", lambda value: isinstance(value, dict)
ANY_NUMBER = or_null(NUMBER)
"""What JSON has no number for, such as infinity, is null."""
PER_CHANNEL: Kind = (
    "a number, null, or a list of numbers",
    lambda value: value is None or is_number(value) or list_of(NUMBER)[1](value),
)

Fields = Mapping[str, Kind]


def first_wrong(found: Mapping[str, Any], fields: Fields, needed: tuple[str, ...] = ()) -> str:
    """Say what is wrong with the first field that is not what it must be, or is needed and missing; "" for none.

    >>> first_wrong({"rounds": "3"}, {"rounds": COUNT})
    "rounds is '3', not an integer from 0"
    >>> first_wrong({}, {}, ("rounds",)), first_wrong({"rounds": 3}, {"rounds": COUNT})
    ('rounds is missing', '')
    """
    for name in needed:
        if name not in found:
            return f"{name} is missing"
    for name, (words, is_one) in fields.items():
        if name in found and not is_one(found[name]):
            return f"{name} is {shortened(repr(found[name]))}, not {words}"
    return ""
