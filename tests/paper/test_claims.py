"""Verdicts on results that were made up so that the answer is known."""

from pathlib import Path

import numpy as np

from kfl.paper import FIGURES, FULL, QUICK, Store, claims
from kfl.paper.setting import run_key
from kfl.paper.tables import claims_table

ROUNDS = list(range(5, 201, 5))


def row(key: str, seed: int, advantage: float, early: float, share: float) -> dict:
    """A run: accuracy rises to a level, energy straight to a share of the budget of 100 J."""
    noise = 0.0001 * np.sin(7 * seed)
    level = 0.8 + advantage + noise
    curve = [level * (0.5 + early if t <= 50 else 1.0) for t in ROUNDS]
    joules = [100 * share * t / 200 for t in ROUNDS]
    spent = {"joules": joules, "seconds": ROUNDS, "bits": ROUNDS}
    return {
        "run": run_key(key, seed, FULL),
        "digest": "",
        "accuracy": level,
        "rounds": 200,
        "budget_j": 100.0,
        "curve": {"rounds": ROUNDS, "accuracy": curve, **spent},
    }


def made_up(kfl_better: float, share: float = 0.5) -> Store:
    """KFL ahead of all others by so much, V = 0.1 ahead of other schedulers, and descend ahead of other patterns."""
    store = Store(Path("nowhere"))  # nothing is written
    for build in FIGURES.values():
        for line in build().lines(FULL):
            ahead = " kfl " in line.key or line.key.endswith(" kfl")
            order = ["ascend", "uniform", "descend"]
            pattern = next((place for place, word in enumerate(order) if word in line.key), 0)
            policy = " v0." in line.key
            for seed in FULL.seeds:
                found = row(
                    line.key,
                    seed,
                    kfl_better * ahead + 0.05 * policy,
                    early=0.1 * pattern * ahead + 0.1 * policy,
                    share=share * (1.2 if policy else 1.0),
                )
                store.rows[found["run"]] = found
    return store


def verdicts(store: Store, word: str, scale=FULL) -> set[str]:
    return {claim.finding(store, scale).verdict for claim in claims() if word in claim.says}


def test_a_clear_lead_holds_and_none_does_not() -> None:
    assert verdicts(made_up(0.10), "KFL above FedRep") == {"holds"}
    assert verdicts(made_up(0.00), "KFL above FedRep") == {"does not hold"}
    assert verdicts(made_up(-0.05), "KFL above FedKD") == {"does not hold"}


def test_a_lead_far_below_the_papers_holds_in_part_and_says_so() -> None:
    store = made_up(0.012)
    some = [c.finding(store, FULL) for c in claims() if "above FedKD, CIFAR-10, 50" in c.says]
    assert {found.verdict for found in some} == {"holds in part"}
    assert all("above the interval" in found.ours for found in some)


def test_similar_holds_only_where_it_is_similar() -> None:
    assert verdicts(made_up(0.0), "KFL similar to FedRep") == {"holds"}
    assert verdicts(made_up(0.05), "KFL similar to FedRep") == {"does not hold"}


def test_patterns_and_schedulers() -> None:
    store = made_up(0.05)
    assert verdicts(store, "Descend learns fastest") == {"holds"}
    assert verdicts(store, "more accurate than round robin") == {"holds"}
    assert verdicts(store, "use more energy than both") == {"holds"}
    assert verdicts(store, "ends within the budget") == {"holds"}
    assert verdicts(store, "exhausts the budgets") == {"does not hold"}
    assert verdicts(store, "evenly") == {"holds"}
    assert verdicts(made_up(0.05, share=1.0), "ends within the budget") == {"does not hold"}
    assert verdicts(made_up(0.05, share=2.0), "exhausts the budgets") == {"holds"}


def test_nothing_is_judged_by_a_quick_look_or_without_runs() -> None:
    assert verdicts(made_up(0.1), "KFL above", QUICK) == {"cannot be judged"}
    store = made_up(0.1)
    for name in [name for name in store.rows if "apfl" in name]:
        del store.rows[name]
    assert verdicts(store, "more accurate than FedAvg, APFL") == {"cannot be judged"}


def test_the_sizes_of_uploads_hold() -> None:
    assert verdicts(Store(Path("nowhere")), "uploads") == {"holds"}


def test_the_table_has_a_row_with_a_number_and_a_command_for_every_claim() -> None:
    text = claims_table(claims(), made_up(0.1), FULL)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(claims())
    assert all("`kfl paper" in line and "not run" not in line and "|  |" not in line for line in rows)


def test_what_cannot_be_judged_says_why() -> None:
    table = claims_table(claims(), made_up(0.05), QUICK)
    assert "**cannot be judged**: runs are missing" in table, "a quick look has runs of its own"
    few = made_up(0.05)
    few.rows = {name: found for name, found in few.rows.items() if "fedrep" not in name}
    assert "**cannot be judged**: runs are missing" in claims_table(claims(), few, FULL)
    three = made_up(0.05)
    three.rows = {name: found for name, found in three.rows.items() if name[-1] in "012"}
    table = claims_table(claims(), three, FULL)
    assert "(3 seeds) | **cannot be judged**: fewer than 5 seeds" in table and "the interval allows" not in table
    unsure = made_up(0.0)
    for found in unsure.rows.values():
        if " kfl " in found["run"]:  # ahead with some seeds, behind with others
            found["accuracy"] += 0.05 * (-1) ** int(found["run"][-1])
    assert "**cannot be judged**: the interval allows both" in claims_table(claims(), unsure, FULL)
