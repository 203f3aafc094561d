"""Whole resource blocks against trying every split."""

import itertools

import numpy as np
import pytest

from kfl.core.randomness import stream
from kfl.scheduling import Uplink, round_to_blocks
from kfl.wireless import transmit_power

B, N0 = 1e6, 1e-20


def _case(seed: int, devices: int) -> dict[str, np.ndarray]:
    draw = stream(seed, "test")
    return {
        "payload_bits": draw.uniform(1e4, 3e5, devices),
        "upload_time_s": draw.uniform(0.2, 1.0, devices),
        "gain": 10 ** draw.uniform(-13, -10, devices),
        "max_power_w": np.full(devices, 0.5),
    }


def _energy(case: dict[str, np.ndarray], share: np.ndarray) -> np.ndarray:
    power = transmit_power(share, case["payload_bits"], case["upload_time_s"], case["gain"], B, N0)
    return np.where(power <= case["max_power_w"], power * case["upload_time_s"], np.inf)


@pytest.mark.parametrize("seed", range(12))
def test_no_other_split_is_better(seed: int) -> None:
    blocks, devices = 9, 3
    case = _case(seed, devices)
    weight = stream(seed, "weight").uniform(0, 2, devices)
    split = round_to_blocks(np.full(devices, 1 / 3), blocks, Uplink(B, N0, **case), weight=weight)
    best = min(
        float(np.sum(weight * _energy(case, np.array(counts) / blocks)))
        for counts in itertools.product(range(1, blocks), repeat=devices)
        if sum(counts) <= blocks
    )
    if split.dropped.any():
        assert best == np.inf
        return
    assert np.sum(weight * _energy(case, split.share)) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_shares_are_whole_blocks_within_the_band_and_the_limits(seed: int) -> None:
    devices, blocks = 40, 25
    case = _case(seed, devices)
    share = np.where(np.arange(devices) % 3 == 0, 0.0, 1 / devices)
    limit = np.full(devices, 0.05)
    split = round_to_blocks(share, blocks, Uplink(B, N0, **case), energy_limit_j=limit)
    assert split.share.sum() <= 1 + 1e-12
    assert np.allclose(split.share * blocks, np.round(split.share * blocks))
    assert (split.share[share == 0] == 0).all() and not split.dropped[share == 0].any()
    kept = split.share > 0
    assert (kept ^ split.dropped)[share > 0].all()
    assert (_energy(case, split.share)[kept] <= 0.05 * (1 + 1e-9)).all()


def test_nobody_to_serve() -> None:
    split = round_to_blocks(np.zeros(3), 5, Uplink(B, N0, **_case(0, 3)))
    assert (split.share == 0).all() and not split.dropped.any()
