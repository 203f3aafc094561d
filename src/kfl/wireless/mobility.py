"""Where the devices are: they stay, or move as a model says.

A model is a frozen dataclass that derives from `Mobility`; its fields are options of `--radio.mobility`. Round t is at
t · `period_s` seconds. The places of a round are a function of seed and round alone; the `Motion` of an earlier round
is passed along only to save work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Named
from kfl.core.randomness import stream

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Motion:
    """Where the devices are in one round, and what a model of movement carries into the next."""

    round: int
    position_m: FloatArray
    """One row (x, y) per device; the server is at (0, 0)."""
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that the model needs in a later round; kept in checkpoints."""


@dataclass(frozen=True)
class Mobility(Named, ABC):
    """A model of movement. Only `move` must be written."""

    stays: ClassVar[bool] = False
    """True only where no device ever moves."""

    @classmethod
    def registry(cls) -> Mapping[str, type[Mobility]]:
        """`MOBILITIES`."""
        from kfl.wireless.channels import MOBILITIES

        return MOBILITIES

    def check(self, cell: CellConfig) -> None:
        """Raise ConfigError for a value of the model's own fields, or of the cell's, that cannot work with it."""

    @abstractmethod
    def move(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Motion | None = None
    ) -> Motion:
        """Where devices that started at `start_m` are in a round.

        `previous` is the motion of an earlier round, or of a later one, which is no use; without it the result is the
        same.
        """


@dataclass(frozen=True)
class NoMobility(Mobility):
    """Devices stay where they are."""

    name: ClassVar[str] = "none"
    stays: ClassVar[bool] = True

    def move(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Motion | None = None
    ) -> Motion:
        """The start."""
        return Motion(round_index, start_m)


def place_devices(cell: CellConfig, seed: int, devices: int) -> FloatArray:
    """Points (x, y) in meters, uniform over the disc around the server, outside its innermost meter(s).

    >>> from kfl.wireless import CellConfig
    >>> start_m = place_devices(CellConfig(), seed=0, devices=3)
    >>> bool((np.hypot(*start_m.T) <= 500).all())
    True
    """
    return points_in_cell(cell, stream(seed, "positions").random((devices, 2)))


def points_in_cell(cell: CellConfig, draw: FloatArray) -> FloatArray:
    """Points of the cell from pairs of uniform draws: uniform over its area."""
    inner, outer = cell.min_distance_m**2, cell.radius_m**2
    distance = np.sqrt(inner + (outer - inner) * draw[:, 0])
    angle = 2 * np.pi * draw[:, 1]
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1)
