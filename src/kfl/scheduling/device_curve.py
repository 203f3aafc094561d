"""The whole device as a cost curve: a clock that may be slowed, circuits that draw power, an amplifier that wastes it.

The printed model charges a fixed clock and the radiated power. Here a device that has T seconds for both computes for
t_c and uploads for t, t_c + t ≤ T, and spends

    computing    E_c(t_c) = κW³ / t_c² + p_s t_c              p_s: static power while the processor is awake
    upload       E_u(θ, t) = p_c t + a θ t (eˣ − 1)            p_c: circuits while sending, a = B N₀ / (η h)

with η the amplifier's efficiency, x = c / (θ t), c = payload · ln 2 / B, and the radiated power η a θ (eˣ − 1) within
[p_min, p_max]. What a share costs is the least of it over the split of the time,

    E(θ) = min_t { D(t) + E_u(θ, t) },        D(t) = E_c(T − t) − E_c(t_m) where t > T − t_m, else 0,

beyond the cheapest computation E_c(t_m), which no share changes: t_m is the slowest useful clock, by the limit f_min,
by the deadline, or by the static power (2 κW³ = p_s t_m³, from where on slowness costs more than it saves). Both terms
are jointly convex in (θ, t) and fall with θ, so E is convex and falling, and allocation, Algorithm 3 and the dual's
bound stay as they are. The least power is the one limit that is not convex in (θ, t); E is convex all the same, since
the power limits turn the upload's time into Q / r(θ) with a concave rate r.

With π(t) = p_c + D'(t), what a second more of the upload costs in watts, the best point is where

    π(t) = a θ G(x)        and, at a price μ of the band and w of the joule,        μ = w a t G(x),

G as in `kfl.scheduling.curve`. With a fixed clock π = p_c, and if the whole time is used as well, these are the
printed formulas: Proposition 1 holds exactly where p_c ≤ a θ G(c / (θ t_end)), t_end the time left at the fastest
clock. Four kinds of points occur:

    PINNED    t is all the time left (or all that the slowest clock leaves): printed formulas with this t
    FREE      the two equations above
    FULL      the best power would exceed p_max:   θ = s / (eˣ − 1), t = c (eˣ − 1) / (s x), s = p_max / (η a)
    LEAST     it would be below p_min: the same with p_min

Every one is a monotone equation in x, solved for all devices at once by a safeguarded Newton method.

    >>> curve = DeviceCurve.of(
    ...     bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-12]), payload_bits=1e5, max_power_w=0.2,
    ...     time_s=1.0, fastest_s=0.4, slowest_s=4.0, work_j_s2=0.016, circuit_power_w=0.1, amplifier_efficiency=0.4)
    >>> compute_s, upload_s, power_w = curve.operation(np.array([0.5]))
    >>> compute_s.round(3), upload_s.round(3), power_w.round(3)
    (array([0.949]), array([0.051]), array([0.029]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling.curve import (
    BoolArray,
    CostCurve,
    FloatArray,
    Index,
    inverse_growth,
    inverse_marginal_saving,
    log_marginal_saving,
    saving_elasticity,
)

_LN2 = float(np.log(2.0))
_MAX_STEPS = 200
_PLAIN_STEPS = 40  # after these every other step is a bisection, so that the bracket must shrink
_FULL_STEPS = 3  # so many steps over everybody before those that have arrived are left out

PINNED, FREE, FULL, LEAST, CORNER = range(5)
"""What decides how long an upload takes: the time there is, its costs, the largest power, the least, time and power."""

Kinds = NDArray[np.int8]
Terms = Callable[..., tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, eq=False)
class Point:
    """Where devices operate: share, exponent x, seconds of the upload, and which of the four kinds it is."""

    share: FloatArray
    exponent: FloatArray
    upload_s: FloatArray
    kind: Kinds


@dataclass(frozen=True, eq=False)
class DeviceCurve(CostCurve):
    """Joules of a whole device beyond its cheapest computation, over its share of the band. Make it with `of`.

    Arrays (n,) or (m, n); a number where all devices have the same.
    """

    noise_w: FloatArray
    """a = B N₀ / (η h)."""
    log_noise: FloatArray
    """ln a."""
    airtime_s: FloatArray
    """c = payload · ln 2 / B; 0 for a device that sends nothing."""
    end_s: FloatArray
    """t_end = T − t_min, the most that an upload can take."""
    calm_s: FloatArray
    """T − t_m, at most t_end: uploads up to here leave the computation as cheap as it gets."""
    slow_s: FloatArray
    """t_m, the time of the cheapest computation."""
    work_j_s2: FloatArray
    """κW³: computing for t_c seconds takes κW³ / t_c² joules."""
    static_power_w: FloatArray
    circuit_power_w: FloatArray
    full_w: FloatArray
    """p_max / η: what the amplifier draws at full power."""
    least_w: FloatArray
    """p_min / η."""
    efficiency: FloatArray
    """η."""

    @staticmethod
    def of(
        *,
        bandwidth_hz: ArrayLike,
        noise_w_per_hz: ArrayLike,
        gain: ArrayLike,
        payload_bits: ArrayLike,
        max_power_w: ArrayLike,
        time_s: ArrayLike,
        fastest_s: ArrayLike = 0.0,
        slowest_s: ArrayLike | None = None,
        work_j_s2: ArrayLike = 0.0,
        static_power_w: ArrayLike = 0.0,
        circuit_power_w: ArrayLike = 0.0,
        amplifier_efficiency: ArrayLike = 1.0,
        min_power_w: ArrayLike = 0.0,
    ) -> DeviceCurve:
        """The curves of these devices.

        `time_s` is for computation and upload together, `fastest_s` and `slowest_s` (the same by default: a fixed
        clock) what the computation takes at the fastest and the slowest clock, and `work_j_s2` is κW³.
        """
        gains, share_of_time = np.asarray(gain, float), np.asarray(time_s, float)
        fast = np.asarray(fastest_s, float)
        slow = fast if slowest_s is None else np.asarray(slowest_s, float)
        work, static = np.asarray(work_j_s2, float), np.asarray(static_power_w, float)
        efficiency = np.asarray(amplifier_efficiency, float)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # A device that is not heard has no share that is enough, so any gain will do.
            noise = np.asarray(bandwidth_hz, float) * np.asarray(noise_w_per_hz, float) / efficiency
            noise = noise / np.where(gains > 0, gains, 1.0)
            idle = np.where(static > 0, np.cbrt(2.0 * work / static), np.inf)
            slow = np.maximum(np.minimum(np.minimum(slow, idle), share_of_time), fast)
            end = np.maximum(share_of_time - fast, 0.0)
            calm = np.where(slow > fast, np.maximum(share_of_time - slow, 0.0), end)
            airtime = np.asarray(payload_bits, float) * _LN2 / np.asarray(bandwidth_hz, float)
            given = {
                "noise_w": noise,
                "log_noise": np.log(noise),
                "airtime_s": airtime,
                "end_s": end,
                "calm_s": calm,
                "slow_s": slow,
                "work_j_s2": work,
                "static_power_w": static,
                "circuit_power_w": np.asarray(circuit_power_w, float),
                "full_w": np.asarray(max_power_w, float) / efficiency,
                "least_w": np.asarray(min_power_w, float) / efficiency,
                "efficiency": efficiency,
            }
        shape = np.broadcast_shapes(*(np.shape(values) for values in given.values()))
        every = {"noise_w", "log_noise"}  # the devices are counted by these
        return DeviceCurve(
            **{name: np.broadcast_to(v, shape) if name in every else _thin(v, shape) for name, v in given.items()}
        )

    # ── What the device does ─────────────────────────────────────────────────

    @property
    def base_j(self) -> FloatArray:
        """E_c(t_m): joules of the cheapest computation."""
        with np.errstate(divide="ignore", invalid="ignore"):
            computing = np.where(self.work_j_s2 > 0, self.work_j_s2 / self.slow_s**2, 0.0)
        return np.asarray(computing + self.static_power_w * self.slow_s)

    def operation(self, share: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of computation, seconds of the upload and radiated watts with these shares.

        A device without a share, or with nothing to send, computes as cheaply as it can and sends nothing.
        """
        point = self._at_share(np.asarray(share, float))
        sends = (point.share > 0) & (self.airtime_s > 0)
        upload_s = np.where(sends, point.upload_s, 0.0)
        compute_s = self.slow_s - np.maximum(upload_s - self.calm_s, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            power = self.efficiency * self.noise_w * point.share * np.expm1(point.exponent)
        return compute_s, upload_s, np.where(sends, power, 0.0)

    # ── The interface ────────────────────────────────────────────────────────

    @property
    def need(self) -> FloatArray:
        """c / t_end."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.airtime_s > 0, self.airtime_s / self.end_s, 0.0)

    def priced(self, log_weight: FloatArray) -> BoolArray:
        """c > 0 and a w > 0."""
        return np.asarray((self.airtime_s > 0) & (self.log_noise + log_weight > -np.inf))

    def energy_j(self, share: ArrayLike) -> FloatArray:
        """D(t) + p_c t + a θ t (eˣ − 1) at the best t."""
        return self._energy(self._at_share(np.asarray(share, float)))

    def log_energy_j(self, share: ArrayLike) -> FloatArray:
        """The logarithm of `energy_j`; where it overflows, of its last term alone."""
        point = self._at_share(np.asarray(share, float))
        with np.errstate(divide="ignore", invalid="ignore"):
            large = self.log_noise + np.log(point.share) + np.log(point.upload_s) + point.exponent
            return np.where(point.exponent > 600.0, large, np.log(self._energy(point)))

    def log_saving(self, share: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """ln(w a t G(x)) where t is free or pinned; on a power limit the slope along it."""
        return np.asarray(self._log_saving(self._at_share(np.asarray(share, float))) + log_weight)

    def elasticity(self, share: ArrayLike) -> FloatArray:
        """By the kind of point."""
        return self._elasticity(self._at_share(np.asarray(share, float)))

    def share_at_price(self, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """Both optimality conditions at once: shares and times that minimise w E_u + w D + μ θ."""
        return self._at_price(np.asarray(log_price, float) - log_weight).share

    def demand(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one solution."""
        point = self._at_price(np.asarray(log_price, float) - log_weight)
        return point.share, self._elasticity(point)

    def purchase(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one solution."""
        point = self._at_price(np.asarray(log_price, float) - log_weight)
        return point.share, self._energy(point)

    def share_for_energy(self, energy_j: ArrayLike) -> FloatArray:
        """Newton on ln E over ln θ, between the least share that the power allows and the whole band."""
        limit = np.asarray(energy_j, float)
        shape = np.broadcast_shapes(limit.shape, np.shape(self.need))
        least = np.minimum(np.broadcast_to(self._corner_share(self.full_w), shape), 1.0)
        result = np.where(np.broadcast_to(self.airtime_s, shape) > 0, np.inf, 0.0)
        cheap = (result > 0) & (self.energy_j(least) <= limit)
        result[cheap] = least[cheap]
        open_ = (result == np.inf) & (self.energy_j(1.0) <= limit)
        if open_.any():
            part, target = self._part(open_), np.log(np.broadcast_to(limit, shape)[open_])

            def terms(depth: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
                """ln E over the depth ln(1/θ), in which it rises."""
                own, share = part.take(index), np.exp(-depth)
                point = own._at_share(share)
                energy = own._energy(point)
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    slope = np.exp(own._log_saving(point)) * share / energy
                    return np.log(energy) - target[index], slope

            deepest = -np.log(np.maximum(least[open_], 1e-300))
            depth = _solve(np.minimum(1e-3, 0.5 * deepest), np.zeros_like(deepest), deepest, terms)
            result[open_] = np.exp(-depth) * (1.0 + 1e-15)
        return result

    def break_even(self, log_value: FloatArray, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Where D(t) + p_c t + a c eˣ = value / w; along a power limit by its own tangent."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_worth = np.asarray(log_value - log_weight)
            point = self._at_break_even(log_worth)
            log_price = self._log_saving(point) + log_weight
            corner = point.kind == CORNER
            if corner.any():
                left = np.exp(log_worth) - self._energy(point)
                log_price = np.where(corner, np.log(left) - np.log(point.share) + log_weight, log_price)
        return point.share, np.asarray(log_price)

    def mismatch(self, share: ArrayLike, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """Where time and least power both bind, the curve has a kink: any price between its slopes fits."""
        point = self._at_share(np.asarray(share, float))
        price = np.asarray(log_price, float) - log_weight
        off = self._log_saving(point) - price
        kink = np.abs(point.share / self._corner_share(self.least_w) - 1.0) < 1e-9
        if not kink.any():
            return np.asarray(off)
        steep = self._log_saving(replace(point, kind=np.full_like(point.kind, PINNED))) - price
        flat = self._log_saving(replace(point, kind=np.full_like(point.kind, LEAST))) - price
        return np.where(kink, np.clip(0.0, flat, steep), off)

    def copies(self, count: int) -> DeviceCurve:
        """n times the payload and the power of everything."""
        scaled = ("airtime_s", "work_j_s2", "static_power_w", "circuit_power_w", "full_w", "least_w")
        return replace(self, **{name: count * getattr(self, name) for name in scaled})

    def take(self, index: Index) -> DeviceCurve:
        """Some of the devices."""
        return DeviceCurve(*(values[index] if values.ndim else values for values in self._values()))

    def only(self, members: BoolArray) -> DeviceCurve:
        """The others have nothing to send."""
        wide = [np.broadcast_to(values, members.shape) if values.ndim else values for values in self._values()]
        return replace(DeviceCurve(*wide), airtime_s=np.where(members, self.airtime_s, 0.0))

    def _values(self) -> list[FloatArray]:
        return [getattr(self, field.name) for field in fields(self)]

    def _spread(self, shape: tuple[int, ...]) -> DeviceCurve:
        """Every number as an array of this shape."""
        return DeviceCurve(*(np.broadcast_to(values, shape) for values in self._values()))

    def _part(self, mask: BoolArray) -> DeviceCurve:
        """The devices under a mask of the broadcast shape, as one row."""
        return DeviceCurve(
            *(np.broadcast_to(values, mask.shape)[mask] if values.ndim else values for values in self._values())
        )

    # ── Energies and slopes at a point ───────────────────────────────────────

    def _penalty(self, upload_s: FloatArray) -> FloatArray:
        """D(t), without the difference of two nearly equal energies."""
        late = np.maximum(upload_s - self.calm_s, 0.0)
        compute_s = self.slow_s - late
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = self.work_j_s2 * (self.slow_s + compute_s) / (self.slow_s * compute_s) ** 2 - self.static_power_w
            return np.where(late > 0, late * slope, 0.0)

    def _second(self, upload_s: FloatArray, late: BoolArray | bool = True) -> tuple[FloatArray, FloatArray]:
        """π(t), the watts that a second more of the upload costs, and dπ/dt. `late`: where t ≥ T − t_m."""
        compute_s = self.slow_s - (upload_s - self.calm_s)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            dynamic = 2.0 * self.work_j_s2 / (compute_s * compute_s * compute_s)
            price = self.circuit_power_w + np.maximum(dynamic - self.static_power_w, 0.0)
            rise = 3.0 * dynamic / compute_s
        if late is True:
            return np.asarray(price), np.asarray(rise)
        return np.where(late, price, self.circuit_power_w), np.where(late, rise, 0.0)

    def _energy(self, point: Point) -> FloatArray:
        x = point.exponent
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            growth = np.where(x > 0, np.expm1(x) / x, 1.0)  # a θ t (eˣ − 1) = a c (eˣ − 1)/x
            sending = self.circuit_power_w * point.upload_s + self.noise_w * self.airtime_s * growth
            energy = self._penalty(point.upload_s) + sending
        return np.where(self.airtime_s > 0, np.where(point.share > 0, energy, np.inf), 0.0)

    def _log_saving(self, point: Point) -> FloatArray:
        """ln(−dE/dθ)."""
        x = point.exponent
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            result = np.asarray(self.log_noise + np.log(point.upload_s) + log_marginal_saving(x))
            for kind, amplifier_w in ((FULL, self.full_w), (LEAST, self.least_w)):
                on = point.kind == kind
                if on.any():
                    price, _ = self._second(point.upload_s, point.upload_s > self.calm_s)
                    snr = amplifier_w / self.noise_w
                    along = np.log(amplifier_w + price) + np.log(self.airtime_s / snr / snr) + _log_limit_slope(x)
                    result = np.where(on, along, result)
        return result

    def _elasticity(self, point: Point) -> FloatArray:
        """−d ln θ / d ln μ: ε where the time is pinned, with ε = d ln x / d ln G; else the time gives way as well."""
        x, upload_s, kind = point.exponent, point.upload_s, point.kind
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            pinned = saving_elasticity(x)
            result = pinned
            free = kind == FREE
            if free.any():
                price, rise = self._second(upload_s, upload_s > self.calm_s)
                psi = upload_s * rise / price
                result = np.where(free, (1.0 + psi * pinned) / (2.0 - pinned + psi), pinned)
            for limit, amplifier_w in ((FULL, self.full_w), (LEAST, self.least_w)):
                on = kind == limit
                if on.any():
                    price, rise = self._second(upload_s, upload_s > self.calm_s)
                    snr = amplifier_w / self.noise_w
                    stretch = self.airtime_s / snr * np.exp(log_marginal_saving(x)) / x / x  # dt/dx
                    slope = rise * stretch / (amplifier_w + price) + _limit_slope_slope(x)
                    result = np.where(on, -1.0 / np.expm1(-x) / slope, result)
        return np.where(kind == CORNER, 0.0, result)

    def _corner_share(self, amplifier_w: FloatArray) -> FloatArray:
        """The share with which an upload at this power takes all the time left; infinite where none does."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.need / self._corner_exponent(amplifier_w))

    def _corner_exponent(self, amplifier_w: FloatArray) -> FloatArray:
        """x there: (eˣ − 1)/x = s t_end / c; 0 where there is none."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            snr, need = np.broadcast_arrays(amplifier_w / self.noise_w, self.need)
            able = (need > 0) & np.isfinite(need) & (snr > need)
            result = np.zeros(able.shape)
            result[able] = inverse_growth(snr[able], need[able])
        return result

    # ── Points ───────────────────────────────────────────────────────────────

    def _at_share(self, share: FloatArray) -> Point:
        """The best split of the time for these shares."""
        shape = np.broadcast_shapes(share.shape, *(values.shape for values in self._values()))
        theta = np.broadcast_to(share, shape)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            wanted = self.airtime_s / theta  # c/θ = x t
            upload_s = np.broadcast_to(self.end_s, shape).copy()
            kind = np.zeros(shape, np.int8)
            log_scale = self.log_noise + np.log(theta)
            marginal = log_scale + log_marginal_saving(np.where(self.airtime_s > 0, wanted, 1.0) / self.end_s)
            price, _ = self._second(self.end_s, self.end_s > self.calm_s)
            early = (marginal < np.log(price)) & (theta > 0) & np.isfinite(wanted) & (wanted > 0) & (self.end_s > 0)
            if early.any():
                part = self._part(early)
                upload_s[early], kind[early] = part._early(wanted[early], log_scale[early])
            # Power limits: t = c / (θ ln(1 + s/θ)) at full power, and at the least.
            shortest = wanted / np.log1p(self.full_w / self.noise_w / theta)
            full = upload_s < shortest  # with less than the least share no power is enough: all the time, then
            upload_s = np.where(full, np.minimum(shortest, self.end_s), upload_s)
            kind[full] = np.where(shortest < self.end_s, FULL, PINNED)[full]
            if np.any(self.least_w > 0):
                longest = wanted / np.log1p(self.least_w / self.noise_w / theta)
                least = upload_s > longest
                upload_s = np.where(least, longest, upload_s)
                kind[least] = LEAST
            exponent = np.where(self.airtime_s > 0, wanted / upload_s, 0.0)
        return Point(theta, exponent, upload_s, kind)

    def _early(self, wanted: FloatArray, log_scale: FloatArray) -> tuple[FloatArray, Kinds]:
        """Uploads that end before the deadline for these c/θ and ln(a θ): their time, and whether it is free."""
        curve, kind = self._spread(wanted.shape), np.full(wanted.shape, FREE, np.int8)
        x = inverse_marginal_saving(np.log(self.circuit_power_w) - log_scale)
        upload_s = wanted / x
        late = upload_s > curve.calm_s
        upload_s = np.minimum(upload_s, curve.end_s)  # rounding, where the clock is fixed
        moving = late & (curve.calm_s < curve.end_s)
        if moving.any():
            part, own, scale = curve.take(moving), wanted[moving], log_scale[moving]
            start, _ = part._second(part.calm_s)
            at_calm = own / part.calm_s
            stuck = scale + log_marginal_saving(at_calm) <= np.log(start)

            def terms(x: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
                """ln(a θ G(x)) − ln π(c/(θ x))."""
                value, slope = _log_saving_and_slope(x)
                upload_s = own[index] / x
                price, rise = part.take(index)._second(upload_s)
                return scale[index] + value - np.log(price), slope + rise * upload_s / (price * x)

            low, high = own / part.end_s, np.where(part.calm_s > 0, at_calm, np.inf)
            guess = np.clip(inverse_marginal_saving(np.log(start) - scale), low * (1 + 1e-12), high)
            found = _solve(np.where(stuck, high, guess), np.where(stuck, high, low), high, terms)
            upload_s[moving] = np.where(stuck, part.calm_s, own / found)
            kind[np.flatnonzero(moving)[stuck]] = PINNED
        return upload_s, kind

    def _at_price(self, log_ratio: FloatArray) -> Point:
        """The best share and split of the time at these ln(μ/w)."""
        shape = np.broadcast_shapes(log_ratio.shape, *(values.shape for values in self._values()))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            log_time = np.broadcast_to(log_ratio - self.log_noise, shape)  # ln(t G(x))
            upload_s = np.broadcast_to(self.end_s, shape).copy()
            kind = np.zeros(shape, np.int8)
            x = np.empty(shape)
            sends = np.broadcast_to(self.airtime_s > 0, shape) & np.isfinite(log_time)
            calm = sends & (self.calm_s > 0) & (self.circuit_power_w > 0)
            if calm.any():
                part = self._whole(calm)
                found = part._free(log_time[calm] if not calm.all() else log_time.ravel(), late=False)
                time = np.exp((log_time[calm] if not calm.all() else log_time.ravel()) - log_marginal_saving(found))
                x[calm], upload_s[calm] = found, time
                kind[calm] = FREE
                rest = ~calm | (upload_s > self.calm_s)
            else:
                rest = np.ones(shape, bool)
            if rest.any():
                self._later(log_time, rest, sends, x, upload_s, kind)
            share = np.where(self.airtime_s > 0, self.airtime_s / (x * upload_s), 0.0)
            point = Point(share, x, upload_s, kind)
            return self._limited(point, log_ratio, sends, shape)

    def _later(
        self,
        log_time: FloatArray,
        rest: BoolArray,
        sends: BoolArray,
        x: FloatArray,
        upload_s: FloatArray,
        kind: Kinds,
    ) -> None:
        """The devices under `rest`, whose uploads leave less time than the cheapest computation takes, in place."""
        part = self._whole(rest)
        given = log_time[rest] if not rest.all() else log_time.ravel()
        found = inverse_marginal_saving(given - np.log(part.end_s))
        time = np.broadcast_to(part.end_s, found.shape).copy()
        own_kind = np.zeros(found.shape, np.int8)
        moving = (part.calm_s < part.end_s) & (sends[rest] if not rest.all() else sends.ravel())
        if moving.any():
            price, _ = part._second(part.end_s)
            log_energy = part.log_noise + np.log(part.airtime_s)
            value = log_energy + 2.0 * log_marginal_saving(found) - np.log(found) - given
            moving &= value < np.log(price)
        if moving.any():
            own, times = part._whole(moving), given[moving] if not moving.all() else given
            low = found[moving] if not moving.all() else found
            at_calm = np.where(own.calm_s > 0, inverse_marginal_saving(times - np.log(own.calm_s)), np.inf)
            free = own._free(times, late=True, low=low, high=at_calm)
            stuck = free >= at_calm
            found[moving] = free
            time[moving] = np.where(stuck, own.calm_s, np.exp(times - log_marginal_saving(free)))
            own_kind[moving] = np.where(stuck, PINNED, FREE)
        x[rest], upload_s[rest], kind[rest] = found, time, own_kind

    def _free(
        self, log_time: FloatArray, *, late: bool, low: FloatArray | None = None, high: FloatArray | None = None
    ) -> FloatArray:
        """x with π(t) x t = a c G(x) and t = e^log_time / G(x); π = p_c, or with the clock's part where `late`."""
        log_energy = np.broadcast_to(self.log_noise + np.log(self.airtime_s), log_time.shape)
        if late:
            first, _ = self._second(self.calm_s)
        else:
            first = self.circuit_power_w
        guess = _guess_free(log_time + np.log(first) - log_energy)

        def terms(x: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
            """ln(a c G(x)) − ln(π x t)."""
            value, slope = _log_saving_and_slope(x)
            upload_s = np.exp(log_time[index] - value)
            if late:
                price, rise = self.take(index)._second(upload_s)
                slope_of_price = rise * upload_s / price
            else:
                price = self.circuit_power_w[index] if self.circuit_power_w.ndim else self.circuit_power_w
                slope_of_price = np.zeros(())
            return (
                value + log_energy[index] - np.log(price * x * upload_s),
                slope * (2.0 + slope_of_price) - 1.0 / x,
            )

        bottom = np.zeros_like(guess) if low is None else low
        top = np.full_like(guess, np.inf) if high is None else np.broadcast_to(high, guess.shape)
        return _solve(np.clip(guess, bottom * (1.0 + 1e-12), top), bottom, top, terms)

    def _limited(self, point: Point, log_ratio: FloatArray, sends: BoolArray, shape: tuple[int, ...]) -> Point:
        """The point with its power between the limits."""
        drawn_w = self.noise_w * point.share * np.expm1(point.exponent)
        full = sends & (drawn_w > self.full_w) & (point.upload_s < self.end_s)
        least = sends & (drawn_w < self.least_w)
        if not full.any() and not least.any():
            return point
        share, x, upload_s, kind = point.share.copy(), point.exponent.copy(), point.upload_s.copy(), point.kind
        for mask, code, drawn in ((full, FULL, self.full_w), (least, LEAST, self.least_w)):
            if mask.any():
                part = self._part(mask)
                own_w = np.broadcast_to(drawn, shape)[mask]
                snr = own_w / part.noise_w
                target = np.broadcast_to(log_ratio, shape)[mask] + 2.0 * np.log(snr) - np.log(part.airtime_s)
                edge = part._corner_exponent(own_w)

                def terms(
                    x: FloatArray,
                    index: Index = slice(None),
                    part: DeviceCurve = part,
                    own_w: FloatArray = own_w,
                    snr: FloatArray = snr,
                    target: FloatArray = target,
                ) -> tuple[FloatArray, FloatArray]:
                    """ln((P + D') · slope of t over θ) − ln(μ/w)."""
                    one = part.take(index)
                    time, stretch = _limit_time(x, one.airtime_s, snr[index])
                    price, rise = one._second(time, time > one.calm_s)
                    watts = own_w[index] + price
                    return (
                        np.log(watts) + _log_limit_slope(x) - target[index],
                        rise * stretch / watts + _limit_slope_slope(x),
                    )

                x[mask], upload_s[mask], kind[mask] = part._on_limit(edge, snr, code, terms)
                share[mask] = part.airtime_s / (x[mask] * upload_s[mask])
        return Point(share, x, upload_s, kind)

    def _on_limit(
        self, edge: FloatArray, snr: FloatArray, code: int, terms: Terms
    ) -> tuple[FloatArray, FloatArray, Kinds]:
        """Exponent, time and kind of devices on a power limit: where `terms` vanishes, or where the time ends too."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            corner = (edge > 0) & (terms(np.where(edge > 0, edge, 1.0))[0] <= 0)
            top = np.where(edge > 0, edge, np.inf)
            start = np.minimum(np.where(edge > 0, 0.5 * edge, 1.0), top)
            x = np.where(corner, edge, _solve(np.where(corner, top, start), np.where(corner, top, 0.0), top, terms))
            time, _ = _limit_time(x, self.airtime_s, snr)
            time = np.where(corner, self.end_s, time)
        return x, time, np.where(corner, CORNER, code).astype(np.int8)

    def _at_break_even(self, log_worth: FloatArray) -> Point:
        """The point whose tangent meets the vertical axis at this worth, in joules."""
        shape = np.broadcast_shapes(log_worth.shape, *(values.shape for values in self._values()))
        flat = self._part(np.ones(shape, bool))._spread((int(np.prod(shape)),))
        worth_log = np.broadcast_to(log_worth, shape).ravel()
        log_energy = np.asarray(flat.log_noise + np.log(flat.airtime_s))
        worth, unit = np.exp(worth_log), np.exp(log_energy)
        end_cost = flat._penalty(flat.end_s) + flat.circuit_power_w * flat.end_s
        x = np.where(worth == np.inf, worth_log - log_energy, np.log((worth - end_cost) / unit))
        upload_s, kind = flat.end_s.copy(), np.zeros(worth.shape, np.int8)
        price, _ = flat._second(flat.end_s, flat.end_s > flat.calm_s)
        usable = np.isfinite(worth_log) & (flat.airtime_s > 0) & (flat.end_s > 0) & (worth > unit)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            high = np.log(price * flat.end_s) - log_energy - log_marginal_saving(np.maximum(x, 0.0)) + np.log(x)
        early = usable & (price > 0) & ((high > 0) | ~(x > 0))
        if early.any():
            part = flat.take(early)
            x[early], upload_s[early], kind[early] = part._even_early(worth[early], unit[early])
        x = np.where(x > 0, x, 0.0)
        share = np.where(x > 0, flat.airtime_s / (x * upload_s), np.inf)
        share = np.where(x == np.inf, 0.0, share)
        drawn_w = flat.noise_w * share * np.expm1(x)
        full = usable & (drawn_w > flat.full_w) & (upload_s < flat.end_s) & (x > 0)
        least = usable & (drawn_w < flat.least_w) & (x > 0)
        for mask, code, drawn in ((full, FULL, flat.full_w), (least, LEAST, flat.least_w)):
            if mask.any():
                part = flat.take(mask)
                own_w = np.broadcast_to(drawn, worth.shape)[mask]
                x[mask], upload_s[mask], kind[mask] = part._even_on_limit(worth_log[mask], own_w, code)
                share[mask] = part.airtime_s / (x[mask] * upload_s[mask])
        return Point(share.reshape(shape), x.reshape(shape), upload_s.reshape(shape), kind.reshape(shape))

    def _even_early(self, worth: FloatArray, unit: FloatArray) -> tuple[FloatArray, FloatArray, Kinds]:
        """Break-even points of uploads that end before the deadline: exponent, time, kind."""
        ratio = np.log(worth) - np.log(unit)
        kind = np.full(worth.shape, FREE, np.int8)
        # With the clock at its slowest p_c t = a c G/x, so the tangent's foot is a c (eˣ + G/x).
        x = _solve(np.maximum(ratio, 1e-300), np.zeros_like(ratio), np.maximum(ratio, 1e-300), _foot_terms(ratio))
        upload_s = unit * np.exp(log_marginal_saving(x)) / (x * self.circuit_power_w)
        late = ~(upload_s <= self.calm_s)
        moving = late & (self.calm_s < self.end_s)
        upload_s = np.where(late & ~moving, self.end_s, upload_s)
        if moving.any():
            part, value, scale = self.take(moving), worth[moving], unit[moving]
            at_calm = np.log((value - part.circuit_power_w * part.calm_s) / scale)

            def terms(time: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
                """ln(π t) − ln(a c G(x)/x), where D(t) + p_c t + a c eˣ is the worth."""
                one = part.take(index)
                left = value[index] - one._penalty(time) - one.circuit_power_w * time
                x = np.log(left / scale[index])
                inside = x > 0
                x = np.where(inside, x, 1.0)
                saving, slope = _log_saving_and_slope(x)
                price, rise = one._second(time)
                residual = np.log(price * time * x / scale[index]) - saving
                rate = 1.0 / time + rise / price + (slope - 1.0 / x) * price / left
                return np.where(inside, residual, np.inf), np.where(inside, rate, 1.0)

            first, _ = part._second(part.calm_s)
            at_start = np.log(first * part.calm_s * at_calm / scale) - log_marginal_saving(np.maximum(at_calm, 0.0))
            stuck = (part.calm_s > 0) & (at_calm > 0) & (at_start >= 0)
            guess_x = np.maximum(np.log(value / scale), 1e-300)
            guess = scale * np.exp(np.minimum(log_marginal_saving(guess_x), 600.0)) / (guess_x * first)
            low, high = part.calm_s, part.end_s
            start = np.clip(guess, low + 1e-6 * (high - low), low + 0.5 * (high - low))
            found = _solve(np.where(stuck, low, start), low, np.where(stuck, low, high), terms)
            left = value - part._penalty(found) - part.circuit_power_w * found
            x[moving], upload_s[moving] = np.log(left / scale), found
            kind[np.flatnonzero(moving)[stuck]] = PINNED
        return x, upload_s, kind

    def _even_on_limit(
        self, log_worth: FloatArray, own_w: FloatArray, code: int
    ) -> tuple[FloatArray, FloatArray, Kinds]:
        """Break-even points on a power limit: P t + D(t) + θ μ/w is the worth."""
        snr = own_w / self.noise_w

        def terms(x: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
            one = self.take(index)
            time, stretch = _limit_time(x, one.airtime_s, snr[index])
            price, rise = one._second(time, time > one.calm_s)
            watts = own_w[index] + price
            spent = (own_w[index] + one.circuit_power_w) * time + one._penalty(time)
            band = watts * stretch * -np.expm1(-x)
            _, saving_slope = _log_saving_and_slope(x)
            band_slope = band * (rise * stretch / watts + saving_slope - 2.0 / x + 1.0 / np.expm1(x))
            total = spent + band
            return np.log(total) - log_worth[index], (watts * stretch + band_slope) / total

        return self._on_limit(self._corner_exponent(own_w), snr, code, terms)

    def _whole(self, mask: BoolArray) -> DeviceCurve:
        """`_part`, without copies where the mask is full and everything has its shape already."""
        if (
            mask.all()
            and mask.ndim == 1
            and all(values.ndim == 0 or values.shape == mask.shape for values in self._values())
        ):
            return self
        return self._part(mask)


# ── Functions of x ───────────────────────────────────────────────────────────


def _log_saving_and_slope(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln G(x) and its derivative x eˣ / G(x)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        value = log_marginal_saving(x)
        return value, np.exp(np.log(x) + x - value)


def _limit_time(x: FloatArray, airtime_s: FloatArray, snr: FloatArray) -> tuple[FloatArray, FloatArray]:
    """t = c (eˣ − 1) / (s x) of an upload at a fixed power, and dt/dx = c G(x) / (s x²)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unit = airtime_s / snr
        return unit * np.expm1(x) / x, unit * np.exp(log_marginal_saving(x) - 2.0 * np.log(x))


def _log_limit_slope(x: FloatArray) -> FloatArray:
    """ln(G(x) (eˣ − 1)² / (x² eˣ)): −dt/dθ of an upload at a fixed power, in units of c / s²."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        growth = x + np.log(-np.expm1(-x))  # ln(eˣ − 1)
        return np.asarray(log_marginal_saving(x) - 2.0 * np.log(x) + 2.0 * growth - x)


def _limit_slope_slope(x: FloatArray) -> FloatArray:
    """The derivative of `_log_limit_slope`."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        _, slope = _log_saving_and_slope(x)
        return np.asarray(slope - 2.0 / x - 2.0 / np.expm1(-x) - 1.0)


def _foot_terms(ratio: FloatArray) -> Terms:
    def terms(x: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
        """ln(eˣ + G(x)/x) − ratio."""
        saving, slope = _log_saving_and_slope(x)
        part = np.exp(saving - x) / x  # G/(x eˣ)
        return x + np.log1p(part) - ratio[index], (1.0 + part * (slope - 1.0 / x)) / (1.0 + part)

    return terms


def _guess_free(log_y: FloatArray) -> FloatArray:
    """About the x with G(x)²/x = y: within some percent, from its expansions at 0 and at infinity."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        p = np.exp(np.minimum(log_y, 6.0) / 3.0 + np.log(4.0) / 3.0)
        small = p / (1.0 + p * (4 / 9))
        half = np.maximum(0.5 * log_y, 1.0)
        large = half - 0.5 * np.log(half) + 0.25 * np.log(half) / half + 0.5 / half
        return np.where(log_y < 4.0, small, large)


def _solve(start: FloatArray, low: FloatArray, high: FloatArray, terms: Terms) -> FloatArray:
    """The root of a rising function for each entry, by Newton's method kept inside the bracket.

    `terms(x, index)` gives value and slope for the entries `index`. A step down is taken as x²/(x + step), which is
    the same to first order and never reaches 0: the functions are logarithms near 0.
    """
    result = np.array(start, float)
    x, low, high = result, np.array(low, float), np.array(high, float)
    index: NDArray[np.intp] | None = None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for count in range(_MAX_STEPS):
            value, slope = terms(x) if index is None else terms(x, index)
            low = np.where(value <= 0, x, low)
            high = np.where(value >= 0, x, high)
            step = -value / slope
            moved = np.where(step < 0, x * x / (x - step), x + step)
            outside = ~((moved >= low) & (moved <= high))
            if count >= _PLAIN_STEPS and count % 2:
                outside[:] = True
            if outside.any():
                middle = np.where(high < np.inf, np.where(low > 0, np.sqrt(low * high), 0.5 * high), 2.0 * x)
                moved = np.where(outside, middle, moved)
            arrived = (np.abs(moved - x) <= 1e-9 * x) & ~outside | (high - low <= 4e-16 * x) | (low >= high)
            if index is None:
                result = moved
            else:
                result[index] = moved
            if arrived.all():
                break
            if count < _FULL_STEPS:
                x = moved
                continue
            going = np.flatnonzero(~arrived)
            index = going if index is None else index[going]
            x, low, high = moved[going], low[going], high[going]
    return result


def _thin(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """A number where all devices have the same, else an array of the common shape."""
    if values.ndim == 0:
        return values
    if values.size and values.min() == values.max():
        return np.asarray(values.flat[0])
    return np.broadcast_to(values, shape)
