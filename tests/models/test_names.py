"""Networks by name: what `--model` can say, what it means, and whole runs of several architectures."""

import inspect
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kfl
from kfl.cli.main import main
from kfl.core.errors import ConfigError, ModelError
from kfl.export import export_models, load_model
from kfl.models import MODELS, PAPER_WIDTHS, WIDTHS, architectures, default_widths, fleet_from_name, read_model
from kfl.simulation import build_world


def test_every_named_network_can_be_built_with_its_own_widths():
    assert list(MODELS) == list(WIDTHS)
    for name, widths in WIDTHS.items():
        shape = (9, 128) if name == "sensor" else (3, 32, 32)
        fleet = fleet_from_name(name, None, 3, shape, 10, seed=0)
        assert fleet.names == tuple(f"{name}-{width}" for width in widths)
        assert inspect.signature(MODELS[name]).parameters["width"].default in widths
        assert fleet.features == (3072 if name == "linear" else 64)


def test_the_help_names_every_network(capsys):
    assert main(["run", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in WIDTHS)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("resnet", ["one of auto, mlp, cnn, resnet8", "did you mean resnet"]),
        ("resnet8-16,mobilnet-8", ["did you mean mobilenet?"]),
        ("", ["one of auto, mlp"]),
        ("cnn-128,", ["one of auto, mlp"]),
        ("auto,cnn", ["auto alone"]),
        ("auto-16", ["auto alone"]),
        ("resnet8-0", ["at least 1"]),
        ("resnet8--4", ["one of auto, mlp"]),
    ],
)
def test_a_name_that_is_unknown_is_answered_with_the_right_ones(model, words):
    for read in (read_model, lambda text: kfl.Experiment(model=text).validate()):
        with pytest.raises(ConfigError) as problem:
            read(model)
        assert all(word in str(problem.value) for word in ("model is", *words)), str(problem.value)


def test_widths_and_a_model_that_says_its_own_do_not_go_together():
    for model in ("resnet8-16", "resnet8,cnn", "resnet8-8,cnn-128"):
        with pytest.raises(ConfigError, match=r"widths is \(8,\).*left out"):
            kfl.Experiment(model=model, widths=(8,)).validate()
        with pytest.raises(ConfigError, match="left out"):
            fleet_from_name(model, (8,), 2, (3, 32, 32), 10, seed=0)


def test_a_width_that_does_not_fit_names_the_network():
    with pytest.raises(ModelError, match=r"mobilenet's width must be even.*7"):
        fleet_from_name("cnn-8,mobilenet-7", None, 2, (3, 32, 32), 10, seed=0)


def tiny(input_shape, classes, width=4):
    return kfl.SplitModel(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(width), torch.nn.Linear(width, 64)),
        torch.nn.Linear(64, classes),
    )


def bare(input_shape, classes, width):
    return tiny(input_shape, classes, width)


def test_a_list_takes_default_widths_and_functions_of_ones_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(tiny=tiny, bare=bare))
    fleet = fleet_from_name("cnn, mine:tiny,mine:tiny-9, mine:bare-3", None, 40, (3, 32, 32), 10, seed=0)
    assert fleet.names == ("cnn-128", "mine:tiny-4", "mine:tiny-9", "mine:bare-3")
    assert set(fleet.architecture.tolist()) == {0, 1, 2, 3}
    with pytest.raises(ConfigError, match="mine:bare-32: its function has no default"):
        fleet_from_name("cnn,mine:bare", None, 2, (3, 32, 32), 10, seed=0)


@pytest.mark.parametrize(
    ("shape", "widths", "expected"),
    [
        ((9, 128), None, "sensor"),
        ((9, 128), (16,), "sensor"),
        ((9, 128), PAPER_WIDTHS, "mlp"),  # as an earlier version wrote it
        ((9, 20), None, "mlp"),
        ((3, 32, 32), None, "cnn"),
        ((1, 28, 28), (8,), "mlp"),
        ((561,), None, "mlp"),
    ],
)
def test_auto_goes_by_the_kind_of_sample(shape, widths, expected):
    found = architectures("auto", widths, shape)
    assert found == tuple((expected, width) for width in widths or default_widths(expected))


def test_configurations_of_before_are_the_same_runs():
    """Digests of the version that had the paper's widths as the default of every network, and its printed split."""
    for digest, own in {
        "bccd0440": kfl.Experiment(),
        "1f36482c": kfl.Experiment(model="mlp"),
        "0438618a": kfl.Experiment(dataset="cifar10", model="cnn", seed=3),
        "5cc9774c": kfl.Experiment(model="my:build"),
        "5fa0a507": kfl.Experiment(dataset="my:load"),
        "f1346c4e": kfl.Experiment(dataset="my:load", widths=(8,)),
        "41a8d570": kfl.Experiment(dataset="my:load", model="mlp"),
        "89dd5239": kfl.Experiment(widths=(8, 16)),
    }.items():
        cell = "paper-cifar10" if own.dataset == "cifar10" else "paper-mnist"  # what auto was then
        experiment = replace(own, distinct_classes=False, radio=cell)
        assert experiment.digest() == digest
        again = kfl.Experiment.from_toml(experiment.to_toml())
        assert again == experiment.resolved() == again.resolved()
        assert again.digest() == digest
    assert kfl.Experiment().to_table()["widths"] == list(PAPER_WIDTHS)
    assert kfl.Experiment(model="resnet8").to_table()["widths"] == [8, 16]
    assert kfl.Experiment(model="resnet8-8,cnn-128").to_table()["widths"] == "none"


# ── Whole runs ───────────────────────────────────────────────────────────────

QUICK = ["--devices", "6", "--rounds", "1", "--samples-per-device", "8", "--scheduler.count", "4", "--seed", "100"]
MIXED = "resnet8-2,mobilenet-2,transformer-4,mlp-8"


def test_devices_with_different_architectures_learn_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *QUICK, "--model", MIXED, "--no-baseline", "--out", "run"]) == 0
    assert "3 different networks" in capsys.readouterr().out
    records = json.loads((tmp_path / "run" / "devices.json").read_text())
    names = {record["model"] for record in records}
    assert len(names) == 3  # of four to draw from
    assert names <= set(MIXED.split(","))
    experiment = kfl.load_run(tmp_path / "run")[0]
    assert experiment.model == MIXED
    assert experiment.widths is None
    assert main(["run", *QUICK, "--model", MIXED, "--no-baseline", "--out", "run"]) == 0  # the same run, only read
    world = build_world(experiment)
    for device, record in enumerate(records):
        module, indices = load_model("run", device), world.partition.test[device]
        with torch.no_grad():
            right = module(world.dataset.inputs("test", indices)).argmax(1) == world.dataset.labels("test", indices)
        assert float(right.double().mean()) == pytest.approx(record["accuracy"], abs=1e-9)
    (path,) = export_models("run", [2], "out")
    about = json.loads(path.with_suffix(".json").read_text())
    assert f"{about['model']}-{about['width']}" == records[2]["model"]


def test_averaging_different_architectures_is_refused(capsys):
    mixed = ["--model", "resnet8-2,mobilenet-2"]
    assert main(["run", *QUICK, *mixed, "--algorithm", "fedavg"]) == 2
    assert "fedavg averages weights" in capsys.readouterr().err
    assert main(["compare", "--algorithms", "kfl,fedavg", "--seeds", "100", *QUICK[:-2], *mixed]) == 2
    said = capsys.readouterr().err
    assert "the models are resnet8-2,mobilenet-2" in said
    assert "--model resnet8-2" in said
    assert main(["compare", "--algorithms", "kfl,fedavg", "--seeds", "100", *QUICK[:-2], "--model", "resnet8"]) == 2
    assert "the widths are 8, 16" in capsys.readouterr().err


def test_one_named_width_is_an_equal_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "mobilenet-2", "--algorithm", "fedavg", "--no-baseline"]
    assert main(["run", *QUICK, *words, "--out", "run"]) == 0


def test_series_take_the_sensor_network_and_are_found_again(tmp_path):
    draw = np.random.default_rng(100)
    y = np.arange(240) % 4
    x = draw.normal(size=(240, 3, 30)).astype(np.float32) + y[:, None, None]
    data = kfl.Dataset.from_arrays(x, y)
    experiment = kfl.Experiment(devices=4, rounds=2, scheduler=kfl.Uniform(count=2), seed=100)
    with pytest.raises(kfl.KflError, match="Stopped"):
        kfl.run(experiment, tmp_path / "run", dataset=data, should_stop=lambda: True)
    history = kfl.resume(tmp_path / "run", dataset=data)
    assert {record["model"] for record in history.devices} <= {"sensor-32", "sensor-64"}
    assert kfl.load_run(tmp_path / "run")[0].widths == (32, 64)
    assert load_model(tmp_path / "run", 0)(torch.zeros(2, 3, 30)).shape == (2, 4)
    assert kfl.run(experiment, tmp_path / "run", dataset=data).accuracy == history.accuracy


def test_work_that_no_device_can_do_in_time_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["run", *QUICK, "--no-baseline", "--no-models", "--out", "slow"]
    assert main([*words, "--radio", "paper-mnist", "--model", "resnet8-2", "--algorithm.local-steps", "10000"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "No device can take part" in said and "a round has 1 s" in said and "--radio.deadline-s" in said
    assert not (tmp_path / "slow").exists()  # so the same command with the fix finds its folder free
    assert main([*words, "--model", "mlp-8"]) == 0
    assert "take part:" not in " ".join(capsys.readouterr().out.split())
