"""What a device's answer to a round is good for. An answer is a stranger's: nothing in it is used before it is checked.

    question, answer ──> judge ──> Verdict

A `Verdict` is a value: a refusal, a lost answer or energy that cannot be true is noted in it, and the round goes on
with the other devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kfl.algorithms import Upload, UploadFormat
from kfl.core.text import scrub
from kfl.deploy.courier import Answer, NoReply
from kfl.deploy.profile import MOST_SAMPLES, Profile
from kfl.deploy.protocol import RefusedError, Values, check_version, whole, word
from kfl.deploy.validation import EnergyLimits, check_counts, read_arrays, refuse_energy

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Question:
    """What one device was asked, as far as its answer is judged by it."""

    round: int
    device: int
    profile: Profile
    formats: UploadFormat
    limits: EnergyLimits


@dataclass(frozen=True, eq=False)
class Verdict:
    """What became of one question. A device is usable if it did what it was asked to."""

    usable: bool = False
    upload: Upload | None = None
    correct: int | None = None
    """Right test predictions, as reported."""
    gain: float | None = None
    """Channel gain, as reported."""
    energy_j: tuple[float, float] | None = None
    """Computing and upload, as reported and plausible; None where the plan is charged."""
    lost: bool = False
    diverged: bool = False
    refusal: RefusedError | None = None
    faults: tuple[dict[str, Any], ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the device has other data, another model or other hardware than it said."""
        return self.refusal is not None and self.refusal.code == "changed"

    def lost_in_outage(self, device: int) -> Verdict:
        """The same work, whose upload the channel lost."""
        faults = (*self.faults, {"device": device, "fault": "outage"})
        return replace(self, usable=False, upload=None, lost=True, faults=faults)


def judge(question: Question, answer: Answer | NoReply) -> Verdict:
    """Check an answer against what was asked."""
    if isinstance(answer, NoReply):
        return Verdict(lost=True, faults=({"device": question.device, "fault": answer.kind, "reason": answer.reason},))
    verdict = Verdict()
    try:
        _check_addressee(question, answer.values)
        verdict = _with_energy(question, answer.values)
        return _with_work(verdict, question, answer)
    except RefusedError as problem:
        return replace(verdict, refusal=problem)


def _check_addressee(question: Question, values: Values) -> None:
    """Refuse what is not an answer to this question."""
    check_version(values)
    if values.get("status") == "refused":
        raise RefusedError("device_refused", text=word(values, "reason"))
    if values.get("kind") != "round":
        raise RefusedError("not_an_answer")
    round_index, device = whole(values, "round", 0, MOST_SAMPLES), whole(values, "device", 0, MOST_SAMPLES)
    if (round_index, device) != (question.round, question.device):
        raise RefusedError("other_round", found_round=round_index, found_device=device)


def _with_energy(question: Question, values: Values) -> Verdict:
    """Reported energy if it can be true; otherwise the planned amount is charged and the report noted as a fault.

    The upload itself is used all the same; a meter that is broken says nothing about knowledge.
    """
    compute_j, upload_j = values.get("compute_energy_j"), values.get("upload_energy_j")
    reason = refuse_energy(compute_j, upload_j, question.limits)
    if reason:
        return Verdict(faults=({"device": question.device, "fault": "energy", "reason": reason},))
    return Verdict(energy_j=(float(compute_j), float(upload_j)))  # type: ignore[arg-type]  # just checked


def _with_work(verdict: Verdict, question: Question, answer: Answer) -> Verdict:
    """The verdict with what the device learned, once every number of it is checked."""
    values, profile = answer.values, question.profile
    if word(values, "digest") != profile.digest():
        raise RefusedError("changed")
    correct = whole(values, "correct", 0, profile.test_samples)
    if values.get("status") == "diverged":
        return replace(verdict, correct=correct, diverged=True)
    if values.get("status") != "ok":
        raise RefusedError("unknown_status", found=scrub(values.get("status"), 40))
    arrays = read_arrays(answer.arrays, question.formats)
    check_counts(arrays, question.formats, profile)
    gain = values.get("gain")
    return replace(
        verdict,
        usable=True,
        upload=_upload(question.device, arrays),
        correct=correct,
        gain=gain if isinstance(gain, float) and 0 < gain < 1e6 else None,
    )


def _upload(device: int, arrays: Mapping[str, NDArray[Any]]) -> Upload | None:
    import torch

    return Upload(device, {name: torch.from_numpy(array) for name, array in arrays.items()}) if arrays else None


def answer_facts(answer: Answer | NoReply) -> dict[str, Any]:
    """How long an answer took and how large it is; how long the device says it worked."""
    if isinstance(answer, NoReply):
        return {"seconds": answer.seconds, "silence": answer.kind}
    facts: dict[str, Any] = {"seconds": answer.seconds, "bytes": answer.bytes}
    worked = answer.values.get("work_s")
    return {**facts, "work_s": worked} if isinstance(worked, float) and 0 <= worked < 1e9 else facts
