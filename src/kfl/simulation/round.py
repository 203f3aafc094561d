"""One round, with whatever fleet. One direction, no back and forth:

fleet.observe → scheduler.decide → fleet.exchange → algorithm.aggregate → accounts → fleet.evaluate → RoundLog
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.algorithms.sums import summation_of
from kfl.engine import RoundKey
from kfl.scheduling import Decision, Status
from kfl.scheduling.accounts import Accounts, decide, settle
from kfl.scheduling.share_band import kept_out
from kfl.simulation.fleet import Conditions, Fleet, FloatArray, IntArray, Replies
from kfl.simulation.logs import Numbers, RoundLog, numbers_of
from kfl.simulation.state import RunState

if TYPE_CHECKING:
    from kfl.models import State

log = logging.getLogger("kfl.phases")
"""Logs at debug level which phase a run is in; the tests that kill runs read it."""


def begin(fleet: Fleet) -> RunState:
    """The state before round 0: every device's starting model is evaluated once, none is stored."""
    return evaluate(fleet, initial_state(fleet), range(fleet.table.size))


def initial_state(fleet: Fleet) -> RunState:
    """The state before round 0, of models that no device has evaluated yet."""
    experiment, table = fleet.experiment, fleet.table
    batteries = None if fleet.cell is None else fleet.cell.batteries()
    return RunState(
        accounts=Accounts.start(
            experiment.scheduler, table.budget_j, experiment.rounds, batteries, fills=fleet.harvests
        ),
        server=experiment.algorithm.server_init(fleet.engine, experiment.seed),
        devices={},
        correct=np.zeros(table.size, dtype=np.int64),
        fading=None,
    )


def play_round(fleet: Fleet, state: RunState) -> tuple[RunState, RoundLog]:
    """Play one round: the state after it, and what happened.

    Args:
        fleet: The devices, simulated or real.
        state: After the round before; it is not changed.
    """
    algorithm, scheduler = fleet.experiment.algorithm, fleet.experiment.scheduler
    state = fleet.gather(state)
    number = state.round
    conditions = fleet.observe(state)
    blocks = None if fleet.cell is None else fleet.cell.config.resource_blocks
    decision = decide(scheduler, state.accounts, conditions.observation, blocks)

    log.debug("phase training, round %d", number)
    replies = fleet.exchange(state, conditions, decision, algorithm.broadcast(state.server))
    log.debug("phase aggregation, round %d", number)
    server, rejected, status = aggregate(fleet, state, decision, replies)

    spent = (replies.compute_energy_j, replies.upload_energy_j)
    following = replace(
        state,
        accounts=settle(scheduler, state.accounts, conditions.observation, decision, *spent, conditions.harvest_j),
        server=server,
        devices={**state.devices, **replies.states},
        correct=_with_reported(state, replies),
        fading=None if conditions.link is None else conditions.link.fading,
    )
    log.debug("phase evaluation, round %d", number)
    everybody = range(fleet.table.size)
    following = evaluate(fleet, following, replies.states if algorithm.predicts_alone else everybody)
    entry = round_log(fleet, following, replace(decision, status=status), replies, rejected)
    facts: dict[str, Any] = {}
    if not decision.chosen.all():
        with np.errstate(over="ignore", invalid="ignore"):
            out = kept_out(scheduler, state.accounts.scheduler, conditions.observation, decision)
        facts = {"kept_out": out}
    facts |= radio_facts(state, conditions, decision, replies)
    facts |= battery_facts(state, conditions, decision)
    return following, replace(entry, **facts)


def aggregate(
    fleet: Fleet, state: RunState, decision: Decision, replies: Replies
) -> tuple[State, list[dict[str, Any]], Status]:
    """The server's new state, the uploads that were rejected, and the round's status.

    With fewer usable devices than the quorum, or without a sum where uploads are added unseen, the server stays as it
    was.
    """
    experiment, chosen = fleet.experiment, int(decision.chosen.sum())
    rejected = list(replies.rejected)
    if isinstance(replies.sums, Status):
        return state.server, rejected, replies.sums
    if not has_quorum(replies.usable, chosen, fleet.quorum):
        return state.server, rejected, Status("no_quorum", facts={"usable": replies.usable, "chosen": chosen})
    if replies.sums is not None:
        summation = summation_of(experiment.algorithm)
        assert summation is not None  # or uploads could not have been added
        return summation.apply(state.server, replies.sums), rejected, decision.status
    key = RoundKey(experiment.seed, state.round)
    server, refused = experiment.algorithm.aggregate(state.server, replies.uploads, engine=fleet.engine, key=key)
    rejected += [rejection.to_dict() for rejection in refused]
    return server, rejected, decision.status


def has_quorum(usable: int, chosen: int, quorum: float) -> bool:
    """Whether a round counts: at least this share of the chosen devices is usable.

    >>> has_quorum(2, 4, 0.5), has_quorum(1, 4, 0.5), has_quorum(0, 4, 0.0)
    (True, False, True)
    """
    return usable >= quorum * chosen - 1e-9


def evaluate(fleet: Fleet, state: RunState, changed: Iterable[int]) -> RunState:
    """The state after an evaluation, if one is due, of devices whose predictions changed since the last."""
    waiting = state.untested.union(changed)
    if not _is_evaluated(fleet, state):
        return replace(state, untested=waiting)
    return replace(state, correct=fleet.evaluate(state, waiting), untested=frozenset())


def accuracy(fleet: Fleet, state: RunState) -> float | None:
    """Right predictions over all test samples; None in a round without an evaluation."""
    tests = fleet.table.test_samples
    if not _is_evaluated(fleet, state) or not tests.any():
        return None
    return float(state.correct[tests > 0].sum()) / int(tests.sum())


def round_log(
    fleet: Fleet, following: RunState, decision: Decision, replies: Replies, rejected: Sequence[dict[str, Any]]
) -> RoundLog:
    """What happened in the round before the state `following`."""
    chosen = np.flatnonzero(decision.chosen)
    first = int((following.accounts.participation_count[chosen] == 1).sum())
    declared = {device: float(fleet.table.bits_up[device]) for device in replies.sent}
    counted = {device: replies.sent_bits.get(device, bits) for device, bits in declared.items()}
    return RoundLog(
        round=following.round - 1,
        accuracy=accuracy(fleet, following),
        devices=numbers_of(chosen),
        share=_of(decision.share, chosen),
        power_w=_of(decision.power_w, chosen),
        compute_energy_j=_of(replies.compute_energy_j, chosen),
        upload_energy_j=_of(replies.upload_energy_j, chosen),
        time_s=replies.time_s,
        broadcast_s=replies.broadcast_s,
        bits_up=float(sum(counted.values())),
        declared_bits_up=None if counted == declared else float(sum(declared.values())),
        bits_down=float(fleet.table.bits_down[chosen].sum()) + fleet.table.first_bits_down * first,
        objective=_number(decision.objective),
        lower_bound=_number(decision.lower_bound),
        status=decision.status,
        missed=numbers_of(np.array(sorted(replies.missed), dtype=np.int64)),
        lost=numbers_of(np.array(sorted(replies.lost), dtype=np.int64)),
        rejected=tuple(rejected),
        faults=tuple(replies.faults),
        diverged=numbers_of(np.array(list(replies.diverged), dtype=np.int64)),
        clipped=tuple(replies.clipped),
    )


def radio_facts(state: RunState, conditions: Conditions, decision: Decision, replies: Replies) -> dict[str, Any]:
    """What the costs of the chosen devices follow from, for the round's log; nothing without a radio."""
    link, chosen = conditions.link, np.flatnonzero(decision.chosen)
    if link is None:
        return {}
    gain, true_gain = _of(link.uplink.gain, chosen), _of(link.true_gain, chosen)
    return {
        "gain": gain,
        "true_gain": () if true_gain == gain else true_gain,
        "compute_time_s": _of(decision.compute_time_s, chosen),
        "upload_time_s": _of(decision.upload_time_s, chosen),
        "queue_j": _of(state.accounts.scheduler.queue_j, chosen),
        "reserved_s": link.reserved_s,
        **_whole_device(conditions, decision, replies, chosen),
    }


def _whole_device(conditions: Conditions, decision: Decision, replies: Replies, chosen: IntArray) -> dict[str, Numbers]:
    """Clocks, and where the joules that devices really spent went; nothing in the printed model.

    A device that spent less than planned, or more, did so in all parts alike.
    """
    uplink = conditions.observation.uplink
    if uplink is None or uplink.device.is_paper_model or decision.clock_hz is None:
        return {}
    planned = decision.parts_j(uplink)
    compute_j, upload_j = decision.energy_j()
    computed, sent = _ratio(replies.compute_energy_j, compute_j), _ratio(replies.upload_energy_j, upload_j)
    spent = {"static_j": planned["static"] * computed}
    spent |= {f"{name}_j": planned[name] * sent for name in ("circuits", "tail", "receiving")}
    return {"clock_hz": _of(decision.clock_hz, chosen)} | {name: _of(spent[name], chosen) for name in spent}


def _ratio(spent_j: FloatArray, planned_j: FloatArray) -> FloatArray:
    return np.divide(spent_j, planned_j, out=np.zeros_like(spent_j), where=planned_j > 0)


def battery_facts(state: RunState, conditions: Conditions, decision: Decision) -> dict[str, Any]:
    """Charges, empty devices and what every device harvested, for the round's log; nothing without batteries."""
    batteries, empty, harvest_j = state.accounts.batteries, conditions.observation.empty, conditions.harvest_j
    if batteries is None:
        return {}
    return {
        "charge_j": _of(batteries.charge_j, np.flatnonzero(decision.chosen)),
        "empty": () if empty is None else numbers_of(np.flatnonzero(empty)),
        "harvest_j": () if harvest_j is None else numbers_of(harvest_j),
    }


def _is_evaluated(fleet: Fleet, state: RunState) -> bool:
    """Evaluations happen every so many rounds, and after the last."""
    return state.round % fleet.evaluate_every == 0 or state.round >= fleet.experiment.rounds


def _with_reported(state: RunState, replies: Replies) -> IntArray:
    """Right predictions of each device, with the counts that came with replies."""
    correct = state.correct.copy()
    for device, count in replies.correct.items():
        correct[device] = count
    return correct


def _of(values: FloatArray, chosen: IntArray) -> Numbers:
    return numbers_of(values[chosen])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
