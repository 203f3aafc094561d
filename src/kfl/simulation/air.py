"""The radio's part of a round: what the server hears, whole resource blocks, how long it all takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kfl.scheduling import Decision, Observation, Status, Uplink
from kfl.wireless import Cell, LinkState, round_to_blocks, transmit_power

if TYPE_CHECKING:
    from kfl.experiment.experiment import Experiment
    from kfl.runfolder import RunState


class Site(Protocol):
    """What a round needs to know of its devices, simulated or real; one entry per device."""

    @property
    def experiment(self) -> Experiment:
        """What was asked for."""

    @property
    def cell(self) -> Cell | None:
        """The radio with its devices; None without one."""

    @property
    def samples(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Training samples of each device."""

    @property
    def budget_j(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Each device's energy budget for the whole run; infinite where there is none."""

    @property
    def flops(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Work of each device in a round."""

    @property
    def bits_up(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What each device uploads."""

    @property
    def bits_down(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What each device receives."""

    @property
    def devices(self) -> int:
        """The number of devices K."""


def listen(world: Site, state: RunState) -> LinkState | None:
    """The channel of this round; None without a radio."""
    if world.cell is None:
        return None
    down = float(world.bits_down.max())
    return world.cell.link_state(state.round, world.flops, world.bits_up, state.fading, broadcast_bits=down)


def observe(world: Site, state: RunState, link: LinkState | None) -> Observation:
    """What the server knows when the round starts."""
    count = world.devices
    uplink = None
    if link is not None:
        uplink = Uplink(
            bandwidth_hz=link.bandwidth_hz,
            noise_w_per_hz=link.noise_w_per_hz,
            gain=link.gain,
            payload_bits=link.payload_bits,
            upload_time_s=link.upload_time_s,
            max_power_w=link.max_power_w,
        )
    return Observation(
        round=state.round,
        seed=world.experiment.seed,
        samples=world.samples,
        available=world.experiment.faults.present(world.experiment.seed, state.round, count, world.experiment.rounds),
        compute_time_s=np.zeros(count) if link is None else link.compute_time_s,
        compute_energy_j=np.zeros(count) if link is None else link.compute_energy_j,
        battery_j=world.budget_j - state.compute_energy_j - state.upload_energy_j,
        hard_budget=world.experiment.hard_budget,
        uplink=uplink,
    )


def decide(world: Site, state: RunState, link: LinkState | None, observation: Observation) -> Decision:
    """The scheduler's decision, in whole resource blocks where the cell has them."""
    decision = world.experiment.scheduler.decide(state.scheduler, observation)
    blocks = None if world.cell is None else world.cell.config.resource_blocks
    if link is None or blocks is None:
        return decision
    return in_blocks(decision, link, blocks, observation)


def in_blocks(decision: Decision, link: LinkState, blocks: int, observation: Observation) -> Decision:
    """The decision with shares in whole resource blocks; devices that no longer fit are left out."""
    limit = observation.battery_j - observation.compute_energy_j if observation.hard_budget else None
    split = round_to_blocks(
        decision.share,
        blocks,
        link.payload_bits,
        link.upload_time_s,
        link.gain,
        link.max_power_w,
        link.bandwidth_hz,
        link.noise_w_per_hz,
        energy_limit_j=limit,
    )
    chosen = decision.chosen & ~split.dropped
    sending = split.share > 0
    power = np.zeros(len(chosen))
    power[sending] = transmit_power(
        split.share[sending],
        link.payload_bits[sending],
        link.upload_time_s[sending],
        link.gain[sending],
        link.bandwidth_hz,
        link.noise_w_per_hz,
    )
    return replace(
        decision,
        chosen=chosen,
        share=split.share,
        power_w=power,
        upload_energy_j=power * np.where(sending, link.upload_time_s, 0.0),
        upload_time_s=np.where(sending, link.upload_time_s, 0.0),
        # The bound was for shares that are real numbers; whole blocks can only be worse, so it still holds.
        objective=float("nan"),
        status=_with_dropped(decision.status, split.dropped, blocks),
    )


def _with_dropped(status: Status, dropped: np.ndarray[Any, np.dtype[np.bool_]], blocks: int) -> Status:
    if not dropped.any():
        return status
    return Status("too_few_blocks", {"crowded": tuple(np.flatnonzero(dropped).tolist())}, {"blocks": blocks})


def duration(world: Site, observation: Observation, decision: Decision, link: LinkState | None) -> float:
    """Simulated seconds: broadcast, then the slowest device's computation and upload."""
    if link is None or world.cell is None or not decision.chosen.any():
        return 0.0
    broadcast = world.cell.broadcast_time(link.true_gain, decision.chosen, float(world.bits_down.max()))
    busy = observation.compute_time_s + decision.upload_time_s
    return broadcast + float(busy[decision.chosen].max())
