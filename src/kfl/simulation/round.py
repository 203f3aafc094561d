"""One round, from the channel draw to the log. One direction, no back and forth:

channel → scheduler.decide → algorithm.local_update → uploads that arrive → algorithm.aggregate → accounts → log
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kfl.engine import RoundKey
from kfl.scheduling import Decision, Observation, SchedulerState, Uplink
from kfl.simulation.history import RoundLog
from kfl.wireless import Fading, LinkState, round_to_blocks, transmit_power

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfl.models import State
    from kfl.simulation.world import World

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunState:
    """All that a run carries from one round to the next. A checkpoint is this."""

    round: int
    """The next round to play."""
    server: State
    devices: dict[int, State]
    """States of the devices that ever trained; any other device is still its seed."""
    scheduler: SchedulerState
    compute_energy_j: FloatArray
    """Spent so far, per device."""
    upload_energy_j: FloatArray
    taken: IntArray
    """Rounds each device took part in."""
    correct: IntArray
    """Right test predictions of each device when last tested."""
    fading: Fading | None


def begin(world: World) -> RunState:
    """The state before round 0: every device's starting model is tested once, none is kept."""
    experiment, count = world.experiment, world.devices
    server = experiment.algorithm.server_init(world.engine, experiment.seed)
    state = RunState(
        round=0,
        server=server,
        devices={},
        scheduler=experiment.scheduler.init(world.fleet, experiment.rounds),
        compute_energy_j=np.zeros(count),
        upload_energy_j=np.zeros(count),
        taken=np.zeros(count, dtype=np.int64),
        correct=np.zeros(count, dtype=np.int64),
        fading=None,
    )
    return replace(state, correct=_tested(world, state, range(count)))


def play_round(world: World, state: RunState) -> tuple[RunState, RoundLog]:
    """Play one round: the state after it, and what happened."""
    experiment, algorithm = world.experiment, world.experiment.algorithm
    link = _listen(world, state)
    observation = observe(world, state, link)
    decision = experiment.scheduler.decide(state.scheduler, observation)
    if link is not None and experiment.cell is not None and experiment.cell.resource_blocks is not None:
        decision = in_blocks(decision, link, experiment.cell.resource_blocks, observation)
    chosen = [int(device) for device in np.flatnonzero(decision.chosen)]

    before = [device_state(world, state, device) for device in chosen]
    message = world.engine.place(algorithm.broadcast(state.server))
    after, uploads = algorithm.local_update(
        message, chosen, before, world.engine, RoundKey(experiment.seed, state.round)
    )
    lost = set() if link is None else set(np.flatnonzero(link.outage(decision.share, decision.power_w)).tolist())
    arrived = [upload for upload in uploads if upload.device not in lost]
    server, rejected = algorithm.aggregate(state.server, arrived)

    compute = np.where(decision.chosen, observation.compute_energy_j, 0.0)
    upload = np.where(decision.chosen, decision.upload_energy_j, 0.0)
    following = replace(
        state,
        round=state.round + 1,
        server=server,
        devices={**state.devices, **dict(zip(chosen, after, strict=True))},
        scheduler=experiment.scheduler.update(state.scheduler, decision, compute + upload),
        compute_energy_j=state.compute_energy_j + compute,
        upload_energy_j=state.upload_energy_j + upload,
        taken=state.taken + decision.chosen,
        fading=None if link is None else link.fading,
    )
    following = replace(following, correct=_tested(world, following, chosen if algorithm.predicts_alone else None))
    return following, RoundLog(
        round=state.round,
        accuracy=accuracy(world, following),
        devices=tuple(chosen),
        share=_of(decision.share, chosen),
        power_w=_of(decision.power_w, chosen),
        compute_energy_j=_of(compute, chosen),
        upload_energy_j=_of(upload, chosen),
        time_s=_duration(world, observation, decision, link),
        bits_up=float(world.bits_up[chosen].sum()),
        bits_down=float(world.bits_down[chosen].sum()),
        objective=_number(decision.objective),
        lower_bound=_number(decision.lower_bound),
        status=decision.status,
        lost=tuple(sorted(lost)),
        rejected=tuple({"device": r.device, "reason": r.reason} for r in rejected),
    )


def observe(world: World, state: RunState, link: LinkState | None) -> Observation:
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
        samples=world.fleet.samples,
        available=np.ones(count, dtype=bool),
        compute_time_s=np.zeros(count) if link is None else link.compute_time_s,
        compute_energy_j=np.zeros(count) if link is None else link.compute_energy_j,
        battery_j=world.fleet.budget_j - state.compute_energy_j - state.upload_energy_j,
        hard_budget=world.experiment.hard_budget,
        uplink=uplink,
    )


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
        status=decision.status if split.status == "ok" else split.status,
    )


def device_state(world: World, state: RunState, device: int) -> State:
    """A device's state: kept if it ever trained, otherwise made from its seed."""
    kept = state.devices.get(device)
    if kept is not None:
        return kept
    return world.experiment.algorithm.device_init(world.engine, device, world.experiment.seed)


def accuracy(world: World, state: RunState) -> float | None:
    """Right predictions over all test samples; None in a round without a test."""
    if not _is_tested(world, state):
        return None
    total = sum(world.engine.test_samples(device) for device in range(world.devices))
    return float(state.correct.sum()) / total if total else None


def _is_tested(world: World, state: RunState) -> bool:
    """Tests happen every so many rounds, and after the last."""
    every, rounds = world.experiment.evaluate_every, world.experiment.rounds
    return state.round % every == 0 or state.round >= rounds


def _tested(world: World, state: RunState, changed: Sequence[int] | None) -> IntArray:
    """Test the devices whose predictions may have changed (None: all of them)."""
    algorithm = world.experiment.algorithm
    if not _is_tested(world, state):
        return state.correct
    if world.experiment.evaluate_every > 1:
        changed = None  # rounds without a test changed other devices too
    correct = state.correct.copy()
    for device in range(world.devices) if changed is None else changed:
        predictor = algorithm.predictor(state.server, device_state(world, state, device))
        correct[device] = world.engine.correct([device], [predictor])[0]
    return correct


def _listen(world: World, state: RunState) -> LinkState | None:
    """The channel of this round; None without a radio."""
    if world.cell is None:
        return None
    down = float(world.bits_down.max())
    return world.cell.observe(state.round, world.flops, world.bits_up, state.fading, broadcast_bits=down)


def _duration(world: World, observation: Observation, decision: Decision, link: LinkState | None) -> float:
    """Simulated seconds: broadcast, then the slowest device's computation and upload."""
    if link is None or world.cell is None or not decision.chosen.any():
        return 0.0
    broadcast = world.cell.broadcast_time(link.true_gain, decision.chosen, float(world.bits_down.max()))
    busy = observation.compute_time_s + decision.upload_time_s
    return broadcast + float(busy[decision.chosen].max())


def _of(values: FloatArray, chosen: list[int]) -> tuple[float, ...]:
    return tuple(float(value) for value in values[chosen])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
