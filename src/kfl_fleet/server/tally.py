"""What a fleet did, as a fold over its rounds: status and metrics are views of it.

tally = FleetTally()
for entry, facts in rounds:     # of the history, and of fleet.jsonl
    tally.add(entry, facts)
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime

from kfl.algorithms import Rejection
from kfl.core.refusals import describe, stored_refusal
from kfl.simulation import RoundLog
from kfl_fleet.messages.records import PrivacyFacts, RoundFacts

WORKER = "worker_"
"""Codes of errors that cost a device its worker process begin with this: worker_died, worker_hung …"""
NO_ANSWER = ("late", "gone", "error", "garbled", "unsent", "outage")
"""Faults that cost a round the device's answer; the others, such as energy, only note something."""
INCIDENTS = (*NO_ANSWER, "energy", "gain", "time", "diverged", "missed")
"""What can go wrong with a device, next to a refused answer and a worker that failed."""
RECENT = 10
"""Rounds whose mean time is shown, and incidents shown."""


@dataclass(frozen=True)
class Problem:
    """Something that went wrong with a device in a round."""

    device: int
    code: str
    sentence: str


@dataclass
class DeviceTally:
    """What one device did."""

    chosen: int = 0
    """Rounds it was chosen for."""
    missed: int = 0
    """Of these, those whose broadcast did not reach it."""
    used: int = 0
    """Answers that were used."""
    late: int = 0
    """Answers that did not come in time."""
    lost: int = 0
    """Other answers that did not come."""
    rejected: int = 0
    """Answers that failed a check."""
    diverged: int = 0
    clipped: int = 0
    """Rounds in which its upload weighed less than it says."""
    energy_j: float = 0.0
    unanswered: int = 0
    """Messages since its last answer."""
    last_round: int | None = None
    """Last round with an answer that was used, counted from 1."""
    answer_s: float | None = None
    """How long its last answer took."""
    answer_time: str | None = None
    """When that came, UTC; None before kfl wrote it down."""
    correct: int | None = None
    """Right predictions that it last reported with an answer."""
    privacy: PrivacyFacts | None = None
    """What its uploads had revealed when it last took part."""
    incidents: Counter[str] = field(default_factory=Counter)
    """What went wrong and how often, by code."""


@dataclass
class FleetTally:
    """What all devices did, and the fleet as a whole."""

    rounds: int = 0
    rounds_without_quorum: int = 0
    energy_j: float = 0.0
    bits_up: float = 0.0
    bits_down: float = 0.0
    accuracy: float | None = None
    """As devices last reported it."""
    round_time: str | None = None
    """When the last round ended, UTC; None before kfl wrote it down."""
    devices: defaultdict[int, DeviceTally] = field(default_factory=lambda: defaultdict(DeviceTally))
    round_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Real times of the last rounds."""
    problems: list[str] = field(default_factory=list)
    """The last things that went wrong, newest round first."""

    def add(self, entry: RoundLog, facts: RoundFacts) -> None:
        """Count one round."""
        self.rounds += 1
        self.rounds_without_quorum += entry.status.code == "no_quorum"
        self.energy_j += entry.energy_j
        self.bits_up += entry.bits_up
        self.bits_down += entry.bits_down
        self.round_s.append(entry.time_s)
        self.accuracy = self.accuracy if entry.accuracy is None else entry.accuracy
        self.round_time = facts.time or self.round_time
        self._add_devices(entry)
        self._add_facts(facts)
        found = problems(entry)
        for problem in found:
            self.devices[problem.device].incidents[problem.code] += 1
        self.problems = [*(problem.sentence for problem in found), *self.problems][:RECENT]

    def _add_devices(self, entry: RoundLog) -> None:
        clipped = {cut["device"] for cut in entry.clipped}
        for device, compute_j, upload_j in zip(
            entry.devices, entry.compute_energy_j, entry.upload_energy_j, strict=True
        ):
            one = self.devices[device]
            one.chosen += 1
            one.energy_j += compute_j + upload_j
            one.missed += device in entry.missed
            one.diverged += device in entry.diverged
            one.clipped += device in clipped
            if device in entry.used:
                one.used, one.last_round = one.used + 1, entry.round + 1
        chosen = set(entry.devices)
        for fault in entry.faults:
            if fault["device"] in chosen:
                one = self.devices[fault["device"]]
                one.late += fault["fault"] == "late"
                one.lost += fault["fault"] in NO_ANSWER and fault["fault"] != "late"
        for refusal in entry.rejected:
            if refusal["device"] in chosen:
                self.devices[refusal["device"]].rejected += 1

    def _add_facts(self, facts: RoundFacts) -> None:
        for device, answer in facts.answers.items():
            one = self.devices[device]
            if answer.bytes is not None:
                one.unanswered, one.answer_s, one.answer_time = 0, answer.seconds, facts.time
            elif answer.silence != "unsent":
                one.unanswered += 1
        for device, count in facts.correct.items():
            self.devices[device].correct = count
        for device, spent in facts.privacy.items():
            self.devices[device].privacy = spent


def timestamp(time: str | None) -> float | None:
    """Seconds since 1970 of a time in ISO 8601; None where it is none.

    >>> timestamp("1970-01-01T00:00:02.500Z"), timestamp("soon")
    (2.5, None)
    """
    try:
        return None if time is None else datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


def problems(log: RoundLog) -> list[Problem]:
    """What went wrong in a round."""
    where = f"Round {log.round + 1}, device"
    found = []
    for one in log.faults:
        cause, facts = stored_refusal(one)
        why = describe(cause, facts)
        code = cause if cause.startswith(WORKER) else str(one.get("fault", "fault"))
        found.append((one["device"], code, f"{code}: {why}" if why else code))
    found += [(one["device"], "rejected", f"rejected: {Rejection.from_dict(one).describe()}") for one in log.rejected]
    found += [(device, "missed", "not reached by the broadcast") for device in log.missed]
    found += [(device, "diverged", "its training diverged to infinity") for device in log.diverged]
    return [Problem(device, code, f"{where} {device}, {what.rstrip('.')}.") for device, code, what in found]
