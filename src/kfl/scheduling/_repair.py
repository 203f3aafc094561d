"""From the dual's price to a set of devices: the threshold set, mended.

The prefix that stays at the dual's price leaves part of the band unused, less than the critical device wants.
With many devices that is little, and it is enough to fill the rest or to squeeze the critical device in. With
few it can be much (values 1.0 and 0.2, shares 0.95 and 0.1: the price favors the wrong one), so there the set
is improved by flipping one, two or three devices at a time. Most flips need no trial: for every set S' and
price μ the value of S' is at least −μ + Σ_{k∈S'} φ_k(μ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling._band_price import Candidates, band_log_price, log_prices, total_demand
from kfl.scheduling._relaxation import (
    Relaxation,
    reduced_values,
    shares_at_price,
    total_share,
    weighted_upload_energy,
)
from kfl.scheduling.curve import BoolArray, FloatArray

WINDOW = 400
"""Devices on either side of the critical price that are exchanged when there are many."""
_EXCHANGES = 6
SMALL = 256
"""Up to this many staying devices, sets are improved by flips."""
_POOL = 64  # how many devices beyond the staying ones may come in
_FEW = 24  # up to this many devices the search is thorough
_TRIALS = 48  # sets tried at once
_PAIRS, _TRIPLES = 40, 14  # devices nearest to break-even, of which pairs and triples are flipped
_MAX_FLIPS = 64


def repair(devices: Candidates, relaxation: Relaxation) -> NDArray[np.intp]:
    """Return a feasible set near the dual's bound, as positions in `devices` (sorted by falling critical price).

    A prefix that fills the band is optimal. Else many devices leave little of the band, which exchanges fill, and few
    are improved by flips of one, two or three devices.
    """
    prefix = np.arange(relaxation.staying)
    if relaxation.tight or relaxation.staying == len(devices):
        return prefix
    if relaxation.staying > SMALL:
        return _fill_or_squeeze(devices, relaxation)
    pool = _pool(devices, relaxation.staying)
    chosen = _improve(devices.take(pool), relaxation)
    return np.asarray(pool[chosen])


# ── Many devices ─────────────────────────────────────────────────────────────


def _fill_or_squeeze(devices: Candidates, relaxation: Relaxation) -> NDArray[np.intp]:
    """Mend the prefix around the critical device."""
    stay = relaxation.staying
    staying = devices.take(slice(0, stay))
    near = np.arange(max(stay - WINDOW, 0), min(stay + WINDOW, len(devices)))
    room = Room(relaxation.log_price, *total_demand(staying, relaxation.log_price), float(np.sum(staying.floor)))
    chosen = fill_or_squeeze(devices.take(near), stay - int(near[0]), room)
    return np.concatenate([np.arange(near[0]), near[chosen]])


@dataclass(frozen=True)
class Room:
    """What the staying devices take at the dual's price."""

    log_price: float
    share: float
    """Σ θ."""
    falls: float
    """−dΣθ/d ln μ: how fast they would give way."""
    floor: float
    """Σ f."""


def fill_or_squeeze(near: Candidates, stay: int, room: Room) -> BoolArray:
    """Make room for the critical device, or fill the unused band by exchanging devices near the price.

    `near` are the devices around the critical one, `near.take(stay)`, in the order of their critical prices.
    """
    price, spare = math.exp(room.log_price), 1.0 - room.share
    # Way 1: exchange devices whose critical prices are near, so that less is left.
    exchanged, left = _exchange(near, np.arange(len(near)) < stay, room.log_price, spare)
    # Way 2: room for the critical device is made by all others giving a little: ½ (shortage)² μ / (−dΣθ/d ln μ).
    critical = near.take(slice(stay, stay + 1))
    shortage = float(shares_at_price(critical, room.log_price)[0]) - spare
    fits = room.floor + float(critical.floor[0]) <= 1.0
    if fits and shortage < 0.5 * room.falls and 0.5 * shortage**2 * price / room.falls < left:
        return np.arange(len(near)) <= stay
    return exchanged


def _exchange(near: Candidates, chosen: BoolArray, log_price: float, spare: float) -> tuple[BoolArray, float]:
    """Put devices in the place of others, or just in, so that less of the band is unused; and what gap is left.

    At a fixed price the gap of a set is μ (1 − Σθ) + Σ_in max(φ, 0) − Σ_out min(φ, 0), and near the critical
    price the φ are almost 0: the best exchange is the one that leaves least of the band.
    """
    price = math.exp(log_price)
    share, reduced = shares_at_price(near, log_price), reduced_values(near, log_price)
    saving = price * share - reduced
    chosen, left = chosen.copy(), price * spare
    for _ in range(_EXCHANGES):
        # The last row adds without removing, the last column removes without adding.
        removed = np.append(np.flatnonzero(chosen), -1)
        added = np.append(np.flatnonzero(~chosen), -1)
        wider = np.append(share, 0.0)[added] - np.append(share, 0.0)[removed][:, None]
        gain = np.append(saving, 0.0)[added] - np.append(saving, 0.0)[removed][:, None]
        gain[wider > spare] = -np.inf
        row, column = np.unravel_index(int(np.argmax(gain)), gain.shape)
        if not gain[row, column] > 1e-12 * price:
            break
        for k in (removed[row], added[column]):
            if k >= 0:
                chosen[k] ^= True
        spare -= float(wider[row, column])
        left -= float(gain[row, column])
    return chosen, left


# ── Few devices ──────────────────────────────────────────────────────────────


def _pool(devices: Candidates, staying: int) -> NDArray[np.intp]:
    """The staying devices, the next ones in the order of the price, and the most valuable of the rest."""
    near = min(staying + _POOL, len(devices))
    rest = np.arange(near, len(devices))
    if len(rest) > _POOL // 4:
        rest = rest[np.argpartition(-devices.value[rest], _POOL // 4)[: _POOL // 4]]
    return np.concatenate([np.arange(near), np.sort(rest)])


def set_values(devices: Candidates, sets: BoolArray) -> FloatArray:
    """The objective of each set (one per row) with its best shares; infinite where the floors do not fit."""
    # One row per set, in which all others have nothing to send.
    floor = np.where(sets, devices.floor, 0.0)
    curve = devices.curve.only(sets)
    value = -np.where(sets, devices.value, 0.0).sum(-1)
    possible = floor.sum(-1) <= 1.0
    priced = possible & curve.priced(devices.log_weight).any(-1)
    # Where joules have a price, each set's own price of the band gives its best shares.
    if priced.any():
        solved, log_weight = curve.take(priced), np.broadcast_to(devices.log_weight, sets.shape)[priced]
        log_price = log_prices(solved, log_weight, floor[priced])
        wanted = solved.share_at_price(log_price[:, None], log_weight)
        share = np.where(sets[priced], np.maximum(wanted, floor[priced]), 1.0)
        cost = weighted_upload_energy(devices, share)
        value[priced] += np.where(sets[priced], cost, 0.0).sum(-1)
    return np.where(possible, value, np.inf)


def _improve(devices: Candidates, relaxation: Relaxation) -> NDArray[np.intp]:
    """The best of a few starts, improved by flips until none helps; with few devices, every start is improved."""
    at_dual = reduced_values(devices, relaxation.log_price)
    starts = _starts(devices, relaxation)
    values = set_values(devices, starts)
    order = np.argsort(values, kind="stable")
    if len(devices) > _FEW:
        order = order[:1]
    flips = _flips(np.argsort(np.abs(at_dual), kind="stable"))
    best, best_value = np.zeros(len(devices), dtype=bool), 0.0
    for start in order[values[order] < math.inf]:
        found, value = _climb(devices, starts[start], float(values[start]), at_dual, relaxation, flips)
        if value < best_value:
            best, best_value = found, value
    return np.flatnonzero(best)


def _starts(devices: Candidates, relaxation: Relaxation) -> BoolArray:
    """The staying devices, these filled up by exchanges, these and the critical one, the best single device."""
    count, stay = len(devices), relaxation.staying
    prefix = np.arange(count) < stay
    spare = 1.0 - total_share(devices.take(slice(0, stay)), relaxation.log_price)
    exchanged, _ = _exchange(devices, prefix, relaxation.log_price, spare)
    alone = np.eye(count, dtype=bool)
    single = alone[int(np.argmin(set_values(devices, alone)))]
    return np.stack([prefix, exchanged, np.arange(count) <= stay, single])


def _flips(order: NDArray[np.intp]) -> NDArray[np.intp]:
    """All single flips, and pairs and triples of the first few of `order`; rows of three, padded with −1."""
    rows = [(int(k), -1, -1) for k in order]
    rows += [(int(j), int(k), -1) for j, k in combinations(order[:_PAIRS], 2)]
    rows += [(int(i), int(j), int(k)) for i, j, k in combinations(order[:_TRIPLES], 3)]
    return np.asarray(rows, dtype=np.intp)


def _climb(
    devices: Candidates,
    chosen: BoolArray,
    value: float,
    at_dual: FloatArray,
    relaxation: Relaxation,
    flips: NDArray[np.intp],
) -> tuple[BoolArray, float]:
    """Take the best improving flip, again and again."""
    tried = (4 if len(devices) <= _FEW else 1) * _TRIALS
    for _ in range(_MAX_FLIPS):
        hopeful = _hopeful(devices, chosen, value, at_dual, relaxation, flips)
        improved = False
        for first in range(0, min(len(hopeful), tried), _TRIALS):
            sets = _flipped(chosen, hopeful[first : first + _TRIALS])
            values = set_values(devices, sets)
            best = int(np.argmin(values))
            if values[best] < value - 1e-13 * abs(value):
                chosen, value, improved = sets[best], float(values[best]), True
                break
        if not improved:
            break
    return chosen, value


def _hopeful(
    devices: Candidates,
    chosen: BoolArray,
    value: float,
    at_dual: FloatArray,
    relaxation: Relaxation,
    flips: NDArray[np.intp],
) -> NDArray[np.intp]:
    """The flips whose lower bound is below the value at hand and whose floors fit, the lowest bound first."""
    sign = np.where(chosen, -1.0, 1.0)

    def change(per_device: FloatArray) -> FloatArray:
        """Σ over the flipped devices; the padding −1 picks the zero at the end."""
        return np.asarray(np.append(sign * per_device, 0.0)[flips].sum(-1))

    # Weak duality at the dual's price bounds every set; at the set's own price it is sharper near the set.
    staying = devices.take(np.flatnonzero(chosen))
    base = -math.exp(relaxation.log_price) + float(np.sum(at_dual[chosen]))
    bound = base + change(at_dual)
    own_price = band_log_price(staying)
    if own_price > -math.inf:
        bound = np.maximum(bound, value + change(reduced_values(devices, own_price)))
    fits = float(np.sum(staying.floor)) + change(devices.floor) <= 1.0 + 1e-12
    useful = np.flatnonzero(fits & (bound < value - 1e-13 * abs(value)))
    return np.asarray(flips[useful[np.argsort(bound[useful], kind="stable")]])


def _flipped(chosen: BoolArray, flips: NDArray[np.intp]) -> BoolArray:
    sets = np.repeat(chosen[None], len(flips), axis=0)
    for column in flips.T:
        rows = np.flatnonzero(column >= 0)
        sets[rows, column[rows]] ^= True
    return sets
