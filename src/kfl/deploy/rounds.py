"""One round of a real fleet, from the channel to the log; the same functions as the simulator's, one after another:

channel → scheduler.decide → messages out, answers in → every answer judged → algorithm.aggregate → accounts → log
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import Rejection, Upload
from kfl.core.text import scrub
from kfl.deploy.courier import Answer, Courier, NoReply
from kfl.deploy.profile import MOST_SAMPLES
from kfl.deploy.protocol import PROTOCOL_VERSION, RefusedError, Values, check_version, whole, word
from kfl.deploy.records import to_record
from kfl.deploy.roster import Member, Roster
from kfl.deploy.site import FleetSite
from kfl.deploy.validation import check_counts, energy_limits, enough, read_arrays, refuse_energy
from kfl.engine import RoundKey
from kfl.runfolder import RunState
from kfl.scheduling import Status
from kfl.simulation.air import decide, observe
from kfl.simulation.round import log_decision

if TYPE_CHECKING:
    from kfl.engine import Engine
    from kfl.runfolder import RoundLog
    from kfl.scheduling import Decision, Observation
    from kfl.wireless import LinkState

FloatArray = NDArray[np.float64]
log = logging.getLogger("kfl")


@dataclass
class Verdicts:
    """What became of the chosen devices."""

    uploads: list[Upload] = field(default_factory=list)
    fine: list[int] = field(default_factory=list)
    """Devices that did their work, whether or not their algorithm uploads anything."""
    rejected: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """Devices that have other data or another model than they said."""
    correct: dict[int, int] = field(default_factory=dict)
    gains: dict[int, float] = field(default_factory=dict)
    energy_j: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Computing and upload, as reported and plausible."""


@dataclass(frozen=True)
class RoundResult:
    """A round that is over."""

    state: RunState
    entry: RoundLog
    verdicts: Verdicts
    facts: dict[str, Any]
    """Real times and bytes, for the fleet's own record."""


def play_round(
    roster: Roster,
    site: FleetSite,
    engine: Engine,
    courier: Courier,
    state: RunState,
    nodes: Mapping[int, str],
    gains: FloatArray | None,
) -> RoundResult:
    """Play one round with the devices that are there."""
    experiment, fleet = roster.config.experiment, roster.config.fleet
    started, before_bytes = time.perf_counter(), courier.sent_bytes
    present = roster.present(nodes)
    link = site.hear(state, gains)
    available = np.zeros(site.devices, dtype=bool)
    available[[d for d in present if gains is None or np.isfinite(gains[d])]] = True
    observation = replace(observe(site, state, link), available=available)
    decision = decide(site, state, link, observation)
    chosen = [int(device) for device in np.flatnonzero(decision.chosen)]

    decided = time.perf_counter()
    contents = _messages(roster, state, observation, decision, present)
    answers = courier.ask(contents, "train", str(state.round), fleet.deadline_s)
    answered = time.perf_counter()
    verdicts = judge(roster, site, state, observation, decision, answers)
    if gains is None and link is not None:
        _lose_in_outage(verdicts, link, decision)
    server, status = state.server, decision.status
    if enough(len(verdicts.fine), len(chosen), fleet.quorum):
        key = RoundKey(experiment.seed, state.round)
        server, refused = experiment.algorithm.aggregate(state.server, verdicts.uploads, engine=engine, key=key)
        verdicts.rejected += [rejection.to_dict() for rejection in refused]
    elif chosen:
        status = Status("no_quorum", facts={"usable": len(verdicts.fine), "chosen": len(chosen)})
    compute, upload = _spent(observation, decision, verdicts, answers)
    following = replace(
        state,
        round=state.round + 1,
        server=server,
        scheduler=experiment.scheduler.update(state.scheduler, decision, compute + upload),
        compute_energy_j=state.compute_energy_j + compute,
        upload_energy_j=state.upload_energy_j + upload,
        taken=state.taken + decision.chosen,
        correct=_correct(state, verdicts),
        fading=None if link is None else link.fading,
    )
    ended = time.perf_counter()
    sent = [device for device in chosen if isinstance(answers[device], Answer)]
    entry = replace(
        log_decision(state.round, decision, compute, upload),
        accuracy=accuracy(roster, following),
        time_s=ended - started,
        bits_up=float(site.bits_up[sent].sum()),
        bits_down=float(site.bits_down[chosen].sum()),
        status=status,
        lost=tuple(sorted(verdicts.lost)),
        rejected=tuple(verdicts.rejected),
        faults=tuple(verdicts.faults),
        diverged=tuple(verdicts.diverged),
    )
    facts = {
        "round": state.round,
        "decide_s": decided - started,
        "wait_s": answered - decided,
        "judge_s": ended - answered,
        "sent_bytes": courier.sent_bytes - before_bytes,
        "answers": {str(d): _facts(answer) for d, answer in answers.items()},
        "correct": {str(d): right for d, right in verdicts.correct.items()},
        "available": int(available.sum()),
    }
    return RoundResult(following, entry, verdicts, facts)


def _messages(
    roster: Roster, state: RunState, observation: Observation, decision: Decision, present: Mapping[int, Member]
) -> dict[int, tuple[int, Any]]:
    """For each chosen device its node and its message: what all get, and advice of its own."""
    experiment = roster.config.experiment
    common: Values = {
        "protocol": PROTOCOL_VERSION,
        "kind": "round",
        "run": roster.run,
        "round": state.round,
        "seed": experiment.seed,
        "algorithm": json.dumps(experiment.to_table()["algorithm"]),
        "deadline_s": roster.config.fleet.deadline_s,
    }
    knowledge = experiment.algorithm.broadcast(state.server)
    contents = {}
    for device in np.flatnonzero(decision.chosen).tolist():
        advice = {
            "share": float(decision.share[device]),
            "power_w": float(decision.power_w[device]),
            "upload_time_s": float(decision.upload_time_s[device]),
            "compute_energy_j": float(observation.compute_energy_j[device]),
            "upload_energy_j": float(decision.upload_energy_j[device]),
        }
        contents[device] = (present[device].node, to_record({**common, **advice}, knowledge))
    return contents


def judge(
    roster: Roster,
    site: FleetSite,
    state: RunState,
    observation: Observation,
    decision: Decision,
    answers: Mapping[int, Answer | NoReply],
) -> Verdicts:
    """Look at every answer; what cannot be used is noted with its reason and the rest goes on."""
    verdicts = Verdicts()
    for device, answer in sorted(answers.items()):
        if isinstance(answer, NoReply):
            verdicts.lost.append(device)
            verdicts.faults.append({"device": device, "fault": answer.kind, "reason": answer.reason})
            continue
        try:
            _judge_one(verdicts, roster, site, state, observation, decision, device, answer)
        except RefusedError as problem:
            verdicts.rejected.append(Rejection(device, problem.code, problem.facts).to_dict())
    return verdicts


def _judge_one(
    verdicts: Verdicts,
    roster: Roster,
    site: FleetSite,
    state: RunState,
    observation: Observation,
    decision: Decision,
    device: int,
    answer: Answer,
) -> None:
    values, profile = answer.values, roster.members[device].profile
    check_version(values)
    if values.get("status") == "refused":
        raise RefusedError(f"it refused: {word(values, 'reason')}")
    if values.get("kind") != "round":
        raise RefusedError("it is no answer to a round")
    said = whole(values, "round", 0, MOST_SAMPLES), whole(values, "device", 0, MOST_SAMPLES)
    if said != (state.round, device):
        raise RefusedError(f"it answers for round {said[0]} of device {said[1]}")
    _judge_energy(verdicts, roster, site, observation, decision, device, values)
    if word(values, "digest") != profile.digest():
        verdicts.changed.append(device)
        raise RefusedError("its data, model or hardware changed since it said what it has; it is asked again")
    correct = whole(values, "correct", 0, profile.test_samples)
    if values.get("status") == "diverged":
        verdicts.diverged.append(device)
        verdicts.correct[device] = correct
        return
    if values.get("status") != "ok":
        raise RefusedError(f"its status is {scrub(values.get('status'), 40)}")
    import torch

    algorithm = roster.config.experiment.algorithm
    formats = algorithm.upload_format(state.server)
    arrays = read_arrays(answer.arrays, formats)
    check_counts(arrays, formats, profile)
    if arrays:
        verdicts.uploads.append(Upload(device, {name: torch.from_numpy(array) for name, array in arrays.items()}))
    verdicts.fine.append(device)
    verdicts.correct[device] = correct
    gain = values.get("gain")
    if isinstance(gain, float) and 0 < gain < 1e6:
        verdicts.gains[device] = gain


def _judge_energy(
    verdicts: Verdicts,
    roster: Roster,
    site: FleetSite,
    observation: Observation,
    decision: Decision,
    device: int,
    values: Values,
) -> None:
    """Reported energy that cannot be true is not believed: the planned amount is charged and the report noted.

    The upload itself is used all the same; a meter that is broken says nothing about knowledge.
    """
    fleet = roster.config.fleet
    limits = energy_limits(
        fleet.max_compute_power_w,
        float(site.max_power_w[device]),
        fleet.deadline_s,
        float(observation.compute_energy_j[device]),
        float(decision.upload_energy_j[device]),
    )
    compute_j, upload_j = values.get("compute_energy_j"), values.get("upload_energy_j")
    reason = refuse_energy(compute_j, upload_j, limits)
    if reason:
        verdicts.faults.append({"device": device, "fault": "energy", "reason": reason})
    else:
        verdicts.energy_j[device] = (float(compute_j), float(upload_j))  # type: ignore[arg-type]  # just checked


def _lose_in_outage(verdicts: Verdicts, link: LinkState, decision: Decision) -> None:
    """With a simulated channel that the server does not know exactly, uploads are lost as the simulator loses them."""
    outage = set(np.flatnonzero(link.outage(decision.share, decision.power_w)).tolist())
    gone = [device for device in verdicts.fine if device in outage]
    verdicts.lost += gone
    verdicts.fine = [device for device in verdicts.fine if device not in outage]
    verdicts.uploads = [upload for upload in verdicts.uploads if upload.device not in outage]
    verdicts.faults += [{"device": device, "fault": "outage"} for device in gone]


def _spent(
    observation: Observation,
    decision: Decision,
    verdicts: Verdicts,
    answers: Mapping[int, Answer | NoReply],
) -> tuple[FloatArray, FloatArray]:
    """Joules of each device: what it reported, or the plan where nothing believable came.

    A device that is silent may have worked and sent; it is charged as planned, so that a queue never hopes. Only one
    whose message never left the server has spent nothing.
    """
    compute = np.where(decision.chosen, observation.compute_energy_j, 0.0)
    upload = np.where(decision.chosen, decision.upload_energy_j, 0.0)
    for device, answer in answers.items():
        if device in verdicts.energy_j:
            compute[device], upload[device] = verdicts.energy_j[device]
        elif isinstance(answer, NoReply) and answer.kind == "unsent":
            compute[device] = upload[device] = 0.0
    return compute, upload


def _correct(state: RunState, verdicts: Verdicts) -> NDArray[np.int64]:
    correct = state.correct.copy()
    for device, number in verdicts.correct.items():
        correct[device] = number
    return correct


def accuracy(roster: Roster, state: RunState) -> float | None:
    """Right test predictions over all test samples of all devices that joined, as they last reported."""
    tests = {device: member.profile.test_samples for device, member in roster.members.items()}
    total = sum(tests.values())
    return float(state.correct[list(tests)].sum()) / total if total else None


def _facts(answer: Answer | NoReply) -> dict[str, Any]:
    """How long an answer took and how large it is; how long the device says it worked."""
    if isinstance(answer, NoReply):
        return {"seconds": answer.seconds, "silence": answer.kind}
    facts: dict[str, Any] = {"seconds": answer.seconds, "bytes": answer.bytes}
    worked = answer.values.get("work_s")
    return {**facts, "work_s": worked} if isinstance(worked, float) and 0 <= worked < 1e9 else facts
