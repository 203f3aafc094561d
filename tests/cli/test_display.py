"""What a run says of itself when it is done."""

from __future__ import annotations

from dataclasses import replace

import kfl
from kfl.cli.display import sentences
from kfl.scheduling import Dual
from kfl.wireless import CellConfig, ConstantHarvest, SolarHarvest

FEW = kfl.Experiment(devices=4, rounds=2, widths=(8,), scheduler=Dual())
CELL = CellConfig(battery_capacity_j=50.0)


def told(experiment: kfl.Experiment) -> str:
    return " ".join(sentences(experiment, kfl.run(experiment)))


def test_a_run_in_which_nobody_took_part_says_so_and_praises_nothing() -> None:
    """All devices have left before the first round, which may change, so it is no error."""
    text = told(replace(FEW, faults=replace(FEW.faults, schedule=("leave:0:all",))))
    assert (
        text.startswith("No device took part in any round, so nothing was learned.") and "within its budget" not in text
    )
    assert "Nobody" not in told(FEW)


def test_models_that_never_trained_are_counted() -> None:
    text = told(replace(FEW, scheduler=kfl.Uniform(count=1), rounds=1))
    assert "3 of 4 devices never took part; their models are as they began." in text
    assert "never took part" not in told(replace(FEW, scheduler=kfl.Uniform(count=4)))


def test_batteries_are_told_by_what_filled_them() -> None:
    assert "which now hold" in told(replace(FEW, radio=CELL))
    night = told(replace(FEW, radio=replace(CELL, round_period_s=600.0, harvest=SolarHarvest())))
    assert "In the 20 min of these rounds devices harvested nothing, and spent" in night
    steady = told(replace(FEW, radio=replace(CELL, round_period_s=600.0, harvest=ConstantHarvest(0.1))))
    assert "Devices harvested 480 J, spent" in steady
