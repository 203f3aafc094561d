"""The formulas of the paper's upload: its energy over the share of the band, the slope of that, and their inverses.

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

from collections.abc import Callable
from math import factorial

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

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
