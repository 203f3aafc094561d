"""What finished runs say: one row per label and condition, with the difference to a reference, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np

from kfl.algorithms import ALGORITHMS
from kfl.comparison.records import Record, label_of
from kfl.comparison.statistics import Difference, Spread, holm, paired_difference, spread
from kfl.comparison.twins import TWINS
from kfl.core.config import from_table
from kfl.core.errors import KflError
from kfl.scheduling import Status

EVERY_CLASS = ("kfl", "fedproto")
"""Algorithms that are charged for the means of every class, as the paper does, though devices have those they hold."""
LEVEL = 0.05
_COSTS = (
    "bits_up",
    "energy_j",
    "time_s",
    "devices_per_round",
    "rounds_with_nobody",
    "devices_over_budget",
    "devices_never_chosen",
)
BySeed = Mapping[int, Record]


@dataclass(frozen=True)
class Row:
    """Results of one entry over seeds."""

    label: str
    accuracy: Spread
    worst_tenth: Spread
    """Mean accuracy of the worst tenth of the devices."""
    difference: Difference | None
    """Accuracy minus the reference's, paired by seed; None for the reference itself."""
    bits_up: float
    energy_j: float
    time_s: float
    devices_per_round: float
    rounds_with_nobody: float
    devices_over_budget: float
    devices_never_chosen: float
    why_nobody: Status | None
    """Why no device took part, in rounds without participants; None if there are none."""
    condition: str = ""
    reference: str = ""
    """The label of the reference in this condition."""
    twin: bool = False
    """Whether it uploads nothing."""
    level: float = LEVEL
    """The level at which Holm's correction reads the interval of the difference, over all rows of the comparison."""
    bits_up_each: float = 0.0
    """Bits that a device sends in a round it takes part in."""
    bits_down_each: float = 0.0
    held_bits_up_each: float | None = None
    """The bits of the classes that a device holds, where all of them are charged; None where held ones are."""
    goal_rounds: float | None = None
    """Rounds after which it has the final accuracy of the goal, as a part of the goal's; None where, for some seed, it
    never has. The goal is the reference, or another label that `Comparison.rows_to` is given."""
    goal_joules: float | None = None
    """Joules up to then, as a part of those that the goal spends in all; None also where no energy is counted."""
    diverged: int = 0
    """Participations in which training diverged, over all seeds; a row with any has no verdict."""
    collapsed: tuple[int, ...] = ()
    """Seeds that end at less than half of the median, and 20 points below it."""
    own_twin: str = ""
    """The label of its own twin, which does the same without an upload; empty where it is not among the rows."""
    own_difference: Difference | None = None
    """Accuracy minus that of its own twin, paired by seed: what the uploads of others add."""
    own_level: float = LEVEL
    """The level at which Holm's correction reads that interval, over all rows."""

    @property
    def feasible(self) -> bool:
        """Whether any device took part in any round."""
        return self.devices_per_round > 0

    def accuracy_text(self, digits: int = 2) -> str:
        """Accuracy in per cent, marked where training diverged or a seed collapsed."""
        marks = ["diverged"] * (self.diverged > 0) + [f"{len(self.collapsed)} collapsed"] * bool(self.collapsed)
        return " ".join([self.accuracy.text(digits), *(f"({mark})" for mark in marks)])

    @property
    def adds(self) -> bool:
        """Whether it is above the reference, the best twin in a comparison with twins, after Holm's correction."""
        return self.verdict() == "yes"

    @property
    def may_add(self) -> bool:
        """Whether its own interval is above zero, but after the correction for all questions no longer."""
        return self.verdict() == "perhaps"

    def verdict(self, *, own: bool = False) -> Literal["yes", "perhaps", "no", "twin", ""]:
        """Whether it is above the reference, or above its own twin; empty where nothing can be said."""
        found, level = (self.own_difference, self.own_level) if own else (self.difference, self.level)
        if self.twin:
            return "twin"
        if self.diverged or found is None or found.low is None:
            return ""
        corrected = found.at(1 - level).low
        return "yes" if corrected is not None and corrected > 0 else "perhaps" if found.low > 0 else "no"


def by_label(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    """Records of one condition by label and seed."""
    found: dict[str, dict[int, Record]] = {}
    for line in records:
        found.setdefault(label_of(line), {})[line["seed"]] = line
    return found


def summarise_rows(records: Sequence[Record], reference: str, goal: str | None = None) -> list[Row]:
    """One row per label of one condition, in the order of the records; `goal` is what others are timed to."""
    labelled = by_label(records)
    theirs = accuracies(labelled.get(reference, {}))
    target = labelled.get(reference if goal is None else goal)
    rows = []
    for label, own in labelled.items():
        lines = list(own.values())
        uploads = max(sum(line["rounds"] * line["devices_per_round"] for line in lines), 1.0)
        each = sum(line["bits_up"] for line in lines) / uploads
        twin = own_twin(lines[0], labelled)
        rounds, joules = (None, None) if target is None else reached(own, target)
        rows.append(
            Row(
                label=label,
                accuracy=spread([line["accuracy"] for line in lines]),
                worst_tenth=spread([line["worst_tenth"] for line in lines]),
                difference=None if label == reference else paired_difference(accuracies(own), theirs),
                why_nobody=next((Status.from_dict(line["why_nobody"]) for line in lines if line["why_nobody"]), None),
                condition=str(lines[0].get("condition", "")),
                reference=reference,
                twin=uploads_nothing(lines),
                bits_up_each=each,
                bits_down_each=sum(line.get("bits_down", 0.0) for line in lines) / uploads,
                held_bits_up_each=_held_bits(lines, each),
                goal_rounds=rounds,
                goal_joules=joules,
                diverged=sum(line.get("diverged", 0) for line in lines),
                collapsed=collapsed(accuracies(own)),
                own_twin=twin or "",
                own_difference=None if twin is None else paired_difference(accuracies(own), accuracies(labelled[twin])),
                **{cost: spread([line[cost] for line in lines]).mean for cost in _COSTS},
            )
        )
    return rows


def with_levels(rows: Sequence[Row], *, twins: bool) -> list[Row]:
    """The rows with the levels of each after Holm's correction: a family over all conditions for each question.

    Of a comparison with twins only what uploads something is asked about.
    """

    def levels(differences: Sequence[Difference | None]) -> dict[int, float]:
        asked = {
            index: found.p_value()
            for index, (row, found) in enumerate(zip(rows, differences, strict=True))
            if found is not None and found.low is not None and not (twins and row.twin) and not row.diverged
        }
        return holm(asked, LEVEL)

    best, own = levels([row.difference for row in rows]), levels([row.own_difference for row in rows])
    return [
        replace(row, level=best.get(index, LEVEL), own_level=own.get(index, LEVEL)) for index, row in enumerate(rows)
    ]


def own_twin(line: Record, labelled: Mapping[str, BySeed]) -> str | None:
    """The label of the row that does the same as a run without an upload; None where there is none.

    An algorithm of the user's own is compared with training alone.
    """
    cls = ALGORITHMS.get(line["algorithm"])
    word = "local"
    if cls is not None:
        try:
            word = from_table(cls, line.get("settings", {})).twin()
        except KflError:  # of an earlier version, with other fields
            word = cls().twin()
    wanted = TWINS.get(word)
    for label, own in labelled.items():
        other = next(iter(own.values()))
        targets = other.get("settings", {}).get("targets", "random")
        named = other["algorithm"] == (word if wanted is None else wanted.name)
        if named and other is not line and targets == getattr(wanted, "targets", targets):
            return label
    return None


def best_twin(records: Sequence[Record]) -> str | None:
    """The twin with the highest mean accuracy, which is a choice after the fact in the twins' favor; None without."""
    means = {
        label: spread(list(accuracies(own).values())).mean
        for label, own in by_label(records).items()
        if uploads_nothing(list(own.values()))
    }
    return max(means, key=lambda label: means[label], default=None)


def accuracies(own: BySeed) -> dict[int, float]:
    """Final accuracy by seed."""
    return {seed: line["accuracy"] for seed, line in own.items()}


@cache
def _silent() -> frozenset[str]:
    return frozenset(name for name, cls in ALGORITHMS.items() if not cls.sends())


def uploads_nothing(lines: Sequence[Record]) -> bool:
    """Whether runs are of an algorithm that uploads nothing; of the user's own, whether they did not."""
    name = lines[0]["algorithm"]
    if name in ALGORITHMS:
        return name in _silent()
    return all(line["bits_up"] == 0 and line["devices_per_round"] > 0 for line in lines)


def charged_for_every_class(line: Record) -> bool:
    """Whether uploads are charged for the means of every class, though devices have those they hold."""
    return line["algorithm"] in EVERY_CLASS and line.get("settings", {}).get("charge", "printed") == "printed"


def collapsed(accuracy: Mapping[int, float]) -> tuple[int, ...]:
    """Return the seeds with less than half of the median accuracy, 20 points below it or more; of two seeds none.

    >>> collapsed({0: 0.96, 1: 0.95, 2: 0.21})
    (2,)
    """
    if len(accuracy) < 3:
        return ()
    median = float(np.median(list(accuracy.values())))
    return tuple(seed for seed, value in accuracy.items() if value < min(median / 2, median - 0.2))


def _held_bits(lines: Sequence[Record], bits_up: float) -> float | None:
    """An upload without the classes that a device does not hold, and with a bit for each class that says which."""
    first = lines[0]
    if not charged_for_every_class(first):
        return None
    held = [line["held_classes"] for line in lines if "held_classes" in line]
    classes = first.get("classes")
    if not held or classes is None:
        return None
    return float(bits_up * np.mean(held) / classes + classes)


def reached(own: BySeed, goal: BySeed) -> tuple[float | None, float | None]:
    """When runs have the goal's final accuracy: the part of its rounds and of its joules, mean over seeds."""
    rounds, joules = [], []
    for seed in sorted(set(own) & set(goal)):
        target, theirs = goal[seed]["accuracy"], goal[seed]
        curve = own[seed]["curve"]
        when = first_reach(curve["rounds"], curve["accuracy"], target)
        if when is None:
            return None, None
        rounds.append(when / theirs["rounds"])
        if theirs["energy_j"]:
            spent = np.interp(when, [0.0, *curve["rounds"]], [0.0, *curve["joules"]])
            joules.append(float(spent) / theirs["energy_j"])
    if not rounds:
        return None, None
    return float(np.mean(rounds)), float(np.mean(joules)) if len(joules) == len(rounds) else None


def first_reach(rounds: Sequence[float], accuracy: Sequence[float], target: float) -> float | None:
    """The first round in which a curve reaches a value, by a straight line between evaluations; None for never.

    >>> first_reach([10, 20, 30], [0.25, 0.5, 1.0], 0.75), first_reach([10, 20], [0.4, 0.6], 0.7)
    (25.0, None)
    """
    for index, value in enumerate(accuracy):
        if value >= target:
            if index == 0:
                return float(rounds[0])
            before, last = accuracy[index - 1], rounds[index - 1]
            return float(last + (rounds[index] - last) * (target - before) / (value - before))
    return None
