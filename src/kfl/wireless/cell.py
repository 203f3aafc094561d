"""One cell with its devices: their positions, their hardware, and the radio of each round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kfl.core.units import dbm_to_watt
from kfl.scheduling.accounts import Batteries
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.uplink import Uplink
from kfl.wireless.channel import Fading, FloatArray, Gains
from kfl.wireless.config import CellConfig
from kfl.wireless.costs import broadcast_time, compute_energy, in_outage, uplink_rate, upload_time
from kfl.wireless.hardware import Hardware
from kfl.wireless.mobility import place_devices


@dataclass(frozen=True, eq=False)
class LinkState:
    """Everything the radio says about one round, one entry per device."""

    uplink: Uplink
    """The uplink as the server knows it: with the gains it plans with, and the time that the broadcast leaves."""
    true_gain: FloatArray
    """Channel gain that decides whether an upload, or the broadcast, arrives."""
    compute_energy_j: FloatArray
    """κ τ D C f² / n at each device's own clock, the fastest where it can choose."""
    reserved_s: float
    """Time that was taken off the deadline for the broadcast; 0 where it is instant."""
    fading: Fading
    """The state of the channel; pass it on to the next round's `link_state`."""

    def outage(self, share: FloatArray, power_w: FloatArray, upload_time_s: FloatArray) -> NDArray[np.bool_]:
        """Return which of the devices with a share lose their upload, because the true channel is too weak."""
        up = self.uplink
        plan = (share, power_w, up.payload_bits, upload_time_s)
        lost = in_outage(*plan, self.true_gain, up.bandwidth_hz, up.noise_w_per_hz)
        return np.asarray(lost & (share > 0))


@dataclass(frozen=True, eq=False)
class Cell:
    """A radio with its devices placed; fixed for a run. Make one with `Cell.build`.

    >>> cell = Cell.build(CellConfig(), devices=4, seed=0)
    >>> link = cell.link_state(round_index=0, flops=1.65e9, payload_bits=20480)
    >>> link.uplink.gain.shape, bool((link.uplink.upload_time_s < 1).all())
    ((4,), True)
    """

    config: CellConfig
    seed: int
    position_m: FloatArray
    """Where the devices start: one row (x, y) per device; the server is at (0, 0)."""
    hardware: Hardware

    @staticmethod
    def build(config: CellConfig, devices: int, seed: int) -> Cell:
        """Place the devices and draw their processors; a device's place does not depend on their number."""
        config.validate()
        return Cell(config, seed, place_devices(config, seed, devices), Hardware.build(config, devices, seed))

    @property
    def devices(self) -> int:
        """The number of devices K."""
        return len(self.position_m)

    @property
    def distance_m(self) -> FloatArray:
        """Each device's distance to the server at the start."""
        return np.asarray(np.hypot(self.position_m[:, 0], self.position_m[:, 1]))

    def budget_j(self, horizon: int) -> FloatArray:
        """Return each device's energy budget for `horizon` rounds, E_k; with a harvest, what it can expect of that."""
        config = self.config
        if config.source.fills:
            return np.asarray(config.source.mean_j(config, self.seed, horizon, self.devices) * horizon)
        return np.full(self.devices, self.config.budget_j_per_round * horizon)

    def batteries(self) -> Batteries | None:
        """Return the batteries before the first round; None where there is only a budget."""
        config = self.config
        if config.battery_capacity_j is None:
            return None
        return Batteries.charged(config.battery_capacity_j, config.initial_charge, self.devices)

    def harvest_j(self, round_index: int) -> FloatArray:
        """Return the joules that each device harvests in a round."""
        return self.config.source.energy_j(self.config, self.seed, round_index, self.devices)

    def describe(self, device: int) -> dict[str, float | list[float]]:
        """Return where a device starts, its processor and its transmitter: what its costs are computed from."""
        return {"position_m": self.position_m[device].tolist(), **self.hardware.describe(device)}

    def columns(self) -> dict[str, FloatArray]:
        """Return what `describe` says of each device, one array for each fact."""
        return {"position_m": self.position_m, **self.hardware.columns()}

    def gains(self, round_index: int, previous: Fading | None = None) -> Gains:
        """Return the channel of one round: gains, what the server knows of them, and where the devices are."""
        return self.config.channel.gains(self.config, self.seed, round_index, self.position_m, previous)

    def link_state(
        self,
        round_index: int,
        flops: ArrayLike,
        payload_bits: ArrayLike,
        previous: Fading | None = None,
        broadcast_bits: float = 0.0,
    ) -> LinkState:
        """Return the radio's part of what a scheduler sees in one round.

        Where the broadcast is counted, its time at the weakest device is taken off the deadline before anyone is
        chosen, so that the deadline holds for any choice; `broadcast` gives the real, shorter one.

        Args:
            round_index: Counted from 0.
            flops: Work of each device in the round, τ D C as printed.
            payload_bits: Upload of each device.
            previous: Fading of an earlier round, which saves a recursion; without it the result is the same.
            broadcast_bits: Size of the broadcast; 0 for an instant one.
        """
        config, hardware = self.config, self.hardware
        gains = self.gains(round_index, previous)
        work = np.broadcast_to(np.asarray(flops, dtype=np.float64), (self.devices,))
        bits = np.broadcast_to(np.asarray(payload_bits, dtype=np.float64), (self.devices,)).copy()
        heard = gains.known_gain > 0  # a device that is not heard, as a trace may say, takes no part and needs no time
        reserved_s = self.broadcast_time(gains.known_gain, heard, broadcast_bits)
        uplink = Uplink(
            bandwidth_hz=config.bandwidth_hz,
            noise_w_per_hz=config.noise_w_per_hz,
            gain=gains.known_gain,
            payload_bits=bits,
            time_s=np.full(self.devices, config.deadline_s - reserved_s),
            max_power_w=hardware.max_power_w,
            device=hardware.energy_model(work, bits, reserved_s),
        )
        return LinkState(
            uplink=uplink,
            true_gain=gains.true_gain,
            compute_energy_j=compute_energy(
                work, hardware.cpu_hz, hardware.flops_per_cycle, hardware.power_coefficient
            ),
            reserved_s=reserved_s,
            fading=gains.fading,
        )

    def problem(
        self, rounds: int, *, flops: ArrayLike, payload_bits: ArrayLike, samples: ArrayLike, hard_budget: bool = False
    ) -> CellProblem:
        """Return the cell with its channel and harvest drawn, as a problem for `kfl.scheduling.schedule`.

        The broadcast is instant in a problem.


        >>> from kfl.scheduling import schedule
        >>> problem = Cell.build(CellConfig(), 20, seed=0).problem(5, flops=1.65e9, payload_bits=20480, samples=600)
        >>> [len(one.devices) for one in schedule(problem).rounds]
        [20, 0, 0, 3, 0]

        Args:
            rounds: Horizon, of which every round is described.
            flops: Work of each device in a round.
            payload_bits: Upload of each device.
            samples: Training samples of each device.
            hard_budget: Whether no device may exceed its budget.
        """
        links = [self.link_state(0, flops, payload_bits)]
        while len(links) < rounds:
            links.append(self.link_state(len(links), flops, payload_bits, links[-1].fading))
        uplink, nothing, batteries = links[0].uplink, np.zeros(self.devices), self.batteries()
        fills = self.config.source.fills
        return CellProblem(
            ids=tuple(f"d{device}" for device in range(self.devices)),
            bandwidth_hz=self.config.bandwidth_hz,
            noise_dbm_per_hz=self.config.noise_dbm_per_hz,
            rounds=rounds,
            round=0,
            seed=self.seed,
            hard_budget=hard_budget,
            gain=np.stack([link.uplink.gain for link in links]),
            available=np.ones((rounds, self.devices), dtype=bool),
            samples=np.broadcast_to(np.asarray(samples, dtype=np.float64), (self.devices,)),
            payload_bits=uplink.payload_bits,
            deadline_s=uplink.time_s,
            max_power_w=uplink.max_power_w,
            device=uplink.device,
            compute_energy_j=links[0].compute_energy_j,
            budget_j=self.budget_j(rounds),
            spent_j=nothing,
            queue_j=nothing,
            resource_blocks=self.config.resource_blocks,
            battery_capacity_j=self.config.battery_capacity_j,
            charge_j=None if batteries is None else batteries.charge_j,
            harvest_j=np.stack([self.harvest_j(t) for t in range(rounds)]) if fills else None,
        )

    def with_gains(self, link: LinkState, gain: FloatArray, broadcast_bits: float) -> LinkState:
        """Return a link state with measured gains, which are true and known; 0 for a device that is not heard."""
        reserved_s = self.broadcast_time(gain, gain > 0, broadcast_bits)
        device = replace(link.uplink.device, receiving_j=self.hardware.receive_power_w * reserved_s)
        time_s = np.full(self.devices, self.config.deadline_s - reserved_s)
        uplink = replace(link.uplink, gain=gain, time_s=time_s, device=device)
        return replace(link, uplink=uplink, true_gain=gain, reserved_s=reserved_s)

    def broadcast(self, link: LinkState, chosen: NDArray[np.bool_], bits: float) -> tuple[float, NDArray[np.bool_]]:
        """Return the seconds of the broadcast to the chosen devices, and which of them miss it.

        The server knows no more than the gains it plans with, so it sends at the rate of the weakest chosen device by
        these, which never takes longer than was reserved. A device whose true channel cannot carry that rate hears
        nothing.
        """
        time_s = self.broadcast_time(link.uplink.gain, chosen, bits)
        if self.config.downlink_power_dbm is None or time_s == 0:
            return time_s, np.zeros_like(chosen)
        power_w = dbm_to_watt(self.config.downlink_power_dbm)
        rate = uplink_rate(1.0, power_w, link.true_gain, self.config.bandwidth_hz, self.config.noise_w_per_hz)
        # A relative 1e-9, as for uploads: a device whose channel is known hears its own rate.
        return time_s, chosen & (upload_time(bits, rate) > time_s * (1 + 1e-9))

    def broadcast_time(self, gain: FloatArray, chosen: NDArray[np.bool_], bits: float) -> float:
        """Return the seconds to send `bits` to the chosen devices at the weakest one's rate; 0 without a downlink."""
        if self.config.downlink_power_dbm is None or bits <= 0:
            return 0.0
        power_w = dbm_to_watt(self.config.downlink_power_dbm)
        config = self.config
        return broadcast_time(bits, power_w, gain[chosen], config.bandwidth_hz, config.noise_w_per_hz)
