"""Limits in front of the SuperLink's fleet interface: what is too much is refused before anything is stored.

For each object of a reply's tree the SuperLink writes several rows in one transaction, and only then does our server
see the reply. So bounds belong in front of it. Flower asks `flwr.superlink.extensions.get_middleware` for middleware
that comes before its own; that function is replaced (`README.md` in this folder).

    bodies    every request states its length, which is bounded for its path, and arrives within a time that follows
              from its length; a server never reads more than is stated. An upload is no larger than the server app
              says with its questions that one can be
    messages  a device sends one reply in a request, in its own name, of a message, its dictionary and at most two
              records. Flower 1.41 compares neither the sender of a message with the key that signed the request, nor
              asks whether it is a reply at all: a device could fill the database with questions to itself
    rates     requests and bytes of a key in a minute, how many are open at a time, and how many bytes these hold. A
              request counts for the key that signed it; all whose key is not registered share one small account, and
              send no uploads
    turns     few requests are worked on at a time, and of those that wait, that of the key that asked least comes
              first: a flood waits for the others
    looks     a device that looks for a message and says that it can wait is answered when there is one: most of what
              a SuperLink does otherwise is to say that there is none

The numbers are generous: a fleet of today stays far below them. A device that meets them waits and tries again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from string import hexdigits
from typing import Any

from kfl.core.errors import ConfigError, KflError
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.accounts import (
    FAILED,
    MOST_OPEN,
    MOST_STRANGERS_OPEN,
    Account,
    Allowance,
    Turns,
    is_registered,
    key_of,
)
from kfl_fleet._flower.objects import MOST_RECORDS
from kfl_fleet.retry import Clock

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"
QUESTIONS, RECORDS = RUNTIME + "push-messages", RUNTIME + "push-object"
MOST_BYTES = 1 << 16
"""Of a request that carries no content, and of a reply's envelope: about a hundred times the usual."""
UPLOAD = "push-object"
UPLOAD_MB = "KFL_MOST_UPLOAD_MB"
"""Environment variable: the largest object of an upload in MiB. The project's proxy has the same bound."""
LARGEST = "kfl-largest-upload"
"""Header of the server app's questions: the run, "=", and the most bytes that an answer to them can hold."""
LOOK, WAIT, MOST_WAIT_S = "pull-messages", "kfl-wait-s", 10.0
"""What devices do most, the header in which they say how long they can wait, and the longest that is granted."""
SETTLED_S = 0.03
"""Waiting devices are notified of messages when the server app has sent nothing more for so long; its records follow a
message, and who asks for them too early asks again."""
MOST_RUNS = 16
"""Runs whose largest upload is remembered."""
PATIENCE_S, SLOWEST_BYTES_PER_S, LONGEST_S = 30.0, 2000.0, 180.0
"""A body may take so long, and as much longer as a slow radio needs for its length; but Flower forgets an upload three
minutes after it was announced."""
LOOKUPS, LOOKUPS_PER_S = 1000.0, 200.0
"""How often the database is asked whether a key is registered, at once and per second."""
MOST_WORK_S = 1e9
"""Seconds that a device may say it worked: Flower adds them up, and what is no number would stay one for ever."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Limits:
    """ASGI middleware that refuses requests of devices beyond the limits with 400, 408, 411, 413 or 429.

    Args:
        app: what answers the rest.
        clock: time that allowances come back with.
        most_upload: bytes of the largest object, whatever a server app says; by default `largest_upload`.
        registered: whether the SuperLink knows a key.
    """

    def __init__(
        self,
        app: App,
        clock: Clock = Clock(),  # noqa: B008  # frozen
        most_upload: int | None = None,
        registered: Callable[[Scope, bytes], Awaitable[bool]] = is_registered,
    ) -> None:
        self.app, self.clock = app, clock
        self.most_upload = most_upload or largest_upload()
        self._registered, self._lookups = registered, Allowance(LOOKUPS, LOOKUPS_PER_S)
        self._accounts: dict[bytes, Account] = {}
        """Of registered keys that asked since the SuperLink started."""
        self._strangers = Account.new(self.most_upload, MOST_STRANGERS_OPEN)
        self._largest: dict[str, int] = {}
        """Bytes of the largest upload of each run, by its last questions."""
        self._turns, self._news = Turns(), News()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(FLEET):
            await self.app(scope, receive, self._hearing(scope, send) if path in (QUESTIONS, RECORDS) else send)
            return
        # Of a header that comes twice Flower reads the first.
        name, headers = path.removeprefix(FLEET), dict(reversed(scope["headers"]))
        account = await self._account(scope, headers)
        status, reason = check_length(headers, self._most_object() if name == UPLOAD else MOST_BYTES)
        length = 0 if status else int(headers[b"content-length"])
        if not status and account is self._strangers and length > MOST_BYTES:
            status, reason = 429, "this key is not registered, or did not sign"
        if not status and (reason := account.admit(length, self.clock.now())):
            status = 429
        if status:
            await _refuse(send, status, reason)
            return
        account.open, account.held = account.open + 1, account.held + length
        try:
            body = await _read(receive, min(PATIENCE_S + length / SLOWEST_BYTES_PER_S, LONGEST_S))
            status, reason = (408, "the request took too long to arrive") if body is None else (0, "")
            if body is not None and name == "push-messages":
                status, reason = check_message(body)
            if body is None or status:
                await _refuse(send, status, reason)
            else:
                await self._look(account, scope, body, receive, send, wait_s(headers) if name == LOOK else 0.0)
        finally:
            account.open, account.held = account.open - 1, account.held - length

    async def _account(self, scope: Scope, headers: MutableMapping[bytes, bytes]) -> Account:
        """The account of the registered key that signed a request, or that of all unregistered keys."""
        key = key_of(headers)
        account = self._accounts.get(key)
        if account is None and key and self._lookups.take(1.0, self.clock.now()) and await self._registered(scope, key):
            account = self._accounts.setdefault(key, Account.new(self.most_upload, MOST_OPEN))
        return account if account is not None and account.signed(key, headers) else self._strangers

    async def _look(
        self, account: Account, scope: Scope, body: bytes, receive: Receive, send: Send, patience_s: float
    ) -> None:
        """Have a request answered; a look for messages that finds none, once more when there may be one."""
        until_s = self.clock.now() + patience_s
        while True:
            answer: list[MutableMapping[str, Any]] = []
            news = self._news.next()

            async def keep(message: MutableMapping[str, Any], answer: list[MutableMapping[str, Any]] = answer) -> None:
                answer.append(message)

            last = self.clock.now() >= until_s
            own = {**scope, "state": dict(scope.get("state", {}))}  # Flower writes into it
            await self._in_turn(account, own, _again(body, receive), send if last else keep)
            if last:
                return
            if _found(answer):
                for message in answer:
                    await send(message)
                return
            if not await _come(news, receive, until_s - self.clock.now()):
                return  # the device is gone

    async def _in_turn(self, account: Account, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered when its turn comes; the turn ends when the answer begins, however slowly it goes."""
        await self._turns.take(-account.requests.left)
        working = True

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal working
            if working and message["type"] == "http.response.start":
                working = False
                self._turns.give()
                if message["status"] >= 400 and account is not self._strangers:
                    account.requests.spend(FAILED)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            if working:
                self._turns.give()

    def _most_object(self) -> int:
        """Bytes of a request with an object, by what the runs of this SuperLink have asked for."""
        asked = max(self._largest.values(), default=self.most_upload)
        # What is packed has names next to its arrays, and what does not shrink grows by a part in a thousand.
        return min(self.most_upload, asked + asked // 64 + MOST_BYTES)

    def _hearing(self, scope: Scope, send: Send) -> Send:
        """A `send` that notes, once Flower has taken something from a server app, the largest upload of its run."""
        run, _, most = dict(scope["headers"]).get(LARGEST.encode(), b"").decode("latin-1").partition("=")

        async def hear(message: MutableMapping[str, Any]) -> None:
            taken = message["type"] == "http.response.start" and message["status"] < 300
            if taken:
                self._news.announce()
            if taken and most.isdigit() and len(most) < 18:
                self._largest.pop(run, None)
                self._largest[run] = int(most)
                while len(self._largest) > MOST_RUNS:
                    del self._largest[next(iter(self._largest))]
            await send(message)

        return hear


class News:
    """Tells those who wait that there may be something for them."""

    def __init__(self) -> None:
        self._waiting: asyncio.Event | None = None
        self._told: asyncio.TimerHandle | None = None

    def next(self) -> asyncio.Event:
        """What will be set with the next news."""
        self._waiting = self._waiting or asyncio.Event()
        return self._waiting

    def announce(self) -> None:
        """Tell those who wait, once nothing more has come for a moment."""
        if self._told is not None:
            self._told.cancel()
        self._told = asyncio.get_running_loop().call_later(SETTLED_S, self._tell)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()


def largest_upload() -> int:
    """Bytes of the largest object, by `KFL_MOST_UPLOAD_MB`; 64 MiB without it."""
    given = os.environ.get(UPLOAD_MB, "64")
    if not given.isdigit() or not 0 < int(given[:9]) <= 1024:
        raise ConfigError(UPLOAD_MB, given, "an integer from 1 to 1024")
    return int(given) << 20


def wait_s(headers: MutableMapping[bytes, bytes]) -> float:
    """How long a device can wait for its answer.

    >>> [wait_s({WAIT.encode(): text}) for text in (b"3", b"1000", b"-1", b"nan")], wait_s({})
    ([3.0, 10.0, 0.0, 0.0], 0.0)
    """
    said = headers.get(WAIT.encode(), b"")
    return min(float(said), MOST_WAIT_S) if said.isdigit() and len(said) < 5 else 0.0


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
        _check_work(request)
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


def _check_work(request: pb.Fields) -> None:
    """ValueError where a device did not work for a plain number of seconds."""
    said = b"".join(pb.blobs(request, 4))
    if len(said) > pb.DOUBLE.size or len(said) % pb.DOUBLE.size:
        raise ValueError("it says more than once how long the device worked")
    if said and not 0.0 <= pb.DOUBLE.unpack(said)[0] <= MOST_WORK_S:
        raise ValueError("no device works for so long")


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


def _found(answer: list[MutableMapping[str, Any]]) -> bool:
    """Whether a look found a message, or something else that the device must know."""
    if not answer or answer[0].get("status") != 200:
        return True
    try:
        return 2 in pb.read(b"".join(part.get("body", b"") for part in answer))
    except ValueError:
        return True


async def _come(news: asyncio.Event, receive: Receive, patience_s: float) -> bool:
    """Wait for news, or until patience ends; False where the device has gone meanwhile."""
    gone, come = asyncio.ensure_future(receive()), asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait((gone, come), timeout=max(patience_s, 0.0), return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        gone.cancel()
        come.cancel()


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
