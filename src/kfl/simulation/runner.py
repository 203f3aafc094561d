"""Run an experiment from its first round to its last, into a run folder if one is given."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kfl.core.errors import KflError, StoppedError
from kfl.data import Dataset
from kfl.engine.workers import torch_threads
from kfl.experiment.experiment import Experiment
from kfl.runfolder import (
    Checkpoints,
    History,
    RoundLog,
    RunFolder,
    RunState,
    cannot_write,
    describe_environment,
    load_experiment,
    load_run,
    require_safetensors,
    snapshot,
    totals,
)
from kfl.simulation.determinism import deterministic_algorithms
from kfl.simulation.energy import energy_facts
from kfl.simulation.round import begin, play_round
from kfl.simulation.world import Models, World, build_world, source_hashes

phases = logging.getLogger("kfl.phases")


def run(
    experiment: Experiment,
    folder: str | Path | None = None,
    *,
    dataset: Dataset | None = None,
    models: Models | None = None,
    data_dir: str | Path | None = None,
    device: str = "cpu",
    precision: str = "float32",
    deterministic: bool = False,
    keep_models: bool = True,
    checkpoint_s: float | None = None,
    on_start: Callable[[World], None] | None = None,
    on_round: Callable[[RoundLog], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> History:
    """Run an experiment and return what happened.

    Args:
        experiment: the whole configuration.
        folder: where to write the run folder; None keeps everything in memory.
        dataset: your own data instead of the one `experiment.dataset` names.
        models: your own modules: one per device, or a function of the device number. Each needs a `body` and
            a `head`.
        data_dir: where MNIST and CIFAR-10 lie; otherwise `KFL_DATA_DIR`.
        device: processor that trains: cpu, cuda, or auto for the GPU where there is one.
        precision: type of the numbers: float32, tf32 (GPU), bf16 products with float32 weights, or float64.
        deterministic: on a GPU, only algorithms that give the same result every time; slower. A CPU always does.
        keep_models: write the devices' models into the run folder, for `kfl export` and `load_model`.
        checkpoint_s: seconds of work between two checkpoints: 0 for one after every round, infinity for none; None
            for as often as costs little.
        on_start: called once with the world, before the first round.
        on_round: called after every round with its log, for progress displays.
        should_stop: asked after every round of a run with a folder; if it says yes, a checkpoint is written and
            `StoppedError` raised.

    A folder that already holds this very run is continued from its last checkpoint, or only read if the run is
    finished.

    >>> import kfl, numpy as np
    >>> draw = np.random.default_rng(0)
    >>> x, y = draw.random((400, 1, 8, 8), dtype=np.float32), np.arange(400) % 10
    >>> data = kfl.Dataset.from_arrays(x + y[:, None, None, None] / 5, y)
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=(16,)), dataset=data)
    >>> len(history.rounds), 0 <= history.accuracy <= 1
    (2, True)
    """
    where = None if data_dir is None else Path(data_dir)
    plan = None if folder is None else RunFolder(Path(folder)).plan()
    with deterministic_algorithms(deterministic):
        world = build_world(
            experiment, dataset=dataset, models=models, data_dir=where, device=device, precision=precision, plan=plan
        )
        return run_world(
            world,
            folder,
            deterministic=deterministic,
            keep_models=keep_models,
            checkpoint_s=checkpoint_s,
            on_start=on_start,
            on_round=on_round,
            should_stop=should_stop,
        )


def run_world(
    world: World,
    folder: str | Path | None = None,
    *,
    deterministic: bool = False,
    keep_models: bool = True,
    checkpoint_s: float | None = None,
    on_start: Callable[[World], None] | None = None,
    on_round: Callable[[RoundLog], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> History:
    """Run in a world that is there already; the rest is as in `run`."""
    if folder is None:
        return _play(world, None, None, on_start=on_start, on_round=on_round, should_stop=should_stop)
    if keep_models:
        require_safetensors()  # now, rather than after hours of training
    target = RunFolder(Path(folder))
    with target.locked():
        if target.prepare(world.experiment) == "finished":
            return load_run(target.path)[1]
        facts = {**describe_environment(), **describe_world(world), "deterministic": deterministic}
        target.write_environment({**facts, "plan": world.engine.plan.table()})
        return _play(
            world,
            target,
            target.checkpoints(identity(world), checkpoint_s),
            keep_models=keep_models,
            on_start=on_start,
            on_round=on_round,
            should_stop=should_stop,
        )


def resume(folder: str | Path, **options: Any) -> History:
    """Continue a run that was interrupted, from its last checkpoint, as if nothing had happened.

    The result is bit for bit the run that was never interrupted (same machine, same kind of processor). A finished
    run is only read. `options` are those of `run` except the experiment, which is the folder's own.
    """
    return run(load_experiment(Path(folder)), folder, **options)


def _play(
    world: World,
    target: RunFolder | None,
    checkpoints: Checkpoints | None,
    *,
    keep_models: bool = False,
    on_start: Callable[[World], None] | None,
    on_round: Callable[[RoundLog], None] | None,
    should_stop: Callable[[], bool] | None,
) -> History:
    """Play the rounds that are left, with checkpoints on the way, and close the books."""
    # The engine spreads devices over threads itself. Between its calls there are only small operations, and PyTorch
    # sharing those out over threads, and being told otherwise and back in every call, took half of a small run's time.
    with torch_threads(1) if world.engine.plan.device == "cpu" else nullcontext():
        return _play_all(
            world,
            target,
            checkpoints,
            keep_models=keep_models,
            on_start=on_start,
            on_round=on_round,
            should_stop=should_stop,
        )


def _play_all(
    world: World,
    target: RunFolder | None,
    checkpoints: Checkpoints | None,
    *,
    keep_models: bool,
    on_start: Callable[[World], None] | None,
    on_round: Callable[[RoundLog], None] | None,
    should_stop: Callable[[], bool] | None,
) -> History:
    started = time.perf_counter()
    if on_start is not None:
        on_start(world)
    state, logs = _beginning(world, target, checkpoints)
    for log in logs if on_round is not None else []:
        on_round(log)  # type: ignore[misc]  # mypy does not see that it is not None here
    while state.round < world.experiment.rounds:
        state, log = play_round(world, state)
        logs.append(log)
        refuse_divergence(logs)
        if target is not None and checkpoints is not None:
            phases.debug("phase history, round %d", log.round)
            target.append(log)
            seen = snapshot(world.experiment.rounds, world.partition.test_sizes, state, log, world.experiment.algorithm)
            if seen is not None:
                target.append_snapshot(seen)
            stop = should_stop is not None and should_stop() and state.round < world.experiment.rounds
            if stop or checkpoints.due(state):
                _checkpoint(target, checkpoints, state)
            if stop:
                raise StoppedError(target.path, state.round)
        if on_round is not None:
            on_round(log)

    phases.debug("phase end, round %d", state.round)
    summary = summarise(world, logs, time.perf_counter() - started)
    history = History(tuple(logs), summary, device_records(world, state), None if target is None else str(target.path))
    if target is not None:
        target.finish(history, state.server, state.devices if keep_models else None)
    return history


def _beginning(
    world: World, target: RunFolder | None, checkpoints: Checkpoints | None
) -> tuple[RunState, list[RoundLog]]:
    """Where to start: at the last good checkpoint of the folder, or before round 0."""
    if target is None or checkpoints is None:
        return begin(world), []
    state = checkpoints.read(target.whole_rounds(), target.history_sum)
    if state is None:
        target.rewind(0)
        return begin(world), []
    place = world.engine.place
    # Where the server's arrays live is the algorithm's affair: knowledge on the CPU, models where they are trained.
    homes = world.experiment.algorithm.server_init(world.engine, world.experiment.seed)
    server = {name: value.to(homes[name].device) if name in homes else value for name, value in state.server.items()}
    state = replace(state, server=server, devices={device: place(row) for device, row in state.devices.items()})
    return state, list(target.rewind(state.round))


def _checkpoint(target: RunFolder, checkpoints: Checkpoints, state: RunState) -> None:
    phases.debug("phase checkpoint, round %d", state.round)
    history = target.sync()
    try:
        checkpoints.write(state, history)
    except OSError as problem:
        raise cannot_write(target.path, problem) from problem


def identity(world: World) -> str:
    """What run a checkpoint belongs to: the configuration, the plan it is executed by, and the data."""
    plan = repr(sorted(world.engine.plan.table().items()))
    facts = [world.experiment.identity(), plan, world.dataset.fingerprint()]
    return blake2b("\n".join(facts).encode(), digest_size=16).hexdigest()


def refuse_divergence(logs: list[RoundLog]) -> None:
    """Stop a run in which most devices diverge: in five rounds running, more than half of those that trained."""
    last = logs[-5:]
    if len(last) == 5 and all(len(log.diverged) * 2 > len(log.devices) for log in last):
        raise KflError(
            f"The training of {len(last[-1].diverged)} of {len(last[-1].devices)} devices ran off to infinity in round "
            f"{last[-1].round + 1}, and of more than half in the four rounds before: lower --algorithm.learning-rate."
        )


def describe_world(world: World) -> dict[str, Any]:
    """The data and models of a run, for the run folder."""
    return {
        "dataset": {
            "name": world.dataset.name,
            "fingerprint": world.dataset.fingerprint(),
            "train": len(world.dataset.train_y),
            "test": len(world.dataset.test_y),
            "input_shape": list(world.dataset.input_shape),
            "classes": world.dataset.classes,
            "scale": world.dataset.scale,
            "mean": world.dataset.mean,
            "std": world.dataset.std,
            "note": world.dataset.note,
        },
        "models": sorted(set(world.models.names)) if len(world.models.names) <= 20 else len(world.models.names),
        "given_as_objects": list(world.given_as_objects),
        "plan": world.engine.plan.table(),
        "sources": source_hashes(world.experiment),
    }


def summarise(world: World, logs: list[RoundLog], wall_s: float) -> dict[str, Any]:
    """Totals of a run, and what FedAvg would have uploaded with the same devices in the same rounds."""
    accuracies = [log.accuracy for log in logs if log.accuracy is not None]
    return {
        "algorithm": world.experiment.algorithm.name,
        "accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "rounds": len(logs),
        **totals(logs),
        "fedavg_bits_up": float(sum(world.model_bits[list(log.devices)].sum() for log in logs)),
        "rejected_uploads": sum(len(log.rejected) for log in logs),
        "lost_uploads": sum(len(log.lost) for log in logs),
        "faults": sum(len(log.faults) for log in logs),
        "diverged": sum(len(log.diverged) for log in logs),
        **energy_facts(world, logs),
        "wall_s": round(wall_s, 3),
    }


def device_records(world: World, state: RunState) -> tuple[dict[str, Any], ...]:
    """What each device did and can at the end."""
    records = []
    for device in range(world.devices):
        tests = int(world.partition.test_sizes[device])
        profile = world.models.profile(device)
        records.append(
            {
                "device": device,
                "model": world.models.names[int(world.models.architecture[device])],
                "parameters": profile.parameters,
                "samples": int(world.samples[device]),
                "classes": [int(c) for c in world.partition.train_counts[device].nonzero()[0]],
                "rounds": int(state.taken[device]),
                "compute_energy_j": float(state.compute_energy_j[device]),
                "upload_energy_j": float(state.upload_energy_j[device]),
                "budget_j": float(world.budget_j[device]),
                "queue_j": float(state.scheduler.queue_j[device]),
                "accuracy": int(state.correct[device]) / tests if tests else None,
                "test_samples": tests,
            }
        )
    return tuple(records)
