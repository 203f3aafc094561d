"""Configurations as frozen dataclasses, and as TOML that a person can read and write.

`to_table` and `from_table` are inverse to each other. Reading is strict: an unknown field, a value of the wrong
type or out of the choices is a ConfigError that names it. `None` is written as the word "none". A class with the
methods `to_plain()` and `from_plain(value, where)` says itself how it is written and read: models that a word selects
(`Named`) are their name, or a table of their name and their fields. The constructor of a class of `Fields` answers an
unknown field with the one that was meant.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.lazy import find_class, word_of
from kfl.core.parse import parse_toml, read_toml
from kfl.core.suggest import MEANT, did_you_mean

T = TypeVar("T")
Table = dict[str, Any]


def to_table(config: Any) -> Table:
    """The fields of a dataclass as plain values; nested dataclasses become nested tables.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: float = 0.5
    ...     size: int | None = None
    >>> to_table(Point())
    {'x': 0.5, 'size': 'none'}
    """
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if dataclasses.is_dataclass(value):
        return to_table(value)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def from_table(cls: type[T], table: Mapping[str, Any], where: str = "", base: T | None = None, **ready: Any) -> T:
    """Build a dataclass from plain values; fields that are not given keep the value of `base` or the default.

    `ready` are values that need no conversion.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: float = 0.5
    ...     y: float = 0.0
    >>> from_table(Point, {"x": 2})
    Point(x=2.0, y=0.0)
    >>> from_table(Point, {"z": 1})
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: z is 1, but must be a known field: x, y.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # T is always a dataclass
    values: Table = {} if base is None else {name: getattr(base, name) for name in names}
    values |= ready
    for key, value in table.items():
        if key not in names:
            hint = did_you_mean(key, names, MEANT) or f": {', '.join(names)}"
            raise ConfigError(where + key, value, f"a known field{hint}")
        values[key] = convert(hints[key], value, where + key)
    return cls(**values)


@cache
def _hints(cls: Hashable) -> dict[str, Any]:
    """The types of a class's fields; looking them up is slow, and experiments are rebuilt often."""
    return typing.get_type_hints(cls)


def convert_fields(thing: Any, given: Mapping[str, Any]) -> None:
    """Put plain values in the place of fields of a frozen dataclass, as the types that the fields ask for.

    Args:
        thing: The dataclass, in its `__post_init__`.
        given: The values by the names of the fields.

    Raises:
        ConfigError: A value is not of the type of its field.
    """
    hints = _hints(type(thing))  # type: ignore[arg-type]  # classes are hashable
    for name, value in given.items():
        object.__setattr__(thing, name, convert(hints[name], value, name))


def convert(hint: Any, value: Any, where: str) -> Any:
    """A plain value, or one of NumPy's, as the type a field asks for: 256 for (256,), "none" for None.

    Args:
        hint: The type of the field.
        value: What was given.
        where: The name of the field, for the sentence about a value that cannot be that.

    Returns:
        The value of the field.

    Raises:
        ConfigError: The value is not of this type.

    >>> convert(tuple[int, ...] | None, np.int64(256), "widths"), convert(int | None, "none", "batch_size")
    ((256,), None)
    """
    options = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if isinstance(value, np.generic):
        value = value.item()
    if origin in (typing.Union, types.UnionType):
        if type(None) in options and (value is None or (isinstance(value, str) and value == "none")):
            return None
        inner = [option for option in options if option is not type(None)]
        return convert(inner[0], value, where)
    if origin is Literal:
        if value not in options:
            raise ConfigError(where, value, f"one of {', '.join(map(str, options))}", choices=options)
        return value
    if origin is tuple:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = (value,)
        if not isinstance(value, list | tuple | range | np.ndarray):
            raise ConfigError(where, value, "a list")
        return tuple(convert(options[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    if hasattr(hint, "from_plain"):
        return hint.from_plain(value, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(where, value, "a table of fields")
        return from_table(hint, value, where + ".")  # type: ignore[arg-type]  # is_dataclass does not narrow to a type
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(where, "an integer of hundreds of digits", "a number below 1.8e308") from None
    if hint in words and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ConfigError(where, value, words[hint])
    return value


def load_toml(text: str) -> Table:
    """The table in the TOML text of a configuration, which a person may have written: ConfigError if there is none."""
    try:
        return parse_toml(text)
    except ValueError as problem:
        raise ConfigError("config", "a file", f"valid TOML ({problem})") from problem


def read_config(path: Path, field: str = "config") -> Table:
    """The table in the TOML file that `field` names: ConfigError if it cannot be read."""
    try:
        return read_toml(path)
    except (OSError, ValueError) as problem:
        raise ConfigError(field, str(path), f"a readable TOML file ({problem})") from problem


def dump_toml(table: Mapping[str, Any]) -> str:
    """TOML text of plain values and one level after another of nested tables.

    >>> print(dump_toml({"rounds": 3, "radio": {"fading": "none"}}), end="")
    rounds = 3
    <BLANKLINE>
    [radio]
    fading = "none"
    >>> print(dump_toml({"my_module:Mine": {"learning_rate": 0.1}}), end="")
    ["my_module:Mine"]
    learning_rate = 0.1
    """
    return "\n".join(_lines(table, "")).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], prefix: str) -> list[str]:
    lines = [_line(prefix, key, value) for key, value in table.items() if not isinstance(value, Mapping)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{prefix}{_key(key)}]", *_lines(value, f"{prefix}{_key(key)}.")]
    return lines


def _line(prefix: str, key: str, value: Any) -> str:
    line = f"{_key(key)} = {_toml(value)}"
    try:
        line.encode()
    except UnicodeEncodeError as problem:  # the name of a file may be any bytes, a TOML file is UTF-8
        raise ConfigError(f"{prefix}{key}", value, "text that UTF-8 can write") from problem
    return line


def _key(name: str) -> str:
    """A name as TOML writes it: in quotes where it is more than letters, digits, underscores and dashes."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            text = repr(value)
            return text if any(mark in text for mark in ".e") else text + ".0"
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    for raw, code in (("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        escaped = escaped.replace(raw, code)
    return f'"{"".join(map(_shown, escaped))}"'


def _shown(letter: str) -> str:
    """A letter of a text; an escape for one that cannot be shown, most of which TOML does not allow as they are."""
    code = ord(letter)
    if letter.isprintable() or 0xD800 <= code < 0xE000:  # for half a surrogate pair TOML has no escape
        return letter
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def flatten(table: Mapping[str, Any], prefix: str = "") -> Table:
    """A nested table as one, with dots in its names, as the command line spells options.

    >>> flatten({"seed": 0, "algorithm": {"name": "kfl"}})
    {'seed': 0, 'algorithm.name': 'kfl'}
    """
    found: Table = {}
    for name, value in table.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The differences between two tables, one line per field.

    >>> differences({"rounds": 3, "seed": 0}, {"rounds": 4, "seed": 0})
    ['rounds: 3 → 4']
    """
    lines = []
    for key in [*before, *(k for k in after if k not in before)]:
        old, new = before.get(key, "(absent)"), after.get(key, "(absent)")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: {_short(old)} → {_short(new)}")
    return lines


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", "a table"))
    return str(value)


class Fields:
    """A base of dataclasses whose constructor names the field that was probably meant.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point(Fields):
    ...     height: float = 0.0
    >>> Point(heigth=1.0)
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: heigth is 1.0, but must be a field of Point (did you mean height?).
    """

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse a name that is neither a field nor an argument of a constructor of its own."""
        known = [field.name for field in getattr(cls, "__dataclass_fields__", {}).values()]
        strange = [name for name in given if name not in known]
        if strange and known:
            arguments = inspect.signature(cls.__init__).parameters
            if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in arguments.values()):
                for name in strange:
                    if name not in arguments:
                        raise ConfigError(name, given[name], cls._instead_of(name, known))
        return super().__new__(cls)

    @classmethod
    def _instead_of(cls, name: str, known: Iterable[str]) -> str:
        """What would be right in place of a field that there is not, in words."""
        hint = did_you_mean(name, known, MEANT)
        return f"a field of {cls.__name__}{hint or ': ' + ', '.join(known)}"


class Named(ABC):
    """A frozen dataclass of one kind (channels, harvests, …), found by its name in the registry of its kind."""

    name: ClassVar[str]
    """The word that selects it."""

    @classmethod
    @abstractmethod
    def registry(cls) -> Mapping[str, type[Self]]:
        """All registered models of this kind by name; the first is the default."""

    def to_plain(self) -> str | dict[str, Any]:
        """As a configuration holds it: the model's name, or a table of its name and its fields where it has any."""
        name = word_of(self, type(self).registry())
        own = to_table(self)
        return {"name": name, **own} if own else name

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Self:
        """Read what `to_plain` gave; also a bare name, and package.module:Class for a model that is not registered."""
        registry = cls.registry()
        table = dict(value) if isinstance(value, Mapping) else {"name": value}
        name = table.pop("name", next(iter(registry)))
        return from_table(find_class(name, cls, where, registry), table, f"{where}.")

    @classmethod
    def selected(cls, value: Self | str, where: str) -> Self:
        """Return the model that a field holds, or that a word in it selects.

        Raises:
            ConfigError: No model has this name.
        """
        return value if isinstance(value, cls) else cls.from_plain(value, where)


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a field may hold, declared with it: `Annotated[float, Range(0, 1, "a fraction")]`."""

    least: float
    most: float
    right: str
    """What a good value is: the end of the sentence "… must be"."""
    above: bool = False
    """The least number itself is not allowed."""
    below: bool = False
    """The largest number itself is not allowed."""

    def holds(self, value: float) -> bool:
        """Return whether a number is in the range; NaN never is."""
        return self.least <= value <= self.most and not (
            (self.above and value == self.least) or (self.below and value == self.most)
        )


def check_ranges(config: object, where: str = "") -> None:
    """Refuse the first field of a dataclass with a number outside its `Range`; None is a field that is left out.

    Args:
        config: The dataclass. Of a tuple, every number is checked.
        where: What stands before the name of a field in the sentence about it.

    Raises:
        ConfigError: A number is not in the range of its field.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Panel:
    ...     clouds: typing.Annotated[float, Range(0, 1, "between 0 and 1")] = 0.5
    >>> check_ranges(Panel(2.0), "harvest.")
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: harvest.clouds is 2.0, but must be between 0 and 1.
    """
    for name, limits in _ranges(type(config)).items():  # type: ignore[arg-type]  # classes are hashable
        value = getattr(config, name)
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(number is None or limits.holds(number) for number in numbers):
            raise ConfigError(where + name, value, limits.right)


@cache
def _ranges(cls: Any) -> dict[str, Range]:
    """Return the ranges that the fields of a class declare."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = ((name, extra) for name, hint in hints.items() for extra in getattr(hint, "__metadata__", ()))
    return {name: extra for name, extra in found if isinstance(extra, Range)}
