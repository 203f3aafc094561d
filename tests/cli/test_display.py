"""What a run says of itself when it is done."""

from __future__ import annotations

from dataclasses import replace

import kfl
from kfl.cli.display import sentences
from kfl.scheduling import Dual
from kfl.wireless import CellConfig, ConstantHarvest, Sun

FEW = kfl.Experiment(devices=4, rounds=2, widths=(8,), scheduler=Dual())
CELL = CellConfig(battery_capacity_j=50.0, round_period_s=600.0)


def told(experiment: kfl.Experiment) -> str:
    return " ".join(sentences(experiment, kfl.run(experiment), None))


def test_a_run_in_which_nobody_could_pay_for_a_round_says_so() -> None:
    """Two rounds of budget are 0.2 J, and opening a connection costs 1 J."""
    poor = replace(FEW, radio=CellConfig(connect_energy_j=1.0), hard_budget=True)
    text = told(poor)
    assert "Nobody took part in any round." in text and "without the energy for this round" in text
    assert "Nobody" not in told(replace(poor, hard_budget=False))


def test_batteries_are_told_by_what_filled_them() -> None:
    assert "which now hold" in told(replace(FEW, radio=CELL))
    night = told(replace(FEW, radio=replace(CELL, harvest=Sun())))
    assert "In the 20 min of these rounds devices harvested nothing, and spent" in night
    steady = told(replace(FEW, radio=replace(CELL, harvest=ConstantHarvest(0.1))))
    assert "Devices harvested 480 J, spent" in steady
