"""The dual scheduler: its price and bound against independent computations, its sets at every size."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.scheduling import Dual, Observation, SchedulerState, Status, Uplink
from kfl.scheduling.allocation import solve_shares
from tests.reference.uplinks import device_uplink, flat

BAND, NOISE = 1e5, 4e-21


def _round(
    devices: int, seed: int, *, empty: float = 0.3, load: float = 2.0, hard_budget: bool = False
) -> tuple[SchedulerState, Observation]:
    """A round whose band is scarce: `load` is about how many times the floors would fill it."""
    draw = stream(seed, "test")
    queue = 10 ** draw.uniform(-2, 1, devices) * (draw.random(devices) >= empty)
    compute_time = draw.uniform(0.2, 0.8, devices)
    observation = Observation(
        round=0,
        seed=seed,
        samples=draw.uniform(200, 1000, devices),
        available=draw.random(devices) > 0.1,
        compute_time_s=compute_time,
        base_energy_j=draw.uniform(0.02, 0.3, devices),
        battery_j=draw.uniform(0.1, 1.0, devices) if hard_budget else np.full(devices, np.inf),
        hard_budget=hard_budget,
        uplink=Uplink(
            bandwidth_hz=BAND * devices / 10,
            noise_w_per_hz=NOISE,
            gain=10 ** draw.uniform(-11, -8, devices),
            payload_bits=1.5e5 * load * draw.uniform(0.2, 1.0, devices),
            time_s=1 - compute_time,
            max_power_w=np.full(devices, 0.5),
        ),
    )
    return SchedulerState(200, np.full(devices, 0.1), queue), observation


# ── The sets ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("devices", [10, 100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize("empty", [0.0, 0.3, 1.0])
def test_the_gap_is_at_most_one_devices_worth(devices: int, empty: float) -> None:
    for seed in range(6 if devices < 10_000 else 1):
        state, observation = _round(devices, seed, empty=empty)
        decision = Dual().decide(state, observation)
        worth = 0.01 * observation.samples
        assert 0 <= decision.gap <= worth.max()
        # Not by luck: the band is full and keeps out devices that are worth their energy.
        assert decision.share.sum() > 0.5
        if devices >= 10_000:
            assert decision.gap < 0.1 * worth.min()
            out = observation.available & ~decision.chosen
            assert (out & (worth > state.queue_j * observation.base_energy_j)).sum() > devices / 20


@settings(max_examples=150)
@given(
    devices=st.integers(1, 14),
    seed=st.integers(0, 10_000),
    empty=st.sampled_from([0.0, 0.3, 1.0]),
    load=st.floats(0.05, 12.0),
    hard_budget=st.booleans(),
)
def test_random_rounds_keep_the_certificate(
    devices: int, seed: int, empty: float, load: float, hard_budget: bool
) -> None:
    state, observation = _round(devices, seed, empty=empty, load=load, hard_budget=hard_budget)
    decision = Dual(v=0.01).decide(state, observation)
    assert decision.lower_bound <= decision.objective <= 0
    assert decision.gap <= 0.01 * observation.samples.max()
    energy = observation.base_energy_j + decision.upload_energy_j
    value = np.where(decision.chosen, state.queue_j * energy - 0.01 * observation.samples, 0).sum()
    assert decision.objective == pytest.approx(value, abs=1e-12)


def test_identical_devices() -> None:
    """All prices tie: the band still fills, with a certified gap below one device."""
    for devices in (12, 500, 40_000):
        state, observation = _round(devices, 0, empty=0.0)
        assert observation.uplink is not None
        same = {name: np.full(devices, 0.5) for name in ("compute_time_s", "base_energy_j")}
        uplink = replace(
            observation.uplink,
            gain=np.full(devices, 1e-9),
            payload_bits=np.full(devices, 2e5),
            time_s=np.full(devices, 0.5),
        )
        observation = replace(
            observation, **same, samples=np.full(devices, 600.0), available=np.ones(devices, bool), uplink=uplink
        )
        for queue in (0.0, 1.0):
            decision = Dual().decide(replace(state, queue_j=np.full(devices, queue)), observation)
            assert 0 < decision.chosen.sum() < devices
            assert decision.gap <= 6.0
            assert decision.chosen[: decision.chosen.sum()].all()  # of equals, the first


def test_an_empty_queue_does_not_send_at_full_power() -> None:
    """The paper gives q = 0 the least share; a small price on its joules saves nearly all of them."""
    state, observation = _round(4, 5, empty=1.0, load=0.05)
    chosen = Dual().decide(state, observation)
    assert observation.uplink is not None
    full = observation.uplink.max_power_w * observation.uplink.upload_time_s
    assert (chosen.upload_energy_j[chosen.chosen] < 0.01 * full[chosen.chosen]).all()


def test_free_uploads() -> None:
    """Nothing to send takes no band; no radio takes none at all."""
    state, observation = _round(6, 1, empty=0.0)
    assert observation.uplink is not None
    silent = replace(observation, uplink=replace(observation.uplink, payload_bits=np.zeros(6)))
    without = replace(observation, uplink=None)
    worthy = observation.available & (0.01 * observation.samples > state.queue_j * observation.base_energy_j)
    for case in (silent, without):
        decision = Dual().decide(state, case)
        assert (decision.chosen == worthy).all()
        assert (decision.upload_energy_j == 0).all() and (decision.share == 0).all()
        assert decision.gap == pytest.approx(0, abs=1e-12)


def test_nothing_is_worth_it_when_v_is_zero() -> None:
    decision = Dual(v=0.0).decide(*_round(5, 0))
    assert not decision.chosen.any() and decision.objective == 0 and "worth" in str(decision.status)


@pytest.mark.parametrize(("field", "value"), [("v", -1.0), ("v", np.nan), ("epsilon", -1e-9), ("epsilon", np.inf)])
def test_bad_parameters_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        Dual(**{field: value})


# ── What a decision says of itself ───────────────────────────────────────────


def _four(**changes: object) -> Observation:
    """Four devices without a radio, each worth 1 at V = 0.01 before its 0.1 J of computing."""
    four = np.ones(4)
    base = Observation(0, 0, 100 * four, four > 0, 0.5 * four, 0.1 * four, np.inf * four, False, None)
    return replace(base, **changes)


def _idle(queue: list[float] | None = None) -> SchedulerState:
    return SchedulerState(200, np.full(4, 0.1), np.zeros(4) if queue is None else np.array(queue))


def test_without_a_radio_whoever_is_worth_more_than_nothing_takes_part() -> None:
    decision = Dual(v=0.01).decide(_idle([0.0, 5.0, 10.0, 20.0]), _four())
    assert decision.chosen.tolist() == [True, True, False, False] and decision.status.ok
    assert decision.objective == pytest.approx(-1.5) and decision.lower_bound == decision.objective
    assert decision.share.tolist() == [0, 0, 0, 0]


def test_why_nobody_takes_part() -> None:
    link = Uplink(1e5, NOISE, np.full(4, 1e-9), np.full(4, 1e4), np.full(4, 0.5), np.full(4, 0.5))
    radio, dear, scheduler = _four(uplink=link), _idle([1e3] * 4), Dual(v=0.01)
    some = np.array([True, True, False, False])
    cases = [
        (scheduler, dear, _four(), Status("nobody_worth")),
        (scheduler, dear, _four(available=some), Status("nobody_worth")),
        (scheduler, dear, _four(available=~np.ones(4, bool)), Status("nobody_available")),
        (
            scheduler,
            dear,
            _four(available=~np.ones(4, bool), empty=some),
            Status("nobody_charged", {"empty": (0, 1)}),
        ),
        (
            scheduler,
            _idle([0.0, 0.0, 0.0, 10.0]),
            replace(radio, uplink=replace(link, gain=np.array([0.0, 0.0, 1e-9, 0.0])), available=np.arange(4) != 2),
            Status("nobody_worth_able", {"out_of_reach": (0, 1)}),
        ),
        # It could pay for a share, but not within the dearest upload that it is allowed.
        (Dual(dearest_upload=1e-9), _idle(), radio, Status("nobody_worth")),
        # Worth its computing, but not the dearest joules of its upload.
        (
            scheduler,
            _idle([9.99] * 4),
            replace(radio, uplink=replace(link, gain=np.full(4, 1e-14))),
            Status("nobody_worth"),
        ),
    ]
    for who, state, seen, status in cases:
        decision = who.decide(state, seen)
        assert not decision.chosen.any() and decision.objective == decision.lower_bound == 0
        assert decision.chosen.shape == decision.share.shape == (4,)
        assert decision.status == status


def test_devices_that_cannot_send_leave_the_band_to_the_others() -> None:
    link = Uplink(1e5, NOISE, np.array([1e-9, 0.0, 1e-9, 1e-9]), np.full(4, 1e4), np.full(4, 0.5), np.full(4, 0.5))
    decision = Dual(v=0.01).decide(_idle(), _four(uplink=link))
    assert decision.chosen.tolist() == [True, False, True, True]
    np.testing.assert_allclose(decision.share, [1 / 3, 0, 1 / 3, 1 / 3])


def test_the_bound_lies_below_by_some_units_in_the_last_place_of_what_it_is_made_of() -> None:
    """All devices that are heard fit and joules are nearly as dear as data: Σ (V γ D + q E_L) is 7.92, the objective
    0.08.

    A device that is not heard is no part of it, whatever its data.
    """
    five, gain = np.ones(5), np.array([1e-9, 1e-9, 1e-9, 1e-9, 0.0])
    seen = Observation(
        round=3,
        seed=0,
        samples=np.array([100.0, 100.0, 100.0, 100.0, 1e6]),
        available=five > 0,
        compute_time_s=0.5 * five,
        base_energy_j=0.1 * five,
        battery_j=np.inf * five,
        hard_budget=False,
        uplink=Uplink(1e5, NOISE, gain, 1e2 * five, 0.5 * five, 0.5 * five),
    )
    decision = Dual(v=0.04).decide(SchedulerState(200, 0.1 * five, 9.8 * five), seen)
    assert decision.chosen.tolist() == [True] * 4 + [False]
    assert 1e-14 * 7.92 < decision.gap < 2e-14 * 7.92


def test_the_band_is_shared_by_the_queues_and_a_small_price() -> None:
    """ε, or what costs a thousandth of the least device's data at most; 1 where no device's joules have a price."""
    link = Uplink(1e5, NOISE, np.array([1e-9, 1e-10, 1e-11, 1e-11]), np.full(4, 5e4), np.full(4, 0.5), np.full(4, 0.2))
    seen = _four(uplink=link, samples=np.array([100.0, 200.0, 300.0, 400.0]), round=3)
    most = 1e-3 * 0.01 * 100 / (4 * 0.5 * 0.2)
    for epsilon, queue, price in (
        (1e-6, [0.0, 0.0, 1e-7, 1e-6], 1e-7),
        (1e9, [0.0, 0.0, most, most / 2], most),
        (0.0, [0.0, 0.0, 0.0, 0.0], 1.0),
        (0.0, [0.0, 0.0, 1e-6, 2e-6], 0.0),
    ):
        decision = Dual(v=0.04, epsilon=epsilon).decide(_idle(queue), seen)
        wanted = solve_shares(link, np.array(queue) + price, seen.power_floor)
        assert decision.chosen.all()
        np.testing.assert_allclose(decision.share, wanted.share, rtol=1e-6)
        np.testing.assert_allclose(decision.upload_energy_j, wanted.energy_j, rtol=1e-5)
    # Whole devices: ε, however large.
    ones = np.ones(4)
    whole = device_uplink(
        **flat(link),
        fastest_s=0.5 * ones,
        slowest_s=0.5 * ones,
        work_j_s2=0.01 * ones,
        static_power_w=0 * ones,
        circuit_power_w=0.01 * ones,
        amplifier_efficiency=0.5 * ones,
        min_power_w=0 * ones,
        once_j=0 * ones,
    )
    decision = Dual(v=0.04, device_epsilon=1e3).decide(_idle([0.0, 0.0, 0.5, 1.0]), replace(seen, uplink=whole))
    wanted = solve_shares(whole, np.array([0.0, 0.0, 0.5, 1.0]) + 1e3 * 0.1, seen.power_floor)
    np.testing.assert_allclose(decision.share, wanted.share, rtol=1e-6)
    silent = Dual(v=0.01, epsilon=1e9).decide(_idle(), replace(seen, uplink=replace(link, payload_bits=np.zeros(4))))
    assert silent.chosen.all() and silent.upload_energy_j.sum() == 0
