"""The claims about schedulers, judged for each power coefficient κ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from kfl.comparison.records import Record
from kfl.core.text import DASH, percent
from reproduction.figures import coefficients, policy_key
from reproduction.judging import MISSING, Claim, Fact, Finding, Question
from reproduction.results import (
    Measure,
    Store,
    between,
    early,
    final,
    half_spent,
    trained_early,
    trained_late,
    used,
    used_by_round_30,
    used_evenly,
    worst_use,
)
from reproduction.setting import DATASETS, FULL, TITLES, Dataset, Scale
from reproduction.verdict import ENERGY_MARGIN, MARGIN, SPEED_MARGIN, TRAINING_MARGIN, Asks

EARLY_ENERGY_MARGIN = ENERGY_MARGIN * 30 / FULL.rounds
"""Of the budget for the whole run, where 30 rounds are compared."""
SPENDS_EARLY = "the first quarter of the rounds favors schedulers that spend early, by construction"


def scheduler_claims(classes: int) -> list[Claim]:
    """Section V-C, or the technical report's words on three classes per device."""
    found: list[Claim] = []
    where = "V-C" if classes == 2 else "report III"
    for dataset in DATASETS:
        accuracy, energy = _commands(dataset, classes)
        for kappa in coefficients(dataset):
            setting = f"{TITLES[dataset]}, m = {classes}, κ = {kappa:g}"
            keys = {p: policy_key(dataset, classes, p, kappa) for p in ("v0.01", "v0.1", "round-robin", "myopic")}
            above = partial(_ours_and_theirs, keys)
            claim = partial(_claim, where, setting)
            found += [
                claim("V = 0.01 and 0.1 more accurate than round robin and myopic", accuracy, above(MARGIN[dataset])),
                claim(
                    "V = 0.01 and 0.1 learn faster than both",
                    accuracy,
                    above(SPEED_MARGIN, early),
                    beside=above(MARGIN[dataset], half_spent),
                    beside_when="with half of the budget spent",
                    note=SPENDS_EARLY,
                ),
                claim(
                    "V = 0.01 and 0.1 use more energy than both in the first 30 rounds",
                    energy,
                    above(EARLY_ENERGY_MARGIN, used_by_round_30, digits=3),
                ),
                claim("V = 0.01 ends within every device's budget", energy, fact=_within(keys["v0.01"])),
            ]
            if dataset == "mnist":
                same = Question(
                    keys["v0.01"], keys["myopic"], ENERGY_MARGIN, "share of the budget", used, "equal", digits=3
                )
                found += [
                    claim("Myopic ends within every device's budget", energy, fact=_within(keys["myopic"])),
                    claim("V = 0.01 uses the same energy as myopic", energy, [same], paper="the same"),
                ]
            elif classes == 2:
                best = [
                    Question(keys["v0.1"], keys[policy], MARGIN[dataset], f"minus {_words(policy)}")
                    for policy in ("v0.01", "round-robin", "myopic")
                ]
                even = Question(
                    keys["round-robin"],
                    None,
                    ENERGY_MARGIN,
                    "half time minus half of the end, of the budget",
                    used_evenly,
                    "equal",
                    digits=3,
                )
                found += [
                    claim("V = 0.1 exhausts the budgets by round 100", energy, fact=_exhausted(keys["v0.1"])),
                    claim("V = 0.1 the most accurate", accuracy, best, against_best=True),
                    claim("Myopic schedules no device in the first 30 rounds", energy, fact=_idle(keys["myopic"])),
                    claim("Round robin uses energy evenly over the rounds", energy, [even]),
                ]
            if classes == 2:
                found += _pattern_claims(claim, keys, energy)
    return found


def trade_off_claims(classes: int) -> list[Claim]:
    """Sections III-B and IV-B: what a larger V does, and that the queues make scheduling fair."""
    found: list[Claim] = []
    for dataset in DATASETS:
        accuracy, energy = _commands(dataset, classes)
        claim = partial(_claim, "III-B, IV-B", f"{TITLES[dataset]}, m = {classes}")
        pairs = {
            f"κ = {kappa:g}": (
                policy_key(dataset, classes, "v0.1", kappa),
                policy_key(dataset, classes, "v0.01", kappa),
            )
            for kappa in coefficients(dataset)
        }
        more = [Question(*pair, ENERGY_MARGIN, label, used, digits=3) for label, pair in pairs.items()]
        better = [Question(*pair, MARGIN[dataset], label) for label, pair in pairs.items()]
        found += [
            claim("A larger V uses more energy: 0.1 against 0.01", energy, more),
            claim("A larger V learns more: 0.1 against 0.01", accuracy, better),
            claim("The queues make scheduling fair: no device is left out", energy, fact=_nobody_left_out(pairs)),
        ]
    return found


def _commands(dataset: Dataset, classes: int) -> list[str]:
    """The commands that run the schedulers' accuracy and energy."""
    figures = ("fig4a", "fig4b") if dataset == "mnist" else ("fig4c", "fig4d")
    return [f"python -m reproduction figures {name}{'' if classes == 2 else '-m3'}" for name in figures]


def _claim(
    where: str,
    setting: str,
    says: str,
    command: str,
    questions: Sequence[Question] = (),
    *,
    paper: str = "yes",
    fact: Fact | None = None,
    beside: Sequence[Question] = (),
    beside_when: str = "",
    note: str = "",
    against_best: bool = False,
) -> Claim:
    return Claim(
        where,
        f"{says}, {setting}",
        paper,
        command,
        tuple(questions),
        fact,
        tuple(beside),
        beside_when,
        note,
        against_best,
    )


def _pattern_claims(claim: Callable[..., Claim], keys: dict[str, str], command: str) -> list[Claim]:
    """The last sentences of section V-C: which pattern each scheduler follows."""
    label = "part of the training in its half of the rounds, above one half:"

    def question(policy: str, measure: Measure, asks: Asks = "above") -> Question:
        return Question(keys[policy], None, TRAINING_MARGIN, f"{label} {_words(policy)}", measure, asks, digits=3)

    return [
        claim(
            "V = 0.01 and 0.1 schedule in the descend pattern",
            command,
            [question(policy, trained_early) for policy in ("v0.01", "v0.1")],
        ),
        claim("Myopic schedules in the ascend pattern", command, [question("myopic", trained_late)]),
        claim(
            "Round robin schedules in the uniform pattern", command, [question("round-robin", trained_early, "equal")]
        ),
    ]


def _words(policy: str) -> str:
    return policy.replace("v0", "V = 0").replace("-", " ")


def _ours_and_theirs(keys: dict[str, str], margin: float, measure: Measure = final, digits: int = 2) -> list[Question]:
    return [
        Question(keys[ours], keys[theirs], margin, f"{_words(ours)} − {_words(theirs)}", measure, digits=digits)
        for ours in ("v0.01", "v0.1")
        for theirs in ("round-robin", "myopic")
    ]


def _counted(
    lines: Sequence[str], holds: Callable[[Sequence[Record]], bool], words: Callable[[Sequence[Record]], str]
) -> Fact:
    """Judge what the runs of some lines did, all seeds together."""

    def fact(store: Store, scale: Scale) -> Finding:
        rows = [row for line in lines for row in store.seeds(line, scale).values()]
        if len(rows) < len(lines) * len(scale.seeds):
            return MISSING
        return Finding.counted(words(rows), holds(rows))

    return fact


def _within(line: str) -> Fact:
    """Constraint (14a): no device spends more than its own budget."""

    def words(rows: Sequence[Record]) -> str:
        over = between(row["devices_over_budget"] for row in rows)
        worst, all_of_them = worst_use(rows), percent(float(np.mean([used(row) for row in rows])), 1)
        most = "" if worst == DASH else f"the worst uses {worst} of its own, "
        return f"{over} of {rows[0]['devices']} devices over budget; {most}all together {all_of_them} of theirs"

    return _counted([line], lambda rows: all(row["devices_over_budget"] == 0 for row in rows), words)


def _exhausted(line: str) -> Fact:
    def words(rows: Sequence[Record]) -> str:
        return f"{percent(float(np.mean([used(row, 0.5) for row in rows])), 1)} of the budget at half time"

    return _counted([line], lambda rows: min(used(row, 0.5) for row in rows) >= 1 - ENERGY_MARGIN, words)


def _idle(line: str) -> Fact:
    def words(rows: Sequence[Record]) -> str:
        return f"{percent(float(np.mean([used_by_round_30(row) for row in rows])))} of the budget used by then"

    return _counted([line], lambda rows: all(used_by_round_30(row) == 0 for row in rows), words)


def _nobody_left_out(pairs: dict[str, tuple[str, str]]) -> Fact:
    lines = [line for pair in pairs.values() for line in pair]

    def words(rows: Sequence[Record]) -> str:
        never = between(row["devices_never_chosen"] for row in rows)
        return f"{never} of {rows[0]['devices']} devices never chosen, for V = 0.01 and 0.1 and every κ"

    return _counted(lines, lambda rows: all(row["devices_never_chosen"] == 0 for row in rows), words)
