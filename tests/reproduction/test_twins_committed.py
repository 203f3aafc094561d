"""The tables of the documentation are what the commands below them make of the committed results."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from kfl.comparison.records import read_records
from reproduction.__main__ import main
from reproduction.twin_conditions import published

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "sharing"
PAGES = sorted(RESULTS.rglob("sharing.md"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.parent.relative_to(ROOT)) for page in PAGES])
def test_a_table_is_that_of_the_committed_results(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text, command = page.read_text(encoding="utf-8").rstrip("`\n").rsplit("```\n", 1)
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "reproduction", "twins"] and "--from" in words
    words[words.index("--out") + 1] = str(tmp_path)
    assert main(words[3:]) == 0
    assert (tmp_path / "sharing.md").read_text(encoding="utf-8").rsplit("```\n", 2)[0] == text


def test_results_are_of_the_published_conditions_and_seeds():
    """A result is found by its name and stands for the settings that a run of this name has today."""
    conditions = published()
    titles = {one.title: one for one in conditions.values()}
    rows = read_records(RESULTS)
    assert len(rows) > 100
    for row in rows:
        name = row.get("run", "")  # of an earlier version, with the condition's word; later lines have its title
        place = name.removeprefix("search in ").partition(",")[0]
        experiment = (conditions[place] if place else titles[row["condition"]]).experiment
        assert (row["dataset"], row["rounds"], row["devices"]) == (experiment.dataset, experiment.rounds, 100), row
        assert not name or (row["seed"] >= 100) == name.startswith("search in ")
        assert row["devices_per_round"] == 10.0  # the band and the deadline shut no device out


def test_published_conditions_are_those_of_the_question():
    conditions = published()
    assert len(conditions) == 12 and all(one.experiment.distinct_classes for one in conditions.values())
    cifar = [one.experiment for name, one in conditions.items() if name.startswith("cifar10") and "new" not in name]
    assert [(one.classes_per_device, one.samples_per_device, one.rounds) for one in cifar] == [
        (2, None, 200),
        (5, None, 200),
        (10, None, 200),
        (2, 50, 200),
        (5, 50, 200),
        (2, None, 600),
    ]
    for one in conditions.values():
        one.experiment.validate()
        assert one.searched is None or conditions[one.searched.name] == one.searched
