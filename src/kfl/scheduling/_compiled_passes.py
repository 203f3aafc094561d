"""One look at all devices of a large round at one price, compiled: what they take of the band, and who stays.

Devices go through in blocks that fit the innermost cache. Within a block each equation is solved for all its devices
together, so that the loops over them become vector instructions (`_compiled_math`); the few devices at a power limit
or at their floor go one by one (`_compiled_curve`). The equations are those of `kfl.scheduling._operating_points`, and
the printed model is the device whose clock is fixed and whose radio draws nothing but what it radiates.

A device's solution depends on its constants, the price and its first guess alone, and sums are taken in the order of
the devices, chunk by chunk: neither the number of threads nor who shares a block changes a bit.

Importing this module imports Numba: it is for large rounds only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._compiled_curve import (
    FREE,
    FULL,
    LEAST,
    PINNED,
    at_share,
    elasticity,
    energy,
    on_limit,
    with_clock,
)
from kfl.scheduling._compiled_math import (
    compiled,
    exp,
    guess_saving,
    guess_squared,
    kept,
    log,
    log_ratio,
    saving,
    start_growth,
    step_growth,
)

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

CHUNK = 8_192
"""Devices whose sums are added up together: a thread takes some chunks."""
SUMS = 5
"""Σ θ, −dΣθ/d ln μ, Σ min(φ, 0), Σ f and the number of the devices that stay."""

_ROW = 128  # devices in a block: its rows fit the innermost cache
# Rows of a block: what is known of its devices, then what is found, then a part of it close together.
_A, _C, _END, _CALM, _SLOW, _WORK, _CLOCK, _STATIC, _CIRCUIT, _FULL, _LEAST = (row * _ROW for row in range(11))
_WEIGHT, _VALUE, _FLOOR = (row * _ROW for row in range(11, 14))
_X, _TIME, _SHARE, _KIND, _LOG_TIME, _LOG_UNIT, _TARGET, _DONE, _PHI, _SLOPE = (row * _ROW for row in range(14, 24))
_PART_X, _PART_TARGET, _PART_BASE, _PART_END, _PART_CALM, _PART_SLOW, _PART_CLOCK, _PART_STATIC, _PART_CIRCUIT = (
    row * _ROW for row in range(24, 33)
)
_ROWS = 33 * _ROW

_CLOSE = 1e-5  # relative size of a Halley step behind which the next one is a rounding error
_SMALL = 1e-8  # size of a value behind whose Newton step the next one is a rounding error
_STEPS = 60
_PLAIN_STEPS = 8  # plain Newton steps of clocks; what is left goes on in a bracket
_HOPELESS = 1.1  # a device that must pay this much more than it is worth need not be looked at


# ── One equation for a part of a block ───────────────────────────────────────


@compiled
def _invert_saving(block: Floats, size: int) -> None:
    """Solve t G(x) = e^target for the close rows, whose x is t, by Halley's method.

    A device that has arrived stays where it is.
    """
    for i in range(size):
        block[_PART_TARGET + i] -= log(block[_PART_X + i])
        block[_PART_X + i] = guess_saving(block[_PART_TARGET + i])
        block[_DONE + i] = 0.0
    for _ in range(_STEPS):
        left = 0
        for i in range(size):
            x, done = block[_PART_X + i], block[_DONE + i]
            inner = saving(x)
            step = (x + log(inner) - block[_PART_TARGET + i]) * inner / x
            bend = 1.0 / x - (x - inner) / inner  # F''/F' of F = ln G: F' = x/inner, inner' = x − inner
            moved = max(x - step / (1.0 - 0.5 * step * bend), 0.2 * x)
            arrived = max(done, 1.0 if abs(moved - x) <= _CLOSE * x else 0.0)
            block[_PART_X + i] = x if done > 0.0 else moved
            block[_DONE + i] = arrived
            left += 1 if arrived == 0.0 else 0
        if left == 0:
            break


@compiled
def _circuits_alone(block: Floats, size: int) -> None:
    """Solve ln(G(x)²/x) = target for a whole block, by Halley's method: π = p_c, so G²/x is known."""
    for i in range(size):
        block[_X + i] = guess_squared(block[_TARGET + i])
        block[_DONE + i] = 0.0
    for _ in range(_STEPS):
        left = 0
        for i in range(size):
            x, done = block[_X + i], block[_DONE + i]
            inner = saving(x)
            rate = x / inner
            slope = 2.0 * rate - 1.0 / x
            step = (2.0 * x + log(inner * inner / x) - block[_TARGET + i]) / slope
            curvature = 2.0 * (1.0 - rate * (x - inner)) / inner + 1.0 / (x * x)
            moved = max(x - step / (1.0 - 0.5 * step * curvature / slope), 0.2 * x)
            arrived = max(done, 1.0 if abs(moved - x) <= _CLOSE * x else 0.0)
            block[_X + i] = x if done > 0.0 else moved
            block[_DONE + i] = arrived
            left += 1 if arrived == 0.0 else 0
        if left == 0:
            break


@compiled
def _clocks(block: Floats, size: int) -> int:
    """Solve ln π = base + ln(G(x)²/x), t = e^target / G(x), for the close rows; return how many have not arrived."""
    for i in range(size):
        compute = block[_PART_SLOW + i] - 0.05 * (block[_PART_END + i] - block[_PART_CALM + i])
        dynamic = max(block[_PART_CLOCK + i] / (compute * compute * compute) - block[_PART_STATIC + i], 0.0)
        block[_PART_X + i] = guess_squared(log(block[_PART_CIRCUIT + i] + dynamic) - block[_PART_BASE + i])
        block[_DONE + i] = 0.0
    left = size
    for _ in range(_PLAIN_STEPS):
        left = 0
        for i in range(size):
            x, done = block[_PART_X + i], block[_DONE + i]
            calm, clock, static = block[_PART_CALM + i], block[_PART_CLOCK + i], block[_PART_STATIC + i]
            circuit, end = block[_PART_CIRCUIT + i], block[_PART_END + i]
            inner = saving(x)
            rate = x / inner
            t = exp(block[_PART_TARGET + i] - x) / inner
            inside = min(max(t, calm), end)
            compute = block[_PART_SLOW + i] - (inside - calm)
            dynamic = clock / max(compute * compute * compute, 1e-300)
            price = circuit + max(dynamic - static, 0.0)
            value = block[_PART_BASE + i] + 2.0 * x + log(inner * inner / x) - log(price)
            moves = 3.0 * dynamic / compute * t * rate / price if inside == t else 0.0
            moved = max(x - value / (2.0 * rate - 1.0 / x + moves), 0.2 * x)
            arrived = max(done, 1.0 if abs(value) <= _SMALL else 0.0)
            block[_PART_X + i] = x if done > 0.0 else moved
            block[_DONE + i] = arrived
            left += 1 if arrived == 0.0 else 0
        if left == 0:
            break
    return left


# ── Where the devices of a block operate ─────────────────────────────────────


@compiled
def _constants(
    block: Floats, i: int
) -> tuple[float, float, float, float, float, float, float, float, float, float, float, float]:
    """Return what `_compiled_curve` wants to know of one device of a block."""
    a = block[_A + i]
    return (
        a,
        math.log(a),
        block[_C + i],
        block[_END + i],
        block[_CALM + i],
        block[_SLOW + i],
        block[_WORK + i],
        block[_CLOCK + i],
        block[_STATIC + i],
        block[_CIRCUIT + i],
        block[_FULL + i],
        block[_LEAST + i],
    )


@compiled
def _circuits_and_clock(block: Floats, size: int, lane: Places) -> None:
    """Set x, t and what decides them where circuits draw power or the clock is free; t is infinite for the others."""
    for i in range(size):
        circuit = block[_CIRCUIT + i]
        alone = circuit > 0.0 and block[_CALM + i] > 0.0
        target = block[_LOG_TIME + i] + log(circuit if alone else 1.0) - block[_LOG_UNIT + i]
        block[_TARGET + i] = target if alone else 0.0
    _circuits_alone(block, size)
    for i in range(size):
        x = block[_X + i]
        alone = block[_CIRCUIT + i] > 0.0 and block[_CALM + i] > 0.0
        t = exp(block[_LOG_TIME + i] - x) / saving(x)
        block[_TIME + i] = t if alone else math.inf
        block[_KIND + i] = float(FREE)
    # Later than T − t_m the clock gives way as well.
    count = 0
    for i in range(size):
        if block[_TIME + i] > block[_CALM + i] and block[_CALM + i] < block[_END + i]:
            lane[count] = i
            block[_PART_TARGET + count] = block[_LOG_TIME + i]
            block[_PART_BASE + count] = block[_LOG_UNIT + i] - block[_LOG_TIME + i]
            block[_PART_END + count] = block[_END + i]
            block[_PART_CALM + count] = block[_CALM + i]
            block[_PART_SLOW + count] = block[_SLOW + i]
            block[_PART_CLOCK + count] = block[_CLOCK + i]
            block[_PART_STATIC + count] = block[_STATIC + i]
            block[_PART_CIRCUIT + count] = block[_CIRCUIT + i]
            count += 1
    if count == 0:
        return
    if _clocks(block, count) > 0:
        for j in range(count):
            if block[_DONE + j] == 0.0:
                x = block[_PART_X + j]
                known = _constants(block, lane[j])
                guess = x if x < 1e6 else 1.0
                block[_PART_X + j] = with_clock(block[_PART_BASE + j], 1.0, block[_PART_TARGET + j], guess, known)
    for j in range(count):
        x = block[_PART_X + j]
        block[_PART_TARGET + j] = exp(block[_PART_TARGET + j] - x) / saving(x)
    for j in range(count):
        i, t = lane[j], block[_PART_TARGET + j]
        block[_X + i] = block[_PART_X + j]
        # Where the clock's equation leads back below T − t_m, where π jumps, t is T − t_m.
        block[_TIME + i] = t if t >= block[_CALM + i] else block[_CALM + i]
        block[_KIND + i] = float(FREE) if t >= block[_CALM + i] else float(PINNED)


@compiled
def _operate(block: Floats, size: int, lane: Places, log_price: float) -> None:
    """Set share, x, t and what decides them for the devices of a block at a price of the band."""
    rich = 0
    for i in range(size):
        a, c, end = block[_A + i], block[_C + i], block[_END + i]
        log_a = log(a)
        block[_LOG_TIME + i] = log_price - log(block[_WEIGHT + i]) - log_a  # ln(t G(x))
        block[_LOG_UNIT + i] = log_a + log(c)
        block[_TIME + i], block[_KIND + i] = end, float(PINNED)
        rich += 1 if block[_CIRCUIT + i] > 0.0 or block[_CALM + i] < end else 0
    if rich > 0:
        _circuits_and_clock(block, size, lane)
    # All the time, or all that the slowest clock leaves: x by the inverse of G.
    count = 0
    for i in range(size):
        if block[_KIND + i] == PINNED or block[_TIME + i] >= block[_END + i]:
            lane[count] = i
            block[_KIND + i] = float(PINNED)
            block[_TIME + i] = min(block[_TIME + i], block[_END + i])
            count += 1
    for j in range(count):
        i = lane[j]
        block[_PART_TARGET + j], block[_PART_X + j] = block[_LOG_TIME + i], block[_TIME + i]
    if count > 0:
        _invert_saving(block, count)
    for j in range(count):
        block[_X + lane[j]] = block[_PART_X + j]
    # Then the powers.
    count = 0
    for i in range(size):
        x, t = block[_X + i], block[_TIME + i]
        share = block[_C + i] / (x * t)
        drawn = block[_A + i] * share * exp(x) * (x - saving(x))
        block[_SHARE + i] = share
        beyond = (drawn > block[_FULL + i] and t < block[_END + i]) or drawn < block[_LEAST + i]
        block[_DONE + i] = 1.0 if beyond else 0.0
        count += 1 if beyond else 0
    if count > 0:
        for i in range(size):
            if block[_DONE + i] > 0.0:
                t, drawn = block[_TIME + i], block[_A + i] * block[_SHARE + i] * math.expm1(block[_X + i])
                full = drawn > block[_FULL + i]
                share, x, t, kind = on_limit(
                    log_price - math.log(block[_WEIGHT + i]),
                    block[_FULL + i] if full else block[_LEAST + i],
                    FULL if full else LEAST,
                    _constants(block, i),
                )
                block[_SHARE + i], block[_X + i], block[_TIME + i], block[_KIND + i] = share, x, t, float(kind)


@compiled
def _responses(block: Floats, size: int) -> None:
    """Set −d ln θ / d ln μ for the devices of a block."""
    limited = 0
    for i in range(size):
        x, t, calm = block[_X + i], block[_TIME + i], block[_CALM + i]
        pinned = saving(x) / (x * x)
        compute = block[_SLOW + i] - (t - calm)
        dynamic = block[_CLOCK + i] / max(compute * compute * compute, 1e-300) if t > calm else 0.0
        price = block[_CIRCUIT + i] + max(dynamic - block[_STATIC + i], 0.0)
        stiff = t * 3.0 * dynamic / compute if t > calm else 0.0
        loose = (2.0 - pinned) * price + stiff
        free = (price + stiff * pinned) / loose if loose > 0.0 else pinned
        kind = block[_KIND + i]
        block[_SLOPE + i] = free if kind == FREE else pinned
        limited += 1 if kind > FREE else 0
    if limited > 0:
        for i in range(size):
            if block[_KIND + i] > FREE:
                place = (block[_SHARE + i], block[_X + i], block[_TIME + i], int(block[_KIND + i]))
                block[_SLOPE + i] = elasticity(place, _constants(block, i))


@compiled
def _reduced_values(block: Floats, size: int, price: float) -> None:
    """Set φ = w E(θ) + μ θ − v for the devices of a block, with shares kept between floor and 1."""
    count = 0
    for i in range(size):
        x, t, c, share = block[_X + i], block[_TIME + i], block[_C + i], block[_SHARE + i]
        slow, calm = block[_SLOW + i], block[_CALM + i]
        late = max(min(t, block[_END + i]) - calm, 0.0)
        compute = slow - late
        gain = block[_WORK + i] * (slow + compute) / ((slow * compute) * (slow * compute)) - block[_STATIC + i]
        penalty = late * gain if late > 0.0 else 0.0
        growth = exp(x) * (x - saving(x)) / x
        spent = penalty + block[_CIRCUIT + i] * t + block[_A + i] * c * growth
        block[_PHI + i] = block[_WEIGHT + i] * spent + price * share - block[_VALUE + i]
        outside = share < block[_FLOOR + i] or share > 1.0 or not x > 0.0
        count += 1 if outside else 0
    if count > 0:
        for i in range(size):
            share = min(max(block[_SHARE + i], block[_FLOOR + i]), 1.0)
            if share != block[_SHARE + i]:
                known = _constants(block, i)
                spent = energy(at_share(share, known), known)
                block[_PHI + i] = block[_WEIGHT + i] * spent + price * share - block[_VALUE + i]


# ── All devices ──────────────────────────────────────────────────────────────


@compiled
def _enter(
    block: Floats, size: int, constants: tuple[Floats, ...], step: Places, k: int, weight: float, worth: float
) -> None:
    """Put the constants of device k into a block."""
    block[_A + size], block[_C + size] = constants[0][k * step[0]], constants[1][k * step[1]]
    block[_END + size], block[_CALM + size] = constants[2][k * step[2]], constants[3][k * step[3]]
    block[_SLOW + size], block[_WORK + size] = constants[4][k * step[4]], constants[5][k * step[5]]
    block[_CLOCK + size], block[_STATIC + size] = constants[6][k * step[6]], constants[7][k * step[7]]
    block[_CIRCUIT + size], block[_FULL + size] = constants[8][k * step[8]], constants[9][k * step[9]]
    block[_LEAST + size] = constants[10][k * step[10]]
    block[_WEIGHT + size], block[_VALUE + size] = weight, worth


@compiled
def _out(gap: float, reach: float, worth: float, least: float, cost: float) -> float:
    """Return the gap of a device that surely stays out, −1 of one to look at; `cost` is the least it would pay."""
    if not (worth > 0.0 and least < math.inf):
        return math.inf
    if gap > reach:
        return gap
    return 1e300 if cost > _HOPELESS * worth else -1.0


@compiled
def _leave(
    block: Floats, size: int, place: Places, price: float, choosing: bool, gap: Floats, share: Floats, total: Floats
) -> None:
    """Write down what a block's devices do, and add it up."""
    for j in range(size):
        there, wanted, least = place[j], block[_SHARE + j], block[_FLOOR + j]
        taken = max(wanted, least)
        if choosing:
            taken, phi = min(taken, 1.0), block[_PHI + j]
            gap[there], share[there] = phi / (price * taken), taken
            if not phi < 0.0:
                continue
            total[2] += phi
        else:
            gap[there], share[there] = block[_TIME + j], taken
            if not wanted > least:
                gap[there] = at_share(least, _constants(block, j))[2]
        slope = wanted * block[_SLOPE + j]
        total[0] += taken
        total[1] += slope if wanted > least else 0.0
        total[3] += least
        total[4] += 1.0


@kept
def look(
    constants: tuple[Floats, ...],
    step: Places,
    members: Places,
    queue_j: Floats,
    extra: float,
    value: Floats,
    floor: Floats,
    log_price: float,
    reach: float,
    gap: Floats,
    share: Floats,
    sums: Floats,
    first: int,
    last: int,
) -> None:
    """Look at the devices of some chunks at a price of the band.

    Devices stay while φ < 0, and `gap` says by how much: φ/(μ θ), about the distance of ln μ to the device's critical
    price. One whose gap was above `reach` before stays out. With a `reach` below 0 all members stay, and `gap` takes
    the seconds of their uploads.
    """
    block, lane, place = np.empty(_ROWS), np.empty(_ROW, np.int64), np.empty(_ROW, np.int64)
    price, choosing = math.exp(log_price), reach >= 0.0
    for chunk in range(first, last):
        # Apart, so that the order in which numbers are added does not depend on who is looked at.
        plain, total = np.zeros(SUMS), np.zeros(SUMS)
        size, end = 0, min((chunk + 1) * CHUNK, len(members))
        for i in range(chunk * CHUNK, end):
            k = members[i]
            weight, least, worth = queue_j[k] + extra, floor[k], value[k]
            a, c = constants[0][k * step[0]], constants[1][k * step[1]]
            out = _out(gap[i], reach, worth, least, weight * a * c + price * least) if choosing else -1.0
            if out >= 0.0:
                gap[i] = out
            elif weight == 0.0 or not c > 0.0:
                # Nothing to pay, or nothing to send: the least share.
                phi = price * least - worth
                share[i] = least
                gap[i] = constants[2][k * step[2]]
                if choosing:
                    gap[i] = phi / (price * least) if least > 0.0 else -math.inf
                if phi < 0.0 or not choosing:
                    plain[0] += least
                    plain[2] += phi
                    plain[3] += least
                    plain[4] += 1.0
            else:
                _enter(block, size, constants, step, k, weight, worth)
                block[_FLOOR + size], place[size] = least, i
                size += 1
            if size == _ROW or (size > 0 and i == end - 1):
                _operate(block, size, lane, log_price)
                _responses(block, size)
                if choosing:
                    _reduced_values(block, size, price)
                _leave(block, size, place, price, choosing, gap, share, total)
                size = 0
        for j in range(SUMS):
            sums[chunk, j] = plain[j] + total[j]


@kept
def least_shares(snr: Floats, exponent: Floats, floor: Floats, first: int, last: int) -> None:
    """Set the smallest θ ≤ 1 with θ ln(1 + s/θ) ≥ b; infinite where even θ = 1 is too little (equation 25a)."""
    block = np.empty(5 * _ROW)
    for begin in range(first * CHUNK, min(last * CHUNK, len(floor)), _ROW):
        size = min(_ROW, len(floor) - begin)
        for i in range(size):
            k = begin + i
            block[i], block[_ROW + i] = snr[k], exponent[k]
        for i in range(size):
            s, b = max(block[i], 0.0), block[_ROW + i]
            able = (b > 0.0) & (b < math.inf) & (log(1.0 + s) >= b) & (s > b)
            block[4 * _ROW + i] = 1.0 if able else (math.inf if b > 0.0 else 0.0)
            block[i], block[_ROW + i] = s if able else 2.0, b if able else 1.0
        for i in range(size):
            block[2 * _ROW + i] = start_growth(block[i], block[_ROW + i])
            block[3 * _ROW + i] = log_ratio(block[i], block[_ROW + i])
        for _ in range(4):
            for i in range(size):
                block[2 * _ROW + i] = step_growth(block[2 * _ROW + i], block[3 * _ROW + i])
        for i in range(size):
            able = block[4 * _ROW + i]
            floor[begin + i] = min(block[_ROW + i] / block[2 * _ROW + i], 1.0) if able == 1.0 else able


@kept
def spend(
    constants: tuple[Floats, ...],
    step: Places,
    members: Places,
    share: Floats,
    time_s: Floats,
    energy_j: Floats,
    power_w: Floats,
    first: int,
    last: int,
) -> None:
    """Set the joules beyond the cheapest computation, and the watts drawn to radiate, of uploads that take so long."""
    for chunk in range(first, last):
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(members))):
            k = members[i]
            a, c = constants[0][k * step[0]], constants[1][k * step[1]]
            end, calm = constants[2][k * step[2]], constants[3][k * step[3]]
            slow, work = constants[4][k * step[4]], constants[5][k * step[5]]
            static, circuit = constants[7][k * step[7]], constants[8][k * step[8]]
            t, theta = time_s[i], share[i]
            sends = c > 0.0 and t > 0.0 and theta > 0.0
            x = c / (theta * t) if sends else 1.0
            late = max(min(t, end) - calm, 0.0)
            compute = slow - late
            gain = work * (slow + compute) / ((slow * compute) * (slow * compute)) - static
            growth = exp(x) * (x - saving(x))
            energy_j[i] = (late * gain if late > 0.0 else 0.0) + circuit * t + a * theta * t * growth if sends else 0.0
            power_w[i] = a * theta * growth if sends else 0.0
