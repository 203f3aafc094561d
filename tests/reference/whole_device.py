"""What a share of the band costs a whole device, straight from the model: slow, and with nothing from `kfl.scheduling`.

A device computes for t_c and uploads for t_u, together no longer than T, and spends

    work/t_c² + p_s t_c  +  t_u (p/η + p_c),        p = (θ B N₀/h) (2^{Q/(θ B t_u)} − 1),

with t_c between W/f_max and W/f_min and p between p_min and p_max. For a given share θ that is one convex function of
t_u, because the best t_c is all the time that t_u leaves, or what the clock and the static power make of it. Here it is
minimized by golden sections: `least_energy_j` in floating point for many devices at once, `exact` in 40 digits for one.
Energies are "beyond the base": without what the cheapest computation takes that the deadline allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
_SECTIONS = 84  # 0.618^84 = 3e-18


@dataclass(frozen=True, eq=False)
class Devices:
    """Devices that share a band, one entry each, in SI units: the arguments of `DeviceCurve.of`."""

    bandwidth_hz: float
    noise_w_per_hz: float
    gain: FloatArray
    payload_bits: FloatArray
    max_power_w: FloatArray
    min_power_w: FloatArray
    time_s: FloatArray
    """For computing and upload together."""
    fastest_s: FloatArray
    slowest_s: FloatArray
    work_j_s2: FloatArray
    """κ W³."""
    static_power_w: FloatArray
    circuit_power_w: FloatArray
    amplifier_efficiency: FloatArray

    def __len__(self) -> int:
        return len(self.gain)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Devices:
        """Some of the devices."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: values[index] for name, values in arrays.items() if np.ndim(values)})

    @property
    def nats(self) -> FloatArray:
        """c = Q ln 2 / B."""
        return np.asarray(self.payload_bits * np.log(2.0) / self.bandwidth_hz)

    @property
    def cheapest_s(self) -> FloatArray:
        """The computing time that costs least, within the clock's range and the deadline: 2 work = p_s t³ if p_s."""
        with np.errstate(divide="ignore"):
            race = np.where(self.static_power_w > 0, np.cbrt(2.0 * self.work_j_s2 / self.static_power_w), np.inf)
        return np.asarray(np.minimum(np.clip(race, self.fastest_s, self.slowest_s), self.time_s))

    @property
    def base_j(self) -> FloatArray:
        """What the cheapest computation takes."""
        return self.work_j_s2 / self.cheapest_s**2 + self.static_power_w * self.cheapest_s

    def durations(self, share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The shortest upload, at full power, and the longest, by the least power and the fastest clock."""
        with np.errstate(divide="ignore", over="ignore"):
            shortest, slowest = (
                self.nats / (share * np.log1p(power * self.gain / (share * self.bandwidth_hz * self.noise_w_per_hz)))
                for power in (self.max_power_w, self.min_power_w)
            )
        return shortest, np.minimum(slowest, self.time_s - self.fastest_s)

    def energy_j(self, share: FloatArray, upload_s: FloatArray) -> FloatArray:
        """Joules beyond the base for an upload of this duration."""
        upload_j = self.circuit_power_w * upload_s + self.radiating_j(share, upload_s)
        best = self.cheapest_s
        less = np.maximum((best - self.time_s) + upload_s, 0.0)  # how much less time there is than the best
        taken = best - less
        rise = self.work_j_s2 * less * (best + taken) / (taken * best) ** 2 - self.static_power_w * less
        return upload_j + rise

    def radiating_j(self, share: FloatArray, upload_s: FloatArray) -> FloatArray:
        """p t_u / η."""
        scale = self.bandwidth_hz * self.noise_w_per_hz / (self.amplifier_efficiency * self.gain)
        with np.errstate(over="ignore"):
            return scale * share * upload_s * np.expm1(self.nats / (share * upload_s))

    def best_upload_s(self, share: FloatArray) -> FloatArray:
        """The duration of least energy; the shortest where even that is too long."""
        shortest, longest = self.durations(share)
        longest = np.maximum(longest, shortest)

        def at(log_s: FloatArray) -> FloatArray:
            return self.energy_j(share, np.exp(log_s))

        inside = np.exp(golden(at, np.log(shortest), np.log(longest)))
        trials = np.stack([inside, shortest, longest])
        best = np.argmin([self.energy_j(share, t) for t in trials], 0)
        return np.asarray(np.take_along_axis(trials, best[None], 0)[0])

    def least_energy_j(self, share: FloatArray) -> FloatArray:
        """E*(θ) beyond the base; infinite where the power is not enough."""
        shortest, longest = self.durations(share)
        energy = self.energy_j(share, self.best_upload_s(share))
        return np.where(shortest <= longest * (1 + 1e-12), energy, np.inf)

    def least_share(self) -> FloatArray:
        """The share with which full power and the fastest clock just end in time; NaN where there is none."""
        low, high = np.full(len(self), np.log(1e-15)), np.zeros(len(self))
        longest = self.time_s - self.fastest_s
        enough = self.durations(np.ones(len(self)))[0] <= longest
        for _ in range(80):
            middle = 0.5 * (low + high)
            fits = self.durations(np.exp(middle))[0] <= longest
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        return np.where(enough, np.exp(high), np.nan)


def golden(f: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """Where each of many unimodal functions is least, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = f(left), f(right)
    for _ in range(_SECTIONS):
        lower = at_left <= at_right
        low, high = np.where(lower, low, left), np.where(lower, right, high)
        fresh = np.where(lower, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        value = f(fresh)
        left, right = np.where(lower, fresh, right), np.where(lower, left, fresh)
        at_left, at_right = np.where(lower, value, at_right), np.where(lower, at_left, value)
    return 0.5 * (low + high)


def exact(devices: Devices, index: int, share: float) -> tuple[float, float]:
    """E*(θ) beyond the base and t_u of one device, by golden sections in 40 digits."""
    mp: Any = import_module("mpmath")
    with mp.workdps(40):
        given = {f.name: getattr(devices, f.name) for f in fields(devices)}
        d = {name: mp.mpf(float(values[index] if np.ndim(values) else values)) for name, values in given.items()}
        theta = mp.mpf(float(share))
        noise = theta * d["bandwidth_hz"] * d["noise_w_per_hz"] / d["gain"]

        def duration(power: Any) -> Any:
            rate = theta * d["bandwidth_hz"] * mp.log1p(power / noise) / mp.log(2)
            return d["payload_bits"] / rate if rate > 0 else mp.inf

        def computing(t: Any) -> Any:
            return d["work_j_s2"] / t**2 + d["static_power_w"] * t

        best = d["slowest_s"]
        if d["static_power_w"] > 0:
            best = min(best, max(mp.cbrt(2 * d["work_j_s2"] / d["static_power_w"]), d["fastest_s"]))
        best = min(best, d["time_s"])

        def energy(t: Any) -> Any:
            power = noise * mp.expm1(d["payload_bits"] * mp.log(2) / (theta * d["bandwidth_hz"] * t))
            upload = t * (power / d["amplifier_efficiency"] + d["circuit_power_w"])
            return upload + computing(min(best, d["time_s"] - t)) - computing(best)

        shortest = duration(d["max_power_w"])
        longest = min(duration(d["min_power_w"]), d["time_s"] - d["fastest_s"])
        if shortest > longest:
            return float("inf"), float(shortest)
        ratio = (mp.sqrt(5) - 1) / 2
        low, high = mp.log(shortest), mp.log(longest)
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        at_left, at_right = energy(mp.exp(left)), energy(mp.exp(right))
        for _ in range(85):  # t to 1e-17, and so the energy to 1e-30
            if at_left <= at_right:
                high, right, at_right = right, left, at_left
                left = high - ratio * (high - low)
                at_left = energy(mp.exp(left))
            else:
                low, left, at_left = left, right, at_right
                right = low + ratio * (high - low)
                at_right = energy(mp.exp(right))
        found = min((mp.exp(low), mp.exp(high), shortest, longest), key=energy)
        return float(energy(found)), float(found)


# ── Random devices ───────────────────────────────────────────────────────────


def random_devices(draw: np.random.Generator, count: int) -> Devices:
    """Devices over wide regimes that could all send at once with an equal share each, most far from any limit.

    10 kHz to 100 MHz, 100 bit to 1 Gbit, −60 to −160 dB, circuits of 0 to 3 W, amplifiers of 0.1 to 1, with
    and without static power, fixed clocks and free ones, 0 to 35 dBm, with and without a least power.
    """
    bandwidth, noise = 10 ** draw.uniform(4, 8), 4e-21
    share = 1.0 / count
    time_s = 10 ** draw.uniform(-1, 2) * draw.uniform(0.5, 1.0, count)
    fastest_s = time_s * draw.uniform(0.02, 0.95, count)
    max_power = 10 ** draw.uniform(-3, 0.5, count)
    gain = 10 ** draw.uniform(-16, -6, count)
    rate = share * bandwidth * np.log2(1 + max_power * gain / (share * bandwidth * noise))
    load = 10 ** -draw.choice([draw.uniform(0.02, 0.3), draw.uniform(0.3, 2.0), draw.uniform(2.0, 6.0)])
    payload = np.clip(rate * (time_s - fastest_s) * load * draw.uniform(0.3, 1.0, count), 100.0, 1e9)
    free = draw.random(count) < draw.choice([0.0, 0.5, 1.0])
    static = 10 ** draw.uniform(-3, 1, count) * (draw.random(count) < draw.choice([0.0, 0.7]))
    # Computing costs at the fastest clock anything between a thousandth and a thousand times full power until the end.
    work = 10 ** draw.uniform(-3, 3, count) * max_power * (time_s - fastest_s) * fastest_s**2
    least = max_power * 10 ** -draw.uniform(0, 6, count) * (draw.random(count) < draw.choice([0.0, 0.0, 0.6]))
    return Devices(
        bandwidth_hz=bandwidth,
        noise_w_per_hz=noise,
        gain=gain,
        payload_bits=payload,
        max_power_w=max_power,
        min_power_w=least,
        time_s=time_s,
        fastest_s=fastest_s,
        slowest_s=np.where(free, fastest_s * 10 ** draw.uniform(0, 2, count), fastest_s),
        work_j_s2=work,
        static_power_w=static,
        circuit_power_w=draw.choice([0.0, 1.0]) * draw.choice([0.0, 1e-3, 0.1, 1.0], count) * draw.uniform(0, 3, count),
        amplifier_efficiency=draw.uniform(0.1, 1.0, count),
    )
