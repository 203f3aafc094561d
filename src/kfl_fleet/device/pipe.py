"""Between a device's node and its worker: a private pair of connected sockets, and plain frames.

4 bytes   length of the header
…         the header: a JSON table with `kind`, and `sizes`, the lengths of what follows
…         as many blocks of bytes as there are sizes
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kfl.core.parse import parse_json

LENGTH = struct.Struct("<I")
MOST_HEADER = 1 << 20
MOST_BLOCKS = 16
MOST_BYTES = 1 << 31
CHUNK = 1 << 20


class ClosedError(Exception):
    """The other end is gone, or what it says is no frame."""


class Pipe:
    """One end of the pair."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, kind: str, blocks: Sequence[bytes] = (), **facts: Any) -> None:
        """Send one frame; ClosedError if the other end is gone."""
        header = json.dumps({"kind": kind, "sizes": [len(block) for block in blocks], **facts}).encode()
        try:
            self.end.settimeout(None)
            self.end.sendall(LENGTH.pack(len(header)) + header)
            for block in blocks:
                self.end.sendall(block)
        except OSError as problem:
            raise ClosedError(str(problem)) from problem

    def receive(self, until: float | None = None) -> tuple[Mapping[str, Any], tuple[bytes, ...]]:
        """The next frame: its header and its blocks. ClosedError at the end, TimeoutError at the time `until`."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size, until))
        if length > MOST_HEADER:
            raise ClosedError("a header is too long")
        try:
            header = parse_json(self._read(length, until))
            sizes = [int(size) for size in header["sizes"]]
        except (ValueError, TypeError, KeyError) as problem:
            raise ClosedError(f"a header cannot be read ({problem})") from problem
        if len(sizes) > MOST_BLOCKS or min(sizes, default=0) < 0 or sum(sizes) > MOST_BYTES:
            raise ClosedError("a frame is too large")
        return header, tuple(self._read(size, until) for size in sizes)

    def _read(self, size: int, until: float | None) -> bytes:
        found = bytearray()
        while len(found) < size:
            self.end.settimeout(None if until is None else max(until - time.monotonic(), 0.001))
            try:
                part = self.end.recv(min(size - len(found), CHUNK))
            except TimeoutError:
                raise
            except OSError as problem:
                raise ClosedError(str(problem)) from problem
            if not part:
                raise ClosedError("the other end is closed")
            found += part
        return bytes(found)

    def close(self) -> None:
        """End it; the other end notices."""
        self.end.close()
