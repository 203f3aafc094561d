"""Verdicts on results that were made up so that the answer is known."""

import zlib
from dataclasses import replace

import numpy as np

from reproduction.claims import claims
from reproduction.figures import FIGURES
from reproduction.judging import Claim, Question, judge, questions
from reproduction.results import Store, identical
from reproduction.setting import FULL, QUICK, run_key
from reproduction.tables import claims_table

ROUNDS = list(range(5, 201, 5))


def row(key: str, seed: int, advantage: float, early: float, share: float) -> dict:
    """A run: accuracy rises to a level, energy straight to a share of the budget of 100 J."""
    noise = 1e-5 * np.sin(7 * seed + len(key) + zlib.crc32(key.encode()) % 1000)
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
        "devices": 100,
        "devices_over_budget": int(share > 1),
        "devices_per_round": 10.0,
        "devices_never_chosen": 0,
        "largest_use_of_budget": share,
        "curve": {"rounds": ROUNDS, "accuracy": curve, **spent},
    }


def made_up(kfl_better: float, share: float = 0.5) -> Store:
    """KFL ahead of all others by so much, V = 0.1 ahead of other schedulers, and descend ahead of other patterns."""
    store = Store()  # nothing is written
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
    everything = claims()
    return {
        found.verdict
        for claim, found in zip(everything, judge(everything, store, scale), strict=True)
        if word in claim.says
    }


def test_a_clear_lead_holds_and_none_does_not() -> None:
    assert verdicts(made_up(0.10), "KFL above FedRep") == {"holds"}
    assert verdicts(made_up(0.00), "KFL above FedRep") == {"does not hold"}
    assert verdicts(made_up(-0.05), "KFL above FedKD") == {"does not hold"}


def test_a_lead_far_below_the_papers_holds_in_part_and_says_so() -> None:
    store = made_up(0.012)
    some = judge([claim for claim in claims() if "above FedKD, CIFAR-10, 50" in claim.says], store, FULL)
    assert {found.verdict for found in some} == {"holds in part"}
    assert all("above the interval" in found.ours for found in some)


def test_similar_holds_only_where_it_is_similar() -> None:
    assert verdicts(made_up(0.0), "KFL similar to FedRep") == {"holds"}
    assert verdicts(made_up(0.05), "KFL similar to FedRep") == {"does not hold"}


def test_patterns_and_schedulers() -> None:
    store = made_up(0.05)
    assert verdicts(store, "Descend converges faster") == {"holds"}
    assert verdicts(store, "more accurate than round robin") == {"holds"}
    assert verdicts(store, "use more energy than both") == {"holds"}
    assert verdicts(store, "V = 0.01 ends within every device") == {"holds"}
    assert verdicts(store, "exhausts the budgets") == {"does not hold"}
    assert verdicts(store, "evenly") == {"holds"}
    assert verdicts(made_up(0.05, share=1.0), "V = 0.01 ends within") == {"does not hold"}
    assert verdicts(made_up(0.05, share=2.0), "exhausts the budgets") == {"holds"}


def test_budgets_are_per_device() -> None:
    store = made_up(0.05, share=0.5)  # all together use half of what they have
    assert verdicts(store, "within every device") == {"holds"}
    for name, found in store.rows.items():
        if name.endswith("seed3"):
            found |= {"devices_over_budget": 1, "largest_use_of_budget": 1.116}
    assert verdicts(store, "within every device") == {"does not hold"}
    assert "0 to 1 of 100 devices over budget; the worst uses 111.60 % of its own" in claims_table(
        claims(), store, FULL
    )


def test_the_fair_reading_stands_beside_what_is_early_by_construction() -> None:
    table = claims_table(claims(), made_up(0.05), FULL)
    patterns = [line for line in table.splitlines() if "converges faster than uniform" in line]
    schedulers = [line for line in table.splitlines() if "learn faster than both" in line]
    assert (len(patterns), len(schedulers)) == (4, 12)
    assert all("by construction" in line for line in patterns + schedulers)
    assert all("after half of the training: " in line for line in patterns)
    assert all("with half of the budget spent: " in line for line in schedulers)


def test_every_device_in_every_round_is_the_same_run_whatever_the_last_digits() -> None:
    one = {
        "algorithm": "kfl", "settings": {"rate": 0.05}, "dataset": "mnist", "widths": [8], "rounds": 5, "devices": 100,
        "devices_per_round": 100.0, "accuracy": 0.9, "curve": {"rounds": [5.0], "accuracy": [0.9], "bits": [1.0]},
    }  # fmt: skip
    other = {**one, "accuracy": 0.9001}
    rows = {"a": one, "b": other, "c": {**other, "devices_per_round": 99.0}, "d": {**other, "algorithm": "fedkd"}}
    store = Store(rows={f"{name} seed{seed}": row for name, row in rows.items() for seed in FULL.seeds})
    assert identical(store, FULL, "a", "b")
    assert not identical(store, FULL, "a", "c") and not identical(store, FULL, "a", "d")


def test_identical_runs_are_no_test_and_no_member_of_the_family() -> None:
    store, everything = made_up(0.05), claims()
    before = questions([claim for claim in everything if not claim.own], store, FULL)
    for name in [name for name in store.rows if " v0.01 kappa1e-28 " in name]:
        for policy in ("round-robin", "myopic", "v0.1"):
            twin = name.replace("v0.01", policy)
            store.rows[twin] = {**store.rows[name], "run": twin}
    found = dict(zip((claim.says for claim in everything), judge(everything, store, FULL), strict=True))
    at_28 = [one for says, one in found.items() if "V = 0.01 and 0.1 more accurate" in says and "1e-28" in says]
    assert {one.verdict for one in at_28} == {"identical runs"} and all("identical runs" in one.ours for one in at_28)
    trade_off = [one for says, one in found.items() if "A larger V uses more energy" in says]
    assert all("κ = 1e-28 identical runs; κ = 1e-27 " in one.ours for one in trade_off)
    # accuracy, speed and early energy of two V against two rivals; myopic's energy; the trade-off, twice. That V = 0.1
    # is the most accurate asks nothing new.
    lost = 4 * 3 * 4 + 2 + 4 * 2
    assert before - questions([claim for claim in everything if not claim.own], store, FULL) == lost


def made_up_differences(leads: dict[str, float]) -> tuple[list[Claim], Store]:
    """One claim for each lead, in points, with the same spread over the seeds."""
    store, made = Store(), []
    for name, lead in leads.items():
        made.append(
            Claim("here", name, "yes", "python -m reproduction claims", (Question(f"{name} a", f"{name} b", 0.2),))
        )
        for seed in FULL.seeds:
            for key, level in ((f"{name} a", lead / 100 + 0.001 * (seed - 2)), (f"{name} b", 0.0)):
                store.rows[run_key(key, seed, FULL)] = row(key, seed, level, 0, 0.5)
    return made, store


def test_the_number_of_questions_takes_verdicts_back() -> None:
    made, store = made_up_differences({"clear": 1.0, **{f"another {number}": 0.2 for number in range(200)}})
    (alone,) = judge(made[:1], store, FULL)
    together = judge(made, store, FULL)
    assert (alone.verdict, alone.alone) == ("holds", "holds")
    assert (together[0].verdict, together[0].alone) == ("holds in part", "holds")
    assert together[0].ours == alone.ours, "the plain interval is printed"
    assert "**holds in part** (for itself: holds)" in claims_table(made, store, FULL)
    assert "Holm's correction for 201 questions" in claims_table(made, store, FULL)


def test_our_questions_are_another_family_and_counted_apart() -> None:
    made, store = made_up_differences({"clear": 1.0, **{f"another {number}": 0.2 for number in range(200)}})
    apart = [made[0], *(replace(claim, own=True) for claim in made[1:])]
    assert judge(apart, store, FULL)[0].verdict == "holds"
    table = claims_table(apart, store, FULL)
    assert table.startswith("Claims of the paper, 1: 1 hold;") and "Questions of our own, 200: 0 hold;" in table


def test_a_question_asked_twice_is_one_question() -> None:
    made, store = made_up_differences({"clear": 1.0, "other": 0.5})
    again = replace(made[0], says="again", questions=(replace(made[0].questions[0], label="again"),))
    assert questions(made, store, FULL) == questions([*made, again], store, FULL) == 2


def test_nothing_is_judged_by_a_quick_look_or_without_runs() -> None:
    assert verdicts(made_up(0.1), "KFL above", QUICK) == {"cannot be judged"}
    store = made_up(0.1)
    for name in [name for name in store.rows if "apfl" in name]:
        del store.rows[name]
    assert verdicts(store, "more accurate than FedAvg, APFL") == {"cannot be judged"}


def test_the_sizes_of_uploads_hold() -> None:
    assert verdicts(Store(), "uploads") == {"holds"}


def test_the_table_has_a_row_with_a_number_and_a_command_for_every_claim() -> None:
    text = claims_table(claims(), made_up(0.1), FULL)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    rows = [line for line in rows if not line.startswith(("| where", "| ---"))]
    assert len(rows) == len(claims())
    assert all("`python -m reproduction" in line and "not run" not in line and "|  |" not in line for line in rows)


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
