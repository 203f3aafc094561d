"""Channel models and models of movement by name: a new one is one module and one line."""

from __future__ import annotations

from kfl.wireless.channel import Channel, NoFading, Rayleigh
from kfl.wireless.gain_trace import GainTrace
from kfl.wireless.mobility import Mobility, NoMobility
from kfl.wireless.rician import Rician
from kfl.wireless.waypoint import Waypoint

CHANNELS: dict[str, type[Channel]] = {cls.name: cls for cls in (Rayleigh, NoFading, Rician, GainTrace)}
"""Channel models by the word that selects them."""
MOBILITIES: dict[str, type[Mobility]] = {cls.name: cls for cls in (NoMobility, Waypoint)}
"""Models of movement by the word that selects them."""
