"""Does it share? What finished runs say: each method against the best twin that uploads nothing, and at which price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kfl.comparison.records import Record
from kfl.comparison.statistics import Difference, Spread, holm, paired_difference, spread
from kfl.comparison.named_store import ResultStore
from kfl.sharing.conditions import Condition
from kfl.sharing.methods import is_twin
from kfl.sharing.study import Study

REFERENCE = "kfl"
"""The method whose final accuracy others are timed to."""
EVERY_CLASS = ("kfl", "fedproto")
"""Algorithms that are charged for the means of every class, as the paper does, though devices have those they hold."""
LEVEL = 0.05


@dataclass(frozen=True)
class Standing:
    """One method or twin in one condition."""

    label: str
    twin: bool
    accuracy: Spread
    """At the end, as a fraction."""
    gain: Difference | None
    """Accuracy minus the best twin's, paired by seed; None for that twin itself."""
    level: float
    """The level at which Holm's correction reads the interval of the gain, over all methods of the answers."""
    bits_up: float
    """Bits that a device sends in a round it takes part in."""
    bits_down: float
    held_bits_up: float | None
    """The bits of the classes that a device holds, where all of them are charged; None where held ones are."""
    rounds_to_reference: float | None
    """Rounds after which it has KFL's final accuracy, as a part of KFL's; None where, for some seed, it never has."""
    joules_to_reference: float | None
    """Joules up to then, as a part of those that KFL spends in all; None also where no energy is counted."""
    devices_per_round: float

    @property
    def shares(self) -> bool:
        """Whether what it uploads adds something: its gain is above zero after the correction."""
        return self._above(self.level)

    @property
    def may_share(self) -> bool:
        """Whether its own interval is above zero, but after the correction for all questions no longer."""
        return self._above(LEVEL) and not self.shares

    def _above(self, level: float) -> bool:
        if self.twin or self.gain is None:
            return False
        low = self.gain.at(1 - level).low
        return low is not None and low > 0


@dataclass(frozen=True)
class Answer:
    """One condition."""

    condition: Condition
    seeds: tuple[int, ...]
    """Seeds for which at least one method is finished."""
    best_twin: str
    standings: tuple[Standing, ...]
    """In the order of the methods."""

    def __getitem__(self, label: str) -> Standing:
        return next(standing for standing in self.standings if standing.label == label)


def answers(study: Study, store: ResultStore) -> list[Answer]:
    """What is known of each condition in which at least one twin and one seed are finished.

    The best twin is the one with the highest mean over the seeds: a choice after the fact, which is in the twins'
    favour.
    """
    found = [answer for condition in study.conditions if (answer := _answer(study, condition, store)) is not None]
    p_values = {
        (answer.condition.name, one.label): one.gain.p_value()
        for answer in found
        for one in answer.standings
        if not one.twin and one.gain is not None and one.gain.low is not None
    }
    levels = holm(p_values, LEVEL)
    return [
        replace(
            answer,
            standings=tuple(
                replace(one, level=levels.get((answer.condition.name, one.label), LEVEL)) for one in answer.standings
            ),
        )
        for answer in found
    ]


def _answer(study: Study, condition: Condition, store: ResultStore) -> Answer | None:
    rows = {
        label: {
            seed: row
            for seed in study.seeds
            if (row := store.rows.get(study.run_name(condition, label, seed))) is not None
        }
        for label in study.methods
    }
    rows = {label: found for label, found in rows.items() if found}
    twins = [label for label in rows if is_twin(study.methods[label])]
    if not twins:
        return None
    best = max(twins, key=lambda label: spread(_finals(rows[label])).mean)
    seeds = tuple(sorted(set().union(*rows.values())))
    standings = tuple(_standing(label, is_twin(study.methods[label]), rows, best) for label in rows)
    return Answer(condition, seeds, best, standings)


def _standing(label: str, twin: bool, rows: Mapping[str, Mapping[int, Record]], best: str) -> Standing:
    own = rows[label]
    some = list(own.values())
    ours = {seed: row["accuracy"] for seed, row in own.items()}
    theirs = {seed: row["accuracy"] for seed, row in rows[best].items()}
    uploads = [row["rounds"] * row["devices_per_round"] for row in some]
    bits_up = sum(row["bits_up"] for row in some) / max(sum(uploads), 1.0)
    reached = None if REFERENCE not in rows else _reached(own, rows[REFERENCE])
    return Standing(
        label=label,
        twin=twin,
        accuracy=spread(_finals(own)),
        gain=None if label == best else paired_difference(ours, theirs),
        level=LEVEL,
        bits_up=bits_up,
        bits_down=sum(row["bits_down"] for row in some) / max(sum(uploads), 1.0),
        held_bits_up=_held_bits(some, bits_up),
        rounds_to_reference=None if reached is None else reached[0],
        joules_to_reference=None if reached is None else reached[1],
        devices_per_round=float(np.mean([row["devices_per_round"] for row in some])),
    )


def _finals(rows: Mapping[int, Record]) -> list[float]:
    return [row["accuracy"] for row in rows.values()]


def _held_bits(rows: Sequence[Record], bits_up: float) -> float | None:
    """An upload without the classes that a device does not hold, and with a bit for each class that says which."""
    first = rows[0]
    if first["algorithm"] not in EVERY_CLASS or first["settings"].get("charge", "printed") != "printed":
        return None
    held = [row["held_classes"] for row in rows if "held_classes" in row]
    classes = first.get("classes")
    if not held or classes is None:
        return None
    return float(bits_up * np.mean(held) / classes + classes)


def _reached(own: Mapping[int, Record], reference: Mapping[int, Record]) -> tuple[float, float | None] | None:
    """When a method has the reference's final accuracy: the part of its rounds and of its joules, mean over seeds."""
    rounds, joules = [], []
    for seed in sorted(set(own) & set(reference)):
        target, goal = reference[seed]["accuracy"], reference[seed]
        when = first_reach(own[seed]["curve"]["rounds"], own[seed]["curve"]["accuracy"], target)
        if when is None:
            return None
        rounds.append(when / goal["rounds"])
        if goal["energy_j"]:
            spent = np.interp(when, [0.0, *own[seed]["curve"]["rounds"]], [0.0, *own[seed]["curve"]["joules"]])
            joules.append(float(spent) / goal["energy_j"])
    if not rounds:
        return None
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
