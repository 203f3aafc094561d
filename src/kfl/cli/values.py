"""How words on the command line become values: `none`, `1e3`, `8,12`, and what was probably meant by a wrong word."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from kfl.core.suggest import did_you_mean

VALUES = ConstructorRegistry()
"""What tyro reads the values of all commands with."""

Reader = Callable[[str], Any]
YES_NO = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}


def read_integer(word: str) -> int:
    """Return an integer, which may be written as 1e3.

    >>> read_integer("1e3"), read_integer("1_000")
    (1000, 1000)
    """
    try:
        return int(word)
    except ValueError:
        number = read_number(word)
        if not number.is_integer():
            raise ValueError(f"{word!r} is not an integer") from None
        return int(number)


def read_number(word: str) -> float:
    """Return a number; a comma for the point is answered with the point."""
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a number{did_you_mean_point(word)}") from None


def did_you_mean_point(word: str) -> str:
    """What to add to the answer to 0,1."""
    parts = word.split(",")
    return f" (did you mean {'.'.join(parts)}?)" if len(parts) == 2 and all(part.isdigit() for part in parts) else ""


def read_switch(word: str) -> bool:
    """Return what a word for yes or no says."""
    if word.casefold() not in YES_NO:
        raise ValueError(f"{word!r} is neither yes nor no")
    return YES_NO[word.casefold()]


@VALUES.primitive_rule
def scalar(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Integers, numbers, words and paths, each with or without `none`."""
    kind, optional = optional_kind(info.type)
    if get_origin(kind) is Literal:
        reader, metavar = _one_of(get_args(kind)), "|".join(map(str, get_args(kind)))
    elif kind is bool and optional:
        reader, metavar = read_switch, "yes|no"
    elif kind in (int, float):
        reader, metavar = (read_integer, "N") if kind is int else (read_number, "X")
    elif kind in (str, Path) and optional:
        reader, metavar = kind, "TEXT" if kind is str else "FILE"
    else:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{metavar}|none" if optional else metavar,
        instance_from_str=lambda words: None if optional and words[0].casefold() == "none" else reader(words[0]),
        is_instance=lambda value: (optional and value is None) or isinstance(value, (str, int, float, Path)),
        str_from_instance=lambda value: [shown(value)],
    )


@VALUES.primitive_rule
def several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Several integers or numbers, with blanks or commas between; each option once."""
    kind, optional = optional_kind(info.type)
    if get_origin(kind) is not tuple or get_args(kind) not in ((int, ...), (float, ...)):
        return None
    reader: Reader = read_integer if get_args(kind)[0] is int else read_number
    metavar = "N …" if reader is read_integer else "X …"

    def read(words: list[str]) -> tuple[Any, ...] | None:
        if optional and [word.casefold() for word in words] == ["none"]:
            return None
        return tuple(reader(part) for word in words for part in word.split(",") if part)

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"{metavar}|none" if optional else metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, tuple) or (optional and value is None),
        str_from_instance=lambda value: [shown(value)] if value is None else [shown(one) for one in value],
    )


def shown(value: object) -> str:
    """A value as one would type it.

    >>> shown(5e6), shown(0.03125), shown(None), shown(True), shown("auto")
    ('5e6', '0.03125', 'none', 'yes', 'auto')
    """
    if value is None or isinstance(value, bool):
        return "none" if value is None else "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.10g}"
        short = f"{value:.3e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
        digits, _, power = short.partition("e")
        short = f"{digits.rstrip('0').rstrip('.')}e{power}"
        return short if abs(value) >= 1e6 and float(short) == value else text.replace("e-0", "e-")
    return str(value)


def optional_kind(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it had it."""
    if get_origin(hint) in (Union, types.UnionType):
        rest = [kind for kind in get_args(hint) if kind is not type(None)]
        if len(rest) == 1 and len(get_args(hint)) == 2:
            return rest[0], True
    return hint, False


def _one_of(choices: tuple[Any, ...]) -> Reader:
    known = [str(choice) for choice in choices]

    def read(word: str) -> str:
        if word not in known:
            raise ValueError(f"{word!r} is not one of {', '.join(known)}{did_you_mean(word, known)}")
        return word

    return read
