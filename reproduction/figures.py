"""Every figure of the paper, and our own studies, by the word that selects it on the command line.

Figures 2a, 2b, 3a, 3b compare learning algorithms, with equal and with mixed models: 10 and 50 devices per round with
the paper's own hyper-parameters. We add local-only training, which shares nothing, FedRep with as many steps as KFL's
real work pays for, and a second row in which every algorithm had the same small search.

Figures 2c and 3c ask whether it matters when devices take part: the same total, spread evenly, rising or falling. The
paper lets the number rise from 1 to 20, which is 10.5 on average against uniform's 10; ours rises from 1 to 19.

Figures 4a to 4d show schedulers in the paper's cell, accuracy and energy used, for each power coefficient κ, which the
paper does not give. At 1e-28 no budget binds; 1e-27 is the most common published value; the calibrated one pays for
about five devices per round, the size the paper gives its round robin.

Round robin has the size that the paper's rule gives it in each of these cells: the largest number of devices that
another scheduler chooses over all rounds, divided by the rounds.

Our own studies are in `own_figures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from kfl.algorithms import Kfl
from kfl.core.errors import ConfigError
from kfl.scheduling import Ascend, Descend, Lyapunov, Myopic, RoundRobin, Scheduler, Uniform
from kfl.wireless import PRESETS
from reproduction.own_figures import energy_view, energy_view_m3, prototypes, sharing
from reproduction.setting import (
    COUNTS,
    DATASETS,
    EQUAL_WORK,
    TITLES,
    Dataset,
    Figure,
    Line,
    Models,
    Panel,
    base,
    line_of,
)

EQUAL_MODELS = ("kfl", "local", "fedavg", "fedrep", "apfl")
MIXED_MODELS = ("kfl", "local", "fedkd")


def comparison(name: str, dataset: Dataset, classes: int, models: Models) -> Figure:
    """Accuracy over rounds: columns are devices per round, rows the paper's hyper-parameters and searched ones."""
    panels = []
    for search in (False, True):
        for count in COUNTS:
            algorithms = EQUAL_MODELS if models == "equal" else MIXED_MODELS
            if models == "equal" and not search:
                algorithms = (*algorithms, EQUAL_WORK)
            lines = [line_of(dataset, classes, models, one, Uniform(count), search=search) for one in algorithms]
            care = "after an equal search" if search else "as the paper sets them"
            panels.append(Panel(f"{count} devices per round, {care}", tuple(lines)))
    return Figure(
        name=name,
        title=f"{TITLES[dataset]}, {models} models, m = {classes}",
        panels=tuple(panels),
        columns=2,
        full_only=tuple(line.key for panel in panels[2:] for line in panel.lines),
    )


PATTERNS = (Descend(count=10), Uniform(count=10), Ascend(count=10))


def patterns(name: str, classes: int, models: Models) -> Figure:
    """KFL's accuracy over rounds for the three patterns, a panel for each dataset."""
    panels = []
    for dataset in DATASETS:
        lines = [line_of(dataset, classes, models, "kfl", pattern, search=False) for pattern in PATTERNS]
        named = [
            replace(line, label=line.experiment.scheduler.name, style=line.experiment.scheduler.name) for line in lines
        ]
        panels.append(Panel(TITLES[dataset], tuple(named)))
    return Figure(name, f"When devices take part: {models} models, m = {classes}", tuple(panels), columns=2)


CALIBRATED = {"mnist": 4e-27, "cifar10": 1e-26}
ROUND_ROBIN: dict[Dataset, dict[float, int]] = {
    "mnist": {1e-28: 100, 1e-27: 22, CALIBRATED["mnist"]: 6},
    "cifar10": {1e-28: 100, 1e-27: 53, CALIBRATED["cifar10"]: 6},
}
"""Devices per round for round robin by dataset and κ, the same at m = 2 and 3.

By the rule of section V-C: the most devices that any other scheduler chose over all rounds, divided by the rounds; the
mean over the seeds, rounded up. With the paper's own κ, which it does not give, that was 5.
"""


def policies(dataset: Dataset, kappa: float) -> dict[str, tuple[str, Scheduler]]:
    """The schedulers of these figures with their labels."""
    return {
        "v0.1": ("V = 0.1", Lyapunov(v=0.1)),
        "v0.01": ("V = 0.01", Lyapunov(v=0.01)),
        "round-robin": ("round robin", RoundRobin(count=ROUND_ROBIN[dataset][kappa])),
        "myopic": ("myopic", Myopic()),
    }


def coefficients(dataset: Dataset) -> tuple[float, ...]:
    """The values of κ that a figure is made for."""
    return 1e-28, 1e-27, CALIBRATED[dataset]


def policy_key(dataset: Dataset, classes: int, policy: str, kappa: float) -> str:
    """The key of a line of these figures."""
    return f"{dataset} m{classes} mixed kfl {policy} kappa{kappa:g}"


def schedulers(name: str, dataset: Dataset, classes: int, shows: Literal["accuracy", "energy"]) -> Figure:
    """Accuracy or used energy over rounds, a panel for each κ."""
    cell = PRESETS[f"paper-{dataset}"]
    panels = []
    for kappa in coefficients(dataset):
        lines = [
            Line(
                key=policy_key(dataset, classes, policy, kappa),
                label=label,
                style=policy,
                experiment=replace(
                    base(dataset, classes, "mixed", Kfl()),
                    scheduler=scheduler,
                    radio=replace(cell, power_coefficient=kappa),
                ),
            )
            for policy, (label, scheduler) in policies(dataset, kappa).items()
        ]
        note = ", calibrated" if kappa == CALIBRATED[dataset] else ""
        panels.append(Panel(f"κ = {kappa:g}{note}", tuple(lines)))
    what = "accuracy" if shows == "accuracy" else "energy used, share of the budget"
    return Figure(
        name=name,
        title=f"Schedulers, {TITLES[dataset]}, m = {classes}: {what}",
        panels=tuple(panels),
        columns=3,
        shows=shows,
        full_only=tuple(line.key for line in panels[0].lines),  # nothing binds there, and every device trains
    )


FIGURES: dict[str, Callable[[], Figure]] = {}
"""Every figure of the paper and its technical report (m = 3), then our own studies."""

for _classes, _end in ((2, ""), (3, "-m3")):
    FIGURES |= {
        f"fig2a{_end}": partial(comparison, f"fig2a{_end}", "mnist", _classes, "equal"),
        f"fig2b{_end}": partial(comparison, f"fig2b{_end}", "cifar10", _classes, "equal"),
        f"fig2c{_end}": partial(patterns, f"fig2c{_end}", _classes, "equal"),
        f"fig3a{_end}": partial(comparison, f"fig3a{_end}", "mnist", _classes, "mixed"),
        f"fig3b{_end}": partial(comparison, f"fig3b{_end}", "cifar10", _classes, "mixed"),
        f"fig3c{_end}": partial(patterns, f"fig3c{_end}", _classes, "mixed"),
        f"fig4a{_end}": partial(schedulers, f"fig4a{_end}", "mnist", _classes, "accuracy"),
        f"fig4b{_end}": partial(schedulers, f"fig4b{_end}", "mnist", _classes, "energy"),
        f"fig4c{_end}": partial(schedulers, f"fig4c{_end}", "cifar10", _classes, "accuracy"),
        f"fig4d{_end}": partial(schedulers, f"fig4d{_end}", "cifar10", _classes, "energy"),
    }
FIGURES |= {"sharing": sharing, "prototypes": prototypes, "energy": energy_view, "energy-m3": energy_view_m3}

GROUPS: dict[str, tuple[str, ...]] = {
    "m2": tuple(name for name in FIGURES if name.startswith("fig") and not name.endswith("-m3")),
    "m3": tuple(name for name in FIGURES if name.startswith("fig") and name.endswith("-m3")),
    "all": tuple(name for name in FIGURES if name != "energy-m3"),
}
"""Words for several figures. The energy view at m = 3 is made only where it is asked for."""


def chosen(words: list[str]) -> list[Figure]:
    """The figures that words stand for, each once.

    >>> [figure.name for figure in chosen(["fig2a", "sharing", "fig2a"])]
    ['fig2a', 'sharing']
    """
    names: dict[str, None] = {}
    for word in words:
        if word not in FIGURES and word not in GROUPS:
            known = ["list", "claims", *GROUPS, *FIGURES]
            raise ConfigError("figure", word, f"one of {', '.join(known)}", choices=known)
        names |= dict.fromkeys(GROUPS.get(word, (word,)))
    return [FIGURES[name]() for name in names]
