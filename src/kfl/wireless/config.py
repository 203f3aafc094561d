"""One cell's configuration: band, noise, path loss, fading, powers, processors, budget, batteries, deadline.

>>> CellConfig(bandwidth_hz=1e6).validate()
>>> CellConfig(deadline_s=0.0).validate()
Traceback (most recent call last):
...
kfl.core.errors.ConfigError: deadline_s is 0.0, but must be a positive number of seconds, from 1e-12 to 1e+12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from kfl.core.config import Fields, Range, check_ranges
from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.scheduling.uplink import MOST_POWER_W
from kfl.wireless.channel import Channel, Rayleigh
from kfl.wireless.hardware import PAPER_MODEL
from kfl.wireless.harvest import Harvest, NoHarvest
from kfl.wireless.mobility import Mobility, NoMobility

LARGEST = 1e12
"""No band, distance or clock is larger than this, or smaller than its inverse: beyond, squares and powers overflow."""


def _size(unit: str) -> Range:
    return Range(1 / LARGEST, LARGEST, f"a positive number of {unit}, from {1 / LARGEST:g} to {LARGEST:g}")


def _up_to(most: float, unit: str) -> Range:
    return Range(0, most, f"from 0 to {most:,.0f} {unit}")


_DECIBELS = Range(-400, 400, "a number of decibels between -400 and 400")
_UP_TO_400 = Range(0, 400, "a number from 0 to 400")
_BELOW_1 = Range(0, 1, "at least 0 and less than 1", below=True)
_CLOCKS = Range(1 / LARGEST, LARGEST, "one or more positive frequencies")
_BLOCKS = Range(1, 10**9, "at least 1 and at most a billion, or left out")
_EFFICIENCY = Range(0, 1, "above 0 and at most 1: radiated over drawn power", above=True)
_CAPACITY = Range(0, math.inf, "a positive number of joules, or left out", above=True, below=True)


@dataclass(frozen=True)
class CellConfig(Fields):
    """One cell, with its devices' radios, processors and budgets. The default is the paper's section V, for MNIST."""

    bandwidth_hz: Annotated[float, _size("hertz")] = 5e6
    """The whole uplink band B, shared by the scheduled devices (FDMA)."""
    noise_dbm_per_hz: Annotated[float, _DECIBELS] = -174.0
    """Noise power density N_0. The paper prints "dBm"; it is dBm per Hz."""
    radius_m: Annotated[float, _size("meters")] = 500.0
    """Radius of the cell; the server is at its center."""
    reference_gain_db: Annotated[float, _DECIBELS] = -30.0
    """Channel gain h_0 at one meter. The paper prints "dBm"; a gain is in dB."""
    path_loss_exponent: Annotated[float, _UP_TO_400] = 2.0
    """The gain falls with distance^−v."""
    min_distance_m: Annotated[float, _size("meters")] = 1.0
    """No device is nearer to the server than this."""
    max_power_dbm: Annotated[float, _DECIBELS] = 30.0
    """Largest transmit power of a device."""
    deadline_s: Annotated[float, _size("seconds")] = 1.0
    """Deadline of a round, T_max: computation and upload (and the broadcast, where it is counted)."""
    cpu_frequencies_hz: Annotated[tuple[float, ...], _CLOCKS] = (0.85e9, 1.12e9, 1.2e9, 1.3e9)
    """Each device's clock is drawn from these."""
    flops_per_cycle: Annotated[float, _size("operations")] = 4.0
    """Floating-point operations per clock cycle, n_k. The paper gives none; 1 breaks its own deadline."""
    power_coefficient: Annotated[float, _UP_TO_400] = 1e-27
    """κ of the chip in joule · second² per cycle³: a cycle at f Hz costs κ f² joule. Not in the paper."""
    budget_j_per_round: Annotated[float, Range(0, math.inf, "a positive number of joules", above=True)] = 0.1
    """Energy budget of a device, E_k / T; infinite for none."""
    fading: Channel | str = Rayleigh()
    """Channel model: how gains vary from round to round. The name of a registered one selects it."""
    fading_correlation: Annotated[float, _BELOW_1] = 0.0
    """Correlation ρ of the complex fading coefficient from one round to the next, in [0, 1)."""
    channel_error: Annotated[float, _BELOW_1] = 0.0
    """Variance of the server's error about the fading coefficient, in [0, 1); 0 means it knows the channel."""
    channel_margin_db: Annotated[float, _UP_TO_400] = 0.0
    """The server plans with a gain this much below its estimate, so that fewer uploads are lost."""
    downlink_power_dbm: Annotated[float | None, _DECIBELS] = None
    """Transmit power of the server. Given, the broadcast takes time; without, it is instant as in the paper."""
    resource_blocks: Annotated[int | None, _BLOCKS] = None
    """Shares of the band come in multiples of 1/this; without, they are real numbers as in the paper."""
    min_cpu_hz: float | None = None
    """Slowest clock of a device, which may then slow down to save energy; none: its clock is fixed, as in the paper."""
    static_power_w: Annotated[float, _up_to(MOST_POWER_W, "watts")] = 0.0
    """Power p_s that a processor draws while it computes, besides κ f³."""
    amplifier_efficiency: Annotated[float, _EFFICIENCY] = 1.0
    """Radiated power over what the amplifier draws for it, η in (0, 1]."""
    circuit_power_w: Annotated[float, _up_to(MOST_POWER_W, "watts")] = 0.0
    """Power p_c that the radio draws while it sends, besides the amplifier."""
    min_power_dbm: float | None = None
    """Least radiated power while sending; none: any power, as in the paper."""
    connect_energy_j: Annotated[float, _up_to(1e6, "joules")] = 0.0
    """Energy to open the connection, once per round in which a device takes part and sends."""
    receive_power_w: Annotated[float, _up_to(MOST_POWER_W, "watts")] = 0.0
    """Power that the radio draws during the time reserved for the broadcast."""
    tail_power_w: Annotated[float, _up_to(MOST_POWER_W, "watts")] = 0.0
    """Power that the radio draws after its last packet, while it stays connected."""
    tail_s: Annotated[float, _up_to(1e6, "seconds")] = 0.0
    """How long the radio stays connected after its last packet; the deadline does not wait for it."""
    round_period_s: float | None = None
    """Seconds from the start of a round to the start of the next; none: deadline_s."""
    battery_capacity_j: Annotated[float | None, _CAPACITY] = None
    """What the battery of a device holds; none: there is only a budget, as in the paper."""
    initial_charge: Annotated[float, Range(0, 1, "a fraction of the capacity, from 0 to 1")] = 1.0
    """Charge of the batteries at the start, as a fraction of their capacity."""
    harvest: Harvest | str = NoHarvest()
    """What fills the batteries. Their mean harvest then is the budget. The name of a registered source selects it."""
    shadowing_db: Annotated[float, Range(0, 100, "a number of decibels between 0 and 100")] = 0.0
    """Standard deviation of log-normal shadowing; 0 for none, as in the paper."""
    shadowing_distance_m: Annotated[float, _size("meters")] = 50.0
    """Shadowing of a device that moves by this much keeps a correlation of 1/e."""
    mobility: Mobility | str = NoMobility()
    """How devices move. The name of a registered model selects it."""

    def __post_init__(self) -> None:
        for field, kind in (("fading", Channel), ("harvest", Harvest), ("mobility", Mobility)):
            word = getattr(self, field)
            if isinstance(word, str) and word in kind.registry():
                object.__setattr__(self, field, kind.registry()[word]())

    @cached_property
    def channel(self) -> Channel:
        """The channel model that `fading` selects."""
        return Channel.selected(self.fading, "fading")

    @cached_property
    def source(self) -> Harvest:
        """The source of energy that `harvest` selects."""
        return Harvest.selected(self.harvest, "harvest")

    @cached_property
    def movement(self) -> Mobility:
        """The model of movement that `mobility` selects."""
        return Mobility.selected(self.mobility, "mobility")

    @property
    def printed_model(self) -> bool:
        """Whether the energy model is the paper's: a fixed clock, and the radiated power alone.

        >>> CellConfig().printed_model, CellConfig(circuit_power_w=0.5).printed_model
        (True, False)
        """
        return all(getattr(self, name) == value for name, value in PAPER_MODEL.items())

    @property
    def period_s(self) -> float:
        """Seconds from the start of a round to the start of the next: round t starts at t times this."""
        return self.deadline_s if self.round_period_s is None else self.round_period_s

    @property
    def noise_w_per_hz(self) -> float:
        """Noise power density N_0 in watts per hertz."""
        return dbm_to_watt(self.noise_dbm_per_hz)

    @property
    def max_power_w(self) -> float:
        """Largest transmit power of a device in watts."""
        return dbm_to_watt(self.max_power_dbm)

    def validate(self) -> None:
        """Raise a `ConfigError` that names the first field that cannot work."""
        check_ranges(self)
        if self.round_period_s is not None and not self.deadline_s <= self.round_period_s <= LARGEST:
            raise ConfigError("round_period_s", self.round_period_s, f"at least deadline_s, {self.deadline_s} s")
        if self.min_distance_m > self.radius_m:
            raise ConfigError("min_distance_m", self.min_distance_m, f"at most radius_m, {self.radius_m}")
        self._validate_device()
        self._validate_battery()
        parts: dict[str, Mobility | Channel | Harvest] = {
            "mobility": self.movement,
            "fading": self.channel,
            "harvest": self.source,
        }
        for field, part in parts.items():
            check_ranges(part, f"{field}.")
            part.check(self)

    def _validate_device(self) -> None:
        """Refuse a slowest clock above a fastest, and a least power above the largest."""
        if not self.cpu_frequencies_hz:
            raise ConfigError("cpu_frequencies_hz", self.cpu_frequencies_hz, _CLOCKS.right)
        slowest, fastest = self.min_cpu_hz, min(self.cpu_frequencies_hz)
        if slowest is not None and not 0 < slowest <= fastest:
            right = f"above 0 and at most {fastest:g}, the smallest of cpu_frequencies_hz"
            raise ConfigError("min_cpu_hz", slowest, right)
        least, most = self.min_power_dbm, self.max_power_dbm
        if least is not None and not -400 <= least < most:
            raise ConfigError("min_power_dbm", least, f"at least -400 and below max_power_dbm, {most:g}")

    def _validate_battery(self) -> None:
        """Refuse a charge, or a harvest, without a battery."""
        if self.battery_capacity_j is not None:
            return
        if self.initial_charge != 1:
            raise ConfigError("initial_charge", self.initial_charge, "left out where there is no battery_capacity_j")
        if self.source.fills:
            right = f"given where harvest is {self.source.name!r}: joules to fill"
            raise ConfigError("battery_capacity_j", None, right)
