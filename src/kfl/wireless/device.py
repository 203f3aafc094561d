"""The whole device: what a real processor and a real modem draw besides what the paper charges.

The paper charges a processor at a fixed clock and the radiated power alone, the *printed model*. Here a processor may
slow down and draws static power while it works; an amplifier wastes a part of what it draws; a radio's circuits draw
power while it sends; and a connection costs energy to open, to listen to, and to keep for a while after the last
packet. The energy of a device in a round then has six parts:

    computing    κ W³ / t_c²               W cycles in t_c seconds: the clock is W / t_c
    static       p_s t_c
    radiating    p t_u / η                 what the amplifier draws to radiate p for t_u seconds
    circuits     p_c t_u
    tail         E_0 + p_tail t_tail       once per round: opening the connection, and keeping it afterwards
    receiving    p_r t_r                   while the broadcast is on the air
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.wireless.channel import FloatArray

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

ENERGY_PARTS = ("computing", "static", "radiating", "circuits", "tail", "receiving")
"""Where the joules of a device go in a round."""
PRINTED = {
    "min_cpu_hz": None,
    "static_power_w": 0.0,
    "amplifier_efficiency": 1.0,
    "circuit_power_w": 0.0,
    "min_power_dbm": None,
    "connect_energy_j": 0.0,
    "receive_power_w": 0.0,
    "tail_power_w": 0.0,
    "tail_s": 0.0,
}
"""The fields of a cell that make the whole device, with the values that mean the printed model."""
LARGEST_POWER_W = 10.0
"""More than any battery device radiates, a phone has 0.2 W: such powers are questioned."""
MOST_POWER_W = 10_000.0
"""No device draws more; a larger number is in milliwatts, or of another machine."""


@dataclass(frozen=True, eq=False)
class DeviceCosts:
    """What the whole-device model knows of each device in a round besides the printed model; one entry per device."""

    cpu_hz: FloatArray
    """Fastest clock, f_max."""
    slowest_s: FloatArray
    """Seconds of the work at the slowest clock; those at the fastest where the clock is fixed."""
    work_j_s2: FloatArray
    """κ W³: computing for t seconds takes this over t²."""
    static_power_w: FloatArray
    """p_s, drawn while the processor computes."""
    circuit_power_w: FloatArray
    """p_c, drawn while the radio sends."""
    amplifier_efficiency: FloatArray
    """η: radiated power over what the amplifier draws for it."""
    min_power_w: FloatArray
    """Least radiated power while sending."""
    tail_j: FloatArray
    """Opening the connection, and the tail after the last packet; 0 for a device that has nothing to send."""
    receive_power_w: FloatArray
    """Drawn during the time reserved for the broadcast."""


def is_printed(config: CellConfig) -> bool:
    """Whether a cell's energy model is the paper's."""
    return all(getattr(config, name) == value for name, value in PRINTED.items())


def min_power_w(config: CellConfig) -> float:
    """Least radiated power in watts; 0 where there is none."""
    return 0.0 if config.min_power_dbm is None else dbm_to_watt(config.min_power_dbm)


def check_device(config: CellConfig) -> None:
    """Raise a `ConfigError` that names the first of the fields above that cannot work."""
    limits = {
        "static_power_w": (MOST_POWER_W, "watts"),
        "circuit_power_w": (MOST_POWER_W, "watts"),
        "receive_power_w": (MOST_POWER_W, "watts"),
        "tail_power_w": (MOST_POWER_W, "watts"),
        "connect_energy_j": (1e6, "joules"),
        "tail_s": (1e6, "seconds"),
    }
    for name, (most, unit) in limits.items():
        value = getattr(config, name)
        if not 0 <= value <= most:
            raise ConfigError(name, value, f"from 0 to {most:,.0f} {unit}")
    if not 0 < config.amplifier_efficiency <= 1:
        raise ConfigError(
            "amplifier_efficiency", config.amplifier_efficiency, "above 0 and at most 1: radiated over drawn power"
        )
    slowest, clocks = config.min_cpu_hz, config.cpu_frequencies_hz
    if slowest is not None and not 0 < slowest <= min(clocks):
        expected = f"above 0 and at most {min(clocks):g}, the smallest of cpu_frequencies_hz"
        raise ConfigError("min_cpu_hz", slowest, expected)
    least = config.min_power_dbm
    if least is not None and not (math.isfinite(least) and -400 <= least < config.max_power_dbm):
        expected = f"at least -400 and below max_power_dbm, {config.max_power_dbm:g}"
        raise ConfigError("min_power_dbm", least, expected)
