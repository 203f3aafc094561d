"""What a share of the band costs a device: one convex, falling curve per device, behind a small interface.

Allocation, Algorithm 3 and the dual scheduler know a device only by its `CostCurve`: the energy E(θ) of its upload
at a share θ, what a little more band would save, and the inverse of that. They need E to be convex and falling, and
nothing else. `UploadCurve` is the paper's model. Another energy model is a subclass of `Uplink` with what it must
know of a device, and a subclass of `CostCurve`.

    >>> link = Uplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...               payload_bits=np.full(2, 1e6), upload_time_s=np.ones(2), max_power_w=np.ones(2))
    >>> link.curve.energy_j(np.array([0.2, 0.8])).round(6)
    array([2.50e-05, 4.41e-04])
    >>> link.power_floor().round(4)
    array([0.0446, 0.0657])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling import curve as formulas
from kfl.wireless import transmit_power

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Index = NDArray[np.intp] | BoolArray | slice


class CostCurve(ABC):
    """Energy of each device's upload over its share θ of the band: convex and falling. Arrays (n,) or (m, n).

    Every method works element by element and broadcasts. Prices are logarithms: `log_price` is ln μ, the price of the
    whole band, and `log_weight` is ln w, the price of a joule (−∞ where joules are free).
    """

    @property
    @abstractmethod
    def need(self) -> FloatArray:
        """How much of the band a device needs, relative to others: 0 for one that has nothing to send.

        Searches use it for a first guess only.
        """

    @property
    def sends(self) -> BoolArray:
        """Devices with something to upload."""
        return np.asarray(self.need > 0)

    @abstractmethod
    def priced(self, log_weight: FloatArray) -> BoolArray:
        """Devices that have something to send and pay for their joules: those that compete for the band."""

    @abstractmethod
    def energy_j(self, share: ArrayLike) -> FloatArray:
        """E(θ) in joules; infinite where it overflows or no share is given, 0 for a device that sends nothing."""

    @abstractmethod
    def log_energy_j(self, share: ArrayLike) -> FloatArray:
        """ln E(θ), finite where `energy_j` overflows."""

    @abstractmethod
    def log_saving(self, share: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """ln(−w dE/dθ): what a little more of the band is worth to a device."""

    @abstractmethod
    def elasticity(self, share: ArrayLike) -> FloatArray:
        """−d ln θ / d ln μ at a share, the slope of Newton steps."""

    @abstractmethod
    def share_at_price(self, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """θ(μ) with −w dE/dθ = μ: the share a device wants at this price; 0 where it wants none."""

    @abstractmethod
    def share_for_energy(self, energy_j: ArrayLike) -> FloatArray:
        """The smallest θ ≤ 1 with E(θ) ≤ energy; infinite where even the whole band costs more."""

    @abstractmethod
    def break_even(self, log_value: FloatArray, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The price at which w E(θ) + μ θ at the device's best share is `value`: that share, and ln μ.

        There the tangent of w E meets the vertical axis at `value`: w (E(θ) − θ dE/dθ) = value. Shares above 1 mean
        that the device breaks even only with more than the whole band.
        """

    @abstractmethod
    def copies(self, count: int) -> CostCurve:
        """The curve of `count` devices that share alike, count · E(θ/count): a sample stands for the fleet."""

    @abstractmethod
    def take(self, index: Index) -> CostCurve:
        """Some of the devices; of a batch, some rows."""

    @abstractmethod
    def only(self, members: BoolArray) -> CostCurve:
        """A batch with one row per row of `members`, in which all others send nothing."""

    # Some implementations have these for less than the two calls.

    def demand(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`share_at_price` and `elasticity` there."""
        share = self.share_at_price(log_price, log_weight)
        return share, self.elasticity(share)

    def purchase(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`share_at_price` and `energy_j` there."""
        share = self.share_at_price(log_price, log_weight)
        return share, self.energy_j(share)


@dataclass(frozen=True, eq=False)
class UploadCurve(CostCurve):
    """Proposition 1 and equation (13): E(θ) = a θ (e^{b/θ} − 1), with −dE/dθ = a G(b/θ); see `kfl.scheduling.curve`.

    >>> curve = UploadCurve.of(scale_j=np.array([1e-8]), exponent=np.array([0.05]))
    >>> share = curve.share_at_price(np.log(1e-9), np.zeros(1))
    >>> bool(abs(curve.log_saving(share, np.zeros(1))[0] - np.log(1e-9)) < 1e-12)
    True
    """

    scale_j: FloatArray
    """a = B N₀ T / h."""
    exponent: FloatArray
    """b = payload · ln 2 / (B T)."""
    log_scale: FloatArray
    """ln a."""

    @staticmethod
    def of(scale_j: FloatArray, exponent: FloatArray) -> UploadCurve:
        """The curves with these a and b."""
        with np.errstate(divide="ignore"):
            return UploadCurve(scale_j, exponent, np.log(scale_j))

    @staticmethod
    def silent(size: int) -> UploadCurve:
        """Devices that have nothing to send."""
        return UploadCurve(np.ones(size), np.zeros(size), np.zeros(size))

    @property
    def need(self) -> FloatArray:
        """The exponent b."""
        return self.exponent

    def priced(self, log_weight: FloatArray) -> BoolArray:
        """b > 0 and a w > 0."""
        with np.errstate(invalid="ignore"):
            return np.asarray((self.exponent > 0) & (self.log_scale + log_weight > -np.inf))

    def energy_j(self, share: ArrayLike) -> FloatArray:
        """Equation (13)."""
        return formulas.upload_energy(self.scale_j, self.exponent, share)

    def log_energy_j(self, share: ArrayLike) -> FloatArray:
        """The logarithm of equation (13)."""
        return formulas.log_upload_energy(self.scale_j, self.exponent, share)

    def log_saving(self, share: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """ln(a w) + ln G(b/θ)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            x = self.exponent / np.asarray(share, float)
            return np.asarray(self.log_scale + log_weight + formulas.log_marginal_saving(x))

    def elasticity(self, share: ArrayLike) -> FloatArray:
        """d ln x / d ln G at x = b/θ."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return formulas.saving_elasticity(self.exponent / np.asarray(share, float))

    def share_at_price(self, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """Lemma 3, equation (28)."""
        return formulas.share_at_price(log_price, self.log_scale + log_weight, self.exponent)

    def share_for_energy(self, energy_j: ArrayLike) -> FloatArray:
        """`kfl.scheduling.curve.share_for_energy`."""
        return formulas.share_for_energy(self.scale_j, self.exponent, energy_j)

    def break_even(self, log_value: FloatArray, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """a w b eˣ = value at x = b/θ, and ln μ = ln(a w) + ln G(x)."""
        log_cost = self.log_scale + log_weight
        with np.errstate(divide="ignore", invalid="ignore"):
            x = log_value - log_cost - np.log(self.exponent)
            share = np.where(x > 0, self.exponent / x, np.inf)
            return share, np.asarray(log_cost + formulas.log_marginal_saving(np.maximum(x, 0.0)))

    def copies(self, count: int) -> UploadCurve:
        """n a (θ/n) (e^{n b/θ} − 1): n times the exponent."""
        return replace(self, exponent=count * self.exponent)

    def take(self, index: Index) -> UploadCurve:
        """Some of the devices."""
        return UploadCurve(self.scale_j[index], self.exponent[index], self.log_scale[index])

    def only(self, members: BoolArray) -> UploadCurve:
        """The exponent of all others is 0."""
        shape = members.shape
        exponent = np.where(members, self.exponent, 0.0)
        return UploadCurve(np.broadcast_to(self.scale_j, shape), exponent, np.broadcast_to(self.log_scale, shape))

    def demand(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one inverse of G."""
        share, x = self._share_and_exponent(log_price, log_weight)
        with np.errstate(invalid="ignore"):
            return share, formulas.saving_elasticity(x)

    def purchase(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one inverse of G."""
        share, x = self._share_and_exponent(log_price, log_weight)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            return share, np.asarray(self.scale_j * share * np.expm1(x))

    def _share_and_exponent(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """θ(μ), and x = b/θ."""
        x = formulas.inverse_marginal_saving(np.asarray(log_price, float) - (self.log_scale + log_weight))
        with np.errstate(divide="ignore", under="ignore"):
            return np.where(self.exponent > 0, self.exponent / x, 0.0), x


@dataclass(frozen=True, eq=False)
class Uplink:
    """The shared band in one round, one entry per device: what the radio says, the least shares, the cost curves."""

    bandwidth_hz: float | FloatArray
    noise_w_per_hz: float | FloatArray
    gain: FloatArray
    """Channel power gain h_k, linear."""
    payload_bits: FloatArray
    upload_time_s: FloatArray
    """Time left for the upload, T_max − T_L. Zero or less: the device computes past the deadline."""
    max_power_w: FloatArray

    @cached_property
    def curve(self) -> CostCurve:
        """The energy of each device's upload over its share."""
        time_s = np.maximum(self.upload_time_s, 0.0)
        heard = np.where(self.gain > 0, self.gain, 1.0)  # a device that is not heard has no share that is enough
        return UploadCurve.of(
            formulas.energy_scale(self.bandwidth_hz, self.noise_w_per_hz, time_s, heard),
            formulas.required_exponent(self.payload_bits, self.bandwidth_hz, self.upload_time_s),
        )

    @property
    def snr(self) -> FloatArray:
        """s = p_max h / (B N₀): signal over noise at full power with the whole band."""
        with np.errstate(over="ignore"):
            return np.asarray(self.max_power_w * self.gain / (self.bandwidth_hz * self.noise_w_per_hz))

    def power_floor(self) -> FloatArray:
        """θ^min from the power limit, constraint (25a); infinite where no share is enough, or no time is left."""
        exponent = formulas.required_exponent(self.payload_bits, self.bandwidth_hz, self.upload_time_s)
        return formulas.min_share(self.snr, exponent)

    def power_w(self, share: ArrayLike) -> FloatArray:
        """Equation (24): the power with which an upload ends exactly in time; infinite where none does."""
        return transmit_power(
            share, self.payload_bits, self.upload_time_s, self.gain, self.bandwidth_hz, self.noise_w_per_hz
        )

    def most_energy_j(self) -> FloatArray:
        """Nobody can spend more on an upload: full power for all the time left."""
        return np.asarray(self.max_power_w * self.upload_time_s)

    def transmission(self, share: FloatArray, energy_j: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Power in watts and duration in seconds of an upload with these shares, which costs these joules.

        By Proposition 1 an upload takes all the time left.
        """
        time_s = np.where(self.upload_time_s > 0, self.upload_time_s, 1.0)
        return np.asarray(energy_j / time_s), np.where(share > 0, self.upload_time_s, 0.0)

    def take(self, index: Index) -> Self:
        """Some of the devices."""
        return self.mapped(lambda values: values[index])

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Self:
        """The same with every array changed alike, for example reshaped."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(values) for name, values in arrays.items() if np.ndim(values)})
