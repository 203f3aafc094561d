"""Algorithm 3: the same decisions as its literal form, the paper's corrections, and the last step, `serve`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.scheduling import _upload_formulas as curve
from kfl.scheduling.base import Observation, SchedulerState
from kfl.scheduling.lyapunov import Lyapunov, line_up
from kfl.scheduling.objective import data_weight
from kfl.scheduling.share_band import reachable, serve, share_floor
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import Uplink
from tests.reference.literal_algorithm3 import literal_best_prefix
from tests.reference.rounds import KINDS, instance, paper_round
from tests.reference.uplinks import device_uplink, flat


def observe(**changes: object) -> Observation:
    """Four devices on 1 MHz; device 3 is the farthest."""
    n = 4
    base = Observation(
        round=0,
        seed=0,
        samples=np.full(n, 100.0),
        available=np.ones(n, bool),
        compute_time_s=np.full(n, 0.5),
        base_energy_j=np.full(n, 0.1),
        battery_j=np.full(n, np.inf),
        hard_budget=False,
        uplink=Uplink(
            bandwidth_hz=1e6,
            noise_w_per_hz=4e-21,
            gain=np.array([1e-9, 1e-10, 1e-11, 1e-12]),
            payload_bits=np.full(n, 1e5),
            time_s=np.full(n, 0.5),
            max_power_w=np.ones(n),
        ),
    )
    link = {name: changes.pop(name) for name in list(changes) if name in Uplink.__dataclass_fields__}
    if link:
        base = replace(base, uplink=replace(base.uplink, **link))
    return replace(base, **changes)


def state(queue: list[float] | np.ndarray, allowance: float = 0.1) -> SchedulerState:
    queue = np.asarray(queue, float)
    return SchedulerState(horizon=200, allowance_j=np.full(len(queue), allowance), queue_j=queue)


# ── The same answer as the literal algorithm ─────────────────────────────────


def random_round(seed: int, largest: int) -> tuple[Lyapunov, SchedulerState, Observation]:
    """Rounds in which break tests, crowding and the width of the band all get their turn."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, largest))
    ones = np.ones(n)
    exponent = 10.0 ** rng.uniform(-2, 1.5) / n * 10.0 ** rng.normal(0, 0.2, n)
    if rng.random() < 0.1:
        exponent[rng.random(n) < 0.2] = 0.0
    snr = 10.0 ** (rng.uniform(1, 8) + rng.normal(0, 0.5, n))
    queue = np.where(rng.random(n) < rng.choice([0.0, 0.3, 0.9]), 0.0, 10.0 ** rng.uniform(-1, 1, n))
    upload = curve.upload_energy(1.0 / snr, exponent, 1.0 / n)
    typical = np.median(np.minimum((queue + 1e-9) * upload, 1e6))
    value = 10.0 ** rng.uniform(-0.5, 2.5) * typical * rng.uniform(0.7, 1.3, n)
    compute = 10.0 ** rng.uniform(-6, 0) * np.median(value) * rng.uniform(0.3, 2, n)
    link = Uplink(1.0, 1.0, snr, exponent / np.log(2), ones, ones)  # a band, noise and time of 1: a = 1/h
    seen = replace(observe(uplink=link), samples=value, available=ones > 0, base_energy_j=compute)
    seen = replace(seen, compute_time_s=0 * ones, battery_j=np.inf * ones)
    return Lyapunov(v=1.0, epsilon=float(rng.choice([0.0, 1e-7, 1e-3]))), state(queue, allowance=1.0), seen


def test_random_rounds_have_the_literal_decision() -> None:
    early = stopped = 0
    for seed in range(120):
        scheduler, before, seen = random_round(seed, largest=50)
        candidates, order = line_up(1.0, scheduler.epsilon, before.queue_j, seen)
        expected, looked = literal_best_prefix(candidates)
        chosen = np.flatnonzero(scheduler.decide(before, seen).chosen)
        assert set(chosen) == set(order[:expected]), seed
        early += expected < looked - 1
        stopped += looked < len(candidates)
    assert early >= 3 and stopped >= 30  # the rounds are not all of one kind


def test_a_long_round_has_the_literal_decision() -> None:
    """Long enough for every stage of the search: look-ahead, refinement, exact solution."""
    for seed in (1, 5):
        scheduler, before, seen = random_round(seed, largest=400)
        candidates, order = line_up(1.0, scheduler.epsilon, before.queue_j, seen)
        chosen = np.flatnonzero(scheduler.decide(before, seen).chosen)
        assert set(chosen) == set(order[: literal_best_prefix(candidates)[0]])


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_the_benchmark_have_the_literal_decision(kind: str) -> None:
    scheduler, before, seen = instance(kind, devices=80, seed=1)
    decision = scheduler.decide(before, seen)
    extra = scheduler.epsilon * float(before.allowance_j.mean())
    candidates, order = line_up(scheduler.v / (seen.round + 1), extra, before.queue_j, seen)
    count, _ = literal_best_prefix(candidates)
    assert set(np.flatnonzero(decision.chosen)) == set(order[:count])
    assert count > 0
    # The value is the true drift-plus-penalty, and no prefix or empty set is better.
    energy = seen.base_energy_j + decision.upload_energy_j
    gain = scheduler.v / (seen.round + 1) * seen.samples[decision.chosen].sum()
    assert decision.objective == pytest.approx(float((before.queue_j * energy)[decision.chosen].sum()) - gain)
    assert decision.objective < 0


# ── The paper's corrections ──────────────────────────────────────────────────


def test_round_0_takes_everybody_who_fits_cheapest_first() -> None:
    """All queues empty: all tie but for their data, and smaller least shares go first."""
    heavy = observe(payload_bits=np.full(4, 2.2e6), gain=np.array([1e-12, 1e-9, 1e-11, 1e-10]))
    floor = share_floor(heavy)
    decision = Lyapunov(v=0.01).decide(state(np.zeros(4)), heavy)
    fit = np.cumsum(np.sort(floor)) <= 1
    assert 0 < fit.sum() < 4
    assert set(np.flatnonzero(decision.chosen)) == set(np.argsort(floor)[: fit.sum()])
    assert decision.objective == pytest.approx(-0.01 * 100 * fit.sum())


def test_gamma_is_in_the_break_test() -> None:
    """V D = 1 and q E_L = 0.5: worth it in round 0 (γ = 1), not in round 9 (γ = 1/10)."""
    queues = state(np.full(4, 5.0))
    assert Lyapunov(v=0.01).decide(queues, observe(round=0)).chosen.all()
    late = Lyapunov(v=0.01).decide(queues, observe(round=9))
    assert not late.chosen.any() and late.objective == 0 and late.share.sum() == 0
    assert Lyapunov(v=0.01, gamma="constant").decide(queues, observe(round=9)).chosen.all()


def test_all_samples_of_a_device_count() -> None:
    """Δ uses D_k: of two alike devices the one with more data is worth its energy, the other is not."""
    seen = observe(samples=np.array([100.0, 10.0, 100.0, 10.0]))
    np.testing.assert_array_equal(
        Lyapunov(v=0.01).decide(state(np.full(4, 5.0)), seen).chosen, [True, False, True, False]
    )


def test_a_whole_models_estimate_overflows_and_the_order_still_is_right() -> None:
    """FedAvg's 17.6 Mbit, K = 200 on the paper's band: e^(b K) is beyond floating point for all devices."""
    seen = paper_round(200, seed=0)
    seen = replace(seen, uplink=replace(seen.uplink, payload_bits=np.full(200, 17.6e6)))
    queue = np.random.default_rng(0).exponential(0.1, 200)
    queue[:50] = 0.0
    _, order = line_up(0.01, 1e-7, queue, seen)
    possible, _ = reachable(seen)
    assert len(order) == possible.sum() > 20
    free = queue[order] == 0
    assert free[: free.sum()].all()  # 0 · ∞ = 0: empty queues first
    exponent = curve.required_exponent(17.6e6, seen.uplink.bandwidth_hz, seen.uplink.upload_time_s)
    scale = curve.energy_scale(
        seen.uplink.bandwidth_hz, seen.uplink.noise_w_per_hz, seen.uplink.upload_time_s, seen.uplink.gain
    )
    assert np.isinf(curve.upload_energy(scale, exponent, 1 / 200)[order]).all()
    log_cost = (np.log(np.maximum(queue, 1e-300)) + curve.log_upload_energy(scale, exponent, 1 / 200))[order]
    assert (np.diff(log_cost[free.sum() :]) >= 0).all()
    decision = Lyapunov(v=0.01).decide(state(queue), seen)
    assert decision.chosen.any() and decision.share.sum() <= 1 + 1e-12


def test_nobody_is_better_than_a_loss() -> None:
    for queue in (1.0, 0.0):  # with V = 0 data is worth nothing: a loss, and a tie with the empty set
        decision = Lyapunov(v=0.0).decide(state(np.full(4, queue)), observe())
        assert not decision.chosen.any() and decision.objective == 0


def test_unreachable_devices_are_never_chosen_and_the_status_says_so() -> None:
    seen = observe(
        available=np.array([True, True, True, False]),
        time_s=np.array([0.5, -0.1, 0.5, 0.5]),
        gain=np.array([1e-9, 1e-9, 1e-20, 1e-9]),
    )
    decision = Lyapunov(v=0.01).decide(state(np.zeros(4)), seen)
    np.testing.assert_array_equal(decision.chosen, [True, False, False, False])
    assert str(decision.status) == (
        "2 of 4 devices cannot be scheduled this round: device 1 past the deadline after computing; "
        "device 2 unable to finish with the whole band at full power."
    )


def test_epsilon_keeps_idle_queues_from_sending_at_full_power() -> None:
    seen = paper_round(100, seed=0, round_index=0)
    before = state(np.zeros(100))
    ours, printed = Lyapunov(v=0.01).decide(before, seen), Lyapunov(v=0.01, as_printed=True).decide(before, seen)
    np.testing.assert_array_equal(ours.chosen, printed.chosen)
    np.testing.assert_allclose(printed.power_w[printed.chosen], seen.uplink.max_power_w[printed.chosen], rtol=1e-9)
    assert printed.upload_energy_j.sum() > 1e5 * ours.upload_energy_j.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_does_not_change_who_is_scheduled(kind: str) -> None:
    scheduler, before, seen = instance(kind, devices=80, seed=2)
    with_it, without = scheduler.decide(before, seen), replace(scheduler, epsilon=0.0).decide(before, seen)
    np.testing.assert_array_equal(with_it.chosen, without.chosen)
    limit = scheduler.epsilon * 0.1 * float((seen.uplink.max_power_w * seen.uplink.upload_time_s).sum())
    assert without.objective - 1e-12 <= with_it.objective <= without.objective + limit


def test_as_printed_gives_least_shares_beside_optimal_ones() -> None:
    seen = observe(payload_bits=np.full(4, 1e5))
    decision = Lyapunov(as_printed=True, v=1.0).decide(state([0.0, 1.0, 0.0, 1.0]), seen)
    floor = share_floor(seen)
    np.testing.assert_allclose(decision.share[[0, 2]], floor[[0, 2]], rtol=1e-12)
    assert (decision.share[[1, 3]] > 2 * floor[[1, 3]]).all() and decision.share.sum() == pytest.approx(1)


def test_without_a_radio_computation_decides() -> None:
    seen = observe(uplink=None)
    decision = Lyapunov(v=0.01).decide(state([0.0, 5.0, 20.0, 9.9]), seen)
    np.testing.assert_array_equal(decision.chosen, [True, True, False, True])
    assert decision.upload_energy_j.sum() == decision.share.sum() == 0
    assert decision.objective == pytest.approx(-3.0 + 0.1 * 14.9)


def test_queues_follow_equation_21() -> None:
    scheduler = Lyapunov(v=0.01)
    before = scheduler.init(np.array([20.0, np.inf]), horizon=200)
    after = scheduler.update(before, Lyapunov(v=0.01).decide(before, _two()), np.array([0.3, 0.3]))
    np.testing.assert_allclose(after.queue_j, [0.2, 0.0])


def _two() -> Observation:
    ones = np.ones(2)
    return Observation(0, 0, ones, ones > 0, 0.5 * ones, 0.1 * ones, np.inf * ones, False, None)


# ── Parameters ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"v": -1.0}, "scheduler.v is -1.0"),
        ({"v": float("nan")}, "scheduler.v is nan"),
        ({"epsilon": -1e-9}, "scheduler.epsilon is -1e-09"),
        ({"gamma": "sideways"}, "gamma is 'sideways'"),
        ({"gamma": "math:nothing"}, "gamma is 'math:nothing'"),
        ({"gamma": "no_such_module:f"}, "gamma is 'no_such_module:f'"),
        ({"gamma": "math:pi"}, "gamma is 'math:pi'"),
    ],
)
def test_bad_parameters_are_refused_with_their_name(parameters: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Lyapunov(**parameters)
    assert words in str(caught.value)


def test_gamma_may_be_a_users_function_and_must_be_a_weight() -> None:
    assert data_weight("math:cosh", 0) == 1.0
    assert Lyapunov(v=0.01, gamma="math:sqrt").decide(state(np.zeros(4)), observe(round=4)).objective == pytest.approx(
        -8.0
    )
    with pytest.raises(ConfigError, match="finite number, 0 or more"):
        data_weight("operator:neg", 3)


# ── serve ────────────────────────────────────────────────────────────────────


def test_serve_allocates_and_fills_arrays_for_everybody() -> None:
    chosen = np.array([True, False, True, False])
    decision = serve(observe(), chosen, np.ones(4))
    assert decision.status.ok and np.isnan(decision.objective)
    np.testing.assert_array_equal(decision.chosen, chosen)
    for values in (decision.share, decision.power_w, decision.upload_energy_j, decision.upload_time_s):
        assert values.shape == (4,) and (values[~chosen] == 0).all() and (values[chosen] > 0).all()
    np.testing.assert_allclose(decision.upload_energy_j, decision.power_w * decision.upload_time_s)
    assert decision.share.sum() == pytest.approx(1.0)


def test_serve_leaves_out_those_who_cannot_and_says_who() -> None:
    seen = observe(
        available=np.array([True, True, True, False]),
        time_s=np.array([0.5, 0.0, 0.5, 0.5]),
        gain=np.array([1e-9, 1e-9, 0.0, 1e-9]),
    )
    decision = serve(seen, np.ones(4, bool), np.ones(4))
    np.testing.assert_array_equal(decision.chosen, [True, False, False, False])
    assert str(decision.status) == (
        "Left out 3 of 4 chosen devices: device 3 not available; device 1 past the deadline after computing; "
        "device 2 unable to finish with the whole band at full power."
    )


def test_serve_drops_the_largest_least_shares_until_the_rest_fits() -> None:
    heavy = observe(payload_bits=np.full(4, 2.2e6))
    floor = share_floor(heavy)
    assert (floor < 1).all() and floor.sum() > 1
    decision = serve(heavy, np.ones(4, bool), np.ones(4))
    kept = np.cumsum(np.sort(floor)) <= 1
    assert decision.chosen.sum() == kept.sum() < 4
    assert floor[decision.chosen].max() <= floor[~decision.chosen].min()
    assert "insufficient remaining bandwidth" in str(decision.status)


def test_many_dropped_devices_are_counted_not_listed() -> None:
    seen = paper_round(40, seed=0)
    late = replace(seen, uplink=replace(seen.uplink, time_s=-np.ones(40)))
    decision = serve(late, np.ones(40, bool), np.ones(40))
    assert str(decision.status) == (
        "Left out 40 of 40 chosen devices: 40 devices (0, 1, 2, 3, 4, …) past the deadline after computing."
    )
    assert not decision.chosen.any() and decision.share.sum() == 0


def test_serve_without_a_radio_costs_nothing() -> None:
    decision = serve(observe(uplink=None), np.ones(4, bool), np.ones(4))
    assert decision.chosen.all() and decision.upload_energy_j.sum() == decision.upload_time_s.sum() == 0


def test_nobody_chosen_is_served_quietly() -> None:
    decision = serve(observe(), np.zeros(4, bool), np.ones(4))
    assert decision.status.ok and not decision.chosen.any()


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_a_hard_budget_is_never_overspent(seed: int) -> None:
    """It is a floor on the share: batteries from far too small to ample, uploads from cheap to most of them."""
    rng = np.random.default_rng(seed)
    n = 12
    one = np.ones(n)
    seen = Observation(
        round=0,
        seed=seed,
        samples=100 * one,
        available=rng.random(n) < 0.9,
        compute_time_s=0.5 * one,
        base_energy_j=rng.uniform(0, 0.2, n),
        battery_j=10.0 ** rng.uniform(-4, 1, n),
        hard_budget=True,
        uplink=Uplink(
            1e6, 4e-21, 10.0 ** rng.uniform(-13, -9, n), 10.0 ** rng.uniform(4, 6, n), rng.uniform(-0.1, 1, n), one
        ),
    )
    for decision in (
        serve(seen, np.ones(n, bool), rng.exponential(size=n)),
        Lyapunov().decide(state(np.zeros(n)), seen),
        Lyapunov(v=0.01, as_printed=True).decide(state(np.zeros(n)), seen),
    ):
        spent = np.where(decision.chosen, seen.base_energy_j + decision.upload_energy_j, 0.0)
        assert (spent <= seen.battery_j).all()
        assert decision.share.sum() <= 1 + 1e-12
        assert (decision.power_w <= seen.uplink.max_power_w * (1 + 1e-9)).all()


def test_a_hard_budget_is_a_floor_not_a_filter() -> None:
    """A device that cannot pay for the least share its radio needs, but can pay for a larger one, takes part."""
    soft = observe(payload_bits=np.full(4, 5e5))
    at_floor = curve.upload_energy(
        curve.energy_scale(1e6, 4e-21, 0.5, soft.uplink.gain),
        curve.required_exponent(5e5, 1e6, 0.5),
        share_floor(soft),
    )
    np.testing.assert_allclose(at_floor, 0.5, rtol=1e-9)  # full power for half a second
    hard = replace(soft, hard_budget=True, battery_j=np.array([0.2, 0.2, 0.2, 0.05]))
    possible, floor = reachable(hard)
    np.testing.assert_array_equal(possible, [True, True, True, False])  # the last cannot even compute
    assert (floor[:3] > share_floor(soft)[:3]).all()
    decision = serve(hard, np.ones(4, bool), np.ones(4))
    assert "device 3 without the energy for this round" in str(decision.status)
    assert (decision.upload_energy_j[:3] <= 0.1).all() and decision.chosen[:3].all()


def test_a_hard_budget_without_a_radio_pays_for_computing() -> None:
    seen = observe(uplink=None, hard_budget=True, battery_j=np.array([1.0, 0.05, 0.2, np.inf]))
    np.testing.assert_array_equal(serve(seen, np.ones(4, bool), np.ones(4)).chosen, [True, False, True, True])


# ── The order, and what a round says of itself ───────────────────────────────


def test_the_printed_rule_is_not_for_whole_devices() -> None:
    one = np.ones(4)
    link = device_uplink(
        **flat(observe().uplink),
        fastest_s=0.5 * one,
        slowest_s=one,
        work_j_s2=0.01 * one,
        static_power_w=0 * one,
        circuit_power_w=0.1 * one,
        amplifier_efficiency=0.5 * one,
        min_power_w=0 * one,
        once_j=0 * one,
    )
    seen = observe(uplink=link)
    with pytest.raises(ConfigError, match=r"^scheduler\.as_printed is True, but must be false in a cell with whole"):
        Lyapunov(v=0.01, as_printed=True).decide(state(np.zeros(4)), seen)
    assert Lyapunov(v=0.01).decide(state(np.zeros(4)), seen).chosen.all()
    assert Lyapunov(as_printed=True).small_price(state(np.zeros(4)), observe()) == 0
    assert Lyapunov(v=0.01, as_printed=True).decide(state(np.zeros(4)), observe()).chosen.all()


def test_devices_stand_in_line_by_what_they_cost_less_what_they_are_worth() -> None:
    """Δ = −V γ D + q (E_L + E_U(1/K)), worked out by hand; the unreachable are not in line."""
    rng = np.random.default_rng(4)
    seen = observe(
        samples=rng.uniform(50, 150, 4),
        base_energy_j=rng.uniform(0.05, 0.2, 4),
        payload_bits=np.full(4, 5e5),
        gain=np.array([1e-12, 3e-13, 1e-12, 3e-13]),
        available=np.array([True, True, True, True]),
    )
    for seed in range(20):
        queue = np.random.default_rng(seed).exponential(5.0, 4)
        link = seen.uplink
        upload = 0.25 * 1e6 * 4e-21 / link.gain * (2 ** (5e5 / (0.25 * 1e6 * 0.5)) - 1) * 0.5
        delta = queue * (seen.base_energy_j + upload) - 0.01 * seen.samples
        candidates, order = line_up(0.01, 0.5, queue, seen)
        np.testing.assert_array_equal(order, np.argsort(delta))
        np.testing.assert_array_equal(candidates.queue_j, queue[order])
        np.testing.assert_allclose(candidates.value, 0.01 * seen.samples[order])
        np.testing.assert_array_equal(candidates.base_energy_j, seen.base_energy_j[order])
        np.testing.assert_array_equal(candidates.floor, share_floor(seen)[order])
        np.testing.assert_allclose(candidates.log_weight, np.log(queue[order] + 0.5))
    assert line_up(0.01, 0.5, queue, replace(seen, available=np.array([True, False, True, False])))[1].tolist() in (
        [0, 2],
        [2, 0],
    )


def test_ties_go_to_the_smaller_floor_and_then_to_the_first() -> None:
    seen = observe(gain=np.array([1e-11, 1e-10, 1e-11, 1e-9]))
    assert line_up(0.01, 0.0, np.zeros(4), seen)[1].tolist() == [3, 1, 0, 2]
    alike = observe(gain=np.full(4, 1e-10))
    assert line_up(0.01, 0.0, np.array([0.5, 0.0, 0.2, 0.0]), alike)[1].tolist() == [1, 3, 2, 0]  # free joules first


def test_a_device_that_is_all_but_inaudible_stays_out_quietly() -> None:
    """Its energy is beyond floating point and its queue is empty: 0 · ∞ is no device's concern."""
    seen = observe(gain=np.array([1e-9, 1e-10, 1e-11, 1e-320]))
    assert Lyapunov(v=0.01).decide(state(np.zeros(4)), seen).chosen.tolist() == [True, True, True, False]


def test_the_status_of_a_round() -> None:
    """No device is online; none of those online has charge; no device is worth it; some who are there cannot."""
    idle, dear = state(np.zeros(4)), state(np.full(4, 1e3))
    scheduler = Lyapunov(v=0.01)
    away = observe(available=np.zeros(4, bool))
    assert scheduler.decide(idle, away).status == Status("nobody_available")
    flat = replace(away, empty=np.array([True, False, True, False]))
    assert scheduler.decide(idle, flat).status == Status("nobody_charged", {"empty": (0, 2)})
    assert scheduler.decide(dear, observe()).status == Status("nobody_worth")
    some_away = observe(available=np.array([True, False, True, True]))
    assert scheduler.decide(dear, some_away).status == Status("nobody_worth")
    assert scheduler.decide(idle, some_away).status == Status()
    some_flat = replace(some_away, empty=np.array([False, True, False, False]))
    assert scheduler.decide(idle, some_flat).status == Status("unschedulable", {"empty": (1,)}, {"devices": 4})
    late = observe(time_s=np.array([0.5, 0.5, -1.0, 0.5]))
    assert scheduler.decide(idle, late).status == Status("unschedulable", {"past_deadline": (2,)}, {"devices": 4})
