"""A small web server for one person on this machine: read-only, and deaf to everybody else.

Who might ask it, and what stops them:

- another machine: it listens on 127.0.0.1.
- another user of this machine: the address has a key in it, as a notebook server's has, and nothing is said without.
- a page elsewhere, through this person's browser: under a name that its owner points at 127.0.0.1 (DNS rebinding) the
  Host header is that name; otherwise the browser says in Origin or Sec-Fetch-Site where the request comes from.
- a client that sends or reads slowly, or many of them: a connection has a minute in all, there are few at a time, and
  where all are taken the oldest makes room for the newest.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kfl.core.errors import ConfigError

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
MOST_CONNECTIONS = 16
"""Connections at a time: a browser opens six."""
LONGEST_S = 60.0
"""Seconds from the start of a connection to its end."""
GRACE_S = 1.0
"""A connection this young is not ended to make room for another."""


@dataclass(frozen=True)
class Answer:
    """What a request gets."""

    body: bytes
    kind: str = "text/html; charset=utf-8"
    status: int = HTTPStatus.OK


Responder = Callable[[str, dict[str, str]], Answer | None]
"""Takes a path and the values after the question mark; None for a path that is not there."""


class LoopbackServer(ThreadingHTTPServer):
    """Answers GET on 127.0.0.1 with what a function says."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, respond: Responder, port: int | None, preferred: int = 0) -> None:
        """Listen on `port`; without one on the preferred port, or where that is taken on any that is free."""
        self.respond = respond
        self.key = secrets.token_urlsafe(16)
        """What the address must have in it."""
        self._open: dict[socket.socket, float] = {}
        self._guard = threading.Lock()
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError("port", port, "from 0 to 65535")
        try:
            super().__init__((ADDRESS, preferred if port is None else port), _Handler)
        except OSError as problem:
            if port is not None:
                raise ConfigError("port", port, f"a free port ({problem.strerror})") from problem
            super().__init__((ADDRESS, 0), _Handler)

    @property
    def url(self) -> str:
        """Where it can be read."""
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.key}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, if there is room or room can be made."""
        now = time.monotonic()
        with self._guard:
            if len(self._open) >= MOST_CONNECTIONS:
                oldest = min(self._open, key=self._open.__getitem__)
                if now - self._open[oldest] < GRACE_S:
                    self.shutdown_request(request)
                    return
                _end(oldest)  # its thread then finds the connection closed and takes it off the list
                del self._open[oldest]
            self._open[request] = now
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection, for a limited time."""
        alarm = threading.Timer(LONGEST_S, _end, (request,))
        alarm.daemon = True
        alarm.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            alarm.cancel()
            with self._guard:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnected is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError | socket.timeout):
            super().handle_error(request, client_address)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = 20
    server_version = "kfl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer, if it is for us."""
        if not self._is_for_us():
            self._send(Answer(b"This server answers only to its own pages on this machine.\n", "text/plain", 403))
            return
        parts = urlsplit(self.path)
        key, slash, rest = parts.path.removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(key.encode(), self.server.key.encode()):
            self._send(Answer(b"Use the whole address that the command printed: it has a key.\n", "text/plain", 403))
            return
        found = self.server.respond(f"/{rest}", dict(parse_qsl(parts.query)))
        self._send(found or Answer(b"There is nothing here.\n", "text/plain", HTTPStatus.NOT_FOUND))

    def do_HEAD(self) -> None:
        """The same without its body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Nothing can be changed."""
        self.close_connection = True
        self._send(Answer(b"This server is read-only.\n", "text/plain", HTTPStatus.METHOD_NOT_ALLOWED))

    def do_PUT(self) -> None:
        """Nor in this way."""
        self.do_POST()

    def do_DELETE(self) -> None:
        """Nor in this."""
        self.do_POST()

    def _is_for_us(self) -> bool:
        """Whether it was asked under a name of this machine's loopback, and not by a page from elsewhere."""
        names = self.headers.get_all("Host") or []
        port = f":{self.server.server_address[1]}"
        allowed = {name + end for name in NAMES for end in ("", port)}
        if len(names) != 1 or names[0].strip().lower() not in allowed:
            return False
        origins = self.headers.get_all("Origin") or []
        if any(origin.strip().lower() not in {f"http://{name}{port}" for name in NAMES} for origin in origins):
            return False
        # A link that a person follows from elsewhere is a navigation; anything else from elsewhere is not theirs.
        foreign = self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
        return not foreign or self.headers.get("Sec-Fetch-Mode") == "navigate"

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
