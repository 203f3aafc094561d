"""The price of the band against a search by bisection, in rows, batches and fleets of any size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.optimize import brentq

from kfl.core.randomness import stream
from kfl.scheduling import _band_price as _band
from kfl.scheduling._band_price import Candidates
from kfl.scheduling.curve import CostCurve, UploadCurve
from kfl.scheduling.device_curve import DeviceCurve

pytestmark = pytest.mark.filterwarnings("error")


def candidates(count: int, seed: int, floors: float = 0.0, spread: float = 2.0) -> Candidates:
    """Devices of the printed model whose floors take this much of the band together."""
    draw = stream(seed, "candidates")
    curve = UploadCurve.of(10 ** draw.uniform(-spread, spread, count), 10 ** draw.uniform(-3, 1, count) / count)
    floor = draw.dirichlet(np.full(count, 0.3)) * floors
    return Candidates.of(curve, floor, draw.uniform(0.1, 5, count), draw.random(count))


def whole(count: int, seed: int) -> Candidates:
    draw = stream(seed, "whole")
    curve = DeviceCurve.of(
        bandwidth_hz=1e6,
        noise_w_per_hz=4e-21,
        gain=10 ** draw.uniform(-13, -10, count),
        payload_bits=draw.uniform(1e4, 1e5, count) * 10 / count,
        max_power_w=1.0,
        time_s=1.0,
        fastest_s=0.4,
        slowest_s=4.0,
        work_j_s2=0.016,
        circuit_power_w=draw.uniform(0, 0.1, count),
        amplifier_efficiency=0.4,
    )
    return Candidates.of(curve, np.full(count, 0.2 / count), draw.uniform(0.1, 5, count), np.ones(count))


@dataclass(frozen=True, eq=False)
class Cliff(CostCurve):
    """Demand that falls by e⁶ near one price, ln θ = ln c − 2 arctan(k (ln μ − 3)): Newton's method diverges."""

    c: np.ndarray
    k: float = 50.0

    @property
    def need(self) -> np.ndarray:
        return self.c

    def priced(self, log_weight: np.ndarray) -> np.ndarray:
        return (self.c > 0) & (log_weight > -np.inf)

    def share_at_price(self, log_price, log_weight):
        share = self.c * np.exp(-2 * np.arctan(self.k * (log_price - log_weight - 3)))
        return np.where(log_weight > -np.inf, share, 0.0)

    def elasticity(self, share):
        with np.errstate(divide="ignore"):
            return 2 * self.k / (1 + np.tan(0.5 * np.clip(np.log(self.c / share), -3.1, 3.1)) ** 2)

    def log_saving(self, share, log_weight):
        return log_weight + 3 + np.tan(0.5 * np.clip(np.log(self.c / share), -3.1, 3.1)) / self.k

    def copies(self, count):
        return replace(self, c=count * self.c)

    def take(self, index):
        return replace(self, c=self.c[index])

    def only(self, members):
        return replace(self, c=np.where(members, self.c, 0.0))

    energy_j = log_energy_j = share_for_energy = break_even = copies  # nobody asks


def demand(some: Candidates, log_price: float) -> float:
    """Σ max(θ, floor)."""
    return float(np.maximum(some.curve.share_at_price(log_price, some.log_weight), some.floor).sum())


def bisected(some: Candidates, highest: float = 250.0) -> float:
    return float(brentq(lambda log_price: np.log(demand(some, log_price)), -120, highest, xtol=1e-13, rtol=1e-14))


# ── One set ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("floors", [0.0, 0.4, 0.97, 1 - 1e-9])
def test_the_price_fills_the_band(count: int, floors: float) -> None:
    for seed in range(3):
        some = candidates(count, seed, floors)
        found = _band.band_log_price(some)
        assert isinstance(found, float)
        if floors < 0.99:
            assert found == pytest.approx(bisected(some), abs=1e-11)
        else:
            assert found == pytest.approx(bisected(some, 1e9), rel=1e-6)
        assert demand(some, found) == pytest.approx(1.0, abs=1e-13)


def test_extreme_sets_have_a_price_too() -> None:
    """Scales over sixty orders of magnitude, and a device that needs nearly all of the band."""
    for seed in range(4):
        some = candidates(20, seed, 0.5, spread=30.0)
        assert demand(some, _band.band_log_price(some)) == pytest.approx(1.0, abs=1e-12)
    unlike = UploadCurve.of(np.array([1e-12, 1e9]), np.array([1e-9, 20.0]))
    some = Candidates.of(unlike, np.array([0.3, 0.0]), np.array([1e-6, 1e6]), np.ones(2))
    assert _band.band_log_price(some) == pytest.approx(bisected(some), rel=1e-13)


@pytest.mark.parametrize("count", [3, 40_000])
def test_without_a_price_for_joules_the_band_has_none(count: int) -> None:
    free = candidates(count, 0).with_prices(np.zeros(count))
    assert _band.band_log_price(free) == -np.inf
    priced = np.zeros(count)
    priced[1] = 2.0  # one device pays, and takes what it wants
    one = free.with_prices(priced)
    alone = one.take(slice(1, 2))
    assert _band.band_log_price(one) == pytest.approx(float(alone.curve.log_saving(1.0, alone.log_weight)[0]), rel=1e-9)


@pytest.mark.parametrize(("count", "floors"), [(32_768, 0.6), (32_769, 0.0), (70_001, 0.6)])
def test_the_price_of_a_large_fleet(count: int, floors: float) -> None:
    """Beyond one piece the search sums in pieces and ends at 1e-10."""
    some = candidates(count, 5, floors)
    found = _band.band_log_price(some)
    assert demand(some, found) == pytest.approx(1.0, abs=1.1e-10 if count > _band.CHUNK else 1e-13)
    total, slope = _band.total_demand(some, found)
    assert total == pytest.approx(demand(some, found), rel=1e-12)
    around = (demand(some, found - 1e-4) - demand(some, found + 1e-4)) / 2e-4
    assert slope == pytest.approx(around, rel=1e-4)


def test_a_fleet_whose_sample_is_not_like_it() -> None:
    """Every sixteenth is sampled; here these are far cheaper, far dearer, free, or hold all the floors."""
    count = 33_000
    like = candidates(count, 6)
    sampled = np.arange(count) % 16 == 8
    for factor in (1e-12, 1e12):
        some = like.with_prices(np.where(sampled, factor, 1.0) * like.queue_j)
        assert demand(some, _band.band_log_price(some)) == pytest.approx(1.0, abs=1.1e-10)
    free = like.with_prices(np.where(sampled, 0.0, like.queue_j))
    assert demand(free, _band.band_log_price(free)) == pytest.approx(1.0, abs=1.1e-10)
    floor = np.where(sampled, 0.95 / sampled.sum(), 0.0)
    held = Candidates.of(like.curve, floor, like.queue_j, like.value)
    assert demand(held, _band.band_log_price(held)) == pytest.approx(1.0, abs=1.1e-10)


def test_a_fleet_in_which_everybody_starts_at_the_floor() -> None:
    """Only the sampled pay, and hold nearly all of the band: there is no slope to follow at first."""
    count = 33_000
    like, sampled = candidates(count, 7), np.arange(count) % 16 == 8
    some = Candidates.of(
        like.curve, np.where(sampled, 0.95 / sampled.sum(), 0.0), np.where(sampled, like.queue_j, 0.0), like.value
    )
    assert demand(some, _band.band_log_price(some)) == pytest.approx(1.0, abs=1.1e-10)


@pytest.mark.parametrize("factor", [0.06, 0.12, 8.0, 16.0])
def test_a_price_at_which_everybody_gives_way_is_found_by_bisection(factor: float) -> None:
    for count in (5, 33_000):
        sampled = np.arange(count) % 16 == 8
        curve = Cliff(np.where(sampled, factor, 1.0) * stream(0, "cliff").uniform(0.8, 1.2, count) / count)
        some = Candidates.of(curve, np.zeros(count), np.ones(count), np.ones(count))
        found = _band.band_log_price(some)
        assert found == pytest.approx(bisected(some), rel=1e-9 if count > 5 else 1e-13)
    # The third of each row pays nothing, and has no part in the bracket.
    rows = Cliff(np.array([[0.06, 0.1, 1.0], [3.0, 2.0, 1.0], [0.2, 4.0, 1.0], [0.5, 0.5, 1.0]]))
    weight = np.tile([1.0, 1.0, 0.0], (4, 1))
    with np.errstate(divide="ignore"):
        prices = _band.log_prices(rows, np.log(weight), np.zeros((4, 3)))
    for row, price in enumerate(prices):
        one = Candidates.of(rows.take(row), np.zeros(3), weight[row], np.ones(3))
        assert price == pytest.approx(bisected(one), rel=1e-14)


def test_the_price_among_whole_devices() -> None:
    some = whole(50, 1)
    assert _band.band_log_price(some) == pytest.approx(bisected(some), abs=1e-9)
    many = whole(33_000, 2)
    assert demand(many, _band.band_log_price(many)) == pytest.approx(1.0, abs=1.1e-10)


# ── Batches ──────────────────────────────────────────────────────────────────


def test_each_row_of_a_batch_has_its_own_price() -> None:
    """Rows with other members, weights and floors end after other numbers of steps."""
    some, draw = candidates(12, 9, 0.8), stream(9, "batch")
    members = draw.random((40, 12)) < 0.5
    members[:, 3] = True
    weight = 10 ** draw.uniform(-9, 9, (40, 12))
    weight[5:20, 4:] = 0.0
    floor = np.where(members, some.floor * draw.uniform(0, 1.2, (40, 1)), 0.0)
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)
    found = _band.log_prices(some.curve.only(members), log_weight, floor)
    assert found.shape == (40,)
    for row in range(40):
        alone = Candidates(
            some.curve.only(members[[row]]).take(0), floor[row], weight[row], weight[row], log_weight[row]
        )
        assert found[row] == pytest.approx(bisected(alone), rel=1e-12, abs=1e-11), row


def test_a_row_whose_floors_fill_the_band_has_the_highest_price_of_its_floors() -> None:
    some = candidates(4, 3)
    floor = np.array([[0.4, 0.3, 0.2, 0.1]])
    found = _band.log_prices(some.curve.only(np.ones((1, 4), bool)), some.log_weight[None], floor)
    assert demand(Candidates(some.curve, floor[0], some.queue_j, some.value, some.log_weight), found[0]) == (
        pytest.approx(1.0, abs=1e-12)
    )
    assert found[0] <= np.max(some.curve.log_saving(floor[0], some.log_weight)) * (1 + 1e-12)


def test_equal_devices_whose_floors_fill_the_band_to_the_last_digit() -> None:
    """The price is what a little more is worth to each, whether or not the floors add up to 1 exactly."""
    for count in range(1, 31):
        curve, zero = UploadCurve.of(np.full((1, count), 2.0), np.full((1, count), 0.3 / count)), np.zeros((1, count))
        found = _band.log_prices(curve, zero, np.full((1, count), 1 / count))
        assert found[0] == pytest.approx(curve.log_saving(1 / count, zero)[0, 0], rel=1e-12)


# ── Candidates ───────────────────────────────────────────────────────────────


def test_candidates_and_parts_of_them() -> None:
    curve = UploadCurve.of(np.arange(1.0, 5.0), np.arange(5.0, 9.0))
    queue, value, floor = np.array([0.0, 1.0, 2.0, 3.0]), np.arange(4.0) + 10, np.arange(4.0) / 100
    some = Candidates.of(curve, floor, queue, value, base_energy_j=np.arange(4.0) + 20, extra=0.5)
    assert len(some) == 4
    np.testing.assert_array_equal(some.weight, [0.5, 1.5, 2.5, 3.5])
    np.testing.assert_array_equal(some.log_weight, np.log([0.5, 1.5, 2.5, 3.5]))
    part = some.take(np.array([3, 1]))
    assert len(part) == 2 and part.extra == 0.5
    for name in ("floor", "queue_j", "value", "log_weight", "base_energy_j"):
        np.testing.assert_array_equal(getattr(part, name), getattr(some, name)[[3, 1]])
    np.testing.assert_array_equal(part.curve.need, [8.0, 6.0])
    np.testing.assert_array_equal(some.first(3).value, [10.0, 11.0, 12.0])
    other = some.with_prices(np.array([4.0, 0.0, 1.0, 2.0]))
    np.testing.assert_array_equal(other.weight, [4.0, 0.0, 1.0, 2.0])
    np.testing.assert_array_equal(other.queue_j, [4.0, 0.0, 1.0, 2.0])
    assert other.log_weight[1] == -np.inf and other.log_weight[0] == np.log(4.0)
    np.testing.assert_array_equal(other.base_energy_j, some.base_energy_j)
    plain = Candidates.of(curve, floor, queue, value)
    assert plain.extra == 0.0 and plain.base_energy_j == 0.0 and plain.take(slice(2)).base_energy_j == 0.0
    assert plain.log_weight[0] == -np.inf
    np.testing.assert_array_equal(plain.weight, queue)
