"""The drift-plus-penalty of one round: what Algorithm 3 and the dual scheduler both minimise.

Equation (22): −V γ_t Σ_k α_k D_k + Σ_k q_k α_k E_k, with E_k = E_L + E_U.
"""

from __future__ import annotations

import numpy as np

from kfl.scheduling.base import BoolArray, FloatArray


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
