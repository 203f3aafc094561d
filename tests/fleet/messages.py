"""What a message of a fleet holds, and the same message with something in it replaced."""

import torch

from kfl_fleet._flower.records import from_record, to_record
from kfl_fleet.messages.frames import pack, to_tensors, unpack


def table_of(message):
    """A message's table."""
    return unpack(from_record(message.content))[0]


def round_of(message):
    return table_of(message).get("round")


def changed(reply, **values):
    """A reply with some of its table replaced."""
    table, arrays = unpack(from_record(reply.content))
    reply.content = to_record(pack({**table, **values}, to_tensors(arrays)))
    return reply


def with_array(reply, name, array):
    """A reply with one more array, or another one of that name."""
    table, arrays = unpack(from_record(reply.content))
    reply.content = to_record(pack(table, {**to_tensors(arrays), name: torch.from_numpy(array)}))
    return reply
