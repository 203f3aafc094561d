"""Run what is missing of some figures: nothing twice, resumable, in shards, in processes or on a cluster.

How long that takes here is estimated from a few timed rounds of each network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.comparison import Execution, ResultStore
from kfl.comparison.entries import Run
from kfl.comparison.question import play
from kfl.comparison.store import Plan, PlannedRow
from kfl.core.errors import DivergedError
from kfl.core.text import several
from kfl.experiment import Experiment
from kfl.progress import Progress
from reproduction.figures import ROUND_ROBIN
from reproduction.results import Store
from reproduction.setting import DATASETS, Dataset, Figure, Scale, as_set, base, run_key, runs

if TYPE_CHECKING:
    from kfl.simulation import RoundLog


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
    execution: Execution | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Run what these figures still need, as `kfl.compare` does: each result is written as it comes.

    Raises:
        DivergedError: The training of a run of this shard diverged.
    """
    how = execution or Execution(keep_runs=False)
    store, every = ResultStore.open(folder, how.shard), wanted(figures, scale)
    lines = {line.key: line for figure in figures for line in figure.lines(scale)}
    names = {run_key(key, seed, scale): key for key in lines for seed in scale.seeds}
    rows = [PlannedRow(key, {seed: every[run_key(key, seed, scale)].digest() for seed in scale.seeds}) for key in lines]
    play(store, Plan(tuple(rows)), [Run(names[name], "", one) for name, one in every.items()], how, on_progress)
    gone = {name: store.diverged[d] for name, one in every.items() if (d := one.digest()) in store.diverged}
    if gone:
        first = next(iter(gone))
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise DivergedError(f"{first}{more} of {several(len(every), 'run')}: {gone[first]['problem']}")
    return Store.open(folder, every)


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
    from kfl.core.threads import torch_threads
    from kfl.runner import run

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
