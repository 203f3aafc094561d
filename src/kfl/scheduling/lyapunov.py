"""Algorithm 3: energy-aware online device scheduling.

Each round minimizes, as well as a greedy order can, the drift-plus-penalty of equation (22),

    Y(S) = −V γ_t Σ_{k∈S} D_k + Σ_{k∈S} q_k E_k,

over the set S, with the band allocated by `kfl.scheduling.allocate`. The devices are sorted by
Δ_k = −V γ_t D_k + q_k Ē_k, with Ē_k estimated at θ = 1/K, and added one by one; the loop ends at the first
device that is not worth its energy, and the best prefix wins.

Where we leave the paper:

* Δ prints D_{k,c}; D_k is meant. The break test drops γ_t; it belongs there.
* Ē overflows for large payloads (from K ≈ 145 at FedAvg's on MNIST), where only logarithms can be compared,
  and 0 · ∞ is 0: an empty queue makes energy free, whatever it is.
* Ties, as in round 0 where every queue is empty: the device with the smaller θ^min first.
* Devices that cannot finish, or with hard budgets cannot afford it, are never in play, and a hard budget is a
  floor on the share. A prefix whose least shares exceed the band ends the loop, as all longer ones do too.
* The empty set, with Y = 0, is a candidate.
* Devices with q_k = 0 are weighted with a small ε instead of getting θ^min (see `epsilon`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError
from kfl.scheduling._band_price import Candidates
from kfl.scheduling._prefix import best_prefix
from kfl.scheduling.allocation import solve_shares
from kfl.scheduling.as_printed import printed_rule
from kfl.scheduling.base import Decision, Observation, SchedulerState
from kfl.scheduling.curve import BoolArray, FloatArray
from kfl.scheduling.objective import DriftScheduler, data_weight
from kfl.scheduling.share_band import by_reason, nobody_there, reachable, serve, standing
from kfl.scheduling.status import Status


@dataclass(frozen=True)
class Lyapunov(DriftScheduler):
    """The paper's Algorithm 3: virtual energy queues, devices taken in order of their worth.

    >>> scheduler, ones = Lyapunov(v=0.01), np.ones(2)
    >>> state = scheduler.init(budget_j=20 * ones, horizon=200)
    >>> seen = Observation(round=0, seed=0, samples=600 * ones, available=ones > 0, compute_time_s=0.5 * ones,
    ...                    base_energy_j=0.05 * ones, battery_j=20 * ones, hard_budget=False, uplink=None)
    >>> decision = scheduler.decide(state, seen)
    >>> decision.chosen, decision.objective
    (array([ True,  True]), -12.0)
    """

    name: ClassVar[str] = "lyapunov"

    as_printed: bool = False
    """Give devices with q_k = 0 the least share, as the paper says, and use no ε."""

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        """Algorithm 3 for one round."""
        if self.as_printed and observation.uplink is not None and not observation.uplink.device.is_paper_model:
            right = "false in a cell with whole devices: the printed rule is about the printed energy model"
            raise ConfigError("scheduler.as_printed", True, right)
        seen = self.limited(state, observation)
        data_value = self.round_v(state, observation) * data_weight(self.gamma, observation.round)
        candidates, order = line_up(data_value, self.small_price(state, seen), state.queue_j, seen)
        chosen = np.zeros(observation.size, bool)
        chosen[order[: best_prefix(candidates)]] = True
        rule = printed_rule if self.as_printed else solve_shares
        decision = serve(seen, chosen, self.energy_weight(state, observation), rule)
        objective = self.objective(state, observation, decision)
        return replace(decision, objective=objective, status=_status(observation, decision))

    def small_price(self, state: SchedulerState, observation: Observation) -> float:
        """ε in joules of queue; the printed rule has none."""
        return 0.0 if self.as_printed else super().small_price(state, observation)


def line_up(
    data_value: float, extra: float, queue_j: FloatArray, observation: Observation
) -> tuple[Candidates, NDArray[np.intp]]:
    """The devices in play, in the order of Algorithm 3, and their indices. `data_value` is V γ_t."""
    possible, floor = reachable(observation)
    value = data_value * observation.samples
    order = _order(value, queue_j, observation, floor, possible)
    candidates = Candidates.of(
        observation.curve.take(order),
        floor[order],
        queue_j[order],
        value[order],
        observation.base_energy_j[order],
        extra,
    )
    return candidates, order


def _order(
    value: FloatArray, queue_j: FloatArray, observation: Observation, floor: FloatArray, possible: BoolArray
) -> NDArray[np.intp]:
    """Lines 2 and 3: ascending Δ_k = −V γ D_k + q_k (E_L + E_U(1/K)), ties by θ^min, then by index."""
    busy = queue_j > 0
    log_upload = observation.curve.log_energy_j(1.0 / len(value))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        log_queue = np.log(queue_j)
        cost = np.where(busy, queue_j * observation.base_energy_j + np.exp(log_queue + log_upload), 0.0)
        # Where the estimate overflows, its logarithm decides.
        overflow = np.where(np.isinf(cost), log_queue + log_upload, 0.0)
    members = np.flatnonzero(possible)
    delta = cost - value
    return members[np.lexsort((floor[members], overflow[members], delta[members]))]


def _status(observation: Observation, decision: Decision) -> Status:
    """Devices that are there but could not be in play are worth saying, and so is an empty round."""
    if not decision.status.ok:
        return decision.status
    devices = by_reason(standing(observation), observation.present)
    if devices and observation.available.any():
        return Status("unschedulable", devices, {"devices": observation.size})
    if not decision.chosen.any():
        return Status("nobody_worth") if observation.available.any() else nobody_there(observation)
    return Status()
