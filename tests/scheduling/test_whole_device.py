"""The cost curves of whole devices against plain searches: golden sections over the time, and over the share."""

from __future__ import annotations

from dataclasses import fields, replace

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from kfl.core.randomness import stream
from kfl.scheduling.curve import UploadCurve
from kfl.scheduling.device_curve import DeviceCurve
from tests.reference.whole_device import Devices, golden, random_devices

pytestmark = pytest.mark.filterwarnings("error")

SEEDS = range(12)
COUNT = 40


def some_devices(seed: int) -> Devices:
    """Devices of every kind that can send; every other seed with a least power near what they would choose."""
    draw = stream(seed, "every-kind")
    found = random_devices(draw, COUNT)
    if seed % 2:
        band_w = found.bandwidth_hz * found.noise_w_per_hz / found.gain
        lazy = band_w * np.expm1(found.nats / (found.time_s - found.fastest_s)) * 10 ** draw.uniform(-1, 4, COUNT)
        found = replace(found, min_power_w=np.minimum(lazy, 0.99 * found.max_power_w))
    return found.take(np.isfinite(found.least_share()))


def curve_of(devices: Devices) -> DeviceCurve:
    return DeviceCurve.of(**{field.name: getattr(devices, field.name) for field in fields(devices)})


def some_shares(devices: Devices, seed: int) -> np.ndarray:
    """Between the least share and the whole band, evenly over the logarithm, and some far above."""
    draw = stream(seed, "shares")
    share = devices.least_share() ** draw.uniform(0.0, 1 - 1e-6, len(devices))
    return np.where(draw.random(len(devices)) < 0.1, 30.0 * share, share)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_time_of_least_energy(seed: int) -> None:
    devices = some_devices(seed)
    curve, share = curve_of(devices), some_shares(devices, seed)
    exact = devices.least_energy_j(share)
    np.testing.assert_allclose(curve.energy_j(share), exact, rtol=1e-9)
    assert (curve.energy_j(share) <= exact * (1 + 1e-11)).all()
    compute_s, upload_s, power_w = curve.operation(share)
    np.testing.assert_allclose(devices.energy_j(share, upload_s), exact, rtol=1e-9)
    np.testing.assert_allclose(compute_s, np.minimum(devices.cheapest_s, devices.time_s - upload_s), rtol=1e-9)
    radiated_w = devices.radiating_j(share, upload_s) / upload_s * devices.amplifier_efficiency
    np.testing.assert_allclose(power_w, radiated_w, rtol=1e-9)
    np.testing.assert_allclose(curve.log_energy_j(share), np.log(exact), rtol=1e-9, atol=1e-9)


def best_share(curve: DeviceCurve, log_ratio: np.ndarray, floor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of least E(θ) + μ θ that the power allows, and what it costs, by golden sections."""

    def cost(log_share: np.ndarray) -> np.ndarray:
        share = np.exp(log_share)
        return np.log(curve.energy_j(share) + np.exp(log_ratio) * share)

    share = np.exp(golden(cost, np.log(floor), np.full(log_ratio.shape, 10.0)))
    return share, cost(np.log(share))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_share_at_a_price(seed: int) -> None:
    """Prices that fit shares near and far, and in the jumps between: the cheapest share, time and power at once."""
    devices = some_devices(seed)
    curve, zero = curve_of(devices), np.zeros(len(devices))
    draw = stream(seed, "prices")
    share = some_shares(devices, seed)
    log_ratio = curve.log_saving(share, zero) + draw.choice([0.0, 0.5, -0.5, 3.0, -3.0], len(devices))
    found, floor = curve.share_at_price(log_ratio, zero), devices.least_share()
    reference, log_cost = best_share(curve, log_ratio, floor)
    near = reference < 2e4
    assert near.mean() > 0.9
    able = np.maximum(found, floor)
    own = np.log(curve.energy_j(able) + np.exp(log_ratio) * able)
    assert (own <= log_cost + 1e-11)[near].all()
    np.testing.assert_allclose(able[near], reference[near], rtol=1e-4)
    bought, energy = curve.purchase(log_ratio, zero)
    np.testing.assert_array_equal(bought, found)
    np.testing.assert_allclose(energy, curve.energy_j(found), rtol=1e-9)
    wanted, elasticity = curve.demand(log_ratio, zero)
    np.testing.assert_array_equal(wanted, found)
    less, more = (curve.share_at_price(log_ratio + step, zero) for step in (1e-5, -1e-5))
    smooth = np.abs(np.log(more / found) - np.log(found / less)) < 1e-8
    assert smooth.mean() > 0.9
    np.testing.assert_allclose(elasticity[smooth], np.log(more / less)[smooth] / 2e-5, rtol=1e-3, atol=1e-7)
    weight = draw.uniform(-3, 3, len(devices))
    np.testing.assert_allclose(curve.share_at_price(log_ratio + weight, weight), found, rtol=1e-9)
    np.testing.assert_allclose(curve.purchase(log_ratio + weight, weight)[1], energy, rtol=1e-9)
    np.testing.assert_allclose(curve.demand(log_ratio + weight, weight)[0], found, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_share_at_which_taking_part_just_pays(seed: int) -> None:
    """The least of E(θ) + μ θ over θ, found by a search, is the value; that μ is the break-even price."""
    devices = some_devices(seed)
    curve, draw = curve_of(devices), stream(seed, "values")
    share = some_shares(devices, seed)
    weight = draw.uniform(-3, 3, len(devices))
    price = curve.log_saving(share, weight) + draw.choice([0.0, 0.5, -0.5, 3.0, -3.0], len(devices))
    best = curve.share_at_price(price, weight)
    value = np.log(np.exp(weight) * curve.energy_j(best) + np.exp(price) * best)
    found, at = curve.break_even(value, weight)
    # Where E is the whole value the price is in the last digits of it.
    clear = (np.exp(price) * best > 1e-6 * np.exp(value)) & (best > devices.least_share() * (1 + 1e-9))
    np.testing.assert_allclose(curve.mismatch(best, price, weight)[clear], 0.0, atol=1e-8)
    assert clear.mean() > 0.6
    np.testing.assert_allclose(at[clear], price[clear], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found[clear], best[clear], rtol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_equation_is_solved_to_rounding(seed: int) -> None:
    """π(t) = a θ G(x); there and back from a share to its price; E + μ θ at the break-even; the energy of a share."""
    devices = some_devices(seed)
    devices, draws = (
        devices.take(np.tile(np.arange(len(devices)), 3)),
        stream(seed, "rounding").uniform(0.001, 0.999, 3 * len(devices)),
    )
    share, zero = devices.least_share() ** draws, np.zeros(len(devices))
    curve = curve_of(devices)
    check_balance(devices, share, curve.operation(share)[1])
    log_ratio = curve.log_saving(share, zero)
    np.testing.assert_allclose(curve.share_at_price(log_ratio, zero), share, rtol=2e-13)
    worth = curve.energy_j(share) + share * np.exp(log_ratio)
    found, log_price = curve.break_even(np.log(worth), zero)
    np.testing.assert_allclose(curve.energy_j(found) + found * np.exp(log_price), worth, rtol=5e-13)
    clear = share * np.exp(log_ratio) > 1e-6 * worth
    np.testing.assert_allclose(found[clear], share[clear], rtol=1e-8)
    within = share < 1
    spent = curve.energy_j(share)
    np.testing.assert_allclose(curve.energy_j(curve.share_for_energy(spent))[within], spent[within], rtol=2e-11)


def check_balance(devices: Devices, share: np.ndarray, upload_s: np.ndarray) -> None:
    """Inside all limits a second more costs what it saves: p_c + D'(t) = a θ G(x), in 50 digits."""
    shortest, longest = devices.durations(share)
    calm_s = devices.time_s - devices.cheapest_s
    inside = (upload_s > shortest * (1 + 1e-9)) & (upload_s < longest * (1 - 1e-9))
    inside &= np.abs(upload_s - calm_s) > 1e-9 * upload_s
    assert inside.any()
    exact = map(mpmath.mpf, devices.nats[inside] / share[inside] / upload_s[inside])
    with mpmath.workdps(50):
        saving = np.array([float(mpmath.log((x - 1) * mpmath.exp(x) + 1)) for x in exact])
    clock_w = 2 * devices.work_j_s2 / (devices.time_s - upload_s) ** 3 - devices.static_power_w
    price_w = devices.circuit_power_w + np.where(upload_s > calm_s, clock_w, 0.0)
    noise_w = devices.bandwidth_hz * devices.noise_w_per_hz / (devices.amplifier_efficiency * devices.gain)
    excess = np.log(price_w[inside]) - np.log((noise_w * share)[inside]) - saving
    np.testing.assert_allclose(excess, 0.0, atol=2e-9)


def test_devices_with_nothing_to_send_among_others() -> None:
    """They want no share, and nothing is worth anything to them."""
    devices = some_devices(4)
    silent = np.arange(len(devices)) % 3 == 0
    curve = curve_of(replace(devices, payload_bits=np.where(silent, 0.0, devices.payload_bits)))
    zero, share = np.zeros(len(devices)), some_shares(devices, 4)
    for log_price in (-np.inf, -30.0, 0.0, 30.0, np.inf):
        assert not curve.share_at_price(log_price, zero)[silent].any()
        assert not curve.purchase(log_price, zero)[1][silent].any()
    assert (curve.log_saving(share, zero)[silent] == -np.inf).all() and (
        curve.log_saving(share, zero)[~silent] > -300
    ).all()
    assert (curve.energy_j(share)[silent] == 0).all() and (curve.share_for_energy(zero)[silent] == 0).all()
    compute_s, upload_s, power_w = curve.operation(share)
    assert not upload_s[silent].any() and not power_w[silent].any() and (power_w[~silent] > 0).all()
    np.testing.assert_allclose(compute_s[silent], devices.cheapest_s[silent], rtol=1e-12)
    np.testing.assert_array_equal(curve.priced(zero), ~silent)
    others = curve_of(devices).take(~silent)
    np.testing.assert_allclose(
        curve.demand(-1.0, zero)[0][~silent], others.share_at_price(-1.0, zero[~silent]), rtol=1e-12
    )


# ── Kinks and ends ───────────────────────────────────────────────────────────

LIMITED = {
    "bandwidth_hz": 4.0,
    "noise_w_per_hz": 0.25,
    "gain": np.array([2.0, 1.0, 0.5]),
    "payload_bits": np.array([8.0, 5.0, 6.0]),
    "max_power_w": np.array([40.0, 70.0, 90.0]),
    "min_power_w": np.array([3.0, 7.0, 20.0]),
    "time_s": np.array([2.0, 1.5, 3.0]) + 0.5,
    "fastest_s": 0.5,
}


def power_share(power_w: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The share with which an upload at this power takes so long."""
    s, c = power_w * LIMITED["gain"], LIMITED["payload_bits"] * np.log(2) / 4.0
    return np.array(
        [brentq(lambda t, k=k: t * np.log1p(s[k] / t) * seconds[k] - c[k], 1e-9, 10, xtol=1e-16) for k in range(3)]
    )


@pytest.mark.parametrize("computing", [0.0, 0.5])
def test_the_kink_where_least_power_and_time_both_bind(computing: float) -> None:
    """Every price between the two slopes buys the same share, and breaks even at its own value."""
    seconds = LIMITED["time_s"] - 0.5
    curve = DeviceCurve.of(**LIMITED | {"time_s": seconds + computing, "fastest_s": computing})
    corner = power_share(LIMITED["min_power_w"], seconds)
    zero = np.zeros(3)
    rate = corner * 4.0 * np.log2(1 + LIMITED["min_power_w"] * LIMITED["gain"] / corner)
    np.testing.assert_allclose(rate * seconds, LIMITED["payload_bits"], rtol=1e-12)
    np.testing.assert_allclose(curve.energy_j(corner), LIMITED["min_power_w"] * seconds, rtol=1e-9)
    check_kink(curve, corner)
    steep = curve.log_saving(corner * (1 - 1e-7), zero)
    price = steep - 0.1
    np.testing.assert_array_equal(curve.demand(price, zero)[1], zero)
    # The same where the exponent is small: a share that carries half a nat per symbol.
    wide = 2.0 * LIMITED["payload_bits"] * np.log(2) / (4.0 * seconds)
    gentle = DeviceCurve.of(
        **LIMITED
        | {"time_s": seconds + computing, "fastest_s": computing}
        | {"min_power_w": wide / LIMITED["gain"] * np.expm1(0.5)}
    )
    check_kink(gentle, wide)
    price = gentle.log_saving(wide * (1 + 1e-7), zero) + 0.05
    np.testing.assert_array_equal(gentle.demand(price, zero)[1], zero)


def test_the_kink_where_full_power_ends_just_with_the_cheapest_computation() -> None:
    """Below this share the clock must hurry, which costs something from the first second on."""
    more = {"min_power_w": 0.0, "slowest_s": 1.5, "work_j_s2": np.array([2e4, 1e4, 3e4])}
    share = power_share(LIMITED["max_power_w"], LIMITED["time_s"] - 1.5)
    for circuit_w in (0.0, 1e4):  # the upload ends with the cheapest computation, or as soon as it can
        check_kink(DeviceCurve.of(**LIMITED | more | {"circuit_power_w": circuit_w}), share)


def check_kink(curve: DeviceCurve, kink: np.ndarray) -> None:
    """Every price between the slopes on both sides buys this share, and breaks even at its own value."""
    zero = np.zeros(3)
    steep, flat = curve.log_saving(kink * (1 - 1e-7), zero), curve.log_saving(kink * (1 + 1e-7), zero)
    assert (steep > flat + 1e-3).all()
    energy = curve.energy_j(kink)
    for part in (0.01, 0.3, 0.5, 0.99):
        price = flat + part * (steep - flat)
        share = curve.share_at_price(price, zero)
        np.testing.assert_allclose(share, kink, rtol=1e-12)
        np.testing.assert_allclose(curve.purchase(price, zero)[1], energy, rtol=1e-9)
        np.testing.assert_allclose(curve.mismatch(share, price, zero), zero, atol=1e-9)
        found, log_price = curve.break_even(np.log(energy + kink * np.exp(price)), zero)
        np.testing.assert_allclose(found, kink, rtol=1e-9)
        np.testing.assert_allclose(log_price, price, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(curve.mismatch(kink, steep + 1.0, zero), np.full(3, -1.0), rtol=1e-5)
    np.testing.assert_allclose(curve.mismatch(kink, flat - 1.0, zero), np.full(3, 1.0), rtol=1e-5)
    beside = kink * (1 + 1e-6)
    slope = curve.log_saving(beside, zero)
    np.testing.assert_allclose(curve.mismatch(beside, -slope, zero), 2 * slope, rtol=1e-7)
    np.testing.assert_allclose(curve.mismatch(beside, 0.3, 0.2 + zero), curve.log_saving(beside, zero) - 0.1)
    assert (curve.share_at_price(steep + 0.1, zero) < kink).all()
    assert (curve.share_at_price(flat - 0.1, zero) > kink).all()


def test_the_least_share_for_an_energy() -> None:
    """The least that the power allows where that is paid, none where the whole band is too dear, else exactly paid."""
    curve = DeviceCurve.of(**LIMITED | {"min_power_w": 0.0, "circuit_power_w": np.array([0.0, 0.5, 2.0])})
    floor = power_share(LIMITED["max_power_w"], LIMITED["time_s"] - 0.5)
    dear, cheap = curve.energy_j(floor), curve.energy_j(np.ones(3))
    np.testing.assert_allclose(curve.share_for_energy(dear * (1 + 1e-9)), floor, rtol=1e-12)
    np.testing.assert_allclose(curve.share_for_energy(10 * dear), floor, rtol=1e-12)
    np.testing.assert_array_equal(curve.share_for_energy(cheap * (1 - 1e-9)), [np.inf] * 3)
    np.testing.assert_allclose(curve.share_for_energy(cheap * (1 + 1e-12)), np.ones(3), rtol=1e-7)
    for part in (0.001, 0.2, 0.6, 0.999):
        joules = cheap + part * (dear - cheap)
        share = curve.share_for_energy(joules)
        assert ((share > floor) & (share < 1)).all()
        np.testing.assert_allclose(curve.energy_j(share), joules, rtol=1e-12)
        assert (curve.energy_j(share) <= joules * (1 + 1e-14)).all()
    one_each = curve.share_for_energy(np.array([2 * dear[0], 0.5 * cheap[1], 0.5 * (cheap + dear)[2]]))
    assert one_each[0] == pytest.approx(floor[0]) and one_each[1] == np.inf and floor[2] < one_each[2] < 1
    np.testing.assert_allclose(curve.share_for_energy(cheap), np.ones(3), rtol=1e-7)
    weak = DeviceCurve.of(**LIMITED | {"max_power_w": 1e-3, "min_power_w": 0.0})
    np.testing.assert_array_equal(weak.share_for_energy(np.full(3, 1e-6)), [np.inf] * 3)
    np.testing.assert_array_equal(weak.share_for_energy(np.full(3, 1e9)), np.ones(3))


def test_values_below_the_cheapest_upload_break_even_nowhere() -> None:
    for more in ({"min_power_w": 0.0}, {}, {"min_power_w": 0.0, "circuit_power_w": 0.3}):
        curve = DeviceCurve.of(**LIMITED | more)
        least = np.log(curve.energy_j(np.full(3, 1e12)))
        for below in (least - 1e-3, least - 5.0):
            share, log_price = curve.break_even(below, np.zeros(3))
            np.testing.assert_array_equal(share, [np.inf] * 3)
            np.testing.assert_array_equal(log_price, [-np.inf] * 3)
        share, _ = curve.break_even(least + 1e-3, np.zeros(3))
        assert (share < np.inf).all() and (share > 1).all()


def test_free_joules_and_free_band() -> None:
    """At a price without bounds no device wants anything; at none everything."""
    curve = DeviceCurve.of(**LIMITED | {"min_power_w": 0.0, "circuit_power_w": np.array([0.0, 0.5, 2.0])})
    np.testing.assert_array_equal(curve.share_at_price(0.0, np.full(3, -np.inf)), np.zeros(3))
    np.testing.assert_array_equal(curve.share_at_price(-np.inf, np.zeros(3)), np.full(3, np.inf))
    np.testing.assert_array_equal(curve.energy_j(np.array([0.0, 0.0, 0.0])), np.full(3, np.inf))
    compute_s, upload_s, power_w = curve.operation(np.zeros(3))
    np.testing.assert_array_equal([upload_s, power_w], np.zeros((2, 3)))
    np.testing.assert_array_equal(compute_s, np.full(3, 0.5))
    assert curve.priced(np.array([0.0, -np.inf, 1.0])).tolist() == [True, False, True]


def test_ends_of_the_break_even_and_shares_below_the_least() -> None:
    """Values without bounds or beyond what a float holds, no value at all, and shares below the least."""
    bare = DeviceCurve.of(**LIMITED | {"min_power_w": 0.0})
    seconds = LIMITED["time_s"] - 0.5
    exponent = LIMITED["payload_bits"] * np.log(2) / (4.0 * seconds)
    printed = UploadCurve.of(seconds / LIMITED["gain"], exponent)
    zero = np.zeros(3)
    for log_value in (5.0, 30.0, 705.0, 800.0, 3000.0):
        for found, expected in zip(
            bare.break_even(zero + log_value, zero), printed.break_even(zero + log_value, zero), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-11)
    share, log_price = bare.break_even(np.full(3, -np.inf), zero)
    assert (share == np.inf).all() and (log_price == -np.inf).all()
    assert not bare.break_even(np.full(3, np.inf), zero)[0].any()
    bare.break_even(np.full(3, -np.inf), np.full(3, -np.inf))  # not requested, and no warning
    # Below the least share, where no power is enough, the curve goes on with all the time left.
    below = np.array([1e-3, 1e-2, 0.02])
    np.testing.assert_allclose(bare.energy_j(below), printed.energy_j(below), rtol=1e-12)
    np.testing.assert_allclose(bare.share_at_price(bare.log_saving(below, zero), zero), below, rtol=1e-12)


def test_no_share_and_no_price_makes_whole_devices_fail() -> None:
    """Even a caller that lets NumPy raise on an underflow or overflow sees nothing but numbers."""
    curve = curve_of(some_devices(5))
    zero = np.zeros(len(curve.need))
    with np.errstate(all="raise"):
        for share in (1e-300, 1e-12, 1.0, 1e9):
            assert not np.isnan(curve.energy_j(zero + share)).any()
            assert not np.isnan(curve.log_energy_j(zero + share)).any()
        for log_price in (-300.0, 0.0, 700.0):
            assert not np.isnan(curve.share_at_price(log_price, zero)).any()
        tiny = DeviceCurve.of(**LIMITED | {"noise_w_per_hz": 1e-305, "payload_bits": 1e-4, "min_power_w": 0.0})
        assert (tiny.energy_j(np.ones(3)) > 0).all()


def test_an_upload_that_ends_just_with_the_cheapest_computation() -> None:
    """Circuits are cheap and a faster clock is dear: many shares have the same time, and break even with it."""
    curve = DeviceCurve.of(
        **LIMITED
        | {"min_power_w": 0.0, "slowest_s": 1.5, "work_j_s2": 2e4, "circuit_power_w": np.array([0.1, 0.5, 2.0])}
    )
    calm_s, zero = LIMITED["time_s"] - 1.5, np.zeros(3)
    for share in (np.array([0.25, 0.7, 0.12]), np.array([0.4, 1.1, 0.3])):
        price = curve.log_saving(share, zero)
        even, _ = curve.break_even(np.log(curve.energy_j(share) + share * np.exp(price)), zero)
        for one in (share, curve.share_at_price(price, zero), even):
            np.testing.assert_allclose(one, share, rtol=1e-9)
            np.testing.assert_allclose(curve.operation(one)[1], calm_s, rtol=1e-12)


def test_circuits_that_outweigh_the_clock_by_far_leave_the_time_its_digits() -> None:
    """p_c = a θ G(1), so t = c/θ = 2 s; what the clock adds to it is in the twelfth digit. The second is ordinary."""
    both = DeviceCurve.of(
        bandwidth_hz=4.0,
        noise_w_per_hz=0.25,
        gain=np.array([1e-12, 1.0]),
        payload_bits=4.0 / np.log(2),
        max_power_w=1e15,
        time_s=4.0,
        fastest_s=1.0,
        slowest_s=3.0,
        work_j_s2=1.0,
        circuit_power_w=np.array([0.5e12, 0.0]),
    )
    first = both.take(np.array([0]))
    for curve in (both, first):
        share = np.full(len(curve.devices.noise_w), 0.5)
        assert curve.operation(share)[1][0] == pytest.approx(2.0, rel=1e-11)
        price = curve.log_saving(share, 0 * share)
        assert curve.operation(curve.share_at_price(price, 0 * share))[1][0] == pytest.approx(2.0, rel=1e-11)


# ── Shapes ───────────────────────────────────────────────────────────────────


def test_fleets_of_many_pieces_and_batches_are_what_their_devices_are() -> None:
    """Beyond 8192 devices in pieces; a batch, a column of prices, and one number for all devices."""
    devices = some_devices(3)
    one, count = curve_of(devices), len(devices)
    repeats = 2 * 8192 // count + 2
    index = np.tile(np.arange(count), repeats)
    many = one.take(index)
    share = some_shares(devices, 3)
    zero = np.zeros(count)
    price = one.log_saving(share, zero)
    np.testing.assert_array_equal(many.energy_j(share[index]), one.energy_j(share)[index])
    for found, expected in zip(many.operation(share[index]), one.operation(share), strict=True):
        np.testing.assert_array_equal(found, expected[index])
    np.testing.assert_allclose(many.share_at_price(price[index], zero[index]), one.share_at_price(price, zero)[index])


def test_batches_columns_of_prices_and_single_devices_are_what_their_devices_are() -> None:
    devices = some_devices(3)
    one, count = curve_of(devices), len(devices)
    share, zero = some_shares(devices, 3), np.zeros(count)
    price = one.log_saving(share, zero)
    members = stream(3, "members").random((3, count)) < 0.5
    batch = one.only(members)
    np.testing.assert_allclose(
        batch.share_at_price(price, zero), np.where(members, one.share_at_price(price, zero), 0.0), rtol=1e-12
    )
    np.testing.assert_array_equal(batch.energy_j(share), np.where(members, one.energy_j(share), 0.0))
    np.testing.assert_array_equal(batch.take(np.array([2])).energy_j(share)[0], batch.energy_j(share)[2])
    levels = np.array([[-2.0], [0.0], [3.0]])
    table = one.share_at_price(levels, zero)
    assert table.shape == (3, count)
    for row, level in zip(table, levels[:, 0], strict=True):
        np.testing.assert_allclose(row, one.share_at_price(level, zero), rtol=1e-12)
    first = one.take(np.array([0]))
    np.testing.assert_allclose(first.energy_j(share), [first.energy_j(share[[k]])[0] for k in range(count)], rtol=1e-12)
    for k in range(count):
        lone = one.take(np.array([k]))
        each = [lone.share_at_price(price[k] + step, np.zeros(1))[0] for step in (-4.0, 0.0, 4.0)]
        np.testing.assert_allclose(lone.share_at_price(price[k] + [-4.0, 0.0, 4.0], np.zeros(1)), each, rtol=1e-12)
    grid = np.stack([share, 0.9 * share]).reshape(2, 1, count)
    np.testing.assert_array_equal(one.energy_j(grid)[1, 0], one.energy_j(0.9 * share))
