"""The weight γ_t of data scheduled in round t: how much more one round counts than another."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import cast

from kfl.core.errors import ConfigError

_EXPECTED = '"inverse", "constant" or "module:function", a function of the round (from 0) that returns a number'


def data_weight(gamma: str, round_index: int) -> float:
    """γ_t for a round counted from 0.

    "inverse" is the paper's 1/t, which divides by zero in its own round 0, so 1/(t + 1) here. "constant" is 1.
    "module:function" calls a user's function with the round.

    >>> data_weight("inverse", 0), data_weight("inverse", 3), data_weight("constant", 3)
    (1.0, 0.25, 1.0)
    >>> data_weight("math:exp", 0)
    1.0
    """
    if gamma == "inverse":
        return 1.0 / (round_index + 1)
    if gamma == "constant":
        return 1.0
    weight = float(_function(gamma)(round_index))
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"{gamma}({round_index})", weight, "a finite number, 0 or more")
    return weight


def _function(gamma: str) -> Callable[[int], float]:
    module_name, _, name = gamma.partition(":")
    if not (module_name and name):
        raise ConfigError("gamma", gamma, _EXPECTED)
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError("gamma", gamma, f"{_EXPECTED}; {error}") from error
    if not callable(found):
        raise ConfigError("gamma", gamma, _EXPECTED)
    return cast("Callable[[int], float]", found)
