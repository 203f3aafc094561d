"""One round, from the channel draw to the log. One direction, no back and forth:

channel → scheduler.decide → algorithm.local_update → faults → algorithm.aggregate → accounts → log
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kfl.engine import RoundKey
from kfl.experiment.faults import NOT_TRAINED, UPLOAD_LOST, corrupted, poisoned, spent_fraction, tally
from kfl.runfolder import RoundLog, RunState
from kfl.scheduling import Decision, Observation
from kfl.simulation.air import decide, duration, listen, observe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kfl.algorithms import Upload
    from kfl.models import State
    from kfl.simulation.world import World

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


log = logging.getLogger("kfl.phases")
"""Says at debug level which phase a run is in; the tests that kill runs listen to it."""

TESTED_TOGETHER = 100
"""Devices whose models are in memory at once when all are tested."""


def begin(world: World) -> RunState:
    """The state before round 0: every device's starting model is tested once, none is kept."""
    experiment, count = world.experiment, world.devices
    server = experiment.algorithm.server_init(world.engine, experiment.seed)
    state = RunState(
        round=0,
        server=server,
        devices={},
        scheduler=experiment.scheduler.init(world.budget_j, experiment.rounds),
        compute_energy_j=np.zeros(count),
        upload_energy_j=np.zeros(count),
        taken=np.zeros(count, dtype=np.int64),
        correct=np.zeros(count, dtype=np.int64),
        fading=None,
    )
    return _tested(world, state, range(count))


def play_round(world: World, state: RunState) -> tuple[RunState, RoundLog]:
    """Play one round: the state after it, and what happened."""
    experiment, algorithm = world.experiment, world.experiment.algorithm
    link = listen(world, state)
    observation = observe(world, state, link)
    decision = decide(world, state, link, observation)
    chosen = [int(device) for device in np.flatnonzero(decision.chosen)]
    struck = experiment.faults.strike(experiment.seed, state.round, chosen, world.devices)

    log.debug("phase training, round %d", state.round)
    trained, uploads, diverged = _local_work(world, state, [d for d in chosen if struck.get(d) not in NOT_TRAINED])
    outage = set() if link is None else set(np.flatnonzero(link.outage(decision.share, decision.power_w)).tolist())
    lost = {u.device for u in uploads if u.device in outage or struck.get(u.device) in UPLOAD_LOST}
    arrived = [_as_it_arrives(world, state, u, struck.get(u.device)) for u in uploads if u.device not in lost]
    log.debug("phase aggregation, round %d", state.round)
    server, rejected = algorithm.aggregate(
        state.server, arrived, engine=world.engine, key=RoundKey(experiment.seed, state.round)
    )

    compute, upload = _spent(experiment.seed, state.round, observation, decision, struck)
    following = replace(
        state,
        round=state.round + 1,
        server=server,
        devices={**state.devices, **trained},
        scheduler=experiment.scheduler.update(state.scheduler, decision, compute + upload),
        compute_energy_j=state.compute_energy_j + compute,
        upload_energy_j=state.upload_energy_j + upload,
        taken=state.taken + decision.chosen,
        fading=None if link is None else link.fading,
    )
    log.debug("phase evaluation, round %d", state.round)
    following = _tested(world, following, trained if algorithm.predicts_alone else range(world.devices))
    sent = [device for device in chosen if struck.get(device) not in (*NOT_TRAINED, "drop_after")]
    return following, replace(
        log_decision(state.round, decision, compute, upload),
        accuracy=accuracy(world, following),
        time_s=duration(world, observation, decision, link),
        bits_up=float(world.bits_up[sent].sum()),
        bits_down=float(world.bits_down[chosen].sum()),
        lost=tuple(sorted(lost)),
        rejected=tuple(rejection.to_dict() for rejection in rejected),
        faults=tally(struck),
        diverged=tuple(diverged),
    )


def log_decision(round_index: int, decision: Decision, compute_j: FloatArray, upload_j: FloatArray) -> RoundLog:
    """The part of a round's log that follows from who was chosen and what each device spent."""
    chosen = [int(device) for device in np.flatnonzero(decision.chosen)]
    return RoundLog(
        round=round_index,
        accuracy=None,
        devices=tuple(chosen),
        share=_of(decision.share, chosen),
        power_w=_of(decision.power_w, chosen),
        compute_energy_j=_of(compute_j, chosen),
        upload_energy_j=_of(upload_j, chosen),
        time_s=0.0,
        bits_up=0.0,
        bits_down=0.0,
        objective=_number(decision.objective),
        lower_bound=_number(decision.lower_bound),
        status=decision.status,
    )


def _local_work(world: World, state: RunState, devices: list[int]) -> tuple[dict[int, State], list[Upload], list[int]]:
    """Train the devices. One whose model is no longer finite keeps the model it had, and its upload is dropped."""
    algorithm, key = world.experiment.algorithm, RoundKey(world.experiment.seed, state.round)
    before = [device_state(world, state, device) for device in devices]
    message = world.engine.place(algorithm.broadcast(state.server))
    after, uploads = algorithm.local_update(message, devices, before, world.engine, key)
    broken = [device for device, fine in zip(devices, finite(after), strict=True) if not fine]
    trained = {device: new for device, new in zip(devices, after, strict=True) if device not in broken}
    return trained, [upload for upload in uploads if upload.device not in broken], broken


def _as_it_arrives(world: World, state: RunState, upload: Upload, fault: str | None) -> Upload:
    """An upload after what its device or the channel did to it."""
    seed = world.experiment.seed
    if fault == "corrupt":
        return corrupted(upload, seed, state.round)
    if fault == "poisoned":
        return poisoned(upload, world.experiment.faults.poison, seed, state.round)
    return upload


def finite(states: Sequence[State]) -> list[bool]:
    """Whether every number of each state is finite; from a GPU, read back at once."""
    import torch

    arrays = [[value for value in state.values() if value.is_floating_point()] for state in states]
    flat = [value for row in arrays for value in row]
    if not flat:
        return [True] * len(states)
    if all(value.device.type == "cpu" for value in flat):
        # A number that is not finite makes the sum so too, and a sum is the quickest pass. It may also overflow.
        fine = [bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all()) for value in flat]
    else:
        # One fused call for all arrays of all devices: on a GPU hundreds of small ones take longer than training.
        largest = [norm.to(flat[0].dtype) for norm in torch._foreach_norm(flat, float("inf"))]
        fine = torch.isfinite(torch.stack(largest)).tolist()
    ends = list(itertools.accumulate(len(row) for row in arrays))
    return [all(fine[end - len(row) : end]) for row, end in zip(arrays, ends, strict=True)]


def _spent(
    seed: int, round_index: int, observation: Observation, decision: Decision, struck: dict[int, str]
) -> tuple[FloatArray, FloatArray]:
    """Joules each device really spent on computing and on its upload."""
    compute = np.where(decision.chosen, observation.compute_energy_j, 0.0)
    upload = np.where(decision.chosen, decision.upload_energy_j, 0.0)
    for device, kind in struck.items():
        if kind == "drop_before":
            compute[device] = upload[device] = 0.0
        elif kind == "drop_after":
            upload[device] = 0.0
        elif kind == "battery_empty":
            spent = spent_fraction(seed, round_index, device) * (compute[device] + upload[device])
            compute[device], upload[device] = min(spent, compute[device]), max(spent - compute[device], 0.0)
    return compute, upload


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
    total = int(world.partition.test_sizes.sum())
    return float(state.correct.sum()) / total if total else None


def _is_tested(world: World, state: RunState) -> bool:
    """Tests happen every so many rounds, and after the last."""
    every, rounds = world.experiment.evaluate_every, world.experiment.rounds
    return state.round % every == 0 or state.round >= rounds


def _tested(world: World, state: RunState, changed: Iterable[int]) -> RunState:
    """The state after a test, if it is time for one, of devices whose predictions may have changed since the last."""
    waiting = state.untested.union(changed)
    if not _is_tested(world, state):
        return replace(state, untested=waiting)
    correct, sizes = state.correct.copy(), world.partition.test_sizes
    due = sorted(device for device in waiting if sizes[device])
    for start in range(0, len(due), TESTED_TOGETHER):
        devices = due[start : start + TESTED_TOGETHER]
        states = [device_state(world, state, device) for device in devices]
        predictors = [world.experiment.algorithm.predictor(state.server, own) for own in states]
        correct[devices] = world.engine.correct(devices, predictors)
    return replace(state, correct=correct, untested=frozenset())


def _of(values: FloatArray, chosen: list[int]) -> tuple[float, ...]:
    return tuple(float(value) for value in values[chosen])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
