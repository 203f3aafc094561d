"""Objects that are imported by name, on first use: help texts need not wait for PyTorch, and users name their own."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from kfl.core.errors import ConfigError
from kfl.core.suggest import did_you_mean

T = TypeVar("T")


def import_object(address: str) -> Any:
    """The object that `package.module:name` names. An ImportError says why there is none.

    >>> import_object("math:sqrt")(4.0)
    2.0
    """
    module, colon, name = address.partition(":")
    if not (module and colon):
        raise ImportError("it is not of the form package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as problem:
        raise ImportError(str(problem)) from problem
    except Exception as problem:  # whatever the user's module does when it is imported
        raise ImportError(f"{type(problem).__name__}{_place(problem)}: {problem}") from problem


def _place(problem: BaseException) -> str:
    """Where a user's module failed; empty where Python could not even look for it."""
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    return "" if "importlib" in frame.filename else f" in {Path(frame.filename).name}, line {frame.lineno}"


def find_class(word: object, kind: type[T], field: str, registry: Mapping[str, type[T]]) -> type[T]:
    """Return the class that a word in a field selects: a registered one, or a user's own.

    Args:
        word: A key of the registry, or `package.module:Class`.
        kind: What the class must derive from.
        field: The field, for the sentence about a word that selects nothing.
        registry: The classes by their words.

    Raises:
        ConfigError: There is no such class; the sentence says what was probably meant.

    >>> find_class("whole", int, "number", {"whole": int})
    <class 'int'>
    >>> find_class("math:sqrtt", int, "algorithm", {"kfl": int, "local": int})
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: algorithm is 'math:sqrtt', but must be package.module:Class of one that can be \
imported (module 'math' has no attribute 'sqrtt').
    """
    if isinstance(word, str) and word in registry:
        return registry[word]
    address = str(word)
    if ":" not in address:
        expected = f"one of {', '.join(registry)}, or package.module:Class for your own"
        raise ConfigError(field, word, expected, choices=registry)
    try:
        found = import_object(address)
    except ImportError as problem:
        meant = did_you_mean(address, _candidates(address, kind))
        expected = "package.module:Class of one that can be imported"
        raise ConfigError(field, address, f"{expected} ({problem}){meant}") from problem
    if not (isinstance(found, type) and issubclass(found, kind)):
        meant = did_you_mean(address, _candidates(address, kind))
        raise ConfigError(field, address, f"a class that derives from {kind.__name__}{meant}")
    return found


def word_of(thing: Any, registry: Mapping[str, type[Any]]) -> str:
    """Return the word with which `find_class` finds the class of `thing`: its name, or where to import it from."""
    kind = type(thing)
    return str(thing.name) if registry.get(thing.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def _candidates(address: str, kind: type) -> list[str]:
    """Addresses that could have been meant: classes of the module that is named, or modules of the current folder."""
    name, _, cls = address.partition(":")
    module = sys.modules.get(name)
    if module is None:
        return [f"{path.stem}:{cls}" for path in sorted(Path().glob("*.py")) if path.stem != name]
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, kind)]
    return [f"{name}:{thing.__name__}" for thing in own if thing.__module__ == name]


def lazy_exports(package: str, where: Mapping[str, str], name: str) -> Any:
    """The body of a package's `__getattr__`: import `name` from the module that `where` gives."""
    if name not in where:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)
