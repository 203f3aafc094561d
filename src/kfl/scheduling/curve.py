"""What a share of the band costs a device: one convex, falling curve per device, behind a small interface.

Allocation, Algorithm 3 and the dual scheduler know a device only by its `CostCurve`: the energy E(θ) of its upload
at a share θ, what a little more band would save, and the inverse of that. They need E to be convex and falling, and
nothing else. Another energy model is a subclass of `Uplink` with what it must know of a device, and a subclass of
`CostCurve`. `UploadCurve` is the paper's model, by the formulas at the end of this module.

With the time left T = T_max − T_L, the bandwidth B, the noise density N₀ and the channel gain h, put

    b = payload · ln 2 / (B T)        the *exponent* the device needs with the whole band,
    a = B N₀ T / h                    the *scale* of its energy, in joules,
    x = b / θ                         the exponent it needs with the share θ.

Then Proposition 1 (use all the time left) and equation (13) give

    E_U(θ) = a θ (eˣ − 1)             convex and falling in θ, with limit a b,
    −dE_U/dθ = a G(x),                G(x) = (x − 1) eˣ + 1,

so a multiplier μ on the band and a price w on the joule meet where G(x) = μ / (a w). The paper writes the
inverse of G with Lambert's function, x = 1 + W₀((y − 1)/e). That form loses every digit near the branch point
y = 0, where the paper's own settings live, and overflows for large payloads. Here the inverse takes log y and
has neither problem.

The least share has the same shape for the power limit and for an energy limit. Both say θ (eˣ − 1) ≤ s, with
s = p_max h / (B N₀) for the power and s = E / a for the energy, that is (eˣ − 1)/x ≤ s/b. This is the other
branch of Lambert's function, x = −W₋₁(−(b/s) e^(−b/s)) − b/s, and is solved here by Newton's method as well.

Every function takes numbers or arrays of any shape and works element by element, without warnings.

    >>> b = required_exponent(payload_bits=20_480, bandwidth_hz=5e6, upload_time_s=0.5)
    >>> a = energy_scale(bandwidth_hz=5e6, noise_w_per_hz=4e-21, upload_time_s=0.5, gain=1e-9)
    >>> x = inverse_marginal_saving(log_marginal_saving(b / 0.05))
    >>> bool(abs(x - b / 0.05) < 1e-15), float(f"{upload_energy(a, b, 0.05):.2g}")
    (True, 6e-08)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        """Lemma 3, equation (28)."""
        return share_at_price(log_price, self.log_scale + log_weight, self.exponent)

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


# ── The formulas ─────────────────────────────────────────────────────────────

_LN2 = float(np.log(2.0))

# G(x) = x² Σ_{m≥0} (m + 1)/(m + 2)! xᵐ; 18 terms leave less than one rounding error for x ≤ 1.
_SAVING_SERIES = tuple((m + 1) / factorial(m + 2) for m in range(18))
# ln((eˣ − 1)/x) − x/2 = Σ_{n≥1} B_{2n} x²ⁿ / (2n (2n)!); 10 terms leave less than one rounding error for x ≤ 1.
_GROWTH_SERIES = (
    1 / 24,
    -1 / 2880,
    1 / 181440,
    -1 / 9676800,
    1 / 479001600,
    -691 / 15692092416000,
    1 / 1046139494400,
    -3617 / 170729965486080000,
    43867 / 91963695909076992000,
    -174611 / 16057153253965824000000,
)


def required_exponent(payload_bits: ArrayLike, bandwidth_hz: ArrayLike, upload_time_s: ArrayLike) -> FloatArray:
    """The exponent b = payload · ln 2 / (B T); infinite where no time is left for the upload."""
    time = np.asarray(upload_time_s, float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.asarray(payload_bits, float) * _LN2 / (np.asarray(bandwidth_hz, float) * time)
    return np.where(time > 0, exponent, np.inf)


def energy_scale(
    bandwidth_hz: ArrayLike, noise_w_per_hz: ArrayLike, upload_time_s: ArrayLike, gain: ArrayLike
) -> FloatArray:
    """The scale a = B N₀ T / h in joules; infinite where the gain is zero."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        noise_j = np.asarray(bandwidth_hz, float) * np.asarray(noise_w_per_hz, float) * np.asarray(upload_time_s, float)
        return np.asarray(noise_j / np.asarray(gain, float))


def _polynomial(coefficients: tuple[float, ...], x: FloatArray) -> FloatArray:
    """Σ c_m xᵐ by Horner's rule, in place: these arrays are large and this is the inner loop."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total


def _piecewise(
    x: ArrayLike, edge: float, below: Callable[[FloatArray], FloatArray], above: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """`below(x)` where x < edge and `above(x)` elsewhere, each evaluated only where it is used."""
    points = np.asarray(x, float)
    low = points < edge
    if low.all():
        return below(points)
    if not low.any():
        return above(points)
    result = np.empty_like(points)
    result[low] = below(points[low])
    result[~low] = above(points[~low])
    return result


# ── The marginal saving G and its inverse ────────────────────────────────────


def log_marginal_saving(x: ArrayLike) -> FloatArray:
    """ln G(x), with G(x) = (x − 1) eˣ + 1 = −(dE_U/dθ)/a, for 0 ≤ x ≤ ∞.

    The closed form has lost every digit at x = 1e-8, so x < 1 uses G = Σ_{n≥2} (n − 1) xⁿ/n!.

    >>> float(log_marginal_saving(1.0)), float(log_marginal_saving(1e6)) > 1e6
    (0.0, True)
    """

    def below(x: FloatArray) -> FloatArray:
        return 2.0 * np.log(x) + np.log(_polynomial(_SAVING_SERIES, x))

    def above(x: FloatArray) -> FloatArray:
        return x + np.log((x - 1.0) + np.exp(-x))

    with np.errstate(divide="ignore", under="ignore"):
        return _piecewise(x, 1.0, below, above)


def marginal_saving(x: ArrayLike) -> FloatArray:
    """G(x) = (x − 1) eˣ + 1: joules saved per unit of share, in units of a. Infinite where it overflows."""

    def below(x: FloatArray) -> FloatArray:
        return x * x * _polynomial(_SAVING_SERIES, x)

    def above(x: FloatArray) -> FloatArray:
        return (x - 1.0) * np.exp(x) + 1.0

    with np.errstate(over="ignore", under="ignore"):
        return _piecewise(x, 1.0, below, above)


def inverse_marginal_saving(log_y: ArrayLike) -> FloatArray:
    """x = G⁻¹(y) = 1 + W₀((y − 1)/e), from ln y: accurate for y from far below 1e-300 to far above e^100000.

    >>> float(inverse_marginal_saving(0.0)), float(inverse_marginal_saving(np.inf))
    (1.0, inf)
    """
    with np.errstate(under="ignore"):
        return _piecewise(log_y, 0.0, _inverse_saving_below_one, _inverse_saving_above_one)


def _inverse_saving_below_one(log_y: FloatArray) -> FloatArray:
    """Newton on √(2 G(x)) = p = √(2 y), which is nearly a straight line, from a Padé form of x(p).

    x = p (1 − p/3 + 11 p²/72 − …) is the series of W₀ at its branch point. Its Padé form is wrong by 3e-4 at
    the far end (y = 1), so two steps reach rounding error.
    """
    p = np.sqrt(2.0) * np.exp(0.5 * log_y)
    x = p * (1.0 + p * (1 / 2 + p * (13 / 720))) / (1.0 + p * (5 / 6 + p * (103 / 720)))
    for _ in range(2):
        slope = np.sqrt(2.0 * _polynomial(_SAVING_SERIES, x))  # √(2 G) = slope · x
        x = x - (slope * x - p) * slope * np.exp(-x)
    return np.asarray(x, float)


def _inverse_saving_above_one(log_y: FloatArray) -> FloatArray:
    """Halley on x + ln(x − 1 + e⁻ˣ) = ln y, from Winitzki's form of W₀, which is wrong by at most 2 %."""
    finite = np.minimum(log_y, 1e150)
    m = finite - 1.0 + np.log1p((np.e - 1.0) * np.exp(-finite))
    x = 1.0 + m * (1.0 - np.log1p(m) / (2.0 + m))
    for _ in range(2):
        decay = np.exp(-x)
        inner = (x - 1.0) + decay
        step = (x + np.log(inner) - finite) * inner / x
        curvature = ((1.0 + x) * decay - 1.0) / (inner * x)  # F''/F'
        x -= step / (1.0 - 0.5 * step * curvature)
    return np.where(log_y == np.inf, np.inf, x)


def saving_elasticity(x: ArrayLike) -> FloatArray:
    """d ln x / d ln G = (x − 1 + e⁻ˣ)/x², between ½ (at x = 0) and 0: how fast the inverse of G moves.

    Good to 1e-9, which is plenty for the slope of a Newton step.
    """

    def below(x: FloatArray) -> FloatArray:
        return 1 / 2 - x * (1 / 6 - x * (1 / 24 - x * (1 / 120 - x / 720)))

    def above(x: FloatArray) -> FloatArray:
        return ((x - 1.0) + np.exp(-x)) / x / x

    with np.errstate(under="ignore"):
        return _piecewise(x, 0.05, below, above)


def share_at_price(log_price: ArrayLike, log_cost: ArrayLike, exponent: ArrayLike) -> FloatArray:
    """θ(μ) = b / G⁻¹(μ / (a w)), Lemma 3, equation (28): the share a device wants at the band price μ.

    `log_price` is ln μ and `log_cost` is ln(a w), with w the price of a joule. A device whose joules are free
    (w = 0, ln(a w) = −∞) wants nothing.
    """
    x = inverse_marginal_saving(np.asarray(log_price, float) - np.asarray(log_cost, float))
    with np.errstate(divide="ignore", under="ignore"):
        return np.where(np.asarray(exponent) > 0, np.asarray(exponent, float) / x, 0.0)


# ── The energy of an upload ──────────────────────────────────────────────────


def upload_energy(scale_j: ArrayLike, exponent: ArrayLike, share: ArrayLike) -> FloatArray:
    """Equation (13) with Proposition 1: E_U(θ) = a θ (e^(b/θ) − 1). Infinite where it overflows or θ = 0 < b."""
    a, b, theta = np.broadcast_arrays(np.asarray(scale_j, float), np.asarray(exponent, float), np.asarray(share, float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        energy = a * (theta * np.expm1(b / theta))
    return np.where(b > 0, np.where(theta > 0, energy, np.inf), 0.0)


def log_upload_energy(scale_j: ArrayLike, exponent: ArrayLike, share: ArrayLike) -> FloatArray:
    """ln E_U(θ), finite where `upload_energy` overflows; −∞ for an empty payload."""
    a, b, theta = np.broadcast_arrays(np.asarray(scale_j, float), np.asarray(exponent, float), np.asarray(share, float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        x = b / theta
        growth = np.where(x > 1.0, x + np.log1p(-np.exp(-x)), np.log(np.expm1(np.minimum(x, 1.0))))
        energy = np.log(a) + np.log(theta) + growth
    return np.where(b > 0, np.where(theta > 0, energy, np.inf), -np.inf)


# ── The least share ──────────────────────────────────────────────────────────


def min_share(snr: ArrayLike, exponent: ArrayLike) -> FloatArray:
    """The smallest θ ≤ 1 with θ ln(1 + s/θ) ≥ b, constraint (25a); infinite where even θ = 1 is too little.

    `snr` is s = p_max h / (B N₀): signal over noise at full power with the whole band. (25a) prints "log";
    it means log base 2, so that s and b are as above. A share exists exactly when ln(1 + s) ≥ b.

    >>> theta = float(min_share(snr=3.0, exponent=1.0))
    >>> bool(abs(theta * np.log1p(3.0 / theta) - 1.0) < 1e-15), float(min_share(snr=1.0, exponent=1.0))
    (True, inf)
    """
    s, b = np.broadcast_arrays(np.asarray(snr, float), np.asarray(exponent, float))
    possible = (b > 0) & np.isfinite(b) & (np.log1p(np.maximum(s, 0.0)) >= b)
    result = np.where(b > 0, np.inf, 0.0)
    x = inverse_growth(s[possible], b[possible])
    result[possible] = np.minimum(b[possible] / x, 1.0)
    return result


def share_for_energy(scale_j: ArrayLike, exponent: ArrayLike, energy_j: ArrayLike) -> FloatArray:
    """The smallest θ ≤ 1 with E_U(θ) ≤ energy; infinite where even θ = 1 costs more.

    A hard budget is this floor on the share, not a filter: E_U falls with θ, down to a b at most. It is
    `min_share` with E/a in the place of s.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.asarray(energy_j, float) / np.asarray(scale_j, float)
    # ∞/∞: an unlimited battery does not help a device without a channel.
    return min_share(np.where(np.isnan(ratio), 0.0, ratio), exponent)


def inverse_growth(s: FloatArray, b: FloatArray) -> FloatArray:
    """x > 0 with (eˣ − 1)/x = s/b, for s > b: Newton on Ψ(x) = ln((eˣ − 1)/x), whose slope is within (½, 1)."""
    with np.errstate(over="ignore"):
        # Near s = b the difference s − b is exact, and ln(s/b) is not.
        log_ratio = np.where(s < 2.0 * b, np.log1p((s - b) / b), np.log(s / b))
    r = np.minimum(log_ratio, 1e150)
    # Ψ(x) ≈ x/2 + x²/24 for small x and x − ln x for large.
    x = np.where(r < 1.0, 12.0 * r / (3.0 + np.sqrt(9.0 + 6.0 * r)), r + np.log1p(r + np.log1p(r)))
    for _ in range(5):
        x = x - (_log_growth(x) - r) / _log_growth_slope(x)
    return np.where(log_ratio == np.inf, np.inf, x)


def _log_growth(x: FloatArray) -> FloatArray:
    """Ψ(x) = ln((eˣ − 1)/x)."""

    def below(x: FloatArray) -> FloatArray:
        square = x * x
        return 0.5 * x + square * _polynomial(_GROWTH_SERIES, square)

    def above(x: FloatArray) -> FloatArray:
        return x + np.log1p(-np.exp(-x)) - np.log(x)

    with np.errstate(under="ignore"):
        return _piecewise(x, 1.0, below, above)


def _log_growth_slope(x: FloatArray) -> FloatArray:
    """Ψ'(x) = 1/(1 − e⁻ˣ) − 1/x, near 0 by its series (a Newton step needs only a few digits of it)."""

    def below(x: FloatArray) -> FloatArray:
        return 0.5 + x / 12.0 - x**3 / 720.0

    def above(x: FloatArray) -> FloatArray:
        return -1.0 / np.expm1(-x) - 1.0 / x

    with np.errstate(under="ignore"):
        return _piecewise(x, 1.0, below, above)
