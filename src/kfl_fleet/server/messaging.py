"""Sends messages to devices over Flower's grid, waits for the answers and matches each to its message.

A message expires when the server stops waiting for its answer, so no device works through old rounds. An answer is
matched by the id of the message it replies to, not by its sender: Flower's own error replies all claim to come from
node 1. If the SuperLink goes away, the courier waits for it to come back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from kfl.core.text import scrub
from kfl_fleet._flower.mailbox import Letter, Mailbox
from kfl_fleet.logs import warn
from kfl_fleet.messages.frames import RawArray, size_bytes, unpack
from kfl_fleet.messages.protocol import Parts, RefusedError, Values, from_entries
from kfl_fleet.retry import Clock

if TYPE_CHECKING:
    from kfl_fleet._flower.names import Grid

T = TypeVar("T")

UNAVAILABLE = {3: ("late", "message_expired"), 4: ("late", "answer_expired"), 5: ("gone", "offline")}
"""Flower's error codes for replies that never arrived, as our kind and code."""
CRASHED = 8
"""Flower's error code for a client that crashed; its reason then begins with one of these codes of ours."""
COMPLETE_S = 5.0
"""Who has not answered by then may be a SuperNode of Flower's, which needs more of its message."""
MOST_DIGESTED = 1 << 16
"""Bytes of an array that go into an upload's checksum."""
SALT_BYTES = 8
WORKER_CODES = ("worker_died", "worker_hung", "worker_memory")


@dataclass(frozen=True)
class Answer:
    """A device's reply."""

    values: Values
    arrays: Mapping[str, RawArray]
    seconds: float
    """From sending the message to receiving the answer."""
    bytes: int
    """Size of the answer's content."""

    @property
    def digest(self) -> str:
        """Tells uploads apart in a round's record: a checksum of the arrays, of large ones of their beginning."""
        found = blake2b(digest_size=8)
        for name in sorted(self.arrays):
            found.update(name.encode("utf-8", "surrogatepass"))
            found.update(memoryview(self.arrays[name].data)[:MOST_DIGESTED])
        return found.hexdigest()


@dataclass(frozen=True)
class NoReply:
    """Why there is no usable answer."""

    kind: str
    """late, gone, error, garbled or unsent."""
    why: RefusedError
    seconds: float = 0.0


@dataclass
class Courier:
    """Carries messages between the server and its devices."""

    grid: Grid
    poll_s: float = 0.2
    clock: Clock = Clock()  # frozen
    sent_bytes: int = 0
    """Size of the content of all messages so far."""
    _complained: float = field(default=-1e9)

    def nodes(self) -> dict[int, str]:
        """The nodes that are online now, each with the name it was registered under."""
        found: Any = self._try(lambda: list(self.grid.get_nodes()))
        if found is None:
            return {}
        return {int(node.node_id): str(getattr(node, "name", "") or "") for node in found if _online(node)}

    def ask(
        self, contents: Mapping[int, tuple[int, Parts]], kind: str, group: str, deadline_s: float, most_bytes: int
    ) -> dict[int, Answer | NoReply]:
        """Send each device its (node, message), and wait until all have answered or the deadline has passed.

        An answer that holds more than `most_bytes` is not unpacked.
        """
        started = self.clock.now()
        mailbox = Mailbox(self.grid, most_bytes)
        waiting, doubtful = self._push(mailbox, contents, kind, group, deadline_s, started)
        late = NoReply("late", RefusedError("no_answer", deadline_s=deadline_s), deadline_s)
        unsent = late if doubtful else NoReply("unsent", RefusedError("not_sent"))
        answers: dict[int, Answer | NoReply] = dict.fromkeys(contents, unsent)
        answers |= dict.fromkeys(waiting.values(), late)
        while waiting:
            pending = list(waiting)
            in_time = partial(self._in_time, started + deadline_s)
            for letter in self._try(partial(mailbox.take, pending, in_time)) or ():
                device = waiting.pop(letter.to, None)
                if device is not None:
                    answers[device] = _open(letter, self.clock.now() - started, most_bytes)
            left_s = deadline_s - (self.clock.now() - started)
            if left_s <= 0:
                break
            if waiting and deadline_s - left_s > COMPLETE_S:
                self._try(mailbox.complete)
            if waiting:
                self.clock.sleep(min(self.poll_s, left_s))
        self._try(partial(mailbox.tidy, list(waiting)))
        return answers

    def _push(
        self,
        mailbox: Mailbox,
        contents: Mapping[int, tuple[int, Parts]],
        kind: str,
        group: str,
        deadline_s: float,
        started: float,
    ) -> tuple[dict[str, int], bool]:
        """Send messages: the device of each message id, and whether others may have got theirs all the same.

        Retries until the deadline. When no answer comes from the SuperLink, or it refuses all messages, which it also
        does with those that it got before, an attempt may have reached devices, and these may work and upload.
        """
        from kfl_fleet._flower.names import Message
        from kfl_fleet._flower.records import to_record

        doubtful = False
        while contents and self.clock.now() - started < deadline_s:
            left_s, salt = deadline_s - (self.clock.now() - started), os.urandom(SALT_BYTES)
            records = [(node, to_record(parts, salt)) for node, parts in contents.values()]
            # A new message for each attempt: an id that was sent before would be refused.
            messages = [Message(record, node, kind, ttl=left_s, group_id=group) for node, record in records]
            ids = self._try(partial(mailbox.send, messages))
            if ids and any(ids):
                self.sent_bytes += sum(size_bytes(parts) for _, parts in contents.values())
                return {id_: device for id_, device in zip(ids, contents, strict=True) if id_}, doubtful
            doubtful = True
            self.clock.sleep(self.poll_s)
        return {}, doubtful

    def _in_time(self, until_s: float) -> bool:
        return self.clock.now() < until_s

    def _try(self, call: Callable[[], T]) -> T | None:
        """The result of a call to the SuperLink; None if it does not answer, logged at most once a minute."""
        try:
            return call()
        except Exception as problem:  # httpx, and what Flower makes of its errors: all mean "not now"
            if self.clock.now() - self._complained > 60:
                self._complained = self.clock.now()
                why = f"{type(problem).__name__}: {scrub(problem)}"
                warn("superlink_unreachable", f"The SuperLink does not answer ({why}); retrying.")
            return None


def _open(letter: Letter, seconds: float, most_bytes: int) -> Answer | NoReply:
    """Read a reply, as far as its table and arrays can be read."""
    if letter.error is not None:
        number, reason = letter.error
        if number in UNAVAILABLE:
            kind, code = UNAVAILABLE[number]
            return NoReply(kind, RefusedError(code), seconds)
        return NoReply("error", _failure(number, reason or "it gave no reason"), seconds)
    try:
        parts = from_entries(letter.entries)
        values, arrays = unpack(parts, most_bytes)
    except RefusedError as problem:
        return NoReply("garbled", problem, seconds)
    return Answer(values, arrays, seconds, size_bytes(parts))


def _failure(number: int, reason: str) -> RefusedError:
    """Why a device failed: a code of its node's, or what it says."""
    code, _, text = reason.partition(": ")
    if number == CRASHED and code in WORKER_CODES:
        return RefusedError(code, text=scrub(text))
    return RefusedError("failed", text=scrub(reason))


def _online(node: Any) -> bool:
    return str(getattr(node, "status", "online") or "online") == "online"
