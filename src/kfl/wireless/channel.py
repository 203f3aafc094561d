"""Where devices stand and how well the server hears them: h_k = h_0 ρ_k(t) (d_0 / d_k)^v, d_0 = 1 m.

Fading is a complex coefficient g with |g|² = ρ. Over rounds it follows a Gauss–Markov process,

    g_t = ρ g_{t−1} + √(1 − ρ²) w_t,    w_t ~ CN(0, 1) drawn from `stream(seed, "fading", t)`,

so |g|² is Exp(1) in every round, and with ρ = 0 (the paper) rounds are independent. The coefficient of a
round is a function of its address alone; the previous one is passed along only to save the recursion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kfl.core.randomness import stream
from kfl.core.units import db_to_linear
from kfl.wireless.config import CellConfig
from kfl.wireless.cost import FloatArray

ComplexArray = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Fading:
    """The fading coefficients of one round: all that a correlated channel carries into the next."""

    round: int
    coefficient: ComplexArray


@dataclass(frozen=True, eq=False)
class Gains:
    """The channel of one round, one entry per device."""

    true_gain: FloatArray
    """What decides whether an upload arrives."""
    known_gain: FloatArray
    """What the server plans with. The same as the true gain when the server knows the channel."""
    fading: Fading


def positions(radio: CellConfig, seed: int, devices: int) -> FloatArray:
    """Points (x, y) in metres, uniform over the disc around the server, outside its innermost metre(s).

    >>> where = positions(CellConfig(), seed=0, devices=3)
    >>> bool((np.hypot(*where.T) <= 500).all())
    True
    """
    draw = stream(seed, "positions").random((devices, 2))
    inner, outer = radio.min_distance_m**2, radio.radius_m**2
    distance = np.sqrt(inner + (outer - inner) * draw[:, 0])
    angle = 2 * np.pi * draw[:, 1]
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1)


def path_gain(radio: CellConfig, distance_m: FloatArray) -> FloatArray:
    """h_0 (d_0 / d)^v with d_0 = 1 m, linear: the mean channel gain.

    >>> float(path_gain(CellConfig(), np.array([10.0]))[0])
    1e-05
    """
    return np.asarray(db_to_linear(radio.reference_gain_db) * distance_m ** (-radio.path_loss_exponent))


def _circular_normal(seed: int, purpose: str, round_index: int, devices: int) -> ComplexArray:
    """CN(0, 1) for each device; device k's draw does not depend on how many devices there are."""
    parts = stream(seed, purpose, round_index).standard_normal((devices, 2)) / np.sqrt(2.0)
    return np.asarray(parts[:, 0] + 1j * parts[:, 1])


def fading_at(radio: CellConfig, seed: int, round_index: int, devices: int, previous: Fading | None = None) -> Fading:
    """The fading of one round. With the round before at hand one step, else the whole recursion: the same.

    >>> radio = CellConfig(fading_correlation=0.9)
    >>> step = fading_at(radio, 7, 5, 3, previous=fading_at(radio, 7, 4, 3))
    >>> bool((step.coefficient == fading_at(radio, 7, 5, 3).coefficient).all())
    True
    """
    if radio.fading == "none":
        return Fading(round_index, np.ones(devices, dtype=np.complex128))
    rho = radio.fading_correlation
    if rho == 0:
        return Fading(round_index, _circular_normal(seed, "fading", round_index, devices))
    if previous is not None and previous.round <= round_index:
        at, coefficient = previous.round, previous.coefficient
    else:
        at, coefficient = 0, _circular_normal(seed, "fading", 0, devices)
    for t in range(at + 1, round_index + 1):
        coefficient = rho * coefficient + np.sqrt(1 - rho**2) * _circular_normal(seed, "fading", t, devices)
    return Fading(round_index, coefficient)


def draw_gains(
    radio: CellConfig, seed: int, round_index: int, distance_m: FloatArray, previous: Fading | None = None
) -> Gains:
    """The channel gains of one round, and what the server knows of them.

    With `channel_error` σ² the server holds the estimate ĝ of the coefficient g = ĝ + e, with ĝ ~ CN(0, 1 − σ²)
    and an independent error e ~ CN(0, σ²), and plans with E|g|² = |ĝ|² + σ², lowered by the margin.
    """
    devices = len(distance_m)
    fading = fading_at(radio, seed, round_index, devices, previous)
    mean = path_gain(radio, distance_m)
    power = np.abs(fading.coefficient) ** 2
    error = radio.channel_error
    if error > 0:
        noise = _circular_normal(seed, "channel-estimate", round_index, devices)
        estimate = (1 - error) * fading.coefficient + np.sqrt(error * (1 - error)) * noise
        known = np.abs(estimate) ** 2 + error
    else:
        known = power
    margin = db_to_linear(-radio.channel_margin_db)
    return Gains(true_gain=mean * power, known_gain=mean * known * margin, fading=fading)
