"""Proposition 2 for runs: the offline upper bound against every possible schedule, and a run's own numbers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfl
from kfl.core.errors import ConfigError
from kfl.scheduling import SCHEDULERS, AllDevices, Lyapunov
from kfl.simulation import build_world
from kfl.wireless import PRESETS, CellConfig
from reproduction.theory.energy import EnergyAccount, energy_account
from reproduction.theory.proposition2 import (
    everybody_energy,
    least_round_energy,
    offline_upper,
    proposition2_of_run,
    proposition2_volume,
    scheduled,
)
from reproduction.theory.run_bound import bound_of_run

EXPERIMENT = kfl.Experiment(devices=10, rounds=12, widths=(8,), scheduler=Lyapunov(v=0.01), radio="paper-mnist")


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.1, 4))
def test_no_schedule_within_the_budget_beats_the_upper_bound(seed, rounds, budget):
    draw = np.random.default_rng(seed)
    cost, gamma = draw.uniform(0.1, 1.0, (rounds, 1)), draw.uniform(0, 1, rounds)
    cost[draw.random((rounds, 1)) < 0.2] = np.inf
    cost[draw.random((rounds, 1)) < 0.1] = 0.0
    best = 0.0
    for taken in itertools.product([False, True], repeat=rounds):
        chosen = np.array(taken)
        if cost[chosen, 0].sum() <= budget:
            best = max(best, 7.0 * float(gamma[chosen].sum()))
    upper = offline_upper(np.array([7.0]), np.array([budget]), gamma, cost)
    assert best <= upper + 1e-9
    assert upper <= 7.0 * gamma[np.isfinite(cost[:, 0])].sum() + 1e-9


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_the_upper_bound_is_the_linear_programme(seed):
    from scipy.optimize import linprog

    draw = np.random.default_rng(seed)
    cost, gamma, budget = draw.uniform(0.1, 1, (6, 3)), draw.uniform(0, 1, 6), draw.uniform(0.2, 3, 3)
    samples = draw.uniform(1, 9, 3)
    value = 0.0
    for k in range(3):
        found = linprog(-gamma * samples[k], A_ub=cost[:, k][None], b_ub=[budget[k]], bounds=(0, 1))
        value -= found.fun
    assert offline_upper(samples, budget, gamma, cost) == pytest.approx(value)


def test_the_terms_of_the_volume_inequality_are_the_printed_ones():
    draw = np.random.default_rng(1)
    chosen = draw.random((6, 4)) < 0.5
    account = EnergyAccount(np.where(chosen, 0.3, 0.0), np.zeros((6, 4)), draw.uniform(0.5, 1.5, 4))
    samples, gamma, v = draw.uniform(10, 90, 4), 1 / np.arange(1, 7), 0.2
    found = proposition2_volume(account, chosen, samples, v, gamma, np.full((6, 4), 0.3))
    zeta = [max(abs(account.energy_j[t, k] - account.budget_j[k] / 6) for t in range(6)) for k in range(4)]
    squares = sum(z * z for z in zeta)
    assert found.loss == pytest.approx(6 * 0.5 * squares / v + 6 * 5 / (2 * v) * squares)
    assert found.scheduled == pytest.approx(
        sum(gamma[t] * samples[k] for t in range(6) for k in range(4) if chosen[t, k])
    )
    assert found.everything == pytest.approx(gamma.sum() * samples.sum())


def test_words_where_it_says_nothing_or_cannot_be_judged():
    account = EnergyAccount(np.zeros((3, 2)), np.zeros((3, 2)), np.full(2, 3.0))
    nobody, samples, free = np.zeros((3, 2), bool), np.full(2, 10.0), np.full((3, 2), 0.5)
    at_zero = proposition2_volume(account, nobody, samples, 0.0, np.ones(3), free)
    assert at_zero.vacuous
    assert "vacuous" in str(at_zero)
    large = proposition2_volume(account, nobody, samples, 1e6, np.ones(3), free)
    assert (large.holds, large.vacuous) == (None, False)
    assert "cannot be judged" in str(large)
    with pytest.raises(ConfigError, match="least_energy_j"):
        offline_upper(samples, account.budget_j, np.ones(3), free.T)


def test_what_a_run_spent_is_never_below_the_least(tmp_path):
    hard = replace(EXPERIMENT, hard_budget=True)
    history, world = kfl.run(hard, tmp_path / "run"), build_world(hard)
    least, chosen = least_round_energy(world, 12), scheduled(history.rounds, 10)
    assert chosen.sum() == sum(len(log.devices) for log in history.rounds) > 0
    for t, log in enumerate(history.rounds):
        for device, compute, upload in zip(log.devices, log.compute_energy_j, log.upload_energy_j, strict=True):
            assert compute < least[t, device] <= (compute + upload) * (1 + 1e-12)
    energy, volume = proposition2_of_run(world, history.rounds)
    assert energy.spent_j == pytest.approx(history.energy_j)
    assert volume.scheduled <= volume.everything
    # Within its budgets a run is itself a schedule that the offline optimum may choose.
    assert volume.scheduled <= volume.offline_upper * (1 + 1e-12)
    assert volume.offline_upper <= volume.everything * (1 + 1e-12)


NARROW = CellConfig(  # meters in cellars with the printed energy model: a deep fade costs many budgets
    bandwidth_hz=180e3,
    noise_dbm_per_hz=-171.0,
    radius_m=1000.0,
    reference_gain_db=-38.1,
    path_loss_exponent=3.76,
    min_distance_m=35.0,
    max_power_dbm=23.0,
    deadline_s=20.0,
    cpu_frequencies_hz=(96e6, 128e6, 160e6, 192e6),
    flops_per_cycle=1.0,
    power_coefficient=3.6e-28,
    budget_j_per_round=0.02,
)


@pytest.mark.parametrize("preset", ["paper-mnist", "narrow", "nb-iot"])
def test_everybody_in_every_round_is_a_run_of_the_scheduler_all(preset, tmp_path):
    """Not each device's dearest round times the rounds, which a cell with deep fades is far below."""
    radio = NARROW if preset == "narrow" else PRESETS[preset]
    asked = replace(EXPERIMENT, radio=radio, samples_per_device=20, evaluate_every=12)
    everybody_j = everybody_energy(build_world(asked), 12)
    assert everybody_j == pytest.approx(kfl.run(replace(asked, scheduler=AllDevices())).energy_j)
    history = kfl.run(asked, tmp_path / "run")
    found = bound_of_run(tmp_path / "run", devices=1, iterations=1)
    assert found.energy.everybody_j == everybody_j and found.energy.holds
    assert found.energy.vacuous == (found.energy.limit_j >= everybody_j)
    dearest = energy_account(history.rounds, np.ones(10)).energy_j.max(axis=0)
    if preset == "narrow":
        assert everybody_j < found.energy.limit_j < 12 * dearest.sum(), "vacuous, and the dearest rounds hid it"


@pytest.mark.parametrize("name", ["lyapunov", "dual", "least-energy", "uniform"])
def test_it_is_evaluated_only_for_schedulers_that_it_covers(name, tmp_path):
    asked = replace(EXPERIMENT, rounds=2, scheduler=SCHEDULERS[name](), samples_per_device=20)
    covered = name in ("lyapunov", "dual")
    kfl.run(asked, tmp_path / "run")
    found = bound_of_run(tmp_path / "run", devices=1, iterations=1)
    assert (found.energy is not None) == covered
    assert any("does not apply" in note for note in found.notes) == (not covered)


def test_hard_budgets_are_not_what_it_is_about(tmp_path):
    kfl.run(replace(EXPERIMENT, rounds=2, hard_budget=True), tmp_path / "run")
    found = bound_of_run(tmp_path / "run", devices=1, iterations=1)
    assert found.energy is None
    assert any("here they are hard" in note for note in found.notes)


def test_a_default_v_says_that_dear_uploads_wait(tmp_path):
    for dearest, said in ((10.0, True), (float("inf"), False)):
        folder = tmp_path / f"{dearest:g}"
        kfl.run(replace(EXPERIMENT, rounds=2, scheduler=Lyapunov(dearest_upload=dearest)), folder)
        found = bound_of_run(folder, devices=1, iterations=1)
        assert any("above 10 budgets per round wait" in note for note in found.notes) == said
        assert said or not any("budgets per round" in note for note in found.notes)


def test_devices_that_cannot_take_part_cost_infinitely_much():
    slow = replace(EXPERIMENT, radio=replace(PRESETS["paper-mnist"], deadline_s=1e-6))
    world = build_world(slow)
    assert np.isinf(least_round_energy(world, 3)).all()
    gone = replace(EXPERIMENT, faults=replace(EXPERIMENT.faults, leave=1.0))
    there = np.isfinite(least_round_energy(build_world(gone), 12))
    assert there[0].sum() > there[-1].sum() == 0


def test_without_a_radio_there_is_nothing_to_say():
    quiet = replace(EXPERIMENT, radio=None, scheduler=kfl.Uniform(3))
    with pytest.raises(ConfigError, match="radio is 'none'"):
        proposition2_of_run(build_world(quiet), [])
