"""The cost model against hand-computed numbers and against itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.wireless.costs import (
    broadcast_time,
    compute_energy,
    compute_time,
    in_outage,
    transmit_power,
    uplink_rate,
    upload_energy,
    upload_time,
)

B, N0 = 5e6, 10 ** (-20.4)


def test_the_papers_mnist_device() -> None:
    # 600 samples, 5 steps, 550,346 FLOPs each, at 1.2 GHz with 4 FLOPs per cycle and κ = 1e-27.
    work = 5 * 600 * 550_346
    assert compute_time(work, 1.2e9, 4.0) == pytest.approx(work / 4.8e9)
    assert compute_energy(work, 1.2e9, 4.0, 1e-27) == pytest.approx(0.594, abs=1e-3)


def test_rate_is_shannons() -> None:
    # 1 MHz of band and a signal-to-noise ratio of 7: 3 bits per second and hertz.
    power = 7 * 1e6 * N0 / 1e-9
    assert uplink_rate(0.2, power, 1e-9, B, N0) == pytest.approx(3e6)
    assert uplink_rate(0.0, 1.0, 1e-9, B, N0) == 0.0
    assert upload_time(3e6, 0.0) == np.inf
    assert upload_time(0.0, 0.0) == 0.0


@settings(max_examples=60)
@given(
    share=st.floats(1e-4, 1.0),
    bits=st.floats(1.0, 1e6),
    time_s=st.floats(1e-2, 100.0),
    log_gain=st.floats(-14, -6),
)
def test_power_ends_exactly_in_time(share: float, bits: float, time_s: float, log_gain: float) -> None:
    """(24) inverts the rate, and (13)'s two forms of the energy agree."""
    gain = 10.0**log_gain
    power = transmit_power(share, bits, time_s, gain, B, N0)
    if not np.isfinite(power):
        return
    rate = uplink_rate(share, power, gain, B, N0)
    assert upload_time(bits, rate) == pytest.approx(time_s, rel=1e-9)
    band = share * B * time_s
    assert upload_energy(power, time_s) == pytest.approx(band * N0 / gain * np.expm1(bits * np.log(2) / band))
    assert not in_outage(share, power, bits, time_s, gain, B, N0)
    assert in_outage(share, power, bits, time_s, gain * 0.999, B, N0)


@pytest.mark.parametrize(
    "change",
    [
        *[{name: zero} for name in ("share", "upload_time_s", "gain") for zero in (0.0, -0.0)],
        {"upload_time_s": -1.0},
        {"share": 1e-9},
    ],
)
def test_what_cannot_be_sent_needs_infinite_power(change: dict[str, float]) -> None:
    case = {"share": 0.1, "payload_bits": 1e5, "upload_time_s": 1.0, "gain": 1e-9} | change
    assert transmit_power(**case, bandwidth_hz=B, noise_w_per_hz=N0) == np.inf


def test_broadcast_waits_for_the_weakest() -> None:
    gains = np.array([1e-9, 1e-12, 1e-10])
    slow = 1e6 / float(uplink_rate(1.0, 40.0, 1e-12, B, N0))
    assert broadcast_time(1e6, 40.0, gains, B, N0) == pytest.approx(slow)
    assert broadcast_time(1e6, 40.0, gains[:0], B, N0) == 0.0


# A band of 2 Hz and a signal-to-noise ratio of 3 in half of it: exactly 2 bits per second.
EXACT = {"share": 0.5, "power_w": 1.0, "true_gain": 3.0, "bandwidth_hz": 2.0, "noise_w_per_hz": 1.0}


@pytest.mark.parametrize(
    ("late", "lost"), [(0.0, False), (0.7e-9, False), (1e-9, False), (1.001e-9, True), (1.3e-9, True)]
)
def test_an_upload_may_be_late_by_a_relative_1e_9_and_no_more(late: float, lost: bool) -> None:
    for time_s in (1.0, 100.0):
        bits = 2.0 * (time_s * (1 + late))
        assert bool(in_outage(payload_bits=bits, upload_time_s=time_s, **EXACT)) == lost


def test_less_than_a_bit_at_less_than_a_bit_per_second_is_a_time_too() -> None:
    assert upload_time([0.5, 0.5, 0.0, 0.5], [0.25, 2.0, 0.25, 0.0]).tolist() == [2.0, 0.25, 0.0, np.inf]
    assert broadcast_time(0.5, 3.0, [9.0, 1.0], 1.0, 1.0) == 0.25
    assert uplink_rate(0.25, 0.25, 3.0, 1.0, 1.0) == 0.5  # in a band of less than a hertz
    assert uplink_rate(1.0, 1.0, 3e-9, 1.0, 1e-9) == pytest.approx(2.0)


def test_nothing_to_send_needs_no_power_whatever_else_is_missing() -> None:
    """No share, no time, no gain, or none of the three."""
    for share, time_s, gain in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0), (1, -1, 1), (1, 1, 1)]:
        assert transmit_power(share, 0, time_s, gain, B, N0) == 0.0


def test_half_a_bit_needs_the_power_of_half_a_bit() -> None:
    """(θ B N₀ / h) (2^(Q / (T θ B)) − 1), where each of band, time and gain is below 1."""
    assert transmit_power(0.25, 0.5, 0.5, 0.5, 1.0, 3.0) == pytest.approx(0.25 * 3.0 / 0.5 * (2**4 - 1))


def test_whole_numbers_are_reckoned_as_real_ones() -> None:
    """A clock's square does not fit an integer."""
    assert compute_energy(10**9, 10**10, 4, 1) == pytest.approx(2.5e28)
    assert compute_time(10**20, 10**10, 4) == pytest.approx(2.5e9)
    assert upload_energy(2, 3).dtype == np.float64
    assert upload_time(1, 4) == 0.25


def test_a_clock_beyond_all_bounds_takes_no_time_and_every_joule() -> None:
    assert compute_time(1e9, 1e200, 1e200) == 0.0
    assert compute_energy(1e9, 1e200, 1.0, 1e-27) == np.inf
