"""The radio cell: where devices stand, what they hear, what a round costs them in time and energy.

>>> from kfl.wireless import PRESETS, Cell
>>> cell = Cell.build(PRESETS["paper-mnist"], devices=100, seed=0)
>>> link = cell.link_state(round_index=0, flops=5 * 600 * 550_346, payload_bits=640 * 32)
>>> bool(link.compute_energy_j.max() < 1.0)
True
"""

from kfl.wireless.blocks import BlockSplit, round_to_blocks
from kfl.wireless.cell import Cell, LinkState
from kfl.wireless.channel import Fading, Gains, draw_gains, fading_at, path_gain, positions
from kfl.wireless.config import CellConfig
from kfl.wireless.cost import (
    broadcast_time,
    compute_energy,
    compute_time,
    in_outage,
    transmit_power,
    uplink_rate,
    upload_energy,
    upload_time,
)
from kfl.wireless.presets import PRESETS

__all__ = [
    "PRESETS",
    "BlockSplit",
    "Cell",
    "CellConfig",
    "Fading",
    "Gains",
    "LinkState",
    "broadcast_time",
    "compute_energy",
    "compute_time",
    "draw_gains",
    "fading_at",
    "in_outage",
    "path_gain",
    "positions",
    "round_to_blocks",
    "transmit_power",
    "uplink_rate",
    "upload_energy",
    "upload_time",
]
