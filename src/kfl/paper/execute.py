"""Run what is missing of some figures: nothing twice, resumable, in shards, in processes or on a cluster.

How long that takes here is estimated from a few timed rounds of each network.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.paper.figures import ROUND_ROBIN
from kfl.paper.results import Store
from kfl.paper.setting import DATASETS, Dataset, Figure, Scale, as_set, base, runs
from kfl.simulation.many import Progress, run_many, run_paths
from kfl.simulation.records import RESULTS, Record, data_note, record

if TYPE_CHECKING:
    from kfl.runfolder import RoundLog


@dataclass(frozen=True)
class Shard:
    """One part of the work: number `index` (from 1) of `count`."""

    index: int = 1
    count: int = 1

    @staticmethod
    def parse(text: str) -> Shard:
        """From i/n.

        >>> Shard.parse("2/4")
        Shard(index=2, count=4)
        """
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise ConfigError("shard", text, "i/n with i from 1 to n, such as 2/4")
        return Shard(int(first), int(second))

    @property
    def file(self) -> str:
        """Where its results go."""
        return RESULTS if self.count == 1 else f"results-{self.index}of{self.count}.jsonl"

    def share(self, names: Sequence[str]) -> list[str]:
        """Its part of some runs: every n-th."""
        return list(names[self.index - 1 :: self.count])


def expected_work(experiment: Experiment) -> float:
    """A rough measure of how long a run takes, to share it out evenly: devices × samples × rounds × network."""
    count = getattr(experiment.scheduler, "count", 20)
    network = 4.0 if experiment.dataset == "cifar10" else 1.0
    samples = 600 if experiment.samples_per_device is None else experiment.samples_per_device
    return network * count * samples * experiment.rounds


def wanted(figures: Iterable[Figure], scale: Scale) -> dict[str, Experiment]:
    """Every run of these figures by name, the longest first, so that shards take about as long."""
    found = {name: experiment for figure in figures for name, experiment in runs(figure, scale)}
    return dict(sorted(found.items(), key=lambda item: -expected_work(item[1])))


def execute(
    figures: Sequence[Figure],
    scale: Scale,
    folder: Path,
    *,
    shard: Shard | None = None,
    workers: int = 1,
    device: str = "cpu",
    precision: str = "float32",
    data_dir: Path | None = None,
    ray: str | None = None,
    keep_runs: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Run what these figures still need, writing each result as it comes; returns all results.

    A run folder is removed once its result is written, unless `keep_runs`.
    """
    shard = shard or Shard()
    store = Store.open(folder, shard.file)
    todo = wanted(figures, scale)
    todo = {name: todo[name] for name in shard.share(list(todo))}
    digests = {name: experiment.digest() for name, experiment in todo.items()}
    _copy_twins(store, digests)
    # Long and short ones mixed: what is done then tells how long the rest takes.
    order = sorted(todo, key=lambda name: digests[name])
    todo = {name: todo[name] for name in order if not store.has(name, digests[name])}
    if not todo:
        return store
    paths = run_paths(list(todo.values()), folder / "runs")
    names: dict[str, list[str]] = {}
    for path, name in zip(paths, todo, strict=True):
        names.setdefault(path.name, []).append(name)

    def finished(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(replace(progress, name=names[progress.name][0]))
        if progress.history is None or progress.history.folder is None:
            return
        run_folder = Path(progress.history.folder)
        experiment = todo[names[progress.name][0]]
        cell = experiment.cell_config
        budget_j = None if cell is None else cell.budget_j_per_round * experiment.rounds * experiment.devices
        row = {
            **_short(record(experiment, progress.history, data_note(run_folder))),
            "budget_j": budget_j,
            "device": device,
            "precision": precision,
        }
        store.add(dict.fromkeys(names[progress.name], row))
        if not keep_runs:
            shutil.rmtree(run_folder, ignore_errors=True)

    run_many(
        list(todo.values()),
        folder / "runs",
        workers,
        finished,
        device=device,
        precision=precision,
        data_dir=data_dir,
        ray=ray,
    )
    return store


def _copy_twins(store: Store, digests: dict[str, str]) -> None:
    """A run that stands under another name with the very same settings is that result."""
    known = {row["digest"]: row for row in store.rows.values()}
    twins = {
        name: {key: value for key, value in known[its].items() if key != "run"}
        for name, its in digests.items()
        if its in known and not store.has(name, its)
    }
    if twins:
        store.add(twins)


def _short(row: Record) -> Record:
    """What tables and plots need; a curve's numbers to five digits."""
    curve = {name: [float(f"{value:.5g}") for value in values] for name, values in row["curve"].items()}
    return {**row, "curve": curve}


RELATIVE_WORK = {"apfl": 2.0, "fedkd": 1.6, "fedrep": 1.25}
"""Training relative to KFL's: APFL trains two models, FedKD on the proxy set too, FedRep its two parts in turn."""
TYPICAL_SAMPLES = 500
"""Samples on a device, roughly, by default."""
WITHOUT_SAMPLES = 0.06
"""Part of a device's time in a round that does not depend on its samples: moving its weights."""
STARTUP_S = 1.0
"""Reading data and building the fleet, per run."""


def seconds_per_device(dataset: Dataset, device: str, precision: str, data_dir: Path | None) -> float:
    """Seconds for one device in one round on this machine: the fastest of a few rounds with ten devices.

    With one thread, as each of the runs will have.
    """
    from kfl.engine.workers import torch_threads
    from kfl.simulation.runner import run

    stamps: list[float] = []

    def on_round(_: RoundLog) -> None:
        stamps.append(time.perf_counter())

    probe = replace(base(dataset, 2, "mixed", as_set("kfl")), rounds=5)
    with torch_threads(1):
        run(probe, device=device, precision=precision, data_dir=data_dir, on_round=on_round)
    return min(after - before for before, after in pairwise(stamps[1:])) / 10


def seconds_of(experiments: Iterable[Experiment], rates: dict[Dataset, float], workers: int) -> float:
    """The time that runs take together."""
    total = 0.0
    for experiment in experiments:
        rate = next(rates[dataset] for dataset in DATASETS if dataset == experiment.dataset)
        few = (
            1.0 if experiment.samples_per_device is None else min(1.0, experiment.samples_per_device / TYPICAL_SAMPLES)
        )
        samples = WITHOUT_SAMPLES + (1 - WITHOUT_SAMPLES) * few
        work = RELATIVE_WORK.get(experiment.algorithm.name, 1.0)
        total += STARTUP_S + rate * devices_of(experiment) * experiment.rounds * samples * work
    return total / workers


def devices_of(experiment: Experiment) -> float:
    """About how many devices take part in a round."""
    count = getattr(experiment.scheduler, "count", None)
    if count is not None:
        return float(count)
    paid = ROUND_ROBIN["mnist" if experiment.dataset == "mnist" else "cifar10"]
    kappa = 1e-27 if experiment.cell_config is None else experiment.cell_config.power_coefficient
    return float(paid.get(kappa, paid[1e-27]))
