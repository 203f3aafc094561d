"""Run folders as pages read them: the same numbers as kfl.load_run, and nothing believed or run."""

import json
import shutil

import numpy as np
import pytest

import kfl
from kfl.core.errors import RunFolderError
from kfl.report.measures import device_energy, fairness, spent_curves, totals
from kfl.runfolder import find_runs, read_run


@pytest.fixture
def copy(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "kfl", folder)
    return folder


def test_a_run_is_read_as_load_run_reads_it(runs):
    run, (experiment, history) = read_run(runs / "kfl"), kfl.load_run(runs / "kfl")
    assert (run.devices, run.planned, run.played) == (experiment.devices, experiment.rounds, len(history.rounds))
    assert (run.algorithm, run.scheduler, run.dataset) == ("kfl", "lyapunov", experiment.dataset)
    assert run.finished and run.twin is not None and run.twin.algorithm == "local"
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
    sums, summary = totals(run), history.summary
    for name in ("accuracy", "best_accuracy", "energy_j", "upload_energy_j", "time_s", "bits_up", "uploads"):
        assert getattr(sums, name) == pytest.approx(summary[name], rel=1e-12), name
    assert sums.over_budget == summary["devices_over_budget"]
    assert sums.use_of_budget == pytest.approx(summary["mean_use_of_budget"])
    assert device_energy(run).max() / run.budget_j == pytest.approx(summary["largest_use_of_budget"])
    assert fairness(run.accuracy).worst_tenth == pytest.approx(history.worst_tenth)
    assert spent_curves(run)["joules"][-1] == pytest.approx(summary["energy_j"])


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
