"""The drift-plus-penalty of one round: what Algorithm 3 and the dual scheduler both minimise.

Equation (22): −V γ_t Σ_k α_k D_k + Σ_k q_k α_k E_k, with E_k = E_L + E_U.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from kfl.scheduling.base import BoolArray, FloatArray

Gamma = Literal["harmonic", "constant"]


def gamma_weight(gamma: Gamma, round_index: int) -> float:
    """The weight γ_t of data scheduled in round t, counted from 0.

    "harmonic" is the paper's 1/t. The paper counts t from 0, where 1/t divides by zero, so it is 1/(t+1)
    here. "constant" is 1 in every round: no round counts more than another.

    >>> gamma_weight("harmonic", 0), gamma_weight("harmonic", 3), gamma_weight("constant", 3)
    (1.0, 0.25, 1.0)
    """
    return 1.0 / (round_index + 1) if gamma == "harmonic" else 1.0


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
