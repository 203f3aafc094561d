"""The allocation problem as a user states it, checked, and as the curves the solver works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from kfl.core.errors import ConfigError
from kfl.scheduling.base import BoolArray, FloatArray
from kfl.scheduling.curve import energy_scale, min_share, required_exponent


@dataclass(frozen=True, eq=False)
class AllocationProblem:
    """Devices that share one band in one round; leading axes, if any, are a batch of such problems."""

    bandwidth_hz: ArrayLike
    """The whole band B; a number, or one per problem of the batch."""
    noise_w_per_hz: ArrayLike
    """Noise density N₀; a number, or one per problem of the batch."""
    gain: ArrayLike
    """Channel power gains h_k, linear, (..., n). Zero: the device cannot be heard."""
    payload_bits: ArrayLike
    upload_time_s: ArrayLike
    """Time left for the upload, T_max − T_L; zero or less makes a problem infeasible, not wrong."""
    max_power_w: ArrayLike
    weight: ArrayLike
    """Price w_k ≥ 0 of a joule of device k. If all are zero, the total energy is minimised."""
    share_floor: ArrayLike = 0.0
    """A lower limit on each share, beyond the one from the power limit."""
    included: ArrayLike | None = None
    """Mask (..., n) for batches of problems with different numbers of devices; None: all take part."""


@dataclass(frozen=True, eq=False)
class Curves:
    """A checked problem as curves: arrays (m, n), with neutral values where a device is not included."""

    batch_shape: tuple[int, ...]
    included: BoolArray
    time_s: FloatArray
    exponent: FloatArray
    scale_j: FloatArray
    snr: FloatArray
    share_floor: FloatArray
    floor: FloatArray
    """max(θ^min, share_floor); infinite where the device cannot finish."""
    weight: FloatArray

    @property
    def sends(self) -> BoolArray:
        """Devices with something to upload and a way to do it."""
        return (self.exponent > 0) & np.isfinite(self.floor)

    @classmethod
    def of(cls, problem: AllocationProblem) -> Curves:
        """Check a problem and put it in curve form; a bad value raises `ConfigError`."""
        shape, included, band, noise, fields = _checked(problem)
        gain, payload, time, power, weight, extra = fields
        with np.errstate(over="ignore"):
            snr = power * gain / (band * noise)
        exponent = required_exponent(payload, band, time)
        floor = np.maximum(min_share(snr, exponent), extra)
        return cls(
            batch_shape=shape[:-1],
            included=included,
            time_s=time,
            exponent=np.where(included, exponent, 0.0),
            scale_j=energy_scale(band, noise, np.maximum(time, 0.0), np.where(gain > 0, gain, 1.0)),
            snr=snr,
            share_floor=extra,
            floor=np.where(included, floor, 0.0),
            weight=weight,
        )


_RULES: dict[str, tuple[str, float]] = {
    "gain": ("a finite number, 0 or more", 0.0),
    "payload_bits": ("a finite number, 0 or more", 0.0),
    "upload_time_s": ("a finite number", -np.inf),
    "max_power_w": ("a finite number, 0 or more", 0.0),
    "weight": ("a finite number, 0 or more", 0.0),
    "share_floor": ("a finite number, 0 or more", 0.0),
}


def _checked(
    problem: AllocationProblem,
) -> tuple[tuple[int, ...], BoolArray, FloatArray, FloatArray, list[FloatArray]]:
    """Every field as an (m, n) array; the first bad entry is named with its device."""
    raw = {name: np.asarray(getattr(problem, name), float) for name in _RULES}
    mask = np.asarray(True if problem.included is None else problem.included, bool)
    try:
        shape = np.broadcast_shapes(*(array.shape for array in raw.values()), mask.shape)
    except ValueError:
        sizes = ", ".join(f"{name} {array.shape}" for name, array in raw.items())
        raise ConfigError("the devices' fields", sizes, "arrays of one common shape (..., devices)") from None
    if not shape or shape[-1] == 0:
        raise ConfigError("gain", [], "an array with one entry for each of at least one device")
    included = np.broadcast_to(mask, shape).reshape(-1, shape[-1])
    fields = []
    for name, (rule, least) in _RULES.items():
        array = np.broadcast_to(raw[name], shape)
        bad = ~(np.isfinite(array) & (array >= least)) & np.broadcast_to(mask, shape)
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ConfigError(f"{name} of device {where[-1]}{_row(where)}", float(array[where]), rule)
        neutral = 1.0 if name == "upload_time_s" else 0.0
        fields.append(np.where(included, array.reshape(included.shape), neutral))
    band = _positive("bandwidth_hz", problem.bandwidth_hz, shape)
    noise = _positive("noise_w_per_hz", problem.noise_w_per_hz, shape)
    return shape, included, band, noise, fields


def _positive(name: str, value: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    array = np.asarray(value, float)
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        raise ConfigError(name, float(array[bad].flat[0]), "a finite number greater than 0")
    try:
        return np.broadcast_to(array, shape[:-1]).reshape(-1, 1)
    except ValueError:
        raise ConfigError(name, array.shape, f"a number or an array of the batch shape {shape[:-1]}") from None


def _row(where: tuple[int, ...]) -> str:
    return f" in problem {', '.join(map(str, where[:-1]))}" if len(where) > 1 else ""
