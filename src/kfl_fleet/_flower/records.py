"""A message's content as Flower's records, for server apps and for plain SuperNodes."""

from __future__ import annotations

from kfl_fleet._flower.names import ConfigRecord, RecordDict
from kfl_fleet.messages.protocol import (
    ARRAYS,
    FRAME,
    MORE,
    PROTOCOL_VERSION,
    RECORD,
    VERSION,
    Parts,
    RefusedError,
    check_version,
    from_entries,
)

SALT = "salt"


def to_record(parts: Parts, salt: bytes = b"") -> RecordDict:
    """A message's content for Flower.

    The SuperLink knows a record by the hash of its content, and takes from any member whatever it says of the objects
    below that name. With a salt no member can name a record of the server's before it is there.
    """
    salted = {SALT: salt} if salt else {}
    record = RecordDict({RECORD: ConfigRecord({VERSION: PROTOCOL_VERSION, FRAME: parts[0], **salted})})
    if len(parts) > 1:
        record[MORE] = ConfigRecord({ARRAYS: parts[1], **salted})
    return record


def from_record(content: RecordDict) -> Parts:
    """The frames of a message that Flower brought; its version is ours."""
    strange = set(content) - {RECORD, MORE}
    table, more = content.config_records.get(RECORD), content.config_records.get(MORE)
    if table is None:
        raise RefusedError("no_table", table=RECORD)
    check_version(table)
    if strange:
        raise RefusedError("unexpected_records")
    return from_entries({**dict(table), **({} if more is None else dict(more))})
