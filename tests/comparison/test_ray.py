"""Runs on Ray: the same results as here, resumed, retried when a worker dies, and one failure loses no other.

All Ray tests are in this module, so that parallel test processes start one cluster only.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import kfl
from kfl.algorithms import Kfl, Local
from kfl.comparison import RunsFailedError, run_many
from kfl.comparison.execution import run_paths
from kfl.comparison.pool import Job
from kfl.comparison.ray import check_address, play_on_ray
from kfl.core.errors import ConfigError, KflError, StoppedError
from kfl.runner import RunOptions
from tests.reference.toy import toy_data

ray = pytest.importorskip("ray")

SMALL = kfl.Experiment(devices=6, rounds=3, widths=(8, 12), scheduler=kfl.Uniform(count=2), radio="paper-mnist")
FOUR = [replace(SMALL, algorithm=algorithm, seed=seed) for algorithm in (Kfl(), Local()) for seed in (0, 1)]
SAME = ("config.toml", "rounds.jsonl", "devices.json")


@pytest.fixture(scope="module")
def data():
    return toy_data()


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder of modules that workers import."""
    return tmp_path_factory.mktemp("modules")


def free_ports(count):
    with ExitStack() as stack:
        found = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [one.getsockname()[1] for one in found]


@pytest.fixture(scope="module")
def ports():
    """Of the cluster's head, of its agent, and of the server for clients from elsewhere."""
    return free_ports(3)


@pytest.fixture(scope="module")
def cluster(modules, ports):
    """Address of a Ray cluster of two cores, in processes of its own."""
    port, agent, client = ports
    folder = tempfile.mkdtemp(prefix="kfl-ray-")  # sockets in it must have short paths
    words = ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={folder}", f"--port={port}", "--block"]
    words += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}", "--disable-usage-stats"]
    ray_command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1"]
    environment = {**os.environ, "PYTHONPATH": str(modules), "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen([*ray_command, *words], env=environment, stdout=subprocess.DEVNULL) as head:
        until = time.monotonic() + 60
        while time.monotonic() < until and head.poll() is None:
            try:
                check_address(f"127.0.0.1:{port}")
                check_address(f"ray://127.0.0.1:{client}")
            except ConfigError:
                time.sleep(0.1)
            else:
                break
        yield f"127.0.0.1:{port}"
        head.terminate()
        head.wait(30)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return run_many(FOUR, tmp_path_factory.mktemp("alone"), dataset=data)


def contents(history):
    return {name: (Path(history.folder) / name).read_bytes() for name in SAME}


def test_ray_gives_exactly_what_one_process_and_two_give(cluster, data, alone, tmp_path):
    told = []
    found = run_many(FOUR, tmp_path / "ray", ray=cluster, dataset=data, on_progress=told.append)
    two = run_many(FOUR, tmp_path / "two", workers=2, dataset=data)
    for expected, processes, there in zip(alone, two, found, strict=True):
        assert contents(expected) == contents(processes) == contents(there)
        assert expected.rounds == there.rounds
    assert (told[-1].rounds_done, told[-1].runs_done) == (12, 4)
    assert all(one.rounds_done <= other.rounds_done for one, other in pairwise(told))
    assert sorted(path.name for path in (tmp_path / "ray").iterdir()) == sorted(Path(h.folder).name for h in found)


def test_a_run_that_was_begun_goes_on_and_a_finished_one_is_left_alone(cluster, data, alone, tmp_path):
    first, second = run_paths(FOUR[:2], tmp_path)
    with pytest.raises(StoppedError):
        kfl.run(FOUR[0], first, dataset=data, keep_models=False, should_stop=lambda: True)
    run_many(FOUR[1:2], tmp_path, dataset=data)
    stamp = (second / "summary.json").stat().st_mtime_ns
    begun = json.loads((first / "rounds.jsonl").read_text().splitlines()[0])
    assert begun["round"] == 0
    found = run_many(FOUR[:2], tmp_path, ray=cluster, dataset=data)
    assert [contents(history) for history in found] == [contents(history) for history in alone[:2]]
    assert (second / "summary.json").stat().st_mtime_ns == stamp
    assert not (first / "state").exists()


def write_mortal(modules, note):
    """A module whose first training kills its process, and whose other model always does."""
    (modules / "mortal.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom torch import nn\nimport kfl\n"
        "class Mortal(nn.Linear):\n"
        "    def forward(self, x):\n"
        f"        note = Path({str(note)!r})\n"
        "        if self.training and not note.exists():\n"
        "            note.touch()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(x)\n"
        "def build(input_shape, classes, width):\n"
        "    return kfl.SplitModel(nn.Sequential(nn.Flatten(), Mortal(25, width)), nn.Linear(width, classes))\n"
        "def never(input_shape, classes, width):\n"
        "    os._exit(9)\n"
    )


def test_nodes_that_do_not_see_the_folder_send_the_files(cluster, data, alone, tmp_path, modules):
    (modules / "unlucky.py").write_text("def build(input_shape, classes, width):\n    raise RuntimeError('bad luck')\n")
    bad = replace(SMALL, model="unlucky:build", widths=(8,))
    write_mortal(modules, tmp_path / "killed")
    shaken = replace(SMALL, model="mortal:build", widths=(8,))
    paths = run_paths([*FOUR, shaken, bad], tmp_path / "runs")
    with pytest.raises(StoppedError):  # what was begun here is of no use there, and is replaced
        kfl.run(FOUR[0], paths[0], dataset=data, keep_models=False, should_stop=lambda: True)
    jobs = [Job(one, path, data, RunOptions()) for one, path in zip([*FOUR, shaken, bad], paths, strict=True)]
    ends = {}
    before = set(Path(tempfile.gettempdir()).glob("kfl.*"))
    play_on_ray(
        jobs, cluster, 1, lambda job, ended, problem: ends.update({job.path: problem} if ended else {}), shared=False
    )
    for path, history in zip(paths, alone, strict=False):
        assert ends[path] is None
        assert {name: (path / name).read_bytes() for name in SAME} == contents(history)
        assert list((path / "models").iterdir())
        assert not (path / "state").exists()
    assert (tmp_path / "killed").exists()
    assert ends[paths[4]] is None
    assert len(kfl.load_run(paths[4])[1].rounds) == 3
    assert not ends[paths[-1]].diverged
    said = ends[paths[-1]].sentence
    assert said.startswith("RuntimeError: bad luck")
    assert str(tmp_path / "runs") in said
    assert "bad luck" in next((tmp_path / "runs").glob("*.error.txt")).read_text()
    assert not paths[-1].exists()
    assert set(Path(tempfile.gettempdir()).glob("kfl.*")) == before


def test_twenty_runs_survive_a_killed_worker_and_one_that_cannot_be_saved(cluster, data, tmp_path, modules):
    write_mortal(modules, tmp_path / "killed")
    twenty = [replace(SMALL, model="mortal:build", widths=(8,), rounds=2, seed=seed) for seed in range(20)]
    lost = replace(SMALL, model="mortal:never", widths=(8,))
    with pytest.raises(RunsFailedError, match=r"Its Ray worker died 4 times") as problem:
        run_many([*twenty, lost], tmp_path / "ray", ray=cluster, dataset=data)
    assert (tmp_path / "killed").exists()
    assert len(problem.value.problems) == 1
    sys.path.append(str(modules))
    try:
        here = run_many(twenty, tmp_path / "here", dataset=data)
    finally:
        sys.path.remove(str(modules))
    there = problem.value.histories
    assert there[20] is None
    assert [contents(one) for one in here] == [contents(one) for one in there[:20]]


def test_a_failing_run_is_a_sentence_and_loses_no_other(cluster, data, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    bad = replace(SMALL, classes_per_device=9999, devices=5)
    with pytest.raises(RunsFailedError, match="1 of 2 runs failed") as problem:
        run_many([SMALL, bad], tmp_path, ray="auto", dataset=data)
    assert [history is None for history in problem.value.histories] == [False, True]
    assert "shards" in str(problem.value)
    with pytest.raises(ConfigError, match="no node of the Ray cluster"):
        run_many([replace(SMALL, seed=5)], tmp_path, ray=cluster, dataset=data, device="cuda")


def test_a_machine_outside_the_cluster_comes_in_as_a_client(cluster, ports, data, alone, tmp_path):
    found = run_many(FOUR[:1], tmp_path, ray=f"ray://127.0.0.1:{ports[2]}", dataset=data)
    assert contents(found[0]) == contents(alone[0])


def test_an_address_without_ray_is_a_sentence_at_once(data, tmp_path, monkeypatch):
    (closed,) = free_ports(1)
    for address, words in (
        (f"127.0.0.1:{closed}", "Connection refused"),
        (f"ray://127.0.0.1:{closed}", "Connection refused"),
        ("absent.invalid:6379", "address of a running Ray cluster"),
        ("127.0.0.1:99999", "HOST:PORT"),
        ("127.0.0.1", "HOST:PORT"),
    ):
        with pytest.raises(ConfigError, match=words):
            run_many([SMALL], tmp_path, ray=address, dataset=data)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KflError, match=r"kfl\[ray\]"):
        run_many([SMALL], tmp_path, ray="local", dataset=data)


def test_the_command_on_a_cluster_of_its_own_and_interrupted(tmp_path):
    (tmp_path / "digitlike.py").write_text(
        "import numpy as np, kfl\n"
        "def data():\n"
        "    y = np.arange(240) % 4\n"
        "    x = np.random.default_rng(0).normal(size=(240, 1, 5, 5)).astype('float32') + y[:, None, None, None]\n"
        "    return kfl.Dataset.from_arrays(x, y)\n"
    )
    words = ["--dataset", "digitlike:data", "--devices", "6", "--scheduler.count", "2", "--widths", "8"]
    words += ["--algorithms", "local", "--rounds", "1000000", "--seeds", "0,1", "--out", "c", "--workers", "2"]
    command = [sys.executable, "-m", "kfl.cli.main", "compare", *words, "--ray", "local"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 90
        while time.monotonic() < until and process.poll() is None and not all(sizes(tmp_path, 2)):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished runs are kept. To continue: kfl compare" in said
    assert "Traceback" not in said
    before = sizes(tmp_path, 2)
    assert all(before)
    time.sleep(0.5)
    assert sizes(tmp_path, 2) == before
    assert not list((tmp_path / "c").glob(".*"))


def sizes(folder, count):
    found = [path.stat().st_size for path in sorted(folder.glob("c/*/rounds.jsonl"))]
    return [*found, *[0] * (count - len(found))]
