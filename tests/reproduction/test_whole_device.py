"""The tables on the page about the whole device are those of the committed results."""

from pathlib import Path

import pytest

from kfl.comparison.records import read_lines
from reproduction.energy.whole_device import RUNS, SEEDS, settings, tables

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", ["whole-device-joules.md", "whole-device-runs.md"])
def test_a_table_shows_what_was_measured(name: str) -> None:
    assert (RESULTS / name).read_text(encoding="utf-8") == tables(RESULTS)[name]


def test_every_setting_and_seed_was_run_as_it_would_be_today() -> None:
    rows = {
        (row["setting"], row["seed"]): row["digest"] for row in read_lines(RESULTS / RUNS, "the study", ("digest",))
    }
    wanted = {(one.key, seed): one.experiment(seed).digest() for one in settings() for seed in SEEDS}
    assert rows == wanted
