"""A table and arrays as bytes: JSON and plain numbers, squeezed where that helps, and bounded before anything is read.

    2 bytes   KF
    1 byte    0 for plain content, 1 for zlib
    1 byte    0
    8 bytes   length of the content when plain
    …         content: 4 bytes length of the header, the header, the numbers of all arrays

The header is JSON: `{"values": {…}, "arrays": [[name, dtype, [shape…]], …]}`. Numbers are little-endian in C order. No
pickle, no code, and what a frame says about its size is checked against a limit before memory is taken for it.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.parse import parse_json
from kfl.core.text import scrub
from kfl_fleet.messages.protocol import Parts, RefusedError, Values

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"KF"
START = struct.Struct("<2sBBQ")
LENGTH = struct.Struct("<I")
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
MOST_BYTES = 1 << 30
"""No frame holds more, squeezed or not."""
MOST_HEADER = 1 << 20
MOST_ARRAYS = 10_000
MOST_DIGITS = 20
"""Of an integer in a table, with its sign: 64 bits. A longer one may be too large for a float."""
INLINE_BYTES = 1 << 16
"""Arrays up to this size travel with the table; larger ones apart, so that a server stores them once for all."""
PROBE_BYTES = 1 << 14
"""So much is squeezed to see whether the rest is worth it."""
WORTH = 0.9
"""Squeezed content must be smaller than this share of the plain one."""


@dataclass(frozen=True)
class RawArray:
    """An array as received: what the sender says it is, and its bytes, which are as many as that takes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def array(self) -> NDArray[Any]:
        """The numbers, in memory of their own."""
        plain = np.frombuffer(bytearray(self.data), np.dtype(self.dtype).newbyteorder("<"))
        return plain.astype(plain.dtype.newbyteorder("="), copy=False).reshape(self.shape)


def pack(values: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> Parts:
    """A message to send. Arrays are tensors of any device."""
    return pack_all({0: values}, arrays)[0]


def pack_all(tables: Mapping[int, Mapping[str, Any]], arrays: Mapping[str, Tensor]) -> dict[int, Parts]:
    """Messages with tables of their own and arrays in common; large ones are made into a frame once."""
    plain = {name: _numbers(value) for name, value in arrays.items()}
    if sum(value.nbytes for value in plain.values()) > INLINE_BYTES:
        common = _frame({}, plain)
        return {to: (_frame(values, {}), common) for to, values in tables.items()}
    return {to: (_frame(values, plain),) for to, values in tables.items()}


def unpack(parts: Parts, most_bytes: int = MOST_BYTES) -> tuple[Values, dict[str, RawArray]]:
    """The table and the arrays of a message, unchecked but for their sizes; together at most `most_bytes`.

    >>> values, arrays = unpack(pack({"kind": "round"}, {}))
    >>> values, arrays
    ({'kind': 'round'}, {})
    """
    values, arrays = _read(parts[0], most_bytes)
    for more in parts[1:]:
        _, rest = _read(more, most_bytes - sum(len(array.data) for array in arrays.values()))
        arrays |= rest
    return values, arrays


def to_tensors(raw: Mapping[str, RawArray]) -> dict[str, Tensor]:
    """Arrays from the server, whose shapes the device does not know in advance."""
    import torch

    return {name: torch.from_numpy(array.array()) for name, array in raw.items()}


def as_bytes(data: bytes) -> Tensor:
    """Return bytes as an array that a message can carry."""
    import torch

    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def size_bytes(parts: Parts) -> int:
    """Bytes of a message's content, without the overhead of Flower, HTTP and TLS."""
    return sum(len(part) for part in parts)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    array = tensor.detach().cpu().numpy()
    return np.asarray(array, order="C") if sys.byteorder == "little" else array.astype(array.dtype.newbyteorder("<"))


def _frame(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    entries = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    header = json.dumps({"values": dict(values), "arrays": entries}, separators=(",", ":")).encode()
    content = b"".join((LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays.values())))
    squeezed = _squeezed(content)
    start = START.pack(MAGIC, squeezed is not None, 0, len(content))
    return start + (content if squeezed is None else squeezed)


def _squeezed(content: bytes) -> bytes | None:
    """The content with zlib; None where that gains little: trained weights look like noise, absent classes do not."""
    probe = content[:PROBE_BYTES]
    if len(zlib.compress(probe, 1)) >= WORTH * len(probe):
        return None
    squeezed = zlib.compress(content, 6)
    return squeezed if len(squeezed) < WORTH * len(content) else None


def _read(frame: bytes, most_bytes: int) -> tuple[Values, dict[str, RawArray]]:
    content = _content(frame, most_bytes)
    try:
        (length,) = LENGTH.unpack_from(content)
        if length > MOST_HEADER:
            raise ValueError("its header is too long")
        header = parse_json(content[LENGTH.size : LENGTH.size + length], whole=_whole)
        values, entries = header["values"], header["arrays"]
        if not isinstance(values, dict) or len(entries) > MOST_ARRAYS:
            raise ValueError("its header is not one")
        at, arrays = LENGTH.size + length, {}
        for name, dtype, shape in entries:
            size = _size(dtype, shape)
            arrays[str(name)] = RawArray(dtype, tuple(shape), content[at : at + size])
            at += size
        if at != len(content) or len(arrays) != len(entries):
            raise ValueError("its arrays do not add up")
    except (ValueError, TypeError, KeyError, struct.error) as problem:
        raise RefusedError("unreadable_frame", text=scrub(problem, 80)) from problem
    return values, arrays


def _content(frame: bytes, most_bytes: int) -> bytes:
    """What a frame holds. One that says it is too large, or is not as large as it says, is refused."""
    if len(frame) < START.size:
        raise RefusedError("unreadable_frame", text="it is too short")
    magic, squeezed, _, size = START.unpack_from(frame)
    if magic != MAGIC or squeezed > 1:
        raise RefusedError("unreadable_frame", text="it is not one of kfl's")
    if size > most_bytes:
        raise RefusedError("too_large", found=size, most=most_bytes)
    content = frame[START.size :]
    if squeezed:
        try:
            reader = zlib.decompressobj()
            content = reader.decompress(content, size + 1)  # one more byte shows a frame that lies about its size
        except zlib.error as problem:
            raise RefusedError("unreadable_frame", text=scrub(problem, 80)) from problem
    if len(content) != size:
        raise RefusedError("unreadable_frame", text="it is not as large as it says")
    return content


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("it holds an integer of more than 64 bits")
    return int(digits)


def _size(dtype: Any, shape: Any) -> int:
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > 16:
        raise ValueError("an array has a type or shape that kfl does not send")
    if not all(type(length) is int and 0 <= length <= MOST_BYTES for length in shape):
        raise ValueError("an array has a length that is not one")
    return math.prod(int(length) for length in shape) * np.dtype(str(dtype)).itemsize
