"""A run that names no cell gets one that fits its data and networks, and keeps every budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kfl
from kfl.cli.main import main
from kfl.comparison import run_many
from kfl.runfolder import load_experiment
from kfl.simulation.rehearsal import budget_warnings, rehearse
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from kfl.wireless import Cell, CellConfig
from kfl.wireless.costs import compute_energy
from kfl.wireless.sizing import sized_cell
from tests.reference.runs import data

SMALL = kfl.Experiment(devices=8, rounds=4, widths=(8, 12), scheduler=kfl.AllDevices())


@given(
    st.lists(st.floats(1e2, 1e12), min_size=1, max_size=20),
    st.floats(32, 1e10),
    st.integers(1, 1000),
    st.floats(0, 1e12),
)
def test_sized_cell_lets_every_device_take_part_whatever_its_clock(flops, bits, rounds, once) -> None:
    work, networks = 5 * np.array(flops), np.full(len(flops), bits)
    config = sized_cell(work / 5, networks, rounds, once)
    config.validate()
    cell = Cell.build(config, len(flops), seed=3)
    link = cell.link_state(0, 10 * work + once, networks)
    assert (link.uplink.upload_time_s > 0).all()
    slowest_to_pay = compute_energy(work + once, max(config.cpu_frequencies_hz), 4.0, 1e-27)
    assert (slowest_to_pay <= cell.budget_j(rounds)).all()


@pytest.mark.parametrize("rounds", [1, 2, 9, 30])
def test_default_budgets_are_kept_in_any_number_of_rounds(rounds, caplog) -> None:
    for split in ({"devices": 8}, {"split": "dirichlet", "dirichlet_alpha": 0.1, "devices": 8}, {"devices": 2}):
        history = kfl.run(replace(SMALL, rounds=rounds, evaluate_every=rounds, **split), dataset=data())
        assert history.summary["devices_over_budget"] == 0
        assert min(device["rounds"] for device in history.devices) >= 1
    assert "exceed" not in caplog.text


def test_data_of_ones_own_by_person_keep_budgets_and_the_run_says_which_cell(caplog) -> None:
    """Person 0 holds ten times as many samples as the others, with long series."""
    caplog.set_level("INFO", "kfl")
    draw, owner = np.random.default_rng(0), np.repeat(np.arange(6), [200, 20, 20, 20, 20, 20])
    y = np.arange(300) % 3
    own = kfl.Dataset.from_arrays(draw.normal(size=(300, 6, 64)) + y[:, None, None], y, train_device=owner)
    history = kfl.run(kfl.Experiment(split="natural", devices=0, rounds=3, widths=8), dataset=own)
    assert history.summary["devices_over_budget"] == 0 and all(device["rounds"] for device in history.devices)
    assert "No cell is named, so this one is sized to the data and the networks: 5 MHz, rounds of" in caplog.text


def test_all_algorithms_and_seeds_meet_the_same_cell_alone_and_in_comparisons(tmp_path) -> None:
    algorithms = ("kfl", "fedkd", "fedavg", "common-knowledge")
    some = [replace(SMALL, rounds=1, widths=(8,), algorithm=word, seed=seed) for word in algorithms for seed in (0, 1)]
    alone = {build_world(one, dataset=data()).experiment.radio for one in some}
    run_many(some, tmp_path, dataset=data())
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    kept = [load_experiment(path) for path in folders]
    assert len(kept) == len(some) and alone == {one.radio for one in kept} and all(one.hard_budget for one in kept)
    before = {path: (path / "summary.json").stat().st_mtime_ns for path in folders}
    run_many(some, tmp_path, dataset=data())
    assert before == {path: (path / "summary.json").stat().st_mtime_ns for path in folders}


def test_run_folder_of_a_sized_cell_is_taken_up_again(tmp_path) -> None:
    with pytest.raises(kfl.KflError):
        kfl.run(SMALL, tmp_path / "run", dataset=data(), should_stop=lambda: True)
    assert len(kfl.run(SMALL, tmp_path / "run", dataset=data()).rounds) == SMALL.rounds
    assert isinstance(load_experiment(tmp_path / "run").radio, CellConfig)


def test_command_sizes_a_cell_unless_one_of_its_fields_is_given(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["run", "--devices", "5", "--rounds", "2", "--widths", "8", "--no-models"]
    assert main([*small, "--out", "sized"]) == 0
    told = capsys.readouterr()
    assert "No cell is named" in told.out and "Every device stayed within its budget" in told.out
    assert main([*small, "--radio.power-coefficient", "4e-27", "--out", "paper"]) == 0
    told = capsys.readouterr()
    assert "No cell is named" not in told.out and "5 of 5 devices are over their energy budget" in told.out
    assert "will not keep the energy budgets: 5 of 5 devices are going to exceed theirs" in told.err
    assert main([*small, "--no-hard-budget", "--out", "soft"]) == 2
    assert "hard_budget is False, but must be left out where no cell is named" in capsys.readouterr().err
    paper = load_experiment(tmp_path / "paper")
    assert paper.radio == CellConfig(power_coefficient=4e-27) and not paper.hard_budget


@pytest.mark.parametrize("scheduler", [kfl.Uniform(count=3), kfl.Dual(), kfl.RoundRobin(count=2)])
def test_rehearsal_spends_what_the_run_then_spends(scheduler) -> None:
    experiment = replace(SMALL, rounds=12, scheduler=scheduler, radio="nb-iot", samples_per_device=20)
    fleet = SimulatedFleet(build_world(experiment, dataset=data()))
    found, history = rehearse(fleet, scheduler), kfl.run(experiment, dataset=data())
    spent = [device["compute_energy_j"] + device["upload_energy_j"] for device in history.devices]
    assert found is not None and found.spent_j.tolist() == spent
    assert found.participation_count.tolist() == [device["rounds"] for device in history.devices]
    over = history.summary["devices_over_budget"]
    assert bool(budget_warnings(fleet)) == bool(over)
    assert not over or f"{over} of 8 devices are going to exceed" in budget_warnings(fleet)[0]
