"""A member with a key that sends what no honest device does: what reaches the SuperLink before anything is judged."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path

import torch

from kfl.core.errors import KflError
from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.fleet_api import AwayError, FleetApi, StatusError
from kfl_fleet._flower.objects import Incoming, Outgoing, error_reply, reply
from kfl_fleet.messages.frames import pack

EMPTY, INFINITE = torch.zeros(0, 7), torch.full((3,), float("inf"))
SMALL = pack({"kind": "profile"}, {})
SUPERLINK = 1
"""The node that the server is."""


class Member(FleetApi):
    """A device's side of the Fleet API, without manners."""

    def ask(self, name: str, body: bytes) -> str:
        """Send a request as it is; what became of it."""
        try:
            self._call(name, body)
        except KflError as problem:
            return outcome(problem)
        return "taken"

    def come(self) -> str:
        """Come online."""
        return self.ask("activate-node", pb.message(1, self.public_key) + pb.double(2, 30.0))

    def push_raw(self, envelope: bytes, tree: bytes) -> str:
        """Announce a message."""
        return self.ask("push-messages", self._own() + pb.message(2, envelope) + pb.message(3, tree))

    def waiting(self, patience_s: float = 20.0) -> Incoming | None:
        """The next question, or none in this time."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            with contextlib.suppress(AwayError, StatusError):
                if (question := self.pull()) is not None:
                    return question
            time.sleep(0.05)
        return None

    def line(self) -> ssl.SSLSocket:
        """A connection of its own."""
        plain = socket.create_connection((self.host, self.port), timeout=5.0)
        return self._tls.wrap_socket(plain, server_hostname=self.host)

    def slowly(self, seconds: float, connections: int = 20) -> str:
        """Send requests byte by byte on several connections; how many were ended."""
        lines: list[ssl.SSLSocket | None] = []
        for _ in range(connections):
            line = self.line()
            line.sendall(self._head("pull-messages", 60_000))
            lines.append(line)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(lines):
            for number, open_line in enumerate(lines):
                if open_line is not None and _ended(open_line):
                    open_line.close()
                    lines[number] = None
            time.sleep(0.2)
        ended = lines.count(None)
        for left in filter(None, lines):
            left.close()
        return f"{ended} of {connections} ended"

    def flood(self, requests: int) -> str:
        """Ask for messages as fast as it goes; how many were answered."""
        taken = 0
        for _ in range(requests):
            taken += self.ask("pull-messages", self._own()) == "taken"
        return f"{taken} of {requests} taken"

    def other(self, question: Incoming, node: int) -> Outgoing:
        """An answer in the name of another node."""
        return reply(replace(question, node=node), SMALL, 0.1)


class Mischief:
    """A member that does one kind of harm for a while, in a thread, whatever the server answers."""

    def __init__(self, address: str, authority: Path, key: Path, kind: str, last: Incoming | None = None) -> None:
        self.member, self.harm = Member(address, authority, key), HARM[kind]
        self.over = threading.Event()
        self.tried: Counter[str] = Counter()
        """What was tried and became of it."""
        self.said: list[Outgoing] = []
        self.last = last
        """What it was asked last, by an earlier one of its kind maybe."""
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop, and go offline."""
        self.over.set()
        self._thread.join(timeout=90)

    def _live(self) -> None:
        active = False
        while not self.over.is_set():
            try:
                if not active:
                    self.member.activate()
                    active = True
                self.harm(self)
            except (KflError, OSError, ssl.SSLError):
                active = False
                self.over.wait(1.0)
        with contextlib.suppress(KflError, OSError):
            self.member.deactivate()
        self.member.close()

    def question(self) -> Incoming:
        """What it is asked, if it is asked within a second; what it was asked last; or a question of its own."""
        self.last = self.member.waiting(1.0) or self.last
        return self.last or invented(self.member)

    def trees(self) -> None:
        """Everything that `attacks` tries."""
        question = self.question()
        for name, attempt in attacks(self.member, question, question.node ^ 1, 64 << 20).items():
            self.tried[f"{name}: {attempt()}"] += 1
        self.over.wait(1.0)

    def floods(self) -> None:
        """Requests as fast as they go, and uploads that no device announced."""
        for _ in range(50):
            self.tried[f"a look: {self.member.ask('pull-messages', self.member._own())}"] += 1
        upload = self.member._own() + pb.message(4, bytes(1 << 20))
        self.tried[f"an upload that no device announced: {self.member.ask('push-object', upload)}"] += 1

    def drips(self) -> None:
        """Requests byte by byte."""
        self.tried["12 requests byte by byte: " + self.member.slowly(8.0, 12)] += 1

    def replays(self) -> None:
        """The same answer again and again, with old ones of other questions, infinite numbers and empty arrays."""
        question = self.question()
        strange = {"kind": "profile", "device": 0, "samples": 2**53, "gain": 1e308}
        self.said = [*self.said[-20:], reply(question, pack(strange, {"x": EMPTY, "y": INFINITE}), 0.1)]
        for answer in (*self.said, self.said[-1]):
            try:
                self.member.push(question.run, answer, 0.1)
                self.tried["an answer again: taken"] += 1
            except (StatusError, AwayError) as problem:
                self.tried[f"an answer again: {outcome(problem)}"] += 1


HARM = {
    "member: object trees": Mischief.trees,
    "member: floods": Mischief.floods,
    "member: slow bytes": Mischief.drips,
    "member: replays": Mischief.replays,
}


def outcome(problem: KflError) -> str:
    """What became of a request that was not taken."""
    if isinstance(problem, StatusError):
        return f"refused, {problem.status}"
    status = str(problem).rpartition("status ")[2].rstrip(").")
    return f"refused, {status if status.isdigit() else 'no answer'}"


def invented(member: Member) -> Incoming:
    """An unsolicited answer, for a member that is asked nothing."""
    node = member._node
    return Incoming(1, "d" * 64, SUPERLINK, node, "0", "query", time.time(), 60.0, None, ())


def _ended(line: ssl.SSLSocket) -> bool:
    """Send one more byte; whether the server has answered or ended the connection."""
    try:
        line.settimeout(1.0)
        line.sendall(b"x")
        line.settimeout(0.01)
        line.recv(1 << 12)
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def leaves(count: int) -> bytes:
    """So many names of objects that are nowhere."""
    return b"".join(pb.message(2, pb.text(1, f"{number:064x}")) for number in range(count))


def with_records(answer: Outgoing, records: bytes) -> bytes:
    """The tree of an answer whose dictionary has other records."""
    tree = pb.read(answer.tree)
    dictionary = pb.read(pb.blobs(tree, 2)[0])
    return pb.text(1, pb.words(tree, 1)) + pb.message(2, pb.text(1, pb.words(dictionary, 1)) + records)


def deep(answer: Outgoing, levels: int) -> bytes:
    """A tree in which each object has one below it."""
    below = b""
    for number in range(levels):
        below = pb.message(2, pb.text(1, f"{number:064x}") + below)
    return pb.text(1, pb.words(pb.read(answer.tree), 1)) + below


def twice(envelope: bytes, source: int) -> bytes:
    """An envelope whose metadata come twice: parsers that merge see a sender that others do not."""
    return pb.message(1, pb.uint(3, source)) + envelope


def question_of_ones_own(question: Incoming, to: int) -> tuple[bytes, bytes]:
    """A message that is no reply, from the server, as it says."""
    whole = reply(replace(question, id="", node=SUPERLINK, source=to, source_task=None), SMALL, 0.0)
    return whole.envelope, whole.tree


def attacks(member: Member, question: Incoming, other: int, most: int) -> Mapping[str, Callable[[], str]]:
    """What a member may try with a question that it was asked; `other` is the node of another device.

    Args:
        member: who tries.
        question: what it was asked.
        other: the node of another device, which no member can know.
        most: bytes of the largest object.
    """
    answer = reply(question, SMALL, 0.1)
    own = pb.message(1, pb.uint(1, question.node))
    many = {
        f"an answer that names {count} records": partial(
            member.push_raw, answer.envelope, with_records(answer, leaves(count))
        )
        for count in (20_000, 800, 3)
    }
    return {
        **many,
        "an answer that names one record three times": lambda: member.push_raw(
            answer.envelope, with_records(answer, 3 * leaves(1))
        ),
        "objects 200 levels deep": lambda: member.push_raw(answer.envelope, deep(answer, 200)),
        "a question to itself, in the server's name": lambda: member.push_raw(
            *question_of_ones_own(question, question.node)
        ),
        "a question to another device, in the server's name": lambda: member.push_raw(
            *question_of_ones_own(question, other)
        ),
        "an answer in another device's name": lambda: member.push_raw(
            (forged := member.other(question, other)).envelope, forged.tree
        ),
        "metadata twice, the first in another's name": lambda: member.push_raw(
            twice(answer.envelope, other), answer.tree
        ),
        "a working time that is no number": lambda: member.ask(
            "push-messages",
            own + pb.message(2, answer.envelope) + pb.message(3, answer.tree) + pb.message(4, pb.DOUBLE.pack(nan)),
        ),
        "no message": lambda: member.ask("push-messages", own),
        "two messages": lambda: member.ask(
            "push-messages", own + 2 * (pb.message(2, answer.envelope) + pb.message(3, answer.tree))
        ),
        "objects of another message": lambda: member.push_raw(
            answer.envelope, with_records(reply(question, SMALL, 0.2), leaves(1))
        ),
        "names that are none": lambda: member.push_raw(
            answer.envelope, with_records(answer, pb.message(2, pb.text(1, "../../etc/passwd")))
        ),
        "a reason of 100 kB for having none": lambda: member.push_raw(
            (long := error_reply(question, 2, "x" * 100_000, 0.1)).envelope, long.tree
        ),
        "an object one byte too large": lambda: member.ask("push-object", own + pb.message(4, bytes(most))),
        "rubbish": lambda: member.ask("push-messages", b"\xff" * 500),
        "a heartbeat for ever": lambda: member.ask("send-node-heartbeat", own + pb.double(2, inf)),
        "the end of another device": partial(member.ask, "deactivate-node", pb.uint(1, other)),
        "messages of another device": partial(member.ask, "pull-messages", pb.message(1, pb.uint(1, other))),
    }


__all__ = ["HARM", "SMALL", "Member", "Mischief", "attacks", "leaves", "with_records"]
