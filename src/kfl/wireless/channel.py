"""How well the server hears its devices: h_k = h_0 |g_k(t)|² (d_0 / d_k)^v, d_0 = 1 m, times shadowing.

Path loss follows from the distance (`kfl.wireless.mobility`), shadowing from the place (`kfl.wireless.shadowing`);
fading, the complex coefficient g_k of a round, is what channel models differ in.
A model is a frozen dataclass that derives from `Channel`; its fields are options of `--radio.fading`. The draws of a
round are a function of its address (seed, purpose, round) alone; the state of the round before is passed along only to
save a recursion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Named
from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.core.units import db_to_linear
from kfl.wireless.shadowing import Surroundings, surroundings

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
    """Arrays that a model needs in the next round next to the coefficients; kept in checkpoints."""


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
        """Return the fading of one round.

        `previous` is that of an earlier round, which saves a recursion; without it the result is the same.
        """

    def known_power(self, cell: CellConfig, seed: int, round_index: int, coefficient: ComplexArray) -> FloatArray:
        """Return what the server takes |g|² for: the mean given what it knows.

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
        """Return the channel gains of one round, and what the server knows of them, lowered by the margin."""
        before = None if previous is None else Surroundings.read(previous.round, previous.memory)
        around = surroundings(cell, seed, round_index, start_m, before)
        position_m = around.motion.position_m
        fading = self.fading(cell, seed, round_index, len(start_m), previous)
        if not cell.movement.stays:
            fading = replace(fading, memory={**fading.memory, **around.memory()})
        mean = path_gain(cell, np.hypot(position_m[:, 0], position_m[:, 1]))
        if cell.shadowing_db > 0:
            mean = mean * 10 ** (around.shadow_db / 10)
        power = np.abs(fading.coefficient) ** 2
        known = self.known_power(cell, seed, round_index, fading.coefficient)
        margin = db_to_linear(-cell.channel_margin_db)
        return Gains(mean * power, mean * known * margin, fading, position_m)


def path_gain(cell: CellConfig, distance_m: FloatArray) -> FloatArray:
    """Return h_0 (d_0 / d)^v with d_0 = 1 m, linear: the mean channel gain.

    >>> from kfl.wireless import CellConfig
    >>> float(path_gain(CellConfig(), np.array([10.0]))[0])
    1e-05
    """
    return np.asarray(db_to_linear(cell.reference_gain_db) * distance_m ** (-cell.path_loss_exponent))


def circular_normal(seed: int, purpose: str, round_index: int, devices: int) -> ComplexArray:
    """Draw CN(0, 1) for each device; device k's draw does not depend on how many devices there are.

    Args:
        seed: Of the run.
        purpose: Names the stream.
        round_index: The round.
        devices: K.

    Returns:
        Complex numbers, (K,).
    """
    parts = stream(seed, purpose, round_index).standard_normal((devices, 2)) / np.sqrt(2.0)
    return np.asarray(parts[:, 0] + 1j * parts[:, 1])


def gauss_markov(
    cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None, state: str | None = None
) -> ComplexArray:
    """Return CN(0, 1) in every round, with the cell's `fading_correlation` ρ from one round to the next.

        s_t = ρ s_{t−1} + √(1 − ρ²) w_t,    w_t ~ CN(0, 1) drawn from `stream(seed, "fading", t)`

    One step where an earlier round is at hand, else the whole recursion: the same. The state is in the memory of
    `previous` under this name; without a name it is the coefficient itself.
    """
    rho = cell.fading_correlation
    if rho == 0:
        return circular_normal(seed, "fading", round_index, devices)
    at, value = 0, None
    if previous is not None and previous.round <= round_index:
        at, value = previous.round, previous.coefficient if state is None else previous.memory.get(state)
    if value is None:
        at, value = 0, circular_normal(seed, "fading", 0, devices)
    for t in range(at + 1, round_index + 1):
        value = rho * value + np.sqrt(1 - rho**2) * circular_normal(seed, "fading", t, devices)
    return value


# ── The paper's channel, and none ────────────────────────────────────────────


@dataclass(frozen=True)
class Rayleigh(Channel):
    """Rayleigh fading: no line of sight, power gain Exp(1) for each device and round.

    Over rounds the coefficient follows a Gauss–Markov process (`gauss_markov`) with the cell's `fading_correlation` ρ;
    with ρ = 0, as in the paper, rounds are independent.

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
        """Return the state of the Gauss–Markov process in this round."""
        return Fading(round_index, gauss_markov(cell, seed, round_index, devices, previous))


@dataclass(frozen=True)
class NoFading(Channel):
    """No fading: path loss alone, the same in every round."""

    name: ClassVar[str] = "none"

    def check(self, cell: CellConfig) -> None:
        """Refuse a correlation and an error of the estimate: there is nothing to correlate and nothing to estimate."""
        for name in ("fading_correlation", "channel_error"):
            if getattr(cell, name) > 0:
                raise ConfigError(name, getattr(cell, name), f"0 when fading is {self.name!r}")

    def fading(
        self, cell: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None
    ) -> Fading:
        """Return 1 for every device."""
        return Fading(round_index, np.ones(devices, dtype=np.complex128))
