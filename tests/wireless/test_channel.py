import dataclasses

import numpy as np
import pytest
from scipy import stats

from kfl.core.errors import ConfigError
from kfl.wireless import Cell, CellConfig, Rayleigh, Rician
from kfl.wireless.channel import path_gain
from kfl.wireless.costs import transmit_power
from kfl.wireless.mobility import place_devices


def gains_at(radio, seed, round_index, distance, previous=None):
    """The channel of devices at these distances, all in one direction."""
    start = np.stack([distance, np.zeros(len(distance))], axis=1)
    return radio.channel.gains(radio, seed, round_index, start, previous)


def test_devices_are_uniform_over_the_disc() -> None:
    radio = CellConfig(min_distance_m=100.0)
    distance = np.hypot(*place_devices(radio, 3, 4000).T)
    assert distance.min() >= 100 and distance.max() <= 500
    area = (distance**2 - 100**2) / (500**2 - 100**2)
    assert stats.kstest(area, "uniform").pvalue > 1e-3
    angle = np.arctan2(*place_devices(radio, 3, 4000).T)
    assert stats.kstest((angle / np.pi + 1) / 2, "uniform").pvalue > 1e-3


def test_more_devices_move_nobody() -> None:
    few, many = Cell.build(CellConfig(), 5, 1), Cell.build(CellConfig(), 50, 1)
    assert (few.position_m == many.position_m[:5]).all()
    assert (few.hardware.cpu_hz == many.hardware.cpu_hz[:5]).all()
    assert (few.link_state(4, 1e9, 1e4).uplink.gain == many.link_state(4, 1e9, 1e4).uplink.gain[:5]).all()


def test_path_gain_is_the_papers() -> None:
    assert path_gain(CellConfig(), np.array([1.0, 500.0])) == pytest.approx([1e-3, 1e-3 / 500**2])


@pytest.mark.parametrize("rho", [0.0, 0.95])
def test_fading_power_is_exponential_in_every_round(rho: float) -> None:
    radio = CellConfig(fading_correlation=rho)
    power = np.abs(radio.channel.fading(radio, 5, 20, 4000).coefficient) ** 2
    assert stats.kstest(power, "expon").pvalue > 1e-3


def test_fading_is_correlated_as_asked() -> None:
    radio = CellConfig(fading_correlation=0.8)
    one, two = (
        radio.channel.fading(radio, 0, 3, 20_000).coefficient,
        radio.channel.fading(radio, 0, 5, 20_000).coefficient,
    )
    correlation = np.mean(two * one.conj())
    assert abs(correlation - 0.8**2) < 0.03


def test_without_fading_the_gain_is_the_path() -> None:
    distance = np.array([10.0, 300.0])
    gains = gains_at(CellConfig(fading="none"), 0, 3, distance)
    assert (gains.true_gain == path_gain(CellConfig(), distance)).all()
    assert (gains.known_gain == gains.true_gain).all()


def test_a_channel_without_fading_has_nothing_to_correlate_and_nothing_to_estimate() -> None:
    CellConfig(fading="none").validate()
    for name in ("fading_correlation", "channel_error"):
        with pytest.raises(ConfigError, match=f"{name} is 0.25, but must be 0 when fading is 'none'"):
            CellConfig(fading="none", **{name: 0.25}).validate()
    coefficient = CellConfig(fading="none").channel.fading(CellConfig(), 0, 3, 2).coefficient
    assert coefficient.dtype == np.complex128 and coefficient.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("model", [Rayleigh(), Rician(k_factor_db=0.0)])
def test_a_step_goes_on_from_the_state_that_it_is_given(model) -> None:
    """g_t = ρ g_(t−1) + …: with another state, the difference is carried on; a state is kept only where it counts."""
    cell = CellConfig(fading=model, fading_correlation=0.5)
    state = model.fading(cell, 3, 4, 6)
    assert set(state.memory) == ({"scattered"} if isinstance(model, Rician) else set())
    moved = dataclasses.replace(
        state,
        coefficient=state.coefficient + 1j,
        memory={name: array + 1j for name, array in state.memory.items()},
    )
    share = np.sqrt(0.5) if isinstance(model, Rician) else 1.0
    for later in (4, 5, 7):
        shift = model.fading(cell, 3, later, 6, moved).coefficient - model.fading(cell, 3, later, 6).coefficient
        np.testing.assert_allclose(shift, 1j * share * 0.5 ** (later - 4), rtol=1e-9)
    assert not model.fading(CellConfig(fading=model), 3, 4, 6).memory


def test_the_servers_estimate() -> None:
    """The estimate is unbiased, its error has the stated variance, and it leaves the true channel alone."""
    distance = np.ones(40_000)
    clear = gains_at(CellConfig(reference_gain_db=0.0), 2, 0, distance)
    radio = CellConfig(reference_gain_db=0.0, channel_error=0.3)
    noisy = gains_at(radio, 2, 0, distance)
    assert (noisy.true_gain == clear.true_gain).all()
    assert noisy.known_gain.mean() == pytest.approx(1.0, abs=0.02)
    # Where the server expects h, the mean of the true gain is h.
    high = noisy.known_gain > np.median(noisy.known_gain)
    for part in (high, ~high):
        assert noisy.true_gain[part].mean() == pytest.approx(noisy.known_gain[part].mean(), rel=0.03)
    # var(|g|² given ĝ) averages to 1 − (1 − σ²)²: law of total variance for an exponential.
    assert (noisy.true_gain - noisy.known_gain).var() == pytest.approx(1 - 0.7**2, rel=0.05)
    margin = gains_at(dataclasses.replace(radio, channel_margin_db=10.0), 2, 0, distance)
    assert margin.known_gain == pytest.approx(noisy.known_gain / 10)


def test_a_margin_saves_uploads() -> None:
    lost = []
    for margin in (0.0, 3.0, 10.0):
        cell = Cell.build(CellConfig(channel_error=0.1, channel_margin_db=margin), 500, 0)
        link = cell.link_state(0, 1e9, 20480)
        share = np.full(500, 1 / 500)
        power = transmit_power(
            share,
            link.uplink.payload_bits,
            link.uplink.upload_time_s,
            link.uplink.gain,
            link.uplink.bandwidth_hz,
            link.uplink.noise_w_per_hz,
        )
        lost.append(link.outage(share, power, link.uplink.upload_time_s).mean())
    assert lost[0] > 0.3 > lost[1] > lost[2]
    perfect = Cell.build(CellConfig(), 500, 0).link_state(0, 1e9, 20480)
    share = np.full(500, 1 / 500)
    power = transmit_power(
        share,
        perfect.uplink.payload_bits,
        perfect.uplink.upload_time_s,
        perfect.uplink.gain,
        perfect.uplink.bandwidth_hz,
        perfect.uplink.noise_w_per_hz,
    )
    assert not perfect.outage(share, power, perfect.uplink.upload_time_s).any()
