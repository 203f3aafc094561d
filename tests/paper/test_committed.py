"""What is printed in the repository is what its results and its code say today."""

import re
from functools import cache
from pathlib import Path

import pytest

from kfl.paper import FIGURES, FULL, Store, claims
from kfl.paper.execute import wanted
from kfl.paper.tables import claims_table, figure_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "paper"


@cache
def results() -> Store:
    return Store.open(RESULTS)


def test_every_run_of_every_figure_is_there_in_the_setting_the_code_has_now():
    runs = wanted([build() for build in FIGURES.values()], FULL)
    missing = [name for name, experiment in runs.items() if not results().has(name, experiment.digest())]
    assert not missing and len(runs) > 1000


@pytest.mark.parametrize("name", FIGURES)
def test_the_table_of_a_figure_is_that_of_its_results(name):
    assert (RESULTS / f"{name}.md").read_text(encoding="utf-8") == figure_table(FIGURES[name](), results(), FULL)


def test_the_table_of_claims_is_that_of_the_results_and_the_readme_counts_it():
    table = claims_table(claims(), results(), FULL)
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == table
    holds, part, does_not, unsure, total = map(int, re.findall(r"\d+", table.splitlines()[0]))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Of {total} claims" in readme
    assert f"{holds} hold, {part} hold in part, {does_not} do not hold and {unsure} stay open" in readme
