"""The conditions of the published twin study: what devices hold, how much of it, and how long they train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kfl.comparison import Entry
from kfl.comparison.entries import algorithm_named
from kfl.experiment import Experiment
from kfl.models import PAPER_WIDTHS
from kfl.scheduling import Uniform
from kfl.wireless import PRESETS

FLOPS_PER_CYCLE = 16.0
"""Of the devices' processors: with the paper's 4, devices that pay for their real work miss the deadlines."""


@dataclass(frozen=True)
class Condition:
    """One setting in which all methods are compared."""

    name: str
    """The word that selects it."""
    title: str
    """In words."""
    experiment: Experiment
    """Without algorithm and seed."""
    searched: Condition | None = None
    """The condition in which hyper-parameters are searched for it; None for this one."""

    def entries(self, labels: Sequence[str]) -> list[Entry]:
        """Methods and twins in this condition, by their labels, names or classes."""
        place = "" if self.searched is None else self.searched.title
        return [
            Entry(
                label,
                replace(self.experiment, algorithm=algorithm_named(label, self.experiment.algorithm)),
                self.title,
                place,
            )
            for label in labels
        ]


def published() -> dict[str, Condition]:
    """The conditions of the published study by name.

    100 devices with the paper's CNN in five widths, ten of them in a round, chosen at random; classes of a device are
    distinct. Joules are those of the paper's cell, with everything that a method computes counted.
    """
    cifar, scarce_cifar = _condition("cifar10", 2), _condition("cifar10", 2, samples=50)
    mnist, scarce_mnist = _condition("mnist", 2), _condition("mnist", 2, samples=50)
    found = [
        cifar,
        _condition("cifar10", 5, searched=cifar),
        _condition("cifar10", 10, searched=cifar),
        scarce_cifar,
        _condition("cifar10", 5, samples=50, searched=scarce_cifar),
        _condition("cifar10", 2, rounds=600, searched=cifar),
        mnist,
        _condition("mnist", 5, searched=mnist),
        scarce_mnist,
        _condition("mnist", 5, samples=50),
        _condition("cifar10", 2, samples=50, new_class=5, searched=scarce_cifar),
        _condition("mnist", 2, samples=50, new_class=5, searched=scarce_mnist),
    ]
    return {condition.name: condition for condition in found}


TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}


def _condition(
    dataset: str,
    classes: int,
    samples: int | None = None,
    rounds: int = 200,
    new_class: int = 0,
    searched: Condition | None = None,
) -> Condition:
    name, words = f"{dataset}-m{classes}", [TITLES[dataset], f"{classes} classes"]
    if samples is not None:
        name, words = f"{name}-{samples}", [*words, f"{samples} samples"]
    if rounds != 200:
        name, words = f"{name}-long", [*words, f"{rounds} rounds"]
    if new_class:
        name, words = f"{name}-new", [*words, "a class just met"]
    experiment = Experiment(
        dataset=dataset,
        devices=100,
        rounds=rounds,
        classes_per_device=classes,
        distinct_classes=True,
        samples_per_device=samples,
        new_class_samples=new_class,
        model="cnn",
        widths=PAPER_WIDTHS,
        scheduler=Uniform(count=10),
        radio=replace(PRESETS[f"paper-{dataset}"], flops_per_cycle=FLOPS_PER_CYCLE),
        real_work=True,
        evaluate_every=rounds // 10,
    )
    return Condition(name, ", ".join(words), experiment, searched)
