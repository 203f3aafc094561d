"""Functions of one number that a compiler turns into vector instructions: no calls, no branches, only selects.

NumPy has such an exponential and logarithm for whole arrays, and the C library has them for one number, ten times
slower. These are plain arithmetic, so a loop over them runs in the widest registers there are, and gives the same bits
on every machine. Errors are a few units in the last place.

Importing this module imports Numba: it is for large rounds only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_compile: Any = njit  # functions keep the types that they are written with
_builtin: Any = intrinsic
_Function = TypeVar("_Function", bound=Callable[..., object])

_SHIFT = 1.5 * 2.0**52  # added and taken off again, it rounds to an integer and leaves that in the last bits
_SHIFT_BITS = np.int64(0x4338000000000000)
_MANTISSA = np.int64(52)
_BIAS = np.int64(1023)
_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)  # √½
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LN2 = math.log(2.0)
_PER_LN2 = 1.0 / _LN2


def compiled(function: _Function) -> _Function:
    """Compile a function without the GIL, as a part of others."""
    found: _Function = _compile(nogil=True, error_model="numpy")(function)
    return found


def inlined(function: _Function) -> _Function:
    """Compile a function into whatever calls it, so that a loop over it can become vector instructions."""
    found: _Function = _compile(nogil=True, error_model="numpy", forceinline=True)(function)
    return found


def kept(function: _Function) -> _Function:
    """Compile a function without the GIL, and keep the machine code on disk where some folder can be written.

    Numba sees when the function's own file changes, not those of what it calls: so its name there has a digest of all.
    """
    sources = sorted(Path(__file__).parent.glob("_compiled_*.py"))
    digest = hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=6).hexdigest()
    function.__qualname__ += f"_{digest}"
    try:
        found: _Function = _compile(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return compiled(function)
    return found


def _float_of_bits(context: Any, bits: Any) -> Any:
    """Read the bits of an integer as a float."""
    return types.float64(types.int64), lambda _c, builder, _s, given: builder.bitcast(given[0], ir.DoubleType())


def _bits_of_float(context: Any, value: Any) -> Any:
    """Read the bits of a float as an integer."""
    return types.int64(types.float64), lambda _c, builder, _s, given: builder.bitcast(given[0], ir.IntType(64))


_as_float: Any = _builtin(_float_of_bits)
_as_int: Any = _builtin(_bits_of_float)


@inlined
def exp(x: float) -> float:
    """Return eˣ, between e⁻⁷⁰⁸ and e⁷⁰⁹."""
    x = min(max(x, -708.0), 709.0)
    shifted = x * _PER_LN2 + _SHIFT
    whole = shifted - _SHIFT
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = 1 / 6227020800
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r * r + r
    power: float = _as_float((_as_int(shifted) + _BIAS) << _MANTISSA)  # 2 to the whole part
    return (1.0 + p) * power


@inlined
def log(x: float) -> float:
    """Return ln x of a positive number that is not denormal; −∞ for 0."""
    bits = _as_int(x)
    exponent = (bits - _ROOT_HALF) >> _MANTISSA
    mantissa = _as_float(bits - (exponent << _MANTISSA))  # within √½ and √2
    whole = _as_float(exponent + _SHIFT_BITS) - _SHIFT
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1 / 23
    p = p * z + 1 / 21
    p = p * z + 1 / 19
    p = p * z + 1 / 17
    p = p * z + 1 / 15
    p = p * z + 1 / 13
    p = p * z + 1 / 11
    p = p * z + 1 / 9
    p = p * z + 1 / 7
    p = p * z + 1 / 5
    p = p * z + 1 / 3
    value = whole * _LN2_HIGH + (whole * _LN2_LOW + (2.0 * s + 2.0 * s * z * p))
    return value if x > 0.0 else -math.inf


@inlined
def saving(x: float) -> float:
    """Return G(x) e⁻ˣ = x − 1 + e⁻ˣ, whose derivative, 1 − e⁻ˣ, is x less itself; d ln G/dx is x over it."""
    p = 1 / 87178291200
    p = 1 / 6227020800 - x * p
    p = 1 / 479001600 - x * p
    p = 1 / 39916800 - x * p
    p = 1 / 3628800 - x * p
    p = 1 / 362880 - x * p
    p = 1 / 40320 - x * p
    p = 1 / 5040 - x * p
    p = 1 / 720 - x * p
    p = 1 / 120 - x * p
    p = 1 / 24 - x * p
    p = 1 / 6 - x * p
    p = 1 / 2 - x * p
    near, far = x * x * p, (x - 1.0) + exp(-x)
    return near if x < 0.6 else far


@inlined
def guess_saving(log_y: float) -> float:
    """Return the x with G(x) = y within some percent: x ≈ √(2 y) near 0, x + ln(x − 1) ≈ ln y far out."""
    near = 1.5 * log(1.0 + exp(0.5 * min(log_y, 12.0) + 0.5 * _LN2) / 1.5)
    above = max(log_y, 3.0)
    first = above - log(above)
    far = above - log(first - 1.0 + 1.0 / first)
    # For tiny y the logarithm loses what is added to 1.
    tiny = exp(0.5 * min(log_y, 12.0) + 0.5 * _LN2)
    return far if log_y >= 6.0 else (near if log_y > -12.0 else tiny)


@inlined
def guess_squared(log_y: float) -> float:
    """Return the x with G(x)²/x = y within 4 %: x ≈ (4 y)^⅓ near 0, 2 x + ln x ≈ ln y far out."""
    p = exp((min(log_y, 12.0) + 2.0 * _LN2) / 3.0)
    near = 1.2 * log(1.0 + p / 1.2)
    half = max(0.5 * log_y, 3.0)
    first = half - 0.5 * log(half)
    far = half - 0.5 * log(first) + 1.0 / first
    return far if log_y >= 10.0 else (near if log_y > -18.0 else p)


@inlined
def log_ratio(s: float, b: float) -> float:
    """Return ln(s/b); near s = b the difference s − b is exact, and the quotient is not."""
    ratio = (s - b) / b
    small = ratio * (1.0 - ratio * (1 / 2 - ratio * (1 / 3 - ratio * (1 / 4 - ratio * (1 / 5 - ratio / 6)))))
    return small if ratio < 1e-3 else log(s / b)


@inlined
def start_growth(s: float, b: float) -> float:
    """Return x near (eˣ − 1)/x = s/b, for s > b."""
    r = log_ratio(s, b)
    near, far = 12.0 * r / (3.0 + math.sqrt(9.0 + 6.0 * r)), r + log(1.0 + r + log(1.0 + r))
    return near if r < 1.0 else far


@inlined
def step_growth(x: float, r: float) -> float:
    """Return x after a step of Newton's method to ln((eˣ − 1)/x) = r; four arrive."""
    square = x * x
    near = 0.5 * x + square * (1 / 24 - square * (1 / 2880 - square * (1 / 181440 - square / 9676800)))
    near_slope = 0.5 + x * (1 / 12 - square * (1 / 720 - square / 30240))
    decay = x - saving(x)  # 1 − e⁻ˣ
    far, far_slope = x + log(decay / x), 1.0 / decay - 1.0 / x
    value, slope = near if x < 0.25 else far, near_slope if x < 0.25 else far_slope
    return x - (value - r) / slope


@inlined
def inverse_growth(s: float, b: float) -> float:
    """Return x > 0 with (eˣ − 1)/x = s/b, for s > b."""
    x, r = start_growth(s, b), log_ratio(s, b)
    for _ in range(4):
        x = step_growth(x, r)
    return x
