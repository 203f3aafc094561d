"""Limits in front of the SuperLink's fleet interface: what is too much is refused before anything is stored.

For each object of a reply's tree the SuperLink writes several rows in one transaction, and only then does our server
see the reply. So bounds belong in front of it. Flower asks `flwr.superlink.extensions.get_middleware` for middleware
that comes before its own; that function is replaced (`README.md` in this folder).

    bodies    every request states its length, which is bounded for its path, and arrives within a time that follows
              from its length; a server never reads more than is stated
    messages  a device sends one reply in a request, in its own name, of a message, its dictionary and at most two
              records. Flower 1.41 compares neither the sender of a message with the key that signed the request, nor
              asks whether it is a reply at all: a device could fill the database with questions to itself
    rates     requests and bytes of a key in a minute, and how many are open at a time. A client that has not been let
    in
              since the SuperLink started shares one small account with all who have not, and sends no uploads

The numbers are generous: a fleet of today stays far below them. A device that meets them waits and tries again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from string import hexdigits
from typing import Any

from kfl.core.errors import ConfigError, KflError
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.objects import MOST_RECORDS
from kfl_fleet.retry import Clock

FLEET = "/v1/fleet/"
KEY = b"flwr-public-key"
MOST_BYTES = 1 << 16
"""Of a request that carries no content, and of a reply's envelope: about a hundred times the usual."""
UPLOAD = "push-object"
UPLOAD_MB = "KFL_MOST_UPLOAD_MB"
"""Environment variable: the largest object of an upload in MiB. The project's proxy has the same bound."""
REQUESTS, REQUESTS_PER_S = 600.0, 30.0
"""What a key may ask at once, and from then on. A device that is busy asks five times a second."""
UPLOADS, UPLOADS_PER_MINUTE = 4.0, 2.0
"""Bytes that a key may send at once, and per minute from then on, as multiples of the largest upload."""
MOST_OPEN, MOST_STRANGERS_OPEN = 8, 64
"""Requests of a key, and of all who have not been let in, that are worked on at a time."""
PATIENCE_S, SLOWEST_BYTES_PER_S = 30.0, 2000.0
"""A body may take so long, and as much longer as a slow radio needs for its length."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Allowance:
    """An amount that is used up and comes back with time.

    >>> allowance = Allowance(2.0, 1.0)
    >>> [allowance.take(1.0, now_s) for now_s in (0.0, 0.0, 0.5, 1.0)]
    [True, True, False, True]
    """

    most: float
    per_s: float
    left: float = field(init=False)
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, amount: float, now_s: float) -> bool:
        """Use an amount, if there is as much."""
        self.left = min(self.most, self.left + self.per_s * max(now_s - self.at_s, 0.0))
        self.at_s = now_s
        if amount > self.left:
            return False
        self.left -= amount
        return True


@dataclass
class Account:
    """What one key has asked for."""

    requests: Allowance
    bytes: Allowance
    most_open: int
    open: int = 0

    @staticmethod
    def new(most_upload: int, most_open: int) -> Account:
        """An account of which nothing is used."""
        return Account(
            Allowance(REQUESTS, REQUESTS_PER_S),
            Allowance(UPLOADS * most_upload, UPLOADS_PER_MINUTE * most_upload / 60),
            most_open,
        )

    def admit(self, length: int, now_s: float) -> str:
        """Why a request with so many bytes must wait; empty where it need not."""
        if self.open >= self.most_open:
            return f"{self.most_open} requests of this device are being answered"
        if not self.requests.take(1.0, now_s):
            return "too many requests"
        return "" if self.bytes.take(length, now_s) else "too many bytes"


class Limits:
    """ASGI middleware that refuses requests of devices beyond the limits with 400, 408, 411, 413 or 429."""

    def __init__(self, app: App, clock: Clock = Clock(), most_upload: int | None = None) -> None:  # noqa: B008  # frozen
        self.app, self.clock = app, clock
        self.most_upload = most_upload or largest_upload()
        self._accounts: dict[bytes, Account] = {}
        """Of keys that a request was answered for: Flower checks signatures, so these are admitted devices."""
        self._strangers = Account.new(self.most_upload, MOST_STRANGERS_OPEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(FLEET):
            await self.app(scope, receive, send)
            return
        name, headers = path.removeprefix(FLEET), dict(scope["headers"])
        key = headers.get(KEY, b"")
        account = self._accounts.get(key, self._strangers)
        status, reason = check_length(headers, self.most_upload if name == UPLOAD else MOST_BYTES)
        length = 0 if status else int(headers[b"content-length"])
        if not status and account is self._strangers and length > MOST_BYTES:
            status, reason = 429, "this device has not been heard since the server started"
        if not status and (reason := account.admit(length, self.clock.now())):
            status = 429
        if status:
            await _refuse(send, status, reason)
            return
        account.open += 1
        try:
            body = await _read(receive, PATIENCE_S + length / SLOWEST_BYTES_PER_S)
            status, reason = (408, "the request took too long to arrive") if body is None else (0, "")
            if body is not None and name == "push-messages":
                status, reason = check_message(body)
            if body is None or status:
                await _refuse(send, status, reason)
            else:
                await self.app(scope, _again(body, receive), self._noting(key, send))
        finally:
            account.open -= 1

    def _noting(self, key: bytes, send: Send) -> Send:
        """A `send` that opens an account for a key that Flower lets in."""

        async def note(message: MutableMapping[str, Any]) -> None:
            if key and message["type"] == "http.response.start" and message["status"] < 300:
                self._accounts.setdefault(key, Account.new(self.most_upload, MOST_OPEN))
            await send(message)

        return note


def largest_upload() -> int:
    """Bytes of the largest object, by `KFL_MOST_UPLOAD_MB`; 64 MiB without it."""
    given = os.environ.get(UPLOAD_MB, "64")
    if not given.isdigit() or not 0 < int(given[:9]) <= 1024:
        raise ConfigError(UPLOAD_MB, given, "an integer from 1 to 1024")
    return int(given) << 20


def check_length(headers: dict[bytes, bytes], most: int) -> tuple[int, str]:
    """Return the status and reason of a refusal, or 0 and "", for a request's headers.

    >>> check_length({b"content-length": b"40"}, 64), check_length({}, 64)
    ((0, ''), (411, 'a request must state its length'))
    """
    stated = headers.get(b"content-length", b"")
    if not stated.isdigit() or b"transfer-encoding" in headers:
        return 411, "a request must state its length"
    if len(stated) > 18 or int(stated) > most:
        return 413, f"a request of this kind has at most {most} bytes"
    return 0, ""


def check_message(body: bytes) -> tuple[int, str]:
    """Return the status and reason of a refusal, or 0 and "", for the content of a push of messages.

    Where Flower's parser would merge fields that come twice, ours would take the last, so each must come once.
    """
    try:
        request = pb.read(body)
        node, tree = pb.read(_one(request, 1)), pb.read(_one(request, 3))
        metadata = pb.read(_one(pb.read(_one(request, 2)), 1))
        if any(len(values) > 1 for values in metadata.values()) or len(node.get(1, ())) != 1:
            raise ValueError("a field comes twice")
        if pb.whole(metadata, 3) != pb.whole(node, 1):
            raise ValueError("a device sends in its own name")
        if not pb.blob(metadata, 5):
            raise ValueError("a device sends replies")
        if pb.blob(metadata, 2) != _one(tree, 1):
            raise ValueError("its objects are those of another message")
        _check_tree(tree)
    except ValueError as problem:
        return 400, f"the message cannot be taken: {problem}"
    return 0, ""


def _check_tree(tree: pb.Fields) -> None:
    """ValueError where a tree is not a message, its dictionary and at most two records."""
    names = [_one(tree, 1)]
    dictionaries = [pb.read(each) for each in pb.blobs(tree, 2)[:2]]
    records = [pb.read(each) for one in dictionaries for each in pb.blobs(one, 2)[: MOST_RECORDS + 1]]
    if len(dictionaries) > 1 or len(records) > MOST_RECORDS or any(2 in record for record in records):
        raise ValueError(f"it has more objects than a dictionary and {MOST_RECORDS} records")
    names += [_one(each, 1) for each in (*dictionaries, *records)]
    if len(set(names)) < len(names) or any(len(name) != 64 or set(name) - set(hexdigits.encode()) for name in names):
        raise ValueError("its objects are not named as Flower does")


def _one(fields: pb.Fields, number: int) -> bytes:
    """The bytes of a field that must come once."""
    found = fields.get(number, [])
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise ValueError(f"field {number} of a part of it must come once")
    return found[0]


def install(extensions: Any, main: Any) -> None:
    """Put the limits in front of the SuperLink; KflError where this Flower would not use them.

    Args:
        extensions: Flower's module `flwr.superlink.extensions`.
        main: Flower's module `flwr.superlink.main`, which builds the app.
    """
    from starlette.middleware import Middleware

    largest_upload()  # a wrong number is one sentence now, not an error inside Flower
    before = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Limits), *before())
    if not any(entry.cls is Limits for entry in main._get_middleware()):
        raise KflError(
            "This version of Flower does not take kfl's limits in front of its SuperLink; install flwr 1.41."
        )


async def _read(receive: Receive, patience_s: float) -> bytes | None:
    """Return a whole body, which is no longer than its request says; None where it takes too long to come."""
    body = bytearray()
    try:
        async with asyncio.timeout(patience_s):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        return None


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
