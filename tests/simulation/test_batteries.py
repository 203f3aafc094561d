"""Runs of devices that live on batteries: no joule is lost or made, no device spends what it has not got."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfl
from kfl.core.errors import StoppedError
from kfl.experiment.faults import Faults
from kfl.runfolder import load_run
from kfl.scheduling import SCHEDULERS, Dual, Lyapunov, Uniform
from kfl.scheduling.status import describe
from kfl.simulation import RoundLog, build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless import Cell, CellConfig, ConstantHarvest, SolarHarvest
from tests.reference.runs import data, difference

CELL = CellConfig(
    power_coefficient=1.5e-25,
    bandwidth_hz=1e4,
    reference_gain_db=-78.0,
    round_period_s=3600.0,
    battery_capacity_j=0.5,
    initial_charge=0.6,
    harvest=SolarHarvest(peak_w=2e-5),
)
"""Computing costs a few hundredths of a joule, and an upload on the narrow band a tenth of that."""
SMALL = kfl.Experiment(devices=8, rounds=48, widths=(8, 12), radio=CELL, scheduler=Uniform(count=4))
ALL = Faults(drop_before=0.1, battery_empty=0.2, drop_after=0.1, late=0.1, outage=0.1, corrupt=0.1, leave=0.2)


def play(experiment):
    """Every state of a run and every log."""
    fleet = SimulatedFleet(build_world(experiment, dataset=data()))
    states, logs = [begin(fleet)], []
    for _ in range(experiment.rounds):
        state, log = play_round(fleet, states[-1])
        states, logs = [*states, state], [*logs, log]
    return fleet, states, logs


def spent_j(log: RoundLog, devices: int) -> np.ndarray:
    spent = np.zeros(devices)
    spent[list(log.devices)] = np.add(log.compute_energy_j, log.upload_energy_j)
    return spent


def check_balance(experiment, fleet, states, logs) -> None:
    """Charge + spent + wasted = first charge + harvested, after every round; the queue is what a battery lacks."""
    capacity = experiment.radio.battery_capacity_j
    first, spent, harvested = (
        states[0].accounts.batteries.charge_j,
        np.zeros(fleet.table.size),
        np.zeros(fleet.table.size),
    )
    for before, state, log in zip(states, states[1:], logs, strict=False):
        now = spent_j(log, fleet.table.size)
        assert (now <= before.accounts.batteries.charge_j * (1 + 1e-9)).all()
        spent, harvested = spent + now, harvested + np.array(log.harvest_j or 0.0)
        after = state.accounts.batteries
        assert (after.charge_j >= 0).all() and (after.charge_j <= capacity).all()
        assert after.charge_j + spent + after.wasted_j == pytest.approx(first + harvested, rel=1e-9, abs=1e-12)
        assert after.harvested_j == pytest.approx(harvested)
        if fleet.harvests:
            assert (state.accounts.scheduler.queue_j == capacity - after.charge_j).all()
            # Equation (21) with the harvest in place of the budget.
            moved = np.maximum(before.accounts.scheduler.queue_j + now - np.array(log.harvest_j), 0.0)
            assert state.accounts.scheduler.queue_j == pytest.approx(moved, rel=1e-9, abs=1e-9)


@settings(max_examples=12)
@given(data=st.data())
def test_no_joule_is_lost_or_made_in_a_run(data):
    radio = replace(
        CELL,
        battery_capacity_j=data.draw(st.sampled_from([0.05, 0.2, 1.0])),
        initial_charge=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
        harvest=data.draw(st.sampled_from([ConstantHarvest(1e-5), SolarHarvest(peak_w=4e-5, start_h=5.0), "none"])),
        channel_error=data.draw(st.sampled_from([0.0, 0.3])),
    )
    scheduler = SCHEDULERS[data.draw(st.sampled_from(sorted(SCHEDULERS)))]()
    experiment = replace(
        SMALL,
        rounds=14,
        radio=radio,
        scheduler=scheduler,
        hard_budget=data.draw(st.booleans()),
        faults=data.draw(st.sampled_from([Faults(), ALL])),
    )
    fleet, states, logs = play(experiment)
    check_balance(experiment, fleet, states, logs)
    dry = sum(entry["fault"] == "ran_dry" for log in logs for entry in log.faults)
    assert not (experiment.hard_budget and dry), "a plan within the charge never runs dry"


def test_a_device_that_runs_dry_has_spent_all_it_had_and_its_upload_is_lost():
    fleet, states, logs = play(replace(SMALL, scheduler=Uniform(count=8)))
    seen = 0
    for before, state, log in zip(states, states[1:], logs, strict=False):
        now, places = spent_j(log, 8), dict(zip(log.devices, range(len(log.devices)), strict=True))
        for entry in log.faults:
            assert entry["fault"] == "ran_dry" and 0 <= entry["spent_fraction"] < 1
            device, seen = entry["device"], seen + 1
            assert now[device] == pytest.approx(before.accounts.batteries.charge_j[device])
            assert log.charge_j[places[device]] == before.accounts.batteries.charge_j[device]
            assert device in log.lost and device not in log.used
            # It has the energy to compute, or would not have been asked; so its own model has learned.
            assert state.devices[device] is not before.devices.get(device)
    assert seen > 3
    check_balance(SMALL, fleet, states, logs)


def test_devices_without_charge_are_empty_and_said_to_be():
    nothing = replace(CELL, harvest="none", round_period_s=None, initial_charge=0.0)
    for scheduler in (Lyapunov(), Dual()):
        history = kfl.run(replace(SMALL, rounds=2, radio=nothing, scheduler=scheduler), dataset=data())
        log = history.rounds[0]
        assert log.devices == () and log.empty == tuple(range(8))
        assert describe(log.status) == (
            "No device that is there has the charge to take part this round: "
            "8 devices (0, 1, 2, 3, 4, …) without charge."
        )
    fleet, states, logs = play(replace(SMALL, scheduler=Uniform(count=8)))
    world_s = fleet.link_state(states[0]).compute_energy_j
    for before, log in zip(states, logs, strict=False):
        poor = np.flatnonzero(before.accounts.batteries.charge_j < world_s).tolist()
        assert list(log.empty) == poor and not set(poor) & set(log.devices)
    empty = np.zeros(8, dtype=int)
    for log in logs:
        empty[list(log.empty)] += 1
    assert (states[-1].accounts.batteries.empty_rounds == empty).all() and empty.sum() > 10


def test_hard_mode_leaves_out_who_cannot_pay_and_spends_no_more_than_there_is():
    experiment = replace(SMALL, hard_budget=True, scheduler=Uniform(count=8))
    fleet, states, logs = play(experiment)
    assert not any(log.faults or log.lost for log in logs) and sum(len(log.devices) for log in logs) > 20
    check_balance(experiment, fleet, states, logs)


def test_a_battery_that_nothing_fills_ends_with_the_budget_or_the_charge():
    plenty = replace(CELL, harvest="none", initial_charge=1.0, battery_capacity_j=5.0, budget_j_per_round=0.01)
    experiment = replace(SMALL, radio=plenty, hard_budget=True, scheduler=Uniform(count=8))
    _, states, _ = play(experiment)
    spent = states[-1].accounts.spent_j
    assert (spent <= 0.01 * experiment.rounds).all() and spent.max() > 0.3 * 0.01 * experiment.rounds
    _, states, _ = play(replace(experiment, radio=replace(plenty, battery_capacity_j=0.2)))
    spent = states[-1].accounts.spent_j
    assert (spent <= 0.2).all() and spent.max() > 0.1


@pytest.mark.parametrize("hard", [False, True])
def test_an_interrupted_run_is_the_run_that_was_not(tmp_path, hard):
    experiment = replace(SMALL, hard_budget=hard, scheduler=Lyapunov(), faults=ALL)
    kfl.run(experiment, tmp_path / "whole", dataset=data())
    stops = iter([False] * 20 + [True] + [False] * 100)
    with pytest.raises(StoppedError):
        kfl.run(experiment, tmp_path / "cut", dataset=data(), should_stop=lambda: next(stops))
    kfl.run(experiment, tmp_path / "cut", dataset=data())
    assert difference(tmp_path / "whole", tmp_path / "cut") is None


def test_the_folder_tells_what_was_harvested_spent_and_wasted(tmp_path):
    experiment = replace(SMALL, scheduler=Uniform(count=1), radio=replace(CELL, battery_capacity_j=0.2))
    history = kfl.run(experiment, tmp_path / "run", dataset=data())
    told, devices = history.summary["batteries"], history.devices
    for name in ("charge_j", "harvested_j", "wasted_j", "empty_rounds"):
        assert told[name] == pytest.approx(sum(device[name] for device in devices))
    first = 8 * 0.2 * 0.6
    assert told["charge_j"] + history.energy_j + told["wasted_j"] == pytest.approx(first + told["harvested_j"])
    assert told["wasted_j"] > 0 and "devices_over_budget" not in history.summary
    assert load_run(tmp_path / "run")[1].rounds == history.rounds
    expected = Cell.build(experiment.radio, 8, 0).budget_j(48)
    assert [device["budget_j"] for device in devices] == expected.tolist()


def test_runs_without_batteries_write_nothing_of_them(tmp_path):
    kfl.run(replace(SMALL, rounds=3, radio="paper-mnist"), tmp_path / "run", dataset=data())
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert not {"charge_j", "empty", "harvest_j"} & set(lines[0])
    assert "charge_j" not in json.loads((tmp_path / "run" / "devices.json").read_text())[0]


@pytest.mark.parametrize("kind", [Lyapunov, Dual])
def test_devices_take_part_down_to_about_half_a_battery_in_every_round(kind):
    """The threshold: −V γ D + q E < 0 with V γ D = (C / 2) Ē D / D̄; uploads cost next to nothing here."""
    radio = replace(CELL, reference_gain_db=-30.0, bandwidth_hz=1e6, battery_capacity_j=4.0)
    experiment = replace(SMALL, rounds=24, radio=radio, scheduler=kind(), split="dirichlet")
    fleet, states, logs = play(experiment)
    energy_j, samples = fleet.link_state(states[0]).compute_energy_j, fleet.table.samples
    worth = 2.0 * energy_j.mean() * samples / samples.mean()
    for before, log in zip(states, logs, strict=False):
        lacking = 4.0 - before.accounts.batteries.charge_j
        clear = abs(lacking * energy_j / worth - 1) > 1e-3
        expected = np.flatnonzero(clear & (lacking * energy_j < worth))
        assert set(expected) <= set(log.devices) and not set(np.flatnonzero(clear)) - set(expected) & set(log.devices)
    assert 0 < sum(len(log.devices) for log in logs) < 24 * 8
    _, _, steady = play(replace(experiment, scheduler=kind(gamma="constant")))
    assert [log.devices for log in steady] == [log.devices for log in logs]
