"""From the price to a set: exchanges by hand, flips by exhaustion, and the best of all sets where there are few."""

import math
from itertools import pairwise, product

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling._band_price import Candidates, band_log_price
from kfl.scheduling._relaxation import Relaxation, critical_log_prices, reduced_values, relax, shares_at_price
from kfl.scheduling._repair import (
    _climb,
    _exchange,
    _fill_or_squeeze,
    _flipped,
    _flips,
    _hopeful,
    _improve,
    _pool,
    _starts,
    repair,
    set_values,
)
from kfl.scheduling.allocation import share_band
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.uplink import Uplink


def knapsack(floor: list[float], value: list[float]) -> Candidates:
    """Devices whose joules are free: at any price each takes its floor."""
    shares = np.array(floor)
    return Candidates.of(UploadCurve.of(np.ones(len(floor)), shares), shares, np.zeros(len(floor)), np.array(value))


def some(
    seed: int, count: int, load: float = 1.5, empty: float = 0.3, steep: float = 2.0
) -> tuple[Candidates, Relaxation]:
    """Random devices in the order of their critical prices; their floors would fill the band `load` times."""
    draw = stream(seed, "repair")
    queue = 10 ** draw.uniform(-2, 1, count) * (draw.random(count) >= empty)
    floor = draw.uniform(0.2, 1.8, count) * load / count
    exponent = floor * draw.uniform(steep, steep + 4.0, count)
    curve = UploadCurve.of(10 ** draw.uniform(-4, -1, count), exponent)
    devices = Candidates.of(curve, floor, queue, draw.uniform(0.5, 10, count) * min(20 / count, 1.0))
    prices = critical_log_prices(devices)
    order = np.argsort(-prices, kind="stable")
    order = order[prices[order] > -np.inf]
    devices = devices.take(order)
    return devices, relax(devices, prices[order], rounding_scale=float(devices.value.sum()))


def all_sets(count: int) -> np.ndarray:
    return np.array(list(product([False, True], repeat=count)))


# ── Values of sets ───────────────────────────────────────────────────────────


def test_values_of_sets_are_what_the_allocation_costs_less_what_they_are_worth() -> None:
    one = np.ones(4)
    link = Uplink(1e6, 4e-21, np.array([1e-9, 1e-11, 1e-12, 1e-12]), 4e5 * one, 0.5 * one, one)
    queue, value, floor = np.array([1.0, 0.0, 30.0, 5.0]), np.array([0.1, 0.2, 0.3, 0.4]), link.power_floor()
    devices, sets = Candidates.of(link.curve, floor, queue, value), all_sets(4)
    found = set_values(devices, sets)
    assert found[0] == 0 and np.isfinite(found).all()
    for row, value_of_row in zip(sets[1:], found[1:], strict=True):
        # Where all joules are free the allocator saves some all the same; they cost nothing here.
        cost = share_band(link.take(row), queue[row], floor[row]).objective
        assert value_of_row == pytest.approx(float(cost) - value[row].sum(), rel=1e-12)


def test_a_set_fits_up_to_the_whole_band() -> None:
    three = knapsack([0.5, 0.25, 0.25 + 1e-15], [1.0, 2.0, 4.0])
    sets = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    assert set_values(three, sets).tolist() == [-3, math.inf, 0]
    assert set_values(knapsack([0.5, 0.25, 0.25], [1.0, 2.0, 4.0]), sets).tolist() == [-3, -7, 0]


# ── Exchanges ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("floor", "value", "chosen", "spare", "expected", "gain"),
    [
        ([0.25, 0.2, 0.375], [3, 2, 5], [1, 0, 0], 0.125, [0, 0, 1], 2),  # the wider one in its place
        ([0.25, 0.125, 0.375], [3, 1, 5], [1, 0, 0], 0.25, [0, 1, 1], 3),  # and another in what is left
        ([0.25, 0.25, 0.5], [3, 2, 4], [1, 0, 0], 0.25, [1, 1, 0], 2),  # exactly the room there is
        ([0.25, 0.5, 0.5], [3, 2, 3], [1, 0, 0], 0.125, [1, 0, 0], 0),  # nothing better fits
        ([0.25, 0.25], [3, 3], [1, 0], 0.0, [1, 0], 0),  # as good is not better
        ([0.25, 0.25], [-1, -2], [1, 0], 0.5, [0, 0], 1),  # better without it
        ([0.125, 0.125], [0.5, 0.5], [0, 0], 1.0, [1, 1], 1),
    ],
)
def test_exchanges_fill_what_is_unused(
    floor: list[float], value: list[float], chosen: list[int], spare: float, expected: list[int], gain: float
) -> None:
    found, left = _exchange(knapsack(floor, value), np.array(chosen, bool), math.log(8.0), spare)
    assert found.tolist() == [bool(k) for k in expected]
    assert left == pytest.approx(8.0 * spare - gain)


def test_six_exchanges_are_made_at_most() -> None:
    found, left = _exchange(knapsack([0.0625] * 8, [1.0] * 8), np.zeros(8, bool), 0.0, 1.0)
    assert found.sum() == 6 and left == pytest.approx(1.0 - 6.0)


def test_an_exchange_keeps_the_band_and_says_what_gap_is_left() -> None:
    """At a fixed price the gap of a set is μ (1 − Σθ) + Σ_in max(φ, 0) − Σ_out min(φ, 0)."""
    changed = 0
    for seed in range(20):
        devices, relaxation = some(seed, 40)
        before = np.arange(len(devices)) < relaxation.staying
        share = shares_at_price(devices, relaxation.log_price)
        reduced = reduced_values(devices, relaxation.log_price)
        price = math.exp(relaxation.log_price)
        given = before.copy()
        after, left = _exchange(devices, given, relaxation.log_price, 1 - float(share[before].sum()))
        np.testing.assert_array_equal(given, before)
        assert share[after].sum() <= 1 + 1e-12
        gap = (
            price * (1 - share[after].sum())
            + np.maximum(reduced[after], 0).sum()
            - np.minimum(reduced[~after], 0).sum()
        )
        assert left == pytest.approx(gap, abs=1e-9 * price)
        assert left <= price * (1 - share[before].sum()) + 1e-12
        changed += not np.array_equal(after, before)
    assert changed > 5


@pytest.mark.parametrize(("count", "steep"), [(600, 2.0), (600, 8.0), (1600, 2.0)])
def test_many_devices_make_room_for_the_critical_one_or_exchange_whichever_leaves_less(
    count: int, steep: float
) -> None:
    """Room costs ½ (shortage)² μ / slope, with the slope −dΣθ/d ln μ by differences here."""
    squeezed = exchanged = 0
    for seed in range(8):
        devices, relaxation = some(seed, count, empty=0.1, steep=steep)
        stay, log_price, price = relaxation.staying, relaxation.log_price, math.exp(relaxation.log_price)
        if relaxation.tight or stay == len(devices):
            continue
        prefix = devices.take(slice(0, stay))
        spare = 1 - shares_at_price(prefix, log_price).sum()
        shortage = float(shares_at_price(devices, log_price)[stay]) - spare
        around = [shares_at_price(prefix, log_price + step).sum() for step in (-1e-5, 1e-5)]
        slope = (around[0] - around[1]) / 2e-5
        near = np.arange(max(stay - 400, 0), min(stay + 400, len(devices)))
        swapped, left = _exchange(devices.take(near), near < stay, log_price, spare)
        fits = devices.floor[: stay + 1].sum() <= 1
        found = _fill_or_squeeze(devices, relaxation)
        if fits and shortage < 0.5 * slope and 0.5 * shortage**2 * price / slope < left:
            assert found.tolist() == list(range(stay + 1))
            squeezed += 1
        else:
            assert found.tolist() == [*range(near[0]), *near[swapped]]
            exchanged += 1
        ours = float(set_values(devices, np.isin(np.arange(len(devices)), found)[None])[0])
        assert relaxation.lower_bound <= ours <= relaxation.lower_bound + price * spare * (1 + 1e-6)
        if stay > 256:
            np.testing.assert_array_equal(repair(devices, relaxation), found)
    assert (squeezed if steep > 2 else exchanged) >= 3, (squeezed, exchanged)


def _elastic(floor: float, critical_floor: float) -> tuple[Candidates, Relaxation]:
    """One that wants 0.8 of the band at the price (its share gives way by 0.4 per ln μ), two with free joules."""
    price = -0.9 * math.exp(0.1) + 1  # G(0.1), at b/θ = 0.08/0.8
    floors = np.array([floor, 0.125, critical_floor])
    curve = UploadCurve.of(np.ones(3), np.array([0.08, 0.125, critical_floor]))
    devices = Candidates.of(curve, floors, np.array([1.0, 0.0, 0.0]), np.array([9.0, 1.0, price * critical_floor]))
    return devices, Relaxation(2, math.log(price), 0.0, tight=False)


@pytest.mark.parametrize(
    ("floor", "critical", "room"),
    [
        (0.79, 0.08, True),
        (0.75, 0.125, True),  # least shares that just fill the band
        (0.79, 0.09, False),  # that do not fit
        (0.7, 0.225, False),
        (0.5, 0.255, True),  # a shortage of 0.18, below half the slope
        (0.5, 0.295, False),  # of 0.22, above it: too far for the estimate
    ],
)
def test_room_is_made_where_floors_fit_and_the_others_give_only_a_little(
    floor: float, critical: float, room: bool
) -> None:
    assert _fill_or_squeeze(*_elastic(floor, critical)).tolist() == ([0, 1, 2] if room else [0, 1])


def test_even_the_first_device_may_be_exchanged() -> None:
    devices = knapsack([0.125, 0.5, 0.5], [2.0, 7.0, 5.0])
    assert _fill_or_squeeze(devices, Relaxation(2, math.log(10.0), 0.0, tight=False)).tolist() == [1, 2]


@pytest.mark.parametrize(("better", "exchanged"), [(4e-12, False), (12e-12, True)])
def test_an_exchange_must_gain_more_than_rounding(better: float, exchanged: bool) -> None:
    """A part in 10¹² of the price."""
    two = knapsack([0.25, 0.25], [1.0, 1.0 + better])
    assert _exchange(two, np.array([True, False]), math.log(8.0), 0.0)[0].tolist() == [not exchanged, exchanged]


# ── Few devices ──────────────────────────────────────────────────────────────


def test_a_prefix_that_is_optimal_is_left_alone() -> None:
    two = knapsack([0.5, 0.25], [1.0, 2.0])
    assert repair(two, Relaxation(1, 0.0, 0.0, tight=True)).tolist() == [0]
    assert repair(two, Relaxation(2, 0.0, 0.0, tight=False)).tolist() == [0, 1]


def test_the_pool_is_who_stays_who_comes_next_and_the_most_valuable_of_the_rest() -> None:
    draw = stream(0, "pool")
    for count, staying in ((30, 10), (74, 10), (90, 10), (91, 10), *([(200, 10)] * 12), (400, 256)):
        devices = knapsack([1 / count] * count, draw.permutation(count).astype(float).tolist())
        near = min(staying + 64, count)
        rest = sorted(range(near, count), key=lambda k: -devices.value[k])[:16]
        assert _pool(devices, staying).tolist() == [*range(near), *sorted(rest)]


def test_flips_are_one_two_or_three_devices() -> None:
    assert _flips(np.array([2, 0, 1])).tolist() == [
        [2, -1, -1],
        [0, -1, -1],
        [1, -1, -1],
        [2, 0, -1],
        [2, 1, -1],
        [0, 1, -1],
        [2, 0, 1],
    ]
    many = _flips(np.arange(50))
    assert len(many) == 50 + 40 * 39 // 2 + 14 * 13 * 12 // 6
    assert many[many[:, 2] >= 0].max() == 13 and many[50 : 50 + 780].max() == 39
    sets = _flipped(np.array([True, False, True]), np.array([[0, -1, -1], [1, 2, -1], [0, 1, 2]]))
    assert sets.tolist() == [[False, False, True], [True, True, False], [False, True, False]]


def test_the_starts() -> None:
    """Who stays, these after exchanges, these and the critical device, the best single one."""
    devices = knapsack([0.25, 0.5, 0.5, 0.125], [8.0, 6.0, 9.0, 1.0])
    starts = _starts(devices, Relaxation(2, math.log(9.0), 0.0, tight=False))
    assert starts[0].tolist() == [True, True, False, False] and starts[2].tolist() == [True, True, True, False]
    assert starts[3].tolist() == [False, False, True, False]
    assert starts[1].tolist() == [True, False, True, True]  # the third for the second, and the fourth beside


def test_no_flip_that_helps_is_overlooked_and_none_is_tried_that_cannot_help() -> None:
    """Against the values of all flips, and against both bounds written out for each set."""
    pruned = helpful = 0
    for seed in range(12):
        devices, relaxation = some(seed, 9, load=2.0)
        count = len(devices)
        at_dual = reduced_values(devices, relaxation.log_price)
        flips = _flips(np.arange(count))
        for chosen in _starts(devices, relaxation):
            value = float(set_values(devices, chosen[None])[0])
            if value == math.inf:
                continue
            found = _hopeful(devices, chosen, value, at_dual, relaxation, flips)
            kept = {tuple(row) for row in found.tolist()}
            sets = _flipped(chosen, flips)
            own = band_log_price(devices.take(np.flatnonzero(chosen)))
            bounds = sets @ at_dual - math.exp(relaxation.log_price)
            if own > -math.inf:
                bounds = np.maximum(bounds, value + (sets.astype(float) - chosen) @ reduced_values(devices, own))
            fits = sets @ devices.floor <= 1.0
            truly = set_values(devices, sets)
            assert (truly >= bounds - 1e-9).all()
            for flip, bound, fit, true in zip(flips.tolist(), bounds, fits, truly, strict=True):
                helpful += true < value - 1e-9
                assert tuple(flip) in kept or true >= value - 1e-9
                if abs(bound - value) > 1e-9:
                    assert (tuple(flip) in kept) == bool(fit and bound < value)
                pruned += tuple(flip) not in kept
            by_flip = dict(zip(map(tuple, flips.tolist()), bounds, strict=True))
            order = [by_flip[tuple(row)] for row in found.tolist()]
            assert all(b >= a - 1e-9 for a, b in pairwise(order))
    assert pruned > 100 and helpful > 20


def test_a_flip_may_fill_the_band_exactly() -> None:
    halves, flips = knapsack([0.5, 0.5], [2.0, 1.0]), _flips(np.arange(2))
    relaxation = Relaxation(1, 0.0, -3.0, tight=False)
    chosen = np.array([True, False])
    found = _hopeful(halves, chosen, -2.0, reduced_values(halves, 0.0), relaxation, flips)
    assert [1, -1, -1] in found.tolist()


def test_of_more_than_a_few_devices_the_best_start_is_improved() -> None:
    for seed in range(5):
        devices, relaxation = some(seed, 30 if seed < 2 else 60, load=2.0)
        if relaxation.tight:
            continue
        starts = _starts(devices, relaxation)
        values = set_values(devices, starts)
        found = np.isin(np.arange(len(devices)), _improve(devices, relaxation))
        value = float(set_values(devices, found[None])[0])
        assert relaxation.lower_bound <= value <= values.min() + 1e-12
        at_dual = reduced_values(devices, relaxation.log_price)
        flips = _flips(np.argsort(np.abs(at_dual), kind="stable"))
        start = int(values.argmin())
        climbed, _ = _climb(devices, starts[start], float(values[start]), at_dual, relaxation, flips)
        np.testing.assert_array_equal(found, climbed)


def test_climbing_ends_where_no_flip_helps() -> None:
    climbed = 0
    for seed in range(12):
        devices, relaxation = some(seed, 12, load=2.0)
        at_dual, flips = reduced_values(devices, relaxation.log_price), _flips(np.arange(len(devices)))
        nobody = np.zeros(len(devices), bool)
        found, value = _climb(devices, nobody, 0.0, at_dual, relaxation, flips)
        assert value == pytest.approx(float(set_values(devices, found[None])[0]), rel=1e-12)
        assert set_values(devices, _flipped(found, flips)).min() >= value - 1e-9 * abs(value)
        assert not nobody.any()
        climbed += int(found.sum()) > 3  # more than one flip
    assert climbed > 3
    many, relaxation = some(0, 40, load=2.0)
    at_dual, flips = reduced_values(many, relaxation.log_price), _flips(np.arange(len(many)))
    found, value = _climb(many, np.zeros(len(many), bool), 0.0, at_dual, relaxation, flips)
    assert found.sum() > 3 and value == pytest.approx(float(set_values(many, found[None])[0])) and value < 0


def test_the_best_of_all_sets_is_found_where_there_are_few() -> None:
    scarce = mended = 0
    for seed in range(60):
        devices, relaxation = some(
            seed, 4 + seed % 5, load=(1.2, 2.0, 4.0)[seed % 3], empty=(0.0, 0.3, 1.0)[seed // 3 % 3]
        )
        sets = all_sets(len(devices))
        values = set_values(devices, sets)
        found = repair(devices, relaxation)
        chosen = np.isin(np.arange(len(devices)), found)
        assert float(set_values(devices, chosen[None])[0]) == pytest.approx(values.min(), rel=1e-9)
        assert relaxation.lower_bound <= values.min()
        scarce += not relaxation.tight
        mended += not relaxation.tight and not np.array_equal(found, np.arange(relaxation.staying))
    assert scarce > 24 and mended > 12, (scarce, mended)


def test_a_set_that_is_worth_nothing_is_nobody() -> None:
    """No start has a value below 0: then nobody takes part."""
    devices = knapsack([0.5, 0.75], [-1.0, -2.0])
    assert _improve(devices, Relaxation(1, 0.0, -1.0, tight=False)).tolist() == []
