"""Energy that devices harvest: joules of each device in each round, by a formula or from a trace.

A model is a frozen dataclass that derives from `Harvest`; its fields are options of `--radio.harvest`. Round t lasts
from t to t + 1 periods (`round_period_s`), and what is harvested in a round is a function of seed and round alone.

    >>> from kfl.wireless import CellConfig
    >>> cell = CellConfig(harvest=SolarHarvest(peak_w=0.2), battery_capacity_j=5000.0, round_period_s=600.0)
    >>> noon, midnight = 72, 144  # rounds of ten minutes, from midnight on
    >>> bool((cell.harvest.energy_j(cell, 0, noon, 3) > 0).all()), cell.harvest.energy_j(cell, 0, midnight, 3)
    (True, array([0., 0., 0.]))
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from kfl.core.config import Named, Range
from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.wireless.channel import FloatArray
from kfl.wireless.trace import GAP, Quantity, Trace, open_trace

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MOST_W = 1e6
"""Nothing that harvests for a device gives more watts than this: a larger number is in another unit."""
WATTS = Quantity("watts", f"a number of watts, 0 or more and at most {MOST_W:g}", lowest=0.0, highest=MOST_W)
_HARVESTED = Range(0, MOST_W, WATTS.expected)
_HOUR = Range(0, 24, "an hour of the day, from 0 to below 24", below=True)
_PART = Range(0, 1, "between 0 and 1")


@dataclass(frozen=True)
class Harvest(Named, ABC):
    """A source of energy. `energy_j` and `mean_j` must be written."""

    fills: ClassVar[bool] = True
    """False only where nothing is ever harvested."""

    @classmethod
    def registry(cls) -> Mapping[str, type[Harvest]]:
        """`HARVESTS`."""
        return HARVESTS

    def check(self, cell: CellConfig) -> None:
        """Raise ConfigError for a value of the model's own fields, or of the cell's, that cannot work with it."""

    @abstractmethod
    def energy_j(self, cell: CellConfig, seed: int, round_index: int, devices: int) -> FloatArray:
        """Return the joules that each device harvests in a round."""

    @abstractmethod
    def mean_j(self, cell: CellConfig, seed: int, rounds: int, devices: int) -> FloatArray:
        """Return the joules per round that each device can expect over `rounds` rounds: its allowance."""


@dataclass(frozen=True)
class NoHarvest(Harvest):
    """Nothing: batteries only get emptier."""

    name: ClassVar[str] = "none"
    fills: ClassVar[bool] = False

    def energy_j(self, cell: CellConfig, seed: int, round_index: int, devices: int) -> FloatArray:
        """Return 0 J for every device."""
        return np.zeros(devices)

    def mean_j(self, cell: CellConfig, seed: int, rounds: int, devices: int) -> FloatArray:
        """Return 0 J for every device."""
        return np.zeros(devices)


@dataclass(frozen=True)
class ConstantHarvest(Harvest):
    """The same watts at all times, on every device."""

    name: ClassVar[str] = "constant"

    watts: Annotated[float, _HARVESTED] = 0.01
    """Harvested power of each device."""

    def energy_j(self, cell: CellConfig, seed: int, round_index: int, devices: int) -> FloatArray:
        """Return the watts times the period."""
        return np.full(devices, self.watts * cell.period_s)

    def mean_j(self, cell: CellConfig, seed: int, rounds: int, devices: int) -> FloatArray:
        """Return the joules of any round."""
        return self.energy_j(cell, seed, 0, devices)


@dataclass(frozen=True)
class SolarHarvest(Harvest):
    """A solar panel on each device: half a sine wave from sunrise to sunset, less by clouds and a poor place.

    Device k harvests peak_w · a_k · c_d · sin(π (h − sunrise_h) / daylight_h) watts at hour h of day d. Its panel's
    place a_k is drawn once, uniformly from `worst_panel` to 1; the clearness c_d of a day, uniformly from 1 − `clouds`
    to 1, for the whole cell: all of it is under the same sky.
    """

    name: ClassVar[str] = "sun"

    peak_w: Annotated[float, _HARVESTED] = 0.1
    """Power of a well placed panel at noon of a clear day."""
    sunrise_h: Annotated[float, _HOUR] = 6.0
    """Hour of the sunrise."""
    daylight_h: Annotated[float, Range(0, 24, "above 0 hours and at most 24", above=True)] = 12.0
    """Hours from sunrise to sunset."""
    start_h: Annotated[float, _HOUR] = 0.0
    """Hour of the day at which the run begins."""
    worst_panel: Annotated[float, _PART] = 0.3
    """What the worst placed panel gets of the power of the best, from 0 to 1."""
    clouds: Annotated[float, _PART] = 0.7
    """Share of the light that the cloudiest day loses, from 0 to 1; the average day loses half of it."""

    def energy_j(self, cell: CellConfig, seed: int, round_index: int, devices: int) -> FloatArray:
        """Return the integral of the power over the round, day by day."""
        # Days are counted from a sunrise, so that no daylight is cut in two.
        offset_s = (self.start_h - self.sunrise_h) * HOUR_S
        start_s, end_s = (offset_s + (round_index + step) * cell.period_s for step in (0, 1))
        joules = 0.0
        for day in range(int(start_s // DAY_S), int(end_s // DAY_S) + 1):
            light_s = self._light_s(end_s - day * DAY_S) - self._light_s(start_s - day * DAY_S)
            if light_s > 0:
                joules += self.peak_w * light_s * self.clearness(seed, day)
        return joules * self.panels(seed, devices)

    def mean_j(self, cell: CellConfig, seed: int, rounds: int, devices: int) -> FloatArray:
        """Return the mean over days, with the average clouds."""
        watts = self.peak_w * (1 - self.clouds / 2) * self._light_s(DAY_S) / DAY_S
        return np.asarray(watts * cell.period_s * self.panels(seed, devices))

    def panels(self, seed: int, devices: int) -> FloatArray:
        """Return how well each device's panel is placed, a_k."""
        return np.asarray(1 - (1 - self.worst_panel) * stream(seed, "harvest panel").random(devices))

    def clearness(self, seed: int, day: int) -> float:
        """Return the share of the light that a day's clouds let through, c_d.

        Days count from the first sunrise, −1 before it.
        """
        return 1 - self.clouds * float(stream(seed, "harvest clouds", day).random())

    def _light_s(self, since_s: float) -> float:
        """Return the integral of the half sine from a sunrise to `since_s` seconds after it: seconds of noon light."""
        daylight_s = self.daylight_h * HOUR_S
        angle = np.pi * min(max(since_s, 0.0), daylight_s) / daylight_s
        return float(daylight_s / np.pi * (1 - np.cos(angle)))


@dataclass(frozen=True)
class HarvestTrace(Harvest):
    """Watts over time from a CSV file with the columns time_s (or round), device and watts."""

    name: ClassVar[str] = "trace"

    path: str = ""
    """The file. A row holds until the next one of its device."""
    repeat_s: Annotated[float | None, GAP] = None
    """Start over after this many seconds, such as 86400 for a day; none: the last values hold for ever."""
    max_gap_s: Annotated[float | None, GAP] = None
    """Refuse a file in which a device has no row for longer than this."""

    def check(self, cell: CellConfig) -> None:
        """Refuse a missing name; what is in the file is checked with the fleet that it is for."""
        if not self.path:
            raise ConfigError("harvest.path", self.path, "a CSV file with the columns time_s, device and watts")

    def trace(self, cell: CellConfig, devices: int) -> Trace:
        """Open the file for a fleet."""
        repeat_s, max_gap_s = self.repeat_s, self.max_gap_s
        return open_trace(Path(self.path), [WATTS], devices, cell.period_s, repeat_s=repeat_s, max_gap_s=max_gap_s)

    def energy_j(self, cell: CellConfig, seed: int, round_index: int, devices: int) -> FloatArray:
        """Return the integral of the step function over the round."""
        start_s, end_s = round_index * cell.period_s, (round_index + 1) * cell.period_s
        return self.trace(cell, devices).integral(start_s, end_s)

    def mean_j(self, cell: CellConfig, seed: int, rounds: int, devices: int) -> FloatArray:
        """Return the mean over the rounds of the run."""
        return np.asarray(self.trace(cell, devices).integral(0.0, rounds * cell.period_s) / rounds)


HARVESTS: dict[str, type[Harvest]] = {cls.name: cls for cls in (NoHarvest, ConstantHarvest, SolarHarvest, HarvestTrace)}
"""Sources of energy by the word that selects them: a new one is one class and one entry here."""
