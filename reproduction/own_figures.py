"""Our own studies, next to the paper's figures.

`sharing` asks what sharing adds: KFL against three that upload nothing, where sharing could matter. Local-only training
has no knowledge loss. `self-knowledge` pulls a device's features to its own class means of the round before,
`fixed-knowledge` to fixed random ones: both have KFL's regularizing pull without any other device's data. What KFL
gains over them is what sharing adds. Ten conditions × four algorithms × five seeds: 200 runs. Classes are distinct on a
device here, so that "5 classes" means five.

`prototypes` asks the same of FedProto, in the setting of Figs. 2 and 3 with 10 devices per round: KFL, FedProto, the
two that pull without sharing, and local-only training.

`energy` is the view that the paper lacks: all learning algorithms with the same battery and the same band, in the
paper's cell and in a small cell where uploading the whole MLP costs more than training it. Every algorithm pays for its
real work: backward passes, second models, proxy sets, the knowledge pass. `dual` schedules, which chooses devices by
what they need of the band too; a second row has the paper's Algorithm 3, which does not. Batteries cannot be overdrawn.
Accuracy is drawn against joules, seconds and uploaded bits.

Processors do 16 operations per cycle in this view, two 128-bit multiply-adds as current phone cores do. With the 4 of
the paper's cells and backward passes counted, all but the fastest devices miss the paper's deadlines; with FedRep, APFL
or FedKD, and on MNIST with KFL, every device does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kfl.plots import Axis
from kfl.scheduling import Dual, Lyapunov, Scheduler, Uniform
from kfl.wireless import PRESETS, CellConfig
from reproduction.setting import DATASETS, NAMES, TITLES, Dataset, Figure, Line, Models, Panel, as_set, base, line_of

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


PROTOTYPES = ("kfl", "local", "fedproto", "self-knowledge", "fixed-knowledge")


def prototypes() -> Figure:
    """Accuracy over rounds: a column for each dataset, rows for mixed and equal models, as set and after the search."""
    rows: tuple[tuple[Models, bool], ...] = (("mixed", False), ("equal", False), ("equal", True))
    panels = [
        Panel(
            f"{TITLES[dataset]}, {models} models, {'after an equal search' if search else 'as set'}",
            tuple(line_of(dataset, 2, models, name, Uniform(10), search=search) for name in PROTOTYPES),
        )
        for models, search in rows
        for dataset in DATASETS
    ]
    return Figure(
        name="prototypes",
        title="A target for the features: shared, own or random",
        panels=tuple(panels),
        columns=len(DATASETS),
        full_only=tuple(line.key for panel in panels[len(DATASETS) :] for line in panel.lines),
    )


ENERGY_ALGORITHMS = ("kfl", "local", "fedavg", "fedrep", "apfl", "fedkd")
ACROSS: tuple[Axis, ...] = ("joules", "seconds", "bits")
CELLS = {"the paper's cell": "paper", "small cell": "small-cell"}
FLOPS_PER_CYCLE = 16.0
ENERGY_SCHEDULERS: dict[str, Scheduler] = {"dual": Dual(), "Algorithm 3": Lyapunov()}


def energy_cell(dataset: Dataset, cell: str) -> CellConfig:
    """The paper's cell for a dataset or the small one, with processors that can do the real work in time."""
    return replace(PRESETS[f"paper-{dataset}" if cell == "paper" else cell], flops_per_cycle=FLOPS_PER_CYCLE)


def energy_view() -> Figure:
    """Accuracy over joules, seconds and bits, a row for each scheduler, dataset and cell."""
    panels = {words: _energy_panels(2, words) for words in ENERGY_SCHEDULERS}
    return Figure(
        name="energy",
        title="The same battery and band for every algorithm",
        panels=tuple(panel for some in panels.values() for panel in some),
        columns=len(ACROSS),
        full_only=tuple(line.key for panel in panels["Algorithm 3"] for line in panel.lines),
    )


def energy_view_m3() -> Figure:
    """The same with three classes per device and `dual` alone."""
    title = "The same battery and band for every algorithm, m = 3"
    return Figure("energy-m3", title, tuple(_energy_panels(3, "dual")), columns=len(ACROSS))


def _energy_panels(classes: int, words: str) -> list[Panel]:
    panels = []
    scheduler = ENERGY_SCHEDULERS[words]
    for dataset in DATASETS:
        for title, cell in CELLS.items():
            lines = [
                Line(
                    key=f"energy {dataset} m{classes} equal {name} {cell} {scheduler.name} real work",
                    label=NAMES[name],
                    style=name,
                    experiment=replace(
                        base(dataset, classes, "equal", as_set(name)),
                        scheduler=scheduler,
                        radio=energy_cell(dataset, cell),
                        hard_budget=True,
                        real_work=True,
                    ),
                )
                for name in ENERGY_ALGORITHMS
            ]
            panels += [Panel(f"{TITLES[dataset]}, {title}, {words}", tuple(lines), across) for across in ACROSS]
    return panels
