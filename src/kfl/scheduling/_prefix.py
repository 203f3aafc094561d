"""Algorithm 3's loop, without one allocation per prefix.

Devices come sorted. With S_j the first j of them, Algorithm 3 allocates the band for S_1, S_2, …, stops at the
first j whose newest device is not worth its energy, −v_j + q_j E_j(S_j) > 0 with v = V γ D, and keeps the
prefix with the least drift-plus-penalty

    Y_j = Σ_{k≤j} (q_k E_k(S_j) − v_k),         Y_0 = 0 for no device.

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
are solved exactly. `Enclosure` keeps for each prefix what is known at the nearest multiplier below its own and at
the nearest above it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._band_price import Candidates, log_prices
from kfl.scheduling.curve import FloatArray

TIE = 1e-12
"""A larger prefix must be better by more than this fraction of the terms of Y: rounding decides nothing."""

_HORIZONS = (32, 256, 2048)  # look this far ahead first: the loop may stop early
_EXACT = 8  # this few undecided prefixes are solved exactly
_REFINEMENTS = 12  # two or three are usual
_ROWS = 24  # multipliers per refinement
_CELLS = 32_768  # devices × multipliers evaluated at once: intermediate arrays stay in the cache
_SLACK = 1e-11  # rounding allowance on bounds, relative to the terms of the objective

Sums = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


def best_prefix(candidates: Candidates) -> int:
    """How many devices Algorithm 3 schedules.

    >>> from kfl.scheduling.curve import UploadCurve
    >>> one = np.ones(3)
    >>> easy = Candidates.of(UploadCurve.of(1e-9 * one, 0.01 * one), floor=1e-4 * one,
    ...                      queue_j=np.array([0.0, 0.5, 2.0]), value=one, base_energy_j=one, extra=1e-6)
    >>> best_prefix(easy)
    2
    """
    fitting = int(np.searchsorted(np.cumsum(candidates.floor), 1.0, side="right"))
    for horizon in _HORIZONS:
        if horizon < fitting:
            best, stopped = _search(candidates.first(horizon))
            if stopped:
                return best
    return _search(candidates.first(fitting))[0]


def _search(candidates: Candidates) -> tuple[int, bool]:
    """The best prefix among these, and whether the break test stopped the loop inside."""
    if len(candidates) == 0:
        return 0, False
    enclosure = Enclosure(candidates)
    undecided, stop = enclosure.undecided()
    for _ in range(_REFINEMENTS):
        if len(undecided) <= _EXACT:
            break
        enclosure.refine(undecided)
        undecided, stop = enclosure.undecided()
    return _scan(candidates, undecided, stop)


def _scan(candidates: Candidates, undecided: NDArray[np.intp], stop: int) -> tuple[int, bool]:
    """Algorithm 3's loop over the undecided prefixes, each solved exactly. `stop` breaks in any case."""
    best, best_value = 0, 0.0
    for start in range(0, len(undecided), _EXACT):
        block = undecided[start : start + _EXACT]
        for j, (value, magnitude, break_test) in zip(block, exact_values(candidates, block), strict=True):
            if break_test > 0:
                return best, True
            if value < best_value - TIE * magnitude:
                best, best_value = int(j) + 1, value
    return best, stop < len(candidates)


def exact_values(candidates: Candidates, prefixes: NDArray[np.intp]) -> list[tuple[float, float, float]]:
    """Y, the sum of the magnitudes of its terms, and the newest device's break test, for prefixes 0…j."""
    longest = int(prefixes.max()) + 1
    head = candidates.first(longest)
    member = np.arange(longest) <= prefixes[:, None]
    curve = head.curve.only(member)
    floor = np.where(member, head.floor, 0.0)
    live = np.asarray(curve.priced(head.log_weight).any(-1))
    share = floor.copy()
    if live.any():
        solved, log_weight = curve.take(live), np.broadcast_to(head.log_weight, member.shape)[live]
        log_price = log_prices(solved, log_weight, floor[live])
        share[live] = np.maximum(solved.share_at_price(log_price[:, None], log_weight), floor[live])
    energy = head.base_energy_j + curve.energy_j(share)
    cost = np.where(member & (head.queue_j > 0), head.queue_j * energy, 0.0)
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


# ── Bounds for all prefixes from a few multipliers ───────────────────────────


class _Side:
    """For every prefix, the sums at the nearest multiplier on one side of its own."""

    def __init__(self, size: int) -> None:
        self.log_price = np.zeros(size)
        self.share = np.zeros(size)  # Σ θ
        self.dual = np.zeros(size)  # Σ (w E_U + μ θ) − μ
        self.energy = np.zeros(size)  # Σ E_U
        self.cost = np.zeros(size)  # Σ q E_U
        self.newest = np.zeros(size)  # q E_U of the newest device

    def put(self, start: int, end: int, log_price: float, sums: Sums) -> None:
        where = slice(start, end)
        self.log_price[where] = log_price
        self.share[where], self.dual[where], self.energy[where], self.cost[where], self.newest[where] = (
            values[where] for values in sums
        )


class Enclosure:
    """Lower and upper bounds for all prefixes; the floors of all of them together must fit the band."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._floor_energy = candidates.curve.energy_j(candidates.floor)
        # Without an upload: the newest device's part of Y, and the sums of parts and of their magnitudes.
        compute = candidates.queue_j * candidates.base_energy_j
        self._own = compute - candidates.value
        self._own_size = compute + candidates.value
        self._base = np.cumsum(self._own)
        self._size = np.cumsum(self._own_size)
        size = len(candidates)
        self._below, self._above = _Side(size), _Side(size)
        curve, log_weight = candidates.curve, candidates.log_weight
        live = curve.priced(log_weight)
        if live.any():
            # At the lowest price some device wants the whole band, and so do all others; at the highest all
            # of them just fit.
            low = float(curve.log_saving(1.0, log_weight)[live].min())
            everybody = np.ones((1, size), bool)
            high = log_prices(curve.only(everybody), log_weight[None], candidates.floor[None])[0]
            prices = np.array([low, max(low, float(high))])
            first, last = self._sums(prices, size)
            self._below.put(int(live.argmax()), size, prices[0], first)
            self._above.put(0, size, prices[1], last)

    def undecided(self) -> tuple[NDArray[np.intp], int]:
        """The prefixes (as index of their newest device) still to be solved, and where the loop surely stops.

        A prefix is undecided when it may be the best one, or when its break test is open and a prefix at or
        after it may be the best one.
        """
        below, above = self._below, self._above
        lower, upper = self._bounds()
        margin = _SLACK * (self._own_size + above.newest)
        sure = self._own + below.newest > margin
        maybe = self._own + above.newest > -margin
        size = len(self._own)
        stop = int(sure.argmax()) if sure.any() else size
        certain = min(int(maybe.argmax()) if maybe.any() else size, stop)
        best = min(0.0, float(upper[:certain].min(initial=0.0)))
        # Strictly: a prefix that only equals the empty set, or a shorter prefix, does not win.
        candidates = np.flatnonzero(lower[:stop] < best)
        if not len(candidates):
            return candidates, stop
        needed = np.zeros(size, bool)
        needed[candidates] = True
        last = int(candidates[-1])
        needed[: last + 1] |= maybe[: last + 1]
        return np.flatnonzero(needed), stop

    def _bounds(self) -> tuple[FloatArray, FloatArray]:
        """Y of every prefix from below and above: by monotony of E in μ, and by duality."""
        below, above, extra = self._below, self._above, self._candidates.extra
        gap = np.exp(above.log_price) - np.exp(below.log_price)
        rise, fall = below.share - 1.0, above.share - 1.0  # slopes of the concave dual, ≥ 0 and ≤ 0
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(rise > fall, (above.dual - below.dual - fall * gap) / (rise - fall), 0.0)
        tangents = below.dual + np.maximum(rise, 0.0) * np.clip(step, 0.0, gap)
        rounding = _SLACK * np.exp(above.log_price)  # g is a difference of terms as large as μ
        dual_lower = np.maximum(below.dual, above.dual) - extra * above.energy - rounding
        dual_upper = np.maximum(tangents, above.dual) - extra * below.energy + rounding
        lower = self._base + np.maximum(below.cost, dual_lower)
        upper = self._base + np.minimum(above.cost, dual_upper)
        slack = _SLACK * (self._size + above.cost)
        return lower - slack, upper + slack

    def refine(self, undecided: NDArray[np.intp]) -> None:
        """Evaluate new multipliers where the undecided prefixes are expected to have theirs."""
        below, above = self._below, self._above
        ranks = np.linspace(0, len(undecided) - 1, min(_ROWS, len(undecided))).round().astype(int)
        chosen = undecided[ranks]
        low, high = below.log_price[chosen], above.log_price[chosen]
        # ln Σθ over ln μ is close to a straight line, and Σθ = 1 at the prefix's own multiplier.
        with np.errstate(divide="ignore", invalid="ignore"):
            over, under = np.log(below.share[chosen]), np.log(above.share[chosen])
            fraction = over / (over - under)
        fraction = np.where((fraction > 0.0) & (fraction < 1.0), fraction, 0.5)
        prices = np.unique(low + (high - low) * fraction)
        limit = int(undecided[-1]) + 1
        for log_price, sums in zip(prices, self._sums(prices, limit), strict=True):
            inside = int(np.searchsorted(sums[0], 1.0, side="right"))  # these prefixes fit at this price
            start = int(np.searchsorted(above.log_price[:inside], log_price, side="right"))
            above.put(start, inside, float(log_price), sums)
            end = inside + int(np.searchsorted(below.log_price[inside:limit], log_price, side="left"))
            below.put(inside, end, float(log_price), sums)

    def _sums(self, at: FloatArray, limit: int) -> list[Sums]:
        """All prefix sums of the first `limit` devices at each multiplier."""
        head, floor_energy = self._candidates.first(limit), self._floor_energy[:limit]
        rows = max(1, _CELLS // limit)
        result: list[Sums] = []
        for start in range(0, len(at), rows):
            prices = at[start : start + rows, None]
            wanted, bought = head.curve.purchase(prices, head.log_weight)
            free = wanted > head.floor
            energy = np.where(free, bought, floor_energy)
            share = np.where(free, wanted, head.floor)
            dual = np.cumsum(head.weight * energy + np.exp(prices) * share, -1) - np.exp(prices)
            cost = head.queue_j * energy
            sums = (np.cumsum(share, -1), dual, np.cumsum(energy, -1), np.cumsum(cost, -1), cost)
            result += list(zip(*sums, strict=True))
        return result
