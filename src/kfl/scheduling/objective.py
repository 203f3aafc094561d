"""What Algorithm 3 and the dual scheduler both minimise in a round: the drift-plus-penalty, equation (22),

    −V γ_t Σ_k α_k D_k + Σ_k q_k α_k E_k,        E_k = E_L + E_U,

with γ_t the weight of data that is scheduled in round t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from kfl.core.errors import ConfigError
from kfl.core.lazy import import_object
from kfl.scheduling.base import Scheduler
from kfl.scheduling.curve import BoolArray, FloatArray

LARGEST_WEIGHT = 1e30
"""Weights in what schedulers minimise are no larger: products with samples and joules must stay finite."""

_EXPECTED = '"inverse", "constant" or "module:function", a function of the round (from 0) that returns a number'


@dataclass(frozen=True)
class DriftScheduler(Scheduler):
    """What schedulers that minimise the drift-plus-penalty have in common: its parameters."""

    v: float = 0.01
    """V: how much a data sample is worth against a joule of a device that is ahead of its budget."""
    gamma: str = "inverse"
    """γ_t, the weight of round t: "inverse" (1/(t+1)), "constant" (1), or "module:function" of the round."""
    epsilon: float = 1e-6
    """Weight of a joule that is within budget, as a fraction of the mean budget per round (of 1 J if there are no
    budgets): the band is shared to minimise Σ (q_k + ε) E_k. Queues move in steps of the budget per round, so this is
    far below any queue that matters: the round's Σ q E is at most ε Σ p_max T_U above its minimum, 1e-5 at the paper's
    settings against 0.03 for one device's data in the last round. Without it, devices with q = 0 would send at full
    power."""

    def __post_init__(self) -> None:
        """Reject values that cannot work before a run starts."""
        for name, value in (("v", self.v), ("epsilon", self.epsilon)):
            if not (0 <= value <= LARGEST_WEIGHT):
                raise ConfigError(f"scheduler.{name}", value, f"a number from 0 to {LARGEST_WEIGHT:g}")
        data_weight(self.gamma, 0)

    def drift_weights(self, rounds: int) -> tuple[float, FloatArray]:
        """V and γ_t."""
        return self.v, np.array([data_weight(self.gamma, t) for t in range(rounds)])

    def small_price(self, allowance_j: FloatArray) -> float:
        """ε in joules of queue."""
        return self.epsilon * typical_allowance_j(allowance_j)


def drift_objective(
    v: float, weight: float, samples: FloatArray, queue_j: FloatArray, chosen: BoolArray, energy_j: FloatArray
) -> float:
    """Equation (22) for one decision: −V γ_t Σ D_k + Σ q_k E_k over the chosen devices; 0 for nobody.

    `weight` is γ_t and `energy_j` each device's whole energy, E_L + E_U. A device with an empty queue adds
    nothing, whatever its energy (0 · ∞ = 0).

    >>> d, q, e = np.array([10.0, 20.0]), np.array([0.0, 2.0]), np.array([np.inf, 0.5])
    >>> drift_objective(1.0, 0.5, d, q, np.array([True, True]), e)
    -14.0
    """
    charged = chosen & (queue_j > 0)
    gain = v * weight * float(np.sum(samples[chosen]))
    return float(np.sum(queue_j[charged] * energy_j[charged])) - gain


def typical_allowance_j(allowance_j: FloatArray) -> float:
    """The mean budget per round of the devices that have one, 1 J if nobody has: the unit of the small price ε.

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


def _function(gamma: str) -> Callable[[int], float]:
    try:
        found = import_object(gamma)
    except ImportError as error:
        raise ConfigError("gamma", gamma, f"{_EXPECTED}; {error}") from error
    if not callable(found):
        raise ConfigError("gamma", gamma, _EXPECTED)
    return cast("Callable[[int], float]", found)
