"""Log-normal shadowing: obstacles that weaken or spare a device's path, correlated along the way it goes.

In decibels shadowing is normal with mean 0 and standard deviation `shadowing_db`. When a device moves by d meters its
correlation with what it was falls to exp(−d / `shadowing_distance_m`) (M. Gudmundson, "Correlation model for shadow
fading in mobile radio systems", Electronics Letters 27(23), 1991), so over rounds

    s_t = a s_{t−1} + √(1 − a²) σ w_t,    a = exp(−d_t / d_corr),    w_t ~ N(0, 1) from `stream(seed, "shadowing", t)`.

A device that stays keeps its shadow for ever. The server knows it: it is slow, and part of the mean gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.randomness import stream
from kfl.wireless.mobility import FloatArray, Motion

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

MOTION = "motion."
SHADOW = "shadowing_db"


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Where the devices are in a round, and what stands in the way there."""

    motion: Motion
    shadow_db: FloatArray
    """Shadowing of each device; positive where it is heard better than its distance says."""

    def memory(self) -> dict[str, NDArray[Any]]:
        """As arrays for a checkpoint."""
        own = {f"{MOTION}{name}": array for name, array in self.motion.memory.items()}
        return {**own, f"{MOTION}position_m": self.motion.position_m, SHADOW: self.shadow_db}

    @staticmethod
    def read(round_index: int, memory: Mapping[str, NDArray[Any]]) -> Surroundings | None:
        """What `memory` gave; None where it is not there."""
        if f"{MOTION}position_m" not in memory or SHADOW not in memory:
            return None
        own = {name.removeprefix(MOTION): array for name, array in memory.items() if name.startswith(MOTION)}
        return Surroundings(Motion(round_index, own.pop("position_m"), own), memory[SHADOW])


def surroundings(
    cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Surroundings | None = None
) -> Surroundings:
    """Places and shadows of a round. `previous` is of an earlier round; without it the result is the same.

    >>> from kfl.wireless import CellConfig
    >>> surroundings(CellConfig(), seed=0, round_index=5, start_m=np.ones((2, 2))).shadow_db
    array([0., 0.])
    """
    movement, devices = cell.movement, len(start_m)
    if previous is not None and previous.motion.round > round_index:
        previous = None
    before = None if previous is None else previous.motion
    if movement.stays or cell.shadowing_db == 0:
        shadow_db = cell.shadowing_db * _normal(seed, 0, devices) if cell.shadowing_db > 0 else np.zeros(devices)
        return Surroundings(movement.move(cell, seed, round_index, start_m, before), shadow_db)
    # Correlated from round to round, so that every round since has its step.
    if previous is None:
        previous = Surroundings(movement.move(cell, seed, 0, start_m), cell.shadowing_db * _normal(seed, 0, devices))
    for t in range(previous.motion.round + 1, round_index + 1):
        motion = movement.move(cell, seed, t, start_m, previous.motion)
        moved_m = np.hypot(*(motion.position_m - previous.motion.position_m).T)
        kept = np.exp(-moved_m / cell.shadowing_distance_m)
        fresh = cell.shadowing_db * _normal(seed, t, devices)
        previous = Surroundings(motion, kept * previous.shadow_db + np.sqrt(1 - kept**2) * fresh)
    return previous


def _normal(seed: int, round_index: int, devices: int) -> FloatArray:
    return stream(seed, "shadowing", round_index).standard_normal(devices)
