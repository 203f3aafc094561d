"""Flower's messages as a device sees them: what a question holds, and a reply as the objects that Flower stores.

Flower 1.41 keeps a message as a tree of objects, each named by the SHA-256 of its bytes: the message, its dictionary of
records, each record. Only records travel: the tree names them, and all else is in the envelope.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from kfl_fleet._flower import protobuf as pb
from kfl_fleet.messages.protocol import ARRAYS, FRAME, MORE, PROTOCOL_VERSION, RECORD, VERSION, Parts

MOST_RECORDS, MOST_S = 2, 1e12
"""Of a message; and the latest time that a clock may show, in seconds since 1970."""
BYTES_VALUE, SINT_VALUE, UINT_VALUE, TEXT_VALUE = 6, 2, 3, 5
"""Field numbers of the choices in Flower's ConfigRecordValue."""


@dataclass(frozen=True)
class Incoming:
    """A question, as far as its envelope says."""

    run: int
    id: str
    source: int
    node: int
    group: str
    kind: str
    created_at: float
    """By the server's clock."""
    ttl_s: float
    """How long the server waits for the answer."""
    source_task: int | None
    records: tuple[str, ...]
    """Names of the objects that are its records."""


@dataclass(frozen=True)
class Outgoing:
    """A reply: its envelope, the tree of its objects, and the bytes of those that are records."""

    envelope: bytes
    tree: bytes
    records: Mapping[str, bytes]


def read_message(message: bytes, tree: bytes) -> Incoming:
    """A question from the two parts in which the server tells of it; ValueError where they are not."""
    metadata = pb.read(pb.blob(pb.read(message), 1))
    content = pb.blobs(pb.read(tree), 2)
    records = pb.blobs(pb.read(content[0]), 2) if content else []
    if len(records) > MOST_RECORDS:
        raise ValueError(f"a message of {len(records)} records")
    times_s = pb.real(metadata, 9), pb.real(metadata, 7)
    if not all(0 <= time_s <= MOST_S for time_s in times_s):
        raise ValueError("a message from no time")
    return Incoming(
        run=pb.whole(metadata, 1),
        id=pb.words(metadata, 2),
        source=pb.whole(metadata, 3),
        node=pb.whole(metadata, 4),
        group=pb.words(metadata, 6),
        kind=pb.words(metadata, 8),
        created_at=times_s[0],
        ttl_s=times_s[1],
        source_task=pb.whole(metadata, 10) if 10 in metadata else None,
        records=tuple(pb.words(pb.read(record), 1) for record in records),
    )


def read_entries(name: str, content: bytes) -> dict[str, int | str | bytes]:
    """The entries of a ConfigRecord; none of another kind of record. ValueError where it is not what its name says."""
    if hashlib.sha256(content).hexdigest() != name:
        raise ValueError("an object is not what its name says")
    head, _, body = content.partition(b"\0")
    if not head.startswith(b"ConfigRecord "):
        return {}
    found: dict[str, int | str | bytes] = {}
    for item in pb.blobs(pb.read(body), 1):
        fields = pb.read(item)
        for number, values in pb.read(pb.blob(fields, 2)).items():
            value = values[-1]
            if number == SINT_VALUE and isinstance(value, int):
                found[pb.words(fields, 1)] = pb.signed(value)
            elif number == TEXT_VALUE and isinstance(value, bytes):
                found[pb.words(fields, 1)] = value.decode()
            elif number in (UINT_VALUE, BYTES_VALUE):
                found[pb.words(fields, 1)] = value
    return found


def reply(question: Incoming, parts: Parts, after_s: float) -> Outgoing:
    """The answer to a question, `after_s` seconds after it was asked."""
    version = _entry(VERSION, pb.sint(SINT_VALUE, PROTOCOL_VERSION))
    records = {RECORD: _object("ConfigRecord", (), version + _entry(FRAME, pb.message(BYTES_VALUE, parts[0])))}
    if len(parts) > 1:
        records[MORE] = _object("ConfigRecord", (), _entry(ARRAYS, pb.message(BYTES_VALUE, parts[1])))
    names = {record: _name(content) for record, content in records.items()}
    objects = {_name(content): content for content in records.values()}
    table = _object("RecordDict", tuple(objects), json.dumps(names).encode())
    leaves = b"".join(pb.message(2, pb.text(1, name)) for name in objects)
    below = pb.message(2, pb.text(1, _name(table)) + leaves)
    return _outgoing(question, after_s, b"", pb.message(2, b""), (_name(table),), below, objects)


def error_reply(question: Incoming, code: int, reason: str, after_s: float) -> Outgoing:
    """An answer that says why there is none."""
    error = pb.message(3, pb.sint(1, code) + pb.text(2, reason))
    return _outgoing(question, after_s, error, error, (), b"", {})


def _outgoing(
    question: Incoming,
    after_s: float,
    inside: bytes,
    outside: bytes,
    children: tuple[str, ...],
    below: bytes,
    records: Mapping[str, bytes],
) -> Outgoing:
    """A reply. Its own name is the hash of its object, in which the name is left out."""
    whole = _object("Message", children, pb.message(1, _metadata(question, "", after_s)) + inside)
    name = _name(whole)
    envelope = pb.message(1, _metadata(question, name, after_s)) + outside
    return Outgoing(envelope, pb.text(1, name) + below, records)


def _metadata(question: Incoming, name: str, after_s: float) -> bytes:
    """In the server's time: this machine's clock may be wrong, and a reply may not outlive its question."""
    task = b"" if question.source_task is None else _optional(11, question.source_task)
    return b"".join(
        (
            pb.uint(1, question.run),
            pb.text(2, name),
            pb.uint(3, question.node),
            pb.uint(4, question.source),
            pb.text(5, question.id),
            pb.text(6, question.group),
            pb.double(7, question.ttl_s - after_s),
            pb.text(8, question.kind),
            pb.double(9, question.created_at + after_s),
            task,
        )
    )


def _optional(number: int, value: int) -> bytes:
    """A number whose presence counts, zero included."""
    return pb.uint(number, value) or bytes((number << 3, 0))


def _entry(key: str, value: bytes) -> bytes:
    return pb.message(1, pb.text(1, key) + pb.message(2, value))


def _object(kind: str, children: tuple[str, ...], body: bytes) -> bytes:
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
