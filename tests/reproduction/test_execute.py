"""Running the figures' experiments: nothing twice, in shards, the same numbers again; tables and pictures from them."""

import json
import sys
from dataclasses import replace

import pytest

import kfl
from kfl.comparison import Comparison, Execution, Shard
from kfl.core.errors import ConfigError, RunFolderError
from kfl.runfolder import runs_in
from reproduction.execute import execute, wanted
from reproduction.pictures import draw
from reproduction.results import Store
from reproduction.setting import FULL, Figure, Line, Panel, Scale
from reproduction.tables import figure_table

TINY = Scale(rounds=4, seeds=(0, 1), samples=20, evaluate_every=1, quick=True)
SOURCE = """
import numpy as np
import kfl

def digits():
    y = np.arange(400) % 4
    return kfl.Dataset.from_arrays(np.random.default_rng(0).random((400, 6)) + y[:, None], y)
"""


@pytest.fixture
def figure(tmp_path, monkeypatch):
    """Two lines on made-up data, and one that is the first under another name."""
    (tmp_path / "papers_digits.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield small_figure()
    sys.modules.pop("papers_digits", None)


def small_figure() -> Figure:
    base = kfl.Experiment(dataset="papers_digits:digits", devices=5, rounds=9, widths=(8,), scheduler=kfl.Uniform(2))
    lines = (
        Line("one kfl", "KFL", "kfl", base),
        Line("one local", "local-only", "local", replace(base, algorithm=kfl.Local())),
        Line("one kfl again", "KFL again", "fedavg", base),
    )
    return Figure("small", "A small figure", (Panel("left", lines[:2]), Panel("right", lines[1:])), columns=2)


def shown(store: Store) -> dict:
    return {name: {k: v for k, v in row.items() if k != "wall_s"} for name, row in store.rows.items()}


def test_runs_are_made_once_and_come_out_the_same(figure, tmp_path) -> None:
    seen = []
    store = execute([figure], TINY, tmp_path / "a", on_progress=seen.append)
    assert len(store.rows) == 6  # three lines, two seeds
    assert {progress.runs for progress in seen} == {4}  # two of them are the same experiment
    assert all(row["rounds"] == 4 for row in store.rows.values())
    again = []
    assert shown(execute([figure], TINY, tmp_path / "a", on_progress=again.append)) == shown(store)
    assert again == []
    assert shown(execute([figure], TINY, tmp_path / "b")) == shown(store)
    assert not runs_in(tmp_path / "a")
    assert Comparison.load(tmp_path / "a").labels == ["one kfl", "one local", "one kfl again"]


def test_shards_put_together_are_the_whole(figure, tmp_path) -> None:
    whole = execute([figure], TINY, tmp_path / "whole")
    for index in (1, 2):
        execute([figure], TINY, tmp_path / "parts", execution=Execution(keep_runs=False, shard=Shard(index, 2)))
    assert sorted(path.name for path in (tmp_path / "parts").glob("*.jsonl")) == [
        "results-1of2.jsonl",
        "results-2of2.jsonl",
    ]
    assert shown(Store.open(tmp_path / "parts", wanted([figure], TINY))) == shown(whole)


def test_a_result_of_other_settings_does_not_count(figure, tmp_path) -> None:
    store = execute([figure], TINY, tmp_path)
    changed = replace(figure, panels=(Panel("p", (replace(figure.panels[0].lines[0], experiment=other()),)),))
    before = store.rows["one kfl seed0 quick"]["accuracy"], store.rows["one kfl seed0 quick"]["digest"]
    after = execute([changed], TINY, tmp_path).rows["one kfl seed0 quick"]
    assert (after["accuracy"], after["digest"]) != before


def other() -> kfl.Experiment:
    return replace(small_figure().panels[0].lines[0].experiment, algorithm=kfl.Kfl(learning_rate=0.001))


def test_tables_and_pictures_carry_the_mark_and_the_names(figure, tmp_path) -> None:
    store = execute([figure], TINY, tmp_path)
    text = figure_table(figure, store, TINY)
    assert "QUICK LOOK" in text and "local-only" in text and "--quick" in text
    files = draw(figure, store, TINY, tmp_path)
    assert [path.name for path in files] == ["small-quick.png", "small-quick.svg", "small-quick.pdf"]
    first = [path.read_bytes() for path in files]
    assert first[1].count(b"QUICK LOOK") and first[0][1:4] == b"PNG" and first[2][:4] == b"%PDF"
    assert [path.read_bytes() for path in draw(figure, store, TINY, tmp_path)] == first


def test_differences_are_drawn_as_dots(figure, tmp_path) -> None:
    store = execute([figure], TINY, tmp_path)
    files = draw(replace(figure, shows="difference", columns=1), store, TINY, tmp_path)
    assert b"minus local-only" in files[1].read_bytes()


def test_nothing_is_drawn_of_nothing(figure, tmp_path) -> None:
    assert draw(figure, Store(), TINY, tmp_path) == []


def test_a_store_that_is_none_is_refused(tmp_path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps({"digest": "a"}) + "\nnot json\n")
    with pytest.raises(RunFolderError, match="line 2"):
        Store.open(tmp_path, {})


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 2/4"):
        Shard.parse(text)


def test_shards_share_everything_once() -> None:
    names = [str(number) for number in range(11)]
    parts = [Shard(index, 3).part(names) for index in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert FULL.mark == ""
