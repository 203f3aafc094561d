"""Random waypoint: devices that walk straight to one random point of the cell after another.

Leg n of device k: a target uniform over the cell, a speed uniform between two bounds, both from row k of
`stream(seed, "waypoint", n)`; on arrival the device pauses. So a walk is a function of the seed alone, and the state
that is carried along, each device's current leg, only saves walking it again. Devices start uniformly over the cell
and, as is known of this model, drift toward its middle, where more paths cross; a smallest speed above 0 keeps the
mean speed from decaying (Yoon, Liu and Noble, "Random waypoint considered harmful", INFOCOM 2003).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Range
from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.wireless.mobility import FloatArray, Mobility, Motion, points_in_cell

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

FASTEST_M_PER_S = 1000.0
_SPEED = Range(0, FASTEST_M_PER_S, f"above 0 and at most {FASTEST_M_PER_S:g} m/s", above=True)


@dataclass(frozen=True)
class Waypoint(Mobility):
    """Random waypoint: each device walks to a random point of the cell, pauses, and walks to the next.

    >>> from kfl.wireless import CellConfig
    >>> cell = CellConfig(mobility=Waypoint(min_speed_m_per_s=1.0, max_speed_m_per_s=1.0))
    >>> start_m = np.array([[100.0, 0.0]])
    >>> round(float(np.hypot(*(Waypoint.move(cell.mobility, cell, 0, 3, start_m).position_m - start_m).T)[0]), 6)
    3.0
    """

    name: ClassVar[str] = "waypoint"

    min_speed_m_per_s: Annotated[float, _SPEED] = 0.5
    """Slowest speed of a leg."""
    max_speed_m_per_s: float = 1.5
    """Fastest speed of a leg; each leg's is drawn uniformly between the two."""
    pause_s: Annotated[float, Range(0, math.inf, "0 seconds or more", below=True)] = 0.0
    """Seconds that a device rests where it arrives."""

    def check(self, cell: CellConfig) -> None:
        """Speeds of something that moves."""
        if not self.min_speed_m_per_s <= self.max_speed_m_per_s <= FASTEST_M_PER_S:
            raise ConfigError(
                "mobility.max_speed_m_per_s",
                self.max_speed_m_per_s,
                f"at least min_speed_m_per_s, {self.min_speed_m_per_s:g}, and at most {FASTEST_M_PER_S:g} m/s",
            )

    def move(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Motion | None = None
    ) -> Motion:
        """Walk on from the legs of an earlier round, or from the start: the same."""
        legs = _Legs.read(previous) if previous is not None and previous.round <= round_index else None
        if legs is None or len(legs.number) != len(start_m):
            legs = _Legs.before_the_first(start_m)
        time_s = round_index * cell.period_s
        while (over := legs.end_s <= time_s).any():
            legs = self._next_legs(cell, seed, legs, np.flatnonzero(over))
        walked = np.clip((time_s - legs.begin_s) / legs.walk_s, 0.0, 1.0)
        position_m = legs.from_m + walked[:, None] * (legs.to_m - legs.from_m)
        return Motion(round_index, _around_the_server(position_m, cell.min_distance_m), legs.memory())

    def _next_legs(self, cell: CellConfig, seed: int, legs: _Legs, devices: NDArray[np.int64]) -> _Legs:
        """The legs after these devices' own, for them."""
        number, from_m, to_m = legs.number.copy(), legs.from_m.copy(), legs.to_m.copy()
        begin_s, walk_s, end_s = legs.begin_s.copy(), legs.walk_s.copy(), legs.end_s.copy()
        number[devices] += 1
        begin_s[devices], from_m[devices] = end_s[devices], to_m[devices]
        for leg in np.unique(number[devices]):
            mine = devices[number[devices] == leg]
            draw = stream(seed, "waypoint", int(leg)).random((int(mine[-1]) + 1, 3))[mine]
            to_m[mine] = points_in_cell(cell, draw[:, :2])
            spread = self.max_speed_m_per_s - self.min_speed_m_per_s
            distance_m = np.hypot(*(to_m[mine] - from_m[mine]).T)
            # A leg of no length would last no time, for ever.
            walk_s[mine] = np.maximum(distance_m / (self.min_speed_m_per_s + spread * draw[:, 2]), 1e-9)
            end_s[mine] = begin_s[mine] + walk_s[mine] + self.pause_s
        return _Legs(number, begin_s, walk_s, end_s, from_m, to_m)


@dataclass(frozen=True, eq=False)
class _Legs:
    """The leg that each device is on."""

    number: NDArray[np.int64]
    begin_s: FloatArray
    walk_s: FloatArray
    """Seconds until it arrives."""
    end_s: FloatArray
    """When the pause after it is over."""
    from_m: FloatArray
    to_m: FloatArray

    @staticmethod
    def before_the_first(start_m: FloatArray) -> _Legs:
        """All devices have just arrived at the start."""
        zero = np.zeros(len(start_m))
        return _Legs(np.full(len(start_m), -1), zero, zero + 1.0, zero, start_m, start_m)

    def memory(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        return dict(vars(self))

    @staticmethod
    def read(motion: Motion) -> _Legs | None:
        names = ("number", "begin_s", "walk_s", "end_s", "from_m", "to_m")
        if any(name not in motion.memory for name in names):
            return None
        return _Legs(*(motion.memory[name] for name in names))


def _around_the_server(position_m: FloatArray, min_distance_m: float) -> FloatArray:
    """Points nearer to the server than a device can be are moved away from it: devices walk around the mast."""
    distance_m = np.hypot(position_m[:, 0], position_m[:, 1])
    near = distance_m < min_distance_m
    if not near.any():
        return position_m
    outside = position_m.copy()
    outside[near] *= (min_distance_m / np.maximum(distance_m[near], 1e-12))[:, None]
    outside[distance_m == 0] = (min_distance_m, 0.0)
    return outside
