"""Limits in front of the SuperLink's fleet interface: what is too large is refused before anything is stored.

For each object of a reply's tree the SuperLink writes several rows in one transaction, and only then does our server
see the reply. So bounds belong in front of it. Flower asks `flwr.superlink.extensions.get_middleware` for middleware
that comes before its own; that function is replaced (`README.md` in this folder).

    bodies   every request states its length, which is bounded for its path; a server never reads more than is stated
    trees    a reply is a message, its dictionary, and one or two records

The numbers are generous: a fleet of today stays far below them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kfl.core.errors import KflError
from kfl_fleet._flower import protobuf as pb

FLEET = "/v1/fleet/"
MOST_BYTES = 1 << 16
"""Of a request that carries no content: about a hundred times the usual."""
MOST_BYTES_OF = {"push-messages": 1 << 20, "push-object": 1 << 30}
"""Of those that do. A frame of arrays has no more (`kfl_fleet.messages.frames`)."""
MOST_OBJECTS = 8
"""In the trees of one request; a reply of kfl's has three or four."""
TREES, CHILDREN = 3, 2
"""Field numbers of Flower's PushMessagesRequest and ObjectTree."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Limits:
    """ASGI middleware that refuses requests of devices beyond the limits with 400, 411 or 413."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(FLEET):
            await self.app(scope, receive, send)
            return
        name = path.removeprefix(FLEET)
        status, reason = check_length(name, dict(scope["headers"]))
        body: bytes | None = None
        if not status and name == "push-messages":
            body = await _read(receive)
            status, reason = check_trees(body)
        if status:
            await _refuse(send, status, reason)
        else:
            await self.app(scope, receive if body is None else _again(body, receive), send)


def check_length(name: str, headers: dict[bytes, bytes]) -> tuple[int, str]:
    """Return the status and reason of a refusal, or 0 and "", for a request's headers.

    >>> check_length("pull-messages", {b"content-length": b"40"}), check_length("pull-messages", {})
    ((0, ''), (411, 'a request must state its length'))
    """
    most, stated = MOST_BYTES_OF.get(name, MOST_BYTES), headers.get(b"content-length", b"")
    if not stated.isdigit() or b"transfer-encoding" in headers:
        return 411, "a request must state its length"
    if len(stated) > 18 or int(stated) > most:
        return 413, f"a request of this kind has at most {most} bytes"
    return 0, ""


def check_trees(body: bytes) -> tuple[int, str]:
    """Return the status and reason of a refusal, or 0 and "", for the content of a push of messages."""
    try:
        below, count = pb.blobs(pb.read(body), TREES), 0
        while below:
            count += 1
            if count > MOST_OBJECTS:
                return 400, f"its messages have more than {MOST_OBJECTS} objects"
            below += pb.blobs(pb.read(below.pop()), CHILDREN)
    except ValueError as problem:
        return 400, f"it cannot be read: {problem}"
    return 0, ""


def install(extensions: Any, main: Any) -> None:
    """Put the limits in front of the SuperLink; KflError where this Flower would not use them.

    Args:
        extensions: Flower's module `flwr.superlink.extensions`.
        main: Flower's module `flwr.superlink.main`, which builds the app.
    """
    from starlette.middleware import Middleware

    before = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Limits), *before())
    if not any(entry.cls is Limits for entry in main._get_middleware()):
        raise KflError(
            "This version of Flower does not take kfl's limits in front of its SuperLink; install flwr 1.41."
        )


async def _read(receive: Receive) -> bytes:
    """Return a whole body, which is as long as its request says."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read, and then what else comes."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def repeat() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return repeat


async def _refuse(send: Send, status: int, reason: str) -> None:
    content = f'{{"detail": "{reason}"}}'.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    # The rest of the body was not read, so the connection cannot be used again.
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": content})
