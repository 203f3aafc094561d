"""`kfl schedule` and the simulator decide alike: one accounting of a round for both."""

from dataclasses import replace

import numpy as np
import pytest

import kfl
from kfl.scheduling import SCHEDULERS, simulate
from kfl.simulation import build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless import CellConfig, ConstantHarvest

NARROW = CellConfig(
    bandwidth_hz=1.8e5, radius_m=1000.0, path_loss_exponent=3.5, deadline_s=2.0, budget_j_per_round=0.02
)
CELLS = {
    "paper": (NARROW, False),
    "hard budgets": (NARROW, True),
    "resource blocks": (replace(NARROW, resource_blocks=20), False),
    "devices beyond the paper's model": (
        replace(NARROW, min_cpu_hz=1e8, circuit_power_w=0.1, tail_power_w=0.2, tail_s=0.1),
        False,
    ),
    "batteries": (replace(NARROW, battery_capacity_j=0.2, initial_charge=0.5), True),
    "harvest": (replace(NARROW, battery_capacity_j=0.2, harvest=ConstantHarvest(0.02)), True),
}
EXPERIMENT = kfl.Experiment(devices=8, rounds=6, widths=(8,), samples_per_device=20, algorithm=kfl.FedAvg())


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("scheduler", ["dual", "lyapunov", "uniform"])
def test_simulate_and_play_round_decide_alike(name: str, scheduler: str) -> None:
    radio, hard_budget = CELLS[name]
    experiment = replace(EXPERIMENT, radio=radio, hard_budget=hard_budget, scheduler=SCHEDULERS[scheduler]())
    fleet = SimulatedFleet(build_world(experiment, dataset=toy()))
    table = fleet.table
    problem = fleet.cell.problem(
        experiment.rounds,
        flops=table.flops,
        payload_bits=table.bits_up,
        samples=table.samples,
        hard_budget=hard_budget,
    )
    state, participations = begin(fleet), 0
    for one in simulate(problem, experiment.scheduler):
        state, log = play_round(fleet, state)
        mine, theirs = one.after, state.accounts
        assert np.flatnonzero(one.decision.chosen).tolist() == list(log.devices)
        chosen = list(log.devices)
        for ours, logged in (("share", log.share), ("power_w", log.power_w), ("upload_time_s", log.upload_time_s)):
            assert getattr(one.decision, ours)[chosen] == pytest.approx(np.array(logged), rel=1e-9), ours
        assert mine.round == theirs.round
        assert mine.spent_j == pytest.approx(theirs.spent_j, rel=1e-12)
        assert mine.scheduler.queue_j == pytest.approx(theirs.scheduler.queue_j, rel=1e-12, abs=1e-15)
        assert (mine.participation_count == theirs.participation_count).all()
        assert (mine.batteries is None) == (theirs.batteries is None) == (radio.battery_capacity_j is None)
        if mine.batteries is not None:
            for field in ("charge_j", "harvested_j", "wasted_j", "empty_rounds"):
                assert getattr(mine.batteries, field) == pytest.approx(getattr(theirs.batteries, field), rel=1e-12)
        participations += len(chosen)
    assert participations > 0


def toy() -> kfl.Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(240) % 10
    images = draw.integers(0, 255, size=(240, 1, 6, 6), dtype=np.uint8)
    return kfl.Dataset.from_arrays(images, labels, images[:60], labels[:60])
