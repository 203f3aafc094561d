"""Fields of configurations: a constructor that knows which one was meant, and the numbers that each may hold."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from kfl.core.errors import ConfigError
from kfl.core.suggest import MEANT, did_you_mean


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


@dataclass(frozen=True)
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

    >>> @dataclass(frozen=True)
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
