"""What Algorithm 3 and the dual scheduler both minimize in a round: the drift-plus-penalty, equation (22),

    −V γ_t Σ_k α_k D_k + Σ_k q_k α_k E_k,        E_k = E_L + E_U,

with γ_t the weight of data that is scheduled in round t.

V without a unit. With e the mean budget per round, D the mean device's samples and γ the weight of the last round,
`relative_v` R stands for

    V = R e² / (γ D).

A device with D samples that spends E then takes part in the last round only while its queue is below R e²/E, whatever
the cell, the horizon and γ. So it ends at most about R e²/E + E − e over its budget: about one participation. Where
that is a large part of a budget no V helps, and a budget that must not be overdrawn is a hard one.

Batteries that a harvest fills. The queue, with the harvest in place of the budget, moves as a battery does from the
other end: q is what the battery lacks to be full, and max(…, 0) what a full one cannot take. An empty queue is then the
one state in which the next joule is lost, so with C the capacity and E the mean device's joules that no share changes

    V = R (C/2) E / (γ_t D):

at R = 1 a device takes part down to about half a battery. γ_t cancels, because charge cannot be borrowed from later
rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, cast

import numpy as np

from kfl.core.config import Range, check_ranges
from kfl.core.errors import ConfigError
from kfl.core.lazy import import_object
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray

LARGEST_WEIGHT = 1e30
"""Weights in what schedulers minimize are no larger: products with samples and joules must stay finite."""
_WEIGHT = Range(0, LARGEST_WEIGHT, f"a number from 0 to {LARGEST_WEIGHT:g}")

_EXPECTED = '"inverse", "constant" or "module:function", a function of the round (from 0) that returns a number'


@dataclass(frozen=True)
class DriftScheduler(Scheduler):
    """What schedulers that minimize the drift-plus-penalty have in common: its parameters.

    The printed V is in J² per sample, so one number means something else in every cell and for every horizon. Without
    it V follows from `relative_v`, which has no unit, and devices wait out deep fades (`dearest_upload`).

    A budget is a permission: V says when it is spent, never that less of it would do. Where budgets pay for all devices
    in every round, every device takes part, whatever V is, and a fixed number of random devices spends less; where all
    rounds cost a device nearly the same, as with a modem's tail, random devices within the same budgets learn as much
    (`reproduction/energy/random_devices.py`). `least-energy` spends no more than a share of the rounds takes.
    """

    v: Annotated[float | None, _WEIGHT] = None
    """V as the paper prints it, in J² per sample. Given, it decides alone; none: relative_v and dearest_upload do."""
    relative_v: Annotated[float, _WEIGHT] = 1.0
    """V without a unit: what the mean device's data are worth in the last round, in squared mean budgets per round.
    Where a harvest fills batteries, in every round, in half a battery times the joules that no share changes."""
    dearest_upload: Annotated[float, Range(0, math.inf, "above 0, in budgets per round", above=True)] = 10.0
    """An upload that would cost a device more than this many of its budgets per round waits for a better channel.
    Where a harvest fills batteries, in joules that no share changes."""
    gamma: str = "inverse"
    """γ_t, the weight of round t: "inverse" (1/(t+1)), "constant" (1), or "module:function" of the round. With a
    relative V and batteries that a harvest fills, all rounds weigh the same."""
    epsilon: Annotated[float, _WEIGHT] = 1e-6
    """Weight of a joule that is within budget, as a fraction of the mean budget per round (of 1 J if there are no
    budgets): the band is shared to minimize Σ (q_k + ε) E_k. Queues move in steps of the budget per round, so this is
    far below any queue that matters: the round's Σ q E is at most ε Σ p_max T_U above its minimum, 1e-5 at the paper's
    settings against 0.01 for one device's data in the last round. Without it, devices with q = 0 would send at full
    power."""
    device_epsilon: Annotated[float, _WEIGHT] = 0.01
    """The same where a cell describes whole devices. There a narrow share makes a device hurry its computation too,
    which can cost whole budgets, so joules within budget must count for something; the round's objective stays within a
    few hundredths of one device's data of its minimum."""

    def __post_init__(self) -> None:
        """Reject values that cannot work before a run starts."""
        check_ranges(self, "scheduler.")
        data_weight(self.gamma, 0)

    def printed_v(self, state: SchedulerState, samples: FloatArray) -> float:
        """V of equation (22) in J² per sample: `v`, or `relative_v` in the units of this fleet and horizon.

        With e the mean budget per round, D the mean device's samples and γ the weight of the last round, it is
        relative_v · e² / (γ D). A device with D samples that spends E takes part in the last round if its
        queue is below relative_v · e² / E, whatever the cell, the horizon and γ.

        >>> from kfl.scheduling import Lyapunov
        >>> scheduler = Lyapunov(relative_v=3.0)
        >>> round(scheduler.printed_v(scheduler.init(np.full(2, 20.0), horizon=200), np.full(2, 600.0)), 12)
        0.01
        """
        if self.v is not None:
            return self.v
        scale = _last_weight(self.gamma, state.horizon) * _mean_data(samples)
        return min(self.relative_v * typical_allowance_j(state.allowance_j) ** 2 / scale, LARGEST_WEIGHT)

    def round_v(self, state: SchedulerState, observation: Observation) -> float:
        """V of one round: `printed_v`, and for batteries that a harvest fills in units of these.

        A queue is what a battery lacks there, so that an empty one means a full battery, which cannot take what comes
        next. In budgets per round V would let devices wait until theirs are full. With C the capacity and E the mean
        device's energy that no share changes it is relative_v · (C / 2) E / (γ_t D): devices take part down to about
        half a battery. That is so in every round, since charge cannot be borrowed from later ones: with a weight that
        falls, early rounds would run batteries dry.
        """
        capacity_j = observation.capacity_j
        if self.v is not None or capacity_j is None:
            return self.printed_v(state, observation.samples)
        value = self.relative_v * capacity_j / 2 * float(observation.base_energy_j.mean())
        weight = data_weight(self.gamma, observation.round) or 1.0
        return min(value / (weight * _mean_data(observation.samples)), LARGEST_WEIGHT)

    def drift_weights(self, budget_j: FloatArray, horizon: int, samples: FloatArray) -> tuple[float, FloatArray]:
        """V and γ_t."""
        gamma = np.array([data_weight(self.gamma, t) for t in range(horizon)])
        return self.printed_v(self.init(budget_j, horizon), samples), gamma

    def limited(self, state: SchedulerState, observation: Observation) -> Observation:
        """The observation with the energy that a device may spend in this round, where V is relative.

        With an empty queue joules are free in (22), so a device would send in the deepest fade that its power reaches,
        and pay for it with its whole budget where the power limit times the deadline is far above that.
        """
        if self.v is not None or observation.uplink is None or self.dearest_upload == np.inf:
            return observation
        unit_j = state.allowance_j if observation.capacity_j is None else observation.base_energy_j
        most_j = observation.base_energy_j + self.dearest_upload * unit_j
        left_j = observation.battery_j if observation.hard_budget else np.inf
        return replace(observation, hard_budget=True, battery_j=np.minimum(left_j, most_j))

    def energy_weight(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """q_k + ε, so that the band is shared to minimize Σ (q_k + ε) E_k."""
        return state.queue_j + self.small_price(state, observation)

    def worth(self, state: SchedulerState, observation: Observation) -> FloatArray:
        """V γ_t D_k − q_k E_L, with E_L the energy that no share changes."""
        value = self.round_v(state, observation) * data_weight(self.gamma, observation.round)
        return np.asarray(value * observation.samples - state.queue_j * observation.base_energy_j)

    def objective(self, state: SchedulerState, observation: Observation, decision: Decision) -> float:
        """Equation (22), with the true queues."""
        v, gamma = self.round_v(state, observation), data_weight(self.gamma, observation.round)
        energy_j = decision.compute_energy_j + decision.upload_energy_j
        return drift_objective(v, gamma, observation.samples, state.queue_j, decision.chosen, energy_j)

    def small_price(self, state: SchedulerState, observation: Observation) -> float:
        """ε in joules of queue."""
        paper = observation.uplink is None or observation.uplink.device.is_paper_model
        return (self.epsilon if paper else self.device_epsilon) * typical_allowance_j(state.allowance_j)


def drift_objective(
    v: float, weight: float, samples: FloatArray, queue_j: FloatArray, chosen: BoolArray, energy_j: FloatArray
) -> float:
    """Equation (22) for one decision: −V γ_t Σ D_k + Σ q_k E_k over the chosen devices; 0 for no device.

    `weight` is γ_t and `energy_j` each device's whole energy, E_L + E_U. A device with an empty queue adds
    nothing, whatever its energy (0 · ∞ = 0).

    Args:
        v: V.
        weight: γ_t.
        samples: D_k, (K,).
        queue_j: q_k, (K,).
        chosen: Who takes part, (K,).
        energy_j: E_L + E_U of each device, (K,).

    >>> d, q, e = np.array([10.0, 20.0]), np.array([0.0, 2.0]), np.array([np.inf, 0.5])
    >>> drift_objective(1.0, 0.5, d, q, np.array([True, True]), e)
    -14.0
    """
    charged = chosen & (queue_j > 0)
    gain = v * weight * float(np.sum(samples[chosen]))
    return float(np.sum(queue_j[charged] * energy_j[charged])) - gain


def _mean_data(samples: FloatArray) -> float:
    """Samples of the mean device that has any."""
    held = samples[samples > 0]
    return float(held.mean()) if len(held) else 1.0


def typical_allowance_j(allowance_j: FloatArray) -> float:
    """The mean budget per round of the devices that have one, 1 J if no device has: the unit of joules in weights.

    >>> typical_allowance_j(np.array([0.1, 0.3, np.inf]))
    0.2
    """
    limited = allowance_j[np.isfinite(allowance_j) & (allowance_j > 0)]
    return float(limited.mean()) if len(limited) else 1.0


def data_weight(gamma: str, round_index: int) -> float:
    """γ_t for a round counted from 0.

    "inverse" is the paper's 1/t, which divides by zero in its own round 0, so 1/(t + 1) here. "constant" is 1.
    "module:function" calls a user's function with the round.

    >>> data_weight("inverse", 0), data_weight("inverse", 3), data_weight("constant", 3)
    (1.0, 0.25, 1.0)
    >>> data_weight("math:exp", 0)
    1.0
    """
    if gamma == "inverse":
        return 1.0 / (round_index + 1)
    if gamma == "constant":
        return 1.0
    weight = float(_function(gamma)(round_index))
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"{gamma}({round_index})", weight, "a finite number, 0 or more")
    return weight


@lru_cache(maxsize=64)
def _last_weight(gamma: str, horizon: int) -> float:
    """γ_t of the last round in which data weigh anything; 1 where they never do.

    >>> _last_weight("inverse", 200), _last_weight("constant", 200)
    (0.005, 1.0)
    """
    return next((weight for t in reversed(range(horizon)) if (weight := data_weight(gamma, t)) > 0), 1.0)


def _function(gamma: str) -> Callable[[int], float]:
    try:
        found = import_object(gamma)
    except ImportError as error:
        raise ConfigError("gamma", gamma, f"{_EXPECTED}; {error}") from error
    if not callable(found):
        raise ConfigError("gamma", gamma, _EXPECTED)
    return cast("Callable[[int], float]", found)
