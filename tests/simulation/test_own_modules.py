"""Networks that are not the paper's through whole runs: as objects, by name and from the command line."""

import copy
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import kfl
from kfl.core.errors import KflError, StoppedError
from kfl.data import LocalData
from kfl.engine import RoundKey
from kfl.engine.descent import batches
from kfl.engine.plan import Plan
from kfl.export import load_model
from kfl.runner import RunOptions, run_world
from kfl.simulation import build_world
from tests.reference.own_modules import MIXABLE, ODD
from tests.reference.runs import data, difference
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(
    devices=6,
    rounds=3,
    scheduler=kfl.Uniform(count=4),
    algorithm=kfl.Kfl(local_steps=2, batch_size=16),
    radio=None,
)
AVERAGING = [kfl.FedAvg, kfl.FedRep, kfl.Apfl, kfl.FedKd]
RESUMED = ["batch norm", "layer used twice", "dropout", "lstm"]
ROOT = Path(__file__).parents[2]


def modules(what):
    def model(device):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(device)
            return ODD[what](8 if device % 2 else 12)

    return model


def run(experiment, folder=None, stacked=False, models=None, **options):
    """A whole run, on the engine of a GPU where `stacked`: a plan of such a run is followed on a CPU too."""
    plan = Plan.read({"paths": ("stacked",) * (1 if models is None else experiment.devices)}) if stacked else None
    world = build_world(experiment, dataset=data(), models=models, plan=plan)
    return run_world(world, folder, RunOptions(checkpoint_s=0.0, **options))


@pytest.mark.parametrize(
    ("what", "stacked"),
    [*((what, False) for what in ODD), *((what, True) for what in ("branch on data", *RESUMED))],
)
def test_odd_modules_learn_and_resume_bit_for_bit(what, stacked, tmp_path):
    experiment, models = SMALL, modules(what)
    whole = run(experiment, tmp_path / "whole", stacked, models)
    assert whole.accuracy > 0.6  # of four classes
    seen = []

    def stop():
        seen.append(1)
        return len(seen) == 2

    with pytest.raises(StoppedError):
        run(experiment, tmp_path / "halves", stacked, models, should_stop=stop)
    again = kfl.resume(tmp_path / "halves", dataset=data(), models=models)
    assert [log.round for log in again.rounds] == [0, 1, 2]
    assert difference(tmp_path / "whole", tmp_path / "halves") is None


@pytest.mark.parametrize("stacked", [False, True], ids=["cpu", "stacked"])
def test_networks_by_name_in_mini_batches_resume_bit_for_bit(stacked, tmp_path):
    experiment = replace(SMALL, model="transformer-8,mlp-9,mlp-12")
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(240, 2, 24, generator=draw), torch.arange(240) % 4
    dataset = kfl.Dataset.from_arrays((x + y[:, None, None]).numpy(), y.numpy())
    plan = Plan.read({"paths": ("stacked",) * 3}) if stacked else None

    def play(folder, **options):
        world = build_world(experiment, dataset=dataset, plan=plan)
        return run_world(world, folder, RunOptions(checkpoint_s=0.0, **options))

    assert play(tmp_path / "whole").accuracy > 0.6
    with pytest.raises(StoppedError):
        play(tmp_path / "halves", should_stop=lambda: True)
    kfl.resume(tmp_path / "halves", dataset=dataset)
    assert difference(tmp_path / "whole", tmp_path / "halves") is None


@pytest.mark.parametrize("what", RESUMED)
def test_the_number_of_workers_changes_no_bit(what, tmp_path):
    experiment, models = SMALL, modules(what)
    for workers in (1, 2, 3):
        plan = build_world(experiment, dataset=data(), models=models).engine.plan
        world = build_world(experiment, dataset=data(), models=models, plan=replace(plan, workers=workers))
        run_world(world, tmp_path / str(workers))
        assert difference(tmp_path / "1", tmp_path / str(workers)) is None


@pytest.mark.parametrize("algorithm", AVERAGING)
def test_models_with_running_statistics_can_be_averaged_on_every_engine(algorithm, tmp_path):
    by_name = {"model": "tests.reference.own_modules:with_batch_norm", "widths": (12,)}
    experiment = replace(SMALL, split="iid", algorithm=algorithm(local_steps=2, batch_size=16), **by_name)
    for stacked in (False, True):
        history = run(experiment, tmp_path / str(stacked), stacked)
        assert all(not log.rejected for log in history.rounds)
    for device in range(SMALL.devices):
        states = [load_model(tmp_path / name, device).state_dict() for name in ("False", "True")]
        for name, value in states[0].items():
            torch.testing.assert_close(value, states[1][name], atol=1e-5, rtol=1e-5)
        assert float(states[0]["body.1.running_mean"].abs().max()) > 0.1, "statistics should have moved"


@pytest.mark.parametrize("stacked", [False, True], ids=["cpu", "stacked"])
def test_running_statistics_are_averaged_as_weights_are(stacked):
    """One round of federated averaging, step by step."""
    by_name = {"model": "tests.reference.own_modules:with_batch_norm", "widths": (12,)}
    algorithm = kfl.FedAvg(local_steps=2, batch_size=16)
    experiment = replace(SMALL, rounds=1, split="dirichlet", algorithm=algorithm, **by_name)
    seen = []
    plan = Plan.read({"paths": ("stacked",)}) if stacked else None
    world = build_world(experiment, dataset=data(), plan=plan)
    engine, key = world.engine, RoundKey(0, 0)
    start = algorithm.server_init(engine, 0)
    chosen = [0, 2, 3, 5]
    states = [algorithm.device_init(engine, device, 0) for device in chosen]
    _, uploads = algorithm.local_update(algorithm.broadcast(start), chosen, states, engine, key)
    server, rejected = algorithm.aggregate(start, uploads, engine=engine, key=key)
    assert not rejected
    template = world.models.builders[0]()
    for device in chosen:
        module = copy.deepcopy(template)
        module.load_state_dict(start)
        optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9)
        x, y = LocalData(world.dataset, world.partition).read(device, "train")
        for batch in batches(len(y), algorithm.sgd(), key, device):
            rows = slice(None) if batch is None else batch
            optimizer.zero_grad()
            cross_entropy(module.head(module.body(x[rows])), y[rows]).backward()
            optimizer.step()
        seen.append((len(y), module.state_dict()))
    total = sum(count for count, _ in seen)
    for name, value in server.items():
        mean = sum(count / total * state[name].double() for count, state in seen)
        wanted = mean if value.is_floating_point() else mean.round()
        torch.testing.assert_close(value.double(), wanted, atol=1e-5, rtol=1e-5)


def test_a_model_that_no_engine_can_run_says_so_in_one_sentence():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = torch.nn.Linear(6, 16), torch.nn.Linear(16, 4)

    with pytest.raises(KflError, match=r"Broken of device 0.*mat1 and mat2|Broken of device 0.*shape") as problem:
        kfl.run(SMALL, dataset=data(), models=lambda device: Broken())
    assert "\n" not in str(problem.value)


def test_every_odd_module_in_one_fleet_from_the_command_line(tmp_path):
    source = (ROOT / "tests" / "reference" / "own_modules.py").read_text()
    data_source = "import numpy as np\nimport kfl\n" + inspect.getsource(toy_data) + inspect.getsource(data)
    (tmp_path / "my_models.py").write_text(f"{source}\n\n{data_source}")
    widths = [str(place + 1) for place in range(len(MIXABLE))]
    words = ["run", "--dataset", "my_models:data", "--model", "my_models:build", "--widths", *widths]
    words += ["--devices", "30", "--split", "iid", "--rounds", "2", "--scheduler", "all", "--radio", "none"]
    words += ["--algorithm.batch-size", "8", "--algorithm.local-steps", "2", "--out", "here"]
    done = subprocess.run(
        [sys.executable, "-m", "kfl.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    devices = json.loads((tmp_path / "here" / "devices.json").read_text())
    assert len({device["model"] for device in devices}) > 8
    assert len((tmp_path / "here" / "rounds.jsonl").read_text().splitlines()) == 2
