"""The whole device's cost curve for one device at a time, compiled: the cases that few devices are in.

These are the equations of `kfl.scheduling._operating_points`, where their derivation stands: power limits, shares at
the floor, and clocks whose equation needs a bracket. What nearly all devices need is in `_compiled_passes`.

Importing this module imports Numba: it is for large rounds only.
"""

from __future__ import annotations

import math

from kfl.scheduling._compiled_math import compiled, inverse_growth, saving

_CLOSE = 1e-5  # relative size of a Halley step behind which the next one is a rounding error
_SMALL = 1e-8  # size of a value behind whose Newton step the next one is a rounding error
_MOST_STEPS = 100
_NEWTON_STEPS = 30  # after these every other step is a bisection, so that the bracket must shrink

PINNED, FREE, FULL, LEAST, CORNER = range(5)
"""What decides how long an upload takes, as in `kfl.scheduling._device`."""

Constants = tuple[float, float, float, float, float, float, float, float, float, float, float, float]
"""a, ln a, c, t_end, T − t_m, t_m, κW³, 2 κW³ of a free clock, p_s, p_c, p_max/η and p_min/η of one device."""
Place = tuple[float, float, float, int]
"""Share, exponent x, seconds of the upload, and what decides them."""


@compiled
def time_price(t: float, d: Constants) -> tuple[float, float]:
    """Return π(t) = p_c + D'(t), what a second more of an upload costs in watts, and dπ/dt."""
    _, _, _, _, calm, slow, _, clock, static, circuit, _, _ = d
    if not t > calm or clock == 0.0:
        return circuit, 0.0
    compute = slow - (t - calm)
    dynamic = clock / max(compute * compute * compute, 1e-300)
    return circuit + max(dynamic - static, 0.0), 3.0 * dynamic / compute


@compiled
def energy(place: Place, d: Constants) -> float:
    """Return D(t) + p_c t + a θ t (eˣ − 1)."""
    share, x, t, _ = place
    a, _, c, end, calm, slow, work, _, static, circuit, _, _ = d
    if not c > 0.0:
        return 0.0
    if not share > 0.0:
        return math.inf
    late, penalty = min(t, end) - calm, 0.0
    if late > 0.0:
        compute = slow - late
        penalty = late * (work * (slow + compute) / (slow * compute) ** 2 - static)
    return penalty + circuit * t + a * c * (math.expm1(x) / x if x > 0.0 else 1.0)


@compiled
def limit_rate(x: float, c: float, snr: float) -> tuple[float, float, float, float]:
    """Return t and dt/dx of an upload at a fixed power, and ln(−dt/dθ · s²/c) and its derivative."""
    inner, growth = saving(x), math.expm1(x)
    unit, log_inner, log_x = c / snr, math.log(inner), math.log(x)
    log_growth = x + math.log(-math.expm1(-x))
    return (
        unit * growth / x,
        unit * math.exp(x + log_inner - 2.0 * log_x),
        log_inner - 2.0 * log_x + 2.0 * log_growth,
        x / inner - 2.0 / x - 2.0 / math.expm1(-x) - 1.0,
    )


@compiled
def elasticity(place: Place, d: Constants) -> float:
    """Return −d ln θ / d ln μ: by the inverse of G where the time is pinned; else the time gives way as well."""
    _, x, t, kind = place
    a, _, c, _, _, _, _, _, _, _, full, least = d
    if kind == CORNER or not x > 0.0:
        return 0.0 if kind == CORNER else 0.5
    if kind in (FULL, LEAST):
        watts = full if kind == FULL else least
        price, rise = time_price(t, d)
        _, stretch, _, slope = limit_rate(x, c, watts / a)
        return -1.0 / math.expm1(-x) / (rise * stretch / (watts + price) + slope)
    pinned = saving(x) / x / x if x < math.inf else 0.0
    if kind == PINNED:
        return pinned
    price, rise = time_price(t, d)
    stiff = t * rise
    loose = (2.0 - pinned) * price + stiff
    return (price + stiff * pinned) / loose if loose > 0.0 else pinned


# ── Where a device operates ──────────────────────────────────────────────────


@compiled
def inverse_saving(log_y: float, guess: float) -> float:
    """Return x with G(x) = y by Halley's method, from a guess where that is positive."""
    if log_y == math.inf:
        return math.inf
    x = guess
    if not x > 0.0:
        if log_y < 0.0:  # Padé form of the series of Lambert's function at its branch point
            p = math.exp(0.5 * (log_y + math.log(2.0)))
            x = p * (1.0 + p * (1 / 2 + p * (13 / 720))) / (1.0 + p * (5 / 6 + p * (103 / 720)))
        else:  # Winitzki's form
            m = log_y - 1.0 + math.log1p((math.e - 1.0) * math.exp(-log_y))
            x = 1.0 + m * (1.0 - math.log1p(m) / (2.0 + m))
    if not x > 0.0:
        return 0.0
    for _ in range(_MOST_STEPS):
        inner = saving(x)
        step = (x + math.log(inner) - log_y) * inner / x
        # F''/F' of F = ln G − ln y: F' = x/inner, and inner' = x − inner.
        bend = 1.0 / x - (x - inner) / inner
        moved = x - step / (1.0 - 0.5 * step * bend)
        moved = moved if moved > 0.0 else 0.2 * x
        close = abs(moved - x) <= _CLOSE * x
        x = moved
        if close:
            break
    return x


@compiled
def with_clock(base: float, falls: float, known: float, guess: float, d: Constants) -> float:
    """Return x at which π(t) is what a second saves, where the clock gives way; both continue beyond the limits.

    Either of a share, ln π = base + ln G(x) and t = known / x (`falls` is 0), or of a price,
    ln π = base + ln(G(x)²/x) and t = known / G(x) (`falls` is 1).
    """
    _, _, _, end, calm, _, _, _, _, _, _, _ = d
    x, low, high = guess, 0.0, math.inf
    for count in range(_MOST_STEPS):
        inner = saving(x)
        rate = x / inner
        if falls > 0.0:
            t, moves = math.exp(known - x) / inner, rate
            value, slope = base + 2.0 * x + math.log(inner * inner / x), 2.0 * rate - 1.0 / x
        else:
            t, moves = known / x, 1.0 / x
            value, slope = base + x + math.log(inner), rate
        inside = min(max(t, calm * (1.0 + 1e-15)), end)
        price, rise = time_price(inside, d)
        value -= math.log(price)
        if inside == t:
            slope += rise * t * moves / price
        if value <= 0.0:
            low = x
        if value >= 0.0:
            high = x
        step = -value / slope
        moved = x * x / (x - step) if step < 0.0 else x + step
        outside = not (low <= moved <= high) or (count >= _NEWTON_STEPS and count % 2 == 1)
        if outside:
            moved = 2.0 * x if high == math.inf else (math.sqrt(low * high) if low > 0.0 else 0.5 * high)
        x = moved
        if (abs(value) <= _SMALL and not outside) or high - low <= 4e-16 * x:
            break
    return x


@compiled
def on_limit(log_ratio: float, watts: float, kind: int, d: Constants) -> Place:
    """Return where −dE/dθ along a power limit is this price; the corner where the upload then takes all the time."""
    a, _, c, end, _, _, _, _, _, _, _, _ = d
    snr, need = watts / a, c / end
    target = log_ratio + 2.0 * math.log(snr) - math.log(c)
    edge = inverse_growth(snr, need) if snr > need > 0.0 else 0.0
    low, high = 0.0, edge if edge > 0.0 else math.inf
    x = edge if edge > 0.0 else 1.0
    for count in range(_MOST_STEPS):
        t, stretch, along, slope = limit_rate(x, c, snr)
        price, rise = time_price(t, d)
        value = math.log(watts + price) + along - target
        if count == 0 and edge > 0.0:
            if value <= 0.0:
                return c / (edge * end), edge, end, CORNER
            x = 0.5 * edge
            continue
        if value <= 0.0:
            low = x
        if value >= 0.0:
            high = x
        step = -value / (rise * stretch / (watts + price) + slope)
        moved = x * x / (x - step) if step < 0.0 else x + step
        outside = not (low <= moved <= high) or (count >= _NEWTON_STEPS and count % 2 == 1)
        if outside:
            moved = 2.0 * x if high == math.inf else (math.sqrt(low * high) if low > 0.0 else 0.5 * high)
        x = moved
        if not x > 1e-200:  # at this power even the widest share costs more than what is asked
            return math.inf, 0.0, c / snr, kind
        if (abs(value) <= _SMALL and not outside) or high - low <= 4e-16 * x:
            break
    t = c / snr * math.expm1(x) / x
    return c / (x * t), x, t, kind


@compiled
def at_share(share: float, d: Constants) -> Place:
    """Return the best split of the time for this share."""
    a, log_a, c, end, calm, _, _, _, _, circuit, full, least = d
    if not c > 0.0:
        return share, 0.0, end, PINNED
    wanted, log_scale = c / share, log_a + math.log(share)  # c/θ = x t, ln(a θ)
    x, t, kind = wanted / end, end, PINNED
    price, _ = time_price(end, d)
    if price > 0.0 and log_scale + x + math.log(saving(x)) < math.log(price):
        # A second less at the end saves more than it costs.
        t, kind = math.inf, FREE
        if calm > 0.0 and circuit > 0.0:
            x = inverse_saving(math.log(circuit) - log_scale, 0.0)
            t = wanted / x
        if t > calm and calm < end:
            short, _ = time_price(calm + 0.05 * (end - calm), d)
            x = with_clock(log_scale, 0.0, wanted, inverse_saving(math.log(short) - log_scale, 0.0), d)
            t = wanted / x
            if t < calm:
                t, kind = calm, PINNED
        if t >= end:
            t, kind = end, PINNED
    shortest = wanted / math.log1p(full / a / share)
    if t < shortest:
        t, kind = min(shortest, end), FULL if shortest < end else PINNED
    if least > 0.0:
        longest = wanted / math.log1p(least / a / share)
        if t > longest:
            t, kind = longest, LEAST
    return share, wanted / t, t, kind
