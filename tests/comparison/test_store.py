"""Results on disk: every committed file and the folders of earlier versions are read, plain or compressed."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import kfl
from kfl.comparison import Comparison, ResultStore, Shard, records
from kfl.comparison.records import read_lines, read_records, read_text
from kfl.core.errors import RunFolderError

RESULTS = Path(__file__).parents[2] / "docs" / "results"
WITH_RUNS = [path for path in sorted(RESULTS.rglob("*.jsonl*")) if '"curve": {' in read_text(path)[:20_000]]
BASE = kfl.Experiment(devices=4, rounds=1, widths=(8,), samples_per_device=20)
TWO = {"few": replace(BASE, scheduler=kfl.Uniform(count=1)), "all": replace(BASE, scheduler=kfl.AllDevices())}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of two entries and two seeds, on disk; tests copy what they change."""
    folder = tmp_path_factory.mktemp("store") / "c"
    return kfl.compare(TWO, [0, 1], folder, reference="few")


def results_of(found):
    """What two comparisons have in common, however they were read."""
    return [(row.label, row.accuracy, row.difference, row.bits_up) for row in found.rows]


@pytest.mark.parametrize("path", WITH_RUNS, ids=[str(path.relative_to(RESULTS)) for path in WITH_RUNS])
def test_every_committed_file_of_runs_is_read(path, tmp_path):
    lines = read_lines(path, "a study", ("digest", "seed", "accuracy"))
    assert len(lines) == len(read_text(path).splitlines())
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress(read_text(path).encode()))
    store = ResultStore.open(tmp_path)
    assert set(store.rows) == {line["digest"] for line in lines}
    assert all(store.rows[line["digest"]]["accuracy"] == line["accuracy"] for line in lines)


def test_a_study_of_named_runs_is_read_by_condition_and_label():
    found = Comparison.load(RESULTS / "sharing")
    assert "cifar10-m2, searched" in found.conditions and "cifar10-m2, as set" in found.conditions
    assert {"kfl", "local", "shared-stem"} <= set(found.labels)
    assert not any(line["seed"] >= 100 for line in found.records)  # trials of the search are no results


def test_a_folder_of_an_earlier_version_is_read_and_continued(finished, tmp_path):
    """Before `study.json` there was `comparison.json`, and every entry had a line of its own."""
    folder = tmp_path / "old"
    folder.mkdir()
    runs = {(line["label"], line["seed"]): line for line in finished.records}
    entries = {
        label: {"runs": {str(seed): f"kfl-seed{seed}-{runs['few', seed]['digest']}" for seed in (0, 1)}}
        for label in ("few", "few again")
    }
    (folder / "comparison.json").write_text(json.dumps({"reference": "few again", "entries": entries}))
    lines = [{**runs["few", seed], "label": label} for label in entries for seed in (0, 1)]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    old = Comparison.load(folder)
    assert (old.labels, old.reference) == (["few", "few again"], "few again")
    assert old["few"].difference.mean == 0
    played = []
    grown = kfl.compare(TWO, [0, 1], folder, reference="few", on_progress=lambda progress: played.append(progress.name))
    assert set(played) == {"all, seed 0", "all, seed 1"}  # what the old file has is not played again
    assert results_of(grown) == results_of(finished)


def test_results_of_shards_in_one_folder_are_one_comparison(finished, tmp_path):
    parts = [Shard(index, 2) for index in (1, 2)]
    for part in parts:
        kfl.compare(TWO, [0, 1], tmp_path / str(part.index), reference="few", shard=part, keep_runs=False)
    both = tmp_path / "both"
    both.mkdir()
    for part in parts:
        (both / part.file).write_bytes((tmp_path / str(part.index) / part.file).read_bytes())
    (both / "study.json").write_bytes((tmp_path / "1" / "study.json").read_bytes())
    assert results_of(Comparison.load(both)) == results_of(finished)


def test_shards_that_share_a_folder_play_every_run_once_between_them(finished, tmp_path):
    """A shard's part is one of all runs, whatever it finds finished: also when it is continued."""
    played = []
    for index in (1, 2, 1):
        shard = Shard(index, 2)
        kfl.compare(
            TWO, [0, 1], tmp_path, reference="few", shard=shard, on_progress=lambda one: played.append(one.name)
        )
    assert len(set(played)) == 4
    assert results_of(Comparison.load(tmp_path)) == results_of(finished)


def test_compressed_results_hold_as_plain_ones_do(finished, tmp_path):
    lines = (finished.folder / "results.jsonl").read_bytes()
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress(lines))
    played = []
    found = kfl.compare(TWO, [0, 1], tmp_path, reference="few", on_progress=played.append)
    assert not played
    assert results_of(found) == results_of(finished)
    assert results_of(Comparison.load(tmp_path / "results.jsonl.gz").select(reference="few")) == results_of(finished)


@pytest.mark.parametrize("text", ["", "{", '{"entries": 3}', '{"entries": [{"label": "a"}]}'])
def test_a_damaged_plan_is_one_sentence(text, tmp_path):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"study\.json is damaged"):
        Comparison.load(tmp_path)


def test_store_keeps_compressed_results_compressed_when_a_run_is_added(finished, tmp_path):
    first, second, *_ = read_lines(finished.folder / "results.jsonl", "kfl compare", ("digest",))
    (tmp_path / "results.jsonl.gz").write_bytes(gzip.compress((json.dumps(first) + "\n").encode()))
    ResultStore.open(tmp_path).add(second)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl.gz"]
    assert ResultStore.open(tmp_path).rows == {line["digest"]: line for line in (first, second)}
    assert read_records(tmp_path) == [first, second]


@pytest.mark.parametrize("kind", ["pipe", "bomb", "cut", "flipped"])
def test_results_that_are_no_file_or_unpack_without_end_are_one_sentence(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    path = tmp_path / ("results.jsonl" if kind == "pipe" else "results.jsonl.gz")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        whole = gzip.compress(bytes((1 << 24) if kind == "bomb" else 1000), mtime=0)
        path.write_bytes(
            whole if kind == "bomb" else whole[:-9] if kind == "cut" else whole[:12] + b"\xff" + whole[13:]
        )
    with pytest.raises(RunFolderError, match="holds no results of kfl compare"):
        records.read_records(tmp_path)
