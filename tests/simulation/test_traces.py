"""Runs that read traces: what they see, that a resumed one sees the same, and that a changed file is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import ConfigError, KflError, RunFolderError, TraceError
from kfl.experiment import Experiment
from kfl.experiment.availability import open_traces
from kfl.wireless import CellConfig, GainTrace, HarvestTrace, Rician, Waypoint

DEVICES, ROUNDS = 4, 5
SMALL = Experiment(devices=DEVICES, rounds=ROUNDS, widths=(8,), scheduler=kfl.Uniform(count=2))


@pytest.fixture
def data():
    draw = np.random.default_rng(0)
    x, y = draw.random((240, 1, 6, 6), dtype=np.float32), np.arange(240) % 10
    return kfl.Dataset.from_arrays(x + y[:, None, None, None] / 5, y)


def written(path, text: str) -> str:
    path.write_text(text)
    return str(path)


def with_traces(folder) -> Experiment:
    """Every kind of trace at once."""
    gains = written(folder / "gains.csv", "time_s,device,gain_db\n0,*,-90\n20,1,-80\n30,*,-70\n")
    watts = written(folder / "watts.csv", "time_s,device,watts\n0,*,0.05\n15,2,0\n")
    present = written(folder / "present.csv", "round,device,available\n0,*,1\n1,0,0\n3,0,1\n3,3,false\n")
    radio = CellConfig(
        fading=GainTrace(path=gains),
        harvest=HarvestTrace(path=watts),
        battery_capacity_j=50.0,
        round_period_s=10.0,
    )
    return replace(SMALL, radio=radio, availability_trace=present, scheduler=kfl.Uniform(count=DEVICES))


def same(one, other) -> bool:
    """Whether two runs are the same, but for how long they took."""
    return [log.to_dict() for log in one.rounds] == [log.to_dict() for log in other.rounds]


def test_a_run_sees_what_its_traces_say(tmp_path, data) -> None:
    history = kfl.run(with_traces(tmp_path), dataset=data)
    for log in history.rounds:
        away = {1: {0}, 2: {0}, 3: {3}, 4: {3}}.get(log.round, set())
        assert set(log.devices) == set(range(DEVICES)) - away
        expected = dict.fromkeys(log.devices, 1e-09 if log.round < 3 else 1e-07)
        if log.round == 2:
            expected[1] = 1e-8
        assert dict(zip(log.devices, log.gain, strict=True)) == pytest.approx(expected)
        watts = [0.05, 0.05, 0.05 if log.round < 1 else 0.025 if log.round == 1 else 0.0, 0.05]
        assert log.harvest_j == pytest.approx([10 * w for w in watts])


def _stopped(experiment, folder, data, rounds: int):
    """Play this many rounds and stop."""
    seen = []
    with pytest.raises(KflError, match="Stopped after round"):
        kfl.run(
            experiment,
            folder,
            dataset=data,
            keep_models=False,
            on_round=seen.append,
            should_stop=lambda: len(seen) >= rounds,
        )


@pytest.mark.parametrize("what", ["traces", "movement"])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path, data, what: str) -> None:
    moving = CellConfig(
        fading=Rician(),
        fading_correlation=0.8,
        channel_error=0.02,
        shadowing_db=6.0,
        mobility=Waypoint(max_speed_m_per_s=40.0, pause_s=5.0),
        round_period_s=30.0,
    )
    experiment = with_traces(tmp_path) if what == "traces" else replace(SMALL, radio=moving)
    whole = kfl.run(experiment, dataset=data)
    _stopped(experiment, tmp_path / "run", data, 2)
    resumed = kfl.resume(tmp_path / "run", dataset=data)
    assert len(resumed.rounds) == ROUNDS and same(whole, resumed)


def test_hashes_of_traces_are_in_the_run_folder_and_a_changed_file_is_refused(tmp_path, data) -> None:
    experiment, folder = with_traces(tmp_path), tmp_path / "run"
    _stopped(experiment, folder, data, 2)
    recorded = json.loads((folder / "environment.json").read_text())["traces"]
    assert {name: trace["fingerprint"] for name, trace in recorded.items()} == {
        name: trace.fingerprint for name, trace in open_traces(experiment).items()
    }
    assert set(recorded) == {"gain", "harvest", "availability"}
    watts = tmp_path / "watts.csv"
    original = watts.read_text()
    watts.write_text(original.replace("0.05", "0.06"))
    sentence = (
        r"The harvest trace .*watts.csv has changed since the run in .*run began; restore it, or choose another folder"
    )
    with pytest.raises(RunFolderError, match=sentence):
        kfl.resume(folder, dataset=data)
    watts.write_text(original)
    assert len(kfl.resume(folder, dataset=data).rounds) == ROUNDS
    watts.write_text(original.replace("0.05", "0.06"))
    with pytest.raises(RunFolderError, match=sentence):
        kfl.run(experiment, folder, dataset=data)


def test_a_run_without_traces_records_none(tmp_path, data) -> None:
    kfl.run(replace(SMALL, rounds=1), tmp_path / "run", dataset=data, keep_models=False)
    assert "traces" not in json.loads((tmp_path / "run" / "environment.json").read_text())


def test_availability_needs_no_radio_and_may_repeat(tmp_path, data) -> None:
    present = written(tmp_path / "present.csv", "time_s,device,available\n0,*,1\n1,0,0\n")
    experiment = replace(
        SMALL, radio=None, availability_trace=present, availability_repeat_s=2.0, scheduler=kfl.Uniform(count=DEVICES)
    )
    history = kfl.run(experiment, dataset=data)
    assert [0 in log.devices for log in history.rounds] == [True, False, True, False, True]
    everybody_away = written(tmp_path / "away.csv", "round,device,available\n0,*,0\n3,2,1\n")
    alone = kfl.run(replace(SMALL, availability_trace=everybody_away), dataset=data)
    assert [log.devices for log in alone.rounds] == [(), (), (), (2,), (2,)]


def test_bad_settings_of_availability(tmp_path) -> None:
    present = written(tmp_path / "present.csv", "round,device,available\n0,*,maybe\n")
    with pytest.raises(TraceError, match=r"available is 'maybe', but must be 1 or true, or 0 or false"):
        replace(SMALL, availability_trace=present).validate()
    for changes in ({"availability_repeat_s": 5.0}, {"availability_repeat_s": 0.0, "availability_trace": present}):
        with pytest.raises(ConfigError, match="availability_repeat_s is"):
            replace(SMALL, **changes).validate()


def test_what_a_trace_says_nothing_about_is_found_before_the_first_round(tmp_path) -> None:
    gains = written(tmp_path / "gains.csv", "round,device,gain_db\n0,*,-90\n2,*,-80\n")
    experiment = replace(SMALL, radio=CellConfig(fading=GainTrace(path=gains, max_gap_s=2.0)))
    experiment.validate()
    with pytest.raises(TraceError, match="has no row of device 0 after 2 s, but is needed at 9 s"):
        replace(experiment, rounds=10).validate()
    with pytest.raises(TraceError, match=r"Line 3 .* device is 3, but the fleet has the devices 0 to 2"):
        written(tmp_path / "gains.csv", "round,device,gain_db\n0,*,-90\n2,3,-80\n")
        replace(experiment, devices=3).validate()


# ── On the command line ──────────────────────────────────────────────────────


def test_traces_are_options_of_run(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "gains.csv", "round,device,rsrp_dbm\n0,*,-90\n")
    written(tmp_path / "watts.csv", "round,device,watts\n0,*,0.1\n")
    written(tmp_path / "present.csv", "round,device,available\n0,*,1\n")
    words = ["run", "--devices", "4", "--rounds", "1", "--widths", "8", "--no-models", "--out", "run"]
    words += ["--gain-trace", "gains.csv", "--radio.fading.reference-power-dbm", "15"]
    words += ["--harvest-trace=watts.csv", "--radio.battery-capacity-j", "100", "--availability-trace", "present.csv"]
    assert main(words) == 0
    written_config = Experiment.load(tmp_path / "run" / "config.toml")
    assert written_config.cell_config.fading == GainTrace(path="gains.csv", reference_power_dbm=15.0)
    assert written_config.cell_config.harvest == HarvestTrace(path="watts.csv")
    assert written_config.availability_trace == "present.csv"
    assert main(["run", "--config", "run/config.toml", "--gain-trace", "other.csv"]) == 2
    assert "The trace other.csv cannot be read: No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--radio", "none", "--gain-trace", "g.csv"], "radio is 'none', but must be the name of a cell"),
        (
            ["--radio.fading", "rician", "--gain-trace", "g.csv"],
            "radio.fading is 'rician', but must be left out, or tra",
        ),
        (["--availability-trace", "none.csv"], "The trace none.csv cannot be read: No such file or directory."),
        (["--gain-trace", "g.csv"], "gain_db is '30', but must be a gain in dB between -300 and 0: a channel does not"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["compare", "--algorithms", "kfl", "--seeds", "0"]])
def test_mistakes_are_answered_before_anything_runs(tmp_path, capsys, monkeypatch, command, words, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "g.csv", "round,device,gain_db\n0,*,30\n")
    assert main([*command, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["g.csv"]
