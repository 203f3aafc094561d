"""Many runs: the same whatever the number of processes, never repeated, and one failure loses no other."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kfl
from kfl.algorithms import Kfl, Local
from kfl.comparison import RunsFailedError, run_many
from kfl.comparison.execution import run_paths
from kfl.core.errors import ConfigError, KflError
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(devices=6, rounds=3, widths=(8, 12), scheduler=kfl.Uniform(count=2))
FOUR = [replace(SMALL, algorithm=algorithm, seed=seed) for algorithm in (Kfl(), Local()) for seed in (0, 1)]


@pytest.fixture(scope="module")
def data():
    return toy_data()


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, run_many(FOUR, folder, dataset=data)


def contents(history):
    return {
        name: (Path(history.folder) / name).read_bytes() for name in ("config.toml", "rounds.jsonl", "devices.json")
    }


def test_two_workers_give_exactly_what_one_gives(data, alone, tmp_path):
    _, expected = alone
    found = run_many(FOUR, tmp_path, workers=2, dataset=data)
    for one, two in zip(expected, found, strict=True):
        assert one.rounds == two.rounds
        assert one.devices == two.devices
        assert contents(one) == contents(two)


def test_a_run_among_many_is_the_run_alone_and_threads_are_put_back(data, alone):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert kfl.run(FOUR[3], dataset=data).rounds == alone[1][3].rounds
    finally:
        torch.set_num_threads(threads)


def test_finished_runs_are_not_repeated_and_more_seeds_only_add(data, alone):
    folder, before = alone
    stamps = {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}
    told = []
    more = [*FOUR, replace(SMALL, seed=2)]
    found = run_many(more, folder, dataset=data, on_progress=told.append)
    assert [history.rounds for history in found[:4]] == [history.rounds for history in before]
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert [progress.runs_done for progress in told] == [1, 2, 3, 4, 4, 4, 4, 5]
    assert (told[0].rounds_done, told[-1].rounds_done, told[-1].rounds) == (3, 15, 15)
    assert told[-1].history.rounds == found[4].rounds


def test_names_say_what_differs_and_stay_when_the_set_grows(tmp_path):
    names = [path.name for path in run_paths(FOUR, tmp_path)]
    assert [name.rpartition("-")[0] for name in names] == ["kfl-seed0", "kfl-seed1", "local-seed0", "local-seed1"]
    (tmp_path / names[0]).mkdir()
    wider = [*FOUR, replace(SMALL, rounds=9)]
    paths = run_paths(wider, tmp_path)
    assert paths[0].name == names[0]
    assert paths[1].name.startswith("kfl-rounds3-seed1-")
    assert len(set(paths)) == 5


def test_the_same_experiment_twice_is_run_once(data, tmp_path):
    one, two = run_many([SMALL, SMALL], tmp_path, dataset=data)
    assert one == two
    assert len(list(tmp_path.iterdir())) == 1


def test_one_failing_run_does_not_lose_the_others(data, tmp_path):
    bad = replace(SMALL, classes_per_device=9999, devices=5)  # more shards than samples
    with pytest.raises(RunsFailedError) as problem:
        run_many([SMALL, bad, replace(SMALL, seed=1)], tmp_path, dataset=data)
    good, none, other = problem.value.histories
    assert none is None
    assert len(good.rounds) == len(other.rounds) == 3
    assert len(problem.value.problems) == 1
    said = str(problem.value)
    assert "1 of 3 runs failed" in said
    assert "shards" in said
    assert "\n" not in said


def test_a_bug_in_one_run_leaves_its_traceback_and_spares_the_rest(data, tmp_path, monkeypatch):
    (tmp_path / "shaky.py").write_text(
        "import kfl\n"
        "from torch import nn\n"
        "class Shaky(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training: raise RuntimeError('out of luck\\nsecond line')\n"
        "        return super().forward(x)\n"
        "def build(input_shape, classes, width):\n"
        "    return kfl.SplitModel(nn.Sequential(nn.Flatten(), Shaky(25, width)), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bad = replace(SMALL, model="shaky:build", widths=(8,))
    with pytest.raises(RunsFailedError, match=r"RuntimeError: out of luck \(the traceback is in") as problem:
        run_many([SMALL, bad], tmp_path / "runs", dataset=data)
    assert problem.value.histories[0].accuracy > 0
    assert "second line" in next((tmp_path / "runs").glob("*.error.txt")).read_text()


def test_a_worker_that_dies_loses_only_its_own_run(data, tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom torch import nn\nimport kfl\n"
        "def build(input_shape, classes, width):\n"
        "    if os.getpid() != int(os.environ['PARENT']): os._exit(9)\n"
        "    return kfl.SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(25, width)), nn.Linear(width, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PARENT", str(os.getpid()))
    bad = replace(SMALL, model="deadly:build", widths=(8,))
    with pytest.raises(RunsFailedError, match="died with exit status 9") as problem:
        run_many([bad, SMALL, replace(SMALL, seed=1)], tmp_path / "runs", workers=2, dataset=data)
    assert [history is None for history in problem.value.histories] == [True, False, False]


def test_what_is_wrong_for_all_is_said_once_before_anything_runs(tmp_path):
    missing = [replace(SMALL, dataset="mnist", seed=seed) for seed in (0, 1)]
    with pytest.raises(KflError, match="train-images") as problem:
        run_many(missing, tmp_path / "runs", data_dir=tmp_path)
    assert not isinstance(problem.value, RunsFailedError)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="workers is 0"):
        run_many(missing, tmp_path, workers=0)


def test_interrupting_leaves_finished_runs_intact_and_no_process_behind(tmp_path):
    program = tmp_path / "job.py"
    program.write_text(
        "import kfl\nfrom dataclasses import replace\nfrom kfl.simulation import run_many\n"
        "if __name__ == '__main__':\n"
        "    short = kfl.Experiment(devices=10, rounds=1, widths=(8,), scheduler=kfl.Uniform(count=2))\n"
        "    endless = replace(short, rounds=100000)\n"
        "    run_many([short, endless, replace(endless, seed=1)], 'runs', workers=2)\n"
    )
    with subprocess.Popen([sys.executable, program], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 90
        while (
            time.monotonic() < until and process.poll() is None and len(list(tmp_path.glob("runs/*/rounds.jsonl"))) < 3
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in shown
    finished = [path.parent for path in tmp_path.glob("runs/*/summary.json")]
    assert len(finished) == 1
    assert len(kfl.load_run(finished[0])[1].rounds) == 1
    sizes = {path: path.stat().st_size for path in tmp_path.glob("runs/*/rounds.jsonl")}
    time.sleep(0.5)
    assert sizes == {path: path.stat().st_size for path in tmp_path.glob("runs/*/rounds.jsonl")}
    for path in sizes:
        for line in path.read_text().splitlines():
            json.loads(line)
