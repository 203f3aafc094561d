"""Where devices operate best: with a share of the band, at a price for it, or where taking part just pays.

With π(t) = p_c + D'(t), what a second more of the upload costs in watts (`kfl.scheduling._device`), the best split of
the time with a share θ, and the best share at a price μ of the band and w of the joule, are where

    π(t) = a θ G(x),        μ = w a t G(x),        x = c / (θ t).

With the circuits alone, π = p_c, either equation is one in x. With a free clock π gives t_c, and t + t_c = T is the
equation; where the circuits outweigh the clock, t_c follows badly from π, and π(t) is compared instead. Then come the
limits: all the time left, all that the slowest clock leaves (where π jumps), and the powers, with which
θ = s / (eˣ − 1) and t = c (eˣ − 1) / (s x), s = p / (η a).

Arrays are flat here, one entry per device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._device import CORNER, FREE, FULL, LEAST, PINNED, Devices, Kinds, Point
from kfl.scheduling._monotone_solvers import (
    Terms,
    entries,
    guess_saving,
    guess_squared,
    limit_slope_slope,
    limit_time,
    log_limit_slope,
    log_saving,
    saving,
    solve,
)
from kfl.scheduling._upload_formulas import inverse_marginal_saving
from kfl.scheduling.curve import BoolArray, FloatArray, Index

_ALL = slice(None)


def at_share(devices: Devices, share: FloatArray) -> Point:
    """Return the best split of the time for these shares (n,).

    First without power limits, where the costs or the end of the time decide; then within the powers: full power sets a
    shortest duration, the least power a longest one.
    """
    wanted = devices.airtime_s / share  # c/θ = x t
    upload_s = np.broadcast_to(devices.end_s, share.shape).copy()
    kind = np.zeros(share.shape, np.int8)
    # Step 1: at the end of the time a second more still saves more than it costs, π(t_end) ≤ a θ G(x): all the time.
    # Many devices are there, as all with the least share are, and this test is cheap.
    at_end = wanted / devices.end_s
    log_scale = devices.log_noise + np.log(share)
    early = log_scale + log_saving(at_end)[0] < np.log(devices.time_price(devices.end_s)[0])
    early &= np.isfinite(wanted) & (wanted > 0)
    if early.any():
        some = _index(early)
        upload_s[some], kind[some] = _early_times(devices.take(some), wanted[some], log_scale[some])
    # Step 2, full power: no upload is shorter than c / (θ ln(1 + s/θ)).
    shortest = wanted / np.log1p(devices.full_w / devices.noise_w / share)
    full = upload_s < shortest  # with less than the least share no power is enough: all the time, then
    if full.any():
        upload_s = np.where(full, np.minimum(shortest, devices.end_s), upload_s)
        kind[full] = np.where(shortest < devices.end_s, FULL, PINNED)[full]
    # Step 3, the least power: none is longer.
    if np.any(devices.least_w > 0):
        longest = wanted / np.log1p(devices.least_w / devices.noise_w / share)
        least = upload_s > longest
        upload_s = np.where(least, longest, upload_s)
        kind[least] = LEAST
    return Point(share, np.where(devices.airtime_s > 0, wanted / upload_s, 0.0), upload_s, kind)


def _early_times(devices: Devices, wanted: FloatArray, log_scale: FloatArray) -> tuple[FloatArray, Kinds]:
    """Return seconds of uploads with these c/θ and ln(a θ), without power limits, and what decides them."""

    def alone(some: Index) -> FloatArray:
        """a θ G(x) = p_c."""
        log_y = np.log(entries(devices.circuit_power_w, some)) - log_scale[some]
        return np.asarray(wanted[some] / inverse_marginal_saving(log_y))

    def together(some: Index) -> FloatArray:
        """t = c/(θ x), and t_c from π = a θ G(x)."""
        part, own, scale = devices.take(some), wanted[some], log_scale[some]
        clock = _Clock(part)

        def times(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            inner, rate = saving(x)
            return clock.times(own[index] / x, 1.0 / x, np.exp(scale[index] + x) * inner, rate, index)

        def prices(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            value, rate = log_saving(x)
            return clock.prices(own[index] / x, 1.0 / x, scale[index] + value, rate, index)

        guess = guess_saving(np.log(part.short_price()) - scale)
        return np.asarray(own / _by_weight(part, guess, times, prices))

    return _within_time(devices, wanted.shape, alone, together)


def at_price(devices: Devices, log_ratio: FloatArray) -> Point:
    """Return the best share and split of the time at these ln(μ/w), (n,).

    From μ = w a t G(x): where the time is pinned x follows by the inverse of G, else t and x are solved together. Then
    come the powers, along which the share and the time are one unknown.
    """
    log_time = log_ratio - devices.log_noise  # ln(t G(x))
    sends = np.broadcast_to(devices.airtime_s > 0, log_ratio.shape)
    upload_s = np.broadcast_to(devices.end_s, log_ratio.shape).copy()
    kind, x = np.zeros(log_ratio.shape, np.int8), np.zeros(log_ratio.shape)
    early = sends & ((devices.circuit_power_w > 0) | (devices.calm_s < devices.end_s)) & (devices.end_s > 0)
    if early.any():
        some = _index(early)
        x[some], upload_s[some], kind[some] = _early_at_price(devices.take(some), log_time[some])
    # All the time, or all that the slowest clock leaves: G(x) = μ / (w a t).
    pinned = kind == PINNED
    if pinned.any():
        x[pinned] = inverse_marginal_saving(log_time[pinned] - np.log(upload_s[pinned]))
    share = devices.airtime_s / (x * upload_s)
    share[~sends] = 0.0

    def on_limit(part: Devices, amplifier_w: FloatArray, mask: BoolArray) -> Terms:
        """ln(−dE/dθ along the limit) − ln(μ/w)."""
        snr = amplifier_w / part.noise_w
        target = log_ratio[mask] + 2.0 * np.log(snr) - np.log(part.airtime_s)

        def terms(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            one = part.take(index)
            time, stretch = limit_time(x, one.airtime_s, snr[index])
            price, rise = one.time_price(time)
            watts = amplifier_w[index] + price
            return (
                np.log(watts) + log_limit_slope(x) - target[index],
                rise * stretch / watts + limit_slope_slope(x),
            )

        return terms

    return _within_power(devices, Point(share, x, upload_s, kind), sends, on_limit)


def _early_at_price(devices: Devices, log_time: FloatArray) -> tuple[FloatArray, FloatArray, Kinds]:
    """Return x and t with π x t = a c G(x) and t G(x) = e^log_time, and what decides t.

    Where t is pinned, x is open.
    """
    log_energy = devices.log_noise + np.log(devices.airtime_s)
    exponent = np.empty(log_time.shape)
    # A price of 0 or of infinity, where joules are free: any number will do, for these are pinned.
    priced = np.isfinite(log_time)
    log_time = np.where(priced, log_time, np.log(devices.end_s))

    def alone(some: Index) -> FloatArray:
        """π = p_c: G(x)²/x is known."""
        own = log_time[some]
        log_y = own + np.log(entries(devices.circuit_power_w, some)) - log_energy[some]

        def terms(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            inner, rate = saving(x)
            return 2.0 * x + np.log(inner * inner / x) - log_y[index], 2.0 * rate - 1.0 / x

        exponent[some] = x = solve(guess_squared(log_y), terms)
        return np.asarray(np.exp(own - x) / saving(x)[0])

    def together(some: Index) -> FloatArray:
        """t = e^log_time / G(x), and t_c from π = a c G(x)/(x t)."""
        part, own, energy = devices.take(some), log_time[some], log_energy[some]
        clock, unit = _Clock(part), np.exp(energy + own)

        def times(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            # In place, since this is the inner loop of large fleets.
            inner, rate = saving(x)
            upload_s = np.exp(own[index] - x)
            upload_s /= inner  # t = e^log_time / G(x)
            price = x * upload_s
            price *= upload_s
            np.divide(unit[index], price, out=price)  # π = a c e^log_time / (x t²)
            rises = rate + rate
            rises -= 1.0 / x  # d ln π/dx
            return clock.times(upload_s, rate, price, rises, index)

        def prices(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            inner, rate = saving(x)
            log_price = energy[index] - own[index] + 2.0 * x + np.log(inner * inner / x)
            return clock.prices(np.exp(own[index] - x) / inner, rate, log_price, 2.0 * rate - 1.0 / x, index)

        guess = guess_squared(own + np.log(part.short_price()) - energy)
        exponent[some] = x = _by_weight(part, guess, times, prices)
        return np.asarray(np.exp(own - x) / saving(x)[0])

    upload_s, kind = _within_time(devices, log_time.shape, alone, together)
    return exponent, np.where(priced, upload_s, devices.end_s), np.where(priced, kind, PINNED).astype(np.int8)


def at_break_even(devices: Devices, log_worth: FloatArray) -> Point:
    """Return the point whose tangent meets the vertical axis at this worth in joules: D(t) + p_c t + a c eˣ = worth.

    With all the time, x follows in closed form; where its end would cost more than it saves, or leaves nothing of the
    worth, the upload ends earlier; then come the powers.
    """
    devices = devices.spread(log_worth.shape)
    log_energy = np.asarray(devices.log_noise + np.log(devices.airtime_s))
    worth, unit = np.exp(log_worth), np.exp(log_energy)
    end_cost = devices.penalty(devices.end_s) + devices.circuit_power_w * devices.end_s
    x = np.where(worth == np.inf, log_worth - log_energy, np.log((worth - end_cost) / unit))
    upload_s, kind = devices.end_s.copy(), np.zeros(worth.shape, np.int8)
    usable = np.isfinite(log_worth) & (devices.airtime_s > 0) & (devices.end_s > 0) & (worth > unit)
    # Is a second less worth more than it saves, π t x > a c G(x) at the end of the time?
    price, _ = devices.time_price(devices.end_s)
    too_late = np.log(price * devices.end_s * x) - log_energy > log_saving(np.maximum(x, 0.0))[0]
    early = usable & (price > 0) & (too_late | ~(x > 0))
    if early.any():
        some = _index(early)
        x[some], upload_s[some], kind[some] = _early_break_even(devices.take(some), worth[some], unit[some])
    x = np.where(x > 0, x, 0.0)
    share = np.where(x == np.inf, 0.0, np.where(x > 0, devices.airtime_s / (x * upload_s), np.inf))

    def on_limit(part: Devices, amplifier_w: FloatArray, mask: BoolArray) -> Terms:
        """ln(P t + D(t) + θ μ/w) − ln(worth)."""
        snr, target = amplifier_w / part.noise_w, log_worth[mask]

        def terms(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            one = part.take(index)
            time, stretch = limit_time(x, one.airtime_s, snr[index])
            price, rise = one.time_price(time)
            watts = amplifier_w[index] + price
            spent = (amplifier_w[index] + one.circuit_power_w) * time + one.penalty(time)
            band = watts * stretch * -np.expm1(-x)
            band_rises = band * (rise * stretch / watts + saving(x)[1] - 2.0 / x + 1.0 / np.expm1(x))
            return np.log(spent + band) - target[index], (watts * stretch + band_rises) / (spent + band)

        return terms

    return _within_power(devices, Point(share, x, upload_s, kind), usable & (x > 0), on_limit)


def _early_break_even(devices: Devices, worth: FloatArray, unit: FloatArray) -> tuple[FloatArray, FloatArray, Kinds]:
    """Return break-even points of uploads that end before the deadline; `unit` is a c."""
    exponent = np.empty(worth.shape)

    def alone(some: Index) -> FloatArray:
        """p_c t = a c G(x)/x, so the worth is a c (eˣ + G(x)/x)."""
        ratio = np.log(worth[some] / unit[some])

        def terms(x: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            inner, rate = saving(x)
            part = inner / x
            return x + np.log1p(part) - ratio[index], (1.0 + part * (rate - 1.0 / x)) / (1.0 + part)

        exponent[some] = x = solve(ratio, terms, 0.0, ratio)
        return np.asarray(unit[some] * np.exp(log_saving(x)[0]) / (x * devices.circuit_power_w[some]))

    def together(some: Index) -> FloatArray:
        """ln(π t) = ln(a c G(x)/x), with x from the worth; over t − (T − t_m)."""
        part, own, scale = devices.take(some), worth[some], unit[some]
        widest = part.end_s - part.calm_s

        def terms(late: FloatArray, index: Index = _ALL) -> tuple[FloatArray, FloatArray]:
            # What time and circuits leave of the worth is a c eˣ, which gives x.
            one = part.take(index)
            time = one.calm_s + late
            left = own[index] - one.penalty(time) - one.circuit_power_w * time
            x = np.log(left / scale[index])
            inside = x > 0
            x = np.where(inside, x, 1.0)
            value, rate = log_saving(x)
            # Balance of the costs there; beyond x = 0 nothing is left, so the value is above the root.
            price, rise = one.clock_price(time)
            residual = np.log(price * time * x / scale[index]) - value
            rises = 1.0 / time + rise / price + (rate - 1.0 / x) * price / left
            return np.where(inside, residual, np.inf), np.where(inside, rises, 1.0)

        # Where even at T − t_m a second is worth less than it costs, the solution lies below.
        at_calm = np.log((own - part.circuit_power_w * part.calm_s) / scale)
        first, _ = part.clock_price(part.calm_s)
        below = np.log(first * part.calm_s * at_calm / scale) >= log_saving(np.maximum(at_calm, 0.0))[0]
        below |= ~(at_calm > 0)
        x = np.log(own / scale)
        guess = np.exp(np.minimum(np.log(scale) + log_saving(x)[0], 600.0)) / (x * part.short_price())
        late = solve(np.clip(guess - part.calm_s, 1e-6 * widest, 0.5 * widest), terms, 0.0, widest)
        time = part.calm_s + late
        exponent[some] = np.log((own - part.penalty(time) - part.circuit_power_w * time) / scale)
        return np.where(below, -1.0, time)

    upload_s, kind = _within_time(devices, worth.shape, alone, together)
    pinned = kind == PINNED
    if pinned.any():
        left = worth - devices.penalty(upload_s) - devices.circuit_power_w * upload_s
        exponent = np.where(pinned, np.log(left / unit), exponent)
    return exponent, upload_s, kind


# ── Limits ───────────────────────────────────────────────────────────────────


class _Clock:
    """The two equations of devices with a free clock, π = p_c − p_s + 2 κW³ / t_c³."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._spare_w = devices.circuit_power_w - devices.static_power_w
        self._whole_s = devices.slow_s + devices.calm_s

    def times(
        self, upload_s: FloatArray, upload_falls: FloatArray, price_w: FloatArray, price_rises: FloatArray, index: Index
    ) -> tuple[FloatArray, FloatArray]:
        """ln T − ln(t + t_c), with t_c from π: nearly a straight line, since t and t_c fall nearly as exponentials.

        `upload_falls` is −d ln t/dx, and `price_rises` d ln π/dx.
        """
        values = (self._devices.clock_j_s2, self._spare_w, self._whole_s)
        clock, spare_w, whole_s = (entries(value, index) for value in values)
        dynamic = np.maximum(price_w - spare_w, 1e-300)  # below 0 no t_c is long enough
        compute_s = np.cbrt(clock / dynamic)  # π = p_c − p_s + 2 κW³ / t_c³, solved for t_c
        total_s = upload_s + compute_s
        # −d ln(t + t_c)/dx: t_c falls a third as fast as the dynamic part of π rises.
        slope = price_rises * price_w
        slope /= dynamic
        slope *= compute_s
        slope *= 1 / 3
        slope += upload_s * upload_falls
        slope /= total_s
        return np.log(whole_s / total_s), slope

    def prices(
        self,
        upload_s: FloatArray,
        upload_falls: FloatArray,
        log_price: FloatArray,
        price_rises: FloatArray,
        index: Index,
    ) -> tuple[FloatArray, FloatArray]:
        """ln π − ln π(t), with π(t) continued as a constant beyond its limits."""
        part = self._devices.take(index)
        inside = np.minimum(np.maximum(upload_s, part.calm_s), part.end_s)
        price, rise = part.clock_price(inside)
        rise *= inside == upload_s
        return log_price - np.log(price), price_rises + rise * upload_s * upload_falls / price


def _by_weight(devices: Devices, guess: FloatArray, times: Terms, prices: Terms) -> FloatArray:
    """Solve the equation that suits each device: `times` where the clock outweighs the circuits, else `prices`."""
    circuits = devices.circuit_power_w > 0.5 * devices.short_price()
    if not np.any(circuits):
        return solve(guess, times)
    if np.all(circuits):
        return solve(guess, prices)
    x = np.empty_like(guess)
    for mask, terms in ((~circuits, times), (circuits, prices)):
        where = np.flatnonzero(np.broadcast_to(mask, guess.shape))

        def some(
            x: FloatArray, index: Index = _ALL, where: NDArray[np.intp] = where, terms: Terms = terms
        ) -> tuple[FloatArray, FloatArray]:
            return terms(x, where[index])

        x[where] = solve(guess[where], some)
    return x


def _within_time(
    devices: Devices,
    shape: tuple[int, ...],
    alone: Callable[[Index], FloatArray],
    together: Callable[[Index], FloatArray],
) -> tuple[FloatArray, Kinds]:
    """Return times of uploads and what decides them, from solutions with the circuits alone and with the clock.

    Up to T − t_m the circuits alone decide. With the clock, D' is continued beyond its limits, so that a solution
    exists, and where it lies tells which limit binds: one below T − t_m, that t is T − t_m, where π jumps.
    """
    upload_s = np.full(shape, np.inf)
    calm = np.broadcast_to((devices.calm_s > 0) & (devices.circuit_power_w > 0), shape)
    if calm.any():
        some = _index(calm)
        upload_s[some] = alone(some)
    late = (upload_s > devices.calm_s) & (devices.calm_s < devices.end_s)
    stuck = np.zeros(shape, bool)
    if late.any():
        some = _index(late)
        upload_s[some] = together(some)
        stuck = late & (upload_s < devices.calm_s)
    kind = np.where(stuck | (upload_s >= devices.end_s), PINNED, FREE).astype(np.int8)
    return np.where(stuck, devices.calm_s, np.minimum(upload_s, devices.end_s)), kind


def _within_power(
    devices: Devices,
    point: Point,
    sends: BoolArray,
    on_limit: Callable[[Devices, FloatArray, BoolArray], Terms],
) -> Point:
    """Return the point with powers between the limits; `on_limit` gives the equation along one.

    Along a limit the time rises with x up to the corner, where the upload takes all the time: if the equation is
    still negative there, the corner is the answer.
    """
    drawn_w = devices.noise_w * point.share * np.expm1(point.exponent)
    full = sends & (drawn_w > devices.full_w) & (point.upload_s < devices.end_s)
    least = sends & (drawn_w < devices.least_w)
    share, x, upload_s, kind = point.share, point.exponent, point.upload_s, point.kind
    for mask, code, limit_w in ((full, FULL, devices.full_w), (least, LEAST, devices.least_w)):
        if mask.any():
            part = devices.spread(mask.shape).take(mask)
            amplifier_w = np.broadcast_to(limit_w, mask.shape)[mask]
            terms, edge = on_limit(part, amplifier_w, mask), part.corner_exponent(amplifier_w)
            corner = (edge > 0) & (terms(np.where(edge > 0, edge, 1.0))[0] <= 0)
            top = np.where(edge > 0, edge, np.inf)
            start = np.where(corner, top, np.minimum(np.where(edge > 0, 0.5 * edge, 1.0), top))
            own = np.where(corner, edge, solve(start, terms, np.where(corner, top, 0.0), top))
            time, _ = limit_time(own, part.airtime_s, amplifier_w / part.noise_w)
            # At this power even the widest share costs more than what is asked: a share without bounds, then.
            beyond = ~(own > 1e-200)
            x[mask] = np.where(beyond, 0.0, own)
            upload_s[mask] = np.where(
                beyond, part.airtime_s * part.noise_w / amplifier_w, np.where(corner, part.end_s, time)
            )
            kind[mask] = np.where(corner, CORNER, code)
            share[mask] = np.where(beyond, np.inf, part.airtime_s / (own * upload_s[mask]))
    return Point(share, x, upload_s, kind)


def _index(mask: BoolArray) -> Index:
    """Return a mask as an index; a slice where it holds everywhere, which copies nothing."""
    return _ALL if mask.all() else mask
