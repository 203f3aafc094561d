"""Constants from worlds and from finished run folders."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import kfl
from kfl.algorithms import FedAvg, Local
from kfl.core.errors import ConfigError, ModelError, RunFolderError
from kfl.simulation import build_world, load_model
from reproduction.theory.curvature import measure_model
from reproduction.theory.estimate import estimate_constants
from reproduction.theory.run_bound import bound_of_run, reported
from reproduction.theory.theorem1 import theorem1

EXPERIMENT = kfl.Experiment(devices=10, rounds=4, widths=(8,), scheduler=kfl.Uniform(6), radio="paper-mnist")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "kfl"
    return folder, kfl.run(EXPERIMENT, folder)


def test_constants_are_the_largest_over_devices_and_points(finished):
    folder, history = finished
    trained = [record["device"] for record in history.devices if record["rounds"] > 0][:2]
    found = bound_of_run(folder, devices=trained, iterations=3).estimate
    world, points = build_world(EXPERIMENT), []
    for device in trained:
        mine = world.partition.train[device]
        x, y = world.dataset.inputs("train", mine), world.dataset.labels("train", mine)
        last, first = load_model(folder, device), load_model(folder, device)
        first.load_state_dict(world.models.initial(device, EXPERIMENT.seed))
        points += [measure_model(model, x, y, iterations=3) for model in (first, last)]
    assert found.points == 4
    for name in ("body_smoothness", "head_smoothness", "body_gradient", "feature_gradient", "feature_norm"):
        assert getattr(found.constants, name) == pytest.approx(max(getattr(p, name) for p in points)), name
    largest = max(p.cross_smoothness for p in points)
    product = found.constants.body_smoothness * found.constants.head_smoothness
    assert found.constants.cross_sensitivity == pytest.approx(largest / np.sqrt(product))
    weights = world.table.samples[trained]
    assert found.initial_loss == pytest.approx(np.average([p.loss for p in points[::2]], weights=weights))
    assert found.later_loss == pytest.approx(np.average([p.loss for p in points[1::2]], weights=weights))
    assert found.later_loss < found.initial_loss == found.constants.initial_gap


def test_a_run_folder_gives_the_bound_of_its_own_schedule(finished):
    folder, history = finished
    found = bound_of_run(folder, devices=1, iterations=2)
    counts = build_world(EXPERIMENT).partition.train_counts
    schedule = np.array([[device in log.devices for device in range(10)] for log in history.rounds])
    assert found.bound == theorem1(found.estimate.constants, counts, schedule)
    assert found.best_bound == theorem1(found.estimate.constants.at_best_rates(), counts, schedule)
    assert found.best_bound.within_assumptions
    assert "estimates" in found.estimate.notes[0]
    assert any("momentum 0.9" in note for note in found.estimate.notes)
    assert found.energy is found.volume is None
    assert any("Proposition 2 does not apply" in note and "uniform does not" in note for note in found.notes)


def test_knowledge_that_did_not_arrive_was_not_reported(finished):
    log = finished[1].rounds[0]
    gone = replace(log, lost=log.devices[:1], rejected=({"device": log.devices[1], "reason": "not finite"},))
    assert set(np.flatnonzero(reported([gone], 10)[0])) == set(log.devices[2:])


def test_without_kept_models_only_the_starting_models_count(finished, tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / "models")
    found = bound_of_run(folder, devices=2, iterations=1)
    assert (found.estimate.points, found.estimate.later_loss) == (2, None)
    assert any("kept no models" in note for note in found.notes)


def test_weights_of_another_model_are_refused():
    world = build_world(EXPERIMENT)
    with pytest.raises(ModelError, match="weights of device 2 do not fit"):
        estimate_constants(world, {2: {}}, devices=[2], iterations=1)


def test_local_training_is_kfl_without_knowledge():
    world = build_world(replace(EXPERIMENT, algorithm=Local(batch_size=20, momentum=0.0)))
    found = estimate_constants(world, devices=1, iterations=1, jacobians=1)
    assert found.constants.knowledge_weight == 0
    assert any("batches of 20" in note for note in found.notes)
    assert not any("momentum" in note for note in found.notes)


def test_another_algorithm_has_proposition_2_alone(tmp_path):
    kfl.run(replace(EXPERIMENT, algorithm=FedAvg(), scheduler=kfl.Dual(), rounds=1), tmp_path / "run")
    found = bound_of_run(tmp_path / "run")
    assert found.estimate is found.bound is None
    assert found.energy is not None
    assert any("Theorem 1 is left out" in note and "fedavg" in note for note in found.notes)


def test_folders_that_cannot_answer_say_why(finished, tmp_path):
    with pytest.raises(RunFolderError, match="not a run folder"):
        bound_of_run(tmp_path)
    folder = tmp_path / "half"
    shutil.copytree(finished[0], folder)
    (folder / "summary.json").unlink()
    with pytest.raises(RunFolderError, match="is not finished"):
        bound_of_run(folder)
    y = np.arange(100) % 2
    own = kfl.Dataset.from_arrays(np.random.default_rng(0).normal(size=(100, 4)).astype("float32") + y[:, None], y)
    kfl.run(kfl.Experiment(devices=4, rounds=1, widths=(8,)), tmp_path / "own", dataset=own)
    with pytest.raises(RunFolderError, match="given as Python objects"):
        bound_of_run(tmp_path / "own")
    with pytest.raises(ConfigError, match="devices is \\[10\\]"):
        bound_of_run(finished[0], devices=[10])
