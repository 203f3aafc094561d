"""Equations with one rising side, solved for a whole array at once, and the functions of x that they are made of.

G is the marginal saving of `kfl.scheduling.curve`, in a form that does not branch: quicker by half, good to 1e-14.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.curve import FloatArray, Index

_LN2 = float(np.log(2.0))
_PLAIN_STEPS = 6  # over all devices,
_FIRST_STEPS = 2  # or only so many, if then most have arrived
_MAX_STEPS = 200  # of the few that have not arrived by then
_NEWTON_STEPS = 40  # after these every other step is a bisection, so that the bracket must shrink
_CLOSE = 1e-8  # size of the value before the last step: behind that step it is a rounding error

Terms = Callable[..., tuple[FloatArray, FloatArray]]
"""Value and slope at x, for all entries, or with a second argument for these entries."""


def solve(
    start: FloatArray, terms: Terms, low: FloatArray | float = 0.0, high: FloatArray | float = np.inf
) -> FloatArray:
    """Return the root of a rising function for each entry, by Newton's method; all entries are positive.

    Args:
        start: first guesses (n,).
        terms: `terms(x, index)` gives value and slope for the entries `index`, all without one; the value is the
            logarithm of what should be 1.
        low: no root is below.
        high: no root is above.

    Nearly all arrive in a few plain steps; the others go on in a bracket.
    """
    x: FloatArray = np.asarray(start, float)
    bounded = bool(np.ndim(high)) or bool(np.ndim(low))
    for count in range(_PLAIN_STEPS):
        value, slope = terms(x)
        open_ = ~(np.abs(value) <= _CLOSE)
        # A plain Newton step, which may go down to a fifth at most.
        step = np.divide(value, slope, out=slope)
        before, x = x, np.maximum(x - step, 0.2 * x)
        if bounded:
            x = np.minimum(np.maximum(x, low), high)
        # An entry whose value was small before the step is at its root to rounding behind it.
        left = int(np.count_nonzero(open_))
        if not left:
            return x
        if count >= _FIRST_STEPS and 4 * left < len(x):
            break
    # The few that are left go on from where they are, or from the last number that was finite.
    index = np.flatnonzero(open_)
    behind = np.where(np.isfinite(x[index]), x[index], before[index])
    x[index] = _in_bracket(behind, terms, index, entries(low, index), entries(high, index))
    return x


def entries(values: FloatArray | float, index: Index) -> FloatArray:
    """Return some entries of an array; a number stays one."""
    return np.asarray(values, float)[index] if np.ndim(values) else np.asarray(values, float)


def _in_bracket(x: FloatArray, terms: Terms, index: NDArray[np.intp], low: FloatArray, high: FloatArray) -> FloatArray:
    """`solve` for a few entries: a step that leaves the bracket becomes a bisection."""
    result, places = x.copy(), np.arange(len(x))
    low, high = np.broadcast_to(low, x.shape), np.broadcast_to(high, x.shape)
    for count in range(_MAX_STEPS):
        # The sign of the value tells on which side of x the root is.
        value, slope = terms(x, index)
        low = np.where(value <= 0, x, low)
        high = np.where(value >= 0, x, high)
        # Newton's step; downwards in 1/x, which never reaches 0.
        step = -value / slope
        moved = np.where(step < 0, x * x / (x - step), x + step)
        outside = ~((moved >= low) & (moved <= high)) | (count >= _NEWTON_STEPS and count % 2 == 1)
        # Else the bracket's middle: geometric where it can be, doubling while nothing is above.
        middle = np.where(high < np.inf, np.where(low > 0, np.sqrt(low * high), 0.5 * high), 2.0 * x)
        moved = np.where(outside, middle, moved)
        arrived = (np.abs(value) <= _CLOSE) & ~outside | (high - low <= 4e-16 * x) | (low >= high)
        result[places] = moved
        going = ~arrived
        if not going.any():
            break
        places, index = places[going], index[going]
        x, low, high = moved[going], low[going], high[going]
    return result


# ── Functions of x ───────────────────────────────────────────────────────────


def saving(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return G(x) e⁻ˣ = x − 1 + e⁻ˣ, and d ln G/dx = x eˣ / G(x): good to 1e-14, and quick since it does not branch."""
    inner = np.expm1(-x)
    inner += x
    small = x < 0.03
    if small.any():
        y = x[small]
        inner[small] = y * y * (1 / 2 - y * (1 / 6 - y * (1 / 24 - y * (1 / 120 - y * (1 / 720 - y / 5040)))))
    return inner, x / inner


def log_saving(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return ln G(x) and its derivative."""
    inner, rate = saving(x)
    return x + np.log(inner), rate


def limit_time(x: FloatArray, airtime_s: FloatArray, snr: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return t = c (eˣ − 1) / (s x) of an upload at a fixed power, and dt/dx = c G(x) / (s x²)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unit = airtime_s / snr
        return unit * np.expm1(x) / x, unit * np.exp(log_saving(x)[0] - 2.0 * np.log(x))


def log_limit_slope(x: FloatArray) -> FloatArray:
    """Return ln(G(x) (eˣ − 1)² / (x² eˣ)): −dt/dθ of an upload at a fixed power, in units of c / s²."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        growth = x + np.log(-np.expm1(-x))  # ln(eˣ − 1)
        return np.asarray(log_saving(x)[0] - 2.0 * np.log(x) + 2.0 * growth - x)


def limit_slope_slope(x: FloatArray) -> FloatArray:
    """Return the derivative of `log_limit_slope`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        _, slope = log_saving(x)
        return np.asarray(slope - 2.0 / x - 2.0 / np.expm1(-x) - 1.0)


def guess_squared(log_y: FloatArray) -> FloatArray:
    """Return the x with G(x)²/x = y within 4 %.

    Near 0, G²/x ≈ x³/4, so x ≈ p = (4 y)^⅓; far out 2 x + ln x ≈ ln y, by two fixed-point steps.
    """
    p = np.exp(np.minimum(log_y, 12.0) / 3.0 + 2.0 / 3.0 * _LN2)
    half = np.maximum(0.5 * log_y, 3.0)
    first = half - 0.5 * np.log(half)
    return np.where(log_y < 10.0, 1.2 * np.log1p(p / 1.2), half - 0.5 * np.log(first) + 1.0 / first)


def guess_saving(log_y: FloatArray) -> FloatArray:
    """Return the x with G(x) = y within some percent: x ≈ √(2 y) near 0, x + ln(x − 1) ≈ ln y far out."""
    p = np.exp(0.5 * np.minimum(log_y, 12.0) + 0.5 * _LN2)
    above = np.maximum(log_y, 3.0)
    first = above - np.log(above)
    return np.where(log_y < 6.0, 1.5 * np.log1p(p / 1.5), above - np.log(first - 1.0 + 1.0 / first))
