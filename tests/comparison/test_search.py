"""The search is the same size for all, starts where all are, and chooses the best."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import kfl
from kfl.algorithms import ALGORITHMS, FedRep, Kfl, Local
from kfl.algorithms.base import require
from kfl.cli.main import main
from kfl.comparison import SCHEDULER_SET, Comparison, choose_schedulers
from kfl.comparison.search import (
    LEARNING_RATES,
    Outcome,
    Search,
    Trial,
    at_the_edge,
    best,
    equal_trials,
    judge,
    more_rates,
)
from kfl.comparison.statistics import Spread
from kfl.core.errors import ConfigError
from kfl.scheduling import serve
from tests.reference.runs import data


def test_every_algorithm_gets_as_many_different_trials():
    found = equal_trials({name: cls() for name, cls in ALGORITHMS.items()})
    for name, trials in found.items():
        # What takes no training steps has no learning rate to try.
        values = ALGORITHMS[name].main_parameter or ("", (None,))
        assert len({trial.algorithm for trial in trials}) == (9 if ALGORITHMS[name].trains else len(values[1]))
        for trial in trials:
            trial.algorithm.validate()
            assert trial.algorithm.name == name
            assert all(getattr(trial.algorithm, field) == value for field, value in trial.changed.items())
        if name != "fedrep":  # whose default, as many steps as local_steps, is the 5 that is tried
            assert ALGORITHMS[name]() in [trial.algorithm for trial in trials]


def test_declared_parameters_exist_and_their_values_are_allowed():
    for cls in ALGORITHMS.values():
        if cls.main_parameter is not None:
            field, values = cls.main_parameter
            assert len(values) == 3
            for value in values:
                cls(**{field: value}).validate()


@dataclass(frozen=True)
class Halting(Local):
    """Local training whose last steps are left out; some must remain."""

    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("left_out", (1, 3, 4))
    left_out: int = 0

    def check(self):
        require(self.left_out < self.local_steps, "left_out", self.left_out, "below local_steps")


def test_values_an_algorithm_refuses_are_replaced_by_learning_rates():
    found = equal_trials({"kfl": Kfl(), "halting": Halting(local_steps=2)})  # it cannot leave out 3 or 4
    assert len(found["halting"]) == len(found["kfl"]) == 9
    assert len({trial.algorithm.learning_rate for trial in found["halting"]}) == 9


def test_fedreps_search_is_of_the_heads_steps_the_bodys_are_those_of_the_others():
    trials = equal_trials({"kfl": Kfl(), "fedrep": FedRep()})["fedrep"]
    pairs = {(trial.algorithm.learning_rate, trial.algorithm.steps()) for trial in trials}
    assert pairs == {(rate, (head, 5)) for rate in LEARNING_RATES for head in (1, 5, 10)}


@pytest.mark.parametrize("count", [3, 4, 5, 9, 30])
def test_more_rates_keep_the_given_ones_and_never_repeat(count):
    found = more_rates(LEARNING_RATES, count)
    assert len(found) == len(set(found)) == count
    assert found == sorted(found)
    assert set(LEARNING_RATES) <= set(found)
    assert min(found) >= min(LEARNING_RATES) / 2
    assert max(found) <= max(LEARNING_RATES) * 2


def test_one_learning_rate_is_enough():
    found = equal_trials({"kfl": Kfl(), "local": Local()}, [0.05])
    assert [len(trials) for trials in found.values()] == [3, 3]
    assert [trial.algorithm.learning_rate for trial in found["local"]] == [0.05, 0.025, 0.1]


def test_reported_seeds_are_refused_unless_insisted_on():
    with pytest.raises(ConfigError, match=r"seeds is '3,4'.*--allow-report-seeds"):
        Search([3, 4, 100])
    Search([3], allow_report_seeds=True)
    Search([5, 100])


@pytest.mark.parametrize("rates", [[], [0.1, -1.0], [float("nan")], [float("inf")]])
def test_learning_rates_that_cannot_work_are_refused(rates):
    with pytest.raises(ConfigError, match="learning_rates"):
        equal_trials({"kfl": Kfl()}, rates)


def test_the_highest_mean_wins_and_the_edge_is_named():
    trials = equal_trials({"local": Local()}, [0.01, 0.02, 0.05])["local"]
    outcomes = [
        judge(trial, accuracies) for trial, accuracies in zip(trials, [[0.5, 0.7], [0.8, 0.6], [0.9, 0.4]], strict=True)
    ]
    assert outcomes[0].accuracy.mean == pytest.approx(0.6)
    assert best(outcomes) is outcomes[1]
    assert at_the_edge(outcomes[1], outcomes) is None
    assert at_the_edge(outcomes[2], outcomes) == "learning_rate"
    tie = Outcome(Trial(Local(), {}), Spread(0.7, None, 1))
    assert best([outcomes[1], tie]) is outcomes[1]


class FirstDevice(kfl.Uniform):
    """Takes only device 0, so that no other learns."""

    def decide(self, state, observation):
        return serve(observation, np.arange(observation.size) == 0, np.ones(observation.size))


SET = {"one": FirstDevice(count=1), "all": kfl.AllDevices(), "too many": kfl.Uniform(count=50)}


def test_every_entry_gets_the_scheduler_that_taught_it_most(tmp_path):
    base = kfl.Experiment(devices=5, rounds=4, widths=(8,), radio="paper-mnist", hard_budget=True)
    entries = {"local": replace(base, algorithm="local"), "kfl": base}
    chosen, names = choose_schedulers(entries, [100, 101], tmp_path, schedulers=SET, dataset=data())
    assert names == ["all", "all"] and [one.label for one in chosen] == ["local", "kfl"]
    assert [one.experiment for one in chosen] == [replace(one, scheduler=SET["all"]) for one in entries.values()]
    trials = Comparison.load(tmp_path)
    assert {row.label for row in trials.rows} == {f"{label}, {name}" for label in entries for name in ("one", "all")}
    assert trials.seeds == [100, 101]
    for row in (trials["local, one"], trials["kfl, one"]):
        assert row.accuracy.mean < trials[row.label.replace("one", "all")].accuracy.mean


def test_schedulers_are_searched_with_hard_budgets_and_on_other_seeds():
    soft = kfl.Experiment(devices=5, rounds=1, radio="nb-iot")
    with pytest.raises(ConfigError, match="with soft budgets the scheduler that overdraws most would win"):
        choose_schedulers({"kfl": soft})
    with pytest.raises(ConfigError, match="seeds 0 to 4 are those that are reported"):
        choose_schedulers({"kfl": replace(soft, hard_budget=True)}, [3])
    assert len(SCHEDULER_SET) == 7 and {"dual", "least-energy"} <= {one.name for one in SCHEDULER_SET.values()}


def test_command_gives_each_row_its_best_scheduler(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--algorithms", "kfl,local", "--devices", "5", "--rounds", "2", "--widths", "8", "--workers", "1"]
    more = ["--samples-per-device", "10", "--seeds", "0", "--search-seeds", "100", "--out", "c"]
    assert main(["compare", *words, *more, "--search-schedulers"]) == 0
    assert "The best of 7 schedulers for each, on seeds 100: kfl " in " ".join(capsys.readouterr().out.split())
    assert main(["compare", *words, "--search-seeds", "100"]) == 2


def test_a_grid_widens_while_its_best_trial_sits_at_an_edge(tmp_path):
    """Rates far too small: every widening doubles the largest, and the numbers of trials are said to differ."""
    base = kfl.Experiment(devices=6, rounds=2, widths=(8,), samples_per_device=20, radio="paper-mnist")
    entries = {"local": replace(base, algorithm=kfl.Local()), "fixed": replace(base, algorithm=kfl.FixedKnowledge())}
    search = kfl.comparison.Search(seeds=[100], rates=[0.001, 0.002, 0.004])
    found = kfl.compare(entries, [0], tmp_path / "c", search=search)
    rates = {
        label: sorted({one.trial.changed["learning_rate"] for one in some})
        for (_, label), some in found.outcomes.items()
    }
    assert rates["local"][:3] != rates["local"] and max(rates["local"]) > 0.008
    again = kfl.comparison.read(entries, [0], tmp_path / "c", search=search)
    count = {label: len(some) for (_, label), some in again.outcomes.items()}
    assert count == {label: len(some) for (_, label), some in found.outcomes.items()}
    if len(set(count.values())) > 1:
        assert any(line.startswith("Trials of the search:") for line in found.unequal)
    store = kfl.comparison.ResultStore.open(tmp_path / "c")
    assert kfl.comparison.Comparison.load(tmp_path / "c").best == found.best and len(store.rows) >= sum(count.values())
