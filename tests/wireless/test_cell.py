"""The cell as a whole, and which regime each preset is in."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.units import dbm_to_watt
from kfl.wireless import PRESETS, Cell, CellConfig
from kfl.wireless.costs import transmit_power

WORK = 5 * 600 * 550_346  # the paper's MNIST device: 5 steps over 600 samples of the MLP
KNOWLEDGE, MODEL = 640 * 32, 550_346 * 32


def _upload_over_computation(preset: str, bits: int, devices: int = 10) -> tuple[float, float]:
    """Median of E_U / E_L over the devices that can send at an equal share, and how many can."""
    cell = Cell.build(PRESETS[preset], 300, 1)
    link = cell.link_state(0, WORK, bits)
    power = transmit_power(
        1 / devices,
        link.uplink.payload_bits,
        link.uplink.upload_time_s,
        link.uplink.gain,
        link.uplink.bandwidth_hz,
        link.uplink.noise_w_per_hz,
    )
    able = power <= link.uplink.max_power_w
    ratio = power[able] * link.uplink.upload_time_s[able] / link.compute_energy_j[able]
    return float(np.median(ratio)) if able.any() else np.nan, float(able.mean())


def test_regimes() -> None:
    """Computation decides everything in the paper's cell; in a small one, whole models cost as much."""
    for preset in ("paper-mnist", "paper-cifar10"):
        ratio, able = _upload_over_computation(preset, KNOWLEDGE)
        assert ratio < 1e-6 and able == 1.0
    assert _upload_over_computation("nb-iot", KNOWLEDGE)[1] > 0.9
    assert _upload_over_computation("nb-iot", MODEL)[1] == 0.0  # a whole model never gets through
    assert _upload_over_computation("small-cell", KNOWLEDGE)[0] < 1e-3
    ratio, able = _upload_over_computation("small-cell", MODEL)
    assert ratio > 0.5 and able > 0.5


def test_the_papers_upload_is_about_1e_8_joule() -> None:
    link = Cell.build(PRESETS["paper-mnist"], 300, 1).link_state(0, WORK, KNOWLEDGE)
    fair = transmit_power(
        0.1,
        KNOWLEDGE,
        link.uplink.upload_time_s,
        link.uplink.gain,
        link.uplink.bandwidth_hz,
        link.uplink.noise_w_per_hz,
    )
    assert 1e-9 < float(np.median(fair * link.uplink.upload_time_s)) < 1e-7


def test_one_flop_per_cycle_breaks_the_papers_deadline() -> None:
    cell = Cell.build(dataclasses.replace(PRESETS["paper-mnist"], flops_per_cycle=1.0), 50, 0)
    assert (cell.link_state(0, WORK, KNOWLEDGE).uplink.upload_time_s <= 0).all()


def test_observation_is_a_pure_function() -> None:
    cell = Cell.build(CellConfig(), 8, 4)
    one, two = cell.link_state(3, WORK, KNOWLEDGE), cell.link_state(3, WORK, KNOWLEDGE)
    assert (one.uplink.gain == two.uplink.gain).all() and (
        one.uplink.gain != cell.link_state(4, WORK, KNOWLEDGE).uplink.gain
    ).all()
    assert one.uplink.upload_time_s + one.uplink.device.fastest_s == pytest.approx(1.0)
    assert cell.budget_j(200) == pytest.approx(np.full(8, 20.0))


def test_downlink_time_comes_off_the_deadline() -> None:
    free = Cell.build(CellConfig(), 8, 4)
    cell = Cell.build(CellConfig(downlink_power_dbm=46.0), 8, 4)
    assert (
        cell.link_state(0, WORK, KNOWLEDGE).uplink.upload_time_s
        == free.link_state(0, WORK, KNOWLEDGE).uplink.upload_time_s
    ).all()
    link = cell.link_state(0, WORK, KNOWLEDGE, broadcast_bits=KNOWLEDGE)
    lost = free.link_state(0, WORK, KNOWLEDGE).uplink.upload_time_s - link.uplink.upload_time_s
    everyone = np.ones(8, dtype=bool)
    assert lost == pytest.approx(np.full(8, cell.broadcast_time(link.uplink.gain, everyone, KNOWLEDGE)))
    nearest = np.arange(8) == np.argmax(link.uplink.gain)
    assert 0 < cell.broadcast_time(link.uplink.gain, nearest, KNOWLEDGE) < lost[0]


@given(
    error=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
    margin_db=st.floats(0.0, 20.0),
    power_dbm=st.floats(-60.0, 50.0),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_the_broadcast_is_never_longer_than_reserved(error, margin_db, power_dbm, seed) -> None:
    """At the planned rate: who can decode it by the true gain hears it, and no other device."""
    config = CellConfig(channel_error=error, channel_margin_db=margin_db, downlink_power_dbm=power_dbm)
    cell = Cell.build(config, 8, seed)
    link = cell.link_state(seed % 7, WORK, KNOWLEDGE, broadcast_bits=KNOWLEDGE)
    chosen = np.random.default_rng(seed).random(8) < 0.6
    time_s, missed = cell.broadcast(link, chosen, KNOWLEDGE)
    assert time_s <= link.reserved_s and not missed[~chosen].any()
    if chosen.any():
        snr = dbm_to_watt(power_dbm) / (config.bandwidth_hz * config.noise_w_per_hz)
        planned = np.log2(1 + snr * link.uplink.gain[chosen].min())
        assert time_s == pytest.approx(KNOWLEDGE / (config.bandwidth_hz * planned), rel=1e-6)
        clear = np.abs(link.true_gain / link.uplink.gain[chosen].min() - 1) > 1e-6
        weak = chosen & (link.true_gain < link.uplink.gain[chosen].min())
        np.testing.assert_array_equal(missed[clear], weak[clear])
    if error == 0:
        assert not missed.any()
        known = dataclasses.replace(config, channel_margin_db=0.0)
        sure = Cell.build(known, 8, seed)
        link = sure.link_state(seed % 7, WORK, KNOWLEDGE, broadcast_bits=KNOWLEDGE)
        assert sure.broadcast(link, chosen, KNOWLEDGE)[0] == sure.broadcast_time(link.true_gain, chosen, KNOWLEDGE)


def test_processors_come_from_the_list() -> None:
    cell = Cell.build(CellConfig(), 400, 0)
    names, counts = np.unique(cell.hardware.cpu_hz, return_counts=True)
    assert set(names) == set(CellConfig().cpu_frequencies_hz)
    assert counts.min() > 60
