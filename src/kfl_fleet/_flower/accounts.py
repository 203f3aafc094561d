"""What the keys of a fleet ask of the SuperLink: how much each may, and whose turn it is."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from base64 import b64decode
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

KEY, MOMENT, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
"""Headers of a request: who sends it, when, and the signature of that moment."""
REQUESTS, REQUESTS_PER_S = 600.0, 15.0
"""What a key may ask at once, and from then on. A device that is busy asks five times a second."""
FAILED = 10.0
"""Requests that one counts for which the SuperLink had to refuse: each leaves a line in its log."""
UPLOADS, UPLOADS_PER_MINUTE = 4.0, 2.0
"""Bytes that a key may send at once, and per minute from then on, as multiples of the largest upload."""
MOST_OPEN, MOST_STRANGERS_OPEN = 8, 64
"""Requests of a key, and of all whose key is not registered, that are open at a time."""
TURNS = 4
"""Requests of devices that the SuperLink works on at a time: one process with one database is no faster with more."""


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

    def spend(self, amount: float) -> None:
        """Use an amount, whether there is as much or not: what is missing must come back first."""
        self.left -= amount


@dataclass
class Account:
    """What one key has asked for."""

    requests: Allowance
    content: Allowance
    most_open: int
    most_held: int
    """Bytes of all its requests that are open: memory that it takes."""
    open: int = 0
    held: int = 0
    _proof: tuple[bytes, bytes] | None = None
    """The last moment and signature that were right: a device signs once a second."""

    @staticmethod
    def new(most_upload: int, most_open: int) -> Account:
        """An account of which nothing is used."""
        return Account(
            Allowance(REQUESTS, REQUESTS_PER_S),
            Allowance(UPLOADS * most_upload, UPLOADS_PER_MINUTE * most_upload / 60),
            most_open,
            most_upload,
        )

    def admit(self, length: int, now_s: float) -> str:
        """Why a request with so many bytes must wait; empty where it need not."""
        if self.open >= self.most_open:
            return f"{self.most_open} requests of this device are being answered"
        if self.held and self.held + length > self.most_held:
            return "another upload of this device is on its way"
        if not self.requests.take(1.0, now_s):
            return "too many requests"
        return "" if self.content.take(length, now_s) else "too many bytes"

    def signed(self, key: bytes, headers: MutableMapping[bytes, bytes]) -> bool:
        """Whether the owner of this account's key sent a request. Whether that was lately, Flower asks."""
        proof = headers.get(MOMENT, b""), headers.get(SIGNATURE, b"")
        if proof != self._proof and not _verified(key, *proof):
            return False
        self._proof = proof
        return True


class Turns:
    """Requests that are worked on at a time; of those that wait, that of the key that asked least comes first."""

    def __init__(self, most: int = TURNS) -> None:
        self._free, self._count = most, itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    async def take(self, asked: float) -> None:
        """Wait for a turn; `asked` is how much the waiting key has asked before."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (asked, next(self._count), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it had just been given
            raise

    def give(self) -> None:
        """End a turn."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def key_of(headers: MutableMapping[bytes, bytes]) -> bytes:
    """The key that a request names, as Flower reads it; empty where it names none."""
    try:
        return b64decode(headers.get(KEY, b""), validate=True)
    except ValueError:
        return b""


async def is_registered(scope: MutableMapping[str, Any], key: bytes) -> bool:
    """Whether the SuperLink that answers a request knows a key."""
    from starlette.concurrency import run_in_threadpool

    factory = getattr(scope["app"].state, "linkstate_factory", None)
    if factory is None:
        return False
    return await run_in_threadpool(lambda: factory.state().get_node_id_by_public_key(key)) is not None


def _verified(key: bytes, moment: bytes, signature: bytes) -> bool:
    """Whether this is the signature of a key under a moment, by Flower's own check."""
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        return bool(verify_signature(bytes_to_public_key(key), moment, b64decode(signature, validate=True)))
    except (ValueError, TypeError, AttributeError):  # no key, one of another kind, or no signature
        return False
