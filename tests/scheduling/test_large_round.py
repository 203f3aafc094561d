"""Large rounds, by compiled functions, against what NumPy decides of the same rounds."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from benchmarks.dual import MODELS, round_of
from kfl.core.randomness import stream
from kfl.scheduling import DeviceEnergyModel, Dual, Observation, SchedulerState, Uplink, dual
from kfl.scheduling._large_round import LARGE, LargeRound, Memory
from kfl.scheduling.base import Decision
from kfl.scheduling.share_band import share_floor
from tests.reference.whole_device import random_devices

pytest.importorskip("numba")


def by_numpy(
    scheduler: Dual, state: SchedulerState, observation: Observation, monkeypatch: pytest.MonkeyPatch
) -> Decision:
    with monkeypatch.context() as patched:
        patched.setattr(dual, "is_large", lambda _: False)
        return scheduler.decide(state, observation)


def assert_same(found: Decision, expected: Decision) -> None:
    np.testing.assert_array_equal(found.chosen, expected.chosen)
    for name in ("share", "upload_energy_j", "upload_time_s", "power_w", "compute_energy_j", "compute_time_s"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, err_msg=name)
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert found.lower_bound == pytest.approx(expected.lower_bound, rel=1e-12)
    assert found.lower_bound <= found.objective and found.share.sum() <= 1 + 1e-12


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("load", ["paper", "wide", "half", "early"])
def test_cells(load: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, state, observation = round_of(LARGE, load, model)
    assert_same(scheduler.decide(state, observation), by_numpy(scheduler, state, observation, monkeypatch))


@pytest.mark.parametrize("seed", range(3))
def test_devices_of_every_kind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power limits, fixed and free clocks, circuits, nothing to send, no device there, hard budgets, free joules."""
    draw = stream(seed, "large")
    found = random_devices(draw, LARGE)
    constants = {field.name: np.broadcast_to(getattr(found, field.name), LARGE) for field in fields(found)}
    band_hz = np.full(LARGE, 1e9)
    link = Uplink(
        bandwidth_hz=1e9,
        noise_w_per_hz=4e-21,
        gain=constants["gain"] * (4e-21 / constants["noise_w_per_hz"]) * (1e9 / constants["bandwidth_hz"]),
        payload_bits=np.where(draw.random(LARGE) < 0.05, 0.0, found.nats / np.log(2.0) * band_hz * 1e-4),
        time_s=constants["time_s"],
        max_power_w=constants["max_power_w"],
        device=DeviceEnergyModel(
            fastest_s=constants["fastest_s"],
            slowest_s=constants["slowest_s"],
            work_j_s2=constants["work_j_s2"],
            static_power_w=constants["static_power_w"],
            circuit_power_w=constants["circuit_power_w"],
            amplifier_efficiency=constants["amplifier_efficiency"],
            min_power_w=1e-6,
        ),
    )
    base_j = np.asarray(link.base_energy_j(np.zeros(LARGE)))
    observation = Observation(
        round=3,
        seed=seed,
        samples=draw.integers(1, 500, LARGE).astype(float),
        available=draw.random(LARGE) < 0.95,
        compute_time_s=constants["fastest_s"],
        base_energy_j=base_j,
        battery_j=base_j + 10.0 ** draw.uniform(-4, 2, LARGE),
        hard_budget=True,
        uplink=link,
    )
    scheduler = Dual(v=float(np.median(base_j)) * 0.05, gamma="constant")
    queue_j = np.where(draw.random(LARGE) < 0.2, 0.0, draw.exponential(5.0, LARGE))
    state = replace(scheduler.init(np.full(LARGE, 100.0), 50), queue_j=queue_j)
    decided = scheduler.decide(state, observation)
    assert decided.chosen.sum() > 300
    assert_same(decided, by_numpy(scheduler, state, observation, monkeypatch))


@pytest.mark.parametrize(("load", "model"), [("half", "modem"), ("wide", "clock"), ("early", "printed")])
def test_the_answer_does_not_depend_on_where_the_search_begins(load: str, model: str) -> None:
    scheduler, state, observation = round_of(LARGE, load, model)
    worth = scheduler.worth(state, observation)
    solutions = []
    for start in (None, 2.0, 9.0, 13.0, 20.0):
        memory = Memory()
        memory.log_price = start
        solutions.append(LargeRound(observation, np.arange(LARGE), worth, state.queue_j, memory).solve(1.0))
    first = solutions[0]
    assert first is not None
    for other in solutions[1:]:
        assert other is not None
        assert (other.log_price, other.lower_bound) == (first.log_price, first.lower_bound)
        np.testing.assert_array_equal(other.chosen, first.chosen)


@pytest.mark.parametrize("model", ["printed", "modem"])
def test_a_scheduler_that_has_decided_other_rounds_decides_the_same_bits(model: str) -> None:
    """Schedulers are pure: what one keeps makes it quicker, and a resumed run goes on bit for bit."""
    scheduler, state, observation = round_of(LARGE, "half", model)
    fresh = scheduler.decide(state, observation)
    for seed in (1, 2):
        _, other_state, other = round_of(LARGE, "half", model, seed)
        scheduler.decide(other_state, other)
    again = pickle.loads(pickle.dumps(scheduler))
    for decided in (scheduler.decide(state, observation), again.decide(state, observation)):
        for name in ("chosen", "share", "power_w", "upload_energy_j", "upload_time_s", "compute_energy_j"):
            np.testing.assert_array_equal(getattr(decided, name), getattr(fresh, name))
        assert (decided.objective, decided.lower_bound) == (fresh.objective, fresh.lower_bound)


def test_least_shares_are_those_of_numpy() -> None:
    scheduler, state, observation = round_of(LARGE, "paper", "modem")
    hard = replace(observation, hard_budget=True, battery_j=observation.base_energy_j + 0.01)
    floor = LargeRound(hard, np.arange(LARGE), scheduler.worth(state, hard), state.queue_j, Memory()).floor
    np.testing.assert_allclose(floor, share_floor(hard), rtol=1e-12)
