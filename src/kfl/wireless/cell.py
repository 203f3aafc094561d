"""One cell with its devices: their positions, their processors, and the channel of each round.

Time and energy of a device in a round follow the cost model of the paper's section II-C, as printed. The functions for
it, at the end, take numbers or arrays and broadcast. SI units, linear gains.

    >>> float(compute_time(8e9, 1e9, 4.0)), float(compute_energy(8e9, 1e9, 4.0, 1e-27))
    (2.0, 2.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.randomness import stream
from kfl.core.units import dbm_to_watt
from kfl.wireless.battery import Batteries
from kfl.wireless.channel import Fading, FloatArray, Gains
from kfl.wireless.config import CellConfig
from kfl.wireless.device import DeviceCosts, min_power_w
from kfl.wireless.mobility import place_devices


@dataclass(frozen=True, eq=False)
class LinkState:
    """Everything the radio says about one round, one entry per device."""

    compute_time_s: FloatArray
    """Of the work at each device's own clock, the fastest where it can choose."""
    compute_energy_j: FloatArray
    """κ τ D C f² / n at that clock."""
    gain: FloatArray
    """Channel gain the server plans with."""
    true_gain: FloatArray
    """Channel gain that decides whether an upload, or the broadcast, arrives."""
    payload_bits: FloatArray
    upload_time_s: FloatArray
    """Time left for the upload, T_max − T_L (less the broadcast); zero or less: too slow for the deadline."""
    max_power_w: FloatArray
    bandwidth_hz: float
    noise_w_per_hz: float
    reserved_s: float
    """Time that was taken off the deadline for the broadcast; 0 where it is instant."""
    fading: Fading
    """The state of the channel; pass it on to the next round's `link_state`."""
    device: DeviceCosts | None = None
    """What else a whole device spends; None in the printed model."""

    def outage(self, share: FloatArray, power_w: FloatArray, upload_time_s: FloatArray) -> NDArray[np.bool_]:
        """Which of the devices with a share lose their upload, because the true channel is too weak."""
        lost = in_outage(
            share, power_w, self.payload_bits, upload_time_s, self.true_gain, self.bandwidth_hz, self.noise_w_per_hz
        )
        return np.asarray(lost & (share > 0))


@dataclass(frozen=True, eq=False)
class Cell:
    """A radio with its devices placed; fixed for a run. Make one with `Cell.build`.

    >>> cell = Cell.build(CellConfig(), devices=4, seed=0)
    >>> link = cell.link_state(round_index=0, flops=1.65e9, payload_bits=20480)
    >>> link.gain.shape, bool((link.upload_time_s < 1).all())
    ((4,), True)
    """

    config: CellConfig
    seed: int
    position_m: FloatArray
    """Where the devices start: one row (x, y) per device; the server is at (0, 0)."""
    cpu_hz: FloatArray
    """Clock of each device, f_k; the fastest where it can choose."""
    flops_per_cycle: FloatArray
    """n_k."""
    power_coefficient: FloatArray
    """κ of each device's chip."""
    max_power_w: FloatArray
    """Largest transmit power of each device."""
    min_cpu_hz: FloatArray
    """Slowest clock; infinite where the clock is fixed at `cpu_hz`."""
    static_power_w: FloatArray
    """Drawn while the processor computes."""
    circuit_power_w: FloatArray
    """Drawn while the radio sends."""
    amplifier_efficiency: FloatArray
    """Radiated over drawn power."""
    min_power_w: FloatArray
    """Least radiated power while sending."""
    tail_j: FloatArray
    """Opening a connection, and keeping it after the last packet."""
    receive_power_w: FloatArray
    """Drawn during the time reserved for the broadcast."""

    @staticmethod
    def build(config: CellConfig, devices: int, seed: int) -> Cell:
        """Place the devices and draw their processors; a device's place does not depend on their number."""
        config.validate()
        pick = stream(seed, "cpu").random(devices) * len(config.cpu_frequencies_hz)
        cpu_hz = np.asarray(config.cpu_frequencies_hz, dtype=np.float64)[pick.astype(np.int64)]
        return Cell(
            config=config,
            seed=seed,
            position_m=place_devices(config, seed, devices),
            cpu_hz=cpu_hz,
            flops_per_cycle=np.full(devices, config.flops_per_cycle),
            power_coefficient=np.full(devices, config.power_coefficient),
            max_power_w=np.full(devices, config.max_power_w),
            min_cpu_hz=np.full(devices, np.inf if config.min_cpu_hz is None else config.min_cpu_hz),
            static_power_w=np.full(devices, config.static_power_w),
            circuit_power_w=np.full(devices, config.circuit_power_w),
            amplifier_efficiency=np.full(devices, config.amplifier_efficiency),
            min_power_w=np.full(devices, min_power_w(config)),
            tail_j=np.full(devices, config.connect_energy_j + config.tail_power_w * config.tail_s),
            receive_power_w=np.full(devices, config.receive_power_w),
        )

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return len(self.cpu_hz)

    @property
    def distance_m(self) -> FloatArray:
        """Each device's distance to the server at the start."""
        return np.asarray(np.hypot(self.position_m[:, 0], self.position_m[:, 1]))

    @property
    def slowest_hz(self) -> FloatArray:
        """Slowest clock of each device; its only one where that is fixed."""
        return np.minimum(self.min_cpu_hz, self.cpu_hz)

    @cached_property
    def printed_model(self) -> bool:
        """Whether the energy model is the paper's for every device."""
        drawn = (self.static_power_w, self.circuit_power_w, self.min_power_w, self.tail_j, self.receive_power_w)
        fixed = (self.slowest_hz == self.cpu_hz).all() and (self.amplifier_efficiency == 1).all()
        return bool(fixed) and not any(power.any() for power in drawn)

    def budget_j(self, horizon: int) -> FloatArray:
        """Each device's energy budget for `horizon` rounds, E_k; with a harvest, what it can expect of that."""
        config = self.config
        if config.source.fills:
            return np.asarray(config.source.mean_j(config, self.seed, horizon, self.devices) * horizon)
        return np.full(self.devices, self.config.budget_j_per_round * horizon)

    def batteries(self) -> Batteries | None:
        """The batteries before the first round; None where there is only a budget."""
        config = self.config
        if config.battery_capacity_j is None:
            return None
        return Batteries.charged(config.battery_capacity_j, config.initial_charge, self.devices)

    def harvest_j(self, round_index: int) -> FloatArray:
        """Joules that each device harvests in a round."""
        return self.config.source.energy_j(self.config, self.seed, round_index, self.devices)

    def hardware(self, device: int) -> dict[str, float | list[float]]:
        """Where a device starts, its processor and its transmitter: what its costs are computed from."""
        facts: dict[str, float | list[float]] = {
            "position_m": self.position_m[device].tolist(),
            "cpu_hz": float(self.cpu_hz[device]),
            "flops_per_cycle": float(self.flops_per_cycle[device]),
            "power_coefficient": float(self.power_coefficient[device]),
            "max_power_w": float(self.max_power_w[device]),
        }
        if self.printed_model:
            return facts
        whole = ("static_power_w", "circuit_power_w", "amplifier_efficiency", "tail_j", "receive_power_w")
        return {
            **facts,
            "min_cpu_hz": float(min(self.min_cpu_hz[device], self.cpu_hz[device])),
            "min_power_w": float(min(self.min_power_w[device], self.max_power_w[device])),
            **{name: float(getattr(self, name)[device]) for name in whole},
        }

    def gains(self, round_index: int, previous: Fading | None = None) -> Gains:
        """The channel of one round: gains, what the server knows of them, and where the devices are."""
        return self.config.channel.gains(self.config, self.seed, round_index, self.position_m, previous)

    def link_state(
        self,
        round_index: int,
        flops: ArrayLike,
        payload_bits: ArrayLike,
        previous: Fading | None = None,
        broadcast_bits: float = 0.0,
    ) -> LinkState:
        """The radio's part of what a scheduler sees in one round.

        `flops` is the work of each device in the round (τ D C as printed) and `payload_bits` its upload. Where
        the broadcast is counted, its time at the weakest device is taken off the deadline before
        anyone is chosen, so that the deadline holds whoever is; `broadcast` gives the real, shorter one.
        """
        config = self.config
        gains = self.gains(round_index, previous)
        work = np.broadcast_to(np.asarray(flops, dtype=np.float64), (self.devices,))
        compute_s = compute_time(work, self.cpu_hz, self.flops_per_cycle)
        heard = gains.known_gain > 0  # who is not heard, as a trace may say, takes no part and needs no time
        reserved_s = self.broadcast_time(gains.known_gain, heard, broadcast_bits)
        bits = np.broadcast_to(np.asarray(payload_bits, dtype=np.float64), (self.devices,)).copy()
        return LinkState(
            compute_time_s=compute_s,
            compute_energy_j=compute_energy(work, self.cpu_hz, self.flops_per_cycle, self.power_coefficient),
            gain=gains.known_gain,
            true_gain=gains.true_gain,
            payload_bits=bits,
            upload_time_s=config.deadline_s - reserved_s - compute_s,
            max_power_w=self.max_power_w,
            bandwidth_hz=config.bandwidth_hz,
            noise_w_per_hz=config.noise_w_per_hz,
            reserved_s=reserved_s,
            fading=gains.fading,
            device=None if self.printed_model else self._costs(work, bits),
        )

    def _costs(self, flops: FloatArray, payload_bits: FloatArray) -> DeviceCosts:
        """What whole devices with this work and these uploads spend besides the printed model."""
        with np.errstate(over="ignore"):
            cycles = flops / self.flops_per_cycle
            work_j_s2 = self.power_coefficient * cycles**3
        return DeviceCosts(
            cpu_hz=self.cpu_hz,
            slowest_s=compute_time(flops, self.slowest_hz, self.flops_per_cycle),
            work_j_s2=work_j_s2,
            static_power_w=self.static_power_w,
            circuit_power_w=self.circuit_power_w,
            amplifier_efficiency=self.amplifier_efficiency,
            min_power_w=np.minimum(self.min_power_w, self.max_power_w),
            tail_j=np.where(payload_bits > 0, self.tail_j, 0.0),
            receive_power_w=self.receive_power_w,
        )

    def broadcast(self, link: LinkState, chosen: NDArray[np.bool_], bits: float) -> tuple[float, NDArray[np.bool_]]:
        """Seconds of the broadcast to the chosen devices, and which of them miss it.

        The server knows no more than the gains it plans with, so it sends at the rate of the weakest chosen device by
        these, which never takes longer than was reserved. A device whose true channel cannot carry that rate hears
        nothing.
        """
        time_s = self.broadcast_time(link.gain, chosen, bits)
        if self.config.downlink_power_dbm is None or time_s == 0:
            return time_s, np.zeros_like(chosen)
        power_w = dbm_to_watt(self.config.downlink_power_dbm)
        rate = uplink_rate(1.0, power_w, link.true_gain, link.bandwidth_hz, link.noise_w_per_hz)
        # A relative 1e-9, as for uploads: a device whose channel is known hears its own rate.
        return time_s, chosen & (upload_time(bits, rate) > time_s * (1 + 1e-9))

    def broadcast_time(self, gain: FloatArray, chosen: NDArray[np.bool_], bits: float) -> float:
        """Seconds to send `bits` to the chosen devices at the weakest one's rate; 0 without a downlink."""
        if self.config.downlink_power_dbm is None or bits <= 0:
            return 0.0
        power_w = dbm_to_watt(self.config.downlink_power_dbm)
        config = self.config
        return broadcast_time(bits, power_w, gain[chosen], config.bandwidth_hz, config.noise_w_per_hz)


# ── Time and energy ──────────────────────────────────────────────────────────


def _array(value: ArrayLike) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def compute_time(flops: ArrayLike, cpu_hz: ArrayLike, flops_per_cycle: ArrayLike) -> FloatArray:
    """T_L = τ D C / (f n), equation (10). `flops` is the whole work of a round, τ D C."""
    with np.errstate(over="ignore"):  # a clock beyond all bounds is infinitely fast
        return np.divide(_array(flops), _array(cpu_hz) * _array(flops_per_cycle))


def compute_energy(
    flops: ArrayLike, cpu_hz: ArrayLike, flops_per_cycle: ArrayLike, power_coefficient: ArrayLike
) -> FloatArray:
    """E_L = κ τ D C f² / n, equation (11). `flops` is the whole work of a round, τ D C."""
    with np.errstate(over="ignore"):  # and costs infinitely much
        return np.asarray(_array(power_coefficient) * _array(flops) * _array(cpu_hz) ** 2 / _array(flops_per_cycle))


def uplink_rate(
    share: ArrayLike, power_w: ArrayLike, gain: ArrayLike, bandwidth_hz: float, noise_w_per_hz: float
) -> FloatArray:
    """r = θ B log2(1 + p h / (θ B N_0)) in bits per second; 0 where the share or the power is 0.

    >>> float(uplink_rate(0.5, 1.0, 3.0, 2.0, 1.0))
    2.0
    """
    band_hz = _array(share) * bandwidth_hz
    noise_w = band_hz * noise_w_per_hz
    signal_w = _array(power_w) * _array(gain)
    ratio = np.divide(signal_w, noise_w, out=np.zeros(np.broadcast(signal_w, noise_w).shape), where=noise_w > 0)
    return np.asarray(band_hz * np.log1p(ratio) / np.log(2.0))


def upload_time(payload_bits: ArrayLike, rate_bits_per_s: ArrayLike) -> FloatArray:
    """T_U = Q q / r, equation (12); infinite at rate 0, and 0 for an empty payload."""
    bits, rate = np.broadcast_arrays(_array(payload_bits), _array(rate_bits_per_s))
    time_s = np.where(bits > 0, np.inf, 0.0)
    np.divide(bits, rate, out=time_s, where=(rate > 0) & (bits > 0))
    return time_s


def upload_energy(power_w: ArrayLike, upload_time_s: ArrayLike) -> FloatArray:
    """E_U = p T_U, the left half of equation (13)."""
    return np.asarray(_array(power_w) * _array(upload_time_s))


def transmit_power(
    share: ArrayLike,
    payload_bits: ArrayLike,
    upload_time_s: ArrayLike,
    gain: ArrayLike,
    bandwidth_hz: float | FloatArray,
    noise_w_per_hz: float | FloatArray,
) -> FloatArray:
    """p = (θ B N_0 / h) (2^(Q q / (T_U θ B)) − 1), equation (24): the power that ends exactly in time.

    Infinite where no power does: no time, no share, no gain, or more than a float can hold.

    >>> float(transmit_power(0.5, 2.0, 1.0, 3.0, 2.0, 1.0))
    1.0
    """
    band_hz = _array(share) * bandwidth_hz
    bits, time_s, gain = _array(payload_bits), _array(upload_time_s), _array(gain)
    possible = (band_hz > 0) & (time_s > 0) & (gain > 0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        exponent = bits * np.log(2.0) / (time_s * band_hz)
        power_w = band_hz * noise_w_per_hz / gain * np.expm1(exponent)
    return np.where(bits == 0, 0.0, np.where(possible, power_w, np.inf))


def in_outage(
    share: ArrayLike,
    power_w: ArrayLike,
    payload_bits: ArrayLike,
    upload_time_s: ArrayLike,
    true_gain: ArrayLike,
    bandwidth_hz: float,
    noise_w_per_hz: float,
) -> NDArray[np.bool_]:
    """True where the real channel is too weak for the allotted share, power and time: the upload is lost.

    The device does not know, sends for the whole allotted time and spends the energy. A relative 1e-9 is
    granted, since a device that knows its channel sends exactly as long as allowed.
    """
    rate = uplink_rate(share, power_w, true_gain, bandwidth_hz, noise_w_per_hz)
    return np.asarray(upload_time(payload_bits, rate) > _array(upload_time_s) * (1 + 1e-9))


def broadcast_time(bits: float, power_w: float, gain: ArrayLike, bandwidth_hz: float, noise_w_per_hz: float) -> float:
    """Time to send `bits` to all these devices at once over the whole band, at the weakest device's rate.

    The paper leaves this out (end of II-C). 0 when there is no device or nothing to send.
    """
    gains = np.atleast_1d(_array(gain))
    if gains.size == 0:
        return 0.0
    rate = uplink_rate(1.0, power_w, gains.min(), bandwidth_hz, noise_w_per_hz)
    return float(upload_time(bits, rate))
