"""What travels in a sum, as bytes: tables with one entry of fixed size per device.

    4 bytes    number of entries
    each       4 bytes device, then the entry

Numbers are little-endian. The reader of a table gives the size of an entry; anything else than whole entries of
different devices in rising order is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from kfl_fleet.secure.cipher import KEY_BYTES, TAG_BYTES, SumError
from kfl_fleet.secure.shamir import SHARE_BYTES

BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""A sealed pair of shares."""
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True)
class Keys:
    """The public keys that a device makes for one sum."""

    seal: bytes
    """With which others seal shares for this device, c^PK."""
    mask: bytes
    """From which masks in common with others follow, s^PK."""

    def pack(self) -> bytes:
        """As bytes."""
        return self.seal + self.mask

    @staticmethod
    def unpack(data: bytes) -> Keys:
        """Read what `pack` wrote."""
        if len(data) != 2 * KEY_BYTES:
            raise SumError(f"Keys have {len(data)} bytes, not {2 * KEY_BYTES}.")
        return Keys(data[:KEY_BYTES], data[KEY_BYTES:])


@dataclass(frozen=True)
class Revealed:
    """The shares that a device gives up at the end, by the device whose secret they are of."""

    seeds: Mapping[int, bytes]
    """Of devices whose masked vector arrived: shares of the seed b of their own mask."""
    keys: Mapping[int, bytes]
    """Of devices that dropped out: shares of the seed of s^SK, from which the masks in common with others follow."""

    def pack(self) -> bytes:
        """As bytes."""
        return pack_table(self.seeds, SHARE_BYTES) + pack_table(self.keys, SHARE_BYTES)

    @staticmethod
    def unpack(data: bytes) -> Revealed:
        """Read what `pack` wrote."""
        seeds, rest = _take_table(data, SHARE_BYTES)
        return Revealed(seeds, unpack_table(rest, SHARE_BYTES))


def boxes_bytes(devices: int) -> int:
    """Bytes of sealed shares for so many devices."""
    return _NUMBER.size + devices * (_NUMBER.size + BOX_BYTES)


def revealed_bytes(devices: int) -> int:
    """Bytes of the shares of so many devices that one gives up."""
    return 2 * _NUMBER.size + devices * (_NUMBER.size + SHARE_BYTES)


def traffic(length: int, bits: int, neighbours: int) -> tuple[int, int]:
    """Bytes that one device sends and receives in a sum of vectors, when no device drops out.

    >>> traffic(length=651, bits=32, neighbours=9)
    (3376, 1150)
    """
    up = 2 * KEY_BYTES + boxes_bytes(neighbours) + length * bits // 8 + revealed_bytes(neighbours + 1)
    keys, survivors = neighbours * (_NUMBER.size + 2 * KEY_BYTES), (neighbours + 1) * _NUMBER.size
    return up, keys + boxes_bytes(neighbours) + survivors + 2 * _NUMBER.size


def pack_keys(keys: Mapping[int, Keys]) -> bytes:
    """The public keys of several devices."""
    return pack_table({device: own.pack() for device, own in keys.items()}, 2 * KEY_BYTES)


def unpack_keys(data: bytes) -> dict[int, Keys]:
    """Read what `pack_keys` wrote."""
    return {device: Keys.unpack(own) for device, own in unpack_table(data, 2 * KEY_BYTES).items()}


def pack_boxes(boxes: Mapping[int, bytes]) -> bytes:
    """Sealed shares for, or from, several devices."""
    return pack_table(boxes, BOX_BYTES)


def unpack_boxes(data: bytes) -> dict[int, bytes]:
    """Read what `pack_boxes` wrote."""
    return unpack_table(data, BOX_BYTES)


def pack_devices(devices: tuple[int, ...]) -> bytes:
    """A set of devices."""
    return pack_table(dict.fromkeys(devices, b""), 0)


def unpack_devices(data: bytes) -> tuple[int, ...]:
    """Read what `pack_devices` wrote."""
    return tuple(unpack_table(data, 0))


def pack_table(entries: Mapping[int, bytes], size: int) -> bytes:
    """One entry of `size` bytes for each device.

    >>> unpack_table(pack_table({7: b"xy", 2: b"ab"}, 2), 2)
    {2: b'ab', 7: b'xy'}
    """
    assert all(len(entry) == size for entry in entries.values())
    rows = (_NUMBER.pack(device) + entries[device] for device in sorted(entries))
    return _NUMBER.pack(len(entries)) + b"".join(rows)


def unpack_table(data: bytes, size: int) -> dict[int, bytes]:
    """Read what `pack_table` wrote; SumError for anything else."""
    entries, rest = _take_table(data, size)
    if rest:
        raise SumError(f"A table has {len(rest)} bytes too many.")
    return entries


def _take_table(data: bytes, size: int) -> tuple[dict[int, bytes], bytes]:
    """The table at the beginning, and what follows it."""
    if len(data) < _NUMBER.size:
        raise SumError("A table has no beginning.")
    (count,), width = _NUMBER.unpack_from(data), _NUMBER.size + size
    end = _NUMBER.size + count * width
    if len(data) < end:
        raise SumError(f"A table of {count} entries has {len(data)} bytes, not {end}.")
    entries: dict[int, bytes] = {}
    last = -1
    for start in range(_NUMBER.size, end, width):
        (device,) = _NUMBER.unpack_from(data, start)
        if device <= last:
            raise SumError("A table's devices are not in rising order.")
        entries[device], last = data[start + _NUMBER.size : start + width], device
    return entries, data[end:]
