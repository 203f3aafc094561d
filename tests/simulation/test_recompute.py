"""`studies/recompute_run.py`, as a stranger runs it: every account of a run folder follows from the folder alone."""

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kfl
from kfl.experiment.faults import Faults
from kfl.scheduling import SCHEDULERS, Dual, Lyapunov, Uniform
from kfl.wireless import CellConfig
from tests.reference.runs import data

SCRIPT = Path(__file__).parents[2] / "studies" / "recompute_run.py"
CELL = CellConfig(power_coefficient=1.5e-25, bandwidth_hz=1e4)
"""The small networks of these tests compute next to nothing, so their processors waste more and the band is narrow."""
SMALL = kfl.Experiment(devices=8, rounds=12, widths=(8, 12), radio=CELL, scheduler=Lyapunov(v=0.01))
EVERYTHING = Faults(drop_before=0.1, battery_empty=0.2, drop_after=0.1, late=0.1, outage=0.1, corrupt=0.1, leave=0.2)
RUNS = {
    **{name: replace(SMALL, scheduler=kind()) for name, kind in SCHEDULERS.items()},
    "as printed": replace(SMALL, scheduler=Lyapunov(as_printed=True)),
    "hard budgets and real work": replace(SMALL, scheduler=Uniform(count=5), hard_budget=True, real_work=True),
    "no budgets": replace(SMALL, radio=replace(CELL, budget_j_per_round=float("inf"))),
    "resource blocks": replace(SMALL, scheduler=Dual(), radio=replace(CELL, resource_blocks=10)),
    "lost uploads": replace(SMALL, radio=replace(CELL, channel_error=0.3)),
    "downlink": replace(SMALL, radio=replace(CELL, downlink_power_dbm=10.0)),
    "missed broadcasts": replace(SMALL, radio=replace(CELL, channel_error=0.3, downlink_power_dbm=10.0)),
    "faults": replace(SMALL, scheduler=Uniform(count=5), faults=EVERYTHING),
    "no uploads": replace(SMALL, algorithm=kfl.Local()),
    "weights": replace(SMALL, widths=(8,), algorithm=kfl.FedAvg(), radio=replace(CELL, bandwidth_hz=1e6)),
}


def recompute(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", RUNS)
def test_the_folder_says_it_all(tmp_path, name):
    history = kfl.run(RUNS[name], tmp_path / "run", dataset=data(), keep_models=False)
    assert sum(len(log.devices) for log in history.rounds) > 0
    assert bool(history.summary["lost_uploads"]) == (name in ("lost uploads", "missed broadcasts", "faults"))
    assert bool(history.summary["missed_broadcasts"]) == (name == "missed broadcasts")
    found = recompute(tmp_path / "run")
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(found.stdout.splitlines()) > 10


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    kfl.run(RUNS["downlink"], folder, dataset=data(), keep_models=False)
    return folder


@pytest.mark.parametrize(
    ("file", "field"),
    [
        *[
            ("rounds.jsonl", name)
            for name in ("share", "power_w", "gain", "compute_time_s", "upload_time_s", "queue_j")
        ],
        *[
            ("rounds.jsonl", name)
            for name in ("compute_energy_j", "upload_energy_j", "time_s", "reserved_s", "broadcast_s")
        ],
        *[("devices.json", name) for name in ("cpu_hz", "flops", "bits_up", "budget_j", "queue_j", "upload_energy_j")],
        *[("summary.json", name) for name in ("energy_j", "time_s", "bits_up", "largest_use_of_budget")],
    ],
)
def test_a_number_that_was_changed_is_found(tmp_path, whole, file, field):
    folder = tmp_path / "changed"
    shutil.copytree(whole, folder)
    text = (folder / file).read_text()
    kept = [json.loads(line) for line in text.splitlines()] if file == "rounds.jsonl" else json.loads(text)
    busy = [one for one in kept if one.get("devices", True)] if isinstance(kept, list) else [kept]
    record = max(busy, key=lambda one: np.max(one[field], initial=0.0))
    changed = np.array(record[field], float)
    changed[np.unravel_index(changed.argmax(), changed.shape)] *= 1 + 1e-6  # no reader would see it
    record[field] = changed.tolist()
    (folder / file).write_text(
        "".join(json.dumps(one) + "\n" for one in kept) if file == "rounds.jsonl" else json.dumps(kept)
    )
    assert runpy.run_path(str(SCRIPT))["main"](folder) == 1


def test_a_changed_folder_ends_the_command_with_1(tmp_path, whole):
    folder = tmp_path / "changed"
    shutil.copytree(whole, folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "energy_j": summary["energy_j"] * (1 - 1e-6)}))
    found = recompute(folder)
    assert found.returncode == 1 and "1.0e-06  totals (summary.json)" in found.stdout


def test_a_folder_without_gains_is_told_apart():
    found = recompute(Path(__file__).parents[1] / "runfolder" / "earlier" / "finished")
    assert found.returncode == 1 and "of a version that kept no gains" in found.stderr


def test_it_is_short_and_needs_nothing_of_ours():
    text = SCRIPT.read_text()
    assert len(text.splitlines()) < 100
    assert "kfl" not in [
        line.split()[1].partition(".")[0] for line in text.splitlines() if line[:5] in ("impor", "from ")
    ]
