"""Algorithm 3's loop without an allocation per prefix: break tests and ties by hand, bounds against exact values."""

import math

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling._band_price import Candidates
from kfl.scheduling._prefix import Enclosure, _scan, _search, best_prefix, exact_values
from kfl.scheduling.allocation import share_band
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.uplink import Uplink


def silent(cost: list[float], value: list[float]) -> Candidates:
    """Devices that only compute: q E_L = cost, v = value."""
    size = len(cost)
    return Candidates.of(UploadCurve.silent(size), np.zeros(size), np.ones(size), np.array(value), np.array(cost), 1e-6)


def some(seed: int, count: int, worth: float = 3.0, extra: float = 1e-3) -> Candidates:
    """Random devices whose floors fit the band together; uploads cost about a `worth`-th of what they are worth."""
    draw = stream(seed, "prefix")
    exponent = draw.uniform(0.5, 3.0, count) / count
    queue = draw.exponential(1.0, count) * (draw.random(count) > 0.3)
    scale = 10 ** draw.uniform(-3, -1, count)
    floor = exponent / draw.uniform(4.0, 9.0, count)
    value = worth * draw.uniform(0.5, 1.5, count) * 0.02 / count
    order = np.argsort(queue * scale / value)
    curve = UploadCurve.of(scale[order], exponent[order])
    base = draw.uniform(0, 0.01, count) / count
    return Candidates.of(curve, floor[order], queue[order], value[order], base, extra)


def the_loop(devices: Candidates) -> tuple[int, int]:
    """Algorithm 3 as written: how many devices it takes, and the prefix at which it ends."""
    best, best_value = 0, 0.0
    for j, (value, magnitude, newest) in enumerate(exact_values(devices, np.arange(len(devices)))):
        if newest > 0:
            return best, j
        if value < best_value - 1e-12 * magnitude:
            best, best_value = j + 1, value
    return best, len(devices)


@pytest.mark.parametrize(
    ("cost", "value", "count"),
    [
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], 3),
        ([1.0, 3.0, 1.0], [2.0, 2.0, 2.0], 1),  # the second is not worth its energy: the loop ends
        ([1.0, 2.0, 1.0], [2.0, 2.0, 2.0], 3),  # exactly worth it does not end the loop
        ([1.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1),  # but a larger prefix must be better
        ([3.0, 1.0, 1.0], [2.0, 2.0, 2.0], 0),
        ([2.0, 2.0], [2.0, 2.0], 0),
        ([0.0], [1.0], 1),
        ([], [], 0),
        ([1.0, 1.0, 1.0 - 1e-14], [2.0, 1.0, 1.0], 1),  # rounding decides nothing
        ([1.0, 1.0, 1.0 - 1e-9], [2.0, 1.0, 1.0], 3),
        ([1e6, 1e6, 1e6 - 1e-7], [2e6, 1e6, 1e6], 1),  # of large numbers too
    ],
)
def test_the_loop_by_hand(cost: list[float], value: list[float], count: int) -> None:
    assert best_prefix(silent(cost, value)) == count


def test_the_loop_ends_where_the_least_shares_fill_the_band() -> None:
    """Exactly the whole band still fits."""
    for floor, count in (([0.5, 0.5, 0.25], 2), ([0.5, 0.25, 0.25], 3), ([1.25, 0.1], 0), ([0.5, 0.5 + 1e-15], 1)):
        shares = np.array(floor)
        curve = UploadCurve.of(1e-6 * np.ones(len(floor)), shares)
        devices = Candidates.of(curve, shares, np.ones(len(floor)), np.ones(len(floor)))
        assert best_prefix(devices) == count
    # Even where a device behind them would have ended the loop.
    shares = np.array([0.5, 0.5, 0.25, 0.25])
    curve = UploadCurve.of(1e-6 * np.ones(4), shares)
    devices = Candidates.of(curve, shares, np.ones(4), np.ones(4), base_energy_j=np.array([0.0, 0.0, 0.0, 9.0]))
    assert best_prefix(devices) == 2


@pytest.mark.parametrize("stop", [5, 31, 32, 33, 255, 256, 300, 2047, 2048, 2100, 2999])
def test_the_loop_ends_at_any_distance(stop: int) -> None:
    """Looking ahead a little, then further, changes nothing."""
    cost = np.full(3000, 1.0)
    cost[stop] = 9.0
    assert best_prefix(silent(cost.tolist(), [2.0] * 3000)) == stop
    cost[stop // 2 :] = 2.5  # not worth it from the half on
    assert best_prefix(silent(cost.tolist(), [2.0] * 3000)) == stop // 2


def test_exact_values_are_those_of_the_allocation() -> None:
    one = np.ones(5)
    link = Uplink(1e6, 4e-21, np.array([1e-9, 1e-11, 1e-12, 1e-12, 1e-10]), 3e5 * one, 0.5 * one, one)
    queue, value = np.array([1.0, 0.0, 30.0, 5.0, 2.0]), np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    base, floor = np.array([0.01, 0.02, 0.03, 0.04, 0.05]), link.power_floor()
    devices = Candidates.of(link.curve, floor, queue, value, base, 0.1)
    for j, (total, magnitude, newest) in zip([4, 1, 2], exact_values(devices, np.array([4, 1, 2])), strict=True):
        head = np.arange(5) <= j
        energy = base[head] + share_band(link.take(head), queue[head] + 0.1, floor[head]).energy_j
        assert total == pytest.approx(float((queue[head] * energy - value[head]).sum()), rel=1e-10)
        assert magnitude == pytest.approx(float((queue[head] * energy + value[head]).sum()), rel=1e-10)
        assert newest == pytest.approx(float(queue[j] * energy[-1] - value[j]), rel=1e-10)
    # Free joules take the least share, and cost nothing.
    free = Candidates.of(link.curve, floor, 0 * one, value, base)
    assert exact_values(free, np.array([2])) == [pytest.approx((-0.6, 0.6, -0.3))]


@pytest.mark.parametrize("extra", [0.0, 1e-3])
@pytest.mark.parametrize("count", [1, 7, 60, 300])
def test_bounds_enclose_the_exact_value_of_every_prefix_and_close_in_on_it(count: int, extra: float) -> None:
    for seed in range(3):
        devices = some(seed, count, extra=extra)
        exact = exact_values(devices, np.arange(count))
        total = np.array([one[0] for one in exact])
        size = np.array([one[1] for one in exact])
        enclosure = Enclosure(devices)
        widths = []
        for _ in range(4):
            lower, upper = enclosure._bounds()
            assert (lower <= total).all() and (total <= upper).all()
            below, above = enclosure._below, enclosure._above
            newest = np.array([one[2] for one in exact]) - enclosure._own
            assert (below.newest <= newest + 1e-9 * size).all() and (newest <= above.newest + 1e-9 * size).all()
            widths.append(float(np.median((upper - lower) / size)))
            enclosure.refine(np.arange(count))
        # The error is of second order: refinements close in, the faster the fewer prefixes share the multipliers.
        assert widths[1] < 0.02 * widths[0] + 1e-9, widths
        assert widths[-1] < (1e-4 if count < 100 else 5e-3) * widths[0] + 1e-9, widths


def test_only_few_prefixes_are_left_to_solve() -> None:
    """They are the ones that may win, and those before them whose break test is open."""
    for seed in range(4):
        devices = some(seed, 200)
        enclosure = Enclosure(devices)
        undecided, _ = enclosure.undecided()
        sizes = [len(undecided)]
        for _ in range(6):
            if len(undecided) <= 8:
                break
            enclosure.refine(undecided)
            undecided, stop = enclosure.undecided()
            sizes.append(len(undecided))
        assert sizes[-1] <= 8, sizes
        best, end = the_loop(devices)
        assert best == 0 or best - 1 in undecided
        assert stop >= end
        assert _scan(devices, undecided, stop)[0] == best
        assert _search(devices)[0] == best


def test_a_search_says_whether_the_loop_ended_inside() -> None:
    assert _search(silent([1.0, 1.0], [2.0, 2.0])) == (2, False)
    assert _search(silent([1.0, 3.0], [2.0, 2.0])) == (1, True)
    assert _search(silent([], [])) == (0, False)
    assert _scan(silent([1.0, 1.0], [2.0, 2.0]), np.array([0]), stop=1) == (1, True)
    assert _scan(silent([1.0, 3.0], [2.0, 2.0]), np.array([0, 1]), stop=2) == (1, True)


@pytest.mark.parametrize("worth", [0.3, 0.5, 1.0, 3.0, 10.0])
def test_the_decision_of_the_loop_as_written(worth: float) -> None:
    for seed in range(6):
        devices = some(seed, 20 * (seed + 1), worth)
        best, end = the_loop(devices)
        assert best_prefix(devices) == best
        found, ended = _search(devices)
        assert found == best and (end < len(devices) or not ended)


def test_prices_are_sums_over_the_prefix() -> None:
    """Σθ, the dual, ΣE, Σ q E and the newest q E at a multiplier, written out."""
    devices = some(5, 50)
    enclosure = Enclosure(devices)
    for log_price, sums in zip((-3.0, 0.5), enclosure._sums(np.array([-3.0, 0.5]), 30), strict=True):
        head = devices.first(30)
        share = np.maximum(head.curve.share_at_price(log_price, head.log_weight), head.floor)
        energy = head.curve.energy_j(share)
        price = math.exp(log_price)
        expected = (
            np.cumsum(share),
            np.cumsum((head.queue_j + 1e-3) * energy + price * share) - price,
            np.cumsum(energy),
            np.cumsum(head.queue_j * energy),
            head.queue_j * energy,
        )
        for ours, theirs in zip(sums, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_in_any_order_the_loop_ends_at_the_first_device_that_is_not_worth_it() -> None:
    """Devices that are not sorted: break tests that only their uploads decide, with better prefixes behind them."""
    ended = later = 0
    for seed in range(80):
        draw = stream(seed, "any order")
        count = int(draw.integers(3, 16))
        exponent = draw.uniform(0.5, 3.0, count) / count
        curve = UploadCurve.of(10 ** draw.uniform(-3, -1, count), exponent)
        floor = exponent / draw.uniform(4.0, 9.0, count)
        energy = curve.energy_j(np.full(count, 1 / count))
        value = energy * 10 ** draw.uniform(-0.2, 1.5, count)
        devices = Candidates.of(curve, floor, np.ones(count), value, 0.1 * energy.min() * np.ones(count), 1e-6)
        best, end = the_loop(devices)
        assert best_prefix(devices) == best, seed
        ended += end < count
        later += end < count and min(one[0] for one in exact_values(devices, np.arange(count))[end:]) < 0
    assert ended > 25 and later > 15


def test_rounding_is_allowed_for_relative_to_the_terms() -> None:
    """Devices that only compute: the bounds are the sums, and a hundred-thousand-millionth of their terms."""
    enclosure = Enclosure(silent([100.0, 1.0, 1.0], [200.0, 2.0, 2.0]))
    lower, upper = enclosure._bounds()
    np.testing.assert_allclose(upper - np.array([-100.0, -101.0, -102.0]), 1e-11 * np.array([300, 303, 306]), rtol=1e-3)
    np.testing.assert_allclose(np.array([-100.0, -101.0, -102.0]) - lower, 1e-11 * np.array([300, 303, 306]), rtol=1e-3)
    # A break test within rounding is left to the exact solution, whatever the size of its terms.
    for size in (1.0, 100.0):
        assert Enclosure(silent([1.0, size * (1 + 1e-11), 1.0], [2.0, size, 1.0])).undecided()[1] == 3
        assert Enclosure(silent([1.0, size * (1 + 3e-11), 1.0], [2.0, size, 1.0])).undecided()[1] == 1


def test_the_upper_bound_is_where_two_tangents_meet() -> None:
    """On a grid between the two multipliers, for every prefix."""
    devices = some(3, 30, extra=0.0)
    enclosure = Enclosure(devices)
    for _ in range(2):
        below, above = enclosure._below, enclosure._above
        _, upper = enclosure._bounds()
        for j in range(int(np.argmax(devices.queue_j > 0)), 30):
            low, high = math.exp(below.log_price[j]), math.exp(above.log_price[j])
            mu = np.linspace(low, high, 4001)
            lines = (
                below.dual[j] + (below.share[j] - 1) * (mu - low),
                above.dual[j] + (above.share[j] - 1) * (mu - high),
            )
            peak = enclosure._base[j] + min(above.cost[j], float(np.minimum(*lines).max()))
            scale = abs(lines[0][-1] - lines[0][0]) / 1000 + 1e-9 * abs(peak)
            assert upper[j] == pytest.approx(peak, abs=scale + 1e-10 * high)
        enclosure.refine(np.arange(30))


def test_very_many_devices_are_summed_row_by_row() -> None:
    lower, upper = Enclosure(some(0, 33_000))._bounds()
    assert (lower <= upper).all()
