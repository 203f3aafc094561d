"""Constructors that answer an unknown field with the one that was meant, and values as people give them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
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
