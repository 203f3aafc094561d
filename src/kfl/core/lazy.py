"""Names that are imported on first use, so that help texts need not wait for PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def lazy_exports(package: str, where: Mapping[str, str], name: str) -> Any:
    """The body of a package's `__getattr__`: import `name` from the module that `where` gives."""
    if name not in where:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(where[name]), name)
