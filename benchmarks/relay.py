"""A relay between devices and their server that reads along: bytes on the wire by kind of request.

It holds the server's key, so it can end a device's TLS and begin its own to the server. What it counts is TCP payload
between device and relay: TLS, handshakes, HTTP, signatures, Flower's envelopes, polls and heartbeats.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import Counter
from pathlib import Path

HANDSHAKE = "TLS handshake"


class Relay:
    """One device's way to the server. `up` and `down` hold bytes by kind, `requests` how many there were."""

    def __init__(self, target: int, keys: Path) -> None:
        self.target, self.keys = target, keys
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._inside.load_cert_chain(keys / "server.crt", keys / "server.key")
        self._outside = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError), client:
            device = _Counted(client, self._inside)
            device.handshake()
            self._note(HANDSHAKE, device)
            with socket.create_connection(("127.0.0.1", self.target)) as plain:
                server = self._outside.wrap_socket(plain, server_hostname="127.0.0.1")
                while True:
                    request = _whole(device.read)
                    server.sendall(request)
                    device.write(_whole(lambda: server.recv(65536)))
                    self._note(request.split(b" ", 2)[1].decode().rpartition("/")[2], device)

    def _note(self, kind: str, device: _Counted) -> None:
        self.up[kind] += device.up
        self.down[kind] += device.down
        self.requests[kind] += 1
        device.up = device.down = 0


class _Counted:
    """A TLS connection whose encrypted bytes are counted."""

    def __init__(self, client: socket.socket, context: ssl.SSLContext) -> None:
        self.client, self.up, self.down = client, 0, 0
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                self._pump()

    def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(65536)
            except ssl.SSLWantReadError:
                self._pump()

    def write(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def _pump(self) -> None:
        data = self.client.recv(65536)
        if not data:
            raise EOFError
        self.up += len(data)
        self._incoming.write(data)

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            self.client.sendall(data)
            self.down += len(data)


def _whole(read: object) -> bytes:
    """One HTTP message: a head, and as much as its content-length says."""
    assert callable(read)
    found = b""
    while b"\r\n\r\n" not in found:
        part = read()
        if not part:
            raise EOFError
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    parts = [found]
    while missing > 0:
        parts.append(read())
        missing -= len(parts[-1])
    return b"".join(parts)
