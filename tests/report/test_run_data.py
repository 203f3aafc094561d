"""Run folders as pages read them: the same numbers as kfl.load_run, and nothing believed or run."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import kfl
from kfl.core.errors import RunFolderError
from kfl.report import read_run
from kfl.report.run_data import fairness
from kfl.runfolder import find_runs


def test_a_run_is_read_as_load_run_reads_it(runs):
    run, (experiment, history) = read_run(runs / "kfl"), kfl.load_run(runs / "kfl")
    assert (run.devices, run.planned, run.played) == (experiment.devices, experiment.rounds, len(history.rounds))
    assert (run.algorithm, run.scheduler, run.dataset) == ("kfl", "lyapunov", experiment.dataset)
    assert run.finished and run.seed == experiment.seed and "seed" not in run.setting
    for number, log in enumerate(history.rounds):
        mine = run.rounds.round == number
        assert run.rounds.device[mine].tolist() == list(log.devices)
        for name in ("share", "power_w", "compute_energy_j", "upload_energy_j"):
            np.testing.assert_array_equal(getattr(run.rounds, name)[mine], getattr(log, name))
        told = {(t.kind, t.device) for t in run.rounds.incidents if t.round == number}
        refused = {entry["device"] for entry in log.rejected}
        assert {device for kind, device in told if kind == "refused"} == refused
        assert {d for _, d in told} == refused | {e["device"] for e in log.faults} | {*log.lost, *log.diverged}
    assert run.rounds.accuracy.tolist() == [log.accuracy for log in history.rounds]


def test_sums_are_those_of_the_summary(runs):
    run, (_, history) = read_run(runs / "kfl"), kfl.load_run(runs / "kfl")
    summary = history.summary
    for name in ("best_accuracy", "energy_j", "upload_energy_j", "time_s", "bits_up", "uploads"):
        assert getattr(run, name) == pytest.approx(summary[name], rel=1e-12), name
    assert run.last_accuracy == summary["accuracy"]
    assert run.over_budget == summary["devices_over_budget"]
    assert run.use_of_budget == pytest.approx(summary["mean_use_of_budget"])
    assert run.device_energy_j.max() / run.budget_j == pytest.approx(summary["largest_use_of_budget"])
    assert run.participation.tolist() == [record["rounds"] for record in history.devices]
    for device, record in enumerate(history.devices):
        assert run.device_energy_j[device] == pytest.approx(record["compute_energy_j"] + record["upload_energy_j"])
    assert fairness(run.accuracy).worst_tenth == pytest.approx(history.worst_tenth)
    for unit, values in (
        ("joules", [log.energy_j for log in history.rounds]),
        ("seconds", [log.time_s for log in history.rounds]),
        ("bits", [log.bits_up for log in history.rounds]),
    ):
        np.testing.assert_allclose(run.spent[unit], np.cumsum(values))


def test_parts_of_the_energy_and_batteries_are_those_of_the_summary(sunny):
    run, history = read_run(sunny), kfl.load_run(sunny)[1]
    told = {name: joules for name, joules in history.summary["energy_by_part_j"].items() if joules > 0}
    assert set(told) == {"computing", "static", "radiating", "circuits", "tail", "receiving"}
    assert {name: joules.sum() for name, joules in run.parts_j.items()} == pytest.approx(told)
    found, told = run.batteries, history.summary["batteries"]
    assert told["empty_rounds"] > 0 and told["harvested_j"] > told["wasted_j"] > 0
    assert found.mean_j[-1] * run.devices == pytest.approx(told["charge_j"], rel=1e-9)
    assert found.least_j[-1] == pytest.approx(min(record["charge_j"] for record in history.devices), abs=1e-12)
    assert found.harvested_j[-1] == pytest.approx(told["harvested_j"], rel=1e-9)
    assert found.wasted_j[-1] == pytest.approx(told["wasted_j"], rel=1e-9)
    assert found.spent_j[-1] == pytest.approx(history.summary["energy_j"])
    assert found.empty.sum() == told["empty_rounds"]


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1)))
@settings(deadline=None)
def test_jains_index_is_between_one_over_n_and_one(accuracy):
    found = fairness(accuracy)
    assert 1 / len(accuracy) - 1e-9 <= found.jain <= 1 + 1e-9
    assert found.worst - 1e-12 <= found.worst_tenth <= found.best + 1e-9


def test_devices_stand_where_they_stood(runs):
    from kfl.runfolder import load_experiment
    from kfl.wireless import Cell

    experiment = load_experiment(runs / "kfl")
    cell = Cell.build(experiment.cell_config, experiment.devices, experiment.seed)
    np.testing.assert_array_equal(read_run(runs / "kfl").cell.position_m, cell.position_m)
    assert read_run(runs / "plain").cell is None


def test_an_unfinished_run_is_read_as_far_as_it_went(copy):
    (copy / "summary.json").unlink()
    (copy / "devices.json").unlink()
    lines = (copy / "rounds.jsonl").read_text().splitlines(keepends=True)
    (copy / "rounds.jsonl").write_text("".join(lines[:6]) + lines[6][:40])
    run = read_run(copy)
    assert (run.played, run.finished) == (6, False)
    assert [seen.round for seen in run.trail] == list(range(6))
    np.testing.assert_array_equal(run.accuracy, run.trail[-1].accuracy)


def test_a_folder_from_before_there_were_trails_is_read_and_says_so(copy):
    (copy / "trail.jsonl").unlink()
    run = read_run(copy)
    assert run.trail == () and "trail.jsonl" in run.notes[0]


def test_code_that_a_configuration_names_is_not_imported(copy, monkeypatch):
    (copy / "wicked.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(copy))
    text = (copy / "config.toml").read_text()
    text = text.replace('name = "kfl"', 'name = "wicked:Algorithm"').replace('"lyapunov"', '"wicked:Scheduler"')
    (copy / "config.toml").write_text(text)
    run = read_run(copy)
    assert (run.algorithm, run.scheduler) == ("wicked:Algorithm", "wicked:Scheduler")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.toml", "devices = 'many'", "devices is 'many'"),
        ("config.toml", "devices = 99999999999\nrounds = 2", "not from 1 to"),
        ("config.toml", "= =", "damaged"),
        ("rounds.jsonl", "{}\n", "not round 0"),
        ("rounds.jsonl", "[" * 100_000 + "\n", "damaged"),
        ("rounds.jsonl", json.dumps({"round": 0, "devices": [77]}) + "\n", "names a device"),
        (
            "rounds.jsonl",
            json.dumps(
                {
                    "round": 0,
                    "devices": [1],
                    "share": [1, 2],
                    "power_w": [],
                    "compute_energy_j": [],
                    "upload_energy_j": [],
                }
            )
            + "\n",
            "share has 2 values for 1",
        ),
        ("summary.json", "{", "damaged"),
        ("devices.json", "{", "damaged"),
    ],
)
def test_what_is_damaged_is_said_in_one_sentence(copy, name, content, words):
    (copy / name).write_text(content)
    with pytest.raises(RunFolderError, match=words):
        read_run(copy)


def test_a_folder_of_runs_stands_for_them(runs, tmp_path):
    assert [path.name for path in find_runs([runs])] == ["fedavg", "kfl", "plain"]
    assert find_runs([runs / "kfl", runs / "kfl"]) == [runs / "kfl"]
    with pytest.raises(RunFolderError, match="is not a run folder"):
        find_runs([tmp_path])
    with pytest.raises(RunFolderError, match="is not a run folder"):
        find_runs([tmp_path / "nowhere"])
