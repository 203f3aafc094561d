"""How long the runs will take here: a few rounds of each network are timed, the rest is proportion."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.experiment import Experiment
from kfl.paper.scheduling import coefficients
from kfl.paper.setting import DATASETS, Dataset, as_set, base

if TYPE_CHECKING:
    from kfl.runfolder import RoundLog

WORK = {"apfl": 2.0, "fedkd": 1.6}
"""Training of an algorithm relative to KFL's: APFL trains two models, FedKD on the proxy set too."""
DEVICES_PAID = {0: 100.0, 1: 25.0, 2: 6.0}
"""About how many devices a round has in Fig. 4 for the three values of κ."""
SAMPLES = 500
"""On a device, about, where nothing else is said."""
WITHOUT_SAMPLES = 0.06
"""Part of a device's time in a round that does not depend on its samples: moving its weights."""
START_S = 1.0
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
        few = 1.0 if experiment.samples_per_device is None else min(1.0, experiment.samples_per_device / SAMPLES)
        samples = WITHOUT_SAMPLES + (1 - WITHOUT_SAMPLES) * few
        work = WORK.get(experiment.algorithm.name, 1.0)
        total += START_S + rate * devices_of(experiment) * experiment.rounds * samples * work
    return total / workers


def devices_of(experiment: Experiment) -> float:
    """About how many devices take part in a round."""
    count = getattr(experiment.scheduler, "count", None)
    if count is not None:
        return float(count)
    kappas = coefficients("mnist" if experiment.dataset == "mnist" else "cifar10")
    kappa = 1e-27 if experiment.cell_config is None else experiment.cell_config.power_coefficient
    return DEVICES_PAID.get(kappas.index(kappa) if kappa in kappas else 1, 25.0)
