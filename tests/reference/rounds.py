"""Rounds that Algorithm 3 decides, of four kinds:

paper    the paper's MNIST cell in mid-run: the uplink is almost free, and queues decide where the loop stops
scarce   as many devices as the band can hold; every prefix is in play and the last ones are crowded
costly   the upload costs about what the data is worth: the loop stops somewhere in the middle
crowded  each further device makes the others' uploads dearer: the best prefix lies well before the stop
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kfl.core.randomness import stream
from kfl.scheduling import Observation, SchedulerState
from kfl.scheduling.lyapunov import Lyapunov
from kfl.scheduling.share_band import share_floor
from kfl.wireless import PRESETS, Cell, CellConfig

KINDS = ("paper", "scarce", "costly", "crowded")
PARAMETERS, SAMPLES, STEPS = 640, 600.0, 5
MLP_FLOPS = 550_346


def paper_round(
    devices: int, seed: int, round_index: int = 20, radio: CellConfig = PRESETS["paper-mnist"]
) -> Observation:
    """A round of the paper's MNIST cell."""
    cell = Cell.build(radio, devices=devices, seed=seed)
    link = cell.link_state(round_index, flops=STEPS * SAMPLES * MLP_FLOPS, payload_bits=32 * PARAMETERS)
    return Observation(
        round=round_index,
        seed=seed,
        samples=np.full(devices, SAMPLES),
        available=np.ones(devices, bool),
        compute_time_s=np.asarray(link.uplink.device.fastest_s),
        base_energy_j=link.compute_energy_j,
        battery_j=np.full(devices, np.inf),
        hard_budget=False,
        uplink=link.uplink,
    )


def with_floors(observation: Observation, total: float) -> Observation:
    """The same round on a band so narrow that the least shares of all devices add up to `total`."""
    assert observation.uplink is not None
    low, high = 1.0, 1e13
    for _ in range(60):
        band = (low * high) ** 0.5
        narrow = replace(observation, uplink=replace(observation.uplink, bandwidth_hz=band))
        low, high = (band, high) if share_floor(narrow).sum() > total else (low, band)
    return replace(observation, uplink=replace(observation.uplink, bandwidth_hz=high))


def crowded(observation: Observation, rng: np.random.Generator) -> tuple[Observation, float]:
    """Alike devices on a band that is full at half their number; the value of a device that makes it so.

    With n alike devices Y = q a (e^{bn} − 1) − n v, least where q a b e^{bn} = v, but the break test only asks
    for q a (e^{bn} − 1)/n > v. Here b K = 10 and the first happens at b n = 5.
    """
    assert observation.uplink is not None
    devices, uplink = len(observation.samples), observation.uplink
    exponent, scale_j = 10.0 / devices, 1.0 / devices
    time = uplink.upload_time_s
    gain = uplink.bandwidth_hz * uplink.noise_w_per_hz * time / (scale_j * rng.uniform(0.8, 1.25, devices))
    payload = exponent * uplink.bandwidth_hz * time / np.log(2) * rng.uniform(0.9, 1.1, devices)
    link = replace(uplink, gain=gain, payload_bits=payload, max_power_w=np.full(devices, 1e4))
    value = scale_j * exponent * float(np.exp(5.0))
    return replace(observation, uplink=link, base_energy_j=np.full(devices, 0.01 * value)), value


def instance(kind: str, devices: int, seed: int) -> tuple[Lyapunov, SchedulerState, Observation]:
    """One round of one kind."""
    rng = stream(seed, f"algorithm3-{kind}", devices)
    observation = paper_round(devices, seed)
    samples = SAMPLES * rng.uniform(0.5, 1.5, devices)
    queue = np.where(rng.random(devices) < 0.2, 0.0, rng.exponential(0.3, devices))
    scheduler = Lyapunov(v=0.01)
    if kind == "scarce":
        observation = with_floors(observation, 0.97)
        scheduler = Lyapunov(v=1.0)
    if kind == "costly":
        observation = with_floors(observation, 0.9)
        scheduler = Lyapunov(v=0.002)
        queue = 3.0 * queue
    if kind == "crowded":
        queue = rng.uniform(0.5, 1.5, devices)
        observation, value = crowded(observation, rng)
        scheduler = Lyapunov(v=value * (observation.round + 1) / SAMPLES)
    state = SchedulerState(horizon=200, allowance_j=np.full(devices, 0.1), queue_j=queue)
    return scheduler, state, replace(observation, samples=samples)
