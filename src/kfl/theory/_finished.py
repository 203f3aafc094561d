"""What the paper's guarantees say about a finished run: Theorem 1 with estimated constants, and Proposition 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, RunFolderError
from kfl.runfolder import RunReader, load_run
from kfl.scheduling import EnergyBound
from kfl.theory._bound import Bound, schedule_of, theorem1
from kfl.theory._estimate import DEVICES, ITERATIONS, Estimate, estimate_constants, knowledge_weight, pick_devices

if TYPE_CHECKING:
    from kfl.experiment import Experiment
    from kfl.models import State
    from kfl.runfolder import History, RoundLog
    from kfl.simulation.world import World
    from kfl.theory._proposition2 import VolumeBound


@dataclass(frozen=True, eq=False)
class RunBound:
    """Both guarantees for one run; None where one does not apply, with the reason in `notes`."""

    experiment: Experiment
    estimate: Estimate | None
    bound: Bound | None
    """At the run's own learning rates."""
    best_bound: Bound | None
    """The same constants and schedule at the rates at which A_3 is smallest."""
    energy: EnergyBound | None
    volume: VolumeBound | None
    notes: tuple[str, ...]


def bound_of_run(
    folder: str | Path,
    *,
    devices: int | Sequence[int] = DEVICES,
    iterations: int = ITERATIONS,
    data_dir: Path | None = None,
) -> RunBound:
    """Estimate the constants of a finished run and evaluate Theorem 1 and Proposition 2 for it.

    Its data is read again; its starting models come from its seed, its last ones from the folder where it kept them.

    >>> import kfl, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> _ = kfl.run(kfl.Experiment(devices=50, rounds=2, widths=(8,)), folder)
    >>> found = bound_of_run(folder, devices=[0], iterations=1)
    >>> found.estimate.devices, found.bound.label, found.energy.holds
    ((0,), 'as printed', True)
    """
    path = Path(folder)
    reader = RunReader(path)
    experiment, history = load_run(path)
    if not history.summary:
        raise RunFolderError(f"The run in {path} is not finished; kfl resume continues it.")
    if reader.given_as_objects():
        raise RunFolderError(
            f"The data or the models of {path} were given as Python objects, which a run folder cannot rebuild; "
            "use kfl.theory.estimate_constants on a world of your own."
        )
    world = _world(experiment, data_dir)
    notes: list[str] = []
    estimate = _estimate(reader, world, history, devices, iterations, notes)
    bound = best = None
    if estimate is not None:
        counts, schedule = world.partition.train_counts, reported(history.rounds, world.devices)
        bound = theorem1(estimate.constants, counts, schedule)
        best = theorem1(estimate.constants.at_best_rates(), counts, schedule)
    energy, volume = _proposition2(world, history, notes)
    return RunBound(experiment, estimate, bound, best, energy, volume, tuple(notes))


def reported(logs: Sequence[RoundLog], devices: int) -> NDArray[np.bool_]:
    """α_{k,t} as Theorem 1 uses it, (T, K): whose knowledge reached the server and was accepted."""
    return schedule_of([log.used for log in logs], devices)


def _world(experiment: Experiment, data_dir: Path | None) -> World:
    """The run's world on the CPU with plain autograd, whatever it ran on: nothing is trained here."""
    from kfl.engine.base import Plan
    from kfl.simulation.world import build_world

    plan = Plan.read({"paths": ["plain"] * len(experiment.widths)})
    return build_world(experiment, data_dir=data_dir, plan=plan)


def _estimate(
    reader: RunReader, world: World, history: History, devices: int | Sequence[int], iterations: int, notes: list[str]
) -> Estimate | None:
    try:
        knowledge_weight(world.experiment.algorithm)
    except ConfigError as problem:
        notes.append(f"Theorem 1 is left out: {problem}")
        return None
    chosen = pick_devices(world, devices)
    later = _last_models(reader, world, history, chosen, notes)
    return estimate_constants(world, later, devices=chosen, iterations=iterations)


def _last_models(
    reader: RunReader, world: World, history: History, devices: Sequence[int], notes: list[str]
) -> dict[int, State]:
    """The models that devices held at the end, of those that ever trained; empty where the run kept none."""
    if not reader.has_models:
        notes.append("The run kept no models, so the constants come from the starting models alone.")
        return {}
    found = {}
    for device in devices:
        state = reader.model(device)
        if state is not None:
            found[device] = world.experiment.algorithm.predictor({}, state)
        elif history.devices[device]["rounds"] > 0:
            raise reader.no_model(device)
    return found


def _proposition2(
    world: World, history: History, notes: list[str]
) -> tuple[EnergyBound, VolumeBound] | tuple[None, None]:
    from kfl.theory._proposition2 import proposition2_of_run

    try:
        energy, volume = proposition2_of_run(world, history.rounds)
    except ConfigError as problem:
        notes.append(f"Proposition 2 is left out: {problem}")
        return None, None
    scheduler = world.experiment.scheduler
    if scheduler.drift_weights(world.table.budget_j, world.experiment.rounds, world.table.samples)[0] == 0:
        name = scheduler.name
        notes.append(
            f"The scheduler {name} weighs no data: V = 0, and Proposition 2 says nothing about its data volume."
        )
    return energy, volume
