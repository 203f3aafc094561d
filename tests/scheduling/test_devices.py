"""The constants of whole devices and what they spend at a point, straight from the formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from kfl.scheduling._device import CORNER, FREE, FULL, LEAST, PINNED, Devices, Point


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """As `DeviceCurve` calls them."""
    with np.errstate(all="ignore"):
        yield


# a = B N₀ / (η h), c = bits ln 2 / B
GIVEN: dict[str, Any] = {
    "bandwidth_hz": 4.0,
    "noise_w_per_hz": 0.25,
    "gain": np.array([2.0, 1.0, 0.5, 4.0]),
    "payload_bits": np.array([8.0, 0.0, 6.0, 4.0]) / np.log(2),
    "max_power_w": np.array([3.0, 7.0, 20.0, 5.0]),
    "min_power_w": np.array([0.0, 0.5, 0.25, 1.0]),
    "time_s": np.array([4.0, 4.0, 5.0, 3.0]),
    "fastest_s": np.array([1.0, 1.0, 1.0, 2.0]),
    "slowest_s": np.array([3.0, 9.0, 2.0, 2.0]),
    "work_j_s2": np.array([6.0, 9.0, 4.0, 4.0]),
    "static_power_w": np.array([0.0, 0.0, 8.0, 0.5]),
    "circuit_power_w": np.array([0.0, 0.1, 0.2, 0.3]),
    "amplifier_efficiency": np.array([0.5, 0.25, 0.8, 1.0]),
}


def devices(**other: Any) -> Devices:
    return Devices.of(**GIVEN | other)


def computing_j(compute_s: np.ndarray) -> np.ndarray:
    return GIVEN["work_j_s2"] / compute_s**2 + GIVEN["static_power_w"] * compute_s


def point(share: Any, exponent: Any, upload_s: Any, kind: int) -> Point:
    share, exponent, upload_s = (np.full(4, float(v)) if np.ndim(v) == 0 else v for v in (share, exponent, upload_s))
    return Point(share, exponent, upload_s, np.full(4, kind, np.int8))


# ── The constants ────────────────────────────────────────────────────────────


def test_the_constants_of_devices() -> None:
    """The cheapest computation: the slowest clock; the deadline; 2 κW³ = p_s t³, so 1 s; a clock that is fixed."""
    some = devices()
    expected = {
        "noise_w": [1.0, 4.0, 2.5, 0.25],
        "log_noise": np.log([1.0, 4.0, 2.5, 0.25]),
        "airtime_s": [2.0, 0.0, 1.5, 1.0],
        "end_s": [3.0, 3.0, 4.0, 1.0],
        "calm_s": [1.0, 0.0, 4.0, 1.0],
        "slow_s": [3.0, 4.0, 1.0, 2.0],
        "work_j_s2": [6.0, 9.0, 4.0, 4.0],
        "clock_j_s2": [12.0, 18.0, 0.0, 0.0],
        "static_power_w": [0.0, 0.0, 8.0, 0.5],
        "circuit_power_w": [0.0, 0.1, 0.2, 0.3],
        "full_w": [6.0, 28.0, 25.0, 5.0],
        "least_w": [0.0, 2.0, 0.3125, 1.0],
        "efficiency": [0.5, 0.25, 0.8, 1.0],
    }
    assert [field.name for field in fields(Devices)] == list(expected)
    for (name, values), found in zip(expected.items(), some.values(), strict=True):
        np.testing.assert_allclose(found, values, rtol=1e-14, err_msg=name)
        assert getattr(some, name) is found
    np.testing.assert_allclose(some.base_j, computing_j(np.array([3.0, 4.0, 1.0, 2.0])), rtol=1e-14)
    np.testing.assert_allclose(some.need, [2 / 3, 0.0, 0.375, 1.0], rtol=1e-14)


def test_static_power_makes_slowness_dear() -> None:
    """Between the clock's limits 2 κW³ = p_s t³ decides; beyond them the nearer limit, and the deadline before all."""
    race = devices(static_power_w=np.array([1.5, 0.0, 8 / 1.5**3, 64.0]), slowest_s=np.array([3.0, 3.9, 2.0, 2.9]))
    np.testing.assert_allclose(race.slow_s, [2.0, 3.9, 1.5, 2.0], rtol=1e-14)
    np.testing.assert_allclose(race.calm_s, [2.0, 0.1, 3.5, 1.0], rtol=1e-12)


def test_what_is_not_said_is_a_fixed_clock_that_costs_nothing_and_a_perfect_radio() -> None:
    names = ("bandwidth_hz", "noise_w_per_hz", "gain", "payload_bits", "max_power_w", "time_s")
    bare = Devices.of(**{name: GIVEN[name] for name in names})
    np.testing.assert_allclose(bare.noise_w, 1.0 / GIVEN["gain"])
    np.testing.assert_array_equal(bare.end_s, GIVEN["time_s"])
    np.testing.assert_array_equal(bare.calm_s, GIVEN["time_s"])
    np.testing.assert_array_equal(bare.full_w, GIVEN["max_power_w"])
    for name in ("slow_s", "work_j_s2", "clock_j_s2", "static_power_w", "circuit_power_w", "least_w", "base_j"):
        np.testing.assert_array_equal(getattr(bare, name), 0.0, err_msg=name)
    assert bare.efficiency == 1.0
    fixed = Devices.of(**{name: GIVEN[name] for name in names}, fastest_s=np.array([1.0, 2.0, 4.0, 4.0]))
    np.testing.assert_array_equal(fixed.slow_s, [1.0, 2.0, 4.0, 4.0])
    np.testing.assert_array_equal(fixed.end_s, [3.0, 2.0, 1.0, 0.0])
    np.testing.assert_array_equal(fixed.calm_s, [3.0, 2.0, 1.0, 0.0])


def test_devices_that_are_not_heard_or_too_late_have_numbers_all_the_same() -> None:
    with np.errstate(all="raise"):
        odd = devices(gain=np.array([0.0, 1.0, -1.0, 1.0]), fastest_s=np.array([5.0, 4.0, 9.0, 2.0]))
        base_j, need = odd.base_j, odd.need
        zero = devices(work_j_s2=np.zeros(4), fastest_s=np.zeros(4), slowest_s=np.zeros(4))
        zero_j, endless_j = zero.base_j, replace(zero, work_j_s2=np.asarray(1.0)).base_j
        Devices.of(**GIVEN | {"work_j_s2": 1e308, "static_power_w": 1e-10, "noise_w_per_hz": 0.0})
    np.testing.assert_array_equal(odd.noise_w, [2.0, 4.0, 1.25, 1.0])
    np.testing.assert_array_equal(odd.end_s, [0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(odd.slow_s, [5.0, 4.0, 9.0, 2.0])
    np.testing.assert_allclose(base_j, computing_j(odd.slow_s), rtol=1e-14)
    np.testing.assert_array_equal(need, [np.inf, 0.0, np.inf, 1.0])
    np.testing.assert_array_equal(zero_j, np.zeros(4))
    np.testing.assert_array_equal(endless_j, np.full(4, np.inf))
    np.testing.assert_array_equal(zero.penalty(0.5 * zero.end_s), np.zeros(4))


def test_what_all_share_is_kept_as_a_number() -> None:
    some = devices(work_j_s2=np.full(4, 3.0), max_power_w=2.0, amplifier_efficiency=0.5, gain=2.0)
    assert some.work_j_s2.shape == some.full_w.shape == () and some.work_j_s2 == 3.0
    assert some.noise_w.shape == some.log_noise.shape == some.end_s.shape == (4,)
    none = Devices.of(**{name: value[:0] if np.ndim(value) else value for name, value in GIVEN.items()})
    assert none.noise_w.shape == none.end_s.shape == (0,)


def test_some_devices_batches_and_copies() -> None:
    some = devices(work_j_s2=4.0)
    part = some.take(np.array([3, 0]))
    for whole_value, value in zip(some.values(), part.values(), strict=True):
        np.testing.assert_array_equal(value, whole_value[[3, 0]] if whole_value.ndim else whole_value)
    assert all(values.shape == (2, 4) for values in some.spread((2, 4)).values())
    members = np.array([[True, True, False, True], [False, False, True, True]])
    batch = some.only(members)
    np.testing.assert_array_equal(batch.airtime_s, np.where(members, some.airtime_s, 0.0))
    np.testing.assert_array_equal(batch.end_s, np.broadcast_to(some.end_s, (2, 4)))
    np.testing.assert_array_equal(batch.take(np.array([1])).airtime_s, batch.airtime_s[1:])
    triple = some.copies(3)
    for field in fields(Devices):
        kept = field.name in ("noise_w", "log_noise", "end_s", "calm_s", "slow_s", "efficiency")
        np.testing.assert_array_equal(getattr(triple, field.name), (1 if kept else 3) * getattr(some, field.name))


# ── What they spend ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.9, 1.0])
def test_what_a_longer_upload_makes_dearer(fraction: float) -> None:
    """D(t), its slope and the slope of that, by differences."""
    some = devices(slowest_s=np.array([3.0, 9.0, 4.0, 2.9]), static_power_w=np.array([0.0, 0.1, 0.2, 0.3]))
    static = np.array([0.0, 0.1, 0.2, 0.3])

    def spent(compute_s: np.ndarray) -> np.ndarray:
        return GIVEN["work_j_s2"] / compute_s**2 + static * compute_s

    upload_s = fraction * some.end_s
    compute_s = np.minimum(GIVEN["time_s"] - upload_s, some.slow_s)
    np.testing.assert_allclose(some.penalty(upload_s), spent(compute_s) - spent(some.slow_s), rtol=1e-12, atol=1e-14)
    late = upload_s > some.calm_s
    step = 1e-4
    slope = (spent(compute_s - step) - spent(compute_s + step)) / (2 * step)
    bend = (spent(compute_s + step) - 2 * spent(compute_s) + spent(compute_s - step)) / step**2
    price, rise = some.time_price(upload_s)
    np.testing.assert_allclose(price, GIVEN["circuit_power_w"] + np.where(late, slope, 0.0), rtol=1e-6)
    np.testing.assert_allclose(rise, np.where(late, bend, 0.0), rtol=1e-5)
    np.testing.assert_allclose(some.clock_price(upload_s)[0][late], price[late], rtol=1e-15)


def test_the_price_of_time_at_the_cheapest_computation() -> None:
    """It jumps there from the circuits alone to what the clock says, and never falls below the circuits."""
    some = devices()
    np.testing.assert_array_equal(some.time_price(some.calm_s)[0], GIVEN["circuit_power_w"])
    np.testing.assert_array_equal(some.time_price(some.calm_s)[1], np.zeros(4))
    np.testing.assert_allclose(some.clock_price(some.calm_s)[0][:2], [12 / 27, 0.1 + 18 / 64], rtol=1e-14)
    np.testing.assert_allclose(some.clock_price(some.calm_s)[1][:2], [36 / 81, 54 / 256], rtol=1e-14)
    np.testing.assert_allclose(some.clock_price(some.end_s)[0][2:], [0.2, 0.3], rtol=1e-14)
    np.testing.assert_allclose(some.short_price()[:2], [12 / 2.9**3, 0.1 + 18 / 3.85**3], rtol=1e-14)
    at_once = devices(fastest_s=np.zeros(4), time_s=np.full(4, 3.0)).clock_price(np.full(4, 3.0))
    assert (at_once[0][:2] > 1e100).all(), "no time to compute in"


def test_the_energy_of_a_point_and_its_logarithm() -> None:
    some = devices()
    share, upload_s = np.array([0.5, 0.5, 0.25, 1.0]), np.array([2.0, 1.0, 3.0, 0.5])
    x = some.airtime_s / (share * upload_s)
    at = point(share, x, upload_s, FREE)
    radiated = share * np.expm1(x) * [0.5, 1.0, 2.0, 0.25]  # θ B N₀/h (eˣ − 1)
    np.testing.assert_allclose(some.radiated_w(at), radiated, rtol=1e-14)
    draws = radiated / GIVEN["amplifier_efficiency"] + GIVEN["circuit_power_w"]
    dearer = np.array([6 / 4 - 6 / 9, 0.0, 0.0, 0.0])
    expected = np.where(some.airtime_s > 0, draws * upload_s + dearer, 0.0)
    np.testing.assert_allclose(some.energy(at), expected, rtol=1e-13)
    np.testing.assert_allclose(some.log_energy(at), np.log(expected), rtol=1e-13, atol=1e-13)
    nothing = replace(at, share=np.zeros(4))
    np.testing.assert_array_equal(some.energy(nothing), [np.inf, 0.0, np.inf, np.inf])
    endless = some.energy(point(np.inf, 0.0, upload_s, FREE))  # θ t (eˣ − 1) → c
    least = some.noise_w * some.airtime_s + GIVEN["circuit_power_w"] * upload_s + dearer
    np.testing.assert_allclose(endless, np.where(some.airtime_s > 0, least, 0.0), rtol=1e-14)


@pytest.mark.parametrize("x", [599.0, 601.0, 690.0, 900.0, 5000.0])
def test_the_logarithm_of_an_energy_that_overflows(x: float) -> None:
    some = devices()
    share = 0.01
    at = point(share, x, some.airtime_s / (share * x), PINNED)
    found = some.log_energy(at)
    large = some.log_noise + np.log(some.airtime_s / x) + x
    np.testing.assert_allclose(found[[0, 2, 3]], large[[0, 2, 3]], rtol=1e-12)


@pytest.mark.parametrize("kind", [FULL, LEAST])
@pytest.mark.parametrize("late", [False, True])
def test_slope_and_elasticity_along_a_power_limit(kind: int, late: bool) -> None:
    """At a fixed power P the upload takes t = c / (θ ln(1 + s/θ)), and E = (P + p_c) t + D(t)."""
    limits = {"min_power_w": np.array([1.25, 1.0, 2.0, 1.0]), "static_power_w": np.array([0.0, 0.0, 0.2, 0.5])}
    some = devices(**limits).take(np.array([0, 2]))
    drawn_w = some.full_w if kind == FULL else some.least_w
    snr = drawn_w / some.noise_w

    def seconds(share: np.ndarray) -> np.ndarray:
        return some.airtime_s / (share * np.log1p(snr / share))

    def joules(share: np.ndarray) -> np.ndarray:
        upload_s = seconds(share)
        return (drawn_w + some.circuit_power_w) * upload_s + some.penalty(upload_s)

    wanted_s = some.calm_s + 0.5 * (some.end_s - some.calm_s) if late else 0.9 * some.calm_s
    ends = 1e-9, 1e9
    share = np.array(
        [brentq(lambda s, k=k: seconds(np.full(2, s))[k] - wanted_s[k], *ends, xtol=1e-15) for k in (0, 1)]
    )
    at = Point(share, np.log1p(snr / share), seconds(share), np.full(2, kind, np.int8))

    def log_slope(share: np.ndarray) -> np.ndarray:
        step = 1e-5 * share
        return np.log((joules(share - step) - joules(share + step)) / (2 * step))

    np.testing.assert_allclose(some.log_saving(at), log_slope(share), rtol=1e-6, atol=1e-6)
    falls = (log_slope(share * 0.999) - log_slope(share * 1.001)) / (np.log(1.001) - np.log(0.999))
    np.testing.assert_allclose(some.elasticity(at), 1 / falls, rtol=1e-4)


def test_slope_and_elasticity_where_the_time_is_pinned_or_free() -> None:
    """Pinned: ln(a t G(x)), and d ln x/d ln G. Free: t follows π(t) = a θ G(x)."""
    some = devices().take(np.array([0, 2, 3]))
    share = np.array([0.5, 0.25, 0.8])

    def saving(x: np.ndarray) -> np.ndarray:
        return (x - 1) * np.exp(x) + 1

    pinned = Point(share, some.airtime_s / (share * some.end_s), some.end_s, np.full(3, PINNED, np.int8))
    x = pinned.exponent
    np.testing.assert_allclose(some.log_saving(pinned), np.log(some.noise_w * some.end_s * saving(x)), rtol=1e-12)
    np.testing.assert_allclose(some.elasticity(pinned), saving(x) / (x * x * np.exp(x)), rtol=1e-8)
    corner = replace(pinned, kind=np.full(3, CORNER, np.int8))
    np.testing.assert_array_equal(some.elasticity(corner), np.zeros(3))

    def free(share: np.ndarray) -> Point:
        def excess(seconds: float, k: int) -> float:
            own = some.take(np.array([k]))
            at = np.array([seconds])
            price, exponent = own.time_price(at)[0], own.airtime_s / (share[k] * at)
            return float(np.log(np.maximum(price, 1e-9))[0] - np.log(own.noise_w * share[k] * saving(exponent))[0])

        found = np.array([brentq(excess, 0.05, 50.0 if k else some.end_s[0], args=(k,), xtol=1e-14) for k in range(3)])
        return Point(share, some.airtime_s / (share * found), found, np.full(3, FREE, np.int8))

    # Where a second costs nothing, nothing gives way.
    costless = replace(some, circuit_power_w=np.zeros(3)).elasticity(replace(pinned, kind=np.full(3, FREE, np.int8)))
    np.testing.assert_array_equal(costless[1:], some.elasticity(pinned)[1:])

    at, before, after = free(share), free(share * 0.999), free(share * 1.001)
    assert some.calm_s[0] < at.upload_s[0] < some.end_s[0]
    slopes = some.log_saving(before) - some.log_saving(after)
    np.testing.assert_allclose(some.elasticity(at), np.log(1.001 / 0.999) / slopes, rtol=1e-4)


def test_the_corner_where_a_power_takes_all_the_time() -> None:
    """(eˣ − 1)/x = s t_end / c, and there is none where s t_end ≤ c: not even the widest band is slow enough."""
    some = devices()
    for drawn_w in (some.full_w, some.least_w, np.array([0.5, 1.0, 1.0, 0.2])):
        exponent, share = some.corner_exponent(drawn_w), some.corner_share(drawn_w)
        for k in (0, 2, 3):
            ratio = drawn_w[k] / some.noise_w[k] * some.end_s[k] / some.airtime_s[k]
            if ratio <= 1:
                assert exponent[k] == 0 and share[k] == np.inf
                continue
            x = brentq(lambda x, ratio=ratio: np.expm1(x) / x - ratio, 1e-9, 50.0, xtol=1e-14)
            assert exponent[k] == pytest.approx(x, rel=1e-10)
            assert share[k] == pytest.approx(some.airtime_s[k] / (x * some.end_s[k]), rel=1e-10)
        assert exponent[1] == 0, "it sends nothing"
    late = devices(fastest_s=np.full(4, 9.0))
    np.testing.assert_array_equal(late.corner_exponent(late.full_w), np.zeros(4))
