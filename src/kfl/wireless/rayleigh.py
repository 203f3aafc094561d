"""Rayleigh fading with memory, and no fading at all.

Over rounds the coefficient follows a Gauss–Markov process,

    g_t = ρ g_{t−1} + √(1 − ρ²) w_t,    w_t ~ CN(0, 1) drawn from `stream(seed, "fading", t)`,

so |g|² is Exp(1) in every round, and with ρ = 0 (the paper) rounds are independent. ρ is the cell's
`fading_correlation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kfl.core.errors import ConfigError
from kfl.wireless.channel import Channel, Fading, gauss_markov

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig


@dataclass(frozen=True)
class Rayleigh(Channel):
    """Rayleigh fading: no line of sight, power gain Exp(1) for each device and round.

    >>> from kfl.wireless import CellConfig
    >>> cell = CellConfig(fading_correlation=0.9)
    >>> step = Rayleigh().fading(cell, 7, 5, 3, previous=Rayleigh().fading(cell, 7, 4, 3))
    >>> bool((step.coefficient == Rayleigh().fading(cell, 7, 5, 3).coefficient).all())
    True
    """

    name: ClassVar[str] = "rayleigh"

    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """One step where an earlier round is at hand, else the whole recursion: the same."""
        return Fading(round_index, gauss_markov(cell, seed, round_index, devices, previous))


@dataclass(frozen=True)
class NoFading(Channel):
    """No fading: path loss alone, the same in every round."""

    name: ClassVar[str] = "none"

    def check(self, cell: CellConfig) -> None:
        """There is nothing to correlate and nothing to estimate."""
        for name in ("fading_correlation", "channel_error"):
            if getattr(cell, name) > 0:
                raise ConfigError(name, getattr(cell, name), f"0 when fading is {self.name!r}")

    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """1 for every device."""
        return Fading(round_index, np.ones(devices, dtype=np.complex128))
