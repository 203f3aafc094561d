"""Whether a device's answer to a round can be used: each array, count and joule is checked before anything is averaged.

    question, answer ──> judge ──> Verdict

Nothing in an answer is trusted. A `Verdict` is a value: a refusal, a lost answer or implausible energy is recorded in
it, and the round goes on with the other devices. What contradicts the device's own profile is refused; counts that
agree with a profile of which the server believes less (`claim_limits`) are lowered to what it believes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import ArrayFormat, Upload, UploadFormat
from kfl.core.text import scrub
from kfl_fleet.messages.frames import RawArray
from kfl_fleet.messages.profile import MOST_SAMPLES, Profile
from kfl_fleet.messages.protocol import RefusedError, Values, check_version, whole, word
from kfl_fleet.server.claim_limits import MOST_GAIN, Belief, Cut
from kfl_fleet.server.messaging import Answer, NoReply

TABLE_BYTES = 1 << 16
"""An answer's table is smaller than this."""
ROUNDING = 1e-6
"""Energy that is below what it must be by less than this part is not remarkable."""


@dataclass(frozen=True)
class EnergyLimits:
    """The least and the most that one device can spend in one round in which it does what it is asked to."""

    compute_j: float
    """The largest draw of its processor for the whole deadline, or the formula's amount if that is more."""
    upload_j: float
    """Its largest transmit power for the whole deadline, or what its decision costs if that is more."""
    least_compute_j: float = 0.0
    """What the formula says where that is its meter; otherwise what no processor does the work without."""
    least_upload_j: float = 0.0
    """What an upload of the power and the time that were planned radiates."""


@dataclass(frozen=True)
class Question:
    """What one device was asked: everything its answer is checked against."""

    round: int
    device: int
    profile: Profile
    """As the device said it."""
    belief: Belief
    formats: UploadFormat
    limits: EnergyLimits
    deadline_s: float


@dataclass(frozen=True, eq=False)
class Verdict:
    """What became of one question. A device is usable if it did what it was asked to."""

    usable: bool = False
    upload: Upload | None = None
    correct: int | None = None
    """Right test predictions, as far as its test samples are believed."""
    gain: float | None = None
    """Channel gain, as reported and possible."""
    work_s: float | None = None
    """How long the device worked, as reported and possible."""
    energy_j: tuple[float, float] | None = None
    """Computing and upload, as reported and plausible; None where the plan is charged."""
    lost: bool = False
    diverged: bool = False
    refusal: RefusedError | None = None
    faults: tuple[dict[str, Any], ...] = ()
    clipped: tuple[dict[str, Any], ...] = ()
    """Counts that were lowered: a code and its facts."""

    @property
    def changed(self) -> bool:
        """Whether the device's data, model or hardware differ from its profile."""
        return self.refusal is not None and self.refusal.code == "changed"

    def lost_in_outage(self, device: int) -> Verdict:
        """The same work, whose upload the channel lost."""
        faults = (*self.faults, {"device": device, "fault": "outage"})
        return replace(self, usable=False, upload=None, lost=True, faults=faults)


def judge(question: Question, answer: Answer | NoReply) -> Verdict:
    """Check an answer against what was asked."""
    if isinstance(answer, NoReply):
        return Verdict(lost=True, faults=({"device": question.device, "fault": answer.kind, **answer.why.to_dict()},))
    verdict = Verdict()
    try:
        _check_addressee(question, answer.values)
        verdict = _with_time(_with_energy(question, answer.values), question, answer)
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
    """Reported energy if it is plausible; otherwise the planned amount is charged and the report becomes a fault.

    The upload is used all the same: a broken meter says nothing about the knowledge.
    """
    compute_j, upload_j = values.get("compute_energy_j"), values.get("upload_energy_j")
    limits = question.limits
    if values.get("status") == "diverged":  # nothing was sent
        limits = replace(limits, least_upload_j=0.0)
    problem = refuse_energy(compute_j, upload_j, limits)
    if problem is not None:
        return Verdict(faults=({"device": question.device, "fault": "energy", **problem.to_dict()},))
    return Verdict(energy_j=(float(compute_j), float(upload_j)))  # type: ignore[arg-type]  # just checked


def _with_time(verdict: Verdict, question: Question, answer: Answer) -> Verdict:
    """Add how long the device says it worked: not longer than it had.

    It had the deadline, though its answer may be quicker: one that is asked again repeats its first answer.
    """
    worked, most_s = answer.values.get("work_s"), max(question.deadline_s, answer.seconds)
    if isinstance(worked, float) and 0 <= worked <= most_s:
        return replace(verdict, work_s=worked)
    return verdict if worked is None else _flagged(verdict, question, "time", worked, most_s)


def _with_gain(verdict: Verdict, question: Question, values: Values) -> Verdict:
    """Add the gain that the device says it has, if a channel can have it."""
    gain = values.get("gain")
    if isinstance(gain, float) and 0 < gain <= MOST_GAIN:
        return replace(verdict, gain=gain)
    return verdict if gain is None else _flagged(verdict, question, "gain", gain, MOST_GAIN)


def _flagged(verdict: Verdict, question: Question, what: str, found: object, limit: float) -> Verdict:
    """The verdict without a number that cannot be true, and with a note of it."""
    shown = float(found) if isinstance(found, int | float) and isfinite(found) else 0.0
    fault = {"device": question.device, "fault": what, "code": f"{what}_impossible", "found": shown, "limit": limit}
    return replace(verdict, faults=(*verdict.faults, fault))


def _with_work(verdict: Verdict, question: Question, answer: Answer) -> Verdict:
    """Add what the device learned, after checking every number of it."""
    values, profile = answer.values, question.profile
    if word(values, "digest") != profile.digest():
        raise RefusedError("changed")
    correct = question.belief.correct(whole(values, "correct", 0, profile.test_samples))
    if values.get("status") == "diverged":
        return replace(verdict, correct=correct, diverged=True)
    if values.get("status") != "ok":
        raise RefusedError("unknown_status", found=scrub(values.get("status"), 40))
    arrays = read_arrays(answer.arrays, question.formats)
    check_counts(arrays, question.formats, profile)
    arrays, clipped = lower_counts(arrays, question.formats, question.belief)
    verdict = _with_gain(verdict, question, values)
    note = () if clipped is None else ({"device": question.device, **clipped},)
    return replace(
        verdict,
        usable=True,
        upload=_upload(question.device, arrays),
        correct=correct,
        clipped=(*verdict.clipped, *note),
    )


def _upload(device: int, arrays: Mapping[str, NDArray[Any]]) -> Upload | None:
    import torch

    return Upload(device, {name: torch.from_numpy(array) for name, array in arrays.items()}) if arrays else None


def read_arrays(raw: Mapping[str, RawArray], formats: UploadFormat) -> dict[str, NDArray[Any]]:
    """The arrays of an answer if they are exactly those declared: names, types and shapes, all finite."""
    missing, strange = sorted(set(formats) - set(raw)), sorted(set(raw) - set(formats))
    if missing:
        raise RefusedError("missing_array", array=missing[0])
    if strange:
        raise RefusedError("unexpected_array", array=scrub(strange[0], 40))
    return {name: _read(name, raw[name], form) for name, form in formats.items()}


def _read(name: str, raw: RawArray, form: ArrayFormat) -> NDArray[Any]:
    if raw.shape != form.shape:
        raise RefusedError("shape", array=name, found=list(raw.shape), expected=list(form.shape))
    if np.dtype(raw.dtype) != np.dtype(form.dtype):
        raise RefusedError("dtype", array=name, found=raw.dtype, expected=form.dtype)
    array = raw.array()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RefusedError("not_finite", array=name)
    return array


def most_bytes(formats: UploadFormat) -> int:
    """The most that an answer can hold when unpacked: the arrays it was asked for, and a table."""
    sizes = (int(np.prod(form.shape, dtype=np.int64)) * np.dtype(form.dtype).itemsize for form in formats.values())
    return sum(sizes) + TABLE_BYTES


def check_counts(arrays: Mapping[str, NDArray[Any]], formats: UploadFormat, profile: Profile) -> None:
    """Counts are integers of samples, and no more than the device said it has.

    Counts with noise on purpose are not whole; they may exceed all samples by ten standard deviations of the noise,
    which happens once in 10²³ draws.
    """
    for name, form in formats.items():
        if form.holds == "values":
            continue
        found = np.atleast_1d(arrays[name])
        if bool((found < 0).any()):
            raise RefusedError("negative_count", array=name)
        if form.noise > 0:
            if bool((found > profile.samples + 10 * form.noise).any()):
                raise RefusedError("too_many_samples", array=name, limit=profile.samples)
            continue
        if found.dtype.kind == "f" and bool((found != np.trunc(found)).any()):
            raise RefusedError("not_whole", array=name)
        limit = np.array([profile.samples] if form.holds == "samples" else profile.samples_per_class or profile.samples)
        over = np.flatnonzero(found > limit)
        if len(over):
            label = {"label": int(over[0])} if form.holds == "counts" else {}
            most = int(np.broadcast_to(limit, found.shape)[over[0]])
            raise RefusedError("too_many_samples", array=name, found=int(found[over[0]]), limit=most, **label)


def lower_counts(
    arrays: Mapping[str, NDArray[Any]], formats: UploadFormat, belief: Belief
) -> tuple[dict[str, NDArray[Any]], Cut | None]:
    """Counts as far as the device's samples are believed, and why they were lowered; None where they were not.

    Counts per class keep their proportions, and a class that is held stays held.
    """
    cut, said = belief.weight_cut, belief.profile.samples
    weighed = [name for name, form in formats.items() if form.holds != "values"]
    if cut is None or not weighed:
        return dict(arrays), None
    lowered = dict(arrays)
    for name in weighed:
        found = arrays[name]
        part = found.astype(np.float64) * (belief.samples / said)
        if formats[name].noise == 0:  # integers
            part = np.where(found > 0, np.maximum(np.floor(part), 1.0), part)
        lowered[name] = np.asarray(np.minimum(found, part)).astype(found.dtype)
    return lowered, cut


def energy_limits(
    max_compute_power_w: float,
    max_power_w: float,
    deadline_s: float,
    planned_compute_j: float,
    planned_upload_j: float,
    *,
    least_compute_j: float = 0.0,
    radiated_j: float = 0.0,
) -> EnergyLimits:
    """The least and the most a device can have spent between the server's message and the deadline.

    Twice the plan is always plausible: a simulated radio's plan has another clock than the deadline of real time. What
    was planned is plausible, too.

    >>> energy_limits(10.0, 1.0, 60.0, 0.1, 1e-8)
    EnergyLimits(compute_j=600.0, upload_j=60.0, least_compute_j=0.0, least_upload_j=0.0)
    """
    return EnergyLimits(
        compute_j=max(max_compute_power_w * deadline_s, 2 * planned_compute_j),
        upload_j=max(max_power_w * deadline_s, 2 * planned_upload_j),
        least_compute_j=min(least_compute_j, planned_compute_j),
        least_upload_j=min(radiated_j, planned_upload_j),
    )


def refuse_energy(compute_j: object, upload_j: object, limits: EnergyLimits) -> RefusedError | None:
    """Why reported energy is implausible; None where it is plausible.

    >>> print(refuse_energy(-1.0, 0.0, EnergyLimits(10.0, 1.0)))
    its compute energy of -1 J is negative
    """
    for part, value, least, most in (
        ("compute", compute_j, limits.least_compute_j, limits.compute_j),
        ("upload", upload_j, limits.least_upload_j, limits.upload_j),
    ):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return RefusedError("energy_not_number", part=part)
        if not isfinite(value):
            return RefusedError("energy_not_finite", part=part)
        if value < 0:
            return RefusedError("energy_negative", part=part, found=value)
        if value < least * (1 - ROUNDING):
            return RefusedError("energy_too_low", part=part, found=value, limit=least)
        if value > most:
            return RefusedError("energy_too_high", part=part, found=value, limit=most)
    return None
