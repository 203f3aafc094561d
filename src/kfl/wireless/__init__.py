"""The radio cell: where devices stand, what they hear, what a round costs them in time and energy.

>>> from kfl.wireless import PRESETS, Cell
>>> cell = Cell.build(PRESETS["paper-mnist"], devices=100, seed=0)
>>> link = cell.link_state(round_index=0, flops=5 * 600 * 550_346, payload_bits=640 * 32)
>>> bool(link.compute_energy_j.max() < 1.0)
True
"""

from kfl.wireless.battery import Batteries
from kfl.wireless.cell import (
    Cell,
    LinkState,
    broadcast_time,
    compute_energy,
    compute_time,
    in_outage,
    transmit_power,
    uplink_rate,
    upload_energy,
    upload_time,
)
from kfl.wireless.channel import Channel, Fading, Gains, circular_normal, path_gain, place_devices
from kfl.wireless.channels import CHANNELS
from kfl.wireless.config import CellConfig
from kfl.wireless.harvest import HARVESTS, ConstantHarvest, Harvest, HarvestTrace, NoHarvest, Sun
from kfl.wireless.presets import PRESETS
from kfl.wireless.rayleigh import NoFading, Rayleigh

__all__ = [
    "CHANNELS",
    "HARVESTS",
    "PRESETS",
    "Batteries",
    "Cell",
    "CellConfig",
    "Channel",
    "ConstantHarvest",
    "Fading",
    "Gains",
    "Harvest",
    "HarvestTrace",
    "LinkState",
    "NoFading",
    "NoHarvest",
    "Rayleigh",
    "Sun",
    "broadcast_time",
    "circular_normal",
    "compute_energy",
    "compute_time",
    "in_outage",
    "path_gain",
    "place_devices",
    "transmit_power",
    "uplink_rate",
    "upload_energy",
    "upload_time",
]
