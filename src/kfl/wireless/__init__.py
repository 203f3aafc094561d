"""The radio cell: where devices stand, what they hear, what a round costs them in time and energy.

>>> from kfl.wireless import PRESETS, Cell
>>> cell = Cell.build(PRESETS["paper-mnist"], devices=100, seed=0)
>>> link = cell.link_state(round_index=0, flops=5 * 600 * 550_346, payload_bits=640 * 32)
>>> bool(link.compute_energy_j.max() < 1.0)
True
"""

from kfl.scheduling import ENERGY_PARTS, Batteries
from kfl.wireless.cell import Cell, LinkState
from kfl.wireless.channel import Channel, Fading, Rayleigh, circular_normal
from kfl.wireless.channels import CHANNELS, MOBILITIES
from kfl.wireless.config import CellConfig
from kfl.wireless.costs import (
    compute_energy,
    compute_time,
    transmit_power,
    uplink_rate,
    upload_energy,
    upload_time,
)
from kfl.wireless.gain_trace import GainTrace
from kfl.wireless.hardware import Hardware
from kfl.wireless.harvest import HARVESTS, ConstantHarvest, Harvest, HarvestTrace, SolarHarvest
from kfl.wireless.mobility import Mobility
from kfl.wireless.presets import PRESET_SOURCES, PRESETS
from kfl.wireless.rician import Rician
from kfl.wireless.sizing import sized_cell
from kfl.wireless.waypoint import Waypoint

__all__ = [
    "CHANNELS",
    "ENERGY_PARTS",
    "HARVESTS",
    "MOBILITIES",
    "PRESETS",
    "PRESET_SOURCES",
    "Batteries",
    "Cell",
    "CellConfig",
    "Channel",
    "ConstantHarvest",
    "Fading",
    "GainTrace",
    "Hardware",
    "Harvest",
    "HarvestTrace",
    "LinkState",
    "Mobility",
    "Rayleigh",
    "Rician",
    "SolarHarvest",
    "Waypoint",
    "circular_normal",
    "compute_energy",
    "compute_time",
    "sized_cell",
    "transmit_power",
    "uplink_rate",
    "upload_energy",
    "upload_time",
]
