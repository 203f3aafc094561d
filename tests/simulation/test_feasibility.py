"""Who can never take part is said before the first round, with the numbers that decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kfl
from kfl.cli.main import main
from kfl.core.errors import InfeasibleRunError
from kfl.simulation.feasibility import check_feasibility
from kfl.simulation.round import initial_state
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.world import build_world
from kfl.wireless import CellConfig

CELL = CellConfig(deadline_s=1.0)
SMALL = kfl.Experiment(
    devices=12, rounds=8, widths=(8, 64), samples_per_device=20, scheduler=kfl.AllDevices(), radio=CELL, seed=3
)


def look(experiment):
    fleet = SimulatedFleet(build_world(experiment))
    return check_feasibility(fleet, initial_state(fleet)), fleet


def test_everybody_can_in_an_easy_cell(caplog):
    found, _ = look(SMALL)
    assert not found.never and found.sentence() == "" and not found.nobody
    kfl.run(replace(SMALL, rounds=1))
    assert "take part" not in caplog.text


def test_who_can_never_take_part_never_does_and_the_others_do(caplog):
    """In a band that only near devices can use, with one device at a time so that no device is crowded out."""
    thin = replace(CELL, bandwidth_hz=1.5e3, max_power_dbm=-30.0)
    found, fleet = look(replace(SMALL, radio=thin, rounds=20))
    never = set(found.never["out_of_reach"])
    assert 0 < len(never) < 12
    able = np.zeros(12, bool)
    for number in range(20):
        seen = fleet.observe(initial_state(fleet).at_round(number)).observation
        able |= seen.power_floor <= 1
    assert never == set(np.flatnonzero(~able).tolist())
    history = kfl.run(replace(SMALL, radio=thin, rounds=20, scheduler=kfl.Uniform(count=1)))
    assert not never & {device for log in history.rounds for device in log.devices}
    assert f"{len(never)} of 12 devices can never take part" in caplog.text
    assert "cannot upload 20.5 kbit in time" in caplog.text


def test_slow_devices_are_told_apart_from_quick_ones():
    fleet = look(SMALL)[1]
    times_s = fleet.observe(initial_state(fleet)).observation.compute_time_s
    between = float(np.sort(np.unique(times_s))[:2].mean())
    found, _ = look(replace(SMALL, radio=replace(CELL, deadline_s=between)))
    assert set(found.never["past_deadline"]) == set(np.flatnonzero(times_s >= between).tolist())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algorithm.local-steps", "100000"], ("cannot finish computing in time", "--radio.deadline-s")),
        (["--radio.bandwidth-hz", "5"], ("cannot upload 20.5 kbit in time", "--radio.bandwidth-hz")),
        (["--radio.budget-j-per-round", "1e-9", "--hard-budget"], ("cannot pay", "--radio.budget-j-per-round")),
    ],
)
def test_a_run_with_nobody_in_it_is_an_error_with_the_fix(words, said, tmp_path, capsys):
    out = tmp_path / "out"
    few = ["--devices", "6", "--rounds", "2", "--widths", "8", "--samples-per-device", "20"]
    assert main(["run", *few, *words, "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kfl: No device can take part: 6 devices ") and all(part in told for part in said)
    assert told.count("\n") == 1
    assert not out.exists()


def test_nobody_in_python_and_in_many_runs(tmp_path):
    hopeless = replace(SMALL, radio=replace(CELL, bandwidth_hz=1.0))
    with pytest.raises(InfeasibleRunError, match="cannot upload"):
        kfl.run(hopeless)
    some, none = kfl.run_many([replace(SMALL, rounds=1), hopeless], tmp_path)  # in a comparison it is an answer
    assert some.rounds[0].devices and not any(log.devices for log in none.rounds)


def test_devices_that_are_not_there_yet_may_come():
    away = replace(SMALL, faults=replace(SMALL.faults, schedule=("leave:0:all",)))
    assert not look(away)[0].never
