"""What the paper's guarantees say about a finished run: Theorem 1 with estimated constants, and Proposition 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import Kfl
from kfl.algorithms.uploads import BITS_PER_VALUE
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.text import several
from kfl.models import architectures
from kfl.runfolder import RunReader, load_run
from kfl.scheduling import DriftScheduler
from reproduction.theory.energy import EnergyBound, why_not_covered
from reproduction.theory.estimate import (
    DEVICES,
    ITERATIONS,
    Estimate,
    device_module,
    estimate_constants,
    knowledge_weight,
    pick_devices,
    training_data,
)
from reproduction.theory.theorem1 import Bound, schedule_of, theorem1

if TYPE_CHECKING:
    from kfl.experiment import Experiment
    from kfl.models import State
    from kfl.simulation import History, RoundLog
    from kfl.simulation.world import World
    from reproduction.theory.knowledge_gap import KnowledgeGap
    from reproduction.theory.proposition2 import VolumeBound

MOST_DEVICES = 1_000
"""Equation (5) reads the models of all devices; in larger fleets it is left out."""


@dataclass(frozen=True, eq=False)
class RunBound:
    """Both guarantees for one run; None where one does not apply, with the reason in `notes`."""

    experiment: Experiment
    estimate: Estimate | None
    bound: Bound | None
    """At the run's own learning rates."""
    best_bound: Bound | None
    """The same constants and schedule at the rates at which A_3 is smallest."""
    knowledge: KnowledgeGap | None
    """Equation (5) against what the server holds."""
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
    """Estimate the constants of a finished run and evaluate Theorem 1, equation (5) and Proposition 2 for it.

    Its data is read again; its starting models come from its seed, its last ones from the folder where it kept them.

    >>> import kfl, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> asked = kfl.Experiment(devices=50, rounds=2, widths=(8,), scheduler=kfl.Lyapunov(), radio="paper-mnist")
    >>> _ = kfl.run(asked, folder)
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
            "use reproduction.theory.estimate_constants on a world of your own."
        )
    world = _world(experiment, reader, data_dir)
    notes: list[str] = []
    estimate = _estimate(reader, world, history, devices, iterations, notes)
    bound = best = knowledge = None
    if estimate is not None:
        counts, schedule = world.partition.train_counts, reported(history.rounds, world.devices)
        bound = theorem1(estimate.constants, counts, schedule)
        best = theorem1(estimate.constants.at_best_rates(), counts, schedule)
        knowledge = _knowledge_gap(reader, world, history, notes)
    energy, volume = _proposition2(world, history, notes)
    return RunBound(experiment, estimate, bound, best, knowledge, energy, volume, tuple(notes))


def reported(logs: Sequence[RoundLog], devices: int) -> NDArray[np.bool_]:
    """α_{k,t} as Theorem 1 uses it, (T, K): whose knowledge reached the server and was accepted."""
    return schedule_of([log.used for log in logs], devices)


def _world(experiment: Experiment, reader: RunReader, data_dir: Path | None) -> World:
    """The run's world on the CPU with plain autograd, whatever it ran on: nothing is trained here."""
    from kfl.engine.plan import Plan
    from kfl.simulation.world import build_world

    kinds = architectures(experiment.model, experiment.widths, tuple(reader.dataset()["input_shape"]))
    plan = Plan.read({"paths": ["plain"] * len(kinds)})
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
    if not reader.has_models:
        notes.append("The run kept no models, so the constants come from the starting models alone.")
    later = _last_models(reader, world, history, chosen)
    return estimate_constants(world, later, devices=chosen, iterations=iterations)


def _last_models(reader: RunReader, world: World, history: History, devices: Sequence[int]) -> dict[int, State]:
    """The models that devices held at the end, of those that ever trained; empty where the run kept none."""
    found: dict[int, State] = {}
    if not reader.has_models:
        return found
    for device in devices:
        state = reader.model(device)
        if state is not None:
            found[device] = world.experiment.algorithm.predictor({}, state)
        elif history.devices[device]["rounds"] > 0:
            raise reader.no_model(device)
    return found


def _knowledge_gap(reader: RunReader, world: World, history: History, notes: list[str]) -> KnowledgeGap | None:
    """Equation (5) for the end of a run, where the server's knowledge is the plain average of equation (9)."""
    from reproduction.theory.knowledge_gap import knowledge_gap

    algorithm = world.experiment.algorithm
    if not isinstance(algorithm, Kfl):
        return None
    if not reader.has_models or world.devices > MOST_DEVICES:
        notes.append(f"Equation (5) is left out: it needs the models of all devices, of at most {MOST_DEVICES:,}.")
        return None
    if algorithm.bits_per_value < BITS_PER_VALUE or algorithm.clip_norm is not None or algorithm.aggregation != "mean":
        notes.append("Equation (5) is left out: knowledge was quantized, clipped or aggregated in another way.")
        return None
    everybody = range(world.devices)
    last = _last_models(reader, world, history, everybody)
    modules = ((device_module(world, k, last.get(k)), *training_data(world, k)) for k in everybody)
    who, server = reported(history.rounds[-1:], world.devices)[0], reader.server()
    return knowledge_gap(modules, server["knowledge"].astype(np.float64), server["known"].astype(bool), who)


def _proposition2(
    world: World, history: History, notes: list[str]
) -> tuple[EnergyBound, VolumeBound] | tuple[None, None]:
    from reproduction.theory.proposition2 import proposition2_of_run

    asked, table = world.experiment, world.table
    weights = asked.scheduler.drift_weights(table.budget_j, asked.rounds, table.samples)
    reason = why_not_covered(
        asked.scheduler.name,
        minimises_drift=weights is not None,
        hard_budget=asked.hard_budget,
        batteries=world.cell is not None and world.cell.config.battery_capacity_j is not None,
    )
    if reason is not None and world.cell is not None:
        notes.append(f"Proposition 2 {reason}.")
        return None, None
    try:
        energy, volume = proposition2_of_run(world, history.rounds)
    except ConfigError as problem:
        notes.append(f"Proposition 2 is left out: {problem}")
        return None, None
    worse = sum(log.objective is not None and log.objective > 0 for log in history.rounds)
    if worse:
        notes.append(
            f"In {several(worse, 'round')} the decision was worse than scheduling no device: for this run the energy "
            "inequality is not proven."
        )
    scheduler = asked.scheduler
    if isinstance(scheduler, DriftScheduler) and scheduler.v is None and math.isfinite(scheduler.dearest_upload):
        notes.append(
            f"The scheduler lets uploads above {scheduler.dearest_upload:g} budgets per round wait. "
            "Proposition 2 knows no such rule: its optimum may send them."
        )
    return energy, volume
