"""The whole device as a cost curve: a clock that may be slowed, circuits that draw power, an amplifier that wastes it.

The printed model charges a fixed clock and the radiated power alone. With E_c and E_u as in `kfl.scheduling._device`,
what a share costs a device is the least over the split of its time,

    E(θ) = min_t { D(t) + E_u(θ, t) },        D(t) = E_c(T − t) − E_c(t_m) where t > T − t_m, else 0,

beyond the cheapest computation E_c(t_m), which no share changes. Both terms are jointly convex in (θ, t), so E is
convex and falling, and allocation, Algorithm 3 and the dual's bound stay as they are. The least power is the one limit
that is not convex in (θ, t); E is convex all the same, since at a fixed power the upload takes Q / r(θ), with a concave
rate r.

Proposition 1, "use all the time left", is the case p_c + D'(t_end) ≤ a θ G(c / (θ t_end)): there the printed formulas
hold. Elsewhere a device ends sooner, because its circuits cost more than the amplifier saves, or because its processor
can use the time better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kfl.scheduling._device import CORNER, FULL, LEAST, Devices
from kfl.scheduling._monotone_solvers import solve
from kfl.scheduling._operating_points import at_break_even, at_price, at_share
from kfl.scheduling.curve import BoolArray, CostCurve, FloatArray, Index

_PIECE = 8_192  # devices at a time: intermediate arrays stay in the cache

_Each = Callable[..., tuple[FloatArray, ...]]


@dataclass(frozen=True, eq=False)
class DeviceCurve(CostCurve):
    """Joules of a whole device beyond its cheapest computation, over its share of the band.

    >>> curve = DeviceCurve.of(
    ...     bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-12]), payload_bits=1e5, max_power_w=0.2,
    ...     time_s=1.0, fastest_s=0.4, slowest_s=4.0, work_j_s2=0.016, circuit_power_w=0.1, amplifier_efficiency=0.4)
    >>> compute_s, upload_s, power_w = curve.operation(np.array([0.5]))
    >>> compute_s.round(3), upload_s.round(3), power_w.round(3)
    (array([0.949]), array([0.051]), array([0.029]))
    """

    devices: Devices

    @staticmethod
    def of(**constants: Any) -> DeviceCurve:
        """The curves of the devices with these constants; see `Devices.of`."""
        return DeviceCurve(Devices.of(**constants))

    @property
    def base_j(self) -> FloatArray:
        """E_c(t_m): joules of the cheapest computation."""
        return self.devices.base_j

    def operation(self, share: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of computation, seconds of the upload and radiated watts with these shares.

        A device without a share, or with nothing to send, computes as cheaply as it can and sends nothing.
        """

        def each(devices: Devices, share: FloatArray) -> tuple[FloatArray, ...]:
            point = at_share(devices, share)
            sends = (share > 0) & (devices.airtime_s > 0)
            upload_s = np.where(sends, point.upload_s, 0.0)
            compute_s = devices.slow_s - np.maximum(upload_s - devices.calm_s, 0.0)
            return compute_s, upload_s, np.where(sends, devices.radiated_w(point), 0.0)

        compute_s, upload_s, power_w = self._for_each(each, share)
        return compute_s, upload_s, power_w

    @property
    def need(self) -> FloatArray:
        """c / t_end."""
        return self.devices.need

    def priced(self, log_weight: FloatArray) -> BoolArray:
        """c > 0 and a w > 0."""
        return np.asarray((self.devices.airtime_s > 0) & (self.devices.log_noise + log_weight > -np.inf))

    def energy_j(self, share: ArrayLike) -> FloatArray:
        """D(t) + p_c t + a θ t (eˣ − 1) at the best t."""
        return self._for_each(lambda devices, own: (devices.energy(at_share(devices, own)),), share)[0]

    def log_energy_j(self, share: ArrayLike) -> FloatArray:
        """Its logarithm."""
        return self._for_each(lambda devices, own: (devices.log_energy(at_share(devices, own)),), share)[0]

    def log_saving(self, share: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """ln(w a t G(x)) at the best t; on a power limit the slope along it."""
        found = self._for_each(lambda devices, own: (devices.log_saving(at_share(devices, own)),), share)[0]
        return np.asarray(found + log_weight)

    def elasticity(self, share: ArrayLike) -> FloatArray:
        """By what decides the time."""
        return self._for_each(lambda devices, own: (devices.elasticity(at_share(devices, own)),), share)[0]

    def share_at_price(self, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """The share of the best share and time at once."""
        log_ratio = np.asarray(log_price, float) - log_weight
        return self._for_each(lambda devices, own: (at_price(devices, own).share,), log_ratio)[0]

    def demand(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one solution."""

        def each(devices: Devices, log_ratio: FloatArray) -> tuple[FloatArray, ...]:
            point = at_price(devices, log_ratio)
            return point.share, devices.elasticity(point)

        share, elasticity = self._for_each(each, np.asarray(log_price, float) - log_weight)
        return share, elasticity

    def purchase(self, log_price: ArrayLike, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both from one solution."""

        def each(devices: Devices, log_ratio: FloatArray) -> tuple[FloatArray, ...]:
            point = at_price(devices, log_ratio)
            return point.share, devices.energy(point)

        share, energy = self._for_each(each, np.asarray(log_price, float) - log_weight)
        return share, energy

    def break_even(self, log_value: FloatArray, log_weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Where D(t) + p_c t + a c eˣ = value / w; along a power limit by its own tangent."""

        def each(devices: Devices, log_worth: FloatArray) -> tuple[FloatArray, ...]:
            point = at_break_even(devices, log_worth)
            log_ratio = devices.log_saving(point)
            # At a kink the slope is open, and the tangent goes through the worth.
            limited = (point.kind == FULL) | (point.kind == LEAST)
            kink = (point.kind == CORNER) | limited & (np.abs(point.upload_s / devices.calm_s - 1.0) < 1e-9)
            if kink.any():
                left = np.exp(log_worth) - devices.energy(point)
                log_ratio = np.where(kink, np.log(left) - np.log(point.share), log_ratio)
            return point.share, np.where(point.share == np.inf, -np.inf, log_ratio)

        with np.errstate(invalid="ignore"):
            share, log_ratio = self._for_each(each, np.asarray(log_value - log_weight))
            return share, np.asarray(log_ratio + log_weight)

    def share_for_energy(self, energy_j: ArrayLike) -> FloatArray:
        """Newton on ln E over ln θ, between the least share that the power allows and the whole band."""
        return self._for_each(_share_for_energy, energy_j)[0]

    def mismatch(self, share: ArrayLike, log_price: ArrayLike, log_weight: FloatArray) -> FloatArray:
        """The curve has kinks where a power limit meets the end of the time or of the cheapest computation."""

        def each(devices: Devices, share: FloatArray, log_ratio: FloatArray) -> tuple[FloatArray, ...]:
            off = devices.log_saving(at_share(devices, share)) - log_ratio
            odd = np.abs(off) > 1e-9
            if odd.any():
                part, own = devices.spread(share.shape).take(odd), share[odd]
                steep, flat = (part.log_saving(at_share(part, own * side)) for side in (1 - 1e-9, 1 + 1e-9))
                off[odd] = np.clip(0.0, flat - log_ratio[odd], steep - log_ratio[odd])
            return (off,)

        return self._for_each(each, share, np.asarray(log_price, float) - log_weight)[0]

    def take(self, index: Index) -> DeviceCurve:
        """Some of the devices."""
        return DeviceCurve(self.devices.take(index))

    def only(self, members: BoolArray) -> DeviceCurve:
        """The others have nothing to send."""
        return DeviceCurve(self.devices.only(members))

    def _for_each(self, each: _Each, *given: ArrayLike) -> tuple[FloatArray, ...]:
        """`each(devices, *given)` in flat pieces that fit the cache, as arrays of the common shape."""
        shape = np.broadcast_shapes(self.devices.noise_w.shape, *(np.shape(one) for one in given))
        devices = self.devices
        if len(shape) != 1 or devices.noise_w.shape != shape:
            values = devices.values()
            devices = Devices(*(np.broadcast_to(v, shape).reshape(-1) if v.ndim else v for v in values))
        flat = [np.broadcast_to(np.asarray(one, float), shape).reshape(-1) for one in given]
        size = len(flat[0])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            if size <= _PIECE:
                return tuple(np.reshape(found, shape) for found in each(devices, *flat))
            results: tuple[FloatArray, ...] = ()
            for start in range(0, size, _PIECE):
                piece = slice(start, start + _PIECE)
                found = each(devices.take(piece), *(one[piece] for one in flat))
                results = results or tuple(np.empty(size) for _ in found)
                for result, part in zip(results, found, strict=True):
                    result[piece] = part
        return tuple(np.reshape(result, shape) for result in results)


def _share_for_energy(devices: Devices, energy_j: FloatArray) -> tuple[FloatArray]:
    """Return the smallest shares with which devices can send and spend no more than this."""
    # The least share that the power allows, if even that is paid for.
    least = np.minimum(np.broadcast_to(devices.corner_share(devices.full_w), energy_j.shape), 1.0)
    result = np.where(np.broadcast_to(devices.airtime_s, energy_j.shape) > 0, np.inf, 0.0)
    cheap = (result > 0) & (devices.energy(at_share(devices, least)) <= energy_j)
    result[cheap] = least[cheap]
    # Else the share that is exactly paid for, if the whole band is not too dear.
    dear = (result == np.inf) & (devices.energy(at_share(devices, np.ones(energy_j.shape))) <= energy_j)
    if dear.any():
        part, target = devices.spread(dear.shape).take(dear), np.log(energy_j[dear])

        def terms(depth: FloatArray, index: Index = slice(None)) -> tuple[FloatArray, FloatArray]:
            """ln E over ln(1/θ), in which it rises."""
            own, share = part.take(index), np.exp(-depth)
            point = at_share(own, share)
            log_energy = own.log_energy(point)
            return log_energy - target[index], np.exp(own.log_saving(point) - depth - log_energy)

        deepest = -np.log(np.maximum(least[dear], 1e-300))
        depth = solve(np.minimum(1e-3, 0.5 * deepest), terms, 0.0, deepest)
        result[dear] = np.exp(-depth) * (1.0 + 1e-15)
    return (result,)
