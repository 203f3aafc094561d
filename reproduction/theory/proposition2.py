"""Proposition 2 for a finished run: what was spent against the energy inequality, what was scheduled against the other.

The data-volume inequality compares with the best schedule that knows all channels in advance, which no scheduler does.
An upper bound of it stands in. Where the run stands above even that comparison, the inequality holds for certain; where
the comparison is zero or less, it is vacuous: a run that schedules no device would satisfy it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.experiment.availability import can_be_asked
from kfl.scheduling import Observation, serve
from kfl.scheduling.accounts import Accounts, RoundInputs, observe
from reproduction.theory.energy import EnergyAccount, EnergyBound, energy_account, proposition2_energy
from reproduction.theory.theorem1 import schedule_of

if TYPE_CHECKING:
    from kfl.simulation import RoundLog
    from kfl.simulation.world import World

FloatArray = NDArray[np.float64]
MOST_ENTRIES = 20_000_000
"""Rounds × devices up to which every joule is laid out in one array; larger runs skip Proposition 2."""


@dataclass(frozen=True)
class VolumeBound:
    """Proposition 2's inequality on the weighted data volume, with an upper bound of the offline optimum."""

    scheduled: float
    """Left side: Σ_t γ_t Σ_k α_{k,t} D_k."""
    offline_upper: float
    """No schedule within the budgets can have more than this: its own optimum is this or less."""
    loss: float
    """T ζ_0/V + T(T−1)/(2V) Σ_k ζ_k²: by how much the run may fall short; infinite at V = 0."""
    everything: float
    """Σ_t γ_t D: what all devices in all rounds would have."""

    @property
    def limit(self) -> float:
        """Right side with the upper bound in the optimum's place: the true right side is this or less."""
        return self.offline_upper - self.loss

    @property
    def vacuous(self) -> bool:
        """Whether even a run that schedules no device would satisfy it."""
        return self.limit <= 0

    @property
    def holds(self) -> bool | None:
        """True where it holds for certain; None where an upper bound of the optimum cannot tell."""
        return True if self.scheduled >= self.limit else None

    def __str__(self) -> str:
        verdict = "vacuous" if self.vacuous else ("holds" if self.holds else "cannot be judged with an upper bound")
        return (
            f"Proposition 2, data: {self.scheduled:.4g} weighted samples scheduled ≥ {self.offline_upper:.4g} (upper "
            f"bound of the offline optimum) − {self.loss:.4g} (loss it allows): {verdict}. All devices in all rounds "
            f"would have {self.everything:.4g}."
        )


def proposition2_volume(
    account: EnergyAccount,
    schedule: NDArray[np.bool_],
    samples: FloatArray,
    v: float,
    gamma: FloatArray,
    least_energy_j: FloatArray,
) -> VolumeBound:
    """Evaluate Proposition 2's data-volume inequality (30), as printed but for D_k where it prints D_{k,c}.

        Σ_t γ_t Σ_k α D_k ≥ Σ_t γ_t Σ_k α* D_k − T ζ_0/V − T(T−1)/(2V) Σ_k ζ_k²

    `least_energy_j` (T, K) is what a round costs each device at least, infinite where it cannot take part; it makes
    the upper bound that stands for the optimum. ζ_k is taken over the run, as the energy inequality does; the proof
    also needs it to cover the optimum's rounds, and exact minimization in every round, which Algorithm 3 is not.

    >>> account = EnergyAccount(np.full((4, 2), 0.1), np.zeros((4, 2)), np.full(2, 0.4))
    >>> everybody = np.ones((4, 2), bool)
    >>> one = proposition2_volume(account, everybody, np.full(2, 50.0), 0.01, np.ones(4), np.full((4, 2), 0.1))
    >>> one.scheduled, one.offline_upper, one.holds, one.vacuous
    (400.0, 400.0, True, False)
    """
    rounds = account.rounds
    bias = np.abs(account.energy_j - account.budget_j / max(rounds, 1)).max(axis=0, initial=0.0)
    squares = float(np.sum(bias**2))
    loss = (rounds * squares / 2 + rounds * (rounds - 1) / 2 * squares) / v if v > 0 else math.inf
    return VolumeBound(
        scheduled=float(gamma @ (schedule @ samples)),
        offline_upper=offline_upper(samples, account.budget_j, gamma, least_energy_j),
        loss=loss,
        everything=float(np.sum(gamma) * np.sum(samples)),
    )


def offline_upper(samples: FloatArray, budget_j: FloatArray, gamma: FloatArray, least_energy_j: FloatArray) -> float:
    """An upper bound of the largest Σ_t γ_t Σ_k α D_k within all budgets, knowing every channel in advance.

    Two things are relaxed, each of which can only raise the value: every device has the whole band to itself, so that
    a round costs it `least_energy_j` or more in any schedule; and a device may take part in a fraction of a round.
    Devices then no longer meet, and each has a fractional knapsack, solved by taking rounds in the order of γ_t per
    joule until the budget is spent.

    >>> cost = np.array([[1.0], [1.0], [0.25]])
    >>> offline_upper(np.array([10.0]), np.array([1.5]), gamma=np.array([1.0, 0.5, 0.5]), least_energy_j=cost)
    16.25
    """
    if np.shape(least_energy_j) != (len(gamma), len(samples)):
        raise ConfigError("least_energy_j", np.shape(least_energy_j), f"of shape {(len(gamma), len(samples))}")
    total = 0.0
    for k, held in enumerate(samples):
        possible = np.isfinite(least_energy_j[:, k])
        cost, worth = least_energy_j[possible, k], np.asarray(gamma)[possible]
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(-np.where(cost > 0, worth / cost, np.inf), kind="stable")
        before = np.concatenate([[0.0], np.cumsum(cost[order])[:-1]]) if len(cost) else np.zeros(0)
        left = np.maximum(budget_j[k] - before, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(cost[order] > 0, np.minimum(left / cost[order], 1.0), 1.0)
        total += float(held) * float(worth[order] @ part)
    return total


def observed_rounds(world: World, rounds: int) -> Iterator[Observation]:
    """What the server knew in each round of a run, but for batteries: the channels are drawn again from the seed."""
    if world.cell is None:
        raise ConfigError("radio", "none", "a cell: without one no device spends energy")
    asked, table, fading = world.experiment, world.table, None
    bits, endless_j = float(table.bits_down.max(initial=0.0)), np.full(world.devices, np.inf)
    accounts = Accounts.start(asked.scheduler, endless_j, rounds, fills=False)
    for t in range(rounds):
        link = world.cell.link_state(t, table.flops, table.bits_up, fading, broadcast_bits=bits)
        fading = link.fading
        there = asked.faults.present(asked.seed, t, world.devices, asked.rounds) & can_be_asked(asked, t)
        inputs = RoundInputs(asked.seed, table.samples, there, link.uplink, link.compute_energy_j)
        yield observe(replace(accounts, round=t), inputs, budget_j=endless_j, hard_budget=False)


def least_round_energy(world: World, rounds: int) -> FloatArray:
    """What each round costs each device at least, (T, K): its computation, and its upload on the whole band.

    Infinite where the device is absent, too slow for the deadline or too weak even on the whole band.
    """
    least = np.full((rounds, world.devices), np.inf)
    for t, seen in enumerate(observed_rounds(world, rounds)):
        able = np.flatnonzero(seen.available & np.isfinite(seen.power_floor))
        only = seen.take(able)
        least[t, able] = only.base_energy_j + only.curve.energy_j(np.ones(len(able)))
    return least


def everybody_energy(world: World, rounds: int) -> float:
    """What the cell would spend if all devices that can took part in every round, at what that round really costs.

    The band is shared so that this is least; where not all devices fit, those who need most of it stay out, as with the
    scheduler `all`. As long as all fit, no schedule that shares the band this way spends more: a further device only
    adds its own energy and takes band from the others. Shares are real numbers, also where a run has resource blocks.
    """
    total = 0.0
    for seen in observed_rounds(world, rounds):
        compute_j, upload_j = serve(seen, seen.available, np.ones(seen.size)).energy_j()
        total += float(compute_j.sum() + upload_j.sum())
    return total


def scheduled(logs: Sequence[RoundLog], devices: int) -> NDArray[np.bool_]:
    """α_{k,t}: who took part in which round, (T, K)."""
    return schedule_of([log.devices for log in logs], devices)


def proposition2_of_run(world: World, logs: Sequence[RoundLog]) -> tuple[EnergyBound, VolumeBound]:
    """Both inequalities of Proposition 2 for the rounds of a run whose scheduler it covers."""
    asked, samples, budget_j = world.experiment, world.table.samples, world.table.budget_j
    if not np.isfinite(budget_j).all():
        raise ConfigError("radio", "none", "a cell with energy budgets, which Proposition 2 is about")
    if len(logs) * world.devices > MOST_ENTRIES:
        raise ConfigError("rounds × devices", len(logs) * world.devices, f"at most {MOST_ENTRIES:,} to be laid out")
    weights = asked.scheduler.drift_weights(budget_j, asked.rounds, samples)
    if weights is None:
        expected = "one that minimizes the drift-plus-penalty in every round: Proposition 2 is about no other"
        raise ConfigError("scheduler", asked.scheduler.name, expected)
    account, rounds = energy_account(logs, budget_j), len(logs)
    v, gamma = weights[0], weights[1][:rounds]
    energy = proposition2_energy(account, samples, v, gamma, everybody_energy(world, rounds))
    chosen = scheduled(logs, world.devices)
    return energy, proposition2_volume(account, chosen, samples, v, gamma, least_round_energy(world, rounds))
