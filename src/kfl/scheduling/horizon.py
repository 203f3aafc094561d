"""A cell and its devices as arrays, and every round of it decided: what `kfl schedule` is asked and answers.

>>> from kfl.scheduling.problem_file import read_problem
>>> problem = read_problem('''id,gain_db,payload_bits,samples
... near,-95,2e6,600
... far,-140,2e6,600''', bandwidth_hz=1e6)
>>> horizon = schedule(problem)
>>> only = horizon.rounds[0]
>>> [problem.ids[k] for k in only.devices], only.share.round(3), round(only.gap, 3)
(['near'], array([1.]), 0.0)
>>> horizon.reason(1)
'unable to finish with the whole band at full power'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.scheduling.account import energy_parts, round_energy
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.dual import Dual
from kfl.scheduling.serve import outcomes
from kfl.scheduling.status import OUTCOMES, Status
from kfl.scheduling.uplink import ENERGY_PARTS, DeviceEnergyModel, Uplink


@dataclass(frozen=True, eq=False)
class Problem:
    """Devices of one cell in one round, or in several rounds that follow each other. `read_problem` makes one.

    Arrays have one entry per device, in SI units; those that change from round to round have one row per round.
    """

    ids: tuple[str, ...]
    bandwidth_hz: float
    noise_dbm_per_hz: float
    rounds: int
    """The horizon T: budgets are for this many rounds."""
    round: int
    """The first round described here, counted from 0."""
    seed: int
    hard_budget: bool
    gain: FloatArray
    """Channel power gains, linear, (rounds described, devices)."""
    available: BoolArray
    """(rounds described, devices)."""
    samples: FloatArray
    payload_bits: FloatArray
    deadline_s: FloatArray
    max_power_w: FloatArray
    device: DeviceEnergyModel
    """What devices draw."""
    compute_energy_j: FloatArray
    """At the fastest clock, where a device can choose."""
    budget_j: FloatArray
    """For all rounds together; infinite where there is none."""
    spent_j: FloatArray
    """Energy spent before the first round described here."""
    queue_j: FloatArray
    """Virtual queues before the first round described here."""
    memory: Mapping[str, FloatArray] = field(default_factory=dict)
    """What the scheduler remembers besides the queues."""
    notes: tuple[str, ...] = ()
    """What a reader of the file should know: a sentence each."""

    @property
    def size(self) -> int:
        """The number of devices K."""
        return len(self.ids)

    @property
    def described(self) -> int:
        """How many rounds are described here."""
        return len(self.gain)

    @cached_property
    def compute_time_s(self) -> FloatArray:
        """Seconds of computing at the fastest clock, where a device can choose."""
        return np.asarray(np.broadcast_to(self.device.fastest_s, self.size))

    @property
    def too_slow(self) -> BoolArray:
        """Devices whose computation alone takes until the deadline: they can never be scheduled."""
        return np.asarray(self.compute_time_s >= self.deadline_s)

    def observation(self, index: int, spent_j: FloatArray) -> Observation:
        """What a scheduler sees in the `index`-th round described here, when devices have spent `spent_j` so far."""
        uplink = Uplink(
            bandwidth_hz=self.bandwidth_hz,
            noise_w_per_hz=dbm_to_watt(self.noise_dbm_per_hz),
            gain=self.gain[index],
            payload_bits=self.payload_bits,
            time_s=self.deadline_s,
            max_power_w=self.max_power_w,
            device=self.device,
        )
        return Observation(
            round=self.round + index,
            seed=self.seed,
            samples=self.samples,
            available=self.available[index],
            compute_time_s=self.compute_time_s,
            base_energy_j=uplink.base_energy_j(self.compute_energy_j),
            battery_j=self.budget_j - spent_j,
            hard_budget=self.hard_budget,
            uplink=uplink,
        )

    def after(self, state: SchedulerState, spent_j: FloatArray) -> Problem:
        """The problem of the round that follows, with the last gains known: replace them by what is measured then."""
        return replace(
            self,
            round=self.round + self.described,
            gain=self.gain[-1:],
            available=self.available[-1:],
            spent_j=spent_j,
            queue_j=state.queue_j,
            memory=state.memory,
            notes=(),
        )


@dataclass(frozen=True, eq=False)
class ScheduledRound:
    """One round's decision: arrays with one entry per scheduled device, so that long traces stay small."""

    round: int
    devices: NDArray[np.intp]
    """Indices of the scheduled devices."""
    share: FloatArray
    power_w: FloatArray
    compute_energy_j: FloatArray
    upload_energy_j: FloatArray
    compute_time_s: FloatArray
    upload_time_s: FloatArray
    queue_j: FloatArray
    """Virtual queues after the round."""
    objective: float
    """NaN where the scheduler minimises nothing."""
    lower_bound: float
    """NaN where the scheduler knows none."""
    status: Status
    counts: tuple[int, ...]
    """How many devices met each of `OUTCOMES`."""
    clock_hz: FloatArray | None = None
    """Clocks of whole devices, NaN where only times are known. This and what follows is None in the printed model."""
    parts_j: Mapping[str, FloatArray] | None = None
    """Where the joules went, by the words of `ENERGY_PARTS`."""
    upload_by: NDArray[np.int8] | None = None
    """What decided how long each upload takes, as positions in `kfl.scheduling.uplink.UPLOAD_BY`."""
    clock_by: NDArray[np.int8] | None = None
    """What decided each clock, as positions in `kfl.scheduling.uplink.CLOCK_BY`."""

    @property
    def energy_j(self) -> float:
        """All devices' energy in the round."""
        return float(self.compute_energy_j.sum() + self.upload_energy_j.sum())

    @property
    def time_s(self) -> float:
        """When the last device is done."""
        return float((self.compute_time_s + self.upload_time_s).max(initial=0.0))

    @property
    def gap(self) -> float:
        """Certified distance to the best possible decision, objective − lower bound."""
        return self.objective - self.lower_bound


@dataclass(frozen=True, eq=False)
class Horizon:
    """All rounds of a problem, with totals per device and the problem of the round that follows."""

    problem: Problem
    scheduler: Scheduler
    rounds: tuple[ScheduledRound, ...]
    taken: NDArray[np.int64]
    """In how many of these rounds each device was scheduled."""
    compute_energy_j: FloatArray
    """Spent in these rounds, per device."""
    upload_energy_j: FloatArray
    outcome: NDArray[np.int8]
    """What became of each device in the last round, as positions in `OUTCOMES`."""
    following: Problem
    """The problem of the next round: queues and spent energy brought forward, the last gains repeated."""
    parts_j: Mapping[str, FloatArray] | None = None
    """Where the joules of each device went in these rounds; None in the printed model."""

    def reason(self, device: int) -> str:
        """What became of a device in the last round, in words."""
        return tuple(OUTCOMES.values())[int(self.outcome[device])]


def schedule(problem: Problem, scheduler: Scheduler | None = None) -> Horizon:
    """Decide every round of a problem, one after the other. By default with the `dual` scheduler.

    Called round after round, each time with the `following` problem of the last call and the gains of the new
    round, it decides what it would have decided for the whole trace at once.
    """
    scheduler = Dual() if scheduler is None else scheduler
    taken, compute_j, upload_j = np.zeros(problem.size, np.int64), np.zeros(problem.size), np.zeros(problem.size)
    parts_j = None if problem.device.is_paper_model else {name: np.zeros(problem.size) for name in ENERGY_PARTS}
    rounds = []
    for one in play(problem, scheduler):
        taken, compute_j, upload_j = taken + one.decision.chosen, compute_j + one.compute_j, upload_j + one.upload_j
        rounds.append(_record(one))
        if parts_j is not None:
            for name, energy_j in (rounds[-1].parts_j or {}).items():
                parts_j[name][rounds[-1].devices] += energy_j
    following = problem.after(one.after, one.spent_j)
    return Horizon(problem, scheduler, tuple(rounds), taken, compute_j, upload_j, one.outcome, following, parts_j)


@dataclass(frozen=True, eq=False)
class PlayedRound:
    """One round with all its devices: what the scheduler saw, decided and made of it."""

    observation: Observation
    before: SchedulerState
    decision: Decision
    compute_j: FloatArray
    """Per device; 0 for those that sat out."""
    upload_j: FloatArray
    spent_j: FloatArray
    """Since the first round of the horizon, this one included."""
    after: SchedulerState
    outcome: NDArray[np.int8]
    """What became of each device, as positions in `OUTCOMES`."""


def play(problem: Problem, scheduler: Scheduler) -> Iterator[PlayedRound]:
    """Decide the rounds of a problem, each with the queues and the energy that the earlier ones left."""
    state, spent_j = _start(problem, scheduler), problem.spent_j
    for index in range(problem.described):
        observation, before = problem.observation(index, spent_j), state
        # 0/0 of a gain of 0 with no time left, and queues beyond all bounds: of devices that nobody can choose.
        with np.errstate(over="ignore", invalid="ignore"):
            decision = scheduler.decide(before, observation)
        compute_j, upload_j = round_energy(decision)
        state = scheduler.update(before, decision, compute_j + upload_j)
        spent_j = spent_j + (compute_j + upload_j)
        outcome = outcomes(observation, decision)
        yield PlayedRound(observation, before, decision, compute_j, upload_j, spent_j, state, outcome)


def _start(problem: Problem, scheduler: Scheduler) -> SchedulerState:
    """The scheduler's state when the first round begins: its own, with the problem's queues and memory."""
    state = scheduler.init(problem.budget_j, problem.rounds)
    for name, values in problem.memory.items():
        if name in state.memory and values.shape != state.memory[name].shape:
            right = f"a list of {state.memory[name].size}, as {scheduler.name} keeps it"
            raise ConfigError(f"memory.{name}", values.tolist(), right)
    memory: Mapping[str, FloatArray] = {**state.memory, **problem.memory}
    return replace(state, queue_j=problem.queue_j, memory=memory)


def _record(played: PlayedRound) -> ScheduledRound:
    observation, decision = played.observation, played.decision
    chosen = np.flatnonzero(decision.chosen)
    return ScheduledRound(
        round=observation.round,
        devices=chosen,
        share=decision.share[chosen],
        power_w=decision.power_w[chosen],
        compute_energy_j=decision.compute_energy_j[chosen],
        upload_energy_j=decision.upload_energy_j[chosen],
        compute_time_s=decision.compute_time_s[chosen],
        upload_time_s=decision.upload_time_s[chosen],
        queue_j=played.after.queue_j[chosen],
        objective=decision.objective,
        lower_bound=decision.lower_bound,
        status=decision.status,
        counts=tuple(np.bincount(played.outcome, minlength=len(OUTCOMES)).tolist()),
        **_whole_device(played, chosen),
    )


def _whole_device(played: PlayedRound, chosen: NDArray[np.intp]) -> dict[str, Any]:
    """Clocks, energy by part, and what decided times and clocks; nothing in the printed model."""
    uplink, decision = played.observation.uplink, played.decision
    if uplink is None or uplink.device.is_paper_model:
        return {}
    clock_hz = np.full(len(chosen), np.nan) if decision.clock_hz is None else decision.clock_hz[chosen]
    parts = energy_parts(played.observation, decision)
    run = (decision.compute_time_s[chosen], decision.upload_time_s[chosen], decision.power_w[chosen])
    upload_by, clock_by = uplink.take(chosen).decided_by(*run)
    return {
        "clock_hz": clock_hz,
        "parts_j": {name: energy_j[chosen] for name, energy_j in parts.items()},
        "upload_by": upload_by,
        "clock_by": clock_by,
    }
