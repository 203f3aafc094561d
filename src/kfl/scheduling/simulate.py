"""Every round of a cell problem decided, one after the other: what `kfl schedule` answers.

>>> from kfl.scheduling.problem_file import read_problem
>>> problem = read_problem('''id,gain_db,payload_bits,samples
... near,-95,2e6,600
... far,-140,2e6,600''', bandwidth_hz=1e6)
>>> result = schedule(problem)
>>> only = result.rounds[0]
>>> [problem.ids[k] for k in only.devices], only.share.round(3), round(only.gap, 3)
(['near'], array([1.]), 0.0)
>>> result.reason(1)
'unable to finish with the whole band at full power'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import MissingExtraError
from kfl.core.lazy import import_object
from kfl.core.names import html_table
from kfl.core.text import quantity, several
from kfl.scheduling.accounts import Accounts, decide, observe, settle
from kfl.scheduling.base import Decision, Observation, Scheduler
from kfl.scheduling.baselines import RandomDevices, Uniform
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.dual import Dual
from kfl.scheduling.least_energy import alone_j, least_energy_j
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.share_band import outcomes
from kfl.scheduling.status import OUTCOMES, Status
from kfl.scheduling.uplink import ENERGY_PARTS

MOST_LOOKS = 2_000_000
"""Devices × rounds that are decided once more, for a comparison; more take too long."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """One round with all its devices: what the scheduler saw and decided, and the accounts before and after."""

    observation: Observation
    decision: Decision
    before: Accounts
    after: Accounts

    @cached_property
    def outcome(self) -> NDArray[np.int8]:
        """What became of each device, as positions in `OUTCOMES`."""
        return outcomes(self.observation, self.decision)

    @property
    def compute_j(self) -> FloatArray:
        """Joules of each device's processor; 0 for those that sat out."""
        return self.decision.energy_j()[0]

    @property
    def upload_j(self) -> FloatArray:
        """Joules of each device's radio."""
        return self.decision.energy_j()[1]


def simulate(problem: CellProblem, scheduler: Scheduler) -> Iterator[RoundResult]:
    """Decide the rounds of a problem, each with the accounts that the earlier ones left.

    Args:
        problem: The cell, and its rounds.
        scheduler: Who decides.

    Yields:
        One result for each round described.
    """
    accounts = problem.accounts(scheduler)
    for inputs in problem.rounds_described():
        seen = observe(accounts, inputs, budget_j=problem.budget_j, hard_budget=problem.hard_budget)
        decision = decide(scheduler, accounts, seen, problem.resource_blocks)
        after = settle(scheduler, accounts, seen, decision, *decision.energy_j(), inputs.harvest_j)
        # A problem holds one number of what was spent before it: one call per round gives the same to the last bit.
        after = replace(after, compute_j=after.spent_j, upload_j=np.zeros(problem.size))
        yield RoundResult(seen, decision, accounts, after)
        accounts = after


MOST_ROWS = 20
"""Devices in the table of a notebook."""


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
    """NaN where the scheduler minimizes nothing."""
    lower_bound: float
    """NaN where the scheduler knows none."""
    status: Status
    counts: tuple[int, ...]
    """How many devices met each of `OUTCOMES`."""
    clock_hz: FloatArray | None = None
    """Clocks, NaN where only times are known. This and what follows is None in the paper's model."""
    parts_j: Mapping[str, FloatArray] | None = None
    """Energy breakdown, by the words of `ENERGY_PARTS`."""
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
class ScheduleResult:
    """All rounds of a problem, with totals per device and the problem of the round that follows."""

    problem: CellProblem
    scheduler: Scheduler
    rounds: tuple[ScheduledRound, ...]
    participation_count: NDArray[np.int64]
    """In how many of these rounds each device was scheduled."""
    compute_energy_j: FloatArray
    """Spent in these rounds, per device."""
    upload_energy_j: FloatArray
    outcome: NDArray[np.int8]
    """What became of each device in the last round, as positions in `OUTCOMES`."""
    following: CellProblem
    """The problem of the next round: queues, spent energy and charges brought forward, the last gains repeated."""
    parts_j: Mapping[str, FloatArray] | None = None
    """Where the joules of each device went in these rounds; None in the paper's model."""

    @property
    def energy_j(self) -> float:
        """All devices' energy in these rounds."""
        return float(self.compute_energy_j.sum() + self.upload_energy_j.sum())

    def reason(self, device: int) -> str:
        """Return what became of a device in the last round, in words."""
        return tuple(OUTCOMES.values())[int(self.outcome[device])]

    def __repr__(self) -> str:
        taken = int((self.participation_count > 0).sum())
        return (
            f"<ScheduleResult of {self.scheduler.name}: {several(len(self.rounds), 'round')}, {taken} of "
            f"{several(self.problem.size, 'device')} scheduled, {quantity(self.energy_j, 'J')}>"
        )

    def _repr_html_(self) -> str:
        """Totals of the devices that spent most, as a table in a notebook."""
        total = self.compute_energy_j + self.upload_energy_j
        shown = np.argsort(-total, kind="stable")[:MOST_ROWS]
        cells = {
            "device": [self.problem.ids[k] for k in shown],
            "rounds scheduled": [f"{self.participation_count[k]:,}" for k in shown],
            "computing": [quantity(float(self.compute_energy_j[k]), "J") for k in shown],
            "upload": [quantity(float(self.upload_energy_j[k]), "J") for k in shown],
            "last round": [self.reason(int(k)) for k in shown],
        }
        left_out = self.problem.size - len(shown)
        return html_table(cells, repr(self)[1:-1], [f"{left_out:,} more devices: to_pandas()"] if left_out else [])

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per scheduled device and round, in SI units.

        Columns: round, device, share, power_w, compute_energy_j, upload_energy_j, compute_time_s, upload_time_s and
        queue_j.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as problem:
            raise MissingExtraError("pandas", "pandas", "ScheduleResult.to_pandas") from problem
        names = (
            "share",
            "power_w",
            "compute_energy_j",
            "upload_energy_j",
            "compute_time_s",
            "upload_time_s",
            "queue_j",
        )
        columns: dict[str, Any] = {
            "round": np.repeat([one.round for one in self.rounds], [len(one.devices) for one in self.rounds]),
            "device": [self.problem.ids[k] for one in self.rounds for k in one.devices],
        }
        for name in names:
            columns[name] = np.concatenate([np.zeros(0), *(getattr(one, name) for one in self.rounds)])
        return DataFrame(columns)

    def plot(self, axes: Any = None) -> Any:
        """Draw the energy of each device, computing and upload, with Matplotlib.

        Args:
            axes: Matplotlib axes to draw into; None for a new figure.

        Returns:
            The axes: `result.plot().figure.savefig("energy.png")`.

        Raises:
            MissingExtraError: Matplotlib is not installed.
        """
        # Plots are a layer above this one; what draws is found by name.
        return import_object("kfl.plots:plot_schedule")(self, axes)


def schedule(problem: CellProblem, scheduler: Scheduler | None = None) -> ScheduleResult:
    """Decide every round of a problem, one after the other.

    Called round after round, each time with the `following` problem of the last call and the gains of the new
    round, it decides what it would have decided for the whole trace at once.

    Args:
        problem: Devices and their channel.
        scheduler: By default `Dual`.
    """
    scheduler = Dual() if scheduler is None else scheduler
    compute_j, upload_j = np.zeros(problem.size), np.zeros(problem.size)
    parts_j = None if problem.device.is_paper_model else {name: np.zeros(problem.size) for name in ENERGY_PARTS}
    rounds = []
    for one in simulate(problem, scheduler):
        compute_j, upload_j = compute_j + one.compute_j, upload_j + one.upload_j
        rounds.append(_record(one))
        if parts_j is not None:
            for name, energy_j in (rounds[-1].parts_j or {}).items():
                parts_j[name][rounds[-1].devices] += energy_j
    return ScheduleResult(
        problem,
        scheduler,
        tuple(rounds),
        one.after.participation_count,
        compute_j,
        upload_j,
        one.outcome,
        problem.after(one.after),
        parts_j,
    )


def random_devices(found: ScheduleResult) -> tuple[int, ScheduleResult] | None:
    """Return as many random devices a round, at most as many as `uniform` takes, and what they do, if they spend less.

    None for random devices, for a single round, and where it takes too long.
    """
    rounds = found.rounds
    if isinstance(found.scheduler, RandomDevices) or not 1 < len(rounds) <= MOST_LOOKS / found.problem.size:
        return None
    mean = math.ceil(sum(len(one.devices) for one in rounds) / len(rounds))
    count = max(1, min(Uniform().count, mean))
    other = schedule(found.problem, Uniform(count))
    return (count, other) if found.energy_j > 1.01 * other.energy_j else None


def least_energy(found: ScheduleResult) -> float | None:
    """Return a bound on the joules of every schedule of these rounds in which each device takes part as often.

    None for schedulers that do not ask for it.
    """
    problem = found.problem
    if not found.scheduler.certifies_energy or problem.described * problem.size > MOST_LOOKS:
        return None
    every = [alone_j(one.uplink, one.compute_energy_j) for one in problem.rounds_described() if one.uplink is not None]
    return least_energy_j(np.array(every), found.participation_count)


def _record(one: RoundResult) -> ScheduledRound:
    """Return the decision without the devices that sat out."""
    decision = one.decision
    chosen = np.flatnonzero(decision.chosen)
    return ScheduledRound(
        round=one.observation.round,
        devices=chosen,
        share=decision.share[chosen],
        power_w=decision.power_w[chosen],
        compute_energy_j=decision.compute_energy_j[chosen],
        upload_energy_j=decision.upload_energy_j[chosen],
        compute_time_s=decision.compute_time_s[chosen],
        upload_time_s=decision.upload_time_s[chosen],
        queue_j=one.after.scheduler.queue_j[chosen],
        objective=decision.objective,
        lower_bound=decision.lower_bound,
        status=decision.status,
        counts=tuple(np.bincount(one.outcome, minlength=len(OUTCOMES)).tolist()),
        **_beyond_paper(one, chosen),
    )


def _beyond_paper(one: RoundResult, chosen: NDArray[np.intp]) -> dict[str, Any]:
    """Return clocks, energy by part, and what decided times and clocks; nothing in the paper's model."""
    uplink, decision = one.observation.uplink, one.decision
    if uplink is None or uplink.device.is_paper_model:
        return {}
    upload_by, clock_by = decision.decided_by(uplink)
    return {
        "clock_hz": np.full(len(chosen), np.nan) if decision.clock_hz is None else decision.clock_hz[chosen],
        "parts_j": {name: energy_j[chosen] for name, energy_j in decision.parts_j(uplink).items()},
        "upload_by": upload_by,
        "clock_by": clock_by,
    }
