"""Bounds on the value of every prefix of a lineup, from a few multipliers that serve all of them.

See `kfl.scheduling.prefix` for what they are used for. For each prefix the class keeps what is known at the
nearest multiplier below its own and at the nearest above it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.base import FloatArray
from kfl.scheduling.curve import inverse_marginal_saving, log_marginal_saving, upload_energy
from kfl.scheduling.lineup import Lineup
from kfl.scheduling.multiplier import solve_log_multiplier

_ROWS = 24  # multipliers per refinement
_CELLS = 32_768  # devices × multipliers evaluated at once: intermediate arrays stay in the cache
_SLACK = 1e-11  # rounding allowance on bounds, relative to the terms of the objective

Sums = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


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
    """Lower and upper bounds for all prefixes; the floors of the whole lineup must fit the band."""

    def __init__(self, lineup: Lineup) -> None:
        self._lineup = lineup
        self._log_cost = lineup.log_cost
        self._floor_energy = upload_energy(lineup.scale_j, lineup.exponent, lineup.floor)
        # Without an upload: the newest device's part of Y, and the sums of parts and of their magnitudes.
        compute = lineup.price * lineup.compute_energy_j
        self._own = compute - lineup.value
        self._own_size = compute + lineup.value
        self._base = np.cumsum(self._own)
        self._size = np.cumsum(self._own_size)
        size = len(lineup.value)
        self._below, self._above = _Side(size), _Side(size)
        live = (lineup.exponent > 0) & (self._log_cost > -np.inf)
        if live.any():
            # At the lowest price some device wants the whole band, and so do all others; at the highest the
            # whole lineup just fits.
            alone = (self._log_cost + log_marginal_saving(np.where(live, lineup.exponent, 1.0)))[live]
            low = float(alone.min())
            high = solve_log_multiplier(self._log_cost[None], lineup.exponent[None], lineup.floor[None])[0]
            prices = np.array([low, max(low, float(high))])
            first, last = self._sums(prices, size)
            self._below.put(int(live.argmax()), size, prices[0], first)
            self._above.put(0, size, prices[1], last)

    def undecided(self) -> tuple[NDArray[np.intp], int]:
        """The prefixes (as index of their newest device) still to be solved, and where the loop surely stops.

        A prefix is undecided when it may be the best one, or when its break test is open and a prefix at or
        after it may be the best one.
        """
        below, above, lineup = self._below, self._above, self._lineup
        lower, upper = self._bounds()
        margin = _SLACK * (self._own_size + above.newest)
        sure = self._own + below.newest > margin
        maybe = self._own + above.newest > -margin
        size = len(lineup.value)
        stop = int(sure.argmax()) if sure.any() else size
        certain = min(int(maybe.argmax()) if maybe.any() else size, stop)
        best = min(0.0, float(upper[:certain].min(initial=0.0)))
        # Strictly: a prefix that only equals nobody, or a shorter prefix, does not win.
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
        below, above, extra = self._below, self._above, self._lineup.extra
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

    def _sums(self, log_prices: FloatArray, limit: int) -> list[Sums]:
        """All prefix sums of the first `limit` devices at each multiplier."""
        head = self._lineup.first(limit)
        log_cost, floor_energy, weight = self._log_cost[:limit], self._floor_energy[:limit], head.weight
        rows = max(1, _CELLS // limit)
        result: list[Sums] = []
        for start in range(0, len(log_prices), rows):
            prices = log_prices[start : start + rows, None]
            x = inverse_marginal_saving(prices - log_cost)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
                wanted = np.where(head.exponent > 0, head.exponent / x, 0.0)
                free = wanted > head.floor
                energy = np.where(free, head.scale_j * wanted * np.expm1(x), floor_energy)
            share = np.where(free, wanted, head.floor)
            dual = np.cumsum(weight * energy + np.exp(prices) * share, -1) - np.exp(prices)
            cost = head.price * energy
            sums = (np.cumsum(share, -1), dual, np.cumsum(energy, -1), np.cumsum(cost, -1), cost)
            result += list(zip(*sums, strict=True))
        return result
