"""The messages between server and devices: a small table and arrays, with a version on every message.

    server → device   kind = "profile"   asks for the device's profile
    device → server   kind = "profile"   samples, model, processor (`kfl.deploy.profile`)
    server → device   kind = "round"     the algorithm, the knowledge, and advice on share and power
    device → server   kind = "round"     the upload, the energy spent, right test predictions

A side that receives a version it does not know refuses the message and goes on. Whatever comes from the other side is
untrusted: it is checked before it is used, and its texts are scrubbed before anybody reads them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.core.arrays import read_npy
from kfl.core.errors import KflError
from kfl.core.refusals import describe
from kfl.core.text import scrub

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.deploy.flower import RecordDict

PROTOCOL_VERSION = 1
RECORD = "kfl"
"""Name of the table in a message."""
ARRAYS = "arrays"
"""Name of the arrays in a message."""

ARRAY_KIND = "numpy.ndarray"
"""How arrays are stored: as npy files, never as pickles."""

Values = dict[str, Any]


class RefusedError(KflError):
    """What the other side sent cannot be used: a code of `kfl.core.refusals`, and its facts.

    >>> print(RefusedError("missing_array", array="means"))
    it has no array means
    """

    def __init__(self, code: str, /, **facts: Any) -> None:
        self.code, self.facts = code, facts
        super().__init__(describe(code, facts))

    def to_dict(self) -> Values:
        """As plain values for a run folder; `kfl.core.refusals.stored_refusal` reads them."""
        return {"code": self.code, **self.facts}


@dataclass(frozen=True)
class RawArray:
    """An array as received: what the sender says it is, and the bytes of an npy file."""

    dtype: str
    shape: tuple[int, ...]
    kind: str
    """How it is stored; only numpy.ndarray is read."""
    data: bytes


def check_version(values: Mapping[str, Any]) -> None:
    """Refuse a message in another version of the protocol.

    >>> check_version({"protocol": 1})
    >>> check_version({"protocol": 7})
    Traceback (most recent call last):
    ...
    kfl.deploy.protocol.RefusedError: it speaks version 7 of the fleet protocol, and this side speaks version 1
    """
    version = values.get("protocol")
    if type(version) is not int or version != PROTOCOL_VERSION:
        found = version if type(version) is int else "an unknown one"
        raise RefusedError("version", found=found, expected=PROTOCOL_VERSION)


def number(values: Mapping[str, Any], name: str) -> float:
    """A field that must be a number, finite or not; booleans are not numbers."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedError("not_number", field=name)
    return float(value)


def whole(values: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A field that must be an integer between two bounds.

    >>> whole({"round": 3}, "round", 0, 9)
    3
    """
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError("not_whole_number", field=name)
    if not least <= value <= most:
        raise RefusedError("out_of_range", field=name, found=value, least=least, most=most)
    return value


def word(values: Mapping[str, Any], name: str) -> str:
    """A field that must be a text, scrubbed."""
    value = values.get(name)
    if not isinstance(value, str):
        raise RefusedError("not_text", field=name)
    return scrub(value)


def to_record(values: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> RecordDict:
    """A message's content."""
    from kfl.deploy.flower import Array, ArrayRecord, ConfigRecord, RecordDict

    record = RecordDict({RECORD: ConfigRecord(dict(values))})
    if arrays:
        stored = {}
        for name, tensor in arrays.items():
            array = tensor.detach().cpu().numpy()
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            stored[name] = Array(str(array.dtype), tuple(array.shape), ARRAY_KIND, buffer.getvalue())
        record[ARRAYS] = ArrayRecord(stored)
    return record


def from_record(content: RecordDict) -> tuple[Values, dict[str, RawArray]]:
    """The table and the arrays of a message, unchecked."""
    table, arrays = content.config_records.get(RECORD), content.array_records.get(ARRAYS)
    if table is None:
        raise RefusedError("no_table", table=RECORD)
    strange = set(content) - {RECORD, ARRAYS}
    if strange:
        raise RefusedError("unexpected_records")
    raw = {} if arrays is None else arrays
    return dict(table), {
        name: RawArray(array.dtype, tuple(array.shape), array.stype, array.data) for name, array in raw.items()
    }


def to_tensors(raw: Mapping[str, RawArray]) -> dict[str, Tensor]:
    """Arrays from the server, whose shapes the device does not know in advance."""
    import torch

    tensors = {}
    for name, array in raw.items():
        if array.kind != ARRAY_KIND:
            raise RefusedError("storage", array=scrub(name, 40), found=scrub(array.kind, 40), expected=ARRAY_KIND)
        try:
            tensors[name] = torch.from_numpy(read_npy(array.data))
        except (ValueError, TypeError) as problem:
            raise RefusedError("unreadable", array=scrub(name, 40), text=scrub(problem, 80)) from problem
    return tensors


def size_bytes(values: Mapping[str, Any], arrays: Mapping[str, RawArray]) -> int:
    """Bytes of a message's content, without the overhead of Flower, HTTP and TLS."""
    return len(json.dumps(dict(values), default=str)) + sum(len(array.data) for array in arrays.values())
