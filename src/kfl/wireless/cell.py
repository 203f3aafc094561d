"""One cell with its devices: where they stand, how fast they compute, how well they are heard each round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.randomness import stream
from kfl.core.units import dbm_to_watt
from kfl.wireless import cost
from kfl.wireless.channel import Fading, draw_gains, positions
from kfl.wireless.cost import FloatArray
from kfl.wireless.radio import Radio


@dataclass(frozen=True, eq=False)
class LinkState:
    """Everything the radio says about one round, one entry per device."""

    compute_time_s: FloatArray
    compute_energy_j: FloatArray
    gain: FloatArray
    """Channel gain the server plans with."""
    true_gain: FloatArray
    """Channel gain that decides whether an upload arrives."""
    payload_bits: FloatArray
    upload_time_s: FloatArray
    """Time left for the upload, T_max − T_L (less the broadcast); zero or less: too slow for the deadline."""
    max_power_w: FloatArray
    bandwidth_hz: float
    noise_w_per_hz: float
    fading: Fading
    """Hand it to the next round's `observe` when fading is correlated."""

    def outage(
        self, share: FloatArray, power_w: FloatArray, upload_time_s: FloatArray | None = None
    ) -> NDArray[np.bool_]:
        """Which of the devices with a share lose their upload, because the true channel is too weak."""
        time_s = self.upload_time_s if upload_time_s is None else upload_time_s
        lost = cost.in_outage(
            share, power_w, self.payload_bits, time_s, self.true_gain, self.bandwidth_hz, self.noise_w_per_hz
        )
        return np.asarray(lost & (share > 0))


@dataclass(frozen=True, eq=False)
class Cell:
    """A radio with its devices placed; fixed for a run. Make one with `Cell.build`.

    >>> cell = Cell.build(Radio(), devices=4, seed=0)
    >>> link = cell.observe(round_index=0, flops=1.65e9, payload_bits=20480)
    >>> link.gain.shape, bool((link.upload_time_s < 1).all())
    ((4,), True)
    """

    radio: Radio
    seed: int
    position_m: FloatArray
    """One row (x, y) per device; the server stands at (0, 0)."""
    cpu_hz: FloatArray

    @staticmethod
    def build(radio: Radio, devices: int, seed: int) -> Cell:
        """Place the devices and draw their processors; a device's place does not depend on their number."""
        radio.validate()
        pick = stream(seed, "cpu").random(devices) * len(radio.cpu_frequencies_hz)
        cpu_hz = np.asarray(radio.cpu_frequencies_hz, dtype=np.float64)[pick.astype(np.int64)]
        return Cell(radio, seed, positions(radio, seed, devices), cpu_hz)

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return len(self.cpu_hz)

    @property
    def distance_m(self) -> FloatArray:
        """Each device's distance to the server."""
        return np.asarray(np.hypot(self.position_m[:, 0], self.position_m[:, 1]))

    def budget_j(self, horizon: int) -> FloatArray:
        """Each device's energy budget for `horizon` rounds, E_k."""
        return np.full(self.devices, self.radio.budget_j_per_round * horizon)

    def observe(
        self,
        round_index: int,
        flops: ArrayLike,
        payload_bits: ArrayLike,
        previous: Fading | None = None,
        broadcast_bits: float = 0.0,
        available: NDArray[np.bool_] | None = None,
    ) -> LinkState:
        """The radio's part of what a scheduler sees in one round.

        `flops` is the work of each device in the round (τ D C as printed) and `payload_bits` its upload. Where
        the broadcast is counted, its time at the weakest available device is taken off the deadline before
        anyone is chosen, so that the deadline holds whoever is; `broadcast_time` gives the real, shorter one.
        """
        radio = self.radio
        gains = draw_gains(radio, self.seed, round_index, self.distance_m, previous)
        work = np.broadcast_to(np.asarray(flops, dtype=np.float64), (self.devices,))
        compute_s = cost.compute_time(work, self.cpu_hz, radio.flops_per_cycle)
        heard = np.ones(self.devices, dtype=bool) if available is None else available
        reserved_s = self.broadcast_time(gains.known_gain, heard, broadcast_bits)
        return LinkState(
            compute_time_s=compute_s,
            compute_energy_j=cost.compute_energy(work, self.cpu_hz, radio.flops_per_cycle, radio.power_coefficient),
            gain=gains.known_gain,
            true_gain=gains.true_gain,
            payload_bits=np.broadcast_to(np.asarray(payload_bits, dtype=np.float64), (self.devices,)).copy(),
            upload_time_s=radio.deadline_s - reserved_s - compute_s,
            max_power_w=np.full(self.devices, radio.max_power_w),
            bandwidth_hz=radio.bandwidth_hz,
            noise_w_per_hz=radio.noise_w_per_hz,
            fading=gains.fading,
        )

    def broadcast_time(self, gain: FloatArray, chosen: NDArray[np.bool_], bits: float) -> float:
        """Seconds to send `bits` to the chosen devices at the weakest one's rate; 0 without a downlink."""
        if self.radio.downlink_power_dbm is None or bits <= 0:
            return 0.0
        power_w = dbm_to_watt(self.radio.downlink_power_dbm)
        radio = self.radio
        return cost.broadcast_time(bits, power_w, gain[chosen], radio.bandwidth_hz, radio.noise_w_per_hz)
