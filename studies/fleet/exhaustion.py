"""What members and outsiders try in numbers, so that the others are not heard: `studies.fleet.attacks` runs it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.fleet_api import AwayError, FleetApi, StatusError
from kfl_fleet._flower.objects import Incoming, reply
from kfl_fleet.messages.frames import pack
from kfl_fleet.project.certificates import make_device_key
from kfl_fleet.server.messaging import Answer
from studies.fleet.member import SMALL, Member
from studies.fleet.superlink import SuperLink

MOST_UPLOAD = 64 << 20
INTEGERS = (0, 1, 2**63 - 1, 2**63, 2**64 - 1)
REALS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e308, 1e-320, 1740700801.0, 4e9)
TEXTS = (b"", b"x" * 50_000, b"\xed\xa0\x80", b"\xff\xfe", b"\0", b"a" * 64, b"system.x", "train.\U0001f600".encode())
FIELDS = {1: INTEGERS, 4: INTEGERS, 5: TEXTS, 6: TEXTS, 7: REALS, 8: TEXTS, 9: REALS, 10: INTEGERS, 11: INTEGERS}
"""Of a message's metadata; 2 and 3, its name and sender, are in `member.attacks`."""


def forged(link: SuperLink, owner: int = 1) -> str:
    """Use up what the honest device may ask: its key, which is no secret, over another's signature."""
    public = FleetApi(link.address, link.authority, link.keys[owner]).public_key
    with tempfile.TemporaryDirectory() as folder:
        member = Member(link.address, link.authority, make_device_key(Path(folder), 0).private)
        member._identity = b64encode(public).decode()
        taken = sum(
            member.ask("pull-messages", pb.message(1, pb.uint(1, link.nodes[owner]))) == "taken" for _ in range(700)
        )
        member.close()
    return f"{taken} of 700 taken" if taken else "refused, 401 and 429"


def newcomer(link: SuperLink, number: int, seconds: float = 10.0) -> str:
    """Outsiders flood as fast as it goes; a registered device that was never heard comes online."""
    device = FleetApi(link.address, link.authority, link.keys[number])
    with flood_of_strangers(link):
        time.sleep(1.0)
        began, attempts = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            with contextlib.suppress(AwayError, StatusError):
                attempts += 1
                device.activate()
                device.deactivate()
                device.close()
                return f"online after {time.monotonic() - began:.1f} s"
            time.sleep(0.2)
    return "taken"


@contextmanager
def flood_of_strangers(link: SuperLink, lines: int = 4) -> Iterator[None]:
    """Requests of an unregistered key."""
    over = threading.Event()

    def flood(key: Path) -> None:
        stranger = Member(link.address, link.authority, key)
        while not over.is_set():
            stranger.ask("pull-messages", stranger._own())
        stranger.close()

    with tempfile.TemporaryDirectory() as folder:
        keys = [make_device_key(Path(folder), line).private for line in range(lines)]
        threads = [threading.Thread(target=flood, args=(key,), daemon=True) for key in keys]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


def half_sent(member: Member, connections: int = 8) -> str:
    """Begin the largest upload on several connections, and send half of it: memory of the SuperLink."""
    lines, held = [], 0
    for _ in range(connections):
        line = member.line()
        line.sendall(member._head("push-object", MOST_UPLOAD) + bytes(1 << 16))
        lines.append(line)
    for line in lines:
        line.settimeout(1.0)
        try:
            line.sendall(bytes(MOST_UPLOAD // 2))
            line.settimeout(0.3)
            line.recv(1)
        except TimeoutError:
            held += 1
        except OSError:
            pass
    for line in lines:
        line.close()
    return "taken" if held > 1 else f"{held} of {connections} held"


def failing(member: Member, requests: int = 300) -> str:
    """Ask for what there is not: each such request leaves a line in the SuperLink's log."""
    own = member._own() + pb.uint(2, 77) + pb.text(3, "a" * 64)
    heard = sum(member.ask("pull-object", own) != "refused, 429" for _ in range(requests))
    return f"{heard} of {requests} heard"


def strange(link: SuperLink, member: Member, question: Incoming) -> str:
    """An answer with another value in one field, field after field; at most one of them is the answer."""
    stored = link.state.num_message_res()
    answer = reply(question, SMALL, 0.1)
    metadata = pb.read(pb.blob(pb.read(answer.envelope), 1))
    rest = b"".join(pb.message(number, value) for number, value in _pairs(pb.read(answer.envelope)) if number != 1)
    for number, values in FIELDS.items():
        for value in values:
            changed: dict[int, Sequence[object]] = {**metadata, number: [value]}
            member.push_raw(pb.message(1, _encoded(changed)) + rest, answer.tree)
    return "taken" if link.state.num_message_res() > stored + 1 else "without effect"


def together(link: SuperLink, members: list[int], honest: int = 1) -> str:
    """Members answer with the largest upload in the round in which the honest device answers."""
    whole = os.urandom(MOST_UPLOAD - (1 << 12))

    def send(number: int) -> None:
        one = Member(link.address, link.authority, link.keys[number])
        one.activate()
        if (question := one.waiting()) is not None:
            with contextlib.suppress(AwayError, StatusError):
                one.push(question.run, reply(question, (whole, whole), 0.1), 0.1)
        leave(one)

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in members]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    values = {"kind": "profile", "nonce": os.urandom(8).hex()}
    asked = {number: (link.nodes[number], pack(values, {})) for number in (*members, honest)}
    found, began = link.courier().ask(asked, "train", "together", 15.0, 1 << 20), time.monotonic()
    answer = found[honest]
    for thread in threads:
        thread.join()
    late_s = time.monotonic() - began
    return f"answer after {answer.seconds:.1f} s" if isinstance(answer, Answer) else f"taken, {late_s:.0f} s"


def crowd(link: SuperLink, members: list[int], answer_s: Callable[[], float], seconds: float = 20.0) -> str:
    """Members that all do what one does in a flood; the honest device's slowest answer meanwhile."""
    over = threading.Event()
    asked: list[str] = []

    def flood(key: Path) -> None:
        one = Member(link.address, link.authority, key)
        one.activate()
        while not over.is_set():
            asked.append(one.flood(20))
        leave(one)

    threads = [threading.Thread(target=flood, args=(link.keys[number],), daemon=True) for number in members]
    for thread in threads:
        thread.start()
    slowest_s, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        slowest_s = max(slowest_s, answer_s())
    over.set()
    for thread in threads:
        thread.join()
    return f"slowest {slowest_s:.1f} s next to {20 * len(asked)}"


def leave(member: Member) -> None:
    """Go offline, so that its key may come again."""
    while True:
        with contextlib.suppress(AwayError):
            member.deactivate()
            member.close()
            return
        time.sleep(0.5)


def _pairs(fields: pb.Fields) -> Iterator[tuple[int, bytes]]:
    for number, values in fields.items():
        for value in values:
            yield number, value if isinstance(value, bytes) else b""


def _encoded(metadata: Mapping[int, Sequence[object]]) -> bytes:
    """Metadata with values of any kind: numbers as they are, floats as doubles."""
    parts = []
    for number, values in metadata.items():
        for value in values:
            if isinstance(value, float) or (number in (7, 9) and isinstance(value, bytes)):
                raw = pb.DOUBLE.pack(value) if isinstance(value, float) else value
                parts.append(bytes((number << 3 | pb.FIXED64,)) + raw)
            elif isinstance(value, int):
                parts.append(pb.uint(number, value) or bytes((number << 3, 0)))
            elif isinstance(value, bytes):
                parts.append(pb.message(number, value))
    return b"".join(parts)


__all__ = ["crowd", "failing", "forged", "half_sent", "newcomer", "strange", "together"]
