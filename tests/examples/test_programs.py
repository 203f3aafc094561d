"""The programs in examples/ as a newcomer starts them, and what they print."""

import csv
import importlib.util
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

import kfl
from kfl.core.files import LockedError, only_one
from kfl.runfolder import load_run
from kfl_fleet.setup import make_setup

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(name, *words):
    """Run a program of examples/ in a process of its own; the lines it prints."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def rows(lines):
    """A printed table as words by the first word of each line."""
    return {line.split()[0]: line.split()[1:] for line in lines[1:]}


def percent(word):
    return float(word.rstrip("%"))


def test_own_model_and_data_learns_the_faults():
    first, worst, uploaded = start("own_model_and_data.py")
    assert (
        percent(first.split()[1].rstrip(",")) > 75
    )  # a coin between a device's two faults would be right half the time
    assert "alone" in first and "worst tenth" in worst
    # 30 rounds of 6 devices, 6 faults of 16 features, 32 bits each.
    assert uploaded == f"uploaded {30 * 6 * 6 * 16 * 32 / 1000:.0f} kbit in 30 rounds"


def test_natural_federation_keeps_people_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    *people, last = start("natural_federation.py", tmp_path / "wearables.npz")
    assert [line.split(":")[0] for line in people] == ["person-00", "person-01", "person-02"]
    assert all("sensor-8" in line or "sensor-16" in line for line in people)
    together, alone = (percent(word.rstrip(",")) for word in last.split() if "%" in word)
    assert last.startswith("16 people") and min(together, alone) > 30  # a guess among four is right in 25 %


def test_own_scheduler_is_cheap_and_unfair():
    table = rows(start("own_scheduler.py"))
    assert list(table) == ["best-channel", "lyapunov"]
    never, energy = ({name: float(table[name][column]) for name in table} for column in (2, 4))
    assert never["best-channel"] > 0 == never["lyapunov"]
    assert energy["best-channel"] < energy["lyapunov"]
    assert all(percent(words[3]) <= 100 for words in table.values())


def test_the_own_algorithm_shares_its_head_and_declares_what_it_sends():
    spec = importlib.util.spec_from_file_location("own_algorithm", EXAMPLES / "own_algorithm.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_algorithm"] = module
    spec.loader.exec_module(module)
    setting = kfl.Experiment(devices=6, rounds=2, samples_per_device=20, widths=(8, 16), radio="none")
    found = kfl.compare(
        {"mine": replace(setting, algorithm=module.SharedHead()), "local": replace(setting, algorithm="local")},
        seeds=[0],
    )
    assert found.reference == "local" and found["mine"].bits_up == 2 * 6 * 32 * (64 * 10 + 10)
    assert "declared_bits_up" not in kfl.run(replace(setting, algorithm=module.SharedHead())).summary


def test_does_it_share_tells_methods_from_twins(tmp_path):
    title, *lines = start("does_it_share.py", tmp_path)
    header = next(number for number, line in enumerate(lines) if line.startswith("method "))
    table = {line.split()[0]: line for line in lines[header + 1 : header + 7]}
    assert title.startswith("mnist-5k: 30 devices")
    assert set(table) == {
        *("kfl", "shared-stem", "lg-fedavg-head"),
        *("local", "self-knowledge", "fixed-knowledge"),
    }
    assert table["shared-stem"].count(" yes ") == 2 and " no " in table["kfl"] and " twin " in table["local"]
    assert any(line.startswith("Is it worth having, against the best twin? Yes: shared-stem") for line in lines)


def test_comparison_under_a_budget_leaves_fedavg_without_devices(tmp_path):
    table = rows(start("compare_energy_budget.py", tmp_path)[:-1])
    assert list(table) == ["kfl", "fedavg", "local"]
    accuracy, nobody, sending = ({n: percent(table[n][column]) for n in table} for column in (0, 2, 5))
    assert nobody["fedavg"] > 0 == nobody["kfl"] == nobody["local"]
    assert accuracy["kfl"] > accuracy["fedavg"]
    assert sending["fedavg"] > 50 > sending["kfl"] > sending["local"] == 0
    for folder in tmp_path.iterdir():
        for device in load_run(folder)[1].devices:
            assert device["compute_energy_j"] + device["upload_energy_j"] <= device["budget_j"]


def test_the_allocation_of_a_cell_is_written_as_a_table(tmp_path):
    cell, result = tmp_path / "cell.csv", tmp_path / "shares.csv"
    cell.write_text(
        "# bandwidth_hz = 1e6\n# deadline_s = 2\n# payload_bits = 1e5\n"
        "id,gain_db,compute_time_s,compute_energy_j\nnear,-90,1,0.1\nfar,-110,1,0.1\n"
    )
    start("allocate_cell.py", cell, result)
    with result.open(newline="") as file:
        table = {row.pop("id"): {name: float(value) for name, value in row.items()} for row in csv.DictReader(file)}
    assert set(table) == {"near", "far"}
    assert sum(row["share"] for row in table.values()) == pytest.approx(1)
    assert table["far"]["share"] > table["near"]["share"]
    for row in table.values():
        assert row["energy_j"] == pytest.approx(row["power_w"] * 1.0)  # it sends for the second that is left


@pytest.fixture
def to_fleet(monkeypatch):
    """examples/simulation_to_fleet.py with fewer devices and rounds."""
    spec = importlib.util.spec_from_file_location("simulation_to_fleet", EXAMPLES / "simulation_to_fleet.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "EXPERIMENT", replace(module.EXPERIMENT, devices=2, rounds=1))
    return module


@pytest.fixture
def only_fleet():
    """One fleet at a time, whichever of several test processes it belongs to."""
    while True:
        try:
            with only_one(Path(tempfile.gettempdir()) / "kfl-fleet-tests.lock"):
                yield
                return
        except LockedError:
            time.sleep(0.5)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_the_fleet_does_what_the_simulation_did(to_fleet, only_fleet, tmp_path, capsys):
    to_fleet.main(tmp_path)
    real, simulated, last = capsys.readouterr().out.splitlines()
    assert real.startswith("round 1: devices (0, 1), accuracy ")
    assert real.split(" in ")[0].removeprefix("round 1: ") == simulated.strip().removeprefix("simulated: ")
    assert str(tmp_path / "fleet" / "run") in last


def test_the_fleets_devices_hold_what_the_simulated_ones_hold(to_fleet, tmp_path):
    fleet = to_fleet.make_fleet(tmp_path)
    fleet.prepare()
    _, history = to_fleet.simulate(tmp_path), load_run(tmp_path / "simulated")[1]
    for device in range(2):
        setup = make_setup(fleet.device, device, {"experiment": str(fleet.folder / "server.toml")})
        record = history.devices[device]
        assert (len(setup.train_y), setup.model_name) == (record["samples"], record["model"])


def test_onnx_encoders_say_which_package_is_missing_and_are_given_by_name():
    with pytest.raises(kfl.KflError, match="no_such_package is not installed"):
        kfl.encoders.make_encoder("tests.examples.test_programs:missing_package")


def missing_package():
    spec = importlib.util.spec_from_file_location("onnx_encoders", EXAMPLES / "onnx_encoders.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.folder_of("no_such_package")
