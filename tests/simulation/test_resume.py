"""A run that is interrupted and resumed is the run that was never interrupted, file by file."""

import io
import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kfl
from kfl.core.errors import KflError, RunFolderError, StoppedError
from kfl.core.files import Folder, only_one
from kfl.data.untrusted import read_npz
from kfl.engine.plan import Plan
from kfl.experiment.faults import Faults
from kfl.runfolder import Checkpoints
from kfl.runfolder._checkpoint import _pack_rest, _unpack_rest
from kfl.runfolder._tensors import read_rows, rows_sum, write_rows
from kfl.runner import RunOptions, run_world
from kfl.scheduling import Lyapunov, RoundRobin
from kfl.simulation import build_world
from kfl.simulation.fleet import finite
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from tests.reference.algorithms import small
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(devices=8, rounds=9, widths=(8, 12), scheduler=kfl.Uniform(count=3))
SAME = ("config.toml", "rounds.jsonl", "trail.jsonl", "devices.json", "server.npz")


@pytest.fixture(scope="module")
def data():
    return toy_data(480, (5,))


class CrashError(Exception):
    pass


def crash_at(*rounds):
    def check(log):
        if log.round in rounds:
            raise CrashError

    return check


def equal(one: Path, other: Path) -> None:
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    models = sorted(path.name for path in (one / "models").iterdir())
    assert models == sorted(path.name for path in (other / "models").iterdir())
    for name in models:
        assert (one / "models" / name).read_bytes() == (other / "models" / name).read_bytes()


@pytest.mark.parametrize(
    "experiment",
    [
        SMALL,
        replace(SMALL, scheduler=RoundRobin(count=3), radio=kfl.CellConfig(fading_correlation=0.9)),
        replace(SMALL, scheduler=Lyapunov(v=0.01), hard_budget=True),
        replace(SMALL, faults=Faults(drop_before=0.2, late=0.2, corrupt=0.3, join=0.3, leave=0.2)),
        replace(SMALL, algorithm=kfl.algorithms.ALGORITHMS["fedavg"](), widths=(8,)),
        replace(SMALL, algorithm=kfl.algorithms.ALGORITHMS["apfl"](), widths=(8,), evaluate_every=4),
        replace(SMALL, evaluate_every=4),
        replace(
            SMALL,
            scheduler=kfl.Dual(),
            radio=kfl.CellConfig(min_cpu_hz=1e6, circuit_power_w=0.3, tail_power_w=0.1, tail_s=0.5, resource_blocks=20),
        ),
    ],
    ids=["kfl", "memory and fading", "queues", "faults", "fedavg", "apfl", "tests now and then", "whole devices"],
)
def test_a_run_crashed_again_and_again_ends_as_if_nothing_had_happened(data, tmp_path, experiment):
    kfl.run(experiment, tmp_path / "whole", dataset=data)
    for crash in (0, 3, 3, 7, 8):
        with pytest.raises(CrashError):
            kfl.run(experiment, tmp_path / "broken", dataset=data, on_round=crash_at(crash))
    kfl.resume(tmp_path / "broken", dataset=data)
    equal(tmp_path / "whole", tmp_path / "broken")
    assert not (tmp_path / "broken" / "state").exists()


def test_asking_to_stop_ends_after_a_whole_round_and_resumes(data, tmp_path):
    kfl.run(SMALL, tmp_path / "whole", dataset=data)
    answers = iter([False, False, True])
    with pytest.raises(StoppedError, match=r"after round 3.*kfl resume"):
        kfl.run(SMALL, tmp_path / "stopped", dataset=data, should_stop=lambda: next(answers))
    assert len(kfl.load_run(tmp_path / "stopped")[1].rounds) == 3
    seen = []
    kfl.resume(tmp_path / "stopped", dataset=data, on_round=seen.append)
    assert [log.round for log in seen] == list(range(9))
    equal(tmp_path / "whole", tmp_path / "stopped")


def stopped_run(data, folder: Path, experiment=SMALL, *, after: int = 5) -> Path:
    count = [0]

    def stop() -> bool:
        count[0] += 1
        return count[0] >= after

    with pytest.raises(StoppedError):
        kfl.run(experiment, folder, dataset=data, should_stop=stop)
    return folder


@pytest.mark.parametrize("name", kfl.algorithms.ALGORITHMS)
def test_every_algorithm_goes_on_from_its_last_checkpoint(data, tmp_path, caplog, name):
    # Devices of some algorithms hold nothing between rounds; their checkpoint is whole all the same.
    experiment = replace(SMALL, algorithm=small(name), widths=(8,))
    kfl.run(experiment, tmp_path / "whole", dataset=data)
    folder = stopped_run(data, tmp_path / "stopped", experiment)
    with caplog.at_level(logging.INFO, logger="kfl"):
        kfl.resume(folder, dataset=data)
    assert "damaged" not in caplog.text
    equal(tmp_path / "whole", folder)


@pytest.mark.parametrize("kind", ["point", "rows", "rest"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(data, tmp_path, caplog, kind, damage):
    kfl.run(SMALL, tmp_path / "whole", dataset=data)
    folder = stopped_run(data, tmp_path / "run")
    points = sorted((folder / "state").glob("point-*"))
    assert len(points) == 2
    newest = sorted((folder / "state").glob(f"{kind}-*"))[-1]
    content = newest.read_bytes()
    if damage == "gone":
        newest.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        newest.write_bytes({"flip": flipped, "cut": content[:middle], "empty": b""}[damage])
    with caplog.at_level(logging.WARNING, logger="kfl"):
        kfl.resume(folder, dataset=data)
    assert ("is damaged" in caplog.text) == (not (kind == "point" and damage == "gone"))
    equal(tmp_path / "whole", folder)


def test_a_checkpoint_that_knows_more_than_the_history_is_not_used(data, tmp_path):
    kfl.run(SMALL, tmp_path / "whole", dataset=data)
    folder = stopped_run(data, tmp_path / "run")
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]) + '{"torn')
    kfl.resume(folder, dataset=data)
    equal(tmp_path / "whole", folder)


def test_a_checkpoint_of_another_version_is_refused_politely(data, tmp_path):
    import hashlib
    import json

    folder = stopped_run(data, tmp_path / "run")
    for path in (folder / "state").glob("point-*"):
        body = json.dumps({**json.loads(json.loads(path.read_text())["point"]), "format_version": 99})
        total = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
        path.write_text(json.dumps({"sum": total, "point": body}))
    with pytest.raises(RunFolderError, match="format version 99"):
        kfl.resume(folder, dataset=data)


def test_names_in_a_checkpoint_cannot_lead_out_of_the_folder(data, tmp_path, caplog):
    import hashlib
    import json

    folder = stopped_run(data, tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    for path in (folder / "state").glob("point-*"):
        point = json.loads(json.loads(path.read_text())["point"])
        point["rows"]["0"] = "../../secret"
        point["sums"]["../../secret"] = hashlib.blake2b(b"x", digest_size=16).hexdigest()
        body = json.dumps(point)
        path.write_text(json.dumps({"sum": hashlib.blake2b(body.encode(), digest_size=16).hexdigest(), "point": body}))
    with caplog.at_level(logging.WARNING, logger="kfl"):
        kfl.resume(folder, dataset=data)
    assert "leads out of the folder" in caplog.text


def test_a_folder_in_use_is_refused(data, tmp_path):
    folder = stopped_run(data, tmp_path / "run")
    with only_one(folder / ".lock"), pytest.raises(RunFolderError, match="in use by another process"):
        kfl.resume(folder, dataset=data)


def test_only_rows_that_changed_are_written_and_waste_is_cleared(data, tmp_path):
    fleet = SimulatedFleet(build_world(replace(SMALL, rounds=60), dataset=data))
    checkpoints, state = Checkpoints(tmp_path), begin(fleet)
    largest = 0
    for _ in range(60):
        state, log = play_round(fleet, state)
        checkpoints.write(state)
        newest = sorted(tmp_path.glob("rows-*"))[-1]
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.glob("rows-*")))
        assert newest.name == f"rows-{state.round:06d}.safetensors"
        assert len(sorted(tmp_path.glob("point-*"))) <= 2
        back = Checkpoints(tmp_path).read(lines=state.round)
        assert back.round == state.round
        for device, row in state.devices.items():
            assert all(torch.equal(row[name], back.devices[device][name]) for name in row)
        assert log.devices
    live = sum(value.nbytes for row in state.devices.values() for value in row.values())
    assert largest < 6 * live


def test_a_checkpoint_that_does_not_know_who_is_untested_has_all_tested(data):
    fleet = SimulatedFleet(build_world(replace(SMALL, evaluate_every=4), dataset=data))
    state, _ = play_round(fleet, begin(fleet))
    assert state.untested == set(np.flatnonzero(state.accounts.participation_count))
    packed = read_npz(_pack_rest(state))
    assert _unpack_rest(npz(packed), 1, {}).untested == state.untested
    del packed["untested"]
    assert _unpack_rest(npz(packed), 1, {}).untested == set(range(8))


def npz(arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_checkpoints_come_as_often_as_they_are_cheap(data):
    now = [0.0]
    state = begin(SimulatedFleet(build_world(SMALL, dataset=data)))
    checkpoints = Checkpoints(Path("unused"), clock=lambda: now[0])
    checkpoints._took = 0.1
    now[0] = 4.9
    assert not checkpoints.due(state)
    now[0] = 5.1
    assert checkpoints.due(state)
    checkpoints._took = 100.0
    assert not checkpoints.due(state)
    now[0] = 30.0
    assert checkpoints.due(state)


def test_a_checkpoint_of_many_rows_is_expected_to_take_longer_than_the_last_of_few(data):
    now = [0.0]
    state = begin(SimulatedFleet(build_world(SMALL, dataset=data)))
    changed = replace(state, devices={device: {} for device in range(10)})
    checkpoints = Checkpoints(Path("unused"), clock=lambda: now[0])
    checkpoints._took, checkpoints._rows_written = 0.1, 2
    now[0] = 5.1
    assert checkpoints.due(state) and not checkpoints.due(changed)
    now[0] = 25.1
    assert checkpoints.due(changed)


def test_a_device_that_diverges_keeps_its_model_and_the_run_goes_on(data):
    wild = replace(SMALL, algorithm=kfl.Kfl(learning_rate=0.05), rounds=3)
    fleet = SimulatedFleet(build_world(wild, dataset=data))
    state = begin(fleet)
    state, _ = play_round(fleet, state)
    victim = next(iter(state.devices))
    poisoned = {
        name: value * 1e30 if value.is_floating_point() else value for name, value in state.devices[victim].items()
    }
    state = replace(state, devices={**state.devices, victim: poisoned})
    for _ in range(8):
        state, log = play_round(fleet, state)
        if victim in log.devices:
            assert log.diverged == (victim,)
            assert state.devices[victim] is poisoned
            assert all(torch.isfinite(value).all() for value in state.server.values())
            return
    raise AssertionError("the device was never scheduled")


def test_a_run_of_a_kfl_that_did_not_know_a_setting_goes_on(data, tmp_path):
    experiment = replace(SMALL, rounds=6)
    whole = kfl.run(experiment, tmp_path / "whole", dataset=data)
    rounds = []
    with pytest.raises(StoppedError):
        kfl.run(
            experiment,
            tmp_path / "old",
            dataset=data,
            on_round=rounds.append,
            should_stop=lambda: len(rounds) >= 2,
        )
    config = tmp_path / "old" / "config.toml"
    text = config.read_text()
    assert 'tested_devices = "none"\n' in text
    config.write_text(text.replace('tested_devices = "none"\n', ""))
    played = []
    assert kfl.run(experiment, tmp_path / "old", dataset=data, on_round=played.append).rounds == whole.rounds
    with pytest.raises(RunFolderError, match="tested_devices"):
        kfl.run(replace(experiment, tested_devices=2), tmp_path / "old", dataset=data)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_found_wherever_it_is_and_large_ones_are_no_such(value):
    fine = {"a": torch.full((3, 4), 3e38), "b": torch.zeros(5), "count": torch.tensor(7)}
    broken = {"a": torch.zeros(3, 4), "b": torch.tensor([1.0, value, -value, 0.0, 2.0]), "count": torch.tensor(7)}
    assert not torch.isfinite(fine["a"].sum())
    assert finite([fine, broken, fine, {}]) == [True, False, True, True]


def test_a_run_in_which_most_devices_diverge_stops_and_says_what_to_do(data):
    with pytest.raises(KflError, match=r"lower --algorithm\.learning-rate"):
        kfl.run(replace(SMALL, algorithm=kfl.Kfl(learning_rate=1e6)), dataset=data)


def test_rows_are_written_as_safetensors_of_any_type_and_shape(tmp_path):
    rows = {
        3: {"a": torch.randn(4, 3).T, "b": torch.tensor(2.5), "empty": torch.zeros(0, 2), "flag": torch.tensor([True])},
        11: {
            "a": torch.arange(5),
            "half": torch.randn(3).half(),
            "brain": torch.randn(3).bfloat16(),
            "é": torch.ones(1),
        },
    }
    with Folder(tmp_path) as folder:
        total, size = write_rows(folder, "rows", rows)
    content = (tmp_path / "rows").read_bytes()
    assert rows_sum(content) == total and len(content) == size
    back = read_rows(content)
    assert back.keys() == rows.keys()
    for device, row in rows.items():
        assert back[device].keys() == row.keys()
        for name, value in row.items():
            assert back[device][name].dtype == value.dtype and torch.equal(back[device][name], value)


def test_a_folder_of_an_older_version_with_seeds_in_one_batch_is_resumed(data, tmp_path):
    """Its plan says how many seeds shared a batch, and may be stacked on a CPU."""
    plan = Plan.read({"paths": ("stacked", "stacked")})
    whole = run_world(build_world(SMALL, dataset=data, plan=plan), tmp_path / "whole")
    with pytest.raises(CrashError):
        options = RunOptions(checkpoint_s=0, on_round=crash_at(5))
        run_world(build_world(SMALL, dataset=data, plan=plan), tmp_path / "old", options)
    path = tmp_path / "old" / "environment.json"
    facts = json.loads(path.read_text())
    facts["plan"]["together"] = 5
    path.write_text(json.dumps(facts))
    assert kfl.resume(tmp_path / "old", dataset=data).rounds == whole.rounds
    equal(tmp_path / "whole", tmp_path / "old")
