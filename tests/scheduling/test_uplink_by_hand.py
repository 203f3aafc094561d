"""Uplinks of two or three devices, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from kfl.scheduling import Uplink
from tests.reference.uplinks import device_uplink, flat

pytestmark = pytest.mark.filterwarnings("error")

# Bandwidth · noise is 1 W, so powers are rates of growth: p = θ/h · (2^{bits / (θ B t)} − 1).
BAND_HZ, NOISE = 4.0, 0.25


def printed(**other: Any) -> Uplink:
    given: dict[str, Any] = {
        "bandwidth_hz": BAND_HZ,
        "noise_w_per_hz": NOISE,
        "gain": np.array([2.0, 1.0, 0.5]),
        "payload_bits": np.array([8.0, 4.0, 6.0]),
        "upload_time_s": np.array([2.0, 0.5, 3.0]),
        "max_power_w": np.array([3.0, 7.0, 20.0]),
    }
    return device_uplink(**given | other)


def whole(**other: Any) -> Uplink:
    given: dict[str, Any] = {
        "fastest_s": np.array([1.0, 2.0, 0.5]),
        "slowest_s": np.array([1.0, 4.0, 0.5]),
        "work_j_s2": np.array([3.0, 200.0, 1.0]),
        "static_power_w": np.array([0.5, 0.0, 0.25]),
        "circuit_power_w": np.array([0.125, 0.25, 0.5]),
        "amplifier_efficiency": np.array([0.5, 0.25, 0.8]),
        "min_power_w": np.zeros(3),
        "once_j": np.array([10.0, 20.0, 30.0]),
        "receiving_j": np.array([4.0, 5.0, 6.0]),
        "cpu_hz": np.array([1e9, 2e9, 3e9]),
    }
    return device_uplink(**flat(printed()) | given | other)


# ── The printed model ────────────────────────────────────────────────────────


def test_the_power_of_a_share_and_what_it_spends_in_all_the_time_left() -> None:
    """A half of the band is 2 Hz: 8 bits in 2 s need 2² − 1 = 3 times the noise of 0.5 W over a gain of 2."""
    link, half = printed(), np.full(3, 0.5)
    np.testing.assert_allclose(link.power_w(half), [0.25 * 3, 0.5 * 15, 1.0 * 1])
    np.testing.assert_allclose(link.curve.energy_j(half), [1.5, 3.75, 3.0])
    np.testing.assert_allclose(link.snr, [6.0, 7.0, 10.0])
    np.testing.assert_allclose(link.most_energy_j(), [6.0, 3.5, 60.0])
    np.testing.assert_allclose(link.energy_within_limits(half), [1.5, np.inf, 3.0])
    np.testing.assert_array_equal(link.base_energy_j(np.array([7.0, 8.0, 9.0])), [7.0, 8.0, 9.0])


def test_the_least_share_is_where_the_power_is_the_largest() -> None:
    link = printed()
    floor = link.power_floor()
    np.testing.assert_allclose(link.power_w(floor), link.max_power_w, rtol=1e-12)
    by_search = brentq(lambda share: link.power_w(np.full(3, share))[1] - 7.0, 0.1, 1.0, xtol=1e-15)
    assert floor[1] == pytest.approx(by_search, rel=1e-12)


def test_a_share_at_the_limit_passes_and_one_below_does_not() -> None:
    """Within a billionth of the largest power is at the limit; the energy of such a share is its own."""
    link = printed()
    floor = link.power_floor()
    np.testing.assert_allclose(link.energy_within_limits(floor), link.most_energy_j(), rtol=1e-12)
    for excess, able in ((0.9e-9, True), (1.5e-9, False)):
        tight = replace(link, max_power_w=link.power_w(np.full(3, 0.5)) / (1 + excess))
        assert np.isfinite(tight.energy_within_limits(np.full(3, 0.5))).tolist() == [able] * 3
    power_w = link.power_w(np.full(3, 0.5))
    exact = replace(link, max_power_w=power_w / (1 + 1e-9))
    at = exact.max_power_w * (1 + 1e-9) == power_w
    assert at.any() and np.isfinite(exact.energy_within_limits(np.full(3, 0.5)))[at].all()
    endless = replace(link, max_power_w=np.full(3, np.inf), time_s=np.array([2.0, -1.0, 3.0]))
    np.testing.assert_array_equal(endless.energy_within_limits(np.zeros(3)), [np.inf] * 3)


def test_devices_without_time_gain_or_payload() -> None:
    link = printed(upload_time_s=np.array([0.0, -1.0, 1.0]), gain=np.array([1.0, 1.0, 0.0]))
    half = np.full(3, 0.5)
    np.testing.assert_array_equal(link.power_floor(), [np.inf] * 3)
    np.testing.assert_array_equal(link.power_w(half), [np.inf] * 3)
    np.testing.assert_array_equal(link.take(slice(1, 3)).energy_within_limits(half[1:]), [np.inf] * 2)
    assert np.isfinite(link.curve.log_scale[2]), "a device that is not heard has a scale all the same"
    assert not link.curve.priced(np.zeros(3))[:2].any(), "no time: no scale, and no part in the price of the band"
    silent = printed(payload_bits=np.zeros(3))
    np.testing.assert_array_equal(silent.power_floor(), np.zeros(3))
    np.testing.assert_array_equal(silent.curve.energy_j(half), np.zeros(3))
    powerful = printed(max_power_w=np.full(3, 1e300), gain=np.full(3, 1e300))
    np.testing.assert_array_equal(powerful.snr, [np.inf] * 3)


def test_how_printed_devices_run() -> None:
    """Without joules by the curve the power says them; with them the power is what they give in the time left."""
    link = printed(payload_bits=np.array([8.0, 0.0, 6.0]))
    run = link.operation(np.array([0.5, 0.0, 1.0]))
    np.testing.assert_allclose(run.power_w, [0.75, 0.0, 2.0 * (2**0.5 - 1)])
    np.testing.assert_array_equal(run.upload_time_s, [2.0, 0.0, 3.0])
    np.testing.assert_allclose(run.upload_energy_j, [1.5, 0.0, 6.0 * (2**0.5 - 1)])
    assert run.compute_time_s is None and run.compute_energy_j is None and run.clock_hz is None
    known = link.operation(np.array([0.5, 0.0, 1.0]), np.array([1.0, 0.0, 6.0]))
    np.testing.assert_array_equal(known.upload_energy_j, [1.0, 0.0, 6.0])
    np.testing.assert_array_equal(known.power_w, [0.5, 0.0, 2.0])
    np.testing.assert_array_equal(known.upload_time_s, [2.0, 0.0, 3.0])
    late = replace(link, time_s=np.array([0.0, -2.0, 0.5]))
    run = late.operation(np.array([0.0, 0.0, 0.4]), np.array([0.0, 3.0, 1.0]))
    np.testing.assert_array_equal(run.power_w, [0.0, 3.0, 2.0])
    np.testing.assert_array_equal(run.upload_time_s, [0.0, 0.0, 0.5])


def test_some_devices_and_plain_batches() -> None:
    link = printed()
    some = link.take(np.array([2, 0]))
    for name in flat(link):
        all_of, taken = getattr(link, name), getattr(some, name)
        np.testing.assert_array_equal(taken, all_of[[2, 0]] if np.ndim(all_of) else all_of)
    np.testing.assert_array_equal(some.curve.energy_j(np.full(2, 0.5)), link.curve.energy_j(np.full(3, 0.5))[[2, 0]])
    stacked = Uplink(
        BAND_HZ,
        NOISE,
        *(np.arange(12.0).reshape(2, 2, 3) + k for k in range(4)),
    )
    rows = stacked.rows()
    assert rows.bandwidth_hz == BAND_HZ and rows.gain.shape == rows.max_power_w.shape == (4, 3)
    np.testing.assert_array_equal(rows.payload_bits, np.arange(12.0).reshape(4, 3) + 1)


# ── Whole devices ────────────────────────────────────────────────────────────


def test_how_whole_devices_run_and_where_their_joules_go() -> None:
    """The first and last have one clock; the second may take up to 4 s for what takes 2, of 2.5 s in all."""
    link, share = whole(), np.array([0.5, 0.6, 1.0])
    run = link.operation(share)
    assert run.compute_time_s is not None and run.compute_energy_j is not None and run.clock_hz is not None
    np.testing.assert_allclose(run.compute_time_s + run.upload_time_s <= [3.0, 2.5 + 1e-12, 3.5], True)
    np.testing.assert_allclose(run.compute_time_s[[0, 2]], [1.0, 0.5], rtol=1e-12)
    assert 2.0 < run.compute_time_s[1] < 2.5, "the second slows down"
    np.testing.assert_allclose(run.clock_hz * run.compute_time_s, [1e9, 4e9, 1.5e9], rtol=1e-12)
    power_w = share / link.gain * np.expm1(np.log(2) * link.payload_bits / (share * BAND_HZ * run.upload_time_s))
    np.testing.assert_allclose(run.power_w, power_w, rtol=1e-12)
    np.testing.assert_allclose(link.power_w(share), power_w, rtol=1e-12)
    parts = link.parts_j(run.compute_time_s, run.upload_time_s, run.power_w)
    expected = {
        "computing": link.device.work_j_s2 / run.compute_time_s**2,
        "static": np.array([0.5, 0.0, 0.125]),
        "radiating": power_w * run.upload_time_s * [2.0, 4.0, 1.25],
        "circuits": run.upload_time_s * [0.125, 0.25, 0.5],
        "tail": np.array([6.0, 15.0, 24.0]),
        "receiving": np.array([4.0, 5.0, 6.0]),
    }
    assert list(parts) == list(expected)
    for name, joules in expected.items():
        np.testing.assert_allclose(parts[name], joules, rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(run.compute_energy_j, parts["computing"] + parts["static"], rtol=1e-14)
    np.testing.assert_allclose(
        run.upload_energy_j, parts["radiating"] + parts["circuits"] + link.device.once_j, rtol=1e-14
    )
    again = link.operation(share, np.full(3, np.nan))
    np.testing.assert_array_equal(again.power_w, run.power_w)
    np.testing.assert_array_equal(again.upload_time_s, run.upload_time_s)


@pytest.mark.parametrize("device", range(3))
def test_a_whole_device_takes_the_cheapest_time(device: int) -> None:
    link, share = whole(), np.array([0.5, 0.6, 1.0])
    left_s, fastest_s = link.upload_time_s[device], link.device.fastest_s[device]
    eta = link.device.amplifier_efficiency[device]

    def joules(seconds: float) -> float:
        """Beyond the cheapest computation; that of the second takes all of the 2.5 s."""
        computing_s = fastest_s if device != 1 else min(4.0, 2.5 - seconds)
        computing = link.device.work_j_s2[device] / computing_s**2 + link.device.static_power_w[device] * computing_s
        share_hz = share[device] * BAND_HZ
        watts = share_hz * NOISE / link.gain[device] * (2 ** (link.payload_bits[device] / (share_hz * seconds)) - 1)
        return computing + seconds * (watts / eta + link.device.circuit_power_w[device])

    best = minimize_scalar(joules, bounds=(0.01, left_s), method="bounded", options={"xatol": 1e-9})
    base = link.device.work_j_s2 / np.array([1.0, 2.5, 0.5]) ** 2 + link.device.static_power_w * [1.0, 2.5, 0.5]
    assert link.base_energy_j(np.full(3, np.nan))[device] == pytest.approx(base[device] + link.device.once_j[device])
    assert link.curve.base_j[device] == pytest.approx(base[device])
    assert link.curve.energy_j(share)[device] == pytest.approx(best.fun - base[device], rel=1e-6)


def test_a_whole_device_below_its_least_share_cannot_send() -> None:
    link = whole()
    floor = link.power_floor()
    np.testing.assert_allclose(floor, printed().power_floor(), rtol=1e-12)
    at_floor = link.curve.energy_j(floor)
    for factor, able in ((1.0, True), (1 - 0.9e-9, True), (1 - 1e-9, True), (1 - 1.5e-9, False)):
        energy_j = link.energy_within_limits(floor * factor)
        np.testing.assert_array_equal(energy_j, at_floor if able else np.full(3, np.inf))
    np.testing.assert_array_equal(link.energy_within_limits(1.01 * floor), link.curve.energy_j(1.01 * floor))


def test_the_limits_of_a_whole_device_reach_its_curve() -> None:
    """A clock that is half as slow at most; an upload at the least power, which is more than the share needs."""
    link = whole(fastest_s=np.full(3, 0.2), slowest_s=np.full(3, 0.4), static_power_w=np.zeros(3))
    run = link.operation(np.full(3, 1.0))
    assert run.compute_time_s is not None and run.clock_hz is not None
    assert ((run.compute_time_s >= 0.2) & (run.compute_time_s <= 0.4)).all() and (run.compute_time_s > 0.3).any()
    np.testing.assert_allclose(run.clock_hz * run.compute_time_s, 0.2 * link.device.cpu_hz, rtol=1e-12)
    np.testing.assert_allclose(link.curve.devices.end_s, link.upload_time_s, rtol=1e-12)
    loud = whole(min_power_w=np.array([2.9, 6.9, 19.0])).operation(np.full(3, 1.0))
    np.testing.assert_allclose(loud.power_w[[0, 2]], [2.9, 19.0], rtol=1e-12)
    with np.errstate(all="raise"):
        parts = link.parts_j(np.zeros(3), np.zeros(3), np.zeros(3))
    np.testing.assert_array_equal(parts["computing"], [np.inf] * 3)


def test_a_device_that_does_not_compute_runs_at_its_fastest_clock() -> None:
    idle = whole(fastest_s=np.zeros(3), slowest_s=np.zeros(3), work_j_s2=np.zeros(3))
    run = idle.operation(np.full(3, 0.9))
    assert run.clock_hz is not None and run.compute_energy_j is not None
    np.testing.assert_array_equal(run.clock_hz, idle.device.cpu_hz)
    np.testing.assert_array_equal(run.compute_energy_j, np.zeros(3))


def test_a_device_that_tells_no_clock_receives_nothing() -> None:
    link = whole()
    bare = replace(link, device=replace(link.device, tail_j=link.device.once_j, receiving_j=0.0, cpu_hz=np.nan))
    run = bare.operation(np.full(3, 0.9))
    assert run.compute_time_s is not None and run.clock_hz is not None and np.isnan(run.clock_hz).all()
    parts = bare.parts_j(run.compute_time_s, run.upload_time_s, run.power_w)
    np.testing.assert_array_equal(parts["receiving"], np.zeros(3))
    np.testing.assert_array_equal(parts["tail"], bare.device.once_j)
