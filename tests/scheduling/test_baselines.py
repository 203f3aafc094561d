from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.scheduling import (
    AllDevices,
    Ascend,
    Descend,
    FixedSet,
    GreedyEnergy,
    Myopic,
    Observation,
    RoundRobin,
    Scheduler,
    SchedulerState,
    Uniform,
    Uplink,
)
from kfl.scheduling.baselines import rising_size
from kfl.wireless import PRESETS, Cell


def _observation(round_index: int = 0, devices: int = 20, battery_j: float = np.inf, seed: int = 0) -> Observation:
    """The paper's MNIST cell."""
    link = Cell.build(PRESETS["paper-mnist"], devices, seed).link_state(round_index, 5 * 600 * 550_346, 640 * 32)
    return Observation(
        round=round_index,
        seed=seed,
        samples=np.full(devices, 600.0),
        available=np.ones(devices, dtype=bool),
        compute_time_s=link.compute_time_s,
        base_energy_j=link.compute_energy_j,
        battery_j=np.full(devices, battery_j),
        hard_budget=False,
        uplink=Uplink(
            link.bandwidth_hz,
            link.noise_w_per_hz,
            link.gain,
            link.payload_bits,
            link.upload_time_s,
            link.max_power_w,
        ),
    )


def _state(scheduler: Scheduler, devices: int = 20, horizon: int = 200) -> SchedulerState:
    return scheduler.init(np.full(devices, 20.0), horizon)


# ── Patterns ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("horizon", [*range(1, 41), 100, 199, 200, 201, 1000])
@pytest.mark.parametrize("average", [1, 5, 10])
def test_ascend_and_descend_schedule_as_many_as_uniform(horizon: int, average: int) -> None:
    sizes = [Ascend(count=average).size(t, horizon) for t in range(horizon)]
    assert sum(sizes) == average * horizon
    assert sizes == sorted(sizes)
    assert [Descend(count=average).size(t, horizon) for t in range(horizon)] == sizes[::-1]
    if horizon > 1:
        assert (sizes[0], sizes[-1]) == (1, 2 * average - 1)
        ideal = np.linspace(1, 2 * average - 1, horizon)
        assert np.abs(sizes - ideal).max() <= 0.5 + 1e-9


def test_the_papers_1_to_20_averages_more_than_10() -> None:
    assert np.mean(np.linspace(1, 20, 200)) == pytest.approx(10.5)
    assert np.mean([rising_size(t, 200, 10) for t in range(200)]) == 10


@pytest.mark.parametrize("scheduler", [Uniform(), Ascend(), Descend()], ids=lambda s: s.name)
def test_patterns_draw_their_number(scheduler: Uniform | Ascend | Descend) -> None:
    state = _state(scheduler)
    for t in (0, 50, 150, 199):
        decision = scheduler.decide(state, _observation(t))
        assert decision.chosen.sum() == scheduler.size(t, 200)
        assert decision.status.ok


def test_uniform_is_uniform() -> None:
    scheduler = Uniform(count=4)
    state = _state(scheduler)
    quiet = replace(_observation(), uplink=None)
    counts = sum(scheduler.decide(state, replace(quiet, round=t)).chosen.astype(int) for t in range(2000))
    # 2000 rounds of 4 out of 20: 400 each, standard deviation 17.9.
    assert np.abs(counts - 400).max() < 75
    assert counts.sum() == 8000


def test_an_absent_device_changes_nobody_elses_luck() -> None:
    scheduler = Uniform(count=6)
    state, everyone = _state(scheduler), replace(_observation(3), uplink=None)
    chosen = scheduler.decide(state, everyone).chosen
    gone = int(np.flatnonzero(chosen)[0])
    rest = everyone.available.copy()
    rest[gone] = False
    again = scheduler.decide(state, replace(everyone, available=rest)).chosen
    assert again.sum() == 6 and not again[gone]
    assert (again & chosen).sum() == 5


def test_fewer_devices_than_asked_for_is_a_sentence() -> None:
    scheduler = Uniform(count=10)
    few = replace(_observation(), available=np.arange(20) < 3)
    decision = scheduler.decide(_state(scheduler), few)
    assert decision.chosen.sum() == 3
    assert str(decision.status) == "Only 3 devices can take part, of 10 asked for."


def test_the_draw_is_the_runs() -> None:
    scheduler = Uniform()
    state = _state(scheduler)
    one = replace(_observation(5), uplink=None)
    assert (scheduler.decide(state, one).chosen != scheduler.decide(state, replace(one, seed=1)).chosen).any()
    lowest = np.argsort(stream(0, "schedule", 5).random(20))[:10]
    assert set(np.flatnonzero(scheduler.decide(state, one).chosen)) == set(lowest)


def test_all_devices() -> None:
    scheduler = AllDevices()
    assert scheduler.decide(_state(scheduler), _observation()).chosen.all()


# ── Round robin ──────────────────────────────────────────────────────────────


def test_round_robin_takes_turns() -> None:
    scheduler = RoundRobin(count=5)
    state = _state(scheduler, devices=12)
    seen = []
    for t in range(12):
        decision = scheduler.decide(state, _observation(t, devices=12))
        seen.append(np.flatnonzero(decision.chosen).tolist())
        state = scheduler.update(state, decision, np.zeros(12))
    assert seen[:3] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [0, 1, 2, 10, 11]]
    assert np.bincount(np.concatenate(seen)).tolist() == [5] * 12


def test_round_robin_skips_devices_without_the_energy() -> None:
    scheduler = RoundRobin(count=3)
    state = _state(scheduler)
    observation = _observation(battery_j=10.0)
    battery = observation.battery_j.copy()
    battery[[0, 2]] = observation.base_energy_j[[0, 2]]  # enough to compute, nothing to send with
    decision = scheduler.decide(state, replace(observation, battery_j=battery))
    assert np.flatnonzero(decision.chosen).tolist() == [1, 3, 4]
    following = scheduler.update(state, decision, np.zeros(20))
    assert following.memory["next"][0] == 5
    broke = scheduler.decide(state, replace(observation, battery_j=np.zeros(20)))
    assert not broke.chosen.any() and not broke.status.ok
    assert scheduler.update(state, broke, np.zeros(20)).memory["next"][0] == 0


# ── Myopic ───────────────────────────────────────────────────────────────────


def test_myopic_spends_no_more_than_its_allowance() -> None:
    scheduler = Myopic()
    state = _state(scheduler)
    for t, battery in ((0, 120.0), (100, 61.0), (199, 0.7), (199, 0.45)):
        observation = _observation(t, battery_j=battery)
        decision = scheduler.decide(state, observation)
        allowance = battery / (200 - t)
        spent = observation.base_energy_j + decision.upload_energy_j
        assert (spent[decision.chosen] <= allowance).all()
        # In the paper's cell uploads are nearly free: whoever can compute within the allowance takes part.
        assert (decision.chosen == (observation.base_energy_j < allowance * (1 - 1e-6))).all()
    assert decision.chosen.any() and not decision.chosen.all()


def test_myopic_waits_when_a_round_costs_several_allowances() -> None:
    scheduler = Myopic()
    decision = scheduler.decide(_state(scheduler), _observation(0, battery_j=20.0))
    assert not decision.chosen.any()
    assert str(decision.status) == "No device can pay for this round out of its allowance."
    assert scheduler.decide(_state(scheduler), _observation(199, battery_j=20.0)).chosen.all()


def test_myopic_keeps_the_cheapest_when_the_band_is_narrow() -> None:
    """Devices fit from some share on; where these shares exceed the band, the largest are left out."""
    scheduler = Myopic()
    observation = _observation(0, battery_j=150.0)
    assert observation.uplink is not None
    narrow = replace(observation, uplink=replace(observation.uplink, bandwidth_hz=2e4))
    decision = scheduler.decide(_state(scheduler), narrow)
    assert 0 < decision.chosen.sum() < 20
    spent = narrow.base_energy_j + decision.upload_energy_j
    assert (spent[decision.chosen] <= 0.75).all()
    assert "band" in str(decision.status)


@pytest.mark.parametrize("scheduler", [Uniform, Ascend, Descend, RoundRobin, GreedyEnergy, FixedSet])
def test_a_count_below_one_is_refused(scheduler: type[Uniform]) -> None:
    with pytest.raises(ConfigError, match="count is 0"):
        scheduler(count=0)


# ── By joules ────────────────────────────────────────────────────────────────


def test_greedy_takes_the_cheapest() -> None:
    """In the paper's cell the processor decides what a round costs."""
    observation = _observation()
    decision = GreedyEnergy(count=6).decide(_state(GreedyEnergy()), observation)
    spent = observation.base_energy_j + decision.upload_energy_j
    assert decision.chosen.sum() == 6 and decision.status.ok
    assert spent[decision.chosen].max() <= observation.base_energy_j[~decision.chosen].min() * (1 + 1e-6)


def test_greedy_looks_at_the_channel_where_uploads_cost() -> None:
    seen = _observation()
    assert seen.uplink is not None
    alike = replace(seen, base_energy_j=np.full(20, 0.1))
    heavy = replace(alike, uplink=replace(seen.uplink, payload_bits=np.full(20, 2e6), upload_time_s=np.full(20, 0.4)))
    decision = GreedyEnergy(count=5).decide(_state(GreedyEnergy()), heavy)
    assert set(np.flatnonzero(decision.chosen)) == set(np.argsort(-seen.uplink.gain)[:5])


def test_greedy_without_a_count_spends_what_the_fleet_may_in_a_round() -> None:
    scheduler, observation = GreedyEnergy(), _observation()
    for budget_j in (20.0, 40.0, 100.0, 1000.0):
        decision = scheduler.decide(scheduler.init(np.full(20, budget_j), 200), observation)
        spent = np.where(decision.chosen, observation.base_energy_j + decision.upload_energy_j, 0.0)
        assert spent.sum() <= 20 * budget_j / 200
        if not decision.chosen.all():
            following = observation.base_energy_j[~decision.chosen].min()
            assert spent.sum() + following > 20 * budget_j / 200
    assert decision.chosen.all()
    nobody = scheduler.decide(scheduler.init(np.full(20, 0.1), 200), observation)
    assert str(nobody.status) == "No device can pay for this round out of its allowance."


def test_greedy_empties_cheap_batteries_first_and_overdraws_none() -> None:
    scheduler, battery = GreedyEnergy(count=4), np.full(20, 1.0)
    state, turns = scheduler.init(battery, 200), np.zeros(20)
    for t in range(30):
        observation = replace(_observation(t), battery_j=battery)
        decision = scheduler.decide(state, observation)
        spent = np.where(decision.chosen, observation.base_energy_j + decision.upload_energy_j, 0.0)
        battery, turns = battery - spent, turns + decision.chosen
        state = scheduler.update(state, decision, spent)
        assert (battery >= 0).all()
    cost = observation.base_energy_j
    assert (turns == np.floor(1.0 / cost)).all()  # in the end everybody has spent what it had
    assert not decision.chosen.any() and not decision.status.ok


def test_a_fixed_set_is_the_same_in_every_round() -> None:
    scheduler = FixedSet(count=6)
    state = _state(scheduler)
    first = scheduler.decide(state, _observation(0)).chosen
    assert first.sum() == 6
    assert all((scheduler.decide(state, _observation(t)).chosen == first).all() for t in (1, 50, 199))
    assert (scheduler.decide(state, _observation(0, seed=1)).chosen != first).any()


def test_nobody_stands_in_for_a_device_of_a_fixed_set() -> None:
    scheduler = FixedSet(count=6)
    state, seen = _state(scheduler), _observation()
    everyone = scheduler.decide(state, seen).chosen
    gone = int(np.flatnonzero(everyone)[2])
    decision = scheduler.decide(state, replace(seen, available=np.arange(20) != gone))
    assert decision.chosen.sum() == 5 and (decision.chosen <= everyone).all()
    assert decision.status.devices == {"unavailable": (gone,)}


def test_a_fixed_set_as_large_as_the_fleet_is_everybody() -> None:
    state, seen = _state(FixedSet()), _observation()
    fixed, everybody = FixedSet(count=20).decide(state, seen), AllDevices().decide(state, seen)
    assert fixed.chosen.all() and fixed.share == pytest.approx(everybody.share)
