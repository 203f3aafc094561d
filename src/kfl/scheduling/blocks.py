"""Shares in whole resource blocks: the band is cut into n equal blocks and every device gets some of them.

For a device with m blocks the energy E(m/n) is convex and falling in m. So the split of n blocks that
minimizes Σ w_k E_k is found by giving one block at a time to the device that saves most by it, starting from the
fewest blocks with which each device can send at all. The weights w_k are those the scheduler shared the band with.

Where the blocks do not carry all devices, choosing those that stay is a knapsack problem. Devices are kept by what they
are worth per block, or the ones that need fewest, whichever leaves the scheduler better off.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray, Index
from kfl.scheduling.share_band import decision_for
from kfl.scheduling.status import Status
from kfl.scheduling.uplink import Uplink

BlockEnergy = Callable[[Index, NDArray[np.int64]], FloatArray]


def quantize_to_blocks(
    decision: Decision, scheduler: Scheduler, state: SchedulerState, observation: Observation, blocks: int
) -> Decision:
    """Return a scheduler's decision with its shares in whole blocks; devices that no longer fit are left out.

    Args:
        decision: With shares of any size.
        scheduler: Says what it weighs.
        state: Its queues.
        observation: The round.
        blocks: Equal parts of the band.
    """
    uplink = observation.uplink
    if uplink is None:
        return decision
    seen = scheduler.limited(state, observation)
    split = round_to_blocks(
        decision.share,
        blocks,
        uplink,
        weight=scheduler.energy_weight(state, observation),
        worth=scheduler.worth(state, observation),
        energy_limit_j=seen.battery_j - seen.base_energy_j if seen.hard_budget else None,
    )
    status = decision.status
    if split.dropped.any():
        status = Status(
            "too_few_blocks", {"crowded": tuple(np.flatnonzero(split.dropped).tolist())}, {"blocks": blocks}
        )
    kept = np.flatnonzero(decision.chosen & ~split.dropped)
    rounded = decision_for(observation, kept, split.share[kept], status=status)
    # The bound was for shares that are real numbers; whole blocks can only be worse, so it still holds.
    objective = scheduler.objective(state, observation, rounded)
    return replace(rounded, objective=objective, lower_bound=decision.lower_bound)


@dataclass(frozen=True, eq=False)
class BlockSplit:
    """Shares that are multiples of 1/n."""

    share: FloatArray
    dropped: BoolArray
    """Devices that had a share and lost it, because n blocks cannot carry all of them."""


def round_to_blocks(
    share: FloatArray,
    blocks: int,
    uplink: Uplink,
    weight: FloatArray | None = None,
    energy_limit_j: FloatArray | None = None,
    worth: FloatArray | None = None,
) -> BlockSplit:
    """The best split of `blocks` equal parts of the band among the devices that have a share.

    No device gets fewer blocks than the power limit (and `energy_limit_j`, a hard budget) asks for. Minimizes
    Σ weight · energy, weight 1 by default. Where not all devices fit, the devices that are left out are those with
    which Σ (weight · energy − worth) would be larger; without a worth, those that need most blocks. Blocks that save no
    device any energy stay unused.

    Args:
        share: Of each device, (n,), 0 for those that stay out.
        blocks: Equal parts of the band.
        uplink: What an upload costs.
        weight: Of a joule; 1 by default.
        energy_limit_j: A hard budget.
        worth: Of each device's part.

    >>> one = np.ones(2)
    >>> link = Uplink(1e6, 4e-21, np.array([1e-9, 1e-10]), one * 1e5, time_s=one, max_power_w=one)
    >>> round_to_blocks(one / 2, 5, link).share
    array([0.2, 0.8])
    """
    active = np.flatnonzero(share > 0)
    limit_j = np.full(len(share), np.inf) if energy_limit_j is None else energy_limit_j
    weights = np.ones(len(share)) if weight is None else weight
    values = np.full(len(share), np.inf) if worth is None else worth

    def energy(index: Index, count: NDArray[np.int64]) -> FloatArray:
        """What this many blocks cost; infinite where power or energy limit forbid it."""
        energy_j = uplink.take(index).energy_within_limits(count / blocks)
        # A relative 1e-9: a share exactly at the limit must not fail by a rounding error.
        return np.where(energy_j <= limit_j[index] * (1 + 1e-9), energy_j, np.inf)

    need = _fewest_blocks(energy, active, blocks)
    able = active[need <= blocks]
    need = need[need <= blocks]
    best: tuple[float, NDArray[np.intp], NDArray[np.int64]] = (np.inf, able[:0], need[:0])
    for order in _orders(need, values[able] - weights[able] * energy(able, need)):
        found = _filled(energy, able[order], need[order], blocks, weights, values)
        best = min(best, found, key=lambda one: one[0])
    rounded = np.zeros(len(share))
    rounded[best[1]] = best[2] / blocks
    return BlockSplit(rounded, (share > 0) & (rounded == 0))


def _orders(need: NDArray[np.int64], worth: FloatArray) -> list[NDArray[np.intp]]:
    """The orders in which devices are tried: by what a block is worth to them, and by how few blocks they need."""
    by_need = np.argsort(need, kind="stable")
    if need.sum() == 0 or not np.isfinite(worth).all():
        return [by_need]
    return [np.lexsort((need, -worth / need)), by_need]


def _filled(
    energy: BlockEnergy,
    devices: NDArray[np.intp],
    need: NDArray[np.int64],
    blocks: int,
    weights: FloatArray,
    values: FloatArray,
) -> tuple[float, NDArray[np.intp], NDArray[np.int64]]:
    """Value, devices and their blocks, with devices taken in this order as long as they fit and are worth it."""
    kept = np.zeros(len(devices), dtype=bool)
    left = blocks
    for position, blocks_needed in enumerate(need.tolist()):
        kept[position] = blocks_needed <= left
        left -= blocks_needed * int(kept[position])
    while True:
        who, least = devices[kept], need[kept]
        counts = _give_greedily(energy, who, least, blocks - int(least.sum()), weights)
        terms = weights[who] * energy(who, counts) - values[who]
        if not len(who) or terms.max() <= 0:
            return float(terms.sum()), who, counts
        kept[np.flatnonzero(kept)[terms.argmax()]] = False


def _fewest_blocks(energy: BlockEnergy, active: NDArray[np.intp], blocks: int) -> NDArray[np.int64]:
    """For each device the fewest blocks with finite energy; `blocks + 1` where none is enough."""
    low = np.zeros(len(active), dtype=np.int64)
    high = np.full(len(active), blocks + 1, dtype=np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        works = np.isfinite(energy(active, np.maximum(middle, 1)))
        open_ = high - low > 1
        high = np.where(open_ & works, middle, high)
        low = np.where(open_ & ~works, middle, low)
    return high


def _give_greedily(
    energy: BlockEnergy,
    devices: NDArray[np.intp],
    counts: NDArray[np.int64],
    spare: int,
    weights: FloatArray,
) -> NDArray[np.int64]:
    """Hand out the spare blocks one by one, each to the device with the largest weighted saving."""
    counts = counts.copy()
    cost = energy(devices, counts)
    following = energy(devices, counts + 1)
    heap = [(-float(s), i) for i, s in enumerate(weights[devices] * (cost - following))]
    heapq.heapify(heap)
    while spare > 0 and heap and heap[0][0] < 0:
        _, i = heap[0]
        counts[i] += 1
        spare -= 1
        one = slice(i, i + 1)
        cost[i] = following[i]
        following[one] = energy(devices[one], counts[one] + 1)
        heapq.heapreplace(heap, (-float(weights[devices[i]] * (cost[i] - following[i])), i))
    return counts
