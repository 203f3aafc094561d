"""How well the server hears its devices: h_k = h_0 |g_k(t)|² (d_0 / d_k)^v, d_0 = 1 m.

Path loss follows from the distance; fading, the complex coefficient g_k of a round, is what channel models differ in.
A model is a frozen dataclass that derives from `Channel`; its fields are options of `--radio.fading`. The draws of a
round are a function of its address (seed, purpose, round) alone; the state of the round before is passed along only to
save a recursion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.named import Named
from kfl.core.randomness import stream
from kfl.core.units import db_to_linear

if TYPE_CHECKING:
    from kfl.wireless.config import CellConfig

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Fading:
    """The state of a channel in one round: the fading coefficients, and what else it carries into the next."""

    round: int
    coefficient: ComplexArray
    """g_k of each device; |g_k|² is its power gain, 1 on average."""
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays that a model needs in the next round beside the coefficients; kept in checkpoints."""


@dataclass(frozen=True, eq=False)
class Gains:
    """The channel of one round, one entry per device."""

    true_gain: FloatArray
    """What decides whether an upload arrives."""
    known_gain: FloatArray
    """What the server plans with. The same as the true gain when the server knows the channel."""
    fading: Fading
    position_m: FloatArray
    """Where the devices are in this round: rows (x, y), the server at (0, 0)."""


@dataclass(frozen=True)
class Channel(Named, ABC):
    """A channel model. Only `fading` must be written."""

    @classmethod
    def registry(cls) -> Mapping[str, type[Channel]]:
        """`CHANNELS`."""
        from kfl.wireless.channels import CHANNELS

        return CHANNELS

    def check(self, cell: CellConfig) -> None:
        """Raise ConfigError for a value of the model's own fields, or of the cell's, that cannot work with it."""

    @abstractmethod
    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """The fading of one round. `previous` is that of an earlier round; without it the result is the same."""

    def positions(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Fading | None = None
    ) -> FloatArray:
        """Where devices that started at `start_m` are in a round: rows (x, y) in metres. By default they stay."""
        return start_m

    def known_power(self, cell: CellConfig, seed: int, round_index: int, coefficient: ComplexArray) -> FloatArray:
        """What the server takes |g|² for: the mean given what it knows.

        With `channel_error` σ² the server holds the estimate ĝ of the coefficient g = ĝ + e, with ĝ ~ CN(0, 1 − σ²)
        and an independent error e ~ CN(0, σ²), so that E|g|² = |ĝ|² + σ². This is for coefficients ~ CN(0, 1).
        """
        error = cell.channel_error
        if error == 0:
            return np.asarray(np.abs(coefficient) ** 2)
        noise = circular_normal(seed, "channel-estimate", round_index, len(coefficient))
        estimate = (1 - error) * coefficient + np.sqrt(error * (1 - error)) * noise
        return np.asarray(np.abs(estimate) ** 2 + error)

    def gains(
        self, cell: CellConfig, seed: int, round_index: int, start_m: FloatArray, previous: Fading | None = None
    ) -> Gains:
        """The channel gains of one round, and what the server knows of them, lowered by the margin."""
        position_m = self.positions(cell, seed, round_index, start_m, previous)
        fading = self.fading(cell, seed, round_index, len(start_m), previous)
        mean = path_gain(cell, np.hypot(position_m[:, 0], position_m[:, 1]))
        power = np.abs(fading.coefficient) ** 2
        known = self.known_power(cell, seed, round_index, fading.coefficient)
        margin = db_to_linear(-cell.channel_margin_db)
        return Gains(mean * power, mean * known * margin, fading, position_m)


def place_devices(cell: CellConfig, seed: int, devices: int) -> FloatArray:
    """Points (x, y) in metres, uniform over the disc around the server, outside its innermost metre(s).

    >>> from kfl.wireless import CellConfig
    >>> start_m = place_devices(CellConfig(), seed=0, devices=3)
    >>> bool((np.hypot(*start_m.T) <= 500).all())
    True
    """
    draw = stream(seed, "positions").random((devices, 2))
    inner, outer = cell.min_distance_m**2, cell.radius_m**2
    distance = np.sqrt(inner + (outer - inner) * draw[:, 0])
    angle = 2 * np.pi * draw[:, 1]
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1)


def path_gain(cell: CellConfig, distance_m: FloatArray) -> FloatArray:
    """h_0 (d_0 / d)^v with d_0 = 1 m, linear: the mean channel gain.

    >>> from kfl.wireless import CellConfig
    >>> float(path_gain(CellConfig(), np.array([10.0]))[0])
    1e-05
    """
    return np.asarray(db_to_linear(cell.reference_gain_db) * distance_m ** (-cell.path_loss_exponent))


def circular_normal(seed: int, purpose: str, round_index: int, devices: int) -> ComplexArray:
    """CN(0, 1) for each device; device k's draw does not depend on how many devices there are."""
    parts = stream(seed, purpose, round_index).standard_normal((devices, 2)) / np.sqrt(2.0)
    return np.asarray(parts[:, 0] + 1j * parts[:, 1])
