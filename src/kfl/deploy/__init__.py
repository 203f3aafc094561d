"""The former place of `kfl_fleet`, for projects that name it; it goes away with the next release.

Its public names and the modules that a fleet's app, `device.toml` or program may name still work, with a warning.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

_FLEET = "kfl_fleet"


def moved(module: str, *, level: int = 3) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds its names in `kfl_fleet`."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        warnings.warn(f"kfl.deploy is now kfl_fleet: take {name} from {module}.", DeprecationWarning, stacklevel=level)
        return getattr(importlib.import_module(module), name)

    return find


__getattr__ = moved(_FLEET)
