"""Batteries of devices: what they hold, what was harvested, what a full one could not take.

    b ← min(b − spent + harvested, capacity)

A round is paid out of the charge at its start; what is harvested during it counts from the next round on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.wireless.channel import FloatArray

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig


@dataclass(frozen=True, eq=False)
class Batteries:
    """The battery of each device, between two rounds.

    >>> full = Batteries.charged(10.0, 1.0, devices=2)
    >>> after = full.after(np.array([4.0, 0.0]), np.array([1.0, 3.0]), np.array([False, False]))
    >>> after.charge_j, after.wasted_j
    (array([ 7., 10.]), array([0., 3.]))
    """

    capacity_j: float
    charge_j: FloatArray
    harvested_j: FloatArray
    """Since the start, wasted joules included."""
    wasted_j: FloatArray
    """What came while the battery was full."""
    empty_rounds: NDArray[np.int64]
    """Rounds in which a device had not the charge to take part."""

    @staticmethod
    def charged(capacity_j: float, fraction: float, devices: int) -> Batteries:
        """Batteries before the first round."""
        nothing = np.zeros(devices)
        return Batteries(
            capacity_j, np.full(devices, capacity_j * fraction), nothing, nothing, np.zeros(devices, dtype=np.int64)
        )

    def after(self, spent_j: FloatArray, harvest_j: FloatArray, empty: NDArray[np.bool_]) -> Batteries:
        """The batteries after a round."""
        # What a real device measures may be more than this model of its battery holds.
        filled_j = np.maximum(self.charge_j - spent_j, 0.0) + harvest_j
        charge_j = np.minimum(filled_j, self.capacity_j)
        return Batteries(
            self.capacity_j,
            charge_j,
            self.harvested_j + harvest_j,
            self.wasted_j + (filled_j - charge_j),
            self.empty_rounds + empty,
        )

    def running_dry(self, needed_j: FloatArray) -> NDArray[np.bool_]:
        """The devices that a round which needs so much would leave without charge before its end.

        A relative 1e-9 is granted, as for deadlines: a plan may use the last joule.
        """
        return np.asarray(needed_j > self.charge_j * (1 + 1e-9))


def check_battery(cell: CellConfig) -> None:
    """Raise ConfigError for a battery that cannot be, or a harvest without one."""
    capacity_j, charge, source = cell.battery_capacity_j, cell.initial_charge, cell.source
    if capacity_j is not None and not 0 < capacity_j < np.inf:
        raise ConfigError("battery_capacity_j", capacity_j, "a positive number of joules, or left out")
    if not 0 <= charge <= 1:
        raise ConfigError("initial_charge", charge, "a fraction of the capacity, from 0 to 1")
    if capacity_j is None and charge != 1:
        raise ConfigError("initial_charge", charge, "left out where there is no battery_capacity_j")
    if capacity_j is None and source.fills:
        raise ConfigError("battery_capacity_j", capacity_j, f"given where harvest is {source.name!r}: joules to fill")
    source.check(cell)
