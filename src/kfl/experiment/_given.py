"""Values of an experiment's fields as people type them: 256 for (256,), NumPy's numbers, a Path; else what is right."""

from __future__ import annotations

import typing
from dataclasses import fields
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np

from kfl.core.config import Table, convert
from kfl.core.errors import ConfigError

PARTS = ("algorithm", "scheduler", "radio", "faults")
"""Fields that are no plain values."""


def as_fields(config: Any) -> Table:
    """The plain fields of a configuration as its types have them; ConfigError for the first that cannot be that."""
    hints = _hints(type(config))  # type: ignore[arg-type]  # classes are hashable
    return {
        one.name: _value(one.name, hints[one.name], getattr(config, one.name))
        for one in fields(config)
        if one.name not in PARTS
    }


class Said(str):
    """Words that stand for a value in a sentence, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@lru_cache(maxsize=8)
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(name: str, hint: Any, value: Any) -> Any:
    if name in ("dataset", "model") and not isinstance(value, str):
        return _named(name, value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None and type(None) in typing.get_args(hint):
        return None
    if name == "widths" and value != "none":
        value = tuple(value) if isinstance(value, list | tuple | range | np.ndarray) else (value,)
        value = tuple(one.item() if isinstance(one, np.generic) else one for one in value)
    return convert(hint, value, name)


def _named(name: str, value: Any) -> str:
    """A dataset or a model, which a configuration names: objects are given to `run`."""
    if isinstance(value, PurePath):
        return str(value)
    what = Said(f"of type {type(value).__name__}")
    if name == "dataset":
        own = "data of your own is given where it runs: kfl.run(experiment, dataset=…)"
        raise ConfigError(name, what, f"the name of a dataset or of a file; {own}")
    own = "networks of your own are given where they run: kfl.run(experiment, models=…)"
    raise ConfigError(name, what, f"the name of a network, such as 'cnn'; {own}")
