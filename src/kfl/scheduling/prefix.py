"""Algorithm 3's loop, without one allocation per prefix.

Devices come sorted. With S_j the first j of them, Algorithm 3 allocates the band for S_1, S_2, …, stops at the
first j whose newest device is not worth its energy, −v_j + q_j E_j(S_j) > 0 with v = V γ D, and keeps the
prefix with the least drift-plus-penalty

    Y_j = Σ_{k≤j} (q_k E_k(S_j) − v_k),         Y_0 = 0 for nobody.

Taken literally that is a search for a multiplier μ_j for each of K prefixes, O(K²) work times the steps of the
search. Three facts make it O(K) times some tens of multipliers, with the same answer:

* One μ serves all prefixes. A cumulative sum of max(θ_k(μ), θ_k^min) says for every j on which side of μ its
  own μ_j lies, and μ_j rises with j.
* E_k rises with μ, so two multipliers around μ_j enclose E_j(S_j), which decides most break tests.
* Any μ gives, by duality, a lower bound on the least Σ w E of every prefix,
  g_j(μ) = Σ_{k≤j} (w_k E_k(θ_k(μ)) + μ θ_k(μ)) − μ. g_j is concave with slope Σθ − 1, so the tangents at two
  multipliers around μ_j also bound it from above. The error is of second order in the distance.

So the search puts a few multipliers where the undecided prefixes are, drops every prefix whose bounds show
that it cannot be the best one and whose break test cannot matter, and repeats until a handful is left. These
are solved exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.curve import share_at_price, upload_energy
from kfl.scheduling.enclosure import Enclosure
from kfl.scheduling.lineup import Lineup
from kfl.scheduling.multiplier import solve_log_multiplier

TIE = 1e-12
"""A larger prefix must be better by more than this fraction of the terms of Y: rounding decides nothing."""

_HORIZONS = (32, 256, 2048)  # look this far ahead first: the loop may stop early
_EXACT = 8  # this few undecided prefixes are solved exactly
_REFINEMENTS = 12  # two or three are usual


def best_prefix(lineup: Lineup) -> int:
    """How many devices Algorithm 3 schedules.

    >>> one = np.ones(3)
    >>> easy = Lineup(value=one, price=np.array([0.0, 0.5, 2.0]), extra=1e-6, compute_energy_j=one,
    ...               scale_j=1e-9 * one, exponent=0.01 * one, floor=1e-4 * one)
    >>> best_prefix(easy)
    2
    """
    fitting = int(np.searchsorted(np.cumsum(lineup.floor), 1.0, side="right"))
    for horizon in _HORIZONS:
        if horizon < fitting:
            best, stopped = _search(lineup.first(horizon))
            if stopped:
                return best
    return _search(lineup.first(fitting))[0]


def _search(lineup: Lineup) -> tuple[int, bool]:
    """The best prefix among these, and whether the break test stopped the loop inside."""
    if len(lineup.value) == 0:
        return 0, False
    enclosure = Enclosure(lineup)
    undecided, stop = enclosure.undecided()
    for _ in range(_REFINEMENTS):
        if len(undecided) <= _EXACT:
            break
        enclosure.refine(undecided)
        undecided, stop = enclosure.undecided()
    return _scan(lineup, undecided, stop)


def _scan(lineup: Lineup, undecided: NDArray[np.intp], stop: int) -> tuple[int, bool]:
    """Algorithm 3's loop over the undecided prefixes, each solved exactly. `stop` breaks in any case."""
    best, best_value = 0, 0.0
    for start in range(0, len(undecided), _EXACT):
        block = undecided[start : start + _EXACT]
        for j, (value, magnitude, break_test) in zip(block, exact_values(lineup, block), strict=True):
            if break_test > 0:
                return best, True
            if value < best_value - TIE * magnitude:
                best, best_value = int(j) + 1, value
    return best, stop < len(lineup.value)


def exact_values(lineup: Lineup, prefixes: NDArray[np.intp]) -> list[tuple[float, float, float]]:
    """Y, the sum of the magnitudes of its terms, and the newest device's break test, for prefixes 0…j."""
    longest = int(prefixes.max()) + 1
    head = lineup.first(longest)
    member = np.arange(longest) <= prefixes[:, None]
    log_cost = np.broadcast_to(head.log_cost, member.shape)
    exponent = np.where(member, head.exponent, 0.0)
    floor = np.where(member, head.floor, 0.0)
    live = ((exponent > 0) & (log_cost > -np.inf)).any(-1)
    share = floor.copy()
    if live.any():
        log_price = solve_log_multiplier(log_cost[live], exponent[live], floor[live])
        wanted = share_at_price(log_price[:, None], log_cost[live], exponent[live])
        share[live] = np.maximum(wanted, floor[live])
    energy = head.compute_energy_j + upload_energy(head.scale_j, exponent, share)
    cost = np.where(member & (head.price > 0), head.price * energy, 0.0)
    value = np.where(member, head.value, 0.0)
    last = np.arange(len(prefixes)), prefixes
    return list(
        zip(
            (cost.sum(-1) - value.sum(-1)).tolist(),
            (cost.sum(-1) + value.sum(-1)).tolist(),
            (cost[last] - value[last]).tolist(),
            strict=True,
        )
    )
