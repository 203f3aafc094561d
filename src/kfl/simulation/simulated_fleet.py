"""Devices that live in this process: trained by the engine, heard over a drawn channel, struck by drawn faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms.uploads import sent_bits
from kfl.engine import RoundKey
from kfl.experiment.faults import NOT_TRAINED, RAN_DRY, UPLOAD_LOST, corrupted, poisoned, spent_fraction, tally
from kfl.simulation.fleet import BoolArray, Conditions, Fleet, FloatArray, IntArray, Replies, finite

if TYPE_CHECKING:
    from kfl.algorithms import Upload
    from kfl.algorithms.base import Message
    from kfl.models import State
    from kfl.scheduling import Decision
    from kfl.simulation.state import RunState
    from kfl.simulation.world import World
    from kfl.wireless import LinkState

MOST_RECORDS = 10_000
"""Of a larger fleet, what is known of devices is columns, in memory and in a run folder."""


class SimulatedFleet(Fleet):
    """The devices of a world."""

    foreseeable = True
    stops_on_divergence = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.experiment = world.experiment
        self.engine = world.engine
        self.cell = world.cell
        self.table = world.table
        self.evaluate_every = world.experiment.evaluate_every

    def restore(self, state: RunState) -> RunState:
        """Bring the arrays to where they are computed with."""
        # Where the server's arrays live is the algorithm's affair: knowledge on the CPU, models where they are trained.
        homes = self.experiment.algorithm.server_init(self.engine, self.experiment.seed)
        server = {
            name: value.to(homes[name].device) if name in homes else value for name, value in state.server.items()
        }
        devices = {device: self.engine.place(own) for device, own in state.devices.items()}
        return replace(state, server=server, devices=devices)

    def available(self, state: RunState, link: LinkState | None) -> BoolArray:
        """Devices that have joined and not left."""
        experiment = self.experiment
        return experiment.faults.present(experiment.seed, state.round, self.table.size, experiment.rounds)

    def exchange(self, state: RunState, conditions: Conditions, decision: Decision, message: Message) -> Replies:
        """Train the chosen devices, and lose or spoil what faults and the channel lose or spoil."""
        experiment, link, number = self.experiment, conditions.link, state.round
        broadcast_s, reached = self.broadcast(conditions, decision)
        asked = np.flatnonzero(reached.chosen).tolist()
        struck = experiment.faults.strike(experiment.seed, number, asked, self.table.size)
        seed = experiment.seed
        spent = {d: spent_fraction(seed, number, d) for d, kind in struck.items() if kind == "battery_empty"}
        dry = _running_dry(state, reached, struck, spent)
        struck, spent = struck | dict.fromkeys(dry, RAN_DRY), spent | dry
        compute_j, upload_j = _spent(reached, struck, spent)
        unlearned = {d for d in dry if compute_j[d] < decision.compute_energy_j[d]}
        learning = [d for d in asked if struck.get(d) not in NOT_TRAINED and d not in unlearned]
        trained, uploads, diverged = self._train(state, learning, message)
        sent = [device for device in asked if struck.get(device) not in (*NOT_TRAINED, RAN_DRY, "drop_after")]
        formats = experiment.algorithm.upload_format(state.server)
        sizes = {upload.device: sent_bits(upload, formats) for upload in uploads}
        uploads = [upload for upload in uploads if upload.device not in diverged]
        plan = (decision.share, decision.power_w, decision.upload_time_s)
        outage = set() if link is None else set(np.flatnonzero(link.outage(*plan)).tolist())
        lost = {u.device for u in uploads if u.device in outage or struck.get(u.device) in UPLOAD_LOST} | set(dry)
        arrived = [self._as_received(state, u, struck.get(u.device)) for u in uploads if u.device not in lost]
        return Replies(
            uploads=arrived,
            usable=len(set(trained) - lost),
            compute_energy_j=compute_j,
            upload_energy_j=upload_j,
            time_s=broadcast_s + _busy_s(conditions, decision),
            broadcast_s=broadcast_s,
            sent=sent,
            sent_bits={device: sizes.get(device, 0.0) for device in sent},
            states=trained,
            missed=np.flatnonzero(decision.chosen & ~reached.chosen).tolist(),
            lost=lost,
            faults=tally(struck, spent),
            diverged=diverged,
        )

    def evaluate(self, state: RunState, devices: Collection[int]) -> IntArray:
        """Evaluate the models of `devices`; the counts of all others stay."""
        correct, algorithm = state.correct.copy(), self.experiment.algorithm
        due = sorted(device for device in devices if self.table.test_samples[device])
        for start in range(0, len(due), algorithm.tested_at_once):
            batch = due[start : start + algorithm.tested_at_once]
            states = [self.device_state(state, device) for device in batch]
            correct[batch] = algorithm.correct(state.server, batch, states, self.engine)
        return correct

    def describe_devices(self) -> Iterable[dict[str, Any]]:
        """For each device its number, what the data calls it if it does, its model, parameters, samples and classes."""
        models, split = self.world.models, self.world.partition
        counts, names = split.train_counts, split.names
        return [
            {
                "device": device,
                **({"name": names[device]} if names else {}),
                "model": models.names[index],
                "parameters": models.profiles[index].parameters,
                "samples": int(self.table.samples[device]),
                "classes": counts[device].nonzero()[0].tolist(),
            }
            for device, index in enumerate(models.architecture.tolist())
        ]

    def device_columns(self) -> dict[str, NDArray[Any]] | None:
        """The same as columns, for a large fleet."""
        models, split = self.world.models, self.world.partition
        if self.table.size <= MOST_RECORDS:
            return None
        parameters = np.array([profile.parameters for profile in models.profiles])
        words = {"name": np.arange(self.table.size), "name.words": np.array(split.names)} if split.names else {}
        return {
            "device": np.arange(self.table.size),
            **words,
            "model": models.architecture,
            "model.words": np.array(models.names),
            "parameters": parameters[models.architecture],
            "samples": self.table.samples.astype(np.int64),
            "classes": split.train_counts > 0,
        }

    def device_state(self, state: RunState, device: int) -> State:
        """A device's state: stored once it has trained, made from its seed before."""
        stored = state.devices.get(device)
        if stored is not None:
            return stored
        return self.experiment.algorithm.device_init(self.engine, device, self.experiment.seed)

    def _train(
        self, state: RunState, devices: list[int], message: Message
    ) -> tuple[dict[int, State], list[Upload], list[int]]:
        """Train the devices. One whose model is no longer finite keeps the model it had."""
        before = [self.device_state(state, device) for device in devices]
        key = RoundKey(self.experiment.seed, state.round)
        placed = self.engine.place(message)
        after, uploads = self.experiment.algorithm.local_update(placed, devices, before, self.engine, key)
        diverged = [device for device, fine in zip(devices, finite(after), strict=True) if not fine]
        trained = {device: own for device, own in zip(devices, after, strict=True) if device not in diverged}
        return trained, list(uploads), diverged

    def _as_received(self, state: RunState, upload: Upload, fault: str | None) -> Upload:
        """An upload after what its device or the channel did to it."""
        seed = self.experiment.seed
        if fault == "corrupt":
            return corrupted(upload, seed, state.round)
        if fault == "poisoned":
            return poisoned(upload, self.experiment.faults.poison, seed, state.round)
        return upload


def _busy_s(conditions: Conditions, decision: Decision) -> float:
    """Simulated seconds of the slowest chosen device's computation and upload."""
    if conditions.link is None or not decision.chosen.any():
        return 0.0
    busy_s = decision.compute_time_s + decision.upload_time_s
    return float(busy_s[decision.chosen].max())


def _running_dry(
    state: RunState, decision: Decision, struck: Mapping[int, str], part: Mapping[int, float]
) -> dict[int, float]:
    """The devices whose charge does not last for what they were asked to do, and for which part of it it lasts."""
    if state.accounts.batteries is None:
        return {}
    compute_j, upload_j = _spent(decision, struck, part)
    dry = np.flatnonzero(state.accounts.batteries.running_dry(compute_j + upload_j)).tolist()
    planned_j = decision.compute_energy_j + decision.upload_energy_j
    return {device: float(state.accounts.batteries.charge_j[device] / planned_j[device]) for device in dry}


def _spent(decision: Decision, struck: Mapping[int, str], part: Mapping[int, float]) -> tuple[FloatArray, FloatArray]:
    """Joules each device really spent on computing and on its upload; `part` is of those whose battery died."""
    compute_j, upload_j = decision.energy_j()
    for device, kind in struck.items():
        if kind == "drop_before":
            compute_j[device] = upload_j[device] = 0.0
        elif kind == "drop_after":
            upload_j[device] = 0.0
        elif kind in ("battery_empty", RAN_DRY):
            spent = part[device] * (compute_j[device] + upload_j[device])
            compute_j[device], upload_j[device] = min(spent, compute_j[device]), max(spent - compute_j[device], 0.0)
    return compute_j, upload_j
