"""The shared band in one round, as a scheduler meets it: what the radio says of each device, and what a share costs it.

`Uplink` is the printed model: a fixed clock, and the radiated power alone. `DeviceUplink` is the whole device
(`kfl.wireless.device` names its parts), which can also choose its clock and how long it sends.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from kfl.scheduling._upload_formulas import energy_scale, min_share, required_exponent
from kfl.scheduling.curve import CostCurve, FloatArray, Index, UploadCurve
from kfl.scheduling.device_curve import DeviceCurve
from kfl.wireless import DeviceCosts, transmit_power


@dataclass(frozen=True, eq=False)
class Operation:
    """How devices run a round with their shares, and what that takes of them."""

    power_w: FloatArray
    upload_time_s: FloatArray
    upload_energy_j: FloatArray
    """All that the radio spends."""
    compute_time_s: FloatArray | None = None
    """None, like what follows, where computing is the same whatever the share."""
    compute_energy_j: FloatArray | None = None
    clock_hz: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Uplink:
    """The shared band in one round, one entry per device: what the radio says, the least shares, the cost curves.

    >>> link = Uplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...               payload_bits=np.full(2, 1e6), upload_time_s=np.ones(2), max_power_w=np.ones(2))
    >>> link.curve.energy_j(np.array([0.2, 0.8])).round(6)
    array([2.50e-05, 4.41e-04])
    >>> link.power_floor().round(4)
    array([0.0446, 0.0657])
    """

    bandwidth_hz: float | FloatArray
    noise_w_per_hz: float | FloatArray
    gain: FloatArray
    """Channel power gain h_k, linear."""
    payload_bits: FloatArray
    upload_time_s: FloatArray
    """Time left for the upload, T_max − T_L. Zero or less: the device computes past the deadline."""
    max_power_w: FloatArray

    @cached_property
    def curve(self) -> CostCurve:
        """The energy of each device's upload over its share."""
        time_s = np.maximum(self.upload_time_s, 0.0)
        heard = np.where(self.gain > 0, self.gain, 1.0)  # a device that is not heard has no share that is enough
        return UploadCurve.of(
            energy_scale(self.bandwidth_hz, self.noise_w_per_hz, time_s, heard), self._required_exponent
        )

    @cached_property
    def _required_exponent(self) -> FloatArray:
        return required_exponent(self.payload_bits, self.bandwidth_hz, self.upload_time_s)

    @property
    def snr(self) -> FloatArray:
        """s = p_max h / (B N₀): signal over noise at full power with the whole band."""
        with np.errstate(over="ignore"):
            return np.asarray(self.max_power_w * self.gain / (self.bandwidth_hz * self.noise_w_per_hz))

    def power_floor(self) -> FloatArray:
        """θ^min from the power limit, constraint (25a); infinite where no share is enough, or no time is left."""
        return min_share(self.snr, self._required_exponent)

    def power_w(self, share: ArrayLike) -> FloatArray:
        """Equation (24): the power with which an upload ends exactly in time; infinite where none does."""
        return transmit_power(
            share, self.payload_bits, self.upload_time_s, self.gain, self.bandwidth_hz, self.noise_w_per_hz
        )

    def most_energy_j(self) -> FloatArray:
        """Nobody can spend more on an upload: full power for all the time left."""
        return np.asarray(self.max_power_w * self.upload_time_s)

    def energy_within_limits(self, share: FloatArray) -> FloatArray:
        """What shares cost beyond the base, in joules; infinite where the power limit forbids them."""
        power_w = self.power_w(share)
        # A relative 1e-9: a share exactly at the limit must not fail by a rounding error.
        able = (power_w < np.inf) & (power_w <= self.max_power_w * (1 + 1e-9))
        return np.where(able, power_w * self.upload_time_s, np.inf)

    def base_energy_j(self, compute_energy_j: FloatArray) -> FloatArray:
        """Joules that no share changes, given those of computing at the fastest clock: the same here."""
        return compute_energy_j

    def operation(self, share: FloatArray, energy_j: FloatArray | None = None) -> Operation:
        """How devices with these shares run; `energy_j` is what they cost by the curve, where that is known."""
        if energy_j is None:
            power_w, time_s = self.power_w(share), np.where(share > 0, self.upload_time_s, 0.0)
            return Operation(power_w, time_s, power_w * time_s)
        power_w, time_s = self.transmission(share, energy_j)
        return Operation(power_w, time_s, energy_j)

    def transmission(self, share: FloatArray, energy_j: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Power in watts and duration in seconds of an upload with these shares, which costs these joules.

        By Proposition 1 an upload takes all the time left.
        """
        time_s = np.where(self.upload_time_s > 0, self.upload_time_s, 1.0)
        return np.asarray(energy_j / time_s), np.where(share > 0, self.upload_time_s, 0.0)

    def take(self, index: Index) -> Self:
        """Some of the devices."""
        return replace(self, **{name: values[index] for name, values in self._arrays().items()})

    def rows(self) -> Self:
        """The same problems as a plain batch: arrays (..., n) become (m, n)."""
        return replace(self, **{name: values.reshape(-1, values.shape[-1]) for name, values in self._arrays().items()})

    def _arrays(self) -> dict[str, FloatArray]:
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: values for name, values in arrays.items() if np.ndim(values)}


@dataclass(frozen=True, eq=False)
class DeviceUplink(Uplink):
    """The uplink of whole devices: they may slow their clocks, and their radios draw more than they radiate.

    `upload_time_s` is the time left after computing at the fastest clock, and `power_floor` the share with which a
    device just finishes at that clock and full power.

    >>> one = np.ones(2)
    >>> link = DeviceUplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...                     payload_bits=1e5 * one, upload_time_s=0.5 * one, max_power_w=one, fastest_s=0.5 * one,
    ...                     slowest_s=2 * one, work_j_s2=0.025 * one, static_power_w=0 * one,
    ...                     circuit_power_w=0.2 * one, amplifier_efficiency=0.4 * one, min_power_w=0 * one,
    ...                     once_j=0 * one)
    >>> run = link.operation(np.array([0.2, 0.8]))
    >>> bool((run.compute_time_s > 0.5).all()), bool((run.compute_time_s + run.upload_time_s <= 1).all())
    (True, True)
    """

    fastest_s: FloatArray
    """Seconds of the work at the fastest clock."""
    slowest_s: FloatArray
    """Seconds of the work at the slowest clock; `fastest_s` where the clock is fixed."""
    work_j_s2: FloatArray
    """κ W³: computing for t seconds takes this over t²."""
    static_power_w: FloatArray
    """p_s, drawn while the processor computes."""
    circuit_power_w: FloatArray
    """p_c, drawn while the radio sends."""
    amplifier_efficiency: FloatArray
    """η."""
    min_power_w: FloatArray
    """Least radiated power while sending."""
    once_j: FloatArray
    """Tail and receiving: once per round, whatever the share."""
    receiving_j: FloatArray | float = 0.0
    """What of `once_j` is receiving."""
    cpu_hz: FloatArray | float = float("nan")
    """Fastest clock; NaN where only times are known."""

    @cached_property
    def curve(self) -> DeviceCurve:
        """The least joules beyond the cheapest computation over each device's share."""
        return DeviceCurve.of(
            bandwidth_hz=self.bandwidth_hz,
            noise_w_per_hz=self.noise_w_per_hz,
            gain=self.gain,
            payload_bits=self.payload_bits,
            max_power_w=self.max_power_w,
            min_power_w=self.min_power_w,
            time_s=self.upload_time_s + self.fastest_s,
            fastest_s=self.fastest_s,
            slowest_s=self.slowest_s,
            work_j_s2=self.work_j_s2,
            static_power_w=self.static_power_w,
            circuit_power_w=self.circuit_power_w,
            amplifier_efficiency=self.amplifier_efficiency,
        )

    def power_w(self, share: ArrayLike) -> FloatArray:
        """The radiated power at which a share costs least."""
        return self.curve.operation(share)[2]

    def most_energy_j(self) -> FloatArray:
        """Full power for all the time left after computing at the fastest clock, beyond the cheapest computation."""
        sending_w = self.max_power_w / self.amplifier_efficiency + self.circuit_power_w
        fastest_j = self._computing_j(self.fastest_s) + self.static_power_w * self.fastest_s
        return np.asarray(sending_w * self.upload_time_s + fastest_j - self.curve.base_j)

    def energy_within_limits(self, share: FloatArray) -> FloatArray:
        """What shares cost beyond the base, in joules; infinite below the least share."""
        floor = self.power_floor()
        return np.where(share >= floor * (1 - 1e-9), self.curve.energy_j(np.maximum(share, floor)), np.inf)

    def base_energy_j(self, compute_energy_j: FloatArray) -> FloatArray:
        """The cheapest computation, and what a round costs once."""
        return np.asarray(self.curve.base_j + self.once_j)

    def operation(self, share: FloatArray, energy_j: FloatArray | None = None) -> Operation:
        """The clock, times and powers at which the shares cost least."""
        compute_s, upload_s, power_w = self.curve.operation(share)
        parts = self.parts_j(compute_s, upload_s, power_w)
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = np.where(compute_s > 0, self.fastest_s / compute_s, 1.0)
        return Operation(
            power_w,
            upload_s,
            parts["radiating"] + parts["circuits"] + self.once_j,
            compute_s,
            parts["computing"] + parts["static"],
            np.asarray(self.cpu_hz * slower),
        )

    def transmission(self, share: FloatArray, energy_j: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Power in watts and duration in seconds of an upload with these shares."""
        _, upload_s, power_w = self.curve.operation(share)
        return power_w, upload_s

    def parts_j(
        self, compute_time_s: FloatArray, upload_time_s: FloatArray, power_w: FloatArray
    ) -> dict[str, FloatArray]:
        """Where the joules go, by the words of `kfl.wireless.device.ENERGY_PARTS`."""
        size = np.shape(compute_time_s)
        receiving_j = np.broadcast_to(self.receiving_j, size)
        return {
            "computing": self._computing_j(compute_time_s),
            "static": self.static_power_w * compute_time_s,
            "radiating": power_w * upload_time_s / self.amplifier_efficiency,
            "circuits": self.circuit_power_w * upload_time_s,
            "tail": np.broadcast_to(self.once_j - receiving_j, size),
            "receiving": receiving_j,
        }

    def _computing_j(self, time_s: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.work_j_s2 > 0, self.work_j_s2 / time_s**2, 0.0)


def of_device(uplink: Uplink, fastest_s: FloatArray, device: DeviceCosts, reserved_s: float = 0.0) -> DeviceUplink:
    """The uplink of whole devices, from that of the printed model and what else is known of them.

    `fastest_s` is the time of computing at the fastest clock, `reserved_s` that of the broadcast.
    """
    receiving_j = device.receive_power_w * reserved_s
    return DeviceUplink(
        **{field.name: getattr(uplink, field.name) for field in fields(Uplink)},
        fastest_s=fastest_s,
        slowest_s=device.slowest_s,
        work_j_s2=device.work_j_s2,
        static_power_w=device.static_power_w,
        circuit_power_w=device.circuit_power_w,
        amplifier_efficiency=device.amplifier_efficiency,
        min_power_w=device.min_power_w,
        once_j=device.tail_j + receiving_j,
        receiving_j=receiving_j,
        cpu_hz=device.cpu_hz,
    )
