"""What schedulers certify, through `Dual`, `Lyapunov` and `solve_shares`, against formulas of this file alone.

Band prices are compared with a bracketing root finder over Lambert's function, bounds with the maximum of the dual
over a fine grid, sets with exhaustion (`tests.reference.brute_force`), and Algorithm 3 with its literal loop
(`tests.reference.literal_algorithm3`, in `test_lyapunov.py`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import lambertw

from kfl.core.randomness import stream
from kfl.scheduling import Dual, Lyapunov, Observation, SchedulerState, Uplink
from kfl.scheduling.allocation import solve_shares

BAND, NOISE, TIME_S = 1e6, 4e-21, 0.5
UNIT = BAND * NOISE * TIME_S
"""a h: the scale of an upload's energy times the gain."""


def link_of(scale_j: np.ndarray, exponent: np.ndarray, floor: np.ndarray) -> Uplink:
    """The uplink whose devices have E = a θ (e^{b/θ} − 1) and exactly these least shares, by their largest powers."""
    gain = UNIT / scale_j
    with np.errstate(over="ignore"):
        power_w = np.where(exponent > 0, floor * np.expm1(exponent / np.where(floor > 0, floor, 1)) * scale_j, 1.0)
    return Uplink(
        bandwidth_hz=BAND,
        noise_w_per_hz=NOISE,
        gain=gain,
        payload_bits=exponent * BAND * TIME_S / np.log(2),
        time_s=np.full(len(gain), TIME_S),
        max_power_w=power_w / TIME_S * (1 + 1e-12),
    )


def seen_by(link: Uplink | None, value: np.ndarray, fixed_j: np.ndarray | float = 0.0) -> Observation:
    """A round in which scheduling device k is worth `value[k]` at V γ = 1."""
    size = len(value)
    return Observation(
        round=0,
        seed=0,
        samples=value,
        available=np.ones(size, bool),
        compute_time_s=np.zeros(size),
        base_energy_j=np.broadcast_to(np.asarray(fixed_j, float), size),
        battery_j=np.full(size, np.inf),
        hard_budget=False,
        uplink=link,
    )


def state_of(queue_j: np.ndarray) -> SchedulerState:
    return SchedulerState(200, np.full(len(queue_j), 0.1), np.asarray(queue_j, float))


def random_band(seed: int, count: int, wide: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scales, exponents, least shares and queues of devices that want about `wide` times the band together."""
    draw = stream(seed, "certificates", count)
    scale_j = 10 ** draw.uniform(-4, 0, count)
    exponent = wide * draw.uniform(0.1, 3.0, count) / count
    floor = exponent / draw.uniform(3.2, 9.0, count)
    queue_j = 10 ** draw.uniform(-2, 1, count) * (draw.random(count) >= 0.3)
    return scale_j, exponent, floor, queue_j


def wanted(price: float, cost: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """θ(μ) = b / x with G(x) = y = μ / (a q), by Lambert's function; 0 where joules are free.

    Near y = 0 it loses its digits, and x = √(2y) (1 − √(2y)/3 + 11 y/36) is the beginning of its series.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        y = price / cost
        p = np.sqrt(2 * y)
        x = np.where(y < 1e-6, p * (1 - p / 3 + 11 * p * p / 72), 1 + lambertw((y - 1) / np.e).real)
        return np.where(cost > 0, exponent / x, 0.0)


# ── The price of the band ────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 7, 300, 40_000])
@pytest.mark.parametrize("part", [0.0, 0.4, 0.97])
def test_share_band_fills_the_band_at_the_price_that_bisection_finds(count: int, part: float) -> None:
    """Least shares take this part of the band; beyond 32,768 devices sums are made in pieces."""
    for seed in range(3 if count < 1000 else 1):
        scale_j, exponent, _, _ = random_band(seed, count)
        draw = stream(seed, "weights")
        weight, floor = draw.uniform(0.1, 5, count), draw.dirichlet(np.full(count, 0.3)) * part
        found = solve_shares(link_of(scale_j, exponent, np.full(count, 1e-3 / count)), weight, floor)

        def excess(log_price: float, case: tuple[np.ndarray, ...] = (scale_j * weight, exponent, floor)) -> float:
            return float(np.log(np.maximum(wanted(np.exp(log_price), *case[:2]), case[2]).sum()))

        price = np.exp(brentq(excess, -60, 60, xtol=1e-13, rtol=1e-14))
        assert found.feasible and found.share.sum() == pytest.approx(1.0, abs=1e-12)
        assert found.multiplier == pytest.approx(price, rel=1e-7)
        assert found.residual < 1e-8
        np.testing.assert_allclose(
            found.share, np.maximum(wanted(float(price), scale_j * weight, exponent), floor), rtol=1e-5
        )


def test_share_band_finds_prices_of_extreme_scales() -> None:
    """Scales over sixty orders of magnitude, a device that needs nearly all, and floors that leave next to nothing."""
    for seed in range(4):
        draw = stream(seed, "extreme")
        scale_j, exponent = 10 ** draw.uniform(-30, 30, 20), draw.uniform(0.1, 3.0, 20) / 20
        weight, floor = 10 ** draw.uniform(-6, 6, 20), draw.dirichlet(np.full(20, 0.3)) * 0.5
        link = link_of(scale_j, exponent, np.full(20, 1e-3 / 20))
        found = solve_shares(link, weight, floor)
        assert found.share.sum() == pytest.approx(1.0, abs=1e-12) and found.residual < 1e-9
    link = link_of(*random_band(0, 20)[:3])
    for part in (1 - 1e-9, 1.0):
        held = solve_shares(link, np.ones(20), draw.dirichlet(np.full(20, 3.0)) * part)
        assert held.feasible and held.share.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("count", [3, 40_000])
def test_share_band_gives_all_that_is_free_to_the_one_device_that_pays(count: int) -> None:
    scale_j, exponent, floor, _ = random_band(0, count, wide=0.5)
    weight = np.zeros(count)
    weight[1] = 2.0
    found = solve_shares(link_of(scale_j, exponent, floor), weight, floor)
    others = np.arange(count) != 1
    np.testing.assert_array_equal(found.share[others], floor[others])
    assert found.share[1] == pytest.approx(1 - floor[others].sum(), rel=1e-9)


# ── The bound ────────────────────────────────────────────────────────────────


def dual_maximum(case: tuple[np.ndarray, ...], value: np.ndarray) -> float:
    """The largest L(μ) = −μ + Σ min(0, φ_k(μ)) on a fine grid, with φ = min_θ {q E(θ) + μ θ} − v."""
    scale_j, exponent, floor, queue_j = case
    prices = np.append(np.geomspace(1e-6, 1e6, 6001) * value.sum(), 0.0)[:, None]
    share = np.clip(wanted(prices, scale_j * queue_j, exponent), floor, 1.0)
    energy = scale_j * share * np.expm1(exponent / share)
    reduced = np.where(queue_j > 0, queue_j * energy, 0.0) + prices * share - value
    return float((np.minimum(reduced, 0.0).sum(-1) - prices[:, 0]).max())


@pytest.mark.parametrize("count", [1, 3, 30, 400])
@pytest.mark.parametrize("paying", ["all", "some", "none"])
def test_dual_bound_is_the_maximum_of_the_dual(count: int, paying: str) -> None:
    for seed in range(4 if count < 400 else 1):
        scale_j, exponent, floor, queue_j = random_band(seed, count)
        queue_j = {"all": queue_j + 0.01, "some": queue_j, "none": 0 * queue_j}[paying]
        value = stream(seed, "value").uniform(0.2, 4.0, count) * 10 / count
        case = scale_j, exponent, floor, queue_j
        found = Dual(v=1.0).decide(state_of(queue_j), seen_by(link_of(*case[:3]), value))
        best = dual_maximum(case, value)
        # The grid is 0.5 % apart: its best is below the maximum by next to nothing, since the dual is flat there.
        assert best - 1e-9 * value.sum() <= found.lower_bound <= best + 1e-2 * abs(best)
        assert found.lower_bound <= found.objective <= 0 and found.gap <= value.max()


@settings(max_examples=150)
@given(
    count=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    wide=st.floats(0.05, 12.0),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    worth=st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_dual_certifies_rounds_of_every_size(count: int, seed: int, wide: float, scale: float, worth: float) -> None:
    """Scales and values of many magnitudes: the bound holds, the gap is within one device, shares fit."""
    scale_j, exponent, floor, queue_j = random_band(seed, count, wide)
    value = worth * stream(seed, "worth").uniform(0.5, 2.0, count)
    link = link_of(scale * scale_j, exponent, floor)
    found = Dual(v=1.0).decide(state_of(queue_j * worth / scale), seen_by(link, value))
    assert found.lower_bound <= found.objective <= 0
    assert found.gap <= value.max() * (1 + 1e-9)
    assert found.share.sum() <= 1 + 1e-12 and (found.share[~found.chosen] == 0).all()
    assert (found.share[found.chosen] >= floor[found.chosen] * (1 - 1e-9)).all()


def test_dual_certifies_one_device_exactly() -> None:
    """It takes the whole band and would pay less for it than its marginal joule is worth: no gap all the same."""
    for seed in range(100):
        scale_j, exponent, floor, queue_j = random_band(seed, 1, wide=0.5)
        found = Dual(v=1.0).decide(state_of(queue_j + 0.1), seen_by(link_of(scale_j, exponent, floor), np.ones(1)))
        assert found.gap <= 1e-9 and found.share == pytest.approx(found.chosen.astype(float), rel=1e-12)


def test_dual_finds_the_knapsack_that_fools_the_price() -> None:
    """Values 1.0 and 0.2, shares 0.95 and 0.1: the price takes the second, the repair finds the first."""
    floor = np.array([0.95, 0.1])
    link = link_of(np.ones(2), 2.0 * floor, floor)
    found = Dual(v=1.0).decide(state_of(np.zeros(2)), seen_by(link, np.array([1.0, 0.2])))
    assert found.chosen.tolist() == [True, False] and found.objective == pytest.approx(-1.0)
    assert found.lower_bound == pytest.approx(-(0.2 + 0.9 / 0.95), rel=1e-9)


@pytest.mark.parametrize("count", [600, 5000, 60_000])
@pytest.mark.parametrize("wide", [0.3, 3.0, 30.0])
def test_dual_leaves_less_than_a_device_with_many(count: int, wide: float) -> None:
    """All devices fit, or the critical device is squeezed in, or the unused band is filled by exchanges."""
    scale_j, exponent, floor, queue_j = random_band(4, count, wide)
    value = stream(4, "many").uniform(0.5, 2.0, count)
    found = Dual(v=1.0).decide(state_of(queue_j), seen_by(link_of(scale_j, exponent, floor), value))
    assert 0 <= found.gap < 0.2 * value.min()
    assert found.share.sum() == pytest.approx(1.0, abs=1e-9) or found.chosen.all()


def test_dual_takes_the_first_of_many_equals() -> None:
    """All critical prices tie, and the least shares of 3000 fill the band."""
    for count, fit in ((4, 2), (5000, 3000), (40_000, 25_000)):
        floor = np.full(count, 1 / fit - 1e-12)
        link = link_of(np.ones(count), floor, floor)
        found = Dual(v=1.0).decide(state_of(np.zeros(count)), seen_by(link, np.ones(count)))
        np.testing.assert_array_equal(np.flatnonzero(found.chosen), np.arange(fit))
        assert found.gap < 1.0


# ── Algorithm 3's loop ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cost", "value", "count"),
    [
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], 3),
        ([1.0, 3.0, 3.0], [2.0, 2.0, 2.0], 1),  # the second is not worth its energy: the loop ends
        ([1.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1),  # exactly worth it: a larger prefix must be better
        ([3.0, 3.0], [2.0, 2.0], 0),
        ([2.0, 2.0], [2.0, 2.0], 0),
        ([0.0], [1.0], 1),
        ([1.0, 1.0, 1.0 - 1e-14], [2.0, 1.0, 1.0], 1),  # rounding decides nothing
        ([1.0, 1.0, 1.0 - 1e-9], [2.0, 1.0, 1.0], 2),
        ([1e6, 1e6, 1e6 - 1e-7], [2e6, 1e6, 1e6], 1),  # of large numbers too
    ],
)
def test_lyapunov_ends_the_loop_where_a_device_is_not_worth_its_joules(
    cost: list[float], value: list[float], count: int
) -> None:
    """Devices that only compute, so that nothing couples them."""
    ones = np.ones(len(cost))
    found = Lyapunov(v=1.0).decide(state_of(ones), seen_by(None, np.array(value), np.array(cost)))
    assert found.chosen.sum() == count


@pytest.mark.parametrize("stop", [5, 31, 32, 33, 255, 256, 300, 2047, 2048, 2100, 2999])
def test_lyapunov_ends_the_loop_at_any_distance(stop: int) -> None:
    """Looking ahead a little, then further, changes nothing."""
    cost = np.where(np.arange(3000) < stop, 1.0, 2.5)
    found = Lyapunov(v=1.0).decide(state_of(np.ones(3000)), seen_by(None, np.full(3000, 2.0), cost))
    np.testing.assert_array_equal(np.flatnonzero(found.chosen), np.arange(stop))


def test_lyapunov_ends_the_loop_where_the_least_shares_fill_the_band() -> None:
    for floor, count in (([0.5, 0.499, 0.25], 2), ([0.5, 0.25, 0.249], 3), ([1.25, 1.1], 0), ([0.5, 0.51], 1)):
        least = np.array(floor)
        link = link_of(np.full(len(floor), 1e-6), least, least)
        found = Lyapunov(v=1.0).decide(state_of(np.ones(len(floor))), seen_by(link, np.ones(len(floor))))
        assert found.chosen.sum() == count


def test_certificates_hold_when_devices_are_silent_free_or_out_of_reach() -> None:
    scale_j, exponent, floor, queue_j = random_band(7, 40)
    exponent = np.where(np.arange(40) % 5 == 0, 0.0, exponent)
    floor = np.where(exponent > 0, floor, 0.0)
    link = link_of(scale_j, exponent, floor)
    link = replace(link, gain=np.where(np.arange(40) % 7 == 3, 0.0, link.gain))
    deaf = (link.gain == 0) & (exponent > 0)
    for scheduler in (Dual(v=1.0), Lyapunov(v=1.0)):
        found = scheduler.decide(state_of(queue_j), seen_by(link, np.ones(40)))
        assert not found.chosen[deaf].any() and found.chosen[exponent == 0].all()
        assert not found.share[exponent == 0].any()
