"""The dual's parts by hand and by exhaustion: shares at a price, critical prices, where a prefix overfills the band."""

import math

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling._band_price import Candidates
from kfl.scheduling._relaxation import (
    _first_overfull,
    critical_log_prices,
    fitted_shares,
    reduced_values,
    relax,
    shares_at_price,
    total_share,
    weighted_upload_energy,
)
from kfl.scheduling.curve import UploadCurve

EPS = float(np.finfo(float).eps)


def alike(
    floor: list[float], queue: list[float], value: list[float], exponent: float | list[float] = 1.0
) -> Candidates:
    """Devices with E = θ (e^{b/θ} − 1)."""
    one = np.ones(len(floor))
    return Candidates.of(UploadCurve.of(one, exponent * one), np.array(floor), np.array(queue), np.array(value))


def some(seed: int, count: int, wide: float = 1.0) -> Candidates:
    """Random devices, each wanting about `wide` / count of the band."""
    draw = stream(seed, "relaxation")
    queue = 10 ** draw.uniform(-2, 1, count) * (draw.random(count) >= 0.3)
    exponent = draw.uniform(0.05, 3.0, count) * wide / count
    curve = UploadCurve.of(10 ** draw.uniform(-6, -1, count), exponent)
    return Candidates.of(curve, exponent / draw.uniform(3.2, 9.0, count), queue, draw.uniform(0.5, 10, count))


def by_price(devices: Candidates) -> tuple[Candidates, np.ndarray]:
    prices = critical_log_prices(devices)
    order = np.argsort(-prices, kind="stable")
    return devices.take(order), prices[order]


def test_shares_at_a_price_by_hand() -> None:
    """G(2) = e² + 1 and G(1) = 1: who wants half of the band, and all of it; never below the floor or above 1."""
    at_half = math.e**2 + 1
    four = alike([0.1, 0.6, 0.1, 0.3], [1.0, 1.0, at_half, 0.0], [1.0] * 4)
    np.testing.assert_allclose(shares_at_price(four, math.log(at_half)), [0.5, 0.6, 1.0, 0.3])
    np.testing.assert_allclose(shares_at_price(four, -9.0), [1, 1, 1, 0.3])
    silent = alike([0.1, 0.2, 0.0], [1.0, 0.0, 1.0], [1.0] * 3, [1.0, 1.0, 0.0])
    assert shares_at_price(silent, -math.inf).tolist() == [1.0, 0.2, 0.0]


def test_what_a_device_has_left_at_a_price_is_its_least_cost_less_its_value() -> None:
    """φ by a grid over the share."""
    devices, grid = some(1, 12, wide=6.0), np.linspace(1e-3, 1.0, 20_001)
    for log_price in (-4.0, 0.0, 2.0):
        found = reduced_values(devices, log_price)
        for k in range(12):
            share = grid[grid >= devices.floor[k]]
            energy = devices.curve.scale_j[k] * share * np.expm1(devices.curve.exponent[k] / share)
            least = float(np.min(devices.queue_j[k] * energy + math.exp(log_price) * share))
            assert found[k] == pytest.approx(least - devices.value[k], rel=1e-3, abs=1e-3)


def test_joules_that_are_free_cost_nothing_however_many_they_are() -> None:
    cost = weighted_upload_energy(alike([0.1] * 3, [0.0, 2.0, 2.0], [1.0] * 3), np.array([0.0, 1.0, 0.5]))
    np.testing.assert_allclose(cost, [0.0, 2 * math.expm1(1), math.expm1(2)])


def test_pieces_are_the_whole() -> None:
    devices = some(2, 70_000)
    share = shares_at_price(devices, 1.0)
    whole = np.clip(devices.curve.share_at_price(1.0, devices.log_weight), devices.floor, 1.0)
    np.testing.assert_array_equal(share, whole)
    assert total_share(devices, 1.0) == pytest.approx(float(np.sum(whole)), rel=1e-12)


def test_critical_prices_by_hand() -> None:
    """Between floor and 1, at the floor, at 1, too dear, worth nothing, free joules, nothing to send."""
    e2 = math.e**2
    devices = alike(
        [0.1, 0.6, 0.1, 0.1, 0.1, 0.25, 0.0, 0.0, 0.1, 0.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
        [e2, e2, 2.0, 1.7, 0.0, 3.0, 5.0, -1.0, -1.0, 0.0],
        [1.0] * 6 + [0.0, 0.0, 1.0, 0.0],
    )
    at_floor = (e2 - 0.6 * math.expm1(1 / 0.6)) / 0.6
    expected = [e2 + 1, at_floor, 2 - math.expm1(1), 0, 0, 3 / 0.25, math.inf, 0, 0, 0]
    np.testing.assert_allclose(np.exp(critical_log_prices(devices)), expected, rtol=1e-12)


def test_a_band_that_is_not_scarce_has_no_price() -> None:
    devices, prices = by_price(alike([0.2, 0.3, 0.1], [0.0] * 3, [1.0, 2.0, 3.0]))
    found = relax(devices, prices, rounding_scale=0.0)
    assert (found.staying, found.log_price, found.lower_bound, found.tight) == (3, -math.inf, -6.0, True)


def test_the_device_that_makes_the_difference_sets_the_price() -> None:
    """Free joules: floors 0.4, 0.4 and 0.4 with values 4, 3 and 2. The third is critical, at 2/0.4 = 5."""
    devices, prices = by_price(alike([0.4] * 3, [0.0] * 3, [4.0, 3.0, 2.0]))
    found = relax(devices, prices, rounding_scale=0.0)
    assert (found.staying, found.tight) == (2, False) and found.log_price == pytest.approx(math.log(5))
    assert found.lower_bound == pytest.approx(-(4 - 2) - (3 - 2) - 5, rel=1e-12)


def test_a_prefix_may_fill_the_band_by_itself() -> None:
    """Two whose joules cost fill the band at e² + 1; a third would come in only below that."""
    devices, prices = by_price(alike([0.1, 0.1, 0.9], [1.0, 1.0, 0.0], [99.0, 98.0, 1.0]))
    found = relax(devices, prices, rounding_scale=0.0)
    assert (found.staying, found.tight) == (2, True) and found.log_price == pytest.approx(math.log(math.e**2 + 1))
    assert found.lower_bound == pytest.approx(2 * 0.5 * math.expm1(2) - 197, rel=1e-12)
    exact = relax(*by_price(alike([0.5, 0.5, 0.5], [0.0] * 3, [3.0, 2.0, 1.0])), rounding_scale=0.0)
    assert exact.staying == 2 and exact.lower_bound == pytest.approx(-5.0)


def test_the_bound_is_lowered_by_the_rounding_of_what_it_is_made_of() -> None:
    devices, prices = by_price(alike([0.4] * 3, [0.0] * 3, [4e6, 3e6, 2e6]))
    bounds = {scale: relax(devices, prices, scale).lower_bound for scale in (0.0, 1e9)}
    assert bounds[0.0] - bounds[1e9] == pytest.approx(64 * EPS * 1e9, rel=1e-3)
    assert 8e6 + bounds[0.0] == pytest.approx(-64 * EPS * 5e6, rel=0.1)


def test_shares_are_fitted_to_the_band_in_proportion_to_what_is_above_the_floors() -> None:
    """At no price both want all of it: of the half that floors leave, 8 parts go to one and 7 to the other."""
    two = alike([0.2, 0.3], [1.0, 1.0], [1.0, 1.0])
    np.testing.assert_allclose(fitted_shares(two, -math.inf), [0.2 + 0.8 / 3, 0.3 + 0.7 / 3], rtol=1e-14)
    free = alike([0.2, 0.3], [0.0, 0.0], [1.0, 1.0])
    assert fitted_shares(free, -math.inf).tolist() == [0.2, 0.3]
    over = alike([0.5, 0.5 + 5e-13], [1.0, 1.0], [1.0, 1.0])
    assert fitted_shares(over, -math.inf).tolist() == [0.5, 0.5 + 5e-13]
    alone = alike([0.2], [1.0], [1.0])
    assert fitted_shares(alone, -math.inf).tolist() == [1.0]
    assert fitted_shares(alike([1 + 5e-13], [1.0], [1.0]), 3.0).tolist() == [1.0]


def _by_trial(devices: Candidates, prices: np.ndarray, capacity: float, stop: int) -> int:
    """Bisection; the sum over the first n + 1 at the price of the last of them rises with n."""
    low, high = -1, stop
    while high - low > 1:
        middle = (low + high) // 2
        share = shares_at_price(devices.take(slice(0, middle + 1)), float(prices[middle]))
        low, high = (low, middle) if float(np.sum(share)) > capacity else (middle, high)
    return high


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_the_first_prefix_that_overfills_the_band(count: int) -> None:
    seen = set()
    for seed in range(30 if count < 100 else 6):
        devices, prices = by_price(some(seed, count, wide=10 ** (seed % 5 - 2)))
        sums = [float(shares_at_price(devices.take(slice(0, n + 1)), float(prices[n])).sum()) for n in range(count)]
        for stop in {count, max(count // 2, 1)}:
            first = next((n for n in range(stop) if sums[n] > 1.0), stop)
            assert _first_overfull(devices, prices, 1.0, stop) == first
            seen.add(first / count)
    assert len(seen) >= min(count, 3)


@pytest.mark.parametrize(("count", "wide"), [(2100, 1.0), (6000, 0.01), (6000, 0.5), (6000, 30.0), (40_000, 3.0)])
def test_the_first_of_many_prefixes_that_overfills_the_band(count: int, wide: float) -> None:
    devices, prices = by_price(some(3, count, wide))
    for capacity, stop in ((1.0, count), (1.0, count - 100), (0.003, count), (1e-9, count), (50.0, count)):
        assert _first_overfull(devices, prices, capacity, stop) == _by_trial(devices, prices, capacity, stop)


def test_many_equal_prices_have_one_first_prefix() -> None:
    count = 5000
    devices = alike([1 / 3000] * count, [0.0] * count, [1.0] * count)
    prices = critical_log_prices(devices)
    assert _first_overfull(devices, prices, 1.0 + 1e-9, count) == 3000
    assert _first_overfull(devices, prices, 2.0, count) == count


def test_the_first_prefix_is_found_from_a_guess_that_is_a_little_off() -> None:
    """Shares of 2⁻¹² at any price, so that sums are exact: n + 1 of them are more than c 2⁻¹² from n = ⌊c⌋ on."""
    count = 5000
    value = np.exp(-0.01 * np.arange(count)) * 1e9
    devices = alike([2.0**-12] * count, [0.0] * count, value.tolist())
    prices = critical_log_prices(devices)
    for capacity in (
        *np.arange(3180.5, 3230, 4),
        3200.0,
        3201.0,
        3202.0,
        31.5,
        1.0,
        0.5,
        4990.5,
        4999.0,
        4999.5,
        5000.0,
    ):
        assert _first_overfull(devices, prices, capacity * 2.0**-12, count) == math.floor(capacity)
    for stop in (2049, 2050, 3199, 3201):
        assert _first_overfull(devices, prices, 3200.5 * 2.0**-12, stop) == min(3200, stop)
