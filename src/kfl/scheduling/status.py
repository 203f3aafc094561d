"""What became of a round and of each device in it: a code and device indices as data, a sentence when it is shown.

>>> status = Status("left_out", {"unavailable": (0, 2)}, {"chosen": 7})
>>> describe(status)
'Left out 2 of 7 chosen devices: devices 0, 2 not available.'
>>> describe(status, names=["hall", "roof", "yard"])
'Left out 2 of 7 chosen devices: devices hall, yard not available.'
>>> Status.from_dict(status.to_dict()) == status
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfl.core.names import LONGEST_NAME, for_terminal

OUTCOMES = {
    "scheduled": "scheduled",
    "not_chosen": "not chosen",
    "unavailable": "not available",
    "empty": "without charge",
    "past_deadline": "past the deadline after computing",
    "out_of_reach": "unable to finish with the whole band at full power",
    "no_energy": "without the energy for this round",
    "crowded": "insufficient remaining bandwidth",
}
"""What can become of a device in a round, in words. From "unavailable" on: why it could not take part."""

_SENTENCES = {
    "left_out": "Left out {count} of {chosen} chosen devices: {reasons}.",
    "unschedulable": "{count} of {devices} devices cannot be scheduled this round: {reasons}.",
    "nobody_available": "No device is available this round.",
    "nobody_charged": "No device that is there has the charge to take part this round: {reasons}.",
    "nobody_able": "No device can take part: none is available, able to finish in time and within its budget.",
    "nobody_worth": "No device is worth its energy this round.",
    "nobody_worth_able": "No device worth its energy can finish in time and within its budget: {reasons}.",
    "nobody_affords": "No device can pay for this round out of its allowance.",
    "too_few": "Only {able} devices can take part, of {wanted} asked for.",
    "too_few_blocks": "{blocks} resource blocks cannot carry {count} of the chosen devices.",
    "no_quorum": "Only {usable} of {chosen} answers could be used, fewer than the quorum: no change.",
    "no_sum": "No secure sum: {text}",
    "past_deadline": "Device {who} computes past the deadline: the time left for its upload is {upload_time_s:.4g} s.",
    "floor_above_band": "Device {who} has a share floor of {share_floor:.4g}, more than the whole band.",
    "out_of_reach": "Device {who} cannot finish in time even with the whole band at full power: "
    "it needs {needed:.4g} bit/s per Hz and reaches {reached:.4g}.",
    "crowded": "No split of the band lets these {devices} devices finish in time: "
    "their least shares add up to {total:.6g}, the largest is {largest:.4g} of device {who}.",
    "band_exceeded": "The shares add up to {total:.6g}, more than the whole band.",
}

_NAMED = 5
"""Devices that a sentence names; of more, it gives the number and the first few."""
_STORED = 100
"""Indices that `to_dict` writes for one reason; of more, it writes the first ones and the number."""


@dataclass(frozen=True)
class Status:
    """Why a decision or an allocation is as it is. `str(status)` is the sentence."""

    code: str = "ok"
    """"ok", a code with a sentence of its own, or "note" with the sentence as the fact "text"."""
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of the devices concerned, by reason: one of `OUTCOMES`."""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    """Numbers and words for the sentence, by name."""

    @property
    def ok(self) -> bool:
        """Whether there is nothing to say."""
        return self.code == "ok"

    def __str__(self) -> str:
        return describe(self)

    @staticmethod
    def note(text: str) -> Status:
        """A status with no code of its own, only a sentence."""
        return Status("note", facts={"text": text})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without what is empty; very long lists of devices are cut."""
        counts = {f"count_{reason}": len(who) for reason, who in self.devices.items() if len(who) > _STORED}
        devices = {reason: list(who[:_STORED]) for reason, who in self.devices.items()}
        facts = {**self.facts, **counts}
        return {"code": self.code, **({"devices": devices} if devices else {}), **({"facts": facts} if facts else {})}

    @staticmethod
    def from_dict(value: Mapping[str, Any] | str) -> Status:
        """Read what `to_dict` wrote, or the sentence that earlier versions wrote in its place."""
        if isinstance(value, str):
            return Status() if value == "ok" else Status.note(value)
        devices = {str(reason): tuple(int(k) for k in who) for reason, who in value.get("devices", {}).items()}
        return Status(str(value["code"]), devices, dict(value.get("facts", {})))


def describe(status: Status, names: Sequence[str] | None = None) -> str:
    """The sentence for a person, "ok" where there is none; devices by index, or by `names`.

    Args:
        status: The code with its facts.
        names: Of the devices.
    """
    if status.code == "note":
        return str(status.facts.get("text", ""))
    sentence = _SENTENCES.get(status.code)
    if sentence is None:
        return status.code if not status.devices else f"{status.code}: {_reasons(status, names)}."
    first = next((who[0] for who in status.devices.values() if who), 0)
    try:
        words = {"count": sum(_counts(status).values()), "reasons": _reasons(status, names), "who": _name(first, names)}
        return sentence.format(**{**words, **status.facts})
    except (KeyError, TypeError, ValueError):  # a damaged file: the code says enough
        return status.code


def _counts(status: Status) -> dict[str, int]:
    return {reason: int(status.facts.get(f"count_{reason}", len(who))) for reason, who in status.devices.items()}


def _reasons(status: Status, names: Sequence[str] | None) -> str:
    counts = _counts(status)
    return "; ".join(
        f"{_who(who, counts[reason], names)} {OUTCOMES.get(reason, reason)}" for reason, who in status.devices.items()
    )


def _who(devices: Sequence[int], count: int, names: Sequence[str] | None) -> str:
    shown = ", ".join(_name(device, names) for device in devices[:_NAMED])
    if count > _NAMED:
        return f"{count} devices ({shown}, …)"
    return f"device{'s' if count > 1 else ''} {shown}"


def _name(device: int, names: Sequence[str] | None) -> str:
    return for_terminal(names[device], LONGEST_NAME) if names is not None and device < len(names) else str(device)
