"""Runs that train together: each is the run alone, goes on alone or together, and fails for itself."""

import json
import logging
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kfl
from kfl.algorithms import ALGORITHMS, Kfl
from kfl.core.errors import ConfigError, StoppedError
from kfl.engine.plan import Plan
from kfl.simulation import RunsFailedError, build_world, resume, run_many
from kfl.simulation.jobs import Job
from kfl.simulation.many import run_paths
from kfl.simulation.runner import run_world
from kfl.simulation.together import in_groups

SMALL = kfl.Experiment(devices=8, rounds=3, widths=(8, 12), scheduler=kfl.Uniform(count=3), split="dirichlet")
SEEDS = [replace(SMALL, seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    y = np.arange(480) % 4
    return kfl.Dataset.from_arrays(draw.normal(size=(480, 1, 5, 5)).astype(np.float32) * 2 + y[:, None, None, None], y)


def alone(experiment, folder, data, **options):
    """The run by itself with the stacked engine, on the CPU."""
    plan = Plan(paths=("stacked",) * len(experiment.widths))
    return run_world(build_world(experiment, dataset=data, plan=plan), folder, **options)


def arrays(folder):
    """The server's arrays and every model of a finished run."""
    from safetensors.numpy import load_file

    with np.load(folder / "knowledge.npz") as file:
        found = {f"server/{name}": file[name] for name in file.files}
    for path in sorted((folder / "models").glob("*.safetensors")):
        found.update({f"{path.stem}/{name}": value for name, value in load_file(path).items()})
    return found


def assert_same(one, other, tolerance=1e-5):
    """Decisions, energies, bits and accuracy are the same; weights and knowledge to a tolerance."""
    assert one.rounds == other.rounds
    assert one.devices == other.devices
    found, wanted = arrays(Path(one.folder)), arrays(Path(other.folder))
    assert list(found) == list(wanted) and len(found) > 1
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def recorded(folder):
    return json.loads((Path(folder) / "environment.json").read_text())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_three_seeds_together_are_the_three_runs_alone(name, data, tmp_path):
    algorithm = ALGORITHMS[name](**({"proxy_per_class": 5} if name == "fedkd" else {}))
    widths = (8,) if algorithm.needs_equal_models else (8, 12)
    runs = [replace(one, algorithm=algorithm, widths=widths) for one in SEEDS]
    found = run_many(runs, tmp_path / "together", dataset=data, together=3, keep_models=True)
    for one, experiment in zip(found, runs, strict=True):
        other = alone(experiment, tmp_path / f"alone{experiment.seed}", data)
        assert_same(one, other)
        assert recorded(one.folder)["plan"] == {**recorded(other.folder)["plan"], "together": 3}
    assert recorded(found[0].folder)["repeatable"].startswith("no: dataset")
    assert len({one.rounds for one in found}) == 3


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="known of this library's products")
def test_with_equally_many_samples_even_the_bits_are_the_same(data, tmp_path):
    """On a CPU, where a product does not depend on what else is in its batch. Unequal ones are filled up otherwise."""
    runs = [replace(one, split="iid", scheduler=kfl.scheduling.Lyapunov(v=0.01)) for one in SEEDS]
    found = run_many(runs, tmp_path / "together", dataset=data, together=3, keep_models=True)
    for one, experiment in zip(found, runs, strict=True):
        assert_same(one, alone(experiment, tmp_path / f"alone{experiment.seed}", data), 0.0)


def test_the_same_runs_together_again_are_the_same_bits(data, tmp_path):
    """Whichever thread came first."""
    first, second = (
        run_many(SEEDS, tmp_path / name, dataset=data, together=3, keep_models=True) for name in ("one", "two")
    )
    for one, other in zip(first, second, strict=True):
        assert_same(one, other, 0.0)


def test_a_dataset_with_a_name_is_read_once_and_leaves_the_runs_repeatable(data, tmp_path, monkeypatch):
    (tmp_path / "counted.py").write_text(
        "import kfl, numpy as np\nread = []\n"
        "def load():\n"
        "    read.append(1)\n"
        "    y = np.arange(80) % 4\n"
        "    return kfl.Dataset.from_arrays(np.random.default_rng(0).random((80, 6)) + y[:, None], y)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import counted

    runs = [replace(one, dataset="counted:load", split="iid") for one in SEEDS]
    found = run_many(runs, tmp_path / "runs", together=3)
    assert len(counted.read) == 2, "once to see that all is well, once for all runs"
    assert [recorded(one.folder)["repeatable"] for one in found] == ["yes"] * 3


def test_progress_is_told_round_by_round_in_the_thread_that_called(data, tmp_path):
    from threading import current_thread

    told = []
    run_many(SEEDS, tmp_path, dataset=data, together=3, on_progress=lambda p: told.append((current_thread(), p)))
    assert {thread for thread, _ in told} == {current_thread()}
    rounds = [progress.rounds_done for _, progress in told if progress.history is None]
    assert rounds == list(range(1, 10))
    assert [progress.runs_done for _, progress in told if progress.history is not None] == [1, 2, 3]
    halfway = {progress.name for _, progress in told[:3]}
    assert len(halfway) == 3, "all three play their first round before any plays its second"


OWN = """
from dataclasses import dataclass
from kfl.algorithms import Kfl

@dataclass(frozen=True)
class Wild(Kfl):
    def local_update(self, message, devices, states, engine, key):
        after, uploads = Kfl.local_update(self, message, devices, states, engine, key)
        if key.seed == 1:
            after = [{name: value * float("inf") for name, value in state.items()} for state in after]
        return after, uploads

@dataclass(frozen=True)
class Buggy(Kfl):
    def server_init(self, engine, seed):
        if seed == 2:
            raise RuntimeError("out of luck\\nsecond line")
        return Kfl.server_init(self, engine, seed)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Algorithms that go wrong for one seed."""
    (tmp_path / "own_together.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    import own_together

    yield own_together
    del sys.modules["own_together"]


def test_a_run_that_diverges_fails_alone(data, tmp_path, own):
    runs = [replace(one, rounds=6, algorithm=own.Wild()) for one in SEEDS]
    with pytest.raises(RunsFailedError, match=r"1 of 3 runs failed.*infinity") as problem:
        run_many(runs, tmp_path / "runs", dataset=data, together=3)
    good, none, other = problem.value.histories
    assert none is None
    for seed, found in ((0, good), (2, other)):
        expected = alone(replace(SMALL, rounds=6, seed=seed), tmp_path / f"alone{seed}", data)
        assert found.rounds == expected.rounds


def test_a_bug_in_one_run_is_that_runs_sentence(data, tmp_path, own):
    runs = [replace(one, algorithm=own.Buggy()) for one in SEEDS]
    with pytest.raises(RunsFailedError, match=r"RuntimeError: out of luck \(the traceback is in") as problem:
        run_many(runs, tmp_path / "runs", dataset=data, together=3)
    assert [history is None for history in problem.value.histories] == [False, False, True]
    assert "second line" in next((tmp_path / "runs").glob("*.error.txt")).read_text()


def stop_after(rounds):
    """Stops a run that is played by itself after so many rounds."""
    played = []
    return {"on_round": played.append, "should_stop": lambda: len(played) >= rounds - 1}


def test_an_unfinished_run_goes_on_alone_or_together_whatever_it_was_before(data, tmp_path, caplog):
    """The rule: who shares the batches is no part of a checkpoint's identity; the folder keeps the most that did."""
    runs = [replace(one, rounds=6) for one in SEEDS]
    expected = [alone(one, tmp_path / f"alone{one.seed}", data) for one in runs]
    folder = tmp_path / "runs"
    stop_together(runs, folder, data)
    paths = run_paths(runs, folder)
    assert all(1 < len((path / "rounds.jsonl").read_text().splitlines()) < 6 for path in paths)
    assert all(list((path / "state").glob("point-*.json")) for path in paths)
    with caplog.at_level(logging.WARNING, "kfl"):
        first = resume(paths[0], dataset=data)  # alone, by the plan of the folder
        assert recorded(paths[0])["plan"] == {**recorded(paths[1])["plan"], "together": 3}
        rest = run_many(runs, folder, dataset=data, together=2, keep_models=True)
    assert not caplog.records, "no checkpoint was refused or found damaged"
    assert rest[0].rounds == first.rounds
    for one, other in zip([first, *rest[1:]], expected, strict=True):
        assert_same(one, other)
    assert recorded(paths[1])["plan"]["together"] == 3, "three shared its batches at first, two in the end"
    with pytest.raises(StoppedError):
        alone(runs[0], tmp_path / "half", data, checkpoint_s=0, **stop_after(2))
    # And the other way round: alone at first, at a table with others later.
    (tmp_path / "half").rename(paths[0].with_name("x"))
    again = tmp_path / "again"
    again.mkdir()
    paths[0].with_name("x").rename(run_paths(runs, again)[0])
    mixed = run_many(runs[:2], again, dataset=data, together=2, keep_models=True)
    assert_same(mixed[0], expected[0])
    assert recorded(mixed[0].folder)["plan"]["together"] == 2


def stop_together(runs, folder, data):
    """Interrupt runs that train together once each has played two rounds; they end with a checkpoint."""

    def interrupt(progress):
        if progress.rounds_done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_many(runs, folder, dataset=data, together=3, on_progress=interrupt)


def test_a_run_that_was_begun_in_another_way_goes_on_in_that_way_and_alone(data, tmp_path):
    """Begun by the CPU's own kernels, it is not moved to the batched engine: that would be another plan."""
    path = run_paths(SEEDS, tmp_path)[0]
    with pytest.raises(StoppedError):
        kfl.run(SEEDS[0], path, dataset=data, should_stop=lambda: True)
    jobs = [
        Job(one, where, data, None, "cpu", "float32", False)
        for one, where in zip(SEEDS, run_paths(SEEDS, tmp_path), strict=True)
    ]
    assert [len(group) for group in in_groups(jobs, 3)] == [1, 2]
    found = run_many(SEEDS, tmp_path, dataset=data, together=3)
    assert [recorded(one.folder)["plan"]["paths"][0] for one in found] == ["mlp", "stacked", "stacked"]
    assert [recorded(one.folder)["plan"]["together"] for one in found] == [1, 2, 2]
    assert found[0].rounds == kfl.run(SEEDS[0], dataset=data).rounds


def test_only_runs_that_differ_in_their_seed_alone_are_grouped_and_groups_are_even(tmp_path):
    others = [replace(one, algorithm=Kfl(learning_rate=0.1)) for one in SEEDS]
    many = [replace(SMALL, seed=seed) for seed in range(10)]
    jobs = [Job(one, tmp_path / str(n), None, None, "cpu", "float32", False) for n, one in enumerate([*many, *others])]
    assert [len(group) for group in in_groups(jobs, 8)] == [5, 5, 3]
    assert [[job.experiment.seed for job in group] for group in in_groups(jobs[:3], 2)] == [[0], [1, 2]]
    assert [len(group) for group in in_groups(jobs, None)] == [1] * 13, "none on a CPU unless asked for"
    assert in_groups([jobs[0]], 8) == [[jobs[0]]]
    for off in (0, 1):
        assert [len(group) for group in in_groups(jobs, off)] == [1] * 13


def test_what_cannot_be_is_said(data, tmp_path):
    for together, options in ((-1, {}), (2, {"workers": 2}), (2, {"ray": "local"})):
        with pytest.raises(ConfigError, match=f"together is {together}, but must be 0 or"):
            run_many(SEEDS, tmp_path, dataset=data, together=together, **options)


def test_threads_are_put_back(data, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_many([replace(one, rounds=1) for one in SEEDS], tmp_path, dataset=data, together=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_ctrl_c_ends_every_run_after_its_round_and_the_same_command_goes_on(tmp_path):
    words = ["compare", "--algorithms", "kfl", "--seeds", "0..2", "--devices", "10", "--widths", "8", "--together", "3"]
    words += ["--scheduler.count", "2", "--radio", "none", "--samples-per-device", "20", "--rounds", "100000"]
    first = interrupted([*words, "--out", "c"], tmp_path, {})
    assert len(first) == 3
    second = interrupted([*words, "--out", "c"], tmp_path, first)
    for name, before in first.items():
        assert second[name][: len(before)] == before, "what was played is kept, and gone on from"
        state = tmp_path / "c" / name / "state"
        assert (state / f"point-{len(second[name]):06d}.json").exists(), "a checkpoint of the very last round"
        assert recorded(state.parent)["plan"]["together"] == 3


def interrupted(words, place, before):
    """Press Ctrl-C when three runs have more rounds than before: the rounds of each."""

    def rounds():
        found = {path.parent.name: path.read_text().splitlines() for path in place.glob("c/*/rounds.jsonl")}
        return {name: lines for name, lines in found.items() if len(lines) > len(before.get(name, []))}

    command = [sys.executable, "-m", "kfl.cli.main", *words]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        until = time.monotonic() + 90
        while time.monotonic() < until and process.poll() is None and len(rounds()) < 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "interrupted; finished runs are kept" in shown and "Traceback" not in shown
    return rounds()


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_on_a_gpu_seeds_train_together_unless_told_otherwise(device, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    jobs = [Job(replace(SMALL, seed=n), tmp_path / str(n), None, None, device, "tf32", False) for n in range(9)]
    assert [len(group) for group in in_groups(jobs, None)] == [4, 5]
    assert [len(group) for group in in_groups(jobs, 3)] == [3, 3, 3]
    assert [len(group) for group in in_groups(jobs, 1)] == [1] * 9
