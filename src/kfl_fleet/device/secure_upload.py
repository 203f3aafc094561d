"""A device's upload in a secure sum: what it adds stays here, and leaves under masks alone.

    server → device   kind = "round" with a session   train as ever, and answer with keys in place of the upload
    server → device   kind = "sum", step = "share"    the others' keys; answered with sealed shares
    server → device   kind = "sum", step = "mask"     sealed shares of others; answered with the masked upload
    server → device   kind = "sum", step = "reveal"   whose uploads arrived; answered with one share for each device

Everything lives in the worker's memory. A device that restarts in mid-round has new keys, which were not requested: it
has dropped out, as if it had lost its connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl_fleet.messages.frames import as_bytes
from kfl_fleet.messages.protocol import PROTOCOL_VERSION, RefusedError, Values, number, whole
from kfl_fleet.secure import (
    RANGES,
    SESSION_BYTES,
    DeviceSum,
    SumError,
    pack_boxes,
    unpack_boxes,
    unpack_devices,
    unpack_keys,
)
from kfl_fleet.secure.terms import ANSWERS, VALUES, WEIGHTS, sum_layout

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.sums import Sums

MOST_DEVICES, MOST_CHECKS = 2**20, 8


class MaskedUpload:
    """One upload on its way into a sum."""

    def __init__(self, session: object, round_index: int, device: int, terms: Sums) -> None:
        self.session, self.round, self.device = read_session(session), round_index, device
        for name, value in {**terms.values, **terms.weights}.items():
            if not np.isfinite(value.numpy()).all():
                raise RefusedError("not_finite", array=name)
        self._terms = terms
        self._sum = DeviceSum(self.session, device)
        self._keys = self._sum.advertise().pack()
        self._answered: dict[str, tuple[bytes, tuple[Values, dict[str, Tensor]]]] = {}

    def keys(self) -> Tensor:
        """What answers the round in place of the upload."""
        return as_bytes(self._keys)

    def answer(self, values: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> tuple[Values, dict[str, Tensor]]:
        """Answer one step; what cannot be answered is refused.

        A server that does not know whether its message arrived sends it again. The same question has the same answer,
        which tells nothing new; another question for a step that was taken is refused.
        """
        step, question = str(values.get("step")), _digest(values, arrays)
        if step in self._answered and self._answered[step][0] == question:
            return self._answered[step][1]
        reply = self._take(step, values, arrays)
        self._answered[step] = question, reply
        return reply

    def _take(
        self, step: str, values: Mapping[str, Any], arrays: Mapping[str, Tensor]
    ) -> tuple[Values, dict[str, Tensor]]:
        try:
            if step == "share":
                peers, threshold = unpack_keys(_bytes_of(arrays, "peers")), whole(values, "threshold", 0, MOST_DEVICES)
                found = as_bytes(pack_boxes(self._sum.share(peers, threshold)))
            elif step == "mask":
                found = self._masked(values, unpack_boxes(_bytes_of(arrays, "boxes")))
            elif step == "reveal":
                found = as_bytes(self._sum.reveal(unpack_devices(_bytes_of(arrays, "survivors"))).pack())
            else:
                raise RefusedError("unknown_kind")
        except SumError as problem:
            raise RefusedError("no_sum", text=str(problem)) from problem
        table: Values = {"protocol": PROTOCOL_VERSION, "kind": "sum", "status": "ok", "step": step}
        table |= {"session": self.session.hex(), "round": self.round, "device": self.device}
        return table, {ANSWERS[step]: found}

    def _masked(self, values: Mapping[str, Any], boxes: Mapping[int, bytes]) -> Tensor:
        import torch

        bits = whole(values, "bits", 32, 64)
        largest_weight, value_range = number(values, "largest_weight"), number(values, "range")
        if bits not in (32, 64) or not (1 <= largest_weight < 2**60 and RANGES[0] <= value_range <= RANGES[1]):
            raise RefusedError("no_sum", text="its numbers do not describe a sum.")
        own = number(values, "own_weight") if "own_weight" in values else largest_weight
        terms = scaled_terms(self._terms, own, largest_weight)
        layout = sum_layout(
            {name: tuple(value.shape) for name, value in terms.values.items()},
            {name: tuple(value.shape) for name, value in terms.weights.items()},
            largest_weight=largest_weight,
            value_range=value_range,
            devices=whole(values, "devices", 1, MOST_DEVICES),
            bits=bits,
            checks=whole(values, "checks", 0, MOST_CHECKS) if "checks" in values else 0,  # not from earlier servers
            session=self.session,
        )
        arrays = {VALUES + name: value.numpy() for name, value in terms.values.items()}
        arrays |= {WEIGHTS + name: value.numpy() for name, value in terms.weights.items()}
        masked = self._sum.mask(boxes, layout.encode(arrays))
        # PyTorch has no integers without a sign; the bits are the same.
        return torch.from_numpy(masked.view(f"<i{bits // 8}").astype(f"i{bits // 8}", copy=False))


def scaled_terms(terms: Sums, own_weight: float, largest_weight: float) -> Sums:
    """What a device adds, of no more weight than the server allows: all of it is scaled, so that means stay.

    Its weights of all classes together are at most `own_weight` where that is less than its samples, and no weight is
    above `largest_weight`.
    """
    from kfl.algorithms.sums import Sums

    totals = [float(weight.sum()) for weight in terms.weights.values() if weight.numel()]
    largest = [float(weight.max()) for weight in terms.weights.values() if weight.numel()]
    part = min([1.0, *(largest_weight / one for one in largest if one > 0)])
    if own_weight < largest_weight:
        part = min([part, *(max(own_weight, 0.0) / total for total in totals if total > 0)])
    if part == 1.0:
        return terms
    return Sums(
        {name: part * value for name, value in terms.values.items()},
        {name: part * weight for name, weight in terms.weights.items()},
    )


def _digest(values: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> bytes:
    """A short name for what a message asks; the time it has does not matter."""
    asked = json.dumps({name: value for name, value in values.items() if name != "deadline_s"}, sort_keys=True)
    digest = blake2b(asked.encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode() + bytes(arrays[name].numpy()))
    return digest.digest()


def read_session(text: object) -> bytes:
    """The name of a sum, as a message says it."""
    try:
        session = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        session = b""
    if len(session) != SESSION_BYTES:
        raise RefusedError("no_sum", text="it has no session.")
    return session


def _bytes_of(arrays: Mapping[str, Tensor], name: str) -> bytes:
    found = arrays.get(name)
    if found is None:
        raise RefusedError("missing_array", array=name)
    array = found.numpy()
    if array.dtype != np.uint8 or array.ndim != 1:
        raise RefusedError("dtype", array=name, found=str(array.dtype), expected="uint8")
    return bytes(array)
