"""Every device in the same share of the rounds, for the least energy, and the certificates of both."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import kfl
from kfl.cli.display import sentences
from kfl.cli.main import main
from kfl.scheduling import SCHEDULERS, CellProblem, LeastEnergy, Uniform, schedule, serve, write_problem
from kfl.scheduling.simulate import least_energy, simulate
from kfl.wireless import PRESETS, Cell, CellConfig

KNOWLEDGE, MODEL = 640 * 32, 550_346 * 32


def problem(cell: str | CellConfig, devices: int = 12, rounds: int = 30, bits: float = KNOWLEDGE) -> CellProblem:
    config = PRESETS[cell] if isinstance(cell, str) else cell
    plenty = replace(config, budget_j_per_round=100.0)
    return Cell.build(plenty, devices, seed=100).problem(rounds, flops=5e7, payload_bits=bits, samples=100)


@pytest.mark.parametrize("participation", [0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("cell", ["paper-mnist", "nb-iot", "wifi"])
def test_every_device_takes_part_in_the_same_share_of_the_rounds(cell: str, participation: float) -> None:
    found, right = schedule(problem(cell), LeastEnergy(participation)), int(30 * participation)
    fewest = (
        right - 1 if cell == "nb-iot" and participation >= 0.5 else right
    )  # fades out of reach, and no room to wait
    assert fewest <= found.participation_count.min() and found.participation_count.max() <= right + 1
    if cell != "nb-iot":
        always = schedule(problem(cell), LeastEnergy(1.0))
        assert [len(one.devices) for one in always.rounds] == [12] * 30
    busy = [len(one.devices) for one in found.rounds]
    assert max(busy) <= 12 and np.mean(busy) == pytest.approx(12 * participation, abs=0.5)


def test_what_a_device_is_owed_says_how_often_it_took_part() -> None:
    crowded = replace(problem("small-cell", bits=8 * MODEL), available=np.arange(30)[:, None] % 3 > np.zeros(12))
    last = list(simulate(crowded, LeastEnergy(0.3)))[-1].after
    began = LeastEnergy(0.3).init(crowded.budget_j, 30).memory["owed"]
    owed = last.scheduler.memory["owed"]
    np.testing.assert_allclose(last.participation_count, began + 0.3 * 30 - owed, atol=1e-9)
    assert owed.max() > 1  # or no device was behind, and this showed little


@pytest.mark.parametrize(("cell", "bits"), [("paper-mnist", MODEL), ("nb-iot", KNOWLEDGE), ("small-cell", MODEL)])
def test_no_schedule_spends_less_than_the_certificate(cell: str, bits: float) -> None:
    """Neither its own, nor that of any other scheduler in which each device takes part as often."""
    here, asking = problem(cell, 8, 12, bits), LeastEnergy()
    for kind in SCHEDULERS.values():
        found = schedule(here, kind())
        bound = least_energy(replace(found, scheduler=asking))
        assert bound is not None and bound <= found.energy_j * (1 + 1e-9)
    alone = schedule(replace(here.after(here.accounts(Uniform())), rounds=1), SCHEDULERS["fixed-set"](count=1))
    if alone.participation_count.sum():
        assert least_energy(replace(alone, scheduler=asking)) == pytest.approx(alone.energy_j, rel=1e-6)


def test_it_spends_less_than_random_devices_that_take_part_as_often() -> None:
    """It sits out deep fades, and no device more than it need."""
    for cell, bits, part in (("nb-iot", KNOWLEDGE, 0.8), ("small-cell", MODEL, 0.9)):
        ours, random = (schedule(problem(cell, 12, 40, bits), one) for one in (LeastEnergy(0.25), Uniform(count=3)))
        assert ours.participation_count.sum() == pytest.approx(random.participation_count.sum(), abs=4)
        assert ours.energy_j < part * random.energy_j
        assert np.ptp(ours.participation_count) <= 1 < np.ptp(random.participation_count)


def test_each_round_is_as_good_as_the_certificate_says() -> None:
    """Against all sets of six devices, with whole models to send over a band that not all of them fit."""
    scheduler, gaps = LeastEnergy(0.6), []
    for one in simulate(problem("small-cell", 6, 8, 6 * MODEL), scheduler):
        seen, state = scheduler.limited(one.before.scheduler, one.observation), one.before.scheduler
        values = [0.0]
        for members in product((False, True), repeat=6):
            decision = serve(seen, np.array(members), np.ones(6))
            if decision.chosen.tolist() == list(members) and any(members):
                values.append(scheduler.objective(state, one.observation, decision))
        best = min(values)
        assert one.decision.lower_bound <= best + 1e-9 * abs(best)
        assert one.decision.objective >= best - 1e-9 * abs(best)
        gaps.append((one.decision.objective - best) / max(abs(best), 1e-12))
    assert np.mean(gaps) < 0.05


def test_budgets_are_kept_though_they_are_soft() -> None:
    poor = replace(problem("lte-m"), budget_j=np.full(12, 2.0))
    found = schedule(poor, LeastEnergy(0.5))
    assert (found.compute_energy_j + found.upload_energy_j <= 2.0).all()
    assert found.participation_count.max() < 15 and found.participation_count.min() >= 1


def test_run_and_command_end_with_the_certificate_and_with_random_devices(tmp_path, capsys) -> None:
    small = kfl.Experiment(devices=6, rounds=10, widths=(8,), samples_per_device=20, scheduler=kfl.LeastEnergy())
    told = " ".join(sentences(small, kfl.run(small)))
    assert "Every device took part in 2 of 10 rounds, for" in told and "certified: no schedule in which each" in told
    greedy = replace(small, scheduler=kfl.AllDevices(), rounds=12, devices=14)
    told = " ".join(sentences(greedy, kfl.run(greedy)))
    assert "all spent" in told and "10 random devices a round would have spent" in told and "certified" not in told
    assert "random devices" not in " ".join(sentences(small, kfl.run(replace(small, scheduler=kfl.Uniform(count=2)))))
    write_problem(problem("nb-iot"), tmp_path / "cell.json")
    assert main(["schedule", str(tmp_path / "cell.json"), "--scheduler", "least-energy"]) == 0
    assert "certified: no schedule in which each does so" in " ".join(capsys.readouterr().out.split())
    assert main(["schedule", str(tmp_path / "cell.json"), "--scheduler", "all"]) == 0
    assert "random devices a round would have spent" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_a_share_of_the_rounds_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(kfl.KflError, match=r"scheduler\.participation"):
        LeastEnergy(share)
