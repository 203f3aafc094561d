"""The radio cell: where devices stand, what they hear, what a round costs them in time and energy.

>>> from kfl.wireless import PRESETS, Cell
>>> cell = Cell.build(PRESETS["paper-mnist"], devices=100, seed=0)
>>> link = cell.link_state(round_index=0, flops=5 * 600 * 550_346, payload_bits=640 * 32)
>>> bool(link.compute_energy_j.max() < 1.0)
True
"""

from kfl.wireless.cell import Cell, LinkState
from kfl.wireless.channel import Channel, Fading, Rayleigh, circular_normal
from kfl.wireless.channels import CHANNELS, MOBILITIES
from kfl.wireless.config import CellConfig
from kfl.wireless.gain_trace import GainTrace
from kfl.wireless.hardware import Hardware
from kfl.wireless.harvest import HARVESTS, ConstantHarvest, Harvest, HarvestTrace, SolarHarvest
from kfl.wireless.mobility import Mobility
from kfl.wireless.presets import PRESETS
from kfl.wireless.rician import Rician
from kfl.wireless.waypoint import Waypoint

__all__ = [
    "CHANNELS",
    "HARVESTS",
    "MOBILITIES",
    "PRESETS",
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
]
