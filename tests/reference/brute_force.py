"""Rounds small enough to try all 2^K sets of devices, and what a scheduler loses against the best of them.

The optimum is the best of all sets, each with the shares that `solve_shares` finds for the true queues. A band is
called scarce when the optimum leaves out a device that would be worth its energy if it had the band to itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kfl.core.randomness import stream
from kfl.scheduling import Observation, Scheduler, SchedulerState, Uplink
from kfl.scheduling.allocation import solve_shares
from kfl.scheduling.share_band import reachable
from tests.reference.uplinks import device_uplink, flat

V = 0.01


@dataclass(frozen=True, eq=False)
class Instance:
    """One round, small enough to try every set."""

    state: SchedulerState
    observation: Observation
    sets: NDArray[np.bool_]
    """All sets of reachable devices, one per row."""
    values: NDArray[np.float64]
    """The objective (22) of each, infinite where it does not fit the band."""

    @property
    def optimum(self) -> float:
        """The best value of any set."""
        return float(self.values.min())

    @property
    def scarce(self) -> bool:
        """True when the optimum leaves out a device that would be worth its energy if it were alone."""
        best = self.sets[int(self.values.argmin())]
        single = self.sets.sum(axis=1) == 1
        return any(v < 0 and not best[s.argmax()] for s, v in zip(self.sets[single], self.values[single], strict=True))

    def value_of(self, chosen: NDArray[np.bool_]) -> float:
        """The objective of one set with its best shares."""
        return float(self.values[(self.sets == chosen).all(axis=1)][0])


def instance(seed: int, *, hard_budget: bool = False, whole_device: bool = False) -> Instance:
    """A random round: light or heavy payloads, empty or full queues, good or bad channels.

    Whole devices have circuits that draw power, poor amplifiers, in two of three rounds clocks that may be slowed, and
    in one of three a least power; their cheapest computation takes the place of the printed model's.
    """
    draw = stream(seed, "brute-force")
    devices = int(draw.integers(4, 11))
    samples = draw.uniform(100, 1000, devices)
    queue = 10 ** draw.uniform(-2, 0.8, devices) * (draw.random(devices) > draw.choice([0.0, 0.3, 1.0]))
    compute_time = draw.uniform(0.2, 0.8, devices)
    state = SchedulerState(200, np.full(devices, 0.1), queue)
    observation = Observation(
        round=0,
        seed=seed,
        samples=samples,
        available=np.ones(devices, dtype=bool),
        compute_time_s=compute_time,
        base_energy_j=draw.uniform(0.02, 0.3, devices),
        battery_j=draw.uniform(0.1, 1.0, devices) if hard_budget else np.full(devices, 20.0),
        hard_budget=hard_budget,
        uplink=Uplink(
            bandwidth_hz=1e5,
            noise_w_per_hz=4e-21,
            gain=10 ** draw.uniform(-11, -7.5, devices),
            payload_bits=10 ** draw.uniform(5.0, 5.9) * draw.uniform(0.2, 1.0, devices),
            time_s=1.0 - compute_time,
            max_power_w=np.full(devices, 0.5),
        ),
    )
    if whole_device:
        assert observation.uplink is not None
        uplink = _whole(observation.uplink, compute_time, draw)
        base_j = uplink.base_energy_j(observation.base_energy_j)
        # Batteries and queues that matter for what these devices spend.
        battery = base_j * draw.uniform(0.9, 4.0, devices) if hard_budget else observation.battery_j
        observation = replace(observation, uplink=uplink, base_energy_j=base_j, battery_j=battery)
    return Instance(state, observation, *_all_sets(state, observation))


def _whole(uplink: Uplink, fastest_s: NDArray[np.float64], draw: np.random.Generator) -> Uplink:
    size = len(fastest_s)
    free, least = draw.random() < 2 / 3, draw.random() < 1 / 3
    return device_uplink(
        **flat(uplink),
        fastest_s=fastest_s,
        slowest_s=fastest_s * (draw.uniform(1.0, 5.0, size) if free else 1.0),
        work_j_s2=10 ** draw.uniform(-1.7, 0.3, size) * fastest_s**2,
        static_power_w=draw.uniform(0.0, 0.5, size) * draw.integers(0, 2),
        circuit_power_w=10 ** draw.uniform(-2, 0, size),
        amplifier_efficiency=draw.uniform(0.2, 0.9, size),
        min_power_w=10 ** draw.uniform(-5, -1, size) * least,
        once_j=draw.uniform(0.0, 0.05, size),
    )


def _all_sets(state: SchedulerState, observation: Observation) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    uplink = observation.uplink
    assert uplink is not None
    able, floor = reachable(observation)
    numbers = np.arange(2 ** len(able))
    sets = (numbers[:, None] >> np.arange(len(able)) & 1).astype(bool)
    sets = sets[~(sets & ~able).any(axis=1)]
    # One row per set, in which the others have nothing to send and all the time in the world.
    batch = uplink.take(np.zeros(sets.shape, int) + np.arange(len(able)))
    fastest_s = np.broadcast_to(uplink.device.fastest_s, sets.shape)
    batch = replace(
        batch,
        payload_bits=np.where(sets, uplink.payload_bits, 0.0),
        time_s=np.where(sets, uplink.time_s, 1.0 + fastest_s),
    )
    queues = np.broadcast_to(state.queue_j, sets.shape)
    solved = solve_shares(batch, np.where(sets, queues, 0.0), np.where(sets, floor, 0.0))
    worth = V * observation.samples - state.queue_j * observation.base_energy_j
    return sets, np.where(solved.feasible, solved.objective, np.inf) - sets @ worth


@dataclass(frozen=True)
class Result:
    """One scheduler on one instance."""

    optimal: bool
    """The chosen set is a best one."""
    distance: float
    """Objective − optimum, relative to the optimum."""
    distance_devices: float
    """Objective − optimum, in units of the most valuable device, V γ D."""
    certified_devices: float
    """Objective − lower bound, in the same units; NaN without a bound."""
    bound_excess: float
    """Lower bound − optimum, relative: zero or less if the bound is one."""


def run(scheduler: Scheduler, case: Instance) -> Result:
    """Let a scheduler decide and compare with all sets."""
    decision = scheduler.decide(case.state, case.observation)
    scale = max(abs(case.optimum), 1e-12)
    one = V * float(case.observation.samples.max())
    return Result(
        optimal=case.value_of(decision.chosen) <= case.optimum + 1e-9 * scale,
        distance=(decision.objective - case.optimum) / scale,
        distance_devices=(decision.objective - case.optimum) / one,
        certified_devices=decision.gap / one,
        bound_excess=(decision.lower_bound - case.optimum) / scale,
    )
