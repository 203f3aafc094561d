"""A small web server for this machine alone: read-only, and deaf to every name but its own.

It listens on 127.0.0.1, so nothing from outside reaches it. A page elsewhere could still make a browser on this
machine ask it, under a name that the page's owner points at 127.0.0.1 (DNS rebinding); such a request carries that
name in its Host header and is refused.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kfl.core.errors import ConfigError

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")


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
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnected is not an error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError | socket.timeout):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = 30
    server_version = "kfl"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer, if it is for us."""
        if not self._is_for_us():
            self._send(Answer(b"This server answers only to 127.0.0.1 and localhost.\n", "text/plain", 403))
            return
        parts = urlsplit(self.path)
        found = self.server.respond(parts.path, dict(parse_qsl(parts.query)))
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
        """Whether the Host header names this machine's own loopback, and our port where it names one."""
        names = self.headers.get_all("Host") or []
        port = f":{self.server.server_address[1]}"
        allowed = {name + end for name in NAMES for end in ("", port)}
        return len(names) == 1 and names[0].strip().lower() in allowed

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
