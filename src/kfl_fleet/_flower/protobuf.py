"""As much of Protocol Buffers as a device needs: numbers, texts and nested messages, written and read by field number.

A node that imports Flower and Google's package is several times as large before it has said a word. The tests hold
it against Flower's own classes.
"""

from __future__ import annotations

import struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DOUBLE = struct.Struct("<d")
LONGEST_VARINT = 10

Fields = dict[int, list[int | bytes]]
"""What a message holds: for each field its values as they come, numbers undecoded."""


def uint(number: int, value: int) -> bytes:
    """An unsigned integer or a truth value; zero is the default and not sent.

    >>> uint(1, 300)
    b'\\x08\\xac\\x02'
    """
    return b"" if value == 0 else _varint(number << 3 | VARINT) + _varint(value)


def sint(number: int, value: int) -> bytes:
    """A signed integer, zero included: it is the value of a choice, which must be seen."""
    return _varint(number << 3 | VARINT) + _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def double(number: int, value: float) -> bytes:
    """A floating-point number."""
    return b"" if value == 0 else _varint(number << 3 | FIXED64) + DOUBLE.pack(value)


def text(number: int, value: str) -> bytes:
    """A text; an empty one is the default and not sent."""
    return message(number, value.encode()) if value else b""


def message(number: int, value: bytes) -> bytes:
    """Bytes or a nested message, empty ones included."""
    return _varint(number << 3 | BYTES) + _varint(len(value)) + value


def read(data: bytes) -> Fields:
    """The fields of a message; ValueError where the bytes are none.

    >>> read(uint(1, 300) + text(2, "hi"))
    {1: [300], 2: [b'hi']}
    """
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind, value = tag & 7, 0
        if kind == VARINT:
            value, at = _read_varint(data, at)
            found.setdefault(tag >> 3, []).append(value)
            continue
        if kind == BYTES:
            length, at = _read_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError("it has a field of an unknown kind")
        if at + length > len(data):
            raise ValueError("it ends in the middle of a field")
        found.setdefault(tag >> 3, []).append(data[at : at + length])
        at += length
    return found


def whole(fields: Fields, number: int) -> int:
    """A field's unsigned number, or 0."""
    value = fields.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def signed(value: int) -> int:
    """A zigzag number as a signed one."""
    return value >> 1 if value & 1 == 0 else -(value + 1 >> 1)


def blob(fields: Fields, number: int) -> bytes:
    """A field's bytes, or none."""
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def blobs(fields: Fields, number: int) -> list[bytes]:
    """All bytes of a field that may be repeated."""
    return [value for value in fields.get(number, []) if isinstance(value, bytes)]


def words(fields: Fields, number: int) -> str:
    """A field's text, or an empty one."""
    return blob(fields, number).decode()


def real(fields: Fields, number: int) -> float:
    """A field's floating-point number, or 0."""
    value = blob(fields, number)
    return float(DOUBLE.unpack(value)[0]) if len(value) == 8 else 0.0


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(LONGEST_VARINT):
        if at >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[at]
        value |= (byte & 0x7F) << 7 * place
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("it has a number that is too long")
