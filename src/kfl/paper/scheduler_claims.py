"""The claims about schedulers, judged for each power coefficient κ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kfl.core.text import percent
from kfl.paper.figures import coefficients, policy_key
from kfl.paper.results import Measure, Pair, Store, early, gap, judge_above, told, used
from kfl.paper.setting import DATASETS, TITLES, Scale
from kfl.paper.verdict import ENERGY_MARGIN, MARGIN, MISSING, SPEED_MARGIN, Claim, Finding, Judge, equal
from kfl.simulation.records import Record
from kfl.simulation.statistics import paired_difference


def scheduler_claims(classes: int) -> list[Claim]:
    """Section V-C, or the technical report's words on three classes per device."""
    found: list[Claim] = []
    where = "V-C" if classes == 2 else "report III"
    for dataset in DATASETS:
        figures = ("fig4a", "fig4b") if dataset == "mnist" else ("fig4c", "fig4d")
        accuracy, energy = (f"kfl paper {name}{'' if classes == 2 else '-m3'}" for name in figures)
        for kappa in coefficients(dataset):
            setting = f"{TITLES[dataset]}, m = {classes}, κ = {kappa:g}"
            keys = {p: policy_key(dataset, classes, p, kappa) for p in ("v0.01", "v0.1", "round-robin", "myopic")}

            def claim(says: str, command: str, judge: Judge, paper: str = "yes", setting: str = setting) -> None:
                found.append(Claim(where, f"{says}, {setting}", paper, command, judge))

            claim(
                "V = 0.01 and 0.1 more accurate than round robin and myopic",
                accuracy,
                judge_above(_ours_and_theirs(keys, MARGIN[dataset])),
            )
            claim(
                "V = 0.01 and 0.1 learn faster than both",
                accuracy,
                judge_above(_ours_and_theirs(keys, SPEED_MARGIN), early),
            )
            claim(
                "V = 0.01 and 0.1 use more energy than both in the first 30 rounds",
                energy,
                judge_above(_ours_and_theirs(keys, 0.0), _used_by_round_30, digits=3),
            )
            claim("V = 0.01 ends within the budget", energy, _within(keys["v0.01"]))
            if dataset == "mnist":
                same = _same_energy(keys["v0.01"], keys["myopic"])
                claim("V = 0.01 uses the same energy as myopic", energy, same, "the same")
            elif classes == 2:
                best = [
                    Pair(f"minus {_words(policy)}", keys["v0.1"], keys[policy], MARGIN[dataset])
                    for policy in ("v0.01", "round-robin", "myopic")
                ]
                claim("V = 0.1 exhausts the budgets by round 100", energy, _exhausted(keys["v0.1"]))
                claim("V = 0.1 the most accurate", accuracy, judge_above(best))
                claim("Myopic schedules nobody in the first 30 rounds", energy, _idle(keys["myopic"]))
                claim("Round robin uses energy evenly over the rounds", energy, _even(keys["round-robin"]))
    return found


def _words(policy: str) -> str:
    return policy.replace("v", "V = ")


def _ours_and_theirs(keys: dict[str, str], margin: float) -> list[Pair]:
    return [
        Pair(f"{_words(ours)} − {theirs}", keys[ours], keys[theirs], margin)
        for ours in ("v0.01", "v0.1")
        for theirs in ("round-robin", "myopic")
    ]


def _used_by_round_30(row: Record) -> float:
    return used(row, 30 / row["rounds"])


def _judge_used(
    line: str, measure: Measure, holds: Callable[[Sequence[float]], bool], words: Callable[[Sequence[float]], str]
) -> Judge:
    """Judge the share of the budget that a line used, over its seeds."""

    def judge(store: Store, scale: Scale) -> Finding:
        shares = [measure(row) for row in store.seeds(line, scale).values()]
        if not shares:
            return MISSING
        return Finding(words(shares), "holds" if holds(shares) else "does not hold")

    return judge


def _within(line: str) -> Judge:
    return _judge_used(
        line,
        used,
        lambda shares: max(shares) <= 1 + 1e-4,  # the curves carry five digits
        lambda shares: f"{percent(float(np.mean(shares)), 1)} of the budget, at most {percent(max(shares), 1)}",
    )


def _exhausted(line: str) -> Judge:
    return _judge_used(
        line,
        lambda row: used(row, 0.5),
        lambda shares: min(shares) >= 1 - ENERGY_MARGIN,
        lambda shares: f"{percent(float(np.mean(shares)), 1)} of the budget at half time",
    )


def _idle(line: str) -> Judge:
    return _judge_used(
        line,
        _used_by_round_30,
        lambda shares: max(shares) == 0,
        lambda shares: f"{percent(float(np.mean(shares)))} of the budget used by then",
    )


def _same_energy(one: str, other: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        found = gap(store, scale, one, other, used)
        return Finding.of(f"{told(found, 3)} of the budget", equal(found, ENERGY_MARGIN), [found])

    return judge


def _even(line: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        rows = store.seeds(line, scale)
        halves = {seed: used(row, 0.5) for seed, row in rows.items()}
        ends = {seed: used(row) / 2 for seed, row in rows.items()}
        found = paired_difference(halves, ends)
        parts = f"half time minus half of the end {told(found, 3)} of the budget"
        return Finding.of(parts, equal(found, ENERGY_MARGIN), [found])

    return judge
