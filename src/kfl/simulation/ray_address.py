"""Whether a Ray cluster answers at an address, found out in seconds: Ray itself tries for minutes."""

from __future__ import annotations

import os
import socket
from contextlib import closing

from kfl.core.errors import ConfigError

PATIENCE_S = 5.0
CLIENT_PORT = 10001
"""Where Ray's client server listens unless told otherwise."""
# Ray speaks gRPC, which is HTTP/2: a server greets with a frame of settings. RFC 9113, section 3.4.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_HEADER, _TYPE, _SETTINGS = 9, 3, 4


def check_address(address: str) -> None:
    """Raise ConfigError unless the address is `local`, `auto`, or one at which something speaks Ray's protocol.

    >>> check_address("local")
    >>> check_address("head-node")
    Traceback (most recent call last):
    ...
    kfl.core.errors.ConfigError: ray is 'head-node', but must be local, auto, HOST:PORT or ray://HOST:PORT.
    """
    if address in ("local", "auto"):
        return
    host, port = _split(address)
    try:
        with closing(socket.create_connection((host, port), PATIENCE_S)) as line:
            speaks = os.environ.get("RAY_USE_TLS") == "1" or _greets(line)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ConfigError("ray", address, f"the address of a running Ray cluster (here: {reason})") from problem
    if not speaks:
        raise ConfigError("ray", address, "the address of a Ray cluster, and what answers there is not Ray")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and address.startswith("ray://") and port:
        host, port = port, str(CLIENT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError("ray", address, "local, auto, HOST:PORT or ray://HOST:PORT")
    return host.strip("[]"), int(port)


def _greets(line: socket.socket) -> bool:
    """Whether the other side answers like a gRPC server."""
    line.sendall(_GREETING)
    head = b""
    while len(head) < _FRAME_HEADER:
        more = line.recv(_FRAME_HEADER - len(head))
        if not more:
            return False
        head += more
    return head[_TYPE] == _SETTINGS
