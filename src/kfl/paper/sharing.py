"""What does sharing add? KFL against three that upload nothing, where sharing could matter.

Local-only training has no knowledge loss. `self-knowledge` pulls a device's features to its own class means of the
round before, `fixed-knowledge` to fixed random ones: both have KFL's regularising pull without anybody else's data.
What KFL gains over them is what sharing adds. Ten conditions × four algorithms × five seeds: 200 runs. Classes are
distinct on a device here, so that "5 classes" means five.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kfl.paper.setting import NAMES, TITLES, Dataset, Figure, Line, Panel, as_set, base
from kfl.scheduling import Uniform

ALGORITHMS = ("kfl", "local", "self-knowledge", "fixed-knowledge")


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
            for name in ALGORITHMS
        ]
        panels.append(Panel(condition.name, tuple(lines)))
    return Figure(
        "sharing", "What sharing adds: KFL minus algorithms that upload nothing", tuple(panels), 1, "difference"
    )
