"""Run folders of an earlier version: one finished, one interrupted, one of a real fleet. They must stay of use.

They were written by 0.1.0, before statuses, rejections, `given_as_objects` and Proposition 2 were data: there those are
sentences, and what the server holds is in knowledge.npz. Two more, of FedRep, are a little younger: they have all that,
but in them τ is the number of steps of head and body together.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.algorithms import ALGORITHMS, Rejection
from kfl.cli.main import main
from kfl.experiment import in_todays_words
from kfl.export import load_model
from kfl.report import build_report, read_run
from kfl.report.charts.cell import shares_chart
from kfl.runfolder import RunReader, load_experiment
from kfl.scheduling.status import describe
from kfl_fleet.server.status import read_status

EARLIER = Path(__file__).parent / "earlier"
FINISHED, STOPPED, FLEET = EARLIER / "finished", EARLIER / "stopped", EARLIER / "fleet"
FEDREP, FEDREP_STOPPED = EARLIER / "fedrep-finished", EARLIER / "fedrep-stopped"
TOO_FEW = "Only 4 devices can take part, of 9 asked for."
REFUSED = "its means has the shape (1, 1, 16), not (4, 4)"


def data() -> kfl.Dataset:
    """The data of the two simulated runs."""
    y = np.arange(120) % 4
    x = np.random.default_rng(0).random((120, 6), dtype=np.float32) + y[:, None].astype(np.float32) / 3
    return kfl.Dataset.from_arrays(x, y)


def test_they_are_what_earlier_versions_wrote():
    """The fixtures must not change: what they prove is that the old form is read."""
    line = json.loads((FINISHED / "rounds.jsonl").read_text().splitlines()[0])
    assert line["status"] == TOO_FEW
    assert line["rejected"] == [{"device": 1, "reason": REFUSED}]
    for folder in (FINISHED, STOPPED, FLEET):
        assert "repeatable" in json.loads((folder / "environment.json").read_text())
        assert not (folder / "server.npz").exists()
    assert isinstance(json.loads((FINISHED / "summary.json").read_text())["proposition2"], str)


def test_a_finished_run_is_loaded_whole():
    experiment, history = kfl.load_run(FINISHED)
    assert (experiment.devices, experiment.rounds, experiment.scheduler.name) == (4, 4, "uniform")
    assert [len(log.devices) for log in history.rounds] == [4] * 4
    assert [describe(log.status) for log in history.rounds] == [TOO_FEW] * 4
    assert Rejection.from_dict(history.rounds[0].rejected[0]).describe() == REFUSED
    assert history.accuracy == history.summary["accuracy"]
    assert [incident.kind for log in history.rounds for incident in log.incidents()] == ["refused", "late", "late"]
    assert all((log.gain, log.queue_j, log.reserved_s) == ((), (), None) for log in history.rounds)
    assert RunReader(FINISHED).given_as_objects() == ("dataset",)
    assert RunReader(FLEET).given_as_objects() == ("dataset", "models")
    assert RunReader(FINISHED).server()["knowledge"].shape == (4, 4)


def test_it_is_reported_with_its_sentences(tmp_path):
    assert "Configuration differences" in build_report([FINISHED, STOPPED, FLEET], tmp_path / "page.html").read_text()
    page = build_report([FINISHED], tmp_path / "single.html").read_text()
    assert "The processor dominates" in page
    assert "dataset given as Python objects" in page and REFUSED in page
    run = read_run(FINISHED)
    assert np.isnan(run.rounds.gain).all() and "Gain" not in shares_chart(run).views
    assert run.finished and run.rounds.count == 4 and len(run.trail) == 4


def test_its_models_are_exported(tmp_path):
    from safetensors.torch import load_file

    assert main(["export", str(FINISHED), "--out", str(tmp_path / "models")]) == 0
    exported = load_file(tmp_path / "models" / "device-00002.safetensors")
    kept = load_file(FINISHED / "models" / "device-00002.safetensors")
    assert exported.keys() == kept.keys() and all((exported[name] == kept[name]).all() for name in kept)
    assert load_model(FINISHED, 0).training is False


def test_an_interrupted_run_is_resumed_to_the_same_end(tmp_path):
    """Numbers to a tolerance, because another machine may add in another order; on the same one they are equal."""
    folder = tmp_path / "stopped"
    shutil.copytree(STOPPED, folder)
    history, (_, before) = kfl.resume(folder, dataset=data()), kfl.load_run(FINISHED)
    assert len(history.rounds) == 4
    for ours, theirs in zip(history.rounds, before.rounds, strict=True):
        assert (ours.devices, ours.lost, ours.bits_up) == (theirs.devices, theirs.lost, theirs.bits_up)
        assert describe(ours.status) == describe(theirs.status)
        np.testing.assert_allclose(ours.upload_energy_j, theirs.upload_energy_j, rtol=1e-9)
    found, expected = RunReader(folder).server(), RunReader(FINISHED).server()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)
    assert (folder / "server.npz").exists()


def test_fedrep_keeps_the_steps_it_was_run_with(tmp_path):
    """Before `body_steps`, the local steps were those of both parts together, and the head took half, rounded up."""
    assert "body_steps" not in (FEDREP_STOPPED / "config.toml").read_text()
    algorithm = load_experiment(FEDREP_STOPPED).algorithm
    assert isinstance(algorithm, kfl.FedRep) and algorithm.steps() == (3, 2)
    assert RunReader(FEDREP).config()["algorithm"]["body_steps"] == 2
    folder = tmp_path / "stopped"
    shutil.copytree(FEDREP_STOPPED, folder)
    history, (_, before) = kfl.resume(folder, dataset=data()), kfl.load_run(FEDREP)
    assert [log.devices for log in history.rounds] == [log.devices for log in before.rounds]
    np.testing.assert_allclose(history.summary["energy_j"], before.summary["energy_j"], rtol=1e-9)
    found, expected = RunReader(folder).server(), RunReader(FEDREP).server()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_fedrep_as_it_is_now_is_another_run_than_fedrep_as_it_was(tmp_path):
    folder = tmp_path / "stopped"
    shutil.copytree(FEDREP_STOPPED, folder)
    today = kfl.Experiment.from_toml((folder / "config.toml").read_text())  # as a person's file: today's default
    assert isinstance(today.algorithm, kfl.FedRep) and today.algorithm.steps() == (5, 5)
    with pytest.raises(kfl.KflError, match=r"algorithm.head_steps: 3 → none; algorithm.body_steps: 2 → none"):
        kfl.run(today, folder, dataset=data())


@pytest.mark.parametrize(("written", "steps"), [("none", (2, 2)), (1, (1, 3)), (3, (3, 1))])
def test_fedreps_steps_of_before_in_todays_words(written, steps):
    table = kfl.Experiment(algorithm=kfl.FedRep(local_steps=4)).to_table()
    del table["algorithm"]["body_steps"]
    table["algorithm"]["head_steps"] = written
    found = kfl.Experiment.from_table(in_todays_words(table)).algorithm
    assert isinstance(found, kfl.FedRep) and found.steps() == steps


def test_configurations_of_today_mean_what_they_say():
    for cls in ALGORITHMS.values():
        table = kfl.Experiment(algorithm=cls()).to_table()
        assert in_todays_words(table) == table


def test_other_data_is_refused_in_one_sentence(tmp_path):
    folder = tmp_path / "stopped"
    shutil.copytree(STOPPED, folder)
    other = kfl.Dataset.from_arrays(data().train_x + 1, data().train_y)
    with pytest.raises(kfl.KflError, match="another configuration, plan or dataset"):
        kfl.resume(folder, dataset=other)


def test_the_status_of_a_fleet(capsys):
    status = read_status(FLEET)
    assert (status.state, status.rounds_done, status.devices_seen) == ("finished", 2, 4)
    assert [(one.late, one.rejected) for one in status.devices] == [(0, 0), (1, 0), (0, 1), (0, 0)]
    assert status.problems[0].startswith("Round 2, device 2, rejected: its correct is no whole number")  # words: ok
    assert main(["deploy", "status", str(FLEET)]) == 0
    assert "finished" in capsys.readouterr().out
