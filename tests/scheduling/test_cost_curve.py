"""What every cost curve promises, tried on the paper's model and on whole devices.

The whole devices are held against `tests/reference/whole_device.py`, which minimizes over the split of the time
in 40 digits and shares no code with the library. `python -m studies.solvers curve` does the same on many more.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling import AllDevices, Dual, Lyapunov, Observation, SchedulerState, Uplink
from kfl.scheduling.allocation import solve_shares
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.device_curve import DeviceCurve
from kfl.scheduling.objective import drift_objective
from kfl.scheduling.share_band import share_floor
from tests.reference.device_solver import compare, problems
from tests.reference.uplinks import device_uplink
from tests.reference.whole_device import Devices, exact, random_devices

pytestmark = pytest.mark.filterwarnings("error")

KINDS = ["printed", "circuits", "free clock", "limits"]
"""The paper's model; a fixed clock with circuit power; a free clock and static power; that with narrow power limits."""


def uplink(kind: str, devices: int, seed: int) -> Uplink:
    draw = stream(seed, "uplink")
    radio = {
        "bandwidth_hz": 2e5,
        "noise_w_per_hz": 4e-21,
        "gain": 10 ** draw.uniform(-14, -11, devices),
        "payload_bits": draw.uniform(2e4, 1e5, devices),
        "upload_time_s": draw.uniform(0.4, 1.0, devices),
        "max_power_w": np.full(devices, 2.0),
    }
    if kind == "printed":
        return device_uplink(**radio)
    fastest_s = draw.uniform(0.1, 1.0, devices)
    free = kind != "circuits"
    whole = {
        "fastest_s": fastest_s,
        "slowest_s": fastest_s * (draw.uniform(1.2, 9.0, devices) if free else 1.0),
        "work_j_s2": 10 ** draw.uniform(-3, 0, devices) * fastest_s**2,
        "static_power_w": 10 ** draw.uniform(-3, 0, devices) * free,
        "circuit_power_w": 10 ** draw.uniform(-4, -1, devices),
        "amplifier_efficiency": draw.uniform(0.2, 1.0, devices),
        "min_power_w": 10 ** draw.uniform(-6, -3, devices) * (kind == "limits"),
        "once_j": np.zeros(devices),
    }
    if kind == "limits":
        radio["max_power_w"] = 10 ** draw.uniform(-2.5, -0.5, devices)
        radio["gain"] = 10 ** draw.uniform(-12, -10, devices)
    return device_uplink(**radio, **whole)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def inside(link: Uplink, seed: int) -> np.ndarray:
    """A share of each device that its power allows."""
    floor = link.power_floor()
    assert (floor < 1).all()
    return np.exp(np.log(floor) * stream(seed, "share").uniform(0.02, 0.98, len(floor)))


# ── The curve ────────────────────────────────────────────────────────────────


def test_the_curve_is_convex_and_falling_and_its_slope_is_the_saving(kind: str) -> None:
    link = uplink(kind, 60, 0)
    curve, none, step = link.curve, np.zeros(60), 1e-4
    for seed in range(5):
        share = inside(link, seed)
        low, here, high = (curve.energy_j(share * f) for f in (1 - step, 1.0, 1 + step))
        assert (low > here).all() and (here > high).all() and (low + high >= 2 * here * (1 - 1e-14)).all()
        before, after = (low - here) / (step * share), (here - high) / (step * share)
        saving = np.exp(curve.log_saving(share, none))
        assert (saving <= before * (1 + 1e-9)).all() and (saving >= after * (1 - 1e-9)).all()
        np.testing.assert_allclose(np.exp(curve.log_energy_j(share)), here, rtol=1e-12)


def test_chords_lie_above_the_curve(kind: str) -> None:
    """Convexity over long distances, across every change of regime."""
    link = uplink(kind, 200, 1)
    curve, floor = link.curve, link.power_floor()
    for seed in range(20):
        draw = stream(seed, "chord")
        one, other = (np.exp(np.log(floor) * draw.random(200)) for _ in range(2))
        part = draw.random(200)
        chord = part * curve.energy_j(one) + (1 - part) * curve.energy_j(other)
        assert (curve.energy_j(part * one + (1 - part) * other) <= chord * (1 + 1e-12)).all()


def test_the_inverse_the_elasticity_and_the_break_even_agree_with_the_curve(kind: str) -> None:
    link, weight = uplink(kind, 60, 2), np.log(stream(1, "weight").uniform(0.1, 10, 60))
    curve = link.curve
    for seed in range(5):
        share = inside(link, seed)
        price = curve.log_saving(share, weight)
        np.testing.assert_allclose(curve.share_at_price(price, weight), share, rtol=1e-9)
        lower, upper = (curve.share_at_price(price + step, weight) for step in (-1e-5, 1e-5))
        smooth = np.abs(np.log(lower / share) - np.log(share / upper)) < 1e-8  # not where the regime changes
        assert smooth.mean() > 0.9
        np.testing.assert_allclose(curve.elasticity(share)[smooth], np.log(lower / upper)[smooth] / 2e-5, rtol=1e-3)
        value = np.log(np.exp(weight) * curve.energy_j(share) + share * np.exp(price))
        found, at = curve.break_even(value, weight)
        np.testing.assert_allclose(found, share, rtol=1e-7)
        np.testing.assert_allclose(at, price, rtol=1e-7)
        np.testing.assert_allclose(curve.share_for_energy(curve.energy_j(share)), share, rtol=1e-7)


def test_batches_and_parts_are_the_same_devices(kind: str) -> None:
    link = uplink(kind, 6, 3)
    curve, share, zero = link.curve, inside(link, 0) / 4, np.zeros(6)
    members = np.array([[True] * 6, [True, False] * 3])
    batch = curve.only(members)
    np.testing.assert_array_equal(batch.energy_j(share), np.where(members, curve.energy_j(share), 0.0))
    np.testing.assert_array_equal(batch.take(np.array([1])).sends, members[1:])
    np.testing.assert_array_equal(curve.take(slice(2, 4)).energy_j(share[2:4]), curve.energy_j(share)[2:4])
    for level in (-9.0, -3.0, 2.0):
        shares, elasticity = curve.demand(level, zero)
        np.testing.assert_allclose(shares, curve.share_at_price(level, zero), rtol=1e-12)
        np.testing.assert_allclose(elasticity, curve.elasticity(shares), rtol=1e-6, atol=1e-9)
        bought, energy = curve.purchase(level, zero)
        np.testing.assert_allclose(bought, shares, rtol=1e-12)
        np.testing.assert_allclose(energy, curve.energy_j(shares), rtol=1e-9)


def test_devices_that_send_nothing_or_pay_nothing(kind: str) -> None:
    link = uplink(kind, 4, 4)
    curve = replace(link, payload_bits=np.array([0.0, 1e5, 0.0, 1e5])).curve
    log_weight = np.array([0.0, 0.0, -np.inf, -np.inf])
    assert curve.sends.tolist() == [False, True, False, True]
    assert curve.priced(log_weight).tolist() == [False, True, False, False]
    wanted = curve.share_at_price(0.0, log_weight)
    assert wanted[1] > 0 and wanted[[0, 2, 3]].tolist() == [0, 0, 0]
    assert curve.energy_j(np.full(4, 0.5))[[0, 2]].tolist() == [0, 0]
    assert curve.energy_j(np.zeros(4)).tolist() == [0, np.inf, 0, np.inf]
    assert curve.share_for_energy(np.zeros(4)).tolist() == [0, np.inf, 0, np.inf]


def test_extremes_are_numbers_without_a_warning(kind: str) -> None:
    """Any share, price and energy, far beyond what a cell can mean: no NaN, no warning, and order is kept."""
    link = uplink(kind, 30, 5)
    scale = 10 ** np.linspace(-4, 4, 30)
    for gain, payload in ((1.0, scale), (scale, 1.0), (1e-2, scale), (1e4, scale)):
        extreme = replace(link, gain=link.gain * gain, payload_bits=link.payload_bits * payload)
        extreme = extreme.take(np.isfinite(extreme.power_floor()))  # costs of others are not requested
        curve, count = extreme.curve, len(extreme.gain)
        assert count >= 10
        zero = np.zeros(count)
        shares = [np.full(count, 10.0**p) for p in (-300, -30, -9, -3, 0, 6)]
        energies = np.array([curve.log_energy_j(share) for share in shares])
        savings = np.array([curve.log_saving(share, zero) for share in shares])
        prices = np.array([curve.share_at_price(p, zero) for p in (-400.0, -50.0, 0.0, 50.0, 700.0)])
        for falling in (energies, savings, prices):
            assert not np.isnan(falling).any()
            with np.errstate(invalid="ignore"):
                assert (np.nan_to_num(np.diff(falling, axis=0), nan=0.0) <= 1e-9 * np.abs(falling[1:])).all()
        assert (prices >= 0).all()
        for joules in (0.0, 1e-300, 1e-9, 1.0, 1e9, np.inf):
            least = curve.share_for_energy(np.full(count, joules))
            assert ((least >= 0) & ((least <= 1) | np.isinf(least))).all()
        for log_value in (-600.0, -20.0, 0.0, 20.0, 600.0):
            share, price = curve.break_even(np.full(count, log_value), zero)
            paid = log_value >= curve.log_energy_j(np.ones(count))  # by the whole band, or by less of it
            assert not np.isnan(share).any() and not np.isnan(price).any()
            assert (share > 0).all() and (share[~paid] >= 1).all()
        assert not np.isnan(curve.elasticity(np.full(count, 1e-9))).any()


# ── Whole devices against the reference ──────────────────────────────────────


def curve_of(devices: Devices) -> DeviceCurve:
    return DeviceCurve.of(**{field.name: getattr(devices, field.name) for field in fields(devices)})


@pytest.mark.parametrize("seed", range(30))
def test_a_whole_device_costs_what_the_reference_says(seed: int) -> None:
    """Joules beyond the base to 1e-11, over the regimes of `random_devices`, near and far from the limits."""
    draw = stream(seed, "whole-device")
    devices = random_devices(draw, 4)
    curve, floor = curve_of(devices), devices.least_share()
    np.testing.assert_allclose(curve.base_j, devices.base_j, rtol=1e-14)
    known = np.isfinite(floor)
    share = np.where(known, np.minimum(floor ** draw.choice([1 - 1e-9, 0.99, draw.random()], 4), 1.0), 1.0)
    compute_s, upload_s, power_w = curve.operation(share)
    for k in np.flatnonzero(known):
        energy_j, _ = exact(devices, k, share[k])
        assert curve.energy_j(share)[k] == pytest.approx(energy_j, rel=1e-11, abs=0)
    assert (compute_s + upload_s <= devices.time_s * (1 + 1e-12))[known].all()
    assert (compute_s >= devices.fastest_s * (1 - 1e-12))[known].all()
    assert (compute_s <= devices.slowest_s * (1 + 1e-12))[known].all()
    assert (power_w <= devices.max_power_w * (1 + 1e-9))[known].all()
    assert (power_w >= devices.min_power_w * (1 - 1e-9))[known].all()
    computing = devices.work_j_s2 / compute_s**2 + devices.static_power_w * compute_s
    spent = computing + upload_s * (power_w / devices.amplifier_efficiency + devices.circuit_power_w)
    np.testing.assert_allclose(spent[known], (curve.base_j + curve.energy_j(share))[known], rtol=1e-10)


def test_general_solvers_find_no_better_split_of_the_band() -> None:
    """Clarabel and SLSQP on the whole problem; weak duality proves ours. The study does 300."""
    summary = compare(problems(8, seed=101, largest=5))
    assert not summary.worse and sum(summary.outcomes.values()) == 8, str(summary)
    assert sum(count for name, count in summary.outcomes.items() if name.endswith("agrees")) >= 6, str(summary)
    assert summary.worst_gap < 1e-12 and summary.worst_energy < 1e-11 and summary.worst_floor < 1e-12, str(summary)


def test_a_device_that_is_only_a_processor_at_one_clock_and_a_perfect_radio_is_the_printed_one() -> None:
    printed = uplink("printed", 20, 6)
    whole = uplink("circuits", 20, 6)
    assert isinstance(printed.curve, UploadCurve)
    bare = DeviceCurve.of(
        bandwidth_hz=printed.bandwidth_hz,
        noise_w_per_hz=printed.noise_w_per_hz,
        gain=printed.gain,
        payload_bits=printed.payload_bits,
        max_power_w=printed.max_power_w,
        time_s=printed.upload_time_s + whole.device.fastest_s,
        fastest_s=whole.device.fastest_s,
        work_j_s2=whole.device.work_j_s2,
    )
    share = inside(printed, 0)
    np.testing.assert_allclose(bare.energy_j(share), printed.curve.energy_j(share), rtol=1e-13)
    price = printed.curve.log_saving(share, np.zeros(20))
    np.testing.assert_allclose(bare.log_saving(share, np.zeros(20)), price, rtol=1e-13)
    np.testing.assert_allclose(whole.power_floor(), printed.power_floor(), rtol=1e-14)


def test_proposition_1_holds_exactly_where_circuits_are_cheaper_than_power() -> None:
    """Use all the time left, if and only if p_c ≤ a θ G(c/(θ T))."""
    link = uplink("circuits", 300, 7)
    assert not link.device.is_paper_model
    share = inside(link, 0)
    noise = link.bandwidth_hz * link.noise_w_per_hz / (link.device.amplifier_efficiency * link.gain)
    x = link.payload_bits * np.log(2) / link.bandwidth_hz / (share * link.upload_time_s)
    holds = link.device.circuit_power_w <= noise * share * ((x - 1) * np.exp(x) + 1)
    assert 0.1 < holds.mean() < 0.9
    upload_s = link.curve.operation(share)[1]
    np.testing.assert_allclose(upload_s[holds], link.upload_time_s[holds], rtol=1e-12)
    assert (upload_s[~holds] < link.upload_time_s[~holds]).all()


# ── What uses it ─────────────────────────────────────────────────────────────


def test_the_allocation_is_optimal(kind: str) -> None:
    link, weight = uplink(kind, 8, 4), stream(4, "weight").uniform(0.1, 10, 8)
    best = solve_shares(link, weight, link.power_floor())
    assert best.feasible and best.residual < 1e-9 and best.share.sum() == pytest.approx(1.0, abs=1e-12)
    assert (best.upload_time_s <= link.upload_time_s * (1 + 1e-12)).all() and (best.power_w > 0).all()
    for i, j in itertools.permutations(range(8), 2):
        share = best.share.copy()
        share[i] += 1e-3 * best.share[j]
        share[j] -= 1e-3 * best.share[j]
        assert (weight * link.curve.energy_j(share)).sum() >= best.objective * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_no_set_is_better_than_the_dual_bound_and_every_scheduler_decides(kind: str, seed: int) -> None:
    count = 5
    draw = stream(seed, "round")
    link = uplink(kind, count, seed)
    base_j = link.base_energy_j(draw.uniform(0, 1e-4, count))
    queue = draw.uniform(0, 10, count)
    observation = Observation(
        round=0,
        seed=seed,
        # Worth more than computing, but not always more than computing and sending.
        samples=draw.uniform(1, 5, count) * (1e-3 if kind == "printed" else 1e-2) + queue * base_j,
        available=np.ones(count, bool),
        compute_time_s=np.zeros(count),
        base_energy_j=base_j,
        battery_j=np.full(count, np.inf),
        hard_budget=False,
        uplink=link,
    )
    state = SchedulerState(10, np.ones(count), queue)
    found, paper, everybody = (s.decide(state, observation) for s in (Dual(v=1.0), Lyapunov(v=1.0), AllDevices()))
    floor, values = share_floor(observation), [0.0]
    for members in itertools.product((False, True), repeat=count):
        index = np.flatnonzero(members)
        if len(index) and floor[index].sum() <= 1:
            split = solve_shares(observation.uplink.take(index), state.queue_j[index], floor[index])
            energy = observation.base_energy_j.copy()
            energy[index] += split.energy_j
            values.append(drift_objective(1.0, 1.0, observation.samples, state.queue_j, np.asarray(members), energy))
    best = min(values)
    assert found.lower_bound <= best + 1e-9 * abs(best)
    assert best - 1e-9 * abs(best) <= found.objective <= 0.95 * best <= 0
    assert best - 1e-6 * abs(best) <= paper.objective <= 0
    assert everybody.chosen.any() and everybody.share.sum() == pytest.approx(1.0)
