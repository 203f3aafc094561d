"""What a study of sharing makes of finished runs, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kfl.comparison.named_store import ResultStore
from kfl.sharing.answer import first_reach
from kfl.sharing.tables import overview
from scipy import stats

from kfl.algorithms import Kfl, Local
from kfl.comparison.search import REPORTED_SEEDS
from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.sharing import TWINS, Condition, Study, answers, chosen, columns, page, sentences

SEEDS = (0, 1, 2, 3, 4)
FINAL = {
    "local": [0.61, 0.60, 0.62, 0.65, 0.64],
    "fixed-knowledge": [0.70, 0.71, 0.72, 0.73, 0.74],
    "kfl": [0.701, 0.709, 0.722, 0.731, 0.737],
    "shared-stem": [0.72, 0.732, 0.739, 0.751, 0.76],
    "fedtgp": [0.65, 0.66, 0.68, 0.67, 0.69],
}


def row(label, seed, accuracy, **more):
    """A finished run with evaluations after rounds 50, 100 and 200."""
    curve = {
        "rounds": [50.0, 100.0, 200.0],
        "accuracy": [accuracy - 0.10, accuracy - 0.02, accuracy],
        "joules": [25.0, 50.0, 100.0],
    }
    bits = {"kfl": 20_480, "shared-stem": 3_000, "fedtgp": 4_106}.get(label, 0)
    return {
        "digest": "x",
        "algorithm": label,
        "settings": {},
        "seed": seed,
        "rounds": 200,
        "devices_per_round": 10.0,
        "accuracy": accuracy,
        "bits_up": bits * 2000,
        "bits_down": 2 * bits * 2000,
        "energy_j": 100.0,
        "classes": 10,
        "held_classes": 2.0,
        "curve": curve,
        **more,
    }


@pytest.fixture
def study():
    return Study([Condition("one", "One condition", Experiment())], chosen(list(FINAL)), SEEDS)


@pytest.fixture
def store(study, tmp_path):
    found = ResultStore(tmp_path)
    condition = study.conditions[0]
    for label, finals in FINAL.items():
        for seed, accuracy in zip(SEEDS, finals, strict=True):
            found.rows[study.run_name(condition, label, seed)] = row(label, seed, accuracy)
    return found


def test_gains_are_paired_differences_to_the_best_twin(study, store):
    (answer,) = answers(study, store)
    assert (answer.best_twin, answer.seeds) == ("fixed-knowledge", SEEDS)
    for label in ("kfl", "shared-stem", "fedtgp", "local"):
        found = answer[label].gain
        test = stats.ttest_rel(FINAL[label], FINAL["fixed-knowledge"])
        low, high = test.confidence_interval(0.95)
        np.testing.assert_allclose([found.mean, found.low, found.high], [np.mean(FINAL[label]) - 0.72, low, high])
    assert answer["fixed-knowledge"].gain is None


def test_only_what_is_above_zero_after_the_correction_shares(study, store):
    (answer,) = answers(study, store)
    assert {one.label for one in answer.standings if one.shares} == {"shared-stem"}
    # Three questions: Holm reads the smallest p-value at 0.05/3.
    levels = sorted(answer[label].level for label in ("kfl", "shared-stem", "fedtgp"))
    np.testing.assert_allclose(levels, [0.05 / 3, 0.05 / 2, 0.05])
    assert not answer["fedtgp"].shares  # clearly different, but below


def test_a_gain_that_only_a_plain_interval_shows_is_not_called_sharing(study, store):
    """One method among three with p between 0.05/3 and 0.05, the others far from zero either way."""
    condition, base = study.conditions[0], FINAL["fixed-knowledge"]
    for seed, step in zip(SEEDS, (0.001, 0.009, 0.002, 0.008, 0.0), strict=True):
        store.rows[study.run_name(condition, "shared-stem", seed)]["accuracy"] = base[seed] + step
        store.rows[study.run_name(condition, "fedtgp", seed)]["accuracy"] = base[seed] + (0.01, -0.012)[seed % 2]
    (answer,) = answers(study, store)
    stem = answer["shared-stem"]
    assert 0.05 / 3 < stem.gain.p_value() < 0.1
    assert not stem.shares


def test_the_price_is_per_device_and_round_and_class_means_have_two(study, store):
    (answer,) = answers(study, store)
    kfl = answer["kfl"]
    assert (kfl.bits_up, kfl.bits_down) == (20_480, 40_960)
    assert kfl.held_bits_up == 20_480 * 2 / 10 + 10
    assert answer["shared-stem"].bits_up == 3_000 and answer["shared-stem"].held_bits_up is None
    assert answer["local"].bits_up == 0
    assert columns(answer)["kbit up"][columns(answer)["method"].index("kfl")] == "20.5 (4.11)"


def test_time_to_kfls_accuracy_is_interpolated_per_seed(study, store):
    (answer,) = answers(study, store)
    rounds = []
    for stem, kfl in zip(FINAL["shared-stem"], FINAL["kfl"], strict=True):
        rounds.append(np.interp(kfl, [stem - 0.10, stem - 0.02, stem], [50, 100, 200]) / 200)
    assert answer["shared-stem"].rounds_to_reference == pytest.approx(np.mean(rounds))
    assert answer["shared-stem"].joules_to_reference == pytest.approx(np.mean(rounds))  # half a joule in each round
    assert answer["kfl"].rounds_to_reference == 1.0
    assert answer["fedtgp"].rounds_to_reference is None  # it never gets there


@pytest.mark.parametrize(("target", "expected"), [(0.3, 10.0), (0.4, 10.0), (0.5, 15.0), (0.6, 20.0), (0.61, None)])
def test_first_reach(target, expected):
    found = first_reach([10, 20, 30], [0.4, 0.6, 0.55], target)
    assert found == pytest.approx(expected) if expected is not None else found is None


def test_a_gain_that_the_correction_takes_away_is_perhaps_one(study, store):
    condition, base = study.conditions[0], FINAL["fixed-knowledge"]
    for seed, step in zip(SEEDS, (0.004, 0.009, 0.005, 0.008, 0.001), strict=True):
        store.rows[study.run_name(condition, "shared-stem", seed)]["accuracy"] = base[seed] + step
        store.rows[study.run_name(condition, "kfl", seed)]["accuracy"] = base[seed] + (0.002, -0.002)[seed % 2]
        store.rows[study.run_name(condition, "fedtgp", seed)]["accuracy"] = base[seed] + (0.01, -0.012)[seed % 2]
    wider = replace(study, conditions=[condition, replace(condition, name="two", title="Another")])
    for name, row in list(store.rows.items()):
        store.rows[name.replace("one,", "two,")] = row
    answer, other = answers(wider, store)
    stem = answer["shared-stem"]
    assert stem.gain.low > 0 and stem.may_share and not stem.shares
    text = " ".join(sentences(answer, 6, {}, searched=True))
    assert "Shared-stem is above it, but not after the correction" in text
    assert columns(answer)["shares?"][columns(answer)["method"].index("shared-stem")] == "perhaps"
    cells = overview([answer, other])
    assert cells["condition"] == ["One condition", "Another"]
    assert cells["shared-stem"][0].endswith("(✓)") and cells["best twin, %"][0] == "72.00 fixed-knowledge"
    assert list(cells)[2] == "shared-stem"  # on average the best


def test_words_say_what_the_numbers_say(study, store):
    (answer,) = answers(study, store)
    text = " ".join(sentences(answer, 3, {"lg": "Heads differ."}, searched=False))
    assert "best twin, which uploads nothing, is fixed-knowledge" in text
    assert "What shared-stem uploads adds something; kfl cannot be told from it; fedtgp ends below it." in text
    assert "Left out: lg. Heads differ." in text and "--search" in text
    assert columns(answer)["method"] == ["shared-stem", "kfl", "fedtgp", "fixed-knowledge", "local"]
    written = page([answer], {}, "kfl sharing", searched=True)
    assert "### One condition" in written and "--search" not in written and "| shared-stem | 74.04" in written


def test_one_seed_judges_nothing(study, store):
    one = replace(study, seeds=(3,))
    (answer,) = answers(one, store)
    assert not any(standing.shares for standing in answer.standings)
    assert set(columns(answer)["shares?"]) == {"–", "twin"}
    assert any("One seed" in note for note in sentences(answer, 3, {}, searched=False))


def test_unfinished_methods_are_left_out_and_a_condition_without_a_twin_has_no_answer(study, store):
    condition = study.conditions[0]
    for seed in SEEDS:
        del store.rows[study.run_name(condition, "kfl", seed)]
    (answer,) = answers(study, store)
    assert "kfl" not in {one.label for one in answer.standings}
    assert answer["shared-stem"].rounds_to_reference is None
    for label in ("local", "fixed-knowledge"):
        for seed in SEEDS:
            del store.rows[study.run_name(condition, label, seed)]
    assert answers(study, store) == []


def test_a_method_with_fewer_seeds_is_compared_over_those_and_named(study, store):
    del store.rows[study.run_name(study.conditions[0], "fedtgp", 2)]
    (answer,) = answers(study, store)
    assert answer.seeds == SEEDS and answer["fedtgp"].gain.count == 4 and answer["kfl"].gain.count == 5
    notes = sentences(answer, 3, {}, searched=False)
    assert "With fewer seeds, because a run diverged or is not finished: fedtgp (4)." in notes


def test_a_list_of_methods_needs_a_twin_and_names_that_exist():
    with pytest.raises(ConfigError, match="a twin that uploads nothing: local, self-knowledge"):
        chosen(["kfl", "shared-stem"])
    with pytest.raises(ConfigError, match=r"methods .*'fedprox'.* one of kfl, shared-stem"):
        chosen(["fedprox", "local"])
    with pytest.raises(ConfigError, match="a class that derives from"):
        chosen(["math:pi", "local"])
    own = chosen(["kfl.algorithms.fedproto:FedProto", "fedavg", *TWINS], Local(learning_rate=0.2))
    assert {algorithm.learning_rate for algorithm in own.values()} == {0.2}
    assert Kfl().knowledge_weight == chosen(["kfl", "local"], Local())["kfl"].knowledge_weight


def test_every_method_has_the_same_search_on_other_seeds(study):
    searched = replace(study, searched=True)
    names = list(searched.search_runs())
    counts = {label: sum(f", {label}, " in name for name in names) for label in FINAL}
    assert set(counts.values()) == {9 * 2}
    assert not {experiment.seed for experiment in searched.search_runs().values()} & REPORTED_SEEDS
    with pytest.raises(ConfigError, match="seeds"):
        replace(study, searched=True, search_seeds=(4, 100))


def test_the_search_takes_the_best_trial_and_a_condition_may_borrow_it(store):
    first = Condition("a", "A", Experiment())
    conditions = [first, Condition("b", "B", Experiment(rounds=9), searched=first)]
    study = Study(conditions, chosen(["kfl", "local"]), (0,), searched=True)
    experiments = study.search_runs()
    assert all(name.startswith("search in a, ") for name in experiments)
    for name, experiment in experiments.items():
        good = experiment.algorithm.learning_rate == 0.02 and "weight=0.1" in name
        store.rows[name] = {"accuracy": 0.9 if good else 0.5}
    found = study.found(store)
    for name in "ab":
        assert (found[name]["kfl"].learning_rate, found[name]["kfl"].knowledge_weight) == (0.02, 0.1)
    for name in [name for name in experiments if "kfl, learning_rate=0.02 knowledge_weight=0.1" in name]:
        del store.rows[name]  # it diverged
    assert (
        study.found(store)["a"]["kfl"].learning_rate != 0.02 or study.found(store)["a"]["kfl"].knowledge_weight != 0.1
    )
    assert study.found(ResultStore(store.folder))["b"] == dict(study.methods)  # nothing was found
    runs = study.runs(found)
    assert runs["b, kfl, searched, seed 0"].algorithm.knowledge_weight == 0.1
    assert runs["b, kfl, searched, seed 0"].rounds == 9
