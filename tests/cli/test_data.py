"""Whole commands on a person's own files."""

import io
import json
import logging
import os

import numpy as np
import pytest
from PIL import Image

import kfl
from kfl.cli.main import main

PEOPLE = 6


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with sensor data of six people and photos of two kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    put_sensors(tmp_path / "har.npz")
    draw = np.random.default_rng(1)
    for number in range(40):
        pixels = draw.integers(0, 100, (8, 8, 3), dtype=np.uint8) + np.uint8(100 * (number % 2))
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        path = tmp_path / "photos" / ("night", "day")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    return tmp_path


def put_sensors(path, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(PEOPLE), 30)
    y = np.arange(len(who)) % 3
    x = draw.normal(size=(len(who), 2, 16)).astype(np.float32) + y[:, None, None]
    np.savez(path, x=x, y=y + 1, person=np.array([f"p{one}" for one in who]))


def test_natural_federation_from_a_file(place, capsys):
    assert main(["data", "show", "--dataset", "har.npz", "--split", "natural"]) == 0
    shown = capsys.readouterr().out
    assert "har: 144 + 36 samples of shape 2×16, 3 classes, 6 devices; inputs as they are stored" in shown
    assert "20% of each device's samples are held out" in shown and "p0" in shown and "p5" in shown
    words = ["run", "--dataset", "har.npz", "--split", "natural", "--rounds", "2", "--widths", "8", "--out", "one"]
    assert main([*words, "--no-baseline"]) == 0
    assert "6 devices, 2 rounds" in " ".join(capsys.readouterr().out.split())
    experiment, history = kfl.load_run("one")
    assert (experiment.dataset, experiment.devices, experiment.split) == ("har.npz", PEOPLE, "natural")
    assert [record["name"] for record in history.devices] == [f"p{k}" for k in range(PEOPLE)]
    environment = json.loads((place / "one" / "environment.json").read_text())
    assert environment["dataset"]["path"] == str(place / "har.npz") and "1 … 3" in environment["dataset"]["note"]
    assert main(["run", "--config", "one/config.toml", "--out", "two", "--no-baseline"]) == 0
    assert (place / "two" / "rounds.jsonl").read_text() == (place / "one" / "rounds.jsonl").read_text()
    assert main([*words[:-2], "--devices", "4", "--out", "three", "--no-baseline"]) == 0
    assert kfl.load_run("three")[0].devices == 4
    assert main(["report", "one"]) == 0


def test_a_run_says_what_its_networks_are_and_leaves_the_log_as_it_was(place, capsys):
    level = logging.getLogger("kfl").level
    words = ["run", "--dataset", "har.npz", "--split", "natural", "--model", "transformer-20", "--rounds", "1"]
    assert main([*words, "--radio", "none", "--algorithm.batch-size", "7"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("equal networks of") == 1
    assert (logging.getLogger("kfl").level, logging.getLogger("kfl").handlers) == (level, [])


def test_a_run_whose_data_changed_is_refused(place, capsys):
    words = ["run", "--dataset", "har.npz", "--devices", "4", "--rounds", "2", "--widths", "8", "--out", "run"]
    assert main([*words, "--no-baseline"]) == 0
    os.utime("har.npz", ns=(1, 1))  # the same content: nothing has changed
    assert main([*words, "--no-baseline"]) == 0
    put_sensors(place / "har.npz", seed=1)
    capsys.readouterr()
    assert main([*words, "--no-baseline"]) == 2
    assert f"The dataset {place / 'har.npz'} has changed since the run in run began" in capsys.readouterr().err


def test_photos_without_an_out_folder_and_many_runs(place, capsys):
    few = ["--devices", "4", "--rounds", "1", "--widths", "8"]
    assert main(["run", "--dataset", "photos,size=16", *few, "--no-baseline"]) == 0
    (folder,) = (place / "runs").iterdir()
    assert folder.name.endswith("-kfl-photos")
    natural = ["--dataset", "har.npz", "--split", "natural", "--rounds", "1", "--widths", "8"]
    assert main(["compare", *natural, "--seeds", "100", "--algorithms", "kfl,local", "--workers", "1"]) == 0
    assert "kfl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["har.npy"], "har.npz"),
        (["photo"], "one of mnist-5k"),
        (["./photo"], "did you mean photos"),
        (["har.npz,y=activity"], "no labels of the train set by the name activity"),
        (["mnist-5k", "--split", "natural"], "does not say whose"),
        (["har.npz", "--split", "natural", "--devices", "7"], "at most 6"),
    ],
)
@pytest.mark.parametrize("command", [["run", "--rounds", "1", "--out", "x"], ["data", "show"]])
def test_what_cannot_be_is_one_sentence(place, capsys, command, words, sentence):
    assert main([*command, "--dataset", *words]) == 2
    told = capsys.readouterr().err
    assert sentence in told and told.count("\n") == 1
