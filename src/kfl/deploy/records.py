"""Our tables and arrays as Flower's records, and back. Arrays travel as npy files, never as pickles."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.core.arrays import read_npy
from kfl.core.text import scrub
from kfl.deploy.protocol import ARRAYS, RECORD, RawArray, RefusedError, Values

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.deploy.flower import RecordDict

KIND = "numpy.ndarray"


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
            stored[name] = Array(str(array.dtype), tuple(array.shape), KIND, buffer.getvalue())
        record[ARRAYS] = ArrayRecord(stored)
    return record


def from_record(content: RecordDict) -> tuple[Values, dict[str, RawArray]]:
    """The table and the arrays of a message, as they came."""
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
    """Arrays from the server, whose shapes a device does not know beforehand."""
    import torch

    tensors = {}
    for name, array in raw.items():
        if array.kind != KIND:
            raise RefusedError("storage", array=scrub(name, 40), found=scrub(array.kind, 40), expected=KIND)
        try:
            tensors[name] = torch.from_numpy(read_npy(array.data))
        except (ValueError, TypeError) as problem:
            raise RefusedError("unreadable", array=scrub(name, 40), text=scrub(problem, 80)) from problem
    return tensors


def size_bytes(values: Mapping[str, Any], arrays: Mapping[str, RawArray]) -> int:
    """Bytes of a message's content, without what Flower, HTTP and TLS put around it."""
    return len(json.dumps(dict(values), default=str)) + sum(len(array.data) for array in arrays.values())
