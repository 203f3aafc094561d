"""Numbers as integers that can be added modulo 2^32 or 2^64 without overflow, and back.

A value is clipped to ±bound and rounded to the nearest multiple of a step, a power of two: as fine as the sum of all
devices' values allows, and never finer than float64 holds exactly. One device's value is off by at most half a step
unless it was clipped, so a sum of n values by at most n/2 steps (`Grid.error`). Integers are exact wherever the
step is 1 or less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl_fleet.secure.cipher import SumError, Vector, derived, mask

FloatArray = NDArray[np.float64]
Shape = tuple[int, ...]

RANGES = 1e-9, 1e9
"""Values that are added are of no other size."""
EXACT = 2**52
"""No encoded value is larger, so that float64 holds each exactly."""


@dataclass(frozen=True)
class Grid:
    """How one array becomes integers.

    >>> grid = Grid(bound=4.0, devices=3, bits=32)
    >>> grid.step == 2**-27, grid.error == 3 * 2**-28
    (True, True)
    >>> code, clipped = grid.encode(np.array([0.1, -4.5]))
    >>> bool(np.abs(grid.decode(code) - [0.1, -4.0]).max() <= grid.step / 2), clipped
    (True, 1)
    """

    bound: float
    """Largest magnitude of a value."""
    devices: int
    """How many values may be added."""
    bits: int
    """32 or 64."""

    @cached_property
    def step(self) -> float:
        """Distance between two neighbors, a power of two."""
        room = min(EXACT, (2 ** (self.bits - 1) - 1) // self.devices - 1)
        return float(2.0 ** math.ceil(math.log2(self.bound / room)))

    @property
    def error(self) -> float:
        """The most that the sum of all devices' values is off, where none was clipped."""
        return self.devices * self.step / 2

    @property
    def largest_sum(self) -> float:
        """No sum of encoded values is larger in magnitude."""
        return self.devices * (self.bound + self.step)

    def encode(self, values: FloatArray) -> tuple[Vector, int]:
        """Finite values as integers, and how many had to be clipped."""
        clipped = int(np.count_nonzero(np.abs(values) > self.bound))
        whole = np.rint(np.clip(values, -self.bound, self.bound) / self.step).astype(np.int64)
        return whole.astype(f"<u{self.bits // 8}"), clipped

    def decode(self, total: Vector) -> FloatArray:
        """A sum of encoded values."""
        return total.astype(f"<u{self.bits // 8}").view(f"<i{self.bits // 8}").astype(np.float64) * self.step


CLIPPED = "clipped"
"""The last entry of every vector: how many values a device had to clip. Its sum tells the server, and no more."""


@dataclass(frozen=True)
class Layout:
    """Which arrays a vector holds, one after another, each with its bound.

    >>> layout = Layout({"means": (2, 3), "counts": (2,)}, {"means": 80.0, "counts": 10.0}, devices=5, bits=32)
    >>> vector = layout.encode({"means": np.full((2, 3), 1.5), "counts": np.array([3, 11])})
    >>> arrays, clipped = layout.decode(vector)
    >>> arrays["means"].tolist(), arrays["counts"].tolist(), clipped
    ([[1.5, 1.5, 1.5], [1.5, 1.5, 1.5]], [3.0, 10.0], 1)
    """

    shapes: Mapping[str, Shape]
    bounds: Mapping[str, float]
    devices: int
    bits: int
    checks: int = 0
    """Entries at the end of a vector that show whether a mask is left in the sum: each is the sum of all other entries
    times random numbers, modulo 2^bits, and so are the sums of these. A sum with a mask in it passes one by chance with
    a probability of 2^−bits."""
    session: bytes = b""
    """The name of the sum, from which the random numbers follow."""

    @property
    def length(self) -> int:
        """Integers of a vector."""
        return self._entries + self.checks

    @property
    def _entries(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values()) + 1

    def _checked(self, entries: Vector) -> Vector:
        """The entries, with those at the end that check them."""
        found = [
            (mask(derived(b"check", self.session, bytes([row])), len(entries), self.bits) * entries).sum(
                dtype=entries.dtype
            )
            for row in range(self.checks)
        ]
        return np.concatenate([entries, np.array(found, dtype=entries.dtype)])

    def grid(self, name: str) -> Grid:
        """How one array is encoded."""
        bound = float(max(self._entries - 1, 1)) if name == CLIPPED else self.bounds[name]
        return Grid(bound, self.devices, self.bits)

    def encode(self, arrays: Mapping[str, NDArray[Any]]) -> Vector:
        """One device's arrays as a vector; SumError where they are not the expected ones or not finite."""
        parts, lost = [], 0
        for name, shape in self.shapes.items():
            values = np.asarray(arrays[name], dtype=np.float64)
            if values.shape != shape:
                raise SumError(f"{name} has the shape {values.shape}, not {shape}.")
            if not np.isfinite(values).all():
                raise SumError(f"{name} has a value that is infinite or not a number.")
            part, clipped = self.grid(name).encode(values.ravel())
            parts.append(part)
            lost += clipped
        return self._checked(np.concatenate([*parts, self.grid(CLIPPED).encode(np.array([lost], dtype=np.float64))[0]]))

    def decode(self, total: Vector) -> tuple[dict[str, FloatArray], int]:
        """The arrays of a sum, and how many values were clipped.

        SumError where a sum is larger than it can be: then a mask is left in it, or a device sent something else.
        """
        if total.shape != (self.length,):
            raise SumError(f"The sum has {total.size} numbers, not {self.length}.")
        if not np.array_equal(self._checked(total[: self._entries]), total):
            raise SumError("The sum is not that of its devices' vectors: a share, a mask or a vector was changed.")
        arrays, start = {}, 0
        for name, shape in {**self.shapes, CLIPPED: ()}.items():
            grid, size = self.grid(name), math.prod(shape)
            values = grid.decode(total[start : start + size])
            if np.abs(values).max(initial=0.0) > grid.largest_sum:
                raise SumError(f"The sum of {name} is larger than {self.devices} devices can make it.")
            arrays[name], start = values.reshape(shape), start + size
        clipped = int(arrays.pop(CLIPPED))
        return arrays, clipped
