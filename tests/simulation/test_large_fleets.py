"""A fleet of many devices: columns in place of lines and records, and the same numbers as without them."""

import json
import runpy
import signal
from dataclasses import replace

import numpy as np
import pytest

import kfl
from kfl.core.columns import Column, Records
from kfl.core.errors import RunFolderError
from kfl.core.files import jsonable
from kfl.runfolder import RunReader
from kfl.runner import run_world
from kfl.simulation.logs import RoundLog
from kfl.simulation.round import initial_state
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.summary import device_records
from kfl.simulation.world import build_world
from studies.kill_matrix import Aim, Child
from tests.reference.runs import data

LARGE = kfl.Experiment(
    devices=2400,
    rounds=3,
    split="overlap",
    samples_per_device=4,
    tested_devices=40,
    algorithm="common-knowledge",
    encoder="raw",
    scheduler=kfl.scheduling.Uniform(count=1100),
    radio="small-cell",
)
CHANGING = ("environment.json", "summary.json", ".lock")
"""Files with times, or that are empty."""


def contents(folder):
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: text for name, text in found.items() if name not in CHANGING}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run folder, and what the run returned."""
    folder = tmp_path_factory.mktemp("large") / "run"
    return folder, kfl.run(LARGE, folder, dataset=data(), checkpoint_s=0.0)


def test_rounds_of_many_devices_are_columns_that_read_like_lines(whole):
    folder, history = whole
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [len(log.devices) for log in history.rounds] == [1100, 1100, 200]
    assert "devices" not in lines[0] and lines[2]["devices"] == list(history.rounds[2].devices)
    stored = RunReader(folder).rounds()
    assert isinstance(stored[0].gain, Column) and stored == history.rounds
    for log, again in zip(history.rounds, stored, strict=True):
        as_line = RoundLog.from_dict(json.loads(json.dumps(jsonable(log.to_dict()))), LARGE.devices)
        for one in (log, again):
            assert jsonable(one.to_dict()) == jsonable(as_line.to_dict())
            assert one.energy_j == as_line.energy_j and one.used == as_line.used


def test_a_stranger_recomputes_every_joule_from_columns(whole):
    assert runpy.run_path("studies/recompute_run.py")["main"](whole[0]) == 0


@pytest.mark.parametrize("phase", ["training", "checkpoint", "history"])
def test_killed_between_columns_checkpoint_and_line_a_run_resumes_to_the_same_bytes(
    whole, tmp_path, phase, monkeypatch
):
    monkeypatch.setattr("studies.kill_matrix.data", data)
    folder = tmp_path / "run"
    assert Child(LARGE, folder, Aim(phase, 2, 0.001, by_timer=True)).end() == -signal.SIGKILL
    kfl.resume(folder, dataset=data())
    assert contents(folder) == contents(whole[0])


@pytest.mark.parametrize("damage", ["missing", "torn", "other"])
def test_a_line_whose_columns_are_damaged_is_a_damaged_line(whole, tmp_path, damage):
    folder = tmp_path / "run"
    with pytest.raises(kfl.core.errors.StoppedError):
        stops = iter([False, True])
        kfl.run(LARGE, folder, dataset=data(), checkpoint_s=0.0, should_stop=lambda: next(stops))
    columns = folder / "columns" / "round-000000.npz"
    text = columns.read_bytes()
    if damage == "missing":
        columns.unlink()
    else:
        columns.write_bytes(text[:-100] if damage == "torn" else (whole[0] / "columns/round-000001.npz").read_bytes())
    with pytest.raises(RunFolderError, match=r"Line 1 of .*rounds\.jsonl is damaged \(.*columns"):
        RunReader(folder).rounds()
    kfl.resume(folder, dataset=data())  # no checkpoint counts on a damaged history: from the start
    assert contents(folder) == contents(whole[0])


def test_records_of_a_large_fleet_are_those_of_a_small_one(tmp_path):
    class Few(SimulatedFleet):
        def device_columns(self):
            return None

    experiment = replace(LARGE, devices=10_500, samples_per_device=2, rounds=1)
    world = build_world(experiment, dataset=data())
    state = initial_state(SimulatedFleet(world))
    columns, records = (device_records(kind(world), state) for kind in (SimulatedFleet, Few))
    assert isinstance(columns, Records) and isinstance(records, tuple)
    assert columns == records and list(columns[0]) == list(records[0])
    np.savez(tmp_path / "devices.npz", **columns.arrays)
    again = runpy.run_path("studies/recompute_run.py")["records_of"](tmp_path)
    assert [one["position_m"] for one in again] == columns.column("position_m")
    for name in ("accuracy", "model", "classes", "rounds", "position_m"):
        assert columns.column(name) == [record[name] for record in records]


def test_a_large_run_without_a_folder_and_its_folder_hold_the_same_devices(tmp_path):
    experiment = replace(LARGE, devices=10_500, samples_per_device=2, rounds=1, radio="none")
    world = build_world(experiment, dataset=data())
    history = run_world(world, tmp_path / "run")
    assert not (tmp_path / "run" / "devices.json").exists()
    stored = RunReader(tmp_path / "run").devices("rounds", "accuracy")
    assert len(stored) == 10_500
    np.testing.assert_array_equal(stored.arrays["rounds"], history.devices.arrays["rounds"])
    assert stored[7] == jsonable(history.devices[7])
    assert sum(history.devices.column("rounds")) == 1100
    assert kfl.core.columns.column_of(history.devices, "rounds") == history.devices.column("rounds")


def test_models_of_many_devices_are_in_packs_and_read_one_by_one(tmp_path):
    experiment = replace(LARGE, algorithm="local-classifier", rounds=1)
    history = kfl.run(experiment, tmp_path / "run", dataset=data())
    names = [path.name for path in sorted((tmp_path / "run" / "models").iterdir())]
    assert len(names) == 2 and names[0].startswith("from-")
    reader, took = RunReader(tmp_path / "run"), set(history.rounds[0].devices)
    idle = min(set(range(LARGE.devices)) - took)
    assert reader.model(idle) is None
    for device in (min(took), max(took)):
        assert set(reader.model(device)) >= {"head.weight", "head.bias"}


def test_costs_asked_once_for_a_kind_of_device_are_those_of_every_device():
    experiment = replace(LARGE, algorithm="kfl", encoder="none", split="dirichlet", samples_per_device=None, devices=40)
    experiment = replace(experiment, widths=(4, 8), scheduler="all")
    world = build_world(experiment, dataset=data())
    profiles = [world.engine.profile(device) for device in range(40)]
    server = world.experiment.algorithm.server_init(world.engine, 0)
    costs = world.experiment.algorithm.costs(profiles, server, real_work=False)
    assert world.table.samples.tolist() == [profile.samples for profile in profiles]
    for name in ("flops", "bits_up", "bits_down"):
        assert getattr(world.table, name).tolist() == [getattr(cost, name) for cost in costs]
