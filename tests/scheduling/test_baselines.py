from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.scheduling import (
    AllDevices,
    Ascend,
    Descend,
    DeviceEnergyModel,
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
        compute_time_s=link.uplink.device.fastest_s,
        base_energy_j=link.compute_energy_j,
        battery_j=np.full(devices, battery_j),
        hard_budget=False,
        uplink=link.uplink,
    )


def _state(scheduler: Scheduler, devices: int = 20, horizon: int = 200) -> SchedulerState:
    return scheduler.init(np.full(devices, 20.0), horizon)


# ── Patterns ─────────────────────────────────────────────────────────────────


@settings(max_examples=60)
@given(st.integers(1, 41) | st.sampled_from([100, 199, 200, 201, 1000]), st.integers(1, 12))
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
        # In the paper's cell uploads are nearly free: any device that can compute within the allowance takes part.
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
    heavy = replace(
        alike,
        uplink=replace(seen.uplink, device=DeviceEnergyModel(), payload_bits=np.full(20, 2e6), time_s=np.full(20, 0.4)),
    )
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
    assert (turns == np.floor(1.0 / cost)).all()  # in the end every device has spent what it had
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


# ── At the edges ─────────────────────────────────────────────────────────────


def test_patterns_stay_at_their_ends_beyond_the_horizon() -> None:
    """A run may go on for longer than was planned."""
    for t in (9, 10, 25):
        assert (Ascend(count=3).size(t, 10), Descend(count=3).size(t, 10), Uniform(count=3).size(t, 10)) == (5, 1, 3)
        assert (Ascend(count=10).size(t, 10), Descend(count=10).size(t, 10)) == (19, 1)
    assert RoundRobin().init(np.ones(2), 4).memory["next"].tolist() == [0.0]
    assert (Ascend(count=3).size(0, 1), Descend(count=3).size(0, 1)) == (3, 3)
    assert [rising_size(t, 4, 1) for t in range(4)] == [1, 1, 1, 1]
    assert [rising_size(t, 4, 2) for t in range(4)] == [1, 2, 2, 3]
    assert [rising_size(t, 6, 4) for t in range(6)] == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("scheduler", [Uniform, Ascend, Descend, RoundRobin, GreedyEnergy, FixedSet])
def test_one_device_per_round_is_a_count(scheduler: type[Uniform]) -> None:
    one = scheduler(count=1)
    assert one.decide(_state(one), _observation()).chosen.sum() == 1


def test_how_many_take_part_unless_told_otherwise() -> None:
    counts = {kind.name: kind().decide(_state(kind()), _observation()).chosen.sum() for kind in (Uniform, FixedSet)}
    assert counts == {"uniform": 10, "fixed-set": 10}
    assert RoundRobin().decide(_state(RoundRobin()), _observation()).chosen.sum() == 5
    assert [Ascend().size(t, 3) for t in range(3)] == [1, 10, 19] == [Descend().size(2 - t, 3) for t in range(3)]


def _link(observation: Observation) -> Uplink:
    assert observation.uplink is not None
    return observation.uplink


@pytest.mark.parametrize("kind", [AllDevices, Uniform, RoundRobin, Myopic, GreedyEnergy])
def test_where_nobody_is_able_everybody_is_named_with_the_reason(kind: type[Scheduler]) -> None:
    scheduler, seen = kind(), _observation(devices=4, battery_j=100.0)
    late = replace(
        _link(seen),
        device=DeviceEnergyModel(),
        time_s=np.array([-1.0, 0.4, -1.0, 0.4]),
        gain=np.array([1.0, 0.0, 1.0, 1.0]),
    )
    nobody = replace(seen, uplink=late, available=np.array([True, True, True, False]))
    decision = scheduler.decide(scheduler.init(np.full(4, 20.0), 200), nobody)
    reasons = {"unavailable": (3,), "past_deadline": (0, 2), "out_of_reach": (1,)}
    assert (decision.status.code, dict(decision.status.devices)) == ("nobody_able", reasons)


def _with_floor(link: Uplink, floor: float) -> Uplink:
    """Payloads with which this is the least share: θ B T log₂(1 + s/θ) bits."""
    bits = floor * link.bandwidth_hz * link.upload_time_s * np.log2(1 + link.snr / floor)
    heavy = replace(link, payload_bits=bits)
    np.testing.assert_allclose(heavy.power_floor(), floor, rtol=1e-9)
    return heavy


def test_a_reason_why_devices_are_left_out_is_not_hidden_by_their_number() -> None:
    """Three can take part, ten are asked for, and one of the three does not fit the band."""
    scheduler, seen = Uniform(count=10), replace(_observation(), available=np.arange(20) < 3)
    decision = scheduler.decide(_state(scheduler), replace(seen, uplink=_with_floor(_link(seen), 0.4)))
    assert decision.chosen.sum() == 2 and decision.status.code == "left_out"


@pytest.mark.parametrize("floor", [0.1, 0.3])
def test_whose_turn_it_is_depends_on_what_an_equal_share_would_cost(floor: float) -> None:
    """Batteries that just cover the estimate or just do not, at a share of 1/4 or at a least share above it."""
    scheduler, seen = RoundRobin(count=4), _observation(devices=8)
    link = _with_floor(_link(seen), floor)
    cost = seen.base_energy_j + link.curve.energy_j(np.maximum(link.power_floor(), 0.25))
    battery = cost * np.where(np.arange(8) % 2, 1 - 1e-6, 1.0)  # exactly enough is enough
    first = scheduler.decide(scheduler.init(np.full(8, 20.0), 200), replace(seen, uplink=link, battery_j=battery))
    named = set(np.flatnonzero(first.chosen).tolist()) | set(first.status.devices.get("crowded", ()))
    assert named == {0, 2, 4, 6}


def test_the_turn_goes_on_behind_the_last_of_a_round_that_wraps_around() -> None:
    scheduler = RoundRobin(count=3)
    state = replace(scheduler.init(np.full(5, 20.0), 200), memory={"next": np.array([3.0])})
    decision = scheduler.decide(state, _observation(devices=5))
    assert np.flatnonzero(decision.chosen).tolist() == [0, 3, 4]
    after = scheduler.update(state, decision, np.array([1.0, 0, 0, 0, 0]))
    assert after.memory["next"].tolist() == [1.0] and after.queue_j[0] == pytest.approx(0.9)
    last = replace(decision, chosen=np.arange(5) == 4)
    assert scheduler.update(state, last, np.zeros(5)).memory["next"].tolist() == [0.0]


def test_myopic_in_and_beyond_the_last_round_may_spend_all_that_is_left() -> None:
    scheduler, seen = Myopic(), _observation(0, devices=6)
    need = seen.base_energy_j + 0.01
    for t, rounds_left in ((198, 2), (199, 1), (200, 1), (250, 1)):
        for share, taken in ((1.01, True), (0.9, False)):
            decision = scheduler.decide(
                _state(scheduler, devices=6), replace(seen, round=t, battery_j=share * need * rounds_left)
            )
            assert decision.chosen.all() == taken and decision.chosen.any() == taken
    some_away = replace(seen, battery_j=np.zeros(6), available=np.arange(6) < 3)
    assert scheduler.decide(_state(scheduler, devices=6), some_away).status.code == "nobody_affords"


def test_greedy_spends_exactly_what_the_fleet_may() -> None:
    """Without a radio, costs worked out by hand: 1, 2, 3 and 4 J; the limit is the sum of the budgets per round."""
    quiet = replace(_observation(devices=4), uplink=None, base_energy_j=np.array([3.0, 1.0, 4.0, 2.0]))
    scheduler = GreedyEnergy()
    for limit_j, cheapest in ((0.5, []), (1.0, [1]), (2.9, [1]), (3.0, [1, 3]), (6.0, [0, 1, 3]), (10.0, [0, 1, 2, 3])):
        decision = scheduler.decide(scheduler.init(np.full(4, limit_j / 4 * 200), 200), quiet)
        assert np.flatnonzero(decision.chosen).tolist() == cheapest
        assert decision.status.code == ("ok" if cheapest else "nobody_affords")
    unlimited = scheduler.decide(scheduler.init(np.full(4, np.inf), 200), quiet)
    assert unlimited.chosen.all()
    # No device spends more than is left of its budget, though budgets are soft.
    poor = replace(quiet, battery_j=np.array([np.inf, 0.5, np.inf, np.inf]))
    assert np.flatnonzero(GreedyEnergy(count=2).decide(_state(scheduler, 4), poor).chosen).tolist() == [0, 3]
    assert scheduler.limited(_state(scheduler, 4), poor).hard_budget


@pytest.mark.parametrize(("part", "taken"), [(0.99, False), (1.01, True)])
def test_greedy_counts_the_upload_in_what_a_round_costs(part: float, taken: bool) -> None:
    seen = replace(_observation(devices=1), base_energy_j=np.full(1, 1e-3))
    link = _with_floor(_link(seen), 0.5)
    cost = float(seen.base_energy_j[0] + link.curve.energy_j(np.ones(1))[0])
    assert cost > 1.05 * seen.base_energy_j[0]
    decision = GreedyEnergy().decide(
        GreedyEnergy().init(np.full(1, 200 * part * cost), 200), replace(seen, uplink=link)
    )
    assert decision.chosen.tolist() == [taken]


def test_greedy_compares_at_an_equal_part_of_the_band() -> None:
    """One sends little from afar, the other much from nearby: which is cheaper depends on the share.

    Eight devices that cannot be paid for make the equal part a tenth.
    """
    seen, dear = replace(_observation(devices=10), base_energy_j=np.zeros(10)), np.full(8, 1e6)
    link = replace(
        _link(seen),
        bandwidth_hz=1e6,
        payload_bits=np.append([1e6, 1e5], dear),
        time_s=np.ones(10),
        gain=np.append([1e-9, 1e-11], np.full(8, 1e-12)),
        max_power_w=np.full(10, 100.0),
    )
    wide, narrow = (link.curve.energy_j(np.full(10, share))[:2] for share in (1.0, 0.1))
    assert wide[0] < wide[1] and narrow[0] > narrow[1]
    alike = replace(seen, uplink=link)
    assert np.flatnonzero(GreedyEnergy(count=1).decide(_state(GreedyEnergy(), 10), alike).chosen).tolist() == [0]
    assert _cheapest(alike, limit_j=1.0001 * wide[1]) == [1]


def _cheapest(seen: Observation, limit_j: float) -> list[int]:
    """Who takes part where the fleet may spend so much in a round."""
    scheduler = GreedyEnergy()
    before = scheduler.init(np.full(seen.size, 200 * limit_j / seen.size), 200)
    return np.flatnonzero(scheduler.decide(before, seen).chosen).tolist()


def test_a_fixed_set_is_the_lowest_tickets_of_its_own_draw() -> None:
    drawn = np.argsort(stream(0, "fixed-set").random(20))[:4]
    chosen = FixedSet(count=4).decide(_state(FixedSet()), _observation()).chosen
    assert np.flatnonzero(chosen).tolist() == sorted(drawn.tolist())
