"""One cell with its devices: their positions, their processors, and the channel of each round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.randomness import stream
from kfl.core.units import dbm_to_watt
from kfl.wireless import cost
from kfl.wireless.channel import Fading, Gains, place_devices
from kfl.wireless.config import CellConfig
from kfl.wireless.cost import FloatArray


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
    """The state of the channel; pass it on to the next round's `link_state`."""

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

    @staticmethod
    def build(config: CellConfig, devices: int, seed: int) -> Cell:
        """Place the devices and draw their processors; a device's place does not depend on their number."""
        config.validate()
        pick = stream(seed, "cpu").random(devices) * len(config.cpu_frequencies_hz)
        cpu_hz = np.asarray(config.cpu_frequencies_hz, dtype=np.float64)[pick.astype(np.int64)]
        return Cell(config, seed, place_devices(config, seed, devices), cpu_hz)

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return len(self.cpu_hz)

    @property
    def distance_m(self) -> FloatArray:
        """Each device's distance to the server at the start."""
        return np.asarray(np.hypot(self.position_m[:, 0], self.position_m[:, 1]))

    def budget_j(self, horizon: int) -> FloatArray:
        """Each device's energy budget for `horizon` rounds, E_k."""
        return np.full(self.devices, self.config.budget_j_per_round * horizon)

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
        available: NDArray[np.bool_] | None = None,
    ) -> LinkState:
        """The radio's part of what a scheduler sees in one round.

        `flops` is the work of each device in the round (τ D C as printed) and `payload_bits` its upload. Where
        the broadcast is counted, its time at the weakest available device is taken off the deadline before
        anyone is chosen, so that the deadline holds whoever is; `broadcast_time` gives the real, shorter one.
        """
        config = self.config
        gains = self.gains(round_index, previous)
        work = np.broadcast_to(np.asarray(flops, dtype=np.float64), (self.devices,))
        compute_s = cost.compute_time(work, self.cpu_hz, config.flops_per_cycle)
        heard = np.ones(self.devices, dtype=bool) if available is None else available
        reserved_s = self.broadcast_time(gains.known_gain, heard, broadcast_bits)
        return LinkState(
            compute_time_s=compute_s,
            compute_energy_j=cost.compute_energy(work, self.cpu_hz, config.flops_per_cycle, config.power_coefficient),
            gain=gains.known_gain,
            true_gain=gains.true_gain,
            payload_bits=np.broadcast_to(np.asarray(payload_bits, dtype=np.float64), (self.devices,)).copy(),
            upload_time_s=config.deadline_s - reserved_s - compute_s,
            max_power_w=np.full(self.devices, config.max_power_w),
            bandwidth_hz=config.bandwidth_hz,
            noise_w_per_hz=config.noise_w_per_hz,
            fading=gains.fading,
        )

    def broadcast_time(self, gain: FloatArray, chosen: NDArray[np.bool_], bits: float) -> float:
        """Seconds to send `bits` to the chosen devices at the weakest one's rate; 0 without a downlink."""
        if self.config.downlink_power_dbm is None or bits <= 0:
            return 0.0
        power_w = dbm_to_watt(self.config.downlink_power_dbm)
        config = self.config
        return cost.broadcast_time(bits, power_w, gain[chosen], config.bandwidth_hz, config.noise_w_per_hz)
