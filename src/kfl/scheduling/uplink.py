"""The shared band in one round: what the radio says of each device, what a device draws, what a share costs it.

`DeviceEnergyModel` says what a processor and a modem draw. The paper charges a processor at a fixed clock and the
radiated power alone, the *paper's model*. A real processor may slow down and draws static power while it works; an
amplifier wastes a part of what it draws; a radio's circuits draw power while it sends; and a connection costs energy to
open, to listen to, and to keep for a while after the last packet. The energy of a device in a round has six parts:

    computing    κ W³ / t_c²               W cycles in t_c seconds: the clock is W / t_c
    static       p_s t_c
    radiating    p t_u / η                 what the amplifier draws to radiate p for t_u seconds
    circuits     p_c t_u
    tail         E_0 + p_tail t_tail       once per round: opening the connection, and keeping it afterward
    receiving    p_r t_r                   while the broadcast is on the air

`Uplink` joins it with the radio and chooses the cost curve.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.scheduling._device import Devices
from kfl.scheduling._upload_formulas import energy_scale, min_share, required_exponent
from kfl.scheduling.arrays import ArrayRecord, PerDevice
from kfl.scheduling.curve import CostCurve, FloatArray, UploadCurve
from kfl.scheduling.device_curve import DeviceCurve

ENERGY_PARTS = ("computing", "static", "radiating", "circuits", "tail", "receiving")
"""Where the joules of a device go in a round."""
UPLOAD_BY = {
    "deadline": "all the time left",
    "clock": "what a slower clock leaves of the time",
    "circuits": "shorter, because circuits draw power",
    "full_power": "as long as full power takes",
    "least_power": "as long as the least power takes",
    "nothing": "nothing to send",
}
"""What decided how long an upload takes, in words."""
CLOCK_BY = {
    "fixed": "fixed",
    "slowest": "the slowest",
    "static": "no slower, because static power would cost more",
    "deadline": "as slow as the deadline allows",
    "fastest": "the fastest",
}
"""What decided the clock of a device, in words."""
LARGEST_POWER_W = 10.0
"""More than any battery device radiates, a phone has 0.2 W: such powers are questioned."""
MOST_POWER_W = 10_000.0
"""No device draws more; a larger number is in milliwatts, or of another machine."""
Codes = NDArray[np.int8]
_UPLOAD, _CLOCK = tuple(UPLOAD_BY), tuple(CLOCK_BY)
_SAME = 1e-9
"""Relative difference up to which times and powers count as the same, as for deadlines."""


@dataclass(frozen=True, eq=False)
class DeviceEnergyModel(ArrayRecord):
    """What devices draw in a round; the defaults are the paper's model of devices that only send.

    >>> DeviceEnergyModel(fastest_s=np.array([0.2, 0.4])).is_paper_model
    True
    >>> DeviceEnergyModel(fastest_s=np.array([0.2, 0.4]), slowest_s=np.array([0.2, 1.6])).is_paper_model
    False
    """

    fastest_s: PerDevice = 0.0
    """Seconds of the work at the fastest clock."""
    slowest_s: PerDevice = 0.0
    """Seconds of the work at the slowest clock; at most `fastest_s`: the clock is fixed."""
    work_j_s2: PerDevice = 0.0
    """κ W³: computing for t seconds takes this over t². The paper's model needs none: its joules are given."""
    static_power_w: PerDevice = 0.0
    """p_s, drawn while the processor computes."""
    circuit_power_w: PerDevice = 0.0
    """p_c, drawn while the radio sends."""
    amplifier_efficiency: PerDevice = 1.0
    """η: radiated power over what the amplifier draws for it."""
    min_power_w: PerDevice = 0.0
    """Least radiated power while sending."""
    tail_j: PerDevice = 0.0
    """Opening the connection, and the tail after the last packet; 0 for a device that has nothing to send."""
    receiving_j: PerDevice = 0.0
    """Listening to the broadcast."""
    cpu_hz: PerDevice = float("nan")
    """Fastest clock; NaN where only times are known."""
    min_cpu_hz: PerDevice = float("nan")
    """Slowest clock; NaN where only times are known."""

    @cached_property
    def is_paper_model(self) -> bool:
        """Whether this is the paper's model for every device: a fixed clock, and the radiated power alone."""
        drawn = (self.static_power_w, self.circuit_power_w, self.min_power_w, self.tail_j, self.receiving_j)
        slowed = np.any(np.asarray(self.slowest_s) > np.asarray(self.fastest_s))
        return not (slowed or np.any(np.asarray(self.amplifier_efficiency) != 1) or any(np.any(one) for one in drawn))

    @property
    def once_j(self) -> PerDevice:
        """Joules once per round, whatever the share: tail and receiving."""
        return self.tail_j + self.receiving_j


@dataclass(frozen=True, eq=False)
class Operation:
    """How devices run a round with their shares, and what that takes of them."""

    power_w: FloatArray
    upload_time_s: FloatArray
    upload_energy_j: FloatArray
    """All that the radio spends."""
    compute_time_s: FloatArray | None = None
    """None, like what follows, in the paper's model, where computing is the same whatever the share."""
    compute_energy_j: FloatArray | None = None
    clock_hz: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Uplink(ArrayRecord):
    """The shared band in one round, one entry per device: what the radio says, what devices draw, the cost curves.

    >>> link = Uplink(bandwidth_hz=1e6, noise_w_per_hz=4e-21, gain=np.array([1e-9, 1e-11]),
    ...               payload_bits=np.full(2, 1e6), time_s=np.ones(2), max_power_w=np.ones(2))
    >>> link.curve.energy_j(np.array([0.2, 0.8])).round(6)
    array([2.50e-05, 4.41e-04])
    >>> link.power_floor().round(4)
    array([0.0446, 0.0657])

    Devices that may slow their clocks, and whose radios draw more than they radiate:

    >>> from dataclasses import replace
    >>> device = DeviceEnergyModel(fastest_s=0.5, slowest_s=2.0, work_j_s2=0.025, circuit_power_w=0.2)
    >>> run = replace(link, payload_bits=np.full(2, 1e5), device=device).operation(np.array([0.2, 0.8]))
    >>> bool((run.compute_time_s > 0.5).all()), bool((run.compute_time_s + run.upload_time_s <= 1).all())
    (True, True)
    """

    bandwidth_hz: PerDevice
    noise_w_per_hz: PerDevice
    gain: FloatArray
    """Channel power gain h_k, linear."""
    payload_bits: FloatArray
    time_s: FloatArray
    """Time for computing and sending, T_max less what the broadcast takes."""
    max_power_w: FloatArray
    device: DeviceEnergyModel = DeviceEnergyModel()

    @cached_property
    def upload_time_s(self) -> FloatArray:
        """Time left after computing at the fastest clock, T_max − T_L. Zero or less: past the deadline."""
        return np.asarray(self.time_s - self.device.fastest_s)

    @cached_property
    def curve(self) -> CostCurve:
        """The least joules beyond the fixed ones over each device's share."""
        if not self.device.is_paper_model:
            return self._device_curve
        time_s = np.maximum(self.upload_time_s, 0.0)
        heard = np.where(self.gain > 0, self.gain, 1.0)  # a device that is not heard has no share that is enough
        return UploadCurve.of(
            energy_scale(self.bandwidth_hz, self.noise_w_per_hz, time_s, heard), self.required_exponent
        )

    @cached_property
    def _device_curve(self) -> DeviceCurve:
        return DeviceCurve.of(
            bandwidth_hz=self.bandwidth_hz,
            noise_w_per_hz=self.noise_w_per_hz,
            gain=self.gain,
            payload_bits=self.payload_bits,
            max_power_w=self.max_power_w,
            min_power_w=self.device.min_power_w,
            time_s=self.time_s,
            fastest_s=self.device.fastest_s,
            slowest_s=self.device.slowest_s,
            work_j_s2=self.device.work_j_s2,
            static_power_w=self.device.static_power_w,
            circuit_power_w=self.device.circuit_power_w,
            amplifier_efficiency=self.device.amplifier_efficiency,
        )

    @property
    def devices(self) -> Devices:
        """The constants of whole devices; the paper's model is one of these too."""
        return self._device_curve.devices

    @cached_property
    def required_exponent(self) -> FloatArray:
        """The exponent b of each upload with the whole band."""
        return required_exponent(self.payload_bits, self.bandwidth_hz, self.upload_time_s)

    @property
    def snr(self) -> FloatArray:
        """s = p_max h / (B N₀): signal over noise at full power with the whole band."""
        with np.errstate(over="ignore"):
            return np.asarray(self.max_power_w * self.gain / (self.bandwidth_hz * self.noise_w_per_hz))

    def power_floor(self) -> FloatArray:
        """Return θ^min, with which a device just finishes at the fastest clock and full power, constraint (25a).

        Infinite where no share is enough, or no time is left.
        """
        return min_share(self.snr, self.required_exponent)

    def power_w(self, share: ArrayLike) -> FloatArray:
        """Return the radiated power at which a share costs least; infinite where no power is enough.

        In the paper's model that is equation (24): the upload ends exactly in time.
        """
        if not self.device.is_paper_model:
            return self._device_curve.operation(share)[2]
        radio = (self.gain, self.bandwidth_hz, self.noise_w_per_hz)
        return transmit_power(share, self.payload_bits, self.upload_time_s, *radio)

    def most_energy_j(self) -> FloatArray:
        """Return the joules of full power for all the time left: no upload radiates more."""
        return np.asarray(self.max_power_w * self.upload_time_s)

    def energy_within_limits(self, share: FloatArray) -> FloatArray:
        """Return what shares cost beyond the fixed joules; infinite where the power limit forbids them."""
        # A relative 1e-9: a share exactly at the limit must not fail by a rounding error.
        if not self.device.is_paper_model:
            floor = self.power_floor()
            return np.where(share >= floor * (1 - 1e-9), self.curve.energy_j(np.maximum(share, floor)), np.inf)
        power_w = self.power_w(share)
        able = (power_w < np.inf) & (power_w <= self.max_power_w * (1 + 1e-9))
        return np.where(able, power_w * self.upload_time_s, np.inf)

    def base_energy_j(self, compute_energy_j: FloatArray) -> FloatArray:
        """Return the joules that no share changes: the cheapest computation, and what a round costs once.

        In the paper's model these are `compute_energy_j`, the joules of computing at the only clock.
        """
        if self.device.is_paper_model:
            return compute_energy_j
        return np.broadcast_to(self._device_curve.base_j + self.device.once_j, np.shape(self.gain))

    def operation(self, share: FloatArray, energy_j: FloatArray | None = None) -> Operation:
        """Return how devices run at which the shares cost least.

        `energy_j` is what the shares cost by the curve, where that is known. By Proposition 1 an upload takes all the
        time left in the paper's model.
        """
        if not self.device.is_paper_model:
            return self._device_operation(share)
        upload_s = np.where(share > 0, self.upload_time_s, 0.0)
        if energy_j is None:
            power_w = self.power_w(share)
            return Operation(power_w, upload_s, power_w * upload_s)
        power_w = np.asarray(energy_j / np.where(self.upload_time_s > 0, self.upload_time_s, 1.0))
        return Operation(power_w, upload_s, energy_j)

    def _device_operation(self, share: FloatArray) -> Operation:
        """Return the clock, times and powers at which the shares cost least."""
        return self.operation_at(*self._device_curve.operation(share))

    def operation_at(self, compute_s: FloatArray, upload_s: FloatArray, power_w: FloatArray) -> Operation:
        """Return how whole devices run with these times and radiated powers, and what that takes of them."""
        parts = self.parts_j(compute_s, upload_s, power_w)
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = np.where(compute_s > 0, self.device.fastest_s / compute_s, 1.0)
        return Operation(
            power_w,
            upload_s,
            parts["radiating"] + parts["circuits"] + self.device.once_j,
            compute_s,
            parts["computing"] + parts["static"],
            np.asarray(self.device.cpu_hz * slower),
        )

    def parts_j(
        self, compute_time_s: FloatArray, upload_time_s: FloatArray, power_w: FloatArray
    ) -> dict[str, FloatArray]:
        """Return where the joules go, by the words of `ENERGY_PARTS`, from times and radiated power."""
        device, size = self.device, np.shape(compute_time_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            computing = np.where(np.asarray(device.work_j_s2) > 0, device.work_j_s2 / compute_time_s**2, 0.0)
        return {
            "computing": computing,
            "static": device.static_power_w * compute_time_s,
            "radiating": power_w * upload_time_s / device.amplifier_efficiency,
            "circuits": device.circuit_power_w * upload_time_s,
            "tail": np.broadcast_to(device.tail_j, size),
            "receiving": np.broadcast_to(device.receiving_j, size),
        }

    def decided_by(
        self, compute_time_s: FloatArray, upload_time_s: FloatArray, power_w: FloatArray
    ) -> tuple[Codes, Codes]:
        """Return what decided how long each upload takes, and each clock, as positions in `UPLOAD_BY`, `CLOCK_BY`."""
        device = self.device
        early = compute_time_s + upload_time_s < self.time_s * (1 - _SAME)
        slowed = compute_time_s > device.fastest_s * (1 + _SAME)
        upload = np.where(early, _UPLOAD.index("circuits"), np.where(slowed, _UPLOAD.index("clock"), 0))
        least_w = np.asarray(device.min_power_w)
        upload = np.where((least_w > 0) & (power_w <= least_w * (1 + _SAME)), _UPLOAD.index("least_power"), upload)
        upload = np.where(power_w >= self.max_power_w * (1 - _SAME), _UPLOAD.index("full_power"), upload)
        upload = np.where(self.payload_bits > 0, upload, _UPLOAD.index("nothing"))
        clock = np.where(early, _CLOCK.index("static"), _CLOCK.index("deadline"))
        clock = np.where(compute_time_s >= device.slowest_s * (1 - _SAME), _CLOCK.index("slowest"), clock)
        clock = np.where(slowed, clock, _CLOCK.index("fastest"))
        free = np.asarray(device.slowest_s) > device.fastest_s
        return upload.astype(np.int8), np.where(free, clock, _CLOCK.index("fixed")).astype(np.int8)


def transmit_power(
    share: ArrayLike,
    payload_bits: ArrayLike,
    upload_time_s: ArrayLike,
    gain: ArrayLike,
    bandwidth_hz: PerDevice,
    noise_w_per_hz: PerDevice,
) -> FloatArray:
    """Return p = (θ B N_0 / h) (2^(Q q / (T_U θ B)) − 1), equation (24): the power that ends exactly in time.

    Infinite where no power does: no time, no share, no gain, or more than a float can hold.

    Args:
        share: θ.
        payload_bits: Q q.
        upload_time_s: T_U.
        gain: h.
        bandwidth_hz: B.
        noise_w_per_hz: N_0.

    Returns:
        Watts.

    >>> float(transmit_power(0.5, 2.0, 1.0, 3.0, 2.0, 1.0))
    1.0
    """
    band_hz = np.asarray(share, float) * bandwidth_hz
    bits, time_s, gain = np.asarray(payload_bits, float), np.asarray(upload_time_s, float), np.asarray(gain, float)
    possible = (band_hz > 0) & (time_s > 0) & (gain > 0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        exponent = bits * np.log(2.0) / (time_s * band_hz)
        power_w = band_hz * noise_w_per_hz / gain * np.expm1(exponent)
    return np.where(bits == 0, 0.0, np.where(possible, power_w, np.inf))
