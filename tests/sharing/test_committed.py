"""The tables of the documentation are what the commands below them make of the committed results."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kfl.cli.main import main
from kfl.comparison.named_store import ResultStore
from kfl.sharing import published

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "sharing"
PAGES = sorted(RESULTS.rglob("sharing.md"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.parent.relative_to(ROOT)) for page in PAGES])
def test_a_table_is_that_of_the_committed_results(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text, command = page.read_text(encoding="utf-8").rstrip("`\n").rsplit("```\n", 1)
    words = shlex.split(command)
    assert words[:2] == ["kfl", "sharing"] and "--from" in words
    words[words.index("--out") + 1] = str(tmp_path)
    assert main(words[1:]) == 0
    assert (tmp_path / "sharing.md").read_text(encoding="utf-8").rsplit("```\n", 2)[0] == text


def test_results_are_of_the_published_conditions_and_seeds():
    """A result is found by its name and stands for the settings that a run of this name has today."""
    conditions = published()
    rows = ResultStore.open(RESULTS).rows
    assert len(rows) > 100
    for name, row in rows.items():
        place = name.removeprefix("search in ").partition(",")[0]
        experiment = conditions[place].experiment
        assert (row["dataset"], row["rounds"], row["devices"]) == (experiment.dataset, experiment.rounds, 100), name
        assert (row["seed"] >= 100) == name.startswith("search in ")
        assert row["devices_per_round"] == 10.0  # the band and the deadline shut nobody out
