"""Every figure of the paper, and our own studies, by the word that selects it on the command line.

Figures 2a, 2b, 3a, 3b compare learning algorithms, with equal and with mixed models: 10 and 50 devices per round with
the paper's own hyper-parameters. We add local-only training, which shares nothing, and a second row in which every
algorithm had the same small search.

Figures 2c and 3c ask whether it matters when devices take part: the same total, spread evenly, rising or falling. The
paper lets the number rise from 1 to 20, which is 10.5 on average against uniform's 10; ours rises from 1 to 19.

Figures 4a to 4d show schedulers in the paper's cell, accuracy and energy used, for each power coefficient κ, which the
paper does not give. At 1e-28 no budget binds; 1e-27 is the most common published value; the calibrated one pays for
about five devices per round, the size the paper gives its round robin.

`sharing` asks what sharing adds: KFL against three that upload nothing, where sharing could matter. Local-only training
has no knowledge loss. `self-knowledge` pulls a device's features to its own class means of the round before,
`fixed-knowledge` to fixed random ones: both have KFL's regularising pull without anybody else's data. What KFL gains
over them is what sharing adds. Ten conditions × four algorithms × five seeds: 200 runs. Classes are distinct on a
device here, so that "5 classes" means five.

`energy` is the view that the paper lacks: all learning algorithms with the same battery and the same band. Lyapunov
scheduling with a hard budget, equal models, in the paper's cell and in a small cell where uploading the whole MLP costs
more than training it. Accuracy is drawn against joules, seconds and uploaded bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from kfl.algorithms import Kfl
from kfl.core.errors import ConfigError
from kfl.paper.setting import COUNTS, DATASETS, NAMES, TITLES, Dataset, Figure, Line, Panel, as_set, base, line_of
from kfl.plots import Axis
from kfl.scheduling import Ascend, Descend, Lyapunov, Myopic, RoundRobin, Scheduler, Uniform
from kfl.wireless import PRESETS

EQUAL_MODELS = ("kfl", "local", "fedavg", "fedrep", "apfl")
MIXED_MODELS = ("kfl", "local", "fedkd")


def comparison(name: str, dataset: Dataset, classes: int, models: Literal["equal", "mixed"]) -> Figure:
    """Accuracy over rounds: columns are devices per round, rows the paper's hyper-parameters and searched ones."""
    algorithms = EQUAL_MODELS if models == "equal" else MIXED_MODELS
    panels = []
    for search in (False, True):
        for count in COUNTS:
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


def patterns(name: str, classes: int, models: Literal["equal", "mixed"]) -> Figure:
    """KFL's accuracy over rounds for the three patterns, a panel for each dataset."""
    panels = []
    for dataset in DATASETS:
        lines = [line_of(dataset, classes, models, "kfl", pattern, search=False) for pattern in PATTERNS]
        named = [
            replace(line, label=line.experiment.scheduler.name, style=line.experiment.scheduler.name) for line in lines
        ]
        panels.append(Panel(TITLES[dataset], tuple(named)))
    return Figure(name, f"When devices take part: {models} models, m = {classes}", tuple(panels), columns=2)


POLICIES: dict[str, tuple[str, Scheduler]] = {
    "v0.1": ("V = 0.1", Lyapunov(v=0.1)),
    "v0.01": ("V = 0.01", Lyapunov(v=0.01)),
    "round-robin": ("round robin", RoundRobin(count=5)),
    "myopic": ("myopic", Myopic()),
}
CALIBRATED = {"mnist": 4e-27, "cifar10": 1e-26}


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
            for policy, (label, scheduler) in POLICIES.items()
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
        full_only=tuple(line.key for line in panels[0].lines),  # nothing binds there, and everybody trains
    )


SHARING_ALGORITHMS = ("kfl", "local", "self-knowledge", "fixed-knowledge")


@dataclass(frozen=True)
class Condition:
    """One setting in which the four are compared."""

    dataset: Dataset
    classes: int = 2
    samples: int | None = None
    count: int = 10
    new_class: int = 0

    @property
    def name(self) -> str:
        """In words."""
        parts = [TITLES[self.dataset], f"{self.classes} classes"]
        if self.samples is not None:
            parts.append(f"{self.samples} samples")
        if self.count != 10:
            parts.append(f"{self.count} devices per round")
        if self.new_class:
            parts.append(f"{self.new_class} samples of a new class, tested on it")
        return ", ".join(parts)

    def key(self, algorithm: str) -> str:
        """The key of its line."""
        samples = "all" if self.samples is None else self.samples
        return (
            f"sharing {self.dataset} m{self.classes} samples{samples} count{self.count} new{self.new_class} {algorithm}"
        )


# With all 500 or 600 samples of the two old classes, five of a new one are drowned: no algorithm ever predicts it.
# So the old classes have 25 samples each.
NEW_CLASS: dict[Dataset, Condition] = {
    "cifar10": Condition("cifar10", 2, samples=50, new_class=5),
    "mnist": Condition("mnist", 2, samples=50, new_class=5),
}
"""A device that meets a new class with a few samples."""

CONDITIONS = (
    Condition("cifar10", 2),
    Condition("cifar10", 3),
    Condition("cifar10", 5),
    Condition("cifar10", 10),
    Condition("cifar10", 2, samples=100),
    Condition("cifar10", 5, samples=100),
    Condition("cifar10", 2, count=30),
    Condition("mnist", 5, samples=60),
    NEW_CLASS["cifar10"],
    NEW_CLASS["mnist"],
)


def sharing() -> Figure:
    """Differences of KFL to each of the three, one row per condition."""
    panels = []
    for condition in CONDITIONS:
        lines = [
            Line(
                key=condition.key(name),
                label=NAMES[name],
                style=name,
                experiment=replace(
                    base(condition.dataset, condition.classes, "mixed", as_set(name)),
                    distinct_classes=True,
                    samples_per_device=condition.samples,
                    new_class_samples=condition.new_class,
                    scheduler=Uniform(condition.count),
                ),
            )
            for name in SHARING_ALGORITHMS
        ]
        panels.append(Panel(condition.name, tuple(lines)))
    return Figure(
        "sharing", "What sharing adds: KFL minus algorithms that upload nothing", tuple(panels), 1, "difference"
    )


ENERGY_ALGORITHMS = ("kfl", "local", "fedavg", "fedrep", "apfl", "fedkd")
ACROSS: tuple[Axis, ...] = ("joules", "seconds", "bits")
CELLS = {"the paper's cell": "auto", "small cell, where the uplink matters": "small-cell"}


def energy_view() -> Figure:
    """Accuracy over joules, seconds and bits, a row for each dataset and cell."""
    panels = []
    for dataset in DATASETS:
        for title, radio in CELLS.items():
            lines = [
                Line(
                    key=f"energy {dataset} m2 equal {name} {radio}",
                    label=NAMES[name],
                    style=name,
                    experiment=replace(
                        base(dataset, 2, "equal", as_set(name)),
                        scheduler=Lyapunov(v=0.01),
                        radio=radio,
                        hard_budget=True,
                    ),
                )
                for name in ENERGY_ALGORITHMS
            ]
            panels += [Panel(f"{TITLES[dataset]}, {title}", tuple(lines), across) for across in ACROSS]
    return Figure("energy", "The same battery and band for every algorithm", tuple(panels), columns=len(ACROSS))


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
FIGURES |= {"sharing": sharing, "energy": energy_view}

GROUPS: dict[str, tuple[str, ...]] = {
    "m2": tuple(name for name in FIGURES if name.startswith("fig") and not name.endswith("-m3")),
    "m3": tuple(name for name in FIGURES if name.endswith("-m3")),
    "all": tuple(FIGURES),
}
"""Words for several figures."""


def chosen(words: list[str]) -> list[Figure]:
    """The figures that words stand for, each once.

    >>> [figure.name for figure in chosen(["fig2a", "sharing", "fig2a"])]
    ['fig2a', 'sharing']
    """
    names: dict[str, None] = {}
    for word in words:
        if word not in FIGURES and word not in GROUPS:
            raise ConfigError("figure", word, f"list, claims, {', '.join([*GROUPS, *FIGURES])}")
        names |= dict.fromkeys(GROUPS.get(word, (word,)))
    return [FIGURES[name]() for name in names]
