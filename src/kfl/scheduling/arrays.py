"""Dataclasses whose arrays have one entry per device."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from kfl.scheduling.curve import FloatArray, Index

PerDevice = FloatArray | float
"""One entry per device, or one number where all devices have the same."""


@dataclass(frozen=True, eq=False)
class ArrayRecord:
    """Record of numbers, arrays and further records; numbers hold for every device."""

    def take(self, index: Index) -> Self:
        """Return the record of some of the devices; of a batch, of some rows."""
        return replace(self, **{one.name: _entries(getattr(self, one.name), index) for one in fields(self)})

    def rows(self) -> Self:
        """Return the record with arrays (..., n) as (m, n)."""
        return replace(self, **{one.name: _rows(getattr(self, one.name)) for one in fields(self)})


def _entries(value: Any, index: Index) -> Any:
    if isinstance(value, ArrayRecord):
        return value.take(index)
    return value[index] if np.ndim(value) else value


def _rows(value: Any) -> Any:
    if isinstance(value, ArrayRecord):
        return value.rows()
    return value.reshape(-1, value.shape[-1]) if np.ndim(value) else value
