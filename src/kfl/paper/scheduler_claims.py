"""The claims about schedulers, judged for each power coefficient κ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kfl.paper.figures import coefficients, policy_key
from kfl.paper.results import Measure, Store, early, final, gap, told, used
from kfl.paper.setting import DATASETS, TITLES, Dataset, Scale
from kfl.paper.verdict import (
    ENERGY_MARGIN,
    MARGIN,
    MISSING,
    SPEED_MARGIN,
    Claim,
    Finding,
    Verdict,
    better,
    equal,
    together,
)
from kfl.simulation.statistics import paired_difference

Judge = Callable[[Store, Scale], Finding]


def scheduler_claims(classes: int) -> list[Claim]:
    """Section V-C, or the technical report's words on three classes per device."""
    found = []
    for dataset in DATASETS:
        pictures = ("fig4a", "fig4b") if dataset == "mnist" else ("fig4c", "fig4d")
        accuracy, energy = (f"kfl paper {name}{'' if classes == 2 else '-m3'}" for name in pictures)
        where = "V-C" if classes == 2 else "report III"
        for kappa in coefficients(dataset):
            setting = f"{TITLES[dataset]}, m = {classes}, κ = {kappa:g}"
            keys = {p: policy_key(dataset, classes, p, kappa) for p in ("v0.01", "v0.1", "round-robin", "myopic")}
            found += [
                Claim(
                    where,
                    f"V = 0.01 and 0.1 more accurate than round robin and myopic, {setting}",
                    "yes",
                    accuracy,
                    _ours_above(keys, final, MARGIN[dataset]),
                ),
                Claim(
                    where,
                    f"V = 0.01 and 0.1 learn faster than both, {setting}",
                    "yes",
                    accuracy,
                    _ours_above(keys, early, SPEED_MARGIN),
                ),
                Claim(
                    where,
                    f"V = 0.01 and 0.1 use more energy than both in the first 30 rounds, {setting}",
                    "yes",
                    energy,
                    _ours_above(keys, lambda row: used(row, 30 / row["rounds"]), 0.0, digits=3),
                ),
                Claim(where, f"V = 0.01 ends within the budget, {setting}", "yes", energy, _within(keys["v0.01"])),
            ]
            if dataset == "mnist":
                says = f"V = 0.01 uses the same energy as myopic, {setting}"
                found.append(Claim(where, says, "the same", energy, _same_energy(keys["v0.01"], keys["myopic"])))
            elif classes == 2:
                found += [
                    Claim(
                        where,
                        f"V = 0.1 exhausts the budgets by round 100, {setting}",
                        "yes",
                        energy,
                        _exhausted(keys["v0.1"]),
                    ),
                    Claim(where, f"V = 0.1 the most accurate, {setting}", "yes", accuracy, _best(keys, dataset)),
                    Claim(
                        where,
                        f"Myopic schedules nobody in the first 30 rounds, {setting}",
                        "yes",
                        energy,
                        _idle(keys["myopic"]),
                    ),
                    Claim(
                        where,
                        f"Round robin uses energy evenly over the rounds, {setting}",
                        "yes",
                        energy,
                        _even(keys["round-robin"]),
                    ),
                ]
    return found


def _ours_above(keys: dict[str, str], measure: Measure, margin: float, digits: int = 2) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        parts, verdicts, gaps = [], [], []
        for ours in ("v0.01", "v0.1"):
            for theirs in ("round-robin", "myopic"):
                found = gap(store, scale, keys[ours], keys[theirs], measure)
                parts.append(f"{ours.replace('v', 'V = ')} − {theirs} {told(found, digits)}")
                verdicts.append(better(found, margin))
                gaps.append(found)
        return Finding.of("; ".join(parts), together(verdicts), gaps)

    return judge


def _shares(store: Store, scale: Scale, line: str, at: float = 1.0) -> list[float]:
    return [used(row, at) for row in store.seeds(line, scale).values()]


def _within(line: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        shares = _shares(store, scale, line)
        if not shares:
            return MISSING
        # The curves carry five digits.
        verdict: Verdict = "holds" if max(shares) <= 1 + 1e-4 else "does not hold"
        return Finding(f"{100 * np.mean(shares):.1f} % of the budget, at most {100 * max(shares):.1f} %", verdict)

    return judge


def _same_energy(one: str, other: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        found = gap(store, scale, one, other, used)
        return Finding.of(f"{told(found, 3)} of the budget", equal(found, ENERGY_MARGIN), [found])

    return judge


def _exhausted(line: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        shares = _shares(store, scale, line, 0.5)
        if not shares:
            return MISSING
        verdict: Verdict = "holds" if min(shares) >= 1 - ENERGY_MARGIN else "does not hold"
        return Finding(f"{100 * np.mean(shares):.1f} % of the budget at half time", verdict)

    return judge


def _best(keys: dict[str, str], dataset: Dataset) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        gaps = {p: gap(store, scale, keys["v0.1"], keys[p]) for p in ("v0.01", "round-robin", "myopic")}
        parts = "; ".join(f"minus {policy.replace('v', 'V = ')} {told(found)}" for policy, found in gaps.items())
        verdict = together([better(found, MARGIN[dataset]) for found in gaps.values()])
        return Finding.of(parts, verdict, gaps.values())

    return judge


def _idle(line: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        shares = [used(row, 30 / row["rounds"]) for row in store.seeds(line, scale).values()]
        if not shares:
            return MISSING
        verdict: Verdict = "holds" if max(shares) == 0 else "does not hold"
        return Finding(f"{100 * np.mean(shares):.2f} % of the budget used by then", verdict)

    return judge


def _even(line: str) -> Judge:
    def judge(store: Store, scale: Scale) -> Finding:
        halves = {seed: used(row, 0.5) for seed, row in store.seeds(line, scale).items()}
        ends = {seed: used(row) / 2 for seed, row in store.seeds(line, scale).items()}
        found = paired_difference(halves, ends)
        parts = f"half time minus half of the end {told(found, 3)} of the budget"
        return Finding.of(parts, equal(found, ENERGY_MARGIN), [found])

    return judge
