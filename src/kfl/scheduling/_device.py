"""What devices draw: computing at a clock that may be slowed, sending with an amplifier that wastes and circuits.

A device that has T seconds for both computes for t_c and uploads for t, t_c + t ≤ T, and spends

    computing    E_c(t_c) = κW³ / t_c² + p_s t_c              p_s: static power while the processor is awake
    upload       E_u(θ, t) = p_c t + a θ t (eˣ − 1)            p_c: circuits while sending, a = B N₀ / (η h)

with η the amplifier's efficiency, x = c / (θ t) and c = payload · ln 2 / B; the radiated power is η a θ (eˣ − 1). The
cheapest computation takes t_m: as slow as the limit f_min, the deadline, or the static power make sensible (from
2 κW³ = p_s t_m³ on slowness costs more than it saves). What an upload of t seconds makes dearer is

    D(t) = E_c(T − t) − E_c(t_m)        where t > T − t_m, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling._monotone_solvers import limit_slope_slope, limit_time, log_limit_slope, log_saving
from kfl.scheduling._upload_formulas import inverse_growth, saving_elasticity
from kfl.scheduling.curve import BoolArray, FloatArray, Index

_LN2 = float(np.log(2.0))

PINNED, FREE, FULL, LEAST, CORNER = range(5)
"""What decides how long an upload takes: the time there is, its costs, the largest power, the least, time and power."""

Kinds = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Point:
    """Where devices operate: share, exponent x, seconds of the upload, and what decides them."""

    share: FloatArray
    exponent: FloatArray
    upload_s: FloatArray
    kind: Kinds


@dataclass(frozen=True, eq=False)
class Devices:
    """The constants of devices, arrays (n,) or (m, n); a number where all have the same. Make them with `of`."""

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
    clock_j_s2: FloatArray
    """2 κW³ where the clock is free, 0 where it is fixed: D'(t) = 2 κW³ / t_c³ − p_s."""
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
    ) -> Devices:
        """Devices with `time_s` for computation and upload together.

        `fastest_s` and `slowest_s` (the same by default: a fixed clock) is what the computation takes at the fastest
        and the slowest clock, and `work_j_s2` is κW³.
        """
        gains, whole = np.asarray(gain, float), np.asarray(time_s, float)
        fast = np.asarray(fastest_s, float)
        slow = fast if slowest_s is None else np.asarray(slowest_s, float)
        work, static = np.asarray(work_j_s2, float), np.asarray(static_power_w, float)
        efficiency = np.asarray(amplifier_efficiency, float)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # A device that is not heard has no share that is enough, so any gain will do.
            noise = np.asarray(bandwidth_hz, float) * np.asarray(noise_w_per_hz, float) / efficiency
            noise = noise / np.where(gains > 0, gains, 1.0)
            # Slower than t = (2 κW³ / p_s)^⅓, static power costs more than the slower clock saves.
            idle = np.where(static > 0, np.cbrt(2.0 * work / static), np.inf)
            slow = np.maximum(np.minimum(np.minimum(slow, idle), whole), fast)
            # The longest upload ends where the fastest clock must begin; up to `calm` the computation stays cheapest.
            end = np.maximum(whole - fast, 0.0)
            calm = np.where(slow > fast, np.maximum(whole - slow, 0.0), end)
            given = {
                "noise_w": noise,
                "log_noise": np.log(noise),
                "airtime_s": np.asarray(payload_bits, float) * _LN2 / np.asarray(bandwidth_hz, float),
                "end_s": end,
                "calm_s": calm,
                "slow_s": slow,
                "work_j_s2": work,
                "clock_j_s2": np.where(calm < end, 2.0 * work, 0.0),
                "static_power_w": static,
                "circuit_power_w": np.asarray(circuit_power_w, float),
                "full_w": np.asarray(max_power_w, float) / efficiency,
                "least_w": np.asarray(min_power_w, float) / efficiency,
                "efficiency": efficiency,
            }
        shape = np.broadcast_shapes(*(np.shape(values) for values in given.values()))
        every = {"noise_w", "log_noise"}  # the devices are counted by these
        return Devices(
            **{name: np.broadcast_to(v, shape) if name in every else _thin(v, shape) for name, v in given.items()}
        )

    # ── Some of them, or more ────────────────────────────────────────────────

    def values(self) -> list[FloatArray]:
        """The constants, in the order of the fields."""
        return [getattr(self, name) for name in _NAMES]

    def take(self, index: Index) -> Devices:
        """Some of the devices; of a batch, some rows."""
        return Devices(*(values[index] if values.ndim else values for values in self.values()))

    def spread(self, shape: tuple[int, ...]) -> Devices:
        """Every constant as an array of this shape."""
        return Devices(*(np.broadcast_to(values, shape) for values in self.values()))

    def only(self, members: BoolArray) -> Devices:
        """A batch with one row per row of `members`, in which all others send nothing."""
        wide = [np.broadcast_to(values, members.shape) if values.ndim else values for values in self.values()]
        return replace(Devices(*wide), airtime_s=np.where(members, self.airtime_s, 0.0))

    # ── What they spend ──────────────────────────────────────────────────────

    @property
    def base_j(self) -> FloatArray:
        """E_c(t_m): joules of the cheapest computation."""
        with np.errstate(divide="ignore", invalid="ignore"):
            computing = np.where(self.work_j_s2 > 0, self.work_j_s2 / self.slow_s**2, 0.0)
        return np.asarray(computing + self.static_power_w * self.slow_s)

    @property
    def need(self) -> FloatArray:
        """c / t_end: the exponent with the whole band and all the time; 0 for a device that sends nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.airtime_s > 0, self.airtime_s / self.end_s, 0.0)

    def penalty(self, upload_s: FloatArray) -> FloatArray:
        """D(t), without the difference of two nearly equal energies."""
        late = np.maximum(np.minimum(upload_s, self.end_s) - self.calm_s, 0.0)
        compute_s = self.slow_s - late
        # κW³ (1/t_c² − 1/t_m²) = κW³ (t_m + t_c) (t_m − t_c) / (t_m t_c)², and t_m − t_c is `late`.
        slope = self.work_j_s2 * (self.slow_s + compute_s) / (self.slow_s * compute_s) ** 2 - self.static_power_w
        return np.where(late > 0, late * slope, 0.0)

    def clock_price(self, upload_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """π(t) = p_c + D'(t), the watts that a second more of the upload costs, and dπ/dt, for T − t_m ≤ t ≤ t_end."""
        compute_s = self.slow_s - (upload_s - self.calm_s)
        dynamic = self.clock_j_s2 / np.maximum(compute_s * compute_s * compute_s, 1e-300)
        price = self.circuit_power_w + np.maximum(dynamic - self.static_power_w, 0.0)
        return np.asarray(price), np.asarray(3.0 * dynamic / compute_s)

    def time_price(self, upload_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """π(t) and dπ/dt anywhere: p_c alone below T − t_m."""
        late = upload_s > self.calm_s
        price, rise = self.clock_price(upload_s)
        return np.where(late, price, self.circuit_power_w), np.where(late, rise, 0.0)

    def short_price(self) -> FloatArray:
        """π of a short upload, for first guesses."""
        return self.clock_price(self.calm_s + 0.05 * (self.end_s - self.calm_s))[0]

    def energy(self, point: Point) -> FloatArray:
        """D(t) + p_c t + a θ t (eˣ − 1)."""
        x = point.exponent
        growth = np.where(x > 0, np.expm1(x) / x, 1.0)  # θ t (eˣ − 1) = c (eˣ − 1)/x
        sending = self.circuit_power_w * point.upload_s + self.noise_w * self.airtime_s * growth
        energy = self.penalty(point.upload_s) + sending
        return np.where(self.airtime_s > 0, np.where(point.share > 0, energy, np.inf), 0.0)

    def log_energy(self, point: Point) -> FloatArray:
        """Its logarithm; where it overflows, of the last term alone."""
        large = self.log_noise + np.log(point.share * point.upload_s) + point.exponent
        return np.where(point.exponent > 600.0, large, np.log(self.energy(point)))

    def log_saving(self, point: Point) -> FloatArray:
        """ln(−dE/dθ): ln(a t G(x)) by the envelope theorem, and along a power limit the slope on it."""
        x = point.exponent
        result = np.asarray(self.log_noise + np.log(point.upload_s) + log_saving(x)[0])
        for kind, amplifier_w in ((FULL, self.full_w), (LEAST, self.least_w)):
            on = point.kind == kind
            if on.any():
                price, _ = self.time_price(point.upload_s)
                snr = amplifier_w / self.noise_w
                along = np.log(amplifier_w + price) + np.log(self.airtime_s / snr / snr) + log_limit_slope(x)
                result = np.where(on, along, result)
        return result

    def elasticity(self, point: Point) -> FloatArray:
        """−d ln θ / d ln μ: ε = d ln x / d ln G where the time is pinned; else the time gives way as well."""
        x, upload_s, kind = point.exponent, point.upload_s, point.kind
        result = pinned = saving_elasticity(x)
        free = kind == FREE
        if free.any():
            price, rise = self.time_price(upload_s)
            stiff = upload_s * rise  # over the price, which may be 0 where the cheapest computation just ends
            loose = (2.0 - pinned) * price + stiff
            result = np.where(free & (loose > 0), (price + stiff * pinned) / loose, pinned)
        for limit, amplifier_w in ((FULL, self.full_w), (LEAST, self.least_w)):
            on = kind == limit
            if on.any():
                price, rise = self.time_price(upload_s)
                _, stretch = limit_time(x, self.airtime_s, amplifier_w / self.noise_w)
                slope = rise * stretch / (amplifier_w + price) + limit_slope_slope(x)
                result = np.where(on, -1.0 / np.expm1(-x) / slope, result)
        return np.where(kind == CORNER, 0.0, result)

    def radiated_w(self, point: Point) -> FloatArray:
        """η a θ (eˣ − 1)."""
        return np.asarray(self.efficiency * self.noise_w * point.share * np.expm1(point.exponent))

    def corner_share(self, amplifier_w: FloatArray) -> FloatArray:
        """The share with which an upload at this power takes all the time left; infinite where none does."""
        return np.asarray(self.need / self.corner_exponent(amplifier_w))

    def corner_exponent(self, amplifier_w: FloatArray) -> FloatArray:
        """x there: (eˣ − 1)/x = s t_end / c; 0 where there is none."""
        snr, need = np.broadcast_arrays(amplifier_w / self.noise_w, self.need)
        able = (need > 0) & np.isfinite(need) & (snr > need)
        result = np.zeros(able.shape)
        result[able] = inverse_growth(snr[able], need[able])
        return result


_NAMES = tuple(Devices.__dataclass_fields__)


def _thin(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """A number where all devices have the same, else an array of the common shape."""
    if values.ndim == 0:
        return values
    if values.size and values.min() == values.max():
        return np.asarray(values.flat[0])
    return np.broadcast_to(values, shape)
