"""Models that a word selects: in a configuration each is its name, or a table of its name and its fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from kfl.core.config import from_table, to_table
from kfl.core.lazy import find_class, word_of


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
