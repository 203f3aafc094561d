"""Rician fading: a line of sight, and scattered paths around it.

    g_t = √(K / (K + 1)) + √(1 / (K + 1)) s_t,    s_t as in Rayleigh fading

K is the power of the line of sight over that of all scattered paths; K → 0 is Rayleigh fading, K → ∞ none. The phase of
the line of sight is that of reference: scattered paths have no preferred phase, so it changes no gain. The server
knows the line of sight, which is the mean of g; its `channel_error` σ² is about the scattered part, whose variance is
1 / (K + 1), and cannot be larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from kfl.core.config import Range
from kfl.core.errors import ConfigError
from kfl.core.units import db_to_linear
from kfl.wireless.channel import Channel, ComplexArray, Fading, FloatArray, circular_normal, gauss_markov

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig


@dataclass(frozen=True)
class Rician(Channel):
    """Rician fading: a line of sight and scattered paths, mean power gain 1 for each device and round.

    >>> from kfl.wireless import CellConfig
    >>> cell = CellConfig(fading=Rician(k_factor_db=60.0))
    >>> np.abs(cell.channel.fading(cell, 0, 0, 3).coefficient).round(2)
    array([1., 1., 1.])
    """

    name: ClassVar[str] = "rician"

    k_factor_db: Annotated[float, Range(-100, 100, "a number of decibels between -100 and 100")] = 9.0
    """Power of the line of sight over that of the scattered paths, K."""

    @property
    def scattered(self) -> float:
        """Variance of the scattered part, 1 / (K + 1)."""
        return 1 / (1 + db_to_linear(self.k_factor_db))

    def check(self, cell: CellConfig) -> None:
        """The server cannot know less than the line of sight."""
        if cell.channel_error > self.scattered:
            raise ConfigError(
                "channel_error",
                cell.channel_error,
                f"at most {self.scattered:.4g}, the variance of the scattered paths, when fading.k_factor_db is "
                f"{self.k_factor_db:g}: the server knows the line of sight",
            )

    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """The line of sight, and a step of the scattered part."""
        scattered = gauss_markov(cell, seed, round_index, devices, previous, "scattered")
        memory = {"scattered": scattered} if cell.fading_correlation > 0 else {}
        return Fading(round_index, self._coefficient(scattered), memory)

    def known_power(self, cell: CellConfig, seed: int, round_index: int, coefficient: ComplexArray) -> FloatArray:
        """|ĝ|² + σ²: the estimate ĝ has the line of sight and what is known of the scattered part."""
        error = cell.channel_error / self.scattered
        if error == 0:
            return np.asarray(np.abs(coefficient) ** 2)
        line = np.sqrt(1 - self.scattered)
        noise = circular_normal(seed, "channel-estimate", round_index, len(coefficient))
        estimate = (1 - error) * (coefficient - line) + np.sqrt(self.scattered * error * (1 - error)) * noise
        return np.asarray(np.abs(line + estimate) ** 2 + cell.channel_error)

    def _coefficient(self, scattered: ComplexArray) -> ComplexArray:
        return np.asarray(np.sqrt(1 - self.scattered) + np.sqrt(self.scattered) * scattered)
