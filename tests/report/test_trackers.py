"""Trackers with the real packages: what they received is read back from their own files."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.core.errors import ConfigError, KflError, MissingExtraError, StoppedError
from kfl.report.tracker_metrics import RunningMetrics
from kfl.report.trackers import TRACKERS, Tracker, Tracking, make_trackers, tracker_names
from kfl.wireless import PRESETS, ConstantHarvest

ROUNDS = 6
CANARY = "c4f3" * 10


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """An empty MLflow database, made once: its tables take longer to make than a run."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MlflowClient(f"sqlite:///{path}").get_experiment_by_name("kfl")
    return path


@pytest.fixture(autouse=True)
def _offline(tmp_path, monkeypatch, database):
    monkeypatch.chdir(tmp_path)
    shutil.copy(database, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.fixture(scope="module")
def arrays():
    y = np.arange(200) % 4
    return np.random.default_rng(0).random((200, 6), dtype=np.float32) + y[:, None].astype(np.float32), y


@pytest.fixture(scope="module")
def data(arrays):
    return kfl.Dataset.from_arrays(*arrays)


def experiment(**more):
    scheduler = kfl.scheduling.Lyapunov(v=1e-4)
    settings = {"devices": 8, "rounds": ROUNDS, "widths": (8,), "scheduler": scheduler, "radio": "paper-mnist"}
    return kfl.Experiment(**(settings | more))


def tracked(data, folder, names, told=None, stop_after=None, wanted=None):
    """A run with trackers; with `stop_after` it is interrupted after that many rounds."""
    wanted = wanted or experiment()
    played = []

    def on_round(log):
        tracking.on_round(log)
        played.append(log)

    with Tracking(names, folder, tell=(told if told is not None else []).append) as tracking:
        history = kfl.run(
            wanted,
            folder,
            dataset=data,
            on_start=tracking.on_start,
            on_round=on_round,
            should_stop=None if stop_after is None else lambda: len(played) + 1 >= stop_after,
        )
        tracking.finish(wanted, history)
    return history


# What each tracker's own files say: {metric: {step: value}}; a step that is there twice fails.


def from_tensorboard(folder):
    """What TensorBoard itself shows of a folder: without what a later session replaced."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    shown = EventAccumulator(str(folder / "tensorboard"), size_guidance={SCALARS: 0}).Reload()
    found = {}
    for tag in shown.Tags()["scalars"]:
        events = shown.Scalars(tag)
        found[tag] = {event.step: event.value for event in events}
        assert len(found[tag]) == len(events), f"{tag} has a step twice"
    return found


def from_mlflow(folder):
    from mlflow import MlflowClient

    with warnings.catch_warnings():  # of MLflow's dependencies, about MLflow
        warnings.simplefilter("ignore")
        client = MlflowClient()
        runs = client.search_runs([client.get_experiment_by_name("kfl").experiment_id])
        assert len(runs) == 1
        assert runs[0].info.run_name == folder.name
        assert runs[0].data.params["algorithm.name"] == "kfl"
        found = {}
        for name in runs[0].data.metrics:
            history = client.get_metric_history(runs[0].info.run_id, name)
            found[name] = {metric.step: metric.value for metric in history}
            assert len(found[name]) == len(history), f"{name} has a step twice"
    return found, runs[0].info.status


def records(path):
    """The records of a W&B file: LevelDB's log format, in blocks of 32 KiB after a header of 7 bytes."""
    raw, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(raw):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        parts += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def from_wandb(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    found, ids = {}, set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for raw in records(path):
            record = Record.FromString(raw)
            if record.HasField("run"):
                ids.add(record.run.run_id)
            for item in record.history.item:
                name = item.key or ".".join(item.nested_key)
                if not name.startswith("_"):
                    steps, step = found.setdefault(name, {}), record.history.step.num
                    assert step not in steps, f"{name} twice at {step}"
                    steps[step] = json.loads(item.value_json)
    assert len(ids) == 1
    return found


def expected(history, wanted):
    metrics = RunningMetrics(wanted)
    return [metrics.of(log) for log in history.rounds]


def same(found, rows):
    """Every metric of every round was sent once, with its value (TensorBoard keeps 32 bits)."""
    for step, row in enumerate(rows, start=1):
        for name, value in row.items():
            assert found[name][step] == pytest.approx(value, rel=1e-6), (name, step)
    assert sorted(found["accuracy"]) == list(range(1, len(rows) + 1))


READ = {"tensorboard": from_tensorboard, "mlflow": lambda folder: from_mlflow(folder)[0], "wandb": from_wandb}


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_run_is_told_whole_and_a_resumed_one_is_continued_with_no_step_twice(name, data, tmp_path, monkeypatch):
    folder, told = tmp_path / "mine", []
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", CANARY)
    with pytest.raises(StoppedError):
        tracked(data, folder, [name], told, stop_after=3)
    assert len(READ[name](folder)["accuracy"]) < ROUNDS
    history = tracked(data, folder, [name], told)
    assert history == tracked(data, folder, [name], told)  # finished: shown already, nothing is added
    found = READ[name](folder)
    same(found, expected(history, experiment()))
    assert all(sentence.startswith(f"Tracked by {name}: ") for sentence in told)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_a_password_in_the_address_of_a_server_is_not_shown(data, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{CANARY}@127.0.0.1:9")
    with pytest.raises(KflError) as problem:
        tracked(data, tmp_path / "mine", ["mlflow"], [])
    assert "127.0.0.1" in str(problem.value)
    assert CANARY in str(problem.value.__cause__)
    assert CANARY not in str(problem.value)


KILLED = """
import math, os, signal, sys
import numpy as np
import kfl
from pathlib import Path
from kfl.report import Tracking
from kfl.runfolder import load_experiment

folder, names = sys.argv[1], sys.argv[2:]
experiment = load_experiment(Path(folder))
data = np.load(folder + ".npz")
def on_round(log):
    tracking.on_round(log)
    if log.round == 3:
        os.kill(os.getpid(), signal.SIGKILL)
with Tracking(names, folder) as tracking:
    kfl.run(experiment, folder, dataset=kfl.Dataset.from_arrays(data["x"], data["y"]), checkpoint_s=math.inf,
            on_start=tracking.on_start, on_round=on_round)
"""


def test_a_run_that_was_killed_is_continued_where_each_tracker_really_is(arrays, data, tmp_path):
    """No checkpoint was written, so all rounds are repeated; some trackers hold some of them, W&B none yet."""
    folder, names = tmp_path / "mine", list(TRACKERS)
    folder.mkdir()
    (folder / "config.toml").write_text(experiment().to_toml())
    np.savez(tmp_path / "mine.npz", x=arrays[0], y=arrays[1])
    words = [sys.executable, "-c", KILLED, str(folder), *names]
    alone = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # not this process's
    done = subprocess.run(words, capture_output=True, env=alone, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(from_tensorboard(folder)["accuracy"]) == 4
    history = tracked(data, folder, names)
    for name in names:
        same(READ[name](folder), expected(history, experiment()))


def test_a_database_that_breaks_does_not_end_the_run(data, tmp_path):
    told, wanted = [], experiment()

    def on_round(log):
        if log.round == 2:
            (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
        tracking.on_round(log)

    with Tracking(["mlflow"], tmp_path / "mine", tell=told.append) as tracking:
        history = kfl.run(wanted, tmp_path / "mine", dataset=data, on_start=tracking.on_start, on_round=on_round)
        tracking.finish(wanted, history)
    assert len(history.rounds) == ROUNDS
    assert len(told) == 2
    assert told[1].startswith("The tracker mlflow failed; the run continues without it: ")


def test_a_torn_event_file_is_continued(data, tmp_path):
    folder = tmp_path / "mine"
    with pytest.raises(StoppedError):
        tracked(data, folder, ["tensorboard"], stop_after=3)
    (file,) = (folder / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    history = tracked(data, folder, ["tensorboard"])
    same(from_tensorboard(folder), expected(history, experiment()))


def test_a_finished_run_can_be_shown_later(data, tmp_path):
    folder = tmp_path / "mine"
    history = kfl.run(experiment(), folder, dataset=data)
    tracked(data, folder, ["mlflow"])
    found, status = from_mlflow(folder)
    same(found, expected(history, experiment()))
    assert found["summary/accuracy"] == {ROUNDS: history.accuracy}
    assert status == "FINISHED"


def test_a_stopped_run_says_so(data, tmp_path):
    with pytest.raises(StoppedError):
        tracked(data, tmp_path / "mine", ["mlflow"], stop_after=2)
    assert from_mlflow(tmp_path / "mine")[1] == "KILLED"


def test_metrics_of_budgets_are_those_of_the_run(data):
    wanted = experiment(rounds=12)
    history = kfl.run(wanted, dataset=data)
    last = expected(history, wanted)[-1]
    queues = [device["queue_j"] for device in history.devices]
    assert last["queue/largest_j"] == pytest.approx(max(queues))
    assert last["queue/mean_j"] == pytest.approx(np.mean(queues))
    assert last["budget/largest_used"] == pytest.approx(history.summary["largest_use_of_budget"])
    assert last["budget/devices_over"] == history.summary["devices_over_budget"]
    assert last["energy/so_far_j"] == pytest.approx(history.energy_j)
    assert last["bits/up_so_far"] == pytest.approx(history.bits_up)
    assert not any(name.endswith(("tail_j", "harvested_j", "empty")) for name in last)
    plain = experiment(radio=None, scheduler="lyapunov")
    without = expected(kfl.run(plain, dataset=data), plain)[-1]
    assert not any(name.startswith(("queue", "budget")) for name in without)


def test_metrics_of_whole_devices_say_where_the_joules_went(data):
    cell = replace(PRESETS["wifi"], battery_capacity_j=0.15, initial_charge=0.1, harvest=ConstantHarvest(watts=0.005))
    wanted = experiment(rounds=6, radio=cell)
    history = kfl.run(wanted, dataset=data)
    shown = expected(history, wanted)
    for part, joules in history.summary["energy_by_part_j"].items():
        assert sum(one.get(f"energy/{part}_j", 0.0) for one in shown) == pytest.approx(joules)
    assert sum(one["energy/harvested_j"] for one in shown) == pytest.approx(history.summary["batteries"]["harvested_j"])
    assert sum(one.get("devices/empty", 0) for one in shown) == history.summary["batteries"]["empty_rounds"] > 0


@pytest.mark.parametrize("name", list(TRACKERS))
def test_a_missing_package_is_one_sentence_before_anything_is_done(name, monkeypatch, tmp_path):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == name else there(package))
    with pytest.raises(MissingExtraError, match=rf"pip install 'kfl\[{name}\]'"):
        Tracking([name], tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_tracker_that_fails_is_reported_once_and_the_run_ends_well(data, tmp_path):
    told, calls = [], []

    class Failing(Tracker):
        name, package, where = "failing", "kfl", "nowhere"

        def open(self, run, config):
            return 0

        def log(self, log, metrics):
            calls.append(log.round)
            raise ConnectionError("server\n  gone.")

        def close(self, summary):
            calls.append("close")

    tracked(data, tmp_path / "mine", [Failing(), "tensorboard"], told)
    assert calls == [0]
    assert told[-1] == "The tracker failing failed; the run continues without it: server gone."
    assert len(from_tensorboard(tmp_path / "mine")["accuracy"]) == ROUNDS


def test_a_disk_that_fills_up_does_not_end_the_run(data, tmp_path):
    told, tracker, full = [], make_trackers(["tensorboard"])[0], os.open("/dev/full", os.O_WRONLY)

    def on_round(log):
        if log.round == 2:
            os.dup2(full, tracker._file.fileno())
        tracking.on_round(log)

    folder = tmp_path / "mine"
    with Tracking([tracker], folder, tell=told.append) as tracking:
        history = kfl.run(experiment(), folder, dataset=data, on_start=tracking.on_start, on_round=on_round)
        tracking.finish(experiment(), history)
    os.close(full)
    tracker._file.close()
    assert len(history.rounds) == ROUNDS
    assert [sentence for sentence in told if "failed; the run continues" in sentence] == told[1:]
    assert "No space left" in told[1]
    history = tracked(data, folder, ["tensorboard"])  # with room again, what is missing is added
    same(from_tensorboard(folder), expected(history, experiment()))


def test_a_server_that_is_not_there_is_one_sentence_before_training(data, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(KflError, match=r"The tracker mlflow could not begin: .* leave mlflow out of --track"):
        tracked(data, tmp_path / "mine", ["mlflow"])
    assert (tmp_path / "mine" / "rounds.jsonl").read_text() == ""


def test_names_are_checked():
    assert tracker_names(["wandb, TensorBoard", "wandb"]) == ("wandb", "tensorboard")
    with pytest.raises(ConfigError, match="track is 'neptune', but must be one of tensorboard, mlflow, wandb"):
        tracker_names(["tensorboard,neptune"])


def test_on_the_command_line(tmp_path, capsys):
    from kfl.cli.main import main

    words = ["--devices", "10", "--rounds", "2", "--widths", "8", "--no-baseline", "--out", "run"]
    assert main(["run", *words, "--track", "tensorboard", "--track", "mlflow,tensorboard"]) == 0
    assert "tensorboard --logdir run/tensorboard" in capsys.readouterr().err
    assert set(from_mlflow(Path("run"))[0]["accuracy"]) == {1, 2}
    assert json.loads(Path("run/job.json").read_text())["track"] == ["tensorboard", "mlflow"]
    assert main(["resume", "run"]) == 0  # with the same trackers: nothing twice
    assert set(from_tensorboard(Path("run"))["accuracy"]) == {1, 2}
    assert "Tracked by mlflow" in capsys.readouterr().err
    assert main(["resume", "run", "--track", "none"]) == 0
    assert "Tracked" not in capsys.readouterr().err
    assert main(["run", *words[:-1], "other", "--track", "neptune"]) == 2
    assert "track is 'neptune'" in capsys.readouterr().err
    assert not Path("other").exists()


def test_trackers_are_not_imported_unless_asked_for():
    program = (
        "import sys, kfl.cli.run\nassert not {'torch', 'tensorboard', 'mlflow', 'wandb'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
