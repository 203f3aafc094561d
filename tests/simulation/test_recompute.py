"""`studies/recompute_run.py`, as a third party runs it: every account of a run folder follows from the folder alone."""

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
WHOLE = replace(
    CELL,
    min_cpu_hz=1e6,
    static_power_w=0.002,
    circuit_power_w=0.5,
    amplifier_efficiency=0.3,
    min_power_dbm=-30.0,
    connect_energy_j=0.01,
    receive_power_w=0.1,
    tail_power_w=0.02,
    tail_s=1.0,
    downlink_power_dbm=10.0,
)
"""Every field of the whole device."""
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
    "whole devices": replace(SMALL, radio=WHOLE),
    "whole devices, blocks": replace(SMALL, scheduler=Dual(), radio=replace(WHOLE, resource_blocks=10)),
    "whole devices, faults": replace(SMALL, scheduler=Uniform(count=5), faults=EVERYTHING, radio=WHOLE),
    "whole devices, hard budgets": replace(
        SMALL, scheduler=Uniform(count=5), hard_budget=True, radio=replace(WHOLE, budget_j_per_round=0.05)
    ),
    "whole devices, lost uploads": replace(
        SMALL, radio=replace(WHOLE, channel_error=0.3, downlink_power_dbm=None, receive_power_w=0.0)
    ),
    "whole devices, no uploads": replace(SMALL, algorithm=kfl.Local(), radio=WHOLE),
    "batteries": replace(SMALL, radio=replace(WHOLE, battery_capacity_j=1.0, initial_charge=0.5, harvest="sun")),
    "encoder": replace(SMALL, encoder="random-8", radio=CELL),
    "weights": replace(SMALL, widths=(8,), algorithm=kfl.FedAvg(), radio=replace(CELL, bandwidth_hz=1e6)),
}


def recompute(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", RUNS)
def test_the_folder_says_it_all(tmp_path, name):
    history = kfl.run(RUNS[name], tmp_path / "run", dataset=data(), keep_models=False)
    assert sum(len(log.devices) for log in history.rounds) > 0
    assert bool(history.summary["lost_uploads"]) == any(word in name for word in ("lost", "missed", "faults", "batter"))
    assert bool(history.summary["missed_broadcasts"]) == (name == "missed broadcasts")
    found = recompute(tmp_path / "run")
    assert found.returncode == 0, found.stdout + found.stderr
    assert len(found.stdout.splitlines()) > 10


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Folders of a printed run and of one with whole devices."""
    folders = {name: tmp_path_factory.mktemp("played") / name for name in ("downlink", "whole devices")}
    for name, folder in folders.items():
        kfl.run(RUNS[name], folder, dataset=data(), keep_models=False)
    return folders


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
        *[("rounds.jsonl", name) for name in ("clock_hz", "static_j", "circuits_j", "tail_j", "receiving_j")],
        *[("devices.json", name) for name in ("static_power_w", "amplifier_efficiency", "circuit_power_w")],
    ],
)
def test_a_number_that_was_changed_is_found(tmp_path, played, file, field):
    folder = tmp_path / "changed"
    printed = json.loads((played["downlink"] / "rounds.jsonl").read_text().partition("\n")[0])
    printed |= json.loads((played["downlink"] / "devices.json").read_text())[0]
    printed |= json.loads((played["downlink"] / "summary.json").read_text())
    shutil.copytree(played["downlink" if field in printed else "whole devices"], folder)
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


def test_a_clock_an_upload_and_a_power_beyond_their_limits_are_found(tmp_path, played):
    """Even where every other number follows from it."""
    folder = tmp_path / "changed"
    shutil.copytree(played["whole devices"], folder)
    records = json.loads((folder / "devices.json").read_text())
    slow = [{**one, "min_cpu_hz": one["cpu_hz"]} for one in records]
    weak = [{**one, "min_power_w": 0.5 * one["max_power_w"]} for one in records]
    config = (folder / "config.toml").read_text()
    for record, text in (
        (slow, config),
        (weak, config),
        (records, config.replace("deadline_s = 1.0", "deadline_s = 0.1")),
    ):
        (folder / "devices.json").write_text(json.dumps(record))
        (folder / "config.toml").write_text(text)
        assert runpy.run_path(str(SCRIPT))["main"](folder) == 1


def test_a_changed_folder_ends_the_command_with_1(tmp_path, played):
    folder = tmp_path / "changed"
    shutil.copytree(played["downlink"], folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "energy_j": summary["energy_j"] * (1 - 1e-6)}))
    found = recompute(folder)
    assert found.returncode == 1 and "1.0e-06  totals (summary.json)" in found.stdout


def test_a_folder_without_gains_is_told_apart():
    found = recompute(Path(__file__).parents[1] / "runfolder" / "earlier" / "finished")
    assert found.returncode == 1 and "of a version that kept no gains" in found.stderr


def test_it_needs_nothing_of_ours():
    text = SCRIPT.read_text()
    assert "kfl" not in [
        line.split()[1].partition(".")[0] for line in text.splitlines() if line[:5] in ("impor", "from ")
    ]
