"""The server's side of a round whose uploads are added under masks: three short exchanges after the training.

    keys of all that trained ──> share ──> mask ──> reveal ──> sums, or why there are none

What a single device adds is never here. Masked integers can be checked for their number and type alone: whether a
device's values make sense, or are large, cannot be known; a device clips them itself, and how many values all devices
together clipped is part of the sum. So are the weights: a sum of more weight than all its devices together have samples
is not used, though whose fault it is cannot be known.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import ArrayFormat, UploadFormat
from kfl.algorithms.sums import Summation, Sums
from kfl.scheduling import Status
from kfl_fleet.messages.frames import as_bytes, pack
from kfl_fleet.messages.profile import MOST_SAMPLES
from kfl_fleet.messages.protocol import PROTOCOL_VERSION, Parts, RefusedError, Values, check_version, whole, word
from kfl_fleet.secure import (
    Keys,
    Layout,
    Revealed,
    ServerSum,
    SumError,
    boxes_bytes,
    pack_boxes,
    pack_devices,
    pack_keys,
    revealed_bytes,
    traffic,
    unpack_boxes,
)
from kfl_fleet.secure.terms import ANSWERS, VALUES, WEIGHTS, sum_layout
from kfl_fleet.server.messaging import Answer, NoReply
from kfl_fleet.server.verdicts import Verdict, most_bytes, read_arrays
from kfl_fleet.settings import FleetSettings

if TYPE_CHECKING:
    from kfl.models import State

log = logging.getLogger("kfl")

T = TypeVar("T")
Ask = Callable[[Mapping[int, Parts], float, int], Mapping[int, Answer | NoReply]]
"""Sends each device a message and waits for answers: messages, seconds, and the most bytes of an answer."""

KEYS: UploadFormat = {"keys": ArrayFormat((64,), "uint8")}
"""What answers a round in place of the upload."""


def masked_bits(summation: Summation, server: State, settings: FleetSettings, devices: int) -> tuple[int, int]:
    """Bits that a device sends in a secure sum of so many devices, and receives in it besides the broadcast."""
    shapes = summation.shapes(server)
    layout = sum_layout(*shapes, largest_weight=1.0, value_range=1.0, devices=devices, bits=settings.secure_bits)
    others = devices - 1 if settings.secure_neighbours is None else min(settings.secure_neighbours, devices - 1)
    up, down = traffic(layout.length, settings.secure_bits, others)
    return 8 * up, 8 * down


@dataclass
class MaskedRound:
    """The secure sum of one round."""

    settings: FleetSettings
    summation: Summation
    server: State
    run: str
    round: int
    samples: float
    """No device weighs more; all learn a number of this size, so only its power of two is sent."""
    ask: Ask
    weights: Mapping[int, float] = field(default_factory=dict)
    """Samples of each device, as far as they are believed; empty where counts have noise and cannot be checked."""
    lowered: Collection[int] = ()
    """Devices that say they have more: each receives the number that counts."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Seconds of each step, bytes of the answers, and how many values were clipped."""

    def __post_init__(self) -> None:
        settings = self.settings
        heaviest = self.summation.heaviest(self.server)
        self.largest_weight = min(heaviest, 2.0 ** math.ceil(math.log2(max(self.samples, 1.0))))
        self._dropped: dict[int, tuple[RefusedError, str | None]] = {}
        """Who did not see the sum through: why, and the kind of silence where there was no answer."""
        self._shapes = self.summation.shapes(self.server)
        self._sum = ServerSum(
            settings.secure_threshold, settings.secure_bits, self._layout(1).length, settings.secure_neighbours
        )
        self.session = self._sum.session.hex()
        """What a message calls this sum."""

    def settle(self, verdicts: Mapping[int, Verdict]) -> tuple[Sums | Status, dict[int, Verdict]]:
        """The sums of all usable uploads, or why there are none, and what became of each device on the way."""
        keys = {d: v.upload.arrays["keys"] for d, v in verdicts.items() if v.usable and v.upload is not None}
        try:
            sums: Sums | Status = self._collect({d: Keys.unpack(own.numpy().tobytes()) for d, own in keys.items()})
        except SumError as problem:
            sums = Status("no_sum", facts={"text": str(problem)})
        return sums, {device: self._seen_through(device, verdict) for device, verdict in verdicts.items()}

    def _seen_through(self, device: int, verdict: Verdict) -> Verdict:
        """A verdict without the keys; unusable where the device's upload is not in the sum."""
        if device not in self._dropped:
            liar = self._sum.faults.get(device)  # its upload is in the sum; its shares were not used
            said = () if liar is None else (RefusedError("sum_step", step="reveal", text=str(liar)).to_dict(),)
            faults = tuple({"device": device, "fault": "garbled", **facts} for facts in said)
            return replace(verdict, upload=None, faults=(*verdict.faults, *faults))
        why, silence = self._dropped[device]
        if silence is None:
            return replace(verdict, usable=False, upload=None, refusal=why)
        fault = {"device": device, "fault": silence, **why.to_dict()}
        return replace(verdict, usable=False, upload=None, lost=True, faults=(*verdict.faults, fault))

    def _collect(self, keys: Mapping[int, Keys]) -> Sums:
        try:
            opened = self._sum.open(keys)
        finally:  # its keys are in no sum
            for device, problem in self._sum.faults.items():
                self._dropped[device] = RefusedError("sum_step", step="advertise", text=str(problem)), None
        boxes = self._step(
            "share",
            {d: ({"threshold": needed}, {"peers": pack_keys(peers)}) for d, (peers, needed) in opened.items()},
            {d: ArrayFormat((boxes_bytes(len(peers)),), "uint8") for d, (peers, _) in opened.items()},
            lambda array: unpack_boxes(array.tobytes()),
        )
        routed = self._sum.route(boxes)
        bits, layout = self.settings.secure_bits, self._layout(len(opened), self._sum.session)
        terms: Values = {"devices": len(opened), "bits": bits, "checks": layout.checks}
        terms |= {"largest_weight": self.largest_weight, "range": self.settings.secure_range}
        masked = self._step(
            "mask",
            {device: ({**terms, **self._own(device)}, {"boxes": pack_boxes(own)}) for device, own in routed.items()},
            dict.fromkeys(routed, ArrayFormat((layout.length,), f"int{bits}")),
            lambda array: array.view(f"u{bits // 8}"),
        )
        survivors = self._sum.survivors(masked)
        shares = self._step(
            "reveal",
            {device: ({}, {"survivors": pack_devices(left)}) for device, left in survivors.items()},
            {device: ArrayFormat((revealed_bytes(len(routed[device]) + 1),), "uint8") for device in survivors},
            lambda array: Revealed.unpack(array.tobytes()),
        )
        # Who fell silent after its masked upload arrived is in the sum all the same.
        self._dropped = {device: why for device, why in self._dropped.items() if device not in survivors}
        try:
            arrays, clipped = layout.decode(self._sum.total(shares))
        except SumError:  # a share may be wrong: without it the sum may be right
            arrays, clipped = layout.decode(self._sum.total(shares, doubtful=True))
        self._check_weights(arrays, layout, survivors)
        return self._read(arrays, clipped)

    def _own(self, device: int) -> Values:
        return {"own_weight": self.weights[device]} if device in self.lowered else {}

    def _check_weights(
        self, arrays: Mapping[str, NDArray[np.float64]], layout: Layout, survivors: Collection[int]
    ) -> None:
        """SumError where devices weigh more together than they have samples, or less than nothing."""
        if not self.weights:
            return
        most = sum(self.weights[device] for device in survivors)
        for name in (name for name in arrays if name.startswith(WEIGHTS)):
            rounding = layout.grid(name).error * max(arrays[name].size, 1)
            if arrays[name].sum() > most + rounding or arrays[name].min(initial=0.0) < -rounding:
                total = float(arrays[name].sum())
                raise SumError(f"Its devices weigh {total:.15g} together and have {most:g} samples: one of them lies.")

    def _layout(self, devices: int, session: bytes = b"") -> Layout:
        return sum_layout(
            *self._shapes,
            largest_weight=self.largest_weight,
            value_range=self.settings.secure_range,
            devices=devices,
            bits=self.settings.secure_bits,
            session=session,
        )

    def _step(
        self,
        step: str,
        messages: Mapping[int, tuple[Values, Mapping[str, bytes]]],
        formats: Mapping[int, ArrayFormat],
        read: Callable[[NDArray[Any]], T],
    ) -> dict[int, T]:
        """Ask devices for one step: what each answers. Who does not answer as asked has dropped out."""
        began, deadline_s = time.perf_counter(), self.settings.secure_deadline_s
        table: Values = {"protocol": PROTOCOL_VERSION, "kind": "sum", "step": step, "session": self.session}
        table |= {"run": self.run, "round": self.round, "deadline_s": deadline_s}
        contents = {
            device: pack({**table, **values}, {name: as_bytes(data) for name, data in arrays.items()})
            for device, (values, arrays) in messages.items()
        }
        expected = {device: {ANSWERS[step]: form} for device, form in formats.items()}
        most = max((most_bytes(form) for form in expected.values()), default=0)
        found: dict[int, T] = {}
        for device, answer in sorted(self.ask(contents, deadline_s, most).items()):
            try:
                found[device] = read(self._answer(device, step, answer, expected[device]))
                self.facts["bytes"] = self.facts.get("bytes", 0) + getattr(answer, "bytes", 0)
            except (RefusedError, SumError) as problem:
                why = RefusedError("sum_step", step=step, text=str(problem))
                self._dropped[device] = why, answer.kind if isinstance(answer, NoReply) else None
        self.facts[f"{step}_s"] = time.perf_counter() - began
        return found

    def _answer(self, device: int, step: str, answer: Answer | NoReply, formats: UploadFormat) -> NDArray[Any]:
        """The array of an answer, if it is one to this question."""
        if isinstance(answer, NoReply):
            raise answer.why
        values = answer.values
        check_version(values)
        if values.get("status") == "refused":
            raise RefusedError("device_refused", text=word(values, "reason"))
        if (values.get("kind"), values.get("step"), values.get("session")) != ("sum", step, self.session):
            raise RefusedError("not_an_answer")
        if whole(values, "device", 0, MOST_SAMPLES) != device:
            raise RefusedError("other_round", found_round=self.round, found_device=values["device"])
        return read_arrays(answer.arrays, formats)[ANSWERS[step]]

    def _read(self, arrays: Mapping[str, NDArray[np.float64]], clipped: int) -> Sums:
        import torch

        if clipped:
            log.warning(
                "Round %d: devices clipped %d of their values, which biases the result: fleet.secure_range is %g, and "
                "should be larger.",
                *(self.round, clipped, self.settings.secure_range),
            )
        self.facts["clipped"] = clipped
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        return Sums(
            {name.removeprefix(VALUES): value for name, value in tensors.items() if name.startswith(VALUES)},
            {name.removeprefix(WEIGHTS): value for name, value in tensors.items() if name.startswith(WEIGHTS)},
        )
