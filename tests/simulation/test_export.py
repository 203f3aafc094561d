"""Models come out of a run folder as they were when it was tested, and reading them executes nothing."""

import importlib.util
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.core.errors import ConfigError, RunFolderError
from kfl.export import export_models, load_model
from kfl.simulation import build_world
from tests.reference.algorithms import small
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(devices=6, rounds=2, widths=(8, 12), scheduler=kfl.Uniform(count=2))


@pytest.fixture(scope="module")
def data():
    return toy_data()


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, kfl.run(SMALL, folder, dataset=data)


NOT_EXPORTED = ("common-knowledge", "local-classifier")
"""Those whose devices classify with their own samples by default."""


def accuracy(module, world, device):
    indices = world.partition.test[device]
    with torch.no_grad():
        said = module(world.dataset.inputs("test", indices)).argmax(1)
    return float((said == world.dataset.labels("test", indices)).double().mean())


@pytest.mark.parametrize("name", sorted({*ALGORITHMS} - {"common-knowledge"}))
def test_every_device_of_every_algorithm_gives_back_the_recorded_accuracy(data, tmp_path, name):
    equal = ALGORITHMS[name].needs_equal_models
    algorithm = small(name, **{"kind": "lda"} if name == "local-classifier" else {})
    experiment = replace(SMALL, widths=(8,) if equal else (8, 12), algorithm=algorithm)
    history = kfl.run(experiment, tmp_path / "run", dataset=data)
    world = build_world(experiment, dataset=data)
    taken = [record["rounds"] for record in history.devices]
    assert 0 in taken  # devices that never trained are among them
    assert max(taken) > 0
    for device, record in enumerate(history.devices):
        model = load_model(tmp_path / "run", device)
        assert not model.training
        assert accuracy(model, world, device) == pytest.approx(record["accuracy"], abs=1e-12)


@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_a_device_that_classifies_with_its_own_samples_has_no_model_to_export(data, tmp_path, name):
    kfl.run(replace(SMALL, algorithm=small(name)), tmp_path / "run", dataset=data)
    with pytest.raises(RunFolderError, match=r"no models to export: devices .* their own samples"):
        load_model(tmp_path / "run", 0)


def test_exported_files_load_without_kfls_run_folder(data, finished, tmp_path, monkeypatch):
    folder, history = finished
    files = export_models(folder, [0, 3, 5], tmp_path / "out")
    assert [path.name for path in files] == [f"device-0000{k}.safetensors" for k in (0, 3, 5)]
    spec = importlib.util.spec_from_file_location("load", tmp_path / "out" / "load.py")
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    world = build_world(SMALL, dataset=data)
    for device in (0, 3, 5):
        model, about = loader.load(f"device-0000{device}")
        assert accuracy(model, world, device) == pytest.approx(history.devices[device]["accuracy"], abs=1e-12)
        assert about["accuracy"] == history.devices[device]["accuracy"]
        assert (about["model"], about["width"]) == ("mlp", [8, 12][int(world.models.architecture[device])])
        assert (about["input_shape"], about["classes"], about["features"]) == ([1, 5, 5], 4, 64)
        assert about["inputs"]["scale"] == 1.0
        assert about["inputs"]["mean"] is None
        assert about["kfl"] == kfl.__version__


def test_a_small_network_beside_each_is_exported_too(data, tmp_path):
    experiment = replace(SMALL, algorithm=kfl.FedMrl(small_width=6))
    history = kfl.run(experiment, tmp_path / "run", dataset=data)
    export_models(tmp_path / "run", [2], tmp_path / "out")
    spec = importlib.util.spec_from_file_location("load", tmp_path / "out" / "load.py")
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    model, about = loader.load("device-00002")
    world = build_world(experiment, dataset=data)
    assert accuracy(model, world, 2) == pytest.approx(history.devices[2]["accuracy"], abs=1e-12)
    assert about["small"] == {"features": 16, "width": 6}


def test_files_hold_plain_arrays_with_their_description_inside(finished, tmp_path):
    (path,) = export_models(finished[0], [1], tmp_path)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert json.loads(header["__metadata__"]["kfl"])["device"] == 1
    assert set(load_file(path)) == set(header) - {"__metadata__"} == set(load_model(finished[0], 1).state_dict())


def test_only_devices_that_trained_have_a_file(finished):
    folder, history = finished
    trained = {f"device-{record['device']:05d}.safetensors" for record in history.devices if record["rounds"]}
    assert {path.name for path in (folder / "models").iterdir()} == trained


def test_a_network_of_ones_own_by_name(data, tmp_path, monkeypatch):
    (tmp_path / "ownnet.py").write_text(
        "import kfl\nfrom torch import nn\n"
        "def build(input_shape, classes, width):\n"
        "    body = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(25), nn.Linear(25, width))\n"
        "    return kfl.SplitModel(body, nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    experiment = replace(SMALL, model="ownnet:build", widths=(9,))
    history = kfl.run(experiment, tmp_path / "run", dataset=data)
    world = build_world(experiment, dataset=data)
    for device in (0, 4):
        found = accuracy(load_model(tmp_path / "run", device), world, device)
        assert found == pytest.approx(history.devices[device]["accuracy"], abs=1e-12)
    export_models(tmp_path / "run", [0], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "device-00000.json").read_text())["model"] == "ownnet:build"


def test_models_given_as_objects_export_their_weights_and_nothing_else(data, tmp_path):
    def build(device):
        torch.manual_seed(device)
        return kfl.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(25, 7)), nn.Linear(7, 4))

    own = replace(SMALL, widths=None)
    history = kfl.run(own, tmp_path / "run", dataset=data, models=build)
    trained = next(record["device"] for record in history.devices if record["rounds"])
    with pytest.raises(RunFolderError, match="Python objects"):
        load_model(tmp_path / "run", trained)
    (path,) = export_models(tmp_path / "run", [trained], tmp_path / "out")
    module = build(0)
    module.load_state_dict(load_file(path))
    found = accuracy(module, build_world(own, dataset=data, models=build), trained)
    assert found == pytest.approx(history.devices[trained]["accuracy"], abs=1e-12)
    assert not (tmp_path / "out" / "load.py").exists()


def test_what_cannot_be_given_is_refused_in_one_sentence(data, finished, tmp_path):
    folder, _ = finished
    for device in (-1, 6):
        with pytest.raises(ConfigError, match=f"device is {device}, but must be from 0 to 5"):
            load_model(folder, device)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        load_model(tmp_path / "nowhere", 0)
    kfl.run(SMALL, tmp_path / "light", dataset=data, keep_models=False)
    assert not (tmp_path / "light" / "models").exists()
    with pytest.raises(RunFolderError, match="did not keep its models"):
        load_model(tmp_path / "light", 0)
    with pytest.raises(RunFolderError, match="cannot be written"):
        export_models(folder, [0], "/proc/nope")


def test_an_unfinished_run_and_a_damaged_file_are_named(data, tmp_path):
    def stop(log):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kfl.run(SMALL, tmp_path / "half", dataset=data, on_round=stop)
    with pytest.raises(RunFolderError, match="not finished"):
        load_model(tmp_path / "half", 0)
    kfl.run(SMALL, tmp_path / "run", dataset=data)
    path = next((tmp_path / "run" / "models").iterdir())
    path.write_bytes(path.read_bytes()[:-50])
    device = int(path.stem.removeprefix("device-"))
    with pytest.raises(RunFolderError, match="is damaged"):
        load_model(tmp_path / "run", device)
    path.unlink()
    with pytest.raises(RunFolderError, match=f"no file for device {device}, though it trained"):
        load_model(tmp_path / "run", device)
