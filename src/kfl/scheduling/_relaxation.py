"""The dual of one round's scheduling problem: a price for the band that separates it over devices.

The problem over sets S and shares θ, with v_k = V γ D_k − q_k E_L,k the worth of device k before its upload:

    minimize   Σ_{k∈S} (q_k E_U,k(θ_k) − v_k)    subject to   Σ_{k∈S} θ_k ≤ 1,   f_k ≤ θ_k ≤ 1.

One constraint couples the devices. With a price μ ≥ 0 on it, each decides for itself, and

    L(μ) = −μ + Σ_k min(0, φ_k(μ)),    φ_k(μ) = min_θ { q_k E_U,k(θ) + μ θ } − v_k

is concave and a lower bound on the value of *every* set, for every μ. Device k wants to take part while
φ_k(μ) < 0, that is up to its own *critical price*, which has a closed form. With x = b/θ at the best share,
φ = a q b eˣ − v, so a device breaks even at X = ln(v / (a q b)) and

    μ_k = a q G(X)                    where its share at X lies between f and 1,
    μ_k = (v − q E_U(f)) / f          where it would be less than f (always, when q = 0),
    μ_k = v − q E_U(1)                where it would be more than 1.

So sorting by μ_k lists the devices in the order in which a rising price drives them out: at any price the ones
that stay are a prefix. The best price is where the prefix fills the band. Either it fills it exactly, and the
prefix is optimal, or at μ_c one *critical* device c makes the difference between too little and too much. Then
L(μ_c) is the best bound, and the prefix before c is at most μ_c (1 − Σθ) < μ_c θ_c ≤ v_c above it: the gap is
less than one device's worth, for any number of devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kfl.scheduling._band_price import Candidates, band_log_price
from kfl.scheduling.curve import FloatArray

ROUNDING = 64 * float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The solution of the dual, for devices sorted by falling critical price."""

    staying: int
    """The prefix that wants to take part at the price and fits the band."""
    log_price: float
    """ln μ*; −∞ when the band is not scarce."""
    lower_bound: float
    """L(μ*), less an allowance for rounding: no set has a smaller objective."""
    tight: bool
    """True when the prefix fills the band exactly (or the price is zero), so that it is optimal."""


def shares_at_price(devices: Candidates, log_price: float) -> FloatArray:
    """The share each device would take at this price, between its floor and 1; in pieces that fit the cache."""
    if log_price == -math.inf:  # the band is free: a device that pays for joules takes all of it
        return np.where((devices.queue_j > 0) & devices.curve.sends, 1.0, devices.floor)
    share = np.empty(len(devices))
    for piece, part in devices.pieces():
        np.clip(part.curve.share_at_price(log_price, part.log_weight), part.floor, 1.0, out=share[piece])
    return share


def weighted_upload_energy(devices: Candidates, share: FloatArray) -> FloatArray:
    """q_k E_U,k(θ_k), with 0 · ∞ = 0."""
    energy = devices.curve.energy_j(share)
    with np.errstate(invalid="ignore"):
        return np.where(devices.queue_j > 0, devices.queue_j * energy, 0.0)


def reduced_values(devices: Candidates, log_price: float) -> FloatArray:
    """φ_k(μ): below zero for the devices worth scheduling at this price."""
    share = shares_at_price(devices, log_price)
    return np.asarray(weighted_upload_energy(devices, share) + math.exp(log_price) * share - devices.value)


def critical_log_prices(devices: Candidates) -> FloatArray:
    """ln μ_k of each device; −∞ where it is not worth scheduling even when the band is free."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share, log_price = devices.curve.break_even(np.log(np.maximum(devices.value, 0.0)), devices.log_weight)
        for bound, limit in ((share <= devices.floor, devices.floor), (share >= 1.0, np.ones_like(devices.floor))):
            if bound.any():
                some, least = devices.take(bound), limit[bound]
                left = some.value - weighted_upload_energy(some, least)
                log_price[bound] = np.log(np.maximum(left, 0.0)) - np.log(least)
    # Nothing to send: takes no band, so no price drives it out.
    log_price = np.where(devices.curve.sends, log_price, np.inf)
    return np.where(devices.value > 0, log_price, -np.inf)


def relax(devices: Candidates, log_price: FloatArray, rounding_scale: float) -> Relaxation:
    """Maximize the dual. `devices` must be sorted by falling `log_price`, their critical prices.

    `rounding_scale` is the sum of the magnitudes that go into the objective; a bound computed in floating
    point is lowered by some units in the last place of it.
    """
    count = len(devices)
    # Floors alone bound the prefix: devices beyond the point where they fill the band are out.
    overfull = int(np.searchsorted(np.cumsum(devices.floor), 1.0, side="right"))
    critical = _first_overfull(devices, log_price, min(overfull + 1, count))
    staying = devices.take(slice(0, critical))
    tight = critical == count or total_share(staying, float(log_price[critical])) > 1.0
    # A single device may fill the band and be driven out at a price below the one at which it would give way.
    price = min(band_log_price(staying), float(log_price[critical - 1])) if tight else float(log_price[critical])
    bound = _dual_value(staying, price) - ROUNDING * (rounding_scale + math.exp(price))
    return Relaxation(critical, price, bound, tight)


def fitted_shares(devices: Candidates, log_price: float) -> FloatArray:
    """The shares at a price that fills the band, with the last rounding error of Σ θ = 1 taken out."""
    share = shares_at_price(devices, log_price)
    above = share - devices.floor
    spare, used = 1.0 - float(np.sum(devices.floor)), float(np.sum(above))
    if used > 0:
        above *= max(spare, 0.0) / used
    return np.minimum(devices.floor + above, 1.0)


def _dual_value(staying: Candidates, log_price: float) -> float:
    """L(μ) for devices of which all others are driven out at this price."""
    return float(np.sum(np.minimum(reduced_values(staying, log_price), 0.0))) - math.exp(log_price)


def total_share(devices: Candidates, log_price: float) -> float:
    """Σ θ_k(μ) over these devices, in pieces that fit the cache."""
    return sum(float(np.sum(shares_at_price(part, log_price))) for _, part in devices.pieces())


def _first_overfull(devices: Candidates, log_price: FloatArray, stop: int) -> int:
    """Return the first n with Σ_{k≤n} θ_k(μ_n) > 1, or `stop` if there is none below it.

    The sum rises with n, since the prefix grows and its price falls, and its logarithm is close to a straight line over
    ln μ. So the search is false position in ln μ, and bisection until both ends are known.
    """
    low, high = -1, stop
    below, above = math.nan, math.nan  # ln Σθ at both ends
    trial, last = stop - 1, 0  # often every device fits, which one sum tells
    while high - low > 1:
        total = total_share(devices.first(trial + 1), float(log_price[trial]))
        excess = math.log(total) if total > 0 else -math.inf
        # The Illinois rule: an end that stays twice counts half, so that the next step reaches beyond the answer.
        if excess <= 0:
            low, below, above, last = trial, excess, above / (2 if last < 0 else 1), -1
        else:
            high, above, below, last = trial, excess, below / (2 if last > 0 else 1), 1
        trial = (low + high) // 2
        if -math.inf < below <= 0 < above:
            start, end = float(log_price[low]), float(log_price[high])
            price = start + (end - start) * below / (below - above)
            trial = min(max(int(np.searchsorted(-log_price, -price)), low + 1), high - 1)
    return high
