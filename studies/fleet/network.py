"""A relay on loopback between one party and the SuperLink, which behaves like a bad network on request.

It sees TLS records and changes none: it only loses, holds back or delays them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

MODES = ("refuse", "blackhole", "delay", "up-lost", "down-lost")
"""New connections refused and old ones reset; nothing passes; everything late; one direction passes only."""
BLOCK = 65536
LOOK_S = 0.05


class Relay:
    """One party's way to the SuperLink at a port of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.target, self.mode, self.delay_s, self.open = target, "pass", 0.0, True
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def become(self, mode: str, delay_s: float = 0.0) -> None:
        """Behave like this from now on; `pass` is a good network. What was held back in between is lost."""
        if self.mode in ("blackhole", "up-lost", "down-lost", "refuse") or mode == "refuse":
            self.cut()  # a TCP connection that lost a part of its stream cannot go on
        self.mode, self.delay_s = mode, delay_s

    def cut(self) -> None:
        """Reset all connections that are open now."""
        for pair in list(self._pairs):
            for end in pair:
                _reset(end)

    def close(self) -> None:
        """Take no more connections and end those that are open."""
        self.open = False
        _reset(self._server)
        self.cut()

    def _accept(self) -> None:
        while self.open:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.mode == "refuse":
                _reset(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        pair = (client, server)
        self._pairs.add(pair)
        back = threading.Thread(target=self._carry, args=(server, client, "down-lost"), daemon=True)
        back.start()
        self._carry(client, server, "up-lost")
        back.join()
        self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _carry(self, source: socket.socket, target: socket.socket, lost: str) -> None:
        """Carry one direction until an end closes."""
        with contextlib.suppress(OSError):
            while data := source.recv(BLOCK):
                if self.mode == "delay":
                    time.sleep(self.delay_s)
                while self.mode in ("blackhole", lost):  # until the connection is reset
                    time.sleep(LOOK_S)
                    if source.fileno() < 0 or target.fileno() < 0:
                        return
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _reset(end: socket.socket) -> None:
    """Close at once; the other side sees a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()
