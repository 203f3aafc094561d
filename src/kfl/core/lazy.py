"""Objects that are imported by name, on first use: help texts need not wait for PyTorch, and users name their own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


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
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as problem:
        raise ImportError(str(problem)) from problem


def lazy_exports(package: str, where: Mapping[str, str], name: str) -> Any:
    """The body of a package's `__getattr__`: import `name` from the module that `where` gives."""
    if name not in where:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)
