"""A small web server for one person on this machine: read-only, and deaf to all others.

Who might ask it, and what stops them:

- another machine: it listens on 127.0.0.1.
- another user of this machine: the address has a key in it, as a notebook server's has, and nothing is said without.
- a page elsewhere, through this person's browser: under a name that its owner points at 127.0.0.1 (DNS rebinding) the
  Host header is that name; otherwise the browser says in Origin or Sec-Fetch-Site where the request comes from.
- a client that sends or reads slowly, or many of them: a connection has a minute in all, there are few at a time, and
  where all are taken the oldest makes room for the newest. It is served once it has named the key; until then it waits
  among many others that cost nothing, and without the key it never takes the place of one that has it.
"""

from __future__ import annotations

import contextlib
import secrets
import select
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
MOST_WAITING = 500
"""Connections that have not said what they want; the oldest makes room."""
NO_KEY = b"Use the whole address that the command printed: it has a key.\n"
NEARLY_S = 0.002
LONGEST_HEAD = 4096
"""Bytes in which a request must have named the key."""


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
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, respond: Responder, port: int | None, preferred: int = 0) -> None:
        """Listen on `port`; without one on the preferred port, or where that is taken on any that is free."""
        self.respond = respond
        self.key = secrets.token_urlsafe(16)
        """What the address must have in it."""
        self._waiting: list[tuple[socket.socket, Any]] = []
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
        """Take a connection; a browser's first bytes are there at once, or nearly."""
        self._waiting.append((request, client_address))
        if len(self._waiting) > MOST_WAITING:
            self.shutdown_request(self._waiting.pop(0)[0])
        select.select([request], (), (), NEARLY_S)
        self.service_actions()

    def service_actions(self) -> None:
        """Serve the connections that have said what they want, and end those that were not for us."""
        ready = select.select([request for request, _ in self._waiting], (), (), 0.0)[0] if self._waiting else ()
        for request in ready:
            client = next(each for each in self._waiting if each[0] is request)
            head = _peek(request)
            if b"\n" not in head and 0 < len(head) < LONGEST_HEAD:
                continue
            self._waiting.remove(client)
            if self.key.encode() in head:
                self._begin(*client)
            else:
                _refuse(request)
                self.shutdown_request(request)

    def server_close(self) -> None:
        """End the connections that wait, too."""
        for request, _ in self._waiting:
            self.shutdown_request(request)
        super().server_close()

    def _begin(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own; the oldest makes room for it."""
        with self._guard:
            if len(self._open) >= MOST_CONNECTIONS:
                oldest = min(self._open, key=self._open.__getitem__)
                _end(oldest)  # its thread then finds the connection closed and takes it off the list
                del self._open[oldest]
            self._open[request] = time.monotonic()
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


def _peek(connection: socket.socket) -> bytes:
    """What a connection has said so far, left for its handler to read."""
    try:
        return connection.recv(LONGEST_HEAD, socket.MSG_PEEK)
    except OSError:
        return b""


def _refuse(connection: socket.socket) -> None:
    """Answer a request without the key, in one write that does not wait."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.recv(LONGEST_HEAD)  # what is left unread would take the answer away
        head = f"HTTP/1.0 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: {len(NO_KEY)}\r\n\r\n"
        connection.send(head.encode() + NO_KEY)


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
            self._send(Answer(NO_KEY, "text/plain", 403))
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
