"""One cell's configuration: band, noise, path loss, fading, powers, processors, budget, batteries, deadline.

>>> CellConfig(bandwidth_hz=1e6).validate()
>>> CellConfig(deadline_s=0.0).validate()
Traceback (most recent call last):
...
kfl.core.errors.ConfigError: deadline_s is 0.0, but must be a positive number of seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kfl.core.config import Fields
from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.wireless.channel import Channel, Rayleigh
from kfl.wireless.channels import CHANNELS, MOBILITIES
from kfl.wireless.hardware import PAPER_MODEL, check_device
from kfl.wireless.harvest import HARVESTS, Harvest, NoHarvest
from kfl.wireless.mobility import Mobility, NoMobility

LARGEST = 1e12
"""No band, distance or clock is larger than this, or smaller than its inverse: beyond, squares and powers overflow."""


@dataclass(frozen=True)
class CellConfig(Fields):
    """One cell, with its devices' radios, processors and budgets. The default is the paper's section V, for MNIST."""

    bandwidth_hz: float = 5e6
    """The whole uplink band B, shared by the scheduled devices (FDMA)."""
    noise_dbm_per_hz: float = -174.0
    """Noise power density N_0. The paper prints "dBm"; it is dBm per Hz."""
    radius_m: float = 500.0
    """Radius of the cell; the server is at its centre."""
    reference_gain_db: float = -30.0
    """Channel gain h_0 at one metre. The paper prints "dBm"; a gain is in dB."""
    path_loss_exponent: float = 2.0
    """The gain falls with distance^−v."""
    min_distance_m: float = 1.0
    """No device is nearer to the server than this."""
    max_power_dbm: float = 30.0
    """Largest transmit power of a device."""
    deadline_s: float = 1.0
    """Deadline of a round, T_max: computation and upload (and the broadcast, where it is counted)."""
    cpu_frequencies_hz: tuple[float, ...] = (0.85e9, 1.12e9, 1.2e9, 1.3e9)
    """Each device's clock is drawn from these."""
    flops_per_cycle: float = 4.0
    """Floating-point operations per clock cycle, n_k. The paper gives none; 1 breaks its own deadline."""
    power_coefficient: float = 1e-27
    """κ of the chip in joule · second² per cycle³: a cycle at f Hz costs κ f² joule. Not in the paper."""
    budget_j_per_round: float = 0.1
    """Energy budget of a device, E_k / T; infinite for none."""
    fading: Channel | str = Rayleigh()
    """Channel model: how gains vary from round to round. The name of a registered one selects it."""
    fading_correlation: float = 0.0
    """Correlation ρ of the complex fading coefficient from one round to the next, in [0, 1)."""
    channel_error: float = 0.0
    """Variance of the server's error about the fading coefficient, in [0, 1); 0 means it knows the channel."""
    channel_margin_db: float = 0.0
    """The server plans with a gain this much below its estimate, so that fewer uploads are lost."""
    downlink_power_dbm: float | None = None
    """Transmit power of the server. Given, the broadcast takes time; without, it is instant as in the paper."""
    resource_blocks: int | None = None
    """Shares of the band come in multiples of 1/this; without, they are real numbers as in the paper."""
    min_cpu_hz: float | None = None
    """Slowest clock of a device, which may then slow down to save energy; none: its clock is fixed, as in the paper."""
    static_power_w: float = 0.0
    """Power p_s that a processor draws while it computes, besides κ f³."""
    amplifier_efficiency: float = 1.0
    """Radiated power over what the amplifier draws for it, η in (0, 1]."""
    circuit_power_w: float = 0.0
    """Power p_c that the radio draws while it sends, besides the amplifier."""
    min_power_dbm: float | None = None
    """Least radiated power while sending; none: any power, as in the paper."""
    connect_energy_j: float = 0.0
    """Energy to open the connection, once per round in which a device takes part and sends."""
    receive_power_w: float = 0.0
    """Power that the radio draws during the time reserved for the broadcast."""
    tail_power_w: float = 0.0
    """Power that the radio draws after its last packet, while it stays connected."""
    tail_s: float = 0.0
    """How long the radio stays connected after its last packet; the deadline does not wait for it."""
    round_period_s: float | None = None
    """Seconds from the start of a round to the start of the next; none: deadline_s."""
    battery_capacity_j: float | None = None
    """What the battery of a device holds; none: there is only a budget, as in the paper."""
    initial_charge: float = 1.0
    """Charge of the batteries at the start, as a fraction of their capacity."""
    harvest: Harvest | str = NoHarvest()
    """What fills the batteries. Their mean harvest then is the budget. The name of a registered source selects it."""
    shadowing_db: float = 0.0
    """Standard deviation of log-normal shadowing; 0 for none, as in the paper."""
    shadowing_distance_m: float = 50.0
    """Shadowing of a device that moves by this much keeps a correlation of 1/e."""
    mobility: Mobility | str = NoMobility()
    """How devices move. The name of a registered model selects it."""

    def __post_init__(self) -> None:
        if isinstance(self.fading, str) and self.fading in CHANNELS:
            object.__setattr__(self, "fading", CHANNELS[self.fading]())
        if isinstance(self.harvest, str) and self.harvest in HARVESTS:
            object.__setattr__(self, "harvest", HARVESTS[self.harvest]())
        if isinstance(self.mobility, str) and self.mobility in MOBILITIES:
            object.__setattr__(self, "mobility", MOBILITIES[self.mobility]())

    @property
    def channel(self) -> Channel:
        """The channel model that `fading` selects."""
        if isinstance(self.fading, Channel):
            return self.fading
        raise ConfigError("fading", self.fading, f"one of {', '.join(CHANNELS)}, or a Channel", choices=CHANNELS)

    @property
    def source(self) -> Harvest:
        """The source of energy that `harvest` selects."""
        if isinstance(self.harvest, Harvest):
            return self.harvest
        raise ConfigError("harvest", self.harvest, f"one of {', '.join(HARVESTS)}, or a Harvest", choices=HARVESTS)

    @property
    def movement(self) -> Mobility:
        """The model of movement that `mobility` selects."""
        if isinstance(self.mobility, Mobility):
            return self.mobility
        raise ConfigError(
            "mobility", self.mobility, f"one of {', '.join(MOBILITIES)}, or a Mobility", choices=MOBILITIES
        )

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
        self._validate_numbers()
        self._validate_channel()
        if not self.cpu_frequencies_hz or not all(1 / LARGEST <= f <= LARGEST for f in self.cpu_frequencies_hz):
            raise ConfigError("cpu_frequencies_hz", self.cpu_frequencies_hz, "one or more positive frequencies")
        check_device(self)
        self._validate_battery()
        if self.resource_blocks is not None and not 1 <= self.resource_blocks <= 10**9:
            raise ConfigError("resource_blocks", self.resource_blocks, "at least 1 and at most a billion, or left out")

    def _validate_numbers(self) -> None:
        positive = {
            "bandwidth_hz": "hertz",
            "radius_m": "metres",
            "min_distance_m": "metres",
            "deadline_s": "seconds",
            "shadowing_distance_m": "metres",
            "flops_per_cycle": "operations",
        }
        for name, unit in positive.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(name, value, f"a positive number of {unit}")
            if not 1 / LARGEST <= value <= LARGEST:
                raise ConfigError(name, value, f"between {1 / LARGEST:g} and {LARGEST:g} {unit}")
        decibels = ["noise_dbm_per_hz", "reference_gain_db", "max_power_dbm"]
        decibels += ["downlink_power_dbm"] if self.downlink_power_dbm is not None else []
        for name in decibels:
            value = getattr(self, name)
            if not (math.isfinite(value) and abs(value) <= 400):
                raise ConfigError(name, value, "a number of decibels between -400 and 400")
        for name in ("path_loss_exponent", "power_coefficient", "channel_margin_db"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(name, value, "zero or a positive number")
            if value > 400:
                raise ConfigError(name, value, "at most 400")
        if self.round_period_s is not None and not self.deadline_s <= self.round_period_s <= LARGEST:
            raise ConfigError("round_period_s", self.round_period_s, f"at least deadline_s, {self.deadline_s} s")
        if not self.budget_j_per_round > 0:
            raise ConfigError("budget_j_per_round", self.budget_j_per_round, "a positive number of joules")
        if self.min_distance_m > self.radius_m:
            raise ConfigError("min_distance_m", self.min_distance_m, f"at most radius_m, {self.radius_m}")

    def _validate_channel(self) -> None:
        for name in ("fading_correlation", "channel_error"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(name, value, "at least 0 and less than 1")
        if not 0 <= self.shadowing_db <= 100:
            raise ConfigError("shadowing_db", self.shadowing_db, "a number of decibels between 0 and 100")
        self.movement.check(self)
        self.channel.check(self)

    def _validate_battery(self) -> None:
        """Refuse a battery that cannot be, or a harvest without one."""
        capacity_j, charge, source = self.battery_capacity_j, self.initial_charge, self.source
        if capacity_j is not None and not 0 < capacity_j < math.inf:
            raise ConfigError("battery_capacity_j", capacity_j, "a positive number of joules, or left out")
        if not 0 <= charge <= 1:
            raise ConfigError("initial_charge", charge, "a fraction of the capacity, from 0 to 1")
        if capacity_j is None and charge != 1:
            raise ConfigError("initial_charge", charge, "left out where there is no battery_capacity_j")
        if capacity_j is None and source.fills:
            expected = f"given where harvest is {source.name!r}: joules to fill"
            raise ConfigError("battery_capacity_j", capacity_j, expected)
        source.check(self)
