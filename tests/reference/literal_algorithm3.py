"""Algorithm 3 as written: one search for the multiplier per prefix. The yardstick of `benchmarks.algorithm3`.

It is not a straw man: vectorized over devices, the multiplier condition corrected (Σ max(θ(μ), θ^min) = 1), a
bracket that is valid and tight, bisection in ln μ down to rounding error so that decisions can be compared, and
the same accurate inverse of G as the library. Sorting and tie rules are the library's.
"""

from __future__ import annotations

import numpy as np

from kfl.scheduling._band_price import Candidates
from kfl.scheduling._prefix import TIE
from kfl.scheduling._upload_formulas import inverse_marginal_saving, log_marginal_saving, upload_energy
from kfl.scheduling.curve import FloatArray, UploadCurve


def literal_shares(log_cost: FloatArray, exponent: FloatArray, floor: FloatArray) -> FloatArray:
    """Algorithm 2, corrected: bisection for the multiplier at which the shares fill the band."""
    live = (exponent > 0) & (log_cost > -np.inf)
    if not live.any():
        return floor
    part = floor + (1.0 - floor.sum()) * np.where(live, exponent, 0.0) / exponent[live].sum()
    marginal = log_cost[live] + log_marginal_saving(exponent[live] / part[live])
    low, high = float(marginal.min()), float(marginal.max())
    while high - low > 4e-15 * max(abs(low), abs(high), 1.0):
        middle = 0.5 * (low + high)
        share = np.maximum(share_at_price(middle, log_cost, exponent), floor)
        if share.sum() > 1.0:
            low = middle
        else:
            high = middle
    return np.maximum(share_at_price(high, log_cost, exponent), floor)


def share_at_price(log_price: float, log_cost: FloatArray, exponent: FloatArray) -> FloatArray:
    """θ(μ) = b / G⁻¹(μ / (a w)), equation (28)."""
    with np.errstate(divide="ignore"):
        return np.where(exponent > 0, exponent / inverse_marginal_saving(log_price - log_cost), 0.0)


def literal_best_prefix(candidates: Candidates) -> tuple[int, int]:
    """How many devices Algorithm 3 schedules, and how many prefixes it looked at."""
    best, best_value = 0, 0.0
    floors = np.cumsum(candidates.floor)
    for count in range(1, len(candidates) + 1):
        if floors[count - 1] > 1.0:
            return best, count
        head = candidates.first(count)
        curve = head.curve
        assert isinstance(curve, UploadCurve)
        share = literal_shares(curve.log_scale + head.log_weight, curve.exponent, head.floor)
        energy = head.base_energy_j + upload_energy(curve.scale_j, curve.exponent, share)
        cost = np.where(head.queue_j > 0, head.queue_j * energy, 0.0)
        if cost[-1] - head.value[-1] > 0:
            return best, count
        value = float(cost.sum() - head.value.sum())
        if value < best_value - TIE * float(cost.sum() + head.value.sum()):
            best, best_value = count, value
    return best, len(candidates)
