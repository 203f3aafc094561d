"""Every JSON file of a run folder with another type in one place: one sentence, or no matter; never a traceback."""

import json
import logging
import os
import random
import shutil
from dataclasses import replace

import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import KflError
from kfl.export import FinishedRun, export_models
from kfl.report import read_run
from kfl.runfolder import RunReader
from kfl.runner import RunOptions
from tests.reference.runs import SMALL, data

TINY = replace(SMALL, rounds=3, devices=3)
VALUES = (None, True, -1, 0.5, 10**400, "x", [], {}, [1], {"a": 1}, [[]], float("nan"), "delete")
FILES = ("summary.json", "devices.json", "environment.json", "job.json", "asked.json", "rounds.jsonl", "trail.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    logging.disable(logging.CRITICAL)
    folder = tmp_path_factory.mktemp("types") / "run"
    kfl.run(TINY, folder, dataset=data())
    RunOptions(track=("tensorboard",)).save(folder)
    (folder / "asked.json").write_text('{"round": 1, "devices": [0, 2]}')
    yield folder
    logging.disable(logging.NOTSET)


def places(value, place=()):
    """Every place in a value, and of a list its first two."""
    yield place
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(min(len(value), 2)):
            yield from places(value[key], (*place, key))


def changed(value, place, new):
    """A copy with something else at a place."""
    if not place:
        return {} if new == "delete" else new
    copy = json.loads(json.dumps(value))
    at = copy
    for key in place[:-1]:
        at = at[key]
    if new == "delete":
        del at[place[-1]]
    else:
        at[place[-1]] = new
    return copy


@pytest.mark.parametrize("name", FILES)
def test_any_type_in_any_place_is_a_sentence_or_no_matter(finished, judged, tmp_path, name):
    run, draw = tmp_path / "run", random.Random(name)
    shutil.copytree(finished, run)
    text = (run / name).read_text()
    first, *others = text.splitlines() if name.endswith("l") else (text,)
    refused = 0
    for place in places(json.loads(first)):
        for new in draw.sample(VALUES, 2):
            lines = [json.dumps(changed(json.loads(first), place, new)), *others]
            (run / name).write_text("\n".join(lines) + "\n")
            actions = [
                lambda: kfl.load_run(run),
                lambda: read_run(run),
                lambda: RunOptions.load(run),
                RunReader(run).asked,
            ]
            actions += [lambda: FinishedRun.open(run), lambda: export_models(run, [0], tmp_path / "out")]
            refused += sum(isinstance(judged(action), KflError) for action in actions)
    assert refused or name == "trail.jsonl", "a page shows what it can of a trail"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "all"
    entries = {"kfl": TINY, "local": replace(TINY, algorithm=kfl.Local())}
    kfl.compare(entries, [0, 1], folder, dataset=data(), keep_runs=False)
    (folder / "diverged.jsonl").write_text(
        '{"digest": "abc", "run": "fedavg, seed 0", "problem": "Training diverged."}\n'
    )
    return folder


@pytest.mark.parametrize("name", ["study.json", "results.jsonl", "diverged.jsonl"])
def test_any_type_in_any_place_of_a_comparison_is_a_sentence_or_no_matter(compared, judged, tmp_path, name):
    folder, draw = tmp_path / "all", random.Random(name)
    shutil.copytree(compared, folder)
    text = (folder / name).read_text()
    first, *others = text.splitlines() if name.endswith("l") else (text,)
    refused = 0
    for place in places(json.loads(first)):
        for new in draw.sample(VALUES, 4):
            lines = [json.dumps(changed(json.loads(first), place, new)), *others]
            (folder / name).write_text("\n".join(lines) + "\n")
            actions = [
                lambda: repr(kfl.Comparison.load(folder)),
                lambda: kfl.Comparison.load(folder).to_csv(tmp_path / "t"),
            ]
            refused += sum(isinstance(judged(action), KflError) for action in actions)
    assert refused


def test_resume_says_that_the_note_of_its_options_is_damaged(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "job.json").write_text('{"models": "no"}')
    assert main(["resume", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "models is 'no', not true or false" in said and said.count("\n") == 1


def test_report_of_a_folder_without_a_configuration_is_not_that_of_the_run_inside_it(finished, tmp_path, capsys):
    for kind in ("pipe", "folder"):
        run = tmp_path / kind
        shutil.copytree(finished, run)
        shutil.copytree(finished, run / "local-only")
        (run / "config.toml").unlink()
        if kind == "pipe":
            os.mkfifo(run / "config.toml")
        else:
            (run / "config.toml").mkdir()
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 2
        assert "config.toml is damaged" in capsys.readouterr().err
        assert not (tmp_path / "page.html").exists()
