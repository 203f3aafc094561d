"""Channel models by name: a new one is one module and one line in `CHANNELS`."""

from __future__ import annotations

from kfl.wireless.channel import Channel
from kfl.wireless.rayleigh import NoFading, Rayleigh

CHANNELS: dict[str, type[Channel]] = {cls.name: cls for cls in (Rayleigh, NoFading)}
"""Channel models by the word that selects them."""
