"""Run folders with one thing wrong: resumed to the very same end, or refused in one sentence; nothing else is lost."""

import json
import logging
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import kfl
from kfl.core.errors import KflError, StoppedError
from kfl.export import FinishedRun
from kfl.runfolder import RunReader
from tests.reference.runs import SMALL, data, difference

CASES = 150
TINY = replace(SMALL, rounds=6, devices=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished run, and the same run stopped after four rounds, with two checkpoints."""
    base = tmp_path_factory.mktemp("folders")
    kfl.run(TINY, base / "whole", dataset=data())
    answers = iter([False, False, False, True])
    with pytest.raises(StoppedError):
        kfl.run(TINY, base / "stopped", dataset=data(), checkpoint_s=0.0, should_stop=lambda: next(answers))
    return base


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def quiet():
    """Damaged checkpoints are reported, hundreds of times here."""
    logging.getLogger("kfl").setLevel(logging.ERROR)
    yield
    logging.getLogger("kfl").setLevel(logging.NOTSET)


def test_a_stopped_run_with_one_file_damaged(folders, mutated, judged, tmp_path):
    draw = random.Random(11)
    same = 0
    folder = tmp_path / "run"
    for _ in range(CASES):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders / "stopped", folder)
        path = draw.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"))
        path.write_bytes(mutated(path.read_bytes(), draw))
        before = content(folder)
        found = judged(lambda: kfl.resume(folder, dataset=data()))
        if isinstance(found, KflError):
            after = content(folder)
            kept = {name for name in before if not name.startswith(("rounds.jsonl", "environment.json", ".lock"))}
            assert {name: after.get(name) for name in kept} == {name: before[name] for name in kept}
        elif path.name != "config.toml":
            same += 1
            assert difference(folders / "whole", folder) is None, path.name
    assert same > CASES / 2


def test_a_finished_run_with_one_file_damaged(folders, mutated, judged, tmp_path):
    draw = random.Random(12)
    folder = tmp_path / "run"
    shutil.copytree(folders / "whole", folder)
    refused = 0
    for _ in range(2 * CASES):
        path = draw.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"))
        whole = path.read_bytes()
        path.write_bytes(mutated(whole, draw))
        before = content(folder)
        found = [judged(lambda: kfl.load_run(folder)), judged(lambda: FinishedRun.open(folder))]
        found += [judged(lambda device=device: RunReader(folder).model(device)) for device in range(4)]
        refused += any(isinstance(one, KflError) for one in found)
        assert content(folder) == before
        path.write_bytes(whole)
    assert refused > CASES / 10


def test_json_that_is_not_what_it_should_be(folders, judged, tmp_path):
    """Valid JSON of the wrong kind, in every place that holds JSON."""
    values = (
        None,
        1,
        "a",
        [],
        {},
        [[]],
        {"plan": 3},
        {"plan": {"workers": "x"}},
        {"dataset": []},
        [1],
        {"round": {}},
        1e999,
    )
    for name in (
        "environment.json",
        "job.json",
        "rounds.jsonl",
        "summary.json",
        "devices.json",
        "state/point-000004.json",
    ):
        for value in values:
            folder = tmp_path / "run"
            shutil.copytree(folders / "stopped", folder)
            (folder / name).write_text(json.dumps(value) + "\n")
            judged(lambda folder=folder: kfl.resume(folder, dataset=data()))
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "name", ["environment.json", "rounds.jsonl", "summary.json", "state/point-000004.json", "config.toml"]
)
def test_a_file_nested_without_end(folders, judged, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(folders / "stopped", folder)
    (folder / name).write_text("[" * 200_000 + "\n")
    judged(lambda: kfl.resume(folder, dataset=data()))
    judged(lambda: kfl.load_run(folder))
