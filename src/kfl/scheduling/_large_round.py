"""The dual's price and set in a round of many devices, by compiled looks at all of them at one price after another.

What `kfl.scheduling._relaxation` finds by sorting every device is found here without: at a price each device tells
whether it stays, what share it takes, and about how far its own critical price is. So

1.  a few thousand devices with their part of the band, or the last round, tell about where the price is;
2.  looks at every device lead to where those who stay fill the band;
3.  the few hundred devices around it are put in the order of their exact critical prices, and the first that overfills
    the band is the critical one, which a look at exactly its price must confirm.

A look depends on the price alone, and the answer on confirmed looks alone. So a search that begins at the price of the
round before ends at the same bits as one that begins anywhere else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._band_price import Candidates, band_log_price
from kfl.scheduling._relaxation import ROUNDING, critical_log_prices, relax
from kfl.scheduling._repair import SMALL, WINDOW, Room, fill_or_squeeze
from kfl.scheduling.base import Observation
from kfl.scheduling.curve import FloatArray
from kfl.scheduling.share_band import budget_floor, share_floor
from kfl.scheduling.uplink import Uplink

LARGE = 10_000
"""From so many devices on a round is worth what importing Numba takes, half a second once per process."""

_SAMPLE = 4_096  # devices of the first guess
_NEAR = WINDOW + 200  # devices on either side of the price that are put in order
_WIDTH = 0.02  # in ln μ: how far around a price devices are counted
_NEVER = 1e200  # gaps above are of devices that stay out at any price near this one
_FARTHEST = 0.5  # in ln μ: the longest step
_MOST_LOOKS = 40
_CELL = 2.0**-10  # in ln μ: where many stay and no device is about to leave, searches end from the middle of a cell
_CLOSE = 1e-7  # in ln μ: the bound is lower by about the square of it
_FILLED = 3e-11  # in ln μ: so near, shares fill the band
_MANY = 100_000  # devices of which a sample saves a look at all of them
_FEW_CHUNKS = 4  # fewer are not worth another thread

Places = NDArray[np.intp]


@lru_cache(maxsize=1)
def _kernels() -> ModuleType | None:
    """Return the compiled functions; None where Numba is not installed."""
    try:
        from kfl.scheduling import _compiled_passes
    except ImportError:
        return None
    return _compiled_passes


def is_large(observation: Observation) -> bool:
    """Whether a round is decided here: by its size and by what is installed, never by what came before it."""
    return observation.size >= LARGE and observation.uplink is not None and _kernels() is not None


@dataclass(frozen=True)
class _Look:
    """What one price of the band does: sums over the devices that stay."""

    log_price: float
    share: float
    falls: float
    """−dΣθ/d ln μ."""
    reduced: float
    """Σ min(φ, 0)."""
    floor: float
    count: int


@dataclass(frozen=True, eq=False)
class _Near:
    """The devices around a price, in the order of their critical prices."""

    places: Places
    """Among the members."""
    devices: Candidates
    log_price: FloatArray
    filled: FloatArray
    """Σ θ of all devices up to each one, at its critical price; by extrapolation from the look."""
    share: FloatArray
    rest: bool
    """Whether devices that stay out are left below these."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The dual's solution, mended: the set as indices of devices, the price, and the bound on every set."""

    chosen: Places
    log_price: float
    lower_bound: float


class Memory:
    """What a scheduler keeps from one large round to the next: where the price was, and arrays to fill.

    It makes the next round quicker and changes nothing in it, so it is no part of a scheduler's state. Rounds that are
    decided at the same time do not share arrays: all but one have their own.
    """

    def __init__(self) -> None:
        self.log_price: float | None = None
        self._arrays: dict[str, FloatArray] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """Copies and pickles begin anew."""
        return Memory, ()

    def take(self, name: str, size: int) -> FloatArray:
        """Return an array to fill, out of this memory until it is given back."""
        found = self._arrays.pop(name, None)
        return found if found is not None and len(found) == size else np.empty(size)

    def give_back(self, **arrays: FloatArray) -> None:
        """Keep arrays for the next round."""
        self._arrays.update(arrays)


class LargeRound:
    """The devices of one round, and the arrays that looks at them fill."""

    def __init__(
        self, observation: Observation, members: Places, worth: FloatArray, price: FloatArray, memory: Memory
    ) -> None:
        uplink, kernels = observation.uplink, _kernels()
        assert uplink is not None and kernels is not None
        self._kernels, self._seen, self._members, self._memory = kernels, observation, members, memory
        self._worth, self._price = _plain(worth), _plain(price)
        arrays = [_plain(values) for values in _ordered(uplink)]
        self._constants = tuple(arrays)
        self._step = np.array([len(values) > 1 for values in arrays], np.int64)
        self.floor = self._least_shares()
        self._gap, self._share = memory.take("gap", len(members)), memory.take("share", len(members))
        self._dense = False

    # ── The price and the set ────────────────────────────────────────────────

    def solve(self, rounding_scale: float) -> Solution | None:
        """Return the dual's solution; None where few devices stay, or the band has no price.

        The search begins at the price of the round before, or else at what a part of the devices would pay. A bound is
        lower by some units in the last place of `rounding_scale`, the sum of the magnitudes in the objective.
        """
        start = self._memory.log_price
        log_price, everybody = self._guess() if start is None else start, math.inf
        low, high = -math.inf, math.inf  # prices known to be too low and high enough
        suspect = math.nan  # the critical price of the device that should be the critical one
        for _ in range(_MOST_LOOKS):
            if log_price is None or not abs(log_price) < 700.0:
                return None
            # Where prices are dense, a device far above its critical price cannot matter a little further on.
            near = abs(log_price - everybody) < _WIDTH and self._dense
            look = self._look(log_price, 10 * _WIDTH if near else math.inf)
            everybody = everybody if near else log_price
            if not look.share < math.inf:
                return None
            step = self._step_to_fill(look)
            if step is not None and log_price != suspect:
                log_price += step
                continue
            low, high = (log_price, high) if look.share > 1.0 else (low, log_price)
            around = self._near(look)
            overfull = ((around.filled > 1.0) | (around.log_price < low)) & (around.log_price <= high)
            critical = int(np.argmax(np.append(overfull, True)))
            if critical == 0:
                log_price += 0.5 * _WIDTH
            elif critical < len(around.places) and around.log_price[critical] != look.log_price:
                log_price = suspect = float(around.log_price[critical])
            elif critical == len(around.places) and around.rest:
                log_price = float(around.log_price[-1])
            elif critical == len(around.places) and abs(math.log(look.share)) > _CELL / 64:
                log_price += math.log(look.share) * look.share / look.falls
            else:
                return self._confirmed(look, around, critical, rounding_scale)
        return None

    def _guess(self) -> float | None:
        """ln μ at which a sample of the devices, with its part of the band, is in balance."""
        devices, log_part = self._sample(self._members, self._price, 0.0)
        log_price = critical_log_prices(devices)
        order = np.argsort(-log_price, kind="stable")[: int(np.count_nonzero(log_price > -np.inf))]
        if not len(order):
            return None
        return relax(devices.take(order), log_price[order], 0.0).log_price - log_part

    def _sample(self, among: Places, price: FloatArray, extra: float) -> tuple[Candidates, float]:
        """Every so many-th of these devices with its part of the band, and the logarithm of that part."""
        index = among[:: max(len(among) // _SAMPLE, 1)]
        part, uplink = len(index) / len(among), self._seen.uplink
        assert uplink is not None
        narrow = replace(uplink, bandwidth_hz=uplink.bandwidth_hz * part)
        seen = replace(self._seen, uplink=narrow).take(index)
        floor = share_floor(seen)
        some = np.isfinite(floor) & (self._worth[index] > 0)
        index = index[some]
        devices = Candidates.of(seen.take(some).curve, floor[some], price[index] + extra, self._worth[index])
        return devices, math.log(part)

    def _step_to_fill(self, look: _Look) -> float | None:
        """How far ln μ should move for the band to be filled; None where the devices around it can tell exactly."""
        near = np.abs(self._gap) < _WIDTH
        count = int(np.count_nonzero(near))
        self._dense = count > 4 * _NEAR
        # Σθ falls because shares do, and because devices leave.
        falls = look.falls + float(np.sum(self._share[near])) / (2 * _WIDTH)
        excess = math.log(look.share) if look.share > 0.0 else -math.inf
        step = excess * look.share / falls if falls > 0.0 else math.copysign(math.inf, excess)
        if abs(step) * count / (2 * _WIDTH) <= 0.5 * _NEAR and abs(step) < _WIDTH:
            return None
        return min(max(step, -_FARTHEST), _FARTHEST)

    def _near(self, look: _Look) -> _Near:
        """Return the devices around a price that was just looked at."""
        places = np.flatnonzero(np.abs(self._gap) < _WIDTH)
        if min(count := int(np.count_nonzero(self._gap[places] < 0)), len(places) - count) < _NEAR:
            places = np.flatnonzero(np.isfinite(self._gap))
        gap = self._gap[places]
        stay, leave = np.flatnonzero(gap < 0), np.flatnonzero((gap >= 0) & (gap < _NEVER))
        rest = len(leave) > _NEAR
        if len(stay) > _NEAR:
            stay = stay[np.argpartition(-gap[stay], _NEAR)[:_NEAR]]
        if rest:
            leave = leave[np.argpartition(gap[leave], _NEAR)[:_NEAR]]
        kept = np.sort(places[np.concatenate([stay, leave])])
        devices = self._candidates(self._members[kept])
        log_price = critical_log_prices(devices)
        share, inside = self._share[kept], self._gap[kept] < 0
        others = look.share - float(np.sum(share[inside]))
        order = np.argsort(-log_price, kind="stable")
        order = order[: int(np.count_nonzero(log_price > -np.inf))]
        log_price, share = log_price[order], share[order]
        with np.errstate(over="ignore", invalid="ignore"):
            filled = (others + np.cumsum(share)) * np.exp(-look.falls / look.share * (log_price - look.log_price))
        return _Near(kept[order], devices.take(order), log_price, filled, share, rest and len(order) == len(kept))

    def _confirmed(self, look: _Look, near: _Near, critical: int, rounding_scale: float) -> Solution | None:
        """Return the solution whose first device that does not stay is `near.places[critical]`."""
        stays = self._gap < 0
        stays[near.places] = np.arange(len(near.places)) < critical
        if int(np.count_nonzero(stays)) <= SMALL:
            return None
        if critical < len(near.places):
            before = float(near.filled[critical] - near.share[critical])
            if before <= 1.0:
                bound = look.reduced - math.exp(look.log_price) - ROUNDING * (rounding_scale + math.exp(look.log_price))
                room = Room(look.log_price, before, look.falls, look.floor)
                first = max(critical - WINDOW, 0)
                window = slice(first, critical + WINDOW)
                stays[near.places[window]] = fill_or_squeeze(near.devices.take(window), critical - first, room)
                return Solution(self._members[stays], look.log_price, bound)
        # Those who stay fill the band at a price below the last one's critical price: they are the best set.
        log_price = float(near.log_price[critical - 1]) if critical < len(near.places) else self._cell(look)
        for _ in range(_MOST_LOOKS):
            look = self._look(log_price)
            step = math.log(look.share) * look.share / look.falls if look.falls > 0.0 else 0.0
            if abs(step) <= _CLOSE:
                bound = look.reduced - math.exp(log_price) - ROUNDING * (rounding_scale + math.exp(log_price))
                return Solution(self._members[stays], log_price, bound)
            log_price += step
        return None

    def _cell(self, look: _Look) -> float:
        """Return the middle of the cell of ln μ in which the band is filled, whatever price was looked at before."""
        filled = look.log_price + math.log(look.share) * look.share / look.falls
        cell = math.floor(filled / _CELL)
        edge = round(filled / _CELL)
        if abs(filled - edge * _CELL) < 0.1 * _CELL:
            cell = edge if self._look(edge * _CELL).share > 1.0 else edge - 1
        return (cell + 0.5) * _CELL

    def close(self, log_price: float) -> None:
        """Keep for the next round what helps it; nothing of this one is read after."""
        self._memory.log_price = log_price
        self._memory.give_back(gap=self._gap, share=self._share, floor=self.floor)

    # ── Shares ───────────────────────────────────────────────────────────────

    def share_band(self, chosen: Places, extra: float, start: float) -> tuple[FloatArray, FloatArray] | None:
        """Shares that minimize Σ (price + extra) E of a set that fits, and seconds of uploads; None without a price.

        The search begins at `start`, so the shares depend on it in their last digits.
        """
        weight = self._price
        if not (weight[chosen] + extra > 0).any():
            weight = np.ones_like(weight)  # no device's joules count: then save as many as possible
        share, upload_s = self._share[: len(chosen)], self._gap[: len(chosen)]
        low, high, log_price = -math.inf, math.inf, start
        if len(chosen) >= _MANY:
            # A part of the devices tells by how much the price moves with the weights.
            before, after = self._sample(chosen, weight, 0.0), self._sample(chosen, weight, extra)
            moved = band_log_price(after[0]) - band_log_price(before[0])
            log_price += moved if abs(moved) < _FARTHEST else 0.0
        for count in range(_MOST_LOOKS):
            total, falls, *_ = self._sums(chosen, weight, extra, log_price, -1.0, upload_s, share)
            moved = log_price + math.log(total) * total / falls if falls > 0.0 else math.nan
            if abs(moved - log_price) <= _FILLED:
                break
            low, high = (log_price, high) if total > 1.0 else (low, log_price)
            if count == 0 and not abs(moved - log_price) < _FARTHEST:
                # A small price for joules that had none before: the price of the band is another one.
                devices, log_part = self._sample(chosen, weight, extra)
                log_price = band_log_price(devices) - log_part
            else:
                log_price = moved if low <= moved <= high else 0.5 * (low + high)
            if not abs(log_price) < 700.0:
                return None
        else:
            return None
        # The last rounding error of Σ θ = 1 is taken out.
        floor = self.floor[chosen]
        share -= floor
        used, spare = float(np.sum(share)), 1.0 - float(np.sum(floor))
        if used > 0:
            share *= max(spare, 0.0) / used
        share += floor
        return np.minimum(share, 1.0, out=share), upload_s

    def spend(self, chosen: Places, share: FloatArray, upload_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Joules of the shares by the curve, and watts drawn to radiate."""
        energy_j, drawn_w = np.empty(len(chosen)), np.empty(len(chosen))
        self._for_chunks(
            self._kernels.spend, len(chosen), self._constants, self._step, chosen, share, upload_s, energy_j, drawn_w
        )
        return energy_j, drawn_w

    # ── Compiled ─────────────────────────────────────────────────────────────

    def _look(self, log_price: float, reach: float = math.inf) -> _Look:
        """Look at every device at a price; fills gaps and shares. Devices whose gap is above `reach` stay out."""
        share, falls, reduced, floor, count = self._sums(
            self._members, self._price, 0.0, log_price, reach, self._gap, self._share
        )
        return _Look(log_price, share, falls, reduced, floor, int(count))

    def _sums(
        self,
        members: Places,
        weight: FloatArray,
        extra: float,
        log_price: float,
        reach: float,
        gap: FloatArray,
        share: FloatArray,
    ) -> list[float]:
        sums = np.empty((-(-len(members) // self._kernels.CHUNK), self._kernels.SUMS))
        given = (self._constants, self._step, members, weight, extra, self._worth, self.floor)
        self._for_chunks(self._kernels.look, len(members), *given, log_price, reach, gap, share, sums)
        return [math.fsum(column) for column in sums.T]

    def _least_shares(self) -> FloatArray:
        """The floor of every device: by the power limit, and by the budget where that is hard."""
        uplink = self._seen.uplink
        assert uplink is not None
        floor = self._memory.take("floor", self._seen.size)
        given = [_plain(np.asarray(values, float)) for values in (uplink.snr, uplink.required_exponent)]
        self._for_chunks(self._kernels.least_shares, len(floor), *given, floor)
        if not self._seen.hard_budget:
            return floor
        # A battery that pays for the least share, which takes all the time, sets no other limit.
        everybody = np.arange(len(floor))
        end_s = np.broadcast_to(uplink.devices.end_s, floor.shape)
        energy_j, _ = self.spend(everybody, np.where(np.isfinite(floor), floor, 1.0), np.ascontiguousarray(end_s))
        poor = np.flatnonzero(~(energy_j * (1 + 1e-9) + self._seen.base_energy_j <= self._seen.battery_j * (1 - 1e-9)))
        if len(poor):
            floor[poor] = np.maximum(floor[poor], budget_floor(self._seen.take(poor)))
        return floor

    def _for_chunks(self, kernel: Callable[..., None], size: int, *given: object) -> None:
        """Call a compiled function for all chunks, on all cores if there are many."""
        chunks = -(-size // self._kernels.CHUNK)
        cores = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)
        if chunks < _FEW_CHUNKS or cores == 1:
            kernel(*given, 0, chunks)
            return
        # Threads of this call alone: none is left for a process that forks.
        edges = np.linspace(0, chunks, min(4 * cores, chunks) + 1).astype(int).tolist()
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(lambda first, last: kernel(*given, first, last), edges[:-1], edges[1:]))

    def _candidates(self, index: Places) -> Candidates:
        return Candidates.of(self._seen.take(index).curve, self.floor[index], self._price[index], self._worth[index])


def _ordered(uplink: Uplink) -> list[FloatArray]:
    """The constants of devices in the order in which the compiled functions take them."""
    one = uplink.devices
    return [
        one.noise_w, one.airtime_s, one.end_s, one.calm_s, one.slow_s, one.work_j_s2, one.clock_j_s2,
        one.static_power_w, one.circuit_power_w, one.full_w, one.least_w,
    ]  # fmt: skip


def _plain(values: FloatArray) -> FloatArray:
    """Return an array as the compiled functions know them: flat, contiguous and writable."""
    return np.require(np.atleast_1d(values), np.float64, ["C", "W"])
