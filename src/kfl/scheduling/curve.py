"""What a share of the band costs a device: one convex, falling curve per device, behind a small interface.

Allocation, Algorithm 3 and the dual scheduler know a device only by its `CostCurve`: the energy E(θ) of its upload
at a share θ, what a little more band would save, and the inverse of that. They need E to be convex and falling, and
nothing else. `UploadCurve` is the paper's model, by the formulas of `kfl.scheduling._upload_formulas`; the whole
device is `kfl.scheduling.device_curve`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import EllipsisType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling._upload_formulas import (
    inverse_marginal_saving,
    log_marginal_saving,
    log_upload_energy,
    saving_elasticity,
    share_for_energy,
    upload_energy,
)

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Index = NDArray[np.intp] | BoolArray | slice | tuple[EllipsisType, slice]


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
    def take(self, index: Index) -> CostCurve:
        """Some of the devices; of a batch, some rows."""

    @abstractmethod
    def only(self, members: BoolArray) -> CostCurve:
        """A batch with one row per row of `members`, in which all others send nothing."""

    def mismatch(self, share: ArrayLike, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """How far ln μ is from what a little more band is worth at a share; 0 at a kink whose slopes enclose it."""
        return np.asarray(self.log_saving(share, log_weight) - np.asarray(log_price, float))

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
    """Proposition 1 and equation (13): E(θ) = a θ (e^{b/θ} − 1), with −dE/dθ = a G(b/θ).

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
        return upload_energy(self.scale_j, self.exponent, share)

    def log_energy_j(self, share: ArrayLike) -> FloatArray:
        """The logarithm of equation (13)."""
        return log_upload_energy(self.scale_j, self.exponent, share)

    def log_saving(self, share: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """ln(a w) + ln G(b/θ)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            x = self.exponent / np.asarray(share, float)
            return np.asarray(self.log_scale + log_weight + log_marginal_saving(x))

    def elasticity(self, share: ArrayLike) -> FloatArray:
        """d ln x / d ln G at x = b/θ."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return saving_elasticity(self.exponent / np.asarray(share, float))

    def share_at_price(self, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """Lemma 3, equation (28): θ(μ) = b / G⁻¹(μ / (a w))."""
        return self._share_and_exponent(log_price, log_weight)[0]

    def share_for_energy(self, energy_j: ArrayLike) -> FloatArray:
        """The module's `share_for_energy`."""
        return share_for_energy(self.scale_j, self.exponent, energy_j)

    def break_even(self, log_value: FloatArray, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """a w b eˣ = value at x = b/θ, and ln μ = ln(a w) + ln G(x)."""
        log_cost = self.log_scale + log_weight
        with np.errstate(divide="ignore", invalid="ignore"):
            x = log_value - log_cost - np.log(self.exponent)
            share = np.where(x > 0, self.exponent / x, np.inf)
            return share, np.asarray(log_cost + log_marginal_saving(np.maximum(x, 0.0)))

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
            return share, saving_elasticity(x)

    def purchase(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one inverse of G."""
        share, x = self._share_and_exponent(log_price, log_weight)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            return share, np.asarray(self.scale_j * share * np.expm1(x))

    def _share_and_exponent(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """θ(μ), and x = b/θ."""
        x = inverse_marginal_saving(np.asarray(log_price, float) - (self.log_scale + log_weight))
        with np.errstate(divide="ignore", under="ignore"):
            return np.where(self.exponent > 0, self.exponent / x, 0.0), x
