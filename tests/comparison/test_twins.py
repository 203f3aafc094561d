"""What a comparison with twins makes of finished runs, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import kfl
from kfl.comparison import Comparison, Entry, ResultStore, Search, read
from kfl.comparison.entries import zero_upload_twins
from kfl.comparison.execution import Execution
from kfl.comparison.question import split_unfit
from kfl.comparison.rows import first_reach
from kfl.comparison.search import REPORTED_SEEDS
from kfl.comparison.twins import ENCODED_TWINS, TWINS
from kfl.core.errors import ConfigError

SEEDS = (0, 1, 2, 3, 4)
FINAL = {
    "local": [0.61, 0.60, 0.62, 0.65, 0.64],
    "fixed-knowledge": [0.70, 0.71, 0.72, 0.73, 0.74],
    "kfl": [0.701, 0.709, 0.722, 0.731, 0.737],
    "shared-stem": [0.72, 0.732, 0.739, 0.751, 0.76],
    "fedtgp": [0.65, 0.66, 0.68, 0.67, 0.69],
}


def test_twins_of_a_method_with_an_encoder_have_the_same_encoder(tmp_path):
    """Next to those that train on samples as they are, what a device makes of the encoder's numbers alone."""
    asked = kfl.Experiment(devices=6, rounds=1, model="linear", widths=None, algorithm="common-knowledge")
    found = kfl.compare({"common-knowledge": asked}, [0], tmp_path, twins=True)
    twins = {row.label for row in found.rows if row.twin}
    assert twins == {*TWINS, *ENCODED_TWINS}


def row(label, seed, accuracy, **more):
    """A finished run with evaluations after rounds 50, 100 and 200."""
    curve = {
        "rounds": [50.0, 100.0, 200.0],
        "accuracy": [accuracy - 0.10, accuracy - 0.02, accuracy],
        "joules": [25.0, 50.0, 100.0],
    }
    bits = {"kfl": 20_480, "shared-stem": 3_000, "fedtgp": 4_106}.get(label, 0)
    return {
        "digest": f"{label}-{seed}",
        "label": label,
        "algorithm": label,
        "scheduler": "uniform",
        "settings": {},
        "dataset": "digits",
        "devices": 100,
        "seed": seed,
        "rounds": 200,
        "devices_per_round": 10.0,
        "rounds_with_nobody": 0,
        "devices_over_budget": 0,
        "devices_never_chosen": 0,
        "why_nobody": None,
        "note": "",
        "accuracy": accuracy,
        "worst_tenth": accuracy / 2,
        "bits_up": bits * 2000,
        "bits_down": 2 * bits * 2000,
        "energy_j": 100.0,
        "time_s": 5.0,
        "classes": 10,
        "held_classes": 2.0,
        "curve": curve,
        **more,
    }


def study(final=None, **more):
    records = [row(label, seed, one) for label, ends in (final or FINAL).items() for seed, one in enumerate(ends)]
    return Comparison(tuple(records), twins=True, **more)


def text_of(found, condition=None):
    return " ".join(found.table(condition).notes)


def cell(found, column, label):
    cells = found.table().cells
    return cells[column][cells["method"].index(label)]


def test_gains_are_paired_differences_to_the_best_twin():
    found = study()
    for label in ("kfl", "shared-stem", "fedtgp", "local"):
        gain = found[label].difference
        test = stats.ttest_rel(FINAL[label], FINAL["fixed-knowledge"])
        low, high = test.confidence_interval(0.95)
        np.testing.assert_allclose([gain.mean, gain.low, gain.high], [np.mean(FINAL[label]) - 0.72, low, high])
    assert found["fixed-knowledge"].difference is None
    assert {one.reference for one in found.rows} == {"fixed-knowledge"}


def test_only_what_is_above_zero_after_the_correction_adds():
    found = study()
    assert {one.label for one in found.rows if one.adds} == {"shared-stem"}
    # Three questions: Holm reads the smallest p-value at 0.05/3.
    levels = sorted(found[label].level for label in ("kfl", "shared-stem", "fedtgp"))
    np.testing.assert_allclose(levels, [0.05 / 3, 0.05 / 2, 0.05])
    assert not found["fedtgp"].adds  # clearly different, but below


def small_gains(steps):
    """The stem a little above the best twin, the other two near it."""
    base = FINAL["fixed-knowledge"]
    return {
        **FINAL,
        "shared-stem": [value + step for value, step in zip(base, steps, strict=True)],
        "kfl": [value + (0.002, -0.002)[seed % 2] for seed, value in enumerate(base)],
        "fedtgp": [value + (0.01, -0.012)[seed % 2] for seed, value in enumerate(base)],
    }


def test_a_gain_that_only_a_plain_interval_shows_is_not_called_one():
    stem = study(small_gains((0.001, 0.009, 0.002, 0.008, 0.0)))["shared-stem"]
    assert 0.05 / 3 < stem.difference.p_value() < 0.1
    assert not stem.adds


def test_a_gain_that_the_correction_takes_away_is_perhaps_one():
    one = study(small_gains((0.004, 0.009, 0.005, 0.008, 0.001)))
    records = [{**line, "condition": place} for place in ("One condition", "Another") for line in one.records]
    found = Comparison(tuple(records), twins=True)
    stem = found["One condition", "shared-stem"]
    assert stem.difference.low > 0 and stem.may_add and not stem.adds
    assert "best twin? Perhaps, as only the interval before the correction is above zero: shared-stem" in text_of(
        found, "One condition"
    )
    cells = found.table("Another").cells
    assert cells["worth having?"][cells["method"].index("shared-stem")] == "perhaps"
    overview = found.tables()[0].cells
    assert overview["condition"] == ["One condition", "Another"]
    assert overview["shared-stem"][0].endswith("(✓)") and overview["best twin, %"][0] == "72.00 fixed-knowledge"
    assert list(overview)[2] == "shared-stem"  # on average the best


def test_the_price_is_per_device_and_round_and_class_means_have_two():
    found = study()
    ours = found["kfl"]
    assert (ours.bits_up_each, ours.bits_down_each) == (20_480, 40_960)
    assert ours.held_bits_up_each == 20_480 * 2 / 10 + 10
    stem = found["shared-stem"]
    assert stem.bits_up_each == 3_000 and stem.held_bits_up_each is None
    assert found["local"].bits_up_each == 0
    assert cell(found, "kbit up", "kfl") == "20.5 (4.11)"


def test_time_to_the_goal_is_interpolated_per_seed():
    rows = {one.label: one for one in study().rows_to("kfl")}
    rounds = []
    for stem, ours in zip(FINAL["shared-stem"], FINAL["kfl"], strict=True):
        rounds.append(np.interp(ours, [stem - 0.10, stem - 0.02, stem], [50, 100, 200]) / 200)
    assert rows["shared-stem"].goal_rounds == pytest.approx(np.mean(rounds))
    assert rows["shared-stem"].goal_joules == pytest.approx(np.mean(rounds))  # half a joule in each round
    assert rows["kfl"].goal_rounds == 1.0
    assert rows["fedtgp"].goal_rounds is None  # it never gets there


@pytest.mark.parametrize(("target", "expected"), [(0.3, 10.0), (0.4, 10.0), (0.5, 15.0), (0.6, 20.0), (0.61, None)])
def test_first_reach(target, expected):
    found = first_reach([10, 20, 30], [0.4, 0.6, 0.55], target)
    assert found == pytest.approx(expected) if expected is not None else found is None


def test_words_say_what_the_numbers_say():
    found = study(unfit={"lg": "Heads differ."})
    text = text_of(found)
    assert "best twin, which uploads nothing, is fixed-knowledge" in text
    assert "against the best twin? Yes: shared-stem; no: kfl; no, it is below: fedtgp." in text
    assert "Left out: lg. Heads differ." in text and "--search" in text
    assert found.table().cells["method"] == ["shared-stem", "kfl", "fedtgp", "fixed-knowledge", "local"]
    page = found.markdown("kfl compare --twins", heading="###")
    assert page.startswith("### digits: 100 devices") and "| shared-stem | 74.04" in page


def test_one_seed_judges_nothing():
    found = study().select(seeds=[3])
    assert not any(one.adds for one in found.rows)
    assert set(found.table().cells["worth having?"]) == {"–", "twin"}
    assert "One seed" in text_of(found)


def test_unfinished_methods_are_left_out_and_a_condition_without_a_twin_has_no_rows():
    found = study({label: ends for label, ends in FINAL.items() if label != "kfl"})
    assert "kfl" not in found.labels and cell(found, "shared-stem's accuracy after", "shared-stem") == "100 %"
    alone = study({label: ends for label, ends in FINAL.items() if label not in TWINS})
    assert alone.rows == [] and alone.tables() == []


def test_a_method_with_fewer_seeds_is_compared_over_those_and_named():
    whole = study()
    found = replace(whole, records=tuple(line for line in whole.records if line["digest"] != "fedtgp-2"))
    assert found["fedtgp"].difference.count == 4 and found["kfl"].difference.count == 5
    seeds = "Seeds: 0–4 (local, fixed-knowledge, kfl, shared-stem), 0, 1, 3, 4 (fedtgp)."
    assert seeds in found.unequal and str(found).index(seeds) < str(found).index("worth having?")


BASE = kfl.Experiment(devices=6, rounds=2)
TWO = [Entry(name, replace(BASE, algorithm=name, radio="paper-mnist")) for name in ("kfl", "local")]


def trials_in(folder, search, entries=TWO):
    """The trials that a comparison plans, by label, each with the digest of every seed; nothing is run."""
    found = read(entries, [0], folder, twins=True, search=search)
    assert found.records == ()
    from kfl.comparison.question import Question

    plan = Question.of(entries, [0], None, reference=None, twins=True, search=search).plan(ResultStore.open(folder))
    return plan.trials


def test_every_entry_has_the_same_search_on_other_seeds(tmp_path):
    trials = trials_in(tmp_path, Search())
    counts = {label: sum(one.label == label for one in trials) for label in ("kfl", "local")}
    assert set(counts.values()) == {9}
    assert not {seed for one in trials for seed in one.runs} & REPORTED_SEEDS
    with pytest.raises(ConfigError, match="seeds"):
        Search(seeds=(4, 100))


def test_the_search_takes_the_best_trial_and_a_condition_may_borrow_it(tmp_path):
    from kfl.comparison.question import Question

    entries = [replace(one, condition="a") for one in TWO]
    entries += [replace(one, condition="b", search_in="a", experiment=replace(one.experiment, rounds=9)) for one in TWO]
    asked = Question.of(entries, [0], None, reference=None, twins=True, search=Search())
    store = ResultStore(tmp_path)
    trials = asked.plan(store).trials
    assert {one.condition for one in trials} == {"a"}
    best = {"learning_rate": 0.02, "knowledge_weight": 0.1}
    for one in trials:
        for digest in one.runs.values():
            store.rows[digest] = {"digest": digest, "accuracy": 0.9 if one.searched == best else 0.5}
    chosen = {(one.condition, one.label): one.experiment for one in asked.chosen(store)}
    for place in "ab":
        found = chosen[place, "kfl"].algorithm
        assert (found.learning_rate, found.knowledge_weight) == (0.02, 0.1)
    assert chosen["b", "kfl"].rounds == 9
    for one in trials:
        if one.searched == best:
            for digest in one.runs.values():
                del store.rows[digest]  # it diverged
    found = {(one.condition, one.label): one.experiment.algorithm for one in asked.chosen(store)}
    assert (found["a", "kfl"].learning_rate, found["a", "kfl"].knowledge_weight) != (0.02, 0.1)
    assert [one.experiment for one in asked.chosen(ResultStore(tmp_path))] == [one.experiment for one in entries]


def test_a_method_without_a_pull_is_asked_against_its_own_twin_too():
    """An averaged stem is far above training alone, and far below a twin with a pull: two answers to two questions."""
    ends = {
        "local": [0.50, 0.51, 0.52, 0.50, 0.53],
        "fixed-knowledge": [0.70, 0.71, 0.72, 0.73, 0.74],
        "simplex": [0.60, 0.61, 0.62, 0.63, 0.64],
        "lg-fedavg": [0.551, 0.562, 0.573, 0.549, 0.58],
        "shared-stem": [0.72, 0.732, 0.739, 0.751, 0.76],
        "kfl": [0.701, 0.709, 0.722, 0.731, 0.737],
    }
    records = study(ends).records
    as_simplex = {"algorithm": "fixed-knowledge", "settings": {"targets": "simplex"}}
    records = [{**line, **as_simplex} if line["label"] == "simplex" else line for line in records]
    pulled = [{**row("none", seed, 0.56), "algorithm": "shared-stem", "settings": {"pull": "none"}} for seed in SEEDS]
    found = Comparison((*records, *pulled), twins=True)
    stem, none = found["lg-fedavg"], found["none"]
    assert (stem.own_twin, found["shared-stem"].own_twin, none.own_twin) == ("local", "fixed-knowledge", "local")
    assert found["kfl"].own_twin == "" and found["kfl"].own_difference is None  # self-knowledge was not run
    np.testing.assert_allclose(stem.own_difference.mean, np.mean(np.subtract(ends["lg-fedavg"], ends["local"])))
    assert (stem.verdict(own=True), stem.verdict()) == ("yes", "no")
    assert cell(found, "uploads add?", "lg-fedavg") == "yes" and cell(found, "worth having?", "lg-fedavg") == "no"
    assert cell(found, "minus its own twin, points [95 %]", "lg-fedavg").endswith(", local")
    assert cell(found, "uploads add?", "kfl") == "–"
    assert "own twin? Yes: shared-stem, lg-fedavg, none" in text_of(found)


def test_what_fits_networks_is_judged_on_the_encoders_numbers():
    """The first layer has 784 · 512 values on digits and 16 · 512 on an encoding of 16 numbers."""
    base = kfl.Experiment(devices=4, widths=(8,), model="mlp", algorithm=kfl.SharedStem(budget_bits=100_000))
    entries = [Entry("plain", base), Entry("encoded", replace(base, encoder="random-16"))]
    kept, unfit = split_unfit(entries, Execution())
    assert [entry.label for entry in kept] == ["encoded"] and list(unfit) == ["plain"]


def test_named_twins_may_stand_beside_entries_that_differ_in_more_than_the_algorithm():
    base = kfl.Experiment(devices=4, rounds=2)
    odd = [Entry("kfl", base), Entry("long", replace(base, rounds=9))]
    with pytest.raises(ConfigError, match="or name the twins as entries"):
        zero_upload_twins(odd, TWINS)
    assert zero_upload_twins([*odd, Entry("local", replace(base, algorithm=kfl.Local()))], TWINS) == []
