"""The last step of every scheduler: who can really take part, and with which share and power.

A scheduler says whom it wants; `serve` leaves out those who cannot finish or cannot afford it, makes the rest
fit the band, and allocates. Who was left out, and why, is the decision's status. `standing` is the one answer to
the question who cannot take part in a round, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.scheduling.allocation import SHARE_TOLERANCE, Allocation, solve_shares
from kfl.scheduling.base import Decision, Observation, Scheduler, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.status import OUTCOMES, Status
from kfl.scheduling.uplink import Operation, Uplink

Allocator = Callable[[Uplink, FloatArray, FloatArray], Allocation]
"""Shares the band among devices, given the price of each one's joule and its least share."""

# A hard budget holds exactly, so the floor aims this little below it: rounding must not overspend.
_BUDGET_MARGIN = 1e-12


def share_floor(observation: Observation) -> FloatArray:
    """The least share of each device, with no other device in the band; infinite where no share is enough.

    The floor is the larger of θ^min, from the power limit (25a), and, with hard budgets, the share from which
    on the battery pays for the round: what the share costs ≤ battery − base.
    """
    floor = observation.power_floor
    return np.maximum(floor, budget_floor(observation)) if observation.hard_budget else floor


def reachable(observation: Observation) -> tuple[BoolArray, FloatArray]:
    """The devices that could be scheduled at all this round, and every device's least share."""
    floor = share_floor(observation)
    return observation.available & np.isfinite(floor), floor


def budget_floor(observation: Observation) -> FloatArray:
    """The share from which on the battery pays for the round."""
    left = observation.battery_j * (1.0 - _BUDGET_MARGIN) - observation.base_energy_j
    broke = ~(left >= 0)
    floor = observation.curve.share_for_energy(np.where(broke, 0.0, left) * (1.0 - _BUDGET_MARGIN))
    return np.where(broke, np.inf, floor)


def serve(
    observation: Observation, chosen: BoolArray, weight: FloatArray, allocator: Allocator = solve_shares
) -> Decision:
    """Shares and powers for the chosen devices, minimizing Σ weight · energy, as a decision without objective.

    Devices that can never finish or afford it are left out. If the least shares of the others do not fit the
    band together, those with the largest are left out until they do.

    Args:
        observation: The round.
        chosen: Who shall take part, (K,).
        weight: Of a joule, (K,).
        allocator: Divides the band.
    """
    chosen, weight = np.asarray(chosen, bool), np.asarray(weight, float)
    possible, floor = reachable(observation)
    fitting = _fitting(chosen & possible, floor)
    status = _left_out(observation, chosen, chosen & possible & ~fitting)
    members = np.flatnonzero(fitting)
    if observation.uplink is None or not len(members):
        return decision_for(observation, members, np.zeros(len(members)), status=status)
    _check_weights(weight, members)
    solution = allocator(observation.uplink.take(members), weight[members], floor[members])
    return decision_for(observation, members, solution.share, solution.energy_j, status)


def decision_for(
    observation: Observation,
    members: NDArray[np.intp],
    share: FloatArray,
    energy_j: FloatArray | None = None,
    status: Status | None = None,
    run: Operation | None = None,
) -> Decision:
    """A decision with these devices and their shares, without objective.

    `energy_j` is what the shares cost by the curve, and `run` how the devices run with them, where that is known.
    """
    size, silent = observation.size, np.zeros(len(members))
    if observation.uplink is None or not len(members):
        run = Operation(silent, silent, silent)
    elif run is None:
        run = observation.uplink.take(members).operation(share, energy_j)
    compute_s = observation.compute_time_s[members] if run.compute_time_s is None else run.compute_time_s
    compute_j = observation.base_energy_j[members] if run.compute_energy_j is None else run.compute_energy_j
    chosen = np.zeros(size, bool)
    chosen[members] = True
    return Decision(
        chosen=chosen,
        share=_spread(share, members, size),
        power_w=_spread(run.power_w, members, size),
        upload_energy_j=_spread(run.upload_energy_j, members, size),
        upload_time_s=_spread(run.upload_time_s, members, size),
        compute_energy_j=_spread(compute_j, members, size),
        compute_time_s=_spread(compute_s, members, size),
        clock_hz=None if run.clock_hz is None else _spread(run.clock_hz, members, size),
        status=Status() if status is None else status,
    )


def _check_weights(weight: FloatArray, members: NDArray[np.intp]) -> None:
    bad = members[~(np.isfinite(weight[members]) & (weight[members] >= 0))]
    if len(bad):
        raise ConfigError(f"weight of device {bad[0]}", float(weight[bad[0]]), "a finite number, 0 or more")


def _fitting(wanted: BoolArray, floor: FloatArray) -> BoolArray:
    """The wanted devices, less those with the largest floors until the rest fits the band."""
    members = np.flatnonzero(wanted)
    order = members[np.argsort(floor[members], kind="stable")]
    kept = order[np.cumsum(floor[order]) <= 1.0 + 0.5 * SHARE_TOLERANCE]
    fitting = np.zeros(len(wanted), bool)
    fitting[kept] = True
    return fitting


def _spread(values: FloatArray, members: NDArray[np.intp], size: int) -> FloatArray:
    full = np.zeros(size)
    full[members] = values
    return full


# ── Who cannot take part ─────────────────────────────────────────────────────

_CODES = tuple(OUTCOMES)
_SCHEDULED, _NOT_CHOSEN = _CODES.index("scheduled"), _CODES.index("not_chosen")
CANNOT = _CODES.index("unavailable")
"""From this position of `OUTCOMES` on, a device could not take part."""


def standing(observation: Observation) -> NDArray[np.int8]:
    """Why each device cannot take part this round, whatever the others do, as positions in `OUTCOMES`.

    Of several reasons the first in the order of `OUTCOMES`; "not_chosen" for the devices that can take part.
    """
    floor = share_floor(observation)
    result = np.full(len(floor), _NOT_CHOSEN, np.int8)
    result[~np.isfinite(floor)] = _CODES.index("no_energy")
    result[~np.isfinite(observation.power_floor)] = _CODES.index("out_of_reach")
    if observation.uplink is not None:
        result[~(observation.uplink.upload_time_s > 0)] = _CODES.index("past_deadline")
    if observation.empty is not None:
        result[observation.empty] = _CODES.index("empty")
    result[~observation.present] = _CODES.index("unavailable")
    return result


def outcomes(observation: Observation, decision: Decision) -> NDArray[np.int8]:
    """What became of each device in a round, as positions in `OUTCOMES`."""
    result = standing(observation)
    result[list(decision.status.devices.get("crowded", ()))] = _CODES.index("crowded")
    result[decision.chosen] = _SCHEDULED
    return result


def by_reason(outcome: NDArray[np.int8], among: BoolArray) -> dict[str, tuple[int, ...]]:
    """The devices among these that could not take part, by the code of the reason."""
    found = {}
    for position in range(CANNOT, len(_CODES)):
        who = np.flatnonzero(among & (outcome == position))
        if len(who):
            found[_CODES[position]] = tuple(who.tolist())
    return found


KEPT_OUT = {
    "unavailable": "away",
    "empty": "energy",
    "past_deadline": "deadline",
    "out_of_reach": "band",
    "no_energy": "energy",
    "crowded": "band",
}
"""What keeps a device out of a round, in a word, by its outcome."""


def kept_out(
    scheduler: Scheduler, state: SchedulerState, observation: Observation, decision: Decision
) -> dict[str, int]:
    """Return how many devices take no part in a round, by what keeps them out: energy, band, deadline, away, count.

    A device that its scheduler weighs is kept out by energy where it is not worth its joules with the whole band, and
    by the band where it would be. "count" is for those that a scheduler with a fixed number does not ask.
    """
    seen = scheduler.limited(state, observation)
    outcome = outcomes(seen, decision)
    found: Counter[str] = Counter()
    for reason, who in by_reason(outcome, ~decision.chosen).items():
        found[KEPT_OUT[reason]] += len(who)
    others = np.flatnonzero(outcome == _NOT_CHOSEN)
    worth = scheduler.worth(state, observation)[others]
    weighed = np.isfinite(worth)
    if len(others) and weighed.all():
        alone = seen.take(others)
        least_j = alone.curve.energy_j(np.ones(len(others)))
        dear = int((worth <= state.queue_j[others] * least_j).sum())
        found["energy"] += dear
        found["band"] += len(others) - dear
    elif len(others):
        found["energy" if getattr(scheduler, "count", None) is None else "count"] += len(others)
    return {reason: count for reason, count in found.items() if count}


def nobody_there(observation: Observation) -> Status:
    """Return why a round has no available device: all are offline, or those online have no charge."""
    empty = by_reason(standing(observation), observation.present)
    return Status("nobody_charged", empty) if empty else Status("nobody_available")


def _left_out(observation: Observation, chosen: BoolArray, crowded: BoolArray) -> Status:
    """Every chosen device that does not take part, by reason."""
    outcome = standing(observation)
    outcome[crowded] = _CODES.index("crowded")
    devices = by_reason(outcome, chosen)
    return Status("left_out", devices, {"chosen": int(chosen.sum())}) if devices else Status()
