"""The paper's setting, the sizes an experiment is run at, and what every figure is made of: lines in panels.

Section V: K = 100 devices, τ = 5, rate 0.05, momentum 0.9; MLP of width 256 (MNIST) or CNN of width 128 (CIFAR-10), or
widths drawn from 128 … 384; m = 2 shards per device, m = 3 in the technical report. Our decisions where the paper is
silent (T = 200, the knowledge weight 1/32, …) are the defaults of the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal

from kfl.algorithms import ALGORITHMS, Algorithm, FedKd, FedRep
from kfl.core.config import from_table
from kfl.core.parse import parse_toml
from kfl.experiment import Experiment
from kfl.models import PAPER_WIDTHS
from kfl.plots import Axis
from kfl.scheduling import Scheduler, Uniform

Dataset = Literal["mnist", "cifar10"]
Models = Literal["equal", "mixed"]
DATASETS: tuple[Dataset, ...] = ("mnist", "cifar10")
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
EQUAL_WIDTH = {"mnist": 256, "cifar10": 128}
SAMPLES = {"mnist": 600, "cifar10": 500}
"""Training samples on each of 100 devices."""
COUNTS = (10, 50)
"""Devices per round in the comparisons of algorithms."""
NAMES = {
    "kfl": "KFL",
    "local": "local-only",
    "fedavg": "FedAvg",
    "fedrep": "FedRep",
    "apfl": "APFL",
    "fedrep-equal-work": "FedRep, equal work",
    "fedkd": "FedKD",
    "fedproto": "FedProto",
    "self-knowledge": "self-knowledge",
    "fixed-knowledge": "fixed knowledge",
}

EQUAL_WORK = "fedrep-equal-work"
"""FedRep with four steps of each part: the real work of KFL's five steps and its knowledge pass."""


@dataclass(frozen=True)
class Scale:
    """How large the experiments are: the paper's size, or one that a laptop does in minutes."""

    rounds: int
    seeds: tuple[int, ...]
    samples: int | None
    """Largest number of training samples per device."""
    evaluate_every: int
    quick: bool

    @property
    def mark(self) -> str:
        """The mark on every output of a quick run."""
        if not self.quick:
            return ""
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        size = f"{self.rounds} rounds, {self.samples} samples per device, {seeds}"
        return f"QUICK LOOK, not a result: {size}"


FULL = Scale(rounds=200, seeds=(0, 1, 2, 3, 4), samples=None, evaluate_every=5, quick=False)
QUICK = Scale(rounds=40, seeds=(0,), samples=16, evaluate_every=10, quick=True)


@dataclass(frozen=True)
class Line:
    """One line of a figure: an experiment that is run once for each seed."""

    key: str
    """Says what it is, for people and for finding its results: the same experiment has the same key in any figure."""
    label: str
    """The name at the end of the line."""
    style: str
    """Whose color and dashes it has."""
    experiment: Experiment


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    lines: tuple[Line, ...]
    across: Axis = "rounds"
    """What the horizontal axis counts."""


@dataclass(frozen=True)
class Figure:
    """A figure: what is run for it and how it is laid out."""

    name: str
    """The word for it on the command line."""
    title: str
    panels: tuple[Panel, ...]
    columns: int
    shows: Literal["accuracy", "energy", "difference"] = "accuracy"
    """What is drawn: accuracy, used energy, or differences as dots."""
    full_only: tuple[str, ...] = ()
    """Keys of lines that a quick look leaves out."""

    def lines(self, scale: Scale) -> list[Line]:
        """Its lines, each once."""
        found = {line.key: line for panel in self.panels for line in panel.lines}
        return [line for key, line in found.items() if not (scale.quick and key in self.full_only)]


def base(dataset: Dataset, classes: int, models: Models, algorithm: Algorithm) -> Experiment:
    """The paper's setting without limits on energy or band, as in its sections V-A and V-B."""
    return Experiment(
        dataset=dataset,
        devices=100,
        rounds=FULL.rounds,
        classes_per_device=classes,
        distinct_classes=False,  # as printed: a device may draw one class twice
        widths=(EQUAL_WIDTH[dataset],) if models == "equal" else PAPER_WIDTHS,
        algorithm=algorithm,
        scheduler=Uniform(count=10),
        radio="none",
        evaluate_every=FULL.evaluate_every,
    )


def at_scale(experiment: Experiment, scale: Scale, seed: int) -> Experiment:
    """An experiment at this size and seed.

    With fewer samples a round costs less energy, so budgets shrink alike: the same number of devices can be paid for.
    """
    if not scale.quick or scale.samples is None:
        return replace(experiment, seed=seed)
    most, algorithm, cell = experiment.samples_per_device, experiment.algorithm, experiment.cell_config
    if isinstance(algorithm, FedKd):  # or distillation on 500 samples would take longer than all the rest
        algorithm = replace(algorithm, proxy_per_class=5)
    if cell is not None:
        part = min(1.0, scale.samples / SAMPLES.get(experiment.dataset, scale.samples))
        cell = replace(cell, budget_j_per_round=part * cell.budget_j_per_round)
    return replace(
        experiment,
        seed=seed,
        algorithm=algorithm,
        radio=cell,
        rounds=scale.rounds,
        evaluate_every=scale.evaluate_every,
        samples_per_device=scale.samples if most is None else min(most, scale.samples),
    )


def tuned(name: str, dataset: Dataset) -> Algorithm:
    """An algorithm as it came out of a search of equal size for every algorithm, on a seed that is not reported.

    The search was for equal models, two classes and 10 devices per round; other settings take what it found.
    """
    table = parse_toml(files("reproduction").joinpath("tuned.toml").read_text(encoding="utf-8"))
    return from_table(ALGORITHMS[name], table[dataset].get(name, {}), f"{name}.", ALGORITHMS[name]())


def as_set(name: str) -> Algorithm:
    """An algorithm with the paper's hyper-parameters, and its own defaults for the rest."""
    return FedRep(head_steps=4, body_steps=4) if name == EQUAL_WORK else ALGORITHMS[name]()


def line_of(dataset: Dataset, classes: int, models: Models, name: str, scheduler: Scheduler, *, search: bool) -> Line:
    """A line of the learning comparisons."""
    algorithm = tuned(name, dataset) if search else as_set(name)
    who = f"{scheduler.name}{getattr(scheduler, 'count', '')}"
    care = "tuned" if search else "as set"
    return Line(
        key=f"{dataset} m{classes} {models} {name} {who} {care}",
        label=NAMES[name],
        style=name,
        experiment=replace(base(dataset, classes, models, algorithm), scheduler=scheduler),
    )


def runs(figure: Figure, scale: Scale) -> Iterator[tuple[str, Experiment]]:
    """Every run of a figure with its key."""
    for line in figure.lines(scale):
        for seed in scale.seeds:
            yield run_key(line.key, seed, scale), at_scale(line.experiment, scale, seed)


def run_key(key: str, seed: int, scale: Scale) -> str:
    """The name of one run."""
    return f"{key} seed{seed}{' quick' if scale.quick else ''}"
