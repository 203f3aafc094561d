"""What is printed in the repository is what its results and its code say today."""

import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kfl.algorithms import ALGORITHMS
from kfl.comparison import ResultStore
from kfl.comparison.search import equal_trials
from kfl.core.config import from_table
from kfl.experiment import Experiment
from kfl.scheduling import Uniform
from reproduction.claims import claims
from reproduction.execute import wanted
from reproduction.figures import FIGURES, GROUPS, ROUND_ROBIN, coefficients, policies, policy_key
from reproduction.results import Store
from reproduction.setting import DATASETS, FULL, NAMES, Figure, tuned
from reproduction.tables import claims_table, figure_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "paper"


@cache
def results() -> Store:
    return Store.open(RESULTS, wanted([build() for build in FIGURES.values()], FULL))


def committed_figures() -> list[str]:
    """Every figure but those that are made only where they are asked for, and those too once they were."""
    return [name for name, build in FIGURES.items() if name in GROUPS["all"] or made(build())]


def made(figure: Figure) -> bool:
    return any(results().seeds(line, FULL) for line in figure.lines(FULL))


def test_every_run_of_every_figure_is_there_in_the_setting_the_code_has_now():
    runs = wanted([FIGURES[name]() for name in committed_figures()], FULL)
    assert not set(runs) - set(results().rows) and len(runs) > 1000


def test_there_are_no_results_that_no_figure_shows():
    runs = wanted([FIGURES[name]() for name in committed_figures()], FULL)
    assert set(ResultStore.open(RESULTS).rows) == {experiment.digest() for experiment in runs.values()}


@pytest.mark.parametrize("name", FIGURES)
def test_the_table_of_a_figure_is_that_of_its_results(name):
    if name in committed_figures():
        assert (RESULTS / f"{name}.md").read_text(encoding="utf-8") == figure_table(FIGURES[name](), results(), FULL)
    else:
        assert not (RESULTS / f"{name}.md").exists()


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("classes", [2, 3])
def test_round_robin_has_the_size_of_the_papers_rule(dataset, classes):
    """The most that another scheduler chose over all rounds, over the rounds; mean over seeds, rounded up."""
    for kappa in coefficients(dataset):
        others = [policy for policy in policies(dataset, kappa) if policy != "round-robin"]
        runs = [results().seeds(policy_key(dataset, classes, policy, kappa), FULL).values() for policy in others]
        largest = np.max([[row["devices_per_round"] for row in rows] for rows in runs], axis=0)
        assert len(largest) == len(FULL.seeds)
        assert ROUND_ROBIN[dataset][kappa] == math.ceil(largest.mean() - 1e-9)


def test_the_table_of_claims_is_that_of_the_results_and_the_readme_counts_it():
    table = claims_table(claims(), results(), FULL)
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == table
    total, holds, part, does_not, unsure, identical = map(int, re.findall(r"\d+", table.splitlines()[0]))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Of {total} claims" in readme
    assert f"{holds} hold, {part} hold in part, {does_not} do not hold and {unsure} stay open" in readme
    assert not identical or f"{identical} compare identical runs" in readme


SEARCHED = [name for name in ALGORITHMS if name in NAMES]
"""The algorithms of the paper's figures and of our own next to them."""


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_the_search_found_is_the_best_of_its_trials(dataset):
    """As many trials for each algorithm, all of them committed, on a seed that is not reported."""
    trials = map(json.loads, (ROOT / f"docs/results/trials-{dataset}.jsonl").read_text(encoding="utf-8").splitlines())
    by_algorithm = {name: [] for name in SEARCHED}
    for trial in trials:
        by_algorithm[trial["algorithm"]].append(trial)
        assert not set(trial["seeds"]) & set(FULL.seeds)
    for name, planned in equal_trials({name: ALGORITHMS[name]() for name in SEARCHED}).items():
        made = by_algorithm[name]
        assert [trial["searched"] for trial in made] == [dict(trial.changed) for trial in planned]
        most = max(trial["mean"] for trial in made)
        best = [from_table(ALGORITHMS[name], trial["settings"]) for trial in made if trial["mean"] == most]
        assert tuned(name, dataset) in best


LEARNING = re.compile(r"\w+ m(?P<classes>\d) (equal|mixed) \S+ uniform(?P<count>\d+) (as set|tuned) seed\d")


def test_a_result_is_found_by_the_settings_it_was_made_with():
    """The digest of a run that did not change must not change: it is how its result is found again."""
    checked = set()
    for name, row in results().rows.items():
        key = LEARNING.fullmatch(name)
        if key is None:
            continue
        experiment = Experiment(
            dataset=row["dataset"],
            devices=row["devices"],
            rounds=row["rounds"],
            seed=row["seed"],
            classes_per_device=int(key["classes"]),
            distinct_classes=False,
            widths=tuple(row["widths"]),
            algorithm=from_table(ALGORITHMS[row["algorithm"]], row["settings"]),
            scheduler=Uniform(int(key["count"])),
            radio="none",
            evaluate_every=5,
        )
        assert experiment.digest() == row["digest"], name
        checked.add(row["algorithm"])
    assert checked == set(SEARCHED)
