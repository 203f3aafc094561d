"""What one admitted member may send to a SuperLink, and what becomes of the honest one next to it.

    python -m studies.fleet.attacks --out docs/results/fleet-attacks.txt

Flower's own SuperLink, with TLS, signatures and a database, runs in this process behind kfl's limits. One member sends
what no honest device does; after each attempt another device is asked and must answer in time. A row says what was
tried, what became of it, how long that took, how soon the honest device's answer was there, and how the database grew.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kfl_fleet._flower import protobuf as pb
from kfl_fleet._flower.fleet_api import AwayError, FleetApi, StatusError
from kfl_fleet._flower.objects import Incoming, Outgoing, reply
from kfl_fleet.messages.frames import pack
from kfl_fleet.server.messaging import Answer
from studies.fleet.exhaustion import crowd, failing, forged, half_sent, newcomer, strange, together
from studies.fleet.member import SMALL, Member, attacks
from studies.fleet.superlink import SuperLink, superlink

DEADLINE_S = 5.0
MOST_UPLOAD = 64 << 20
LOOK_S = 0.2
"""Between two looks of the honest device."""


def main() -> int:
    """Try everything, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--slow-s", type=float, default=40.0, help="how long to send byte by byte")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = ["python -m studies.fleet.attacks", ""]
    head = ("tried", "outcome", "took, s", "honest, s", "database")
    rows.append("{:<52}{:<24}{:>8}{:>11}{:>11}".format(*head))
    broken = 0
    with tempfile.TemporaryDirectory(prefix="kfl-attacks-") as place, superlink(Path(place), members=23) as link:
        for name, outcome, took_s, honest_s, grown in run(link, options.slow_s):
            bad = honest_s is None or outcome.startswith("taken")
            broken += bad
            honest = "none" if honest_s is None else f"{honest_s:.2f}"
            rows.append(
                f"{name:<52}{outcome:<24}{took_s:>8.2f}{honest:>11}{grown / 1e3:>8.0f} kB{'  <-' if bad else ''}"
            )
            print(rows[-1], flush=True)
    rows += ["", f"{len(rows) - 3} tried, {broken} broke something"]
    print("\n".join(rows[-2:]))
    if options.out is not None:
        options.out.write_text("\n".join(rows) + "\n")
    return 1 if broken else 0


def run(link: SuperLink, slow_s: float) -> Iterator[tuple[str, str, float, float | None, int]]:
    """Attempt after attempt: its name, its outcome, seconds, those of an honest answer, bytes of the database."""
    member = Member(link.address, link.authority, link.keys[0])
    member.activate()
    with honest_device(link):
        for name, attempt in all_attempts(link, member, slow_s).items():
            allowed_again(member)
            size, started = _size(link), time.monotonic()
            outcome = attempt()
            took_s = time.monotonic() - started
            yield name, outcome, took_s, honest_answer_s(link), _size(link) - size
    member.close()


def allowed_again(member: Member) -> None:
    """Wait until the member is heard once more: an attempt may have used up what its key may ask."""
    until = time.monotonic() + 120.0
    while True:
        try:
            member.heartbeat()
            return
        except AwayError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def all_attempts(link: SuperLink, member: Member, slow_s: float = 40.0) -> dict[str, Callable[[], str]]:
    """Every attempt by its name."""
    question = questioned(link, member)
    found = dict(attacks(member, question, link.nodes[1], MOST_UPLOAD))
    found["an object before any device knows it, by an outsider"] = lambda: stranger(link)
    found["the record of the server's next question"] = lambda: poison(link, member)
    found["an answer of which nothing ever comes"] = lambda: undelivered(link, member)
    found["an object that is not what its name says"] = lambda: another_content(link, member)
    found["an answer twice, and to the question after"] = lambda: replays(link, member)
    found["3000 looks at once"] = lambda: member.flood(3000)
    found["an answer after its time"] = lambda: late(link, member)
    found["the same key from a second node"] = lambda: second(link)
    found["the largest upload to each of 8 questions"] = lambda: fullest(link, member)
    for count in (5, 20):
        found[f"{count} members flood for 20 s"] = partial(flooded, link, count)
    found["five largest uploads in the honest one's round"] = lambda: together(link, list(range(2, 7)))
    found["8 largest uploads, half of each sent"] = lambda: half_sent(member)
    found["another value in each field of an answer"] = lambda: strange(
        link, member, questioned(link, member, "strange")
    )
    found["700 requests in the honest device's name"] = lambda: forged(link)
    found["outsiders flood while a device comes online"] = lambda: newcomer(link, len(link.keys) - 1)
    found["300 requests that fail"] = lambda: failing(member)
    found["20 requests byte by byte"] = lambda: member.slowly(slow_s)
    return found


def questioned(link: SuperLink, member: Member, values: str = "profile", deadline_s: float = 300.0) -> Incoming:
    """A question to the member, for whose answer nothing waits."""
    content = {0: (link.nodes[0], pack({"kind": values}, {}))}
    asking = threading.Thread(
        target=link.courier().ask, args=(content, "query", values, deadline_s, 1 << 20), daemon=True
    )
    asking.start()
    question = member.waiting()
    if question is None:
        raise RuntimeError("the member was not asked")
    return question


def stranger(link: SuperLink) -> str:
    """A key that no device admitted sends a large body."""
    from kfl_fleet.project.certificates import make_device_key

    with tempfile.TemporaryDirectory() as folder:
        unknown = Member(link.address, link.authority, make_device_key(Path(folder), 0).private)
        return unknown.ask("push-object", pb.message(4, bytes(32 << 20)))


def poison(link: SuperLink, member: Member) -> str:
    """Announce the record of a question as a dictionary with children, so that the server cannot send it again."""
    content = {0: (link.nodes[0], pack({"kind": "poisoned"}, {}))}

    def asked() -> Incoming | None:
        thread = threading.Thread(
            target=link.courier().ask, args=(content, "query", "x", DEADLINE_S, 1 << 20), daemon=True
        )
        thread.start()
        found = member.waiting(DEADLINE_S)
        thread.join()  # it tidies: the record is gone, and its name free
        return found

    first = asked()
    holder = questioned(link, member, "holder")
    answer = reply(holder, SMALL, 0.1)
    if first is None:
        return "not asked"
    tree = pb.text(1, pb.words(pb.read(answer.tree), 1))
    tree += pb.message(2, pb.text(1, first.records[0]) + pb.message(2, pb.text(1, "e" * 64)))
    member.push_raw(answer.envelope, tree)
    return "taken" if asked() is None else "without effect"


def undelivered(link: SuperLink, member: Member) -> str:
    """Announce an answer, send nothing of it; once its question is over it must be gone from the database."""
    content = {0: (link.nodes[0], pack({"kind": "undelivered"}, {}))}
    thread = threading.Thread(target=link.courier().ask, args=(content, "query", "x", 2.0, 1 << 20), daemon=True)
    thread.start()
    question = member.waiting()
    if question is None:
        return "not asked"
    answer = reply(question, SMALL, 0.1)
    member.push_raw(answer.envelope, answer.tree)
    thread.join()
    return "taken" if pb.words(pb.read(answer.tree), 1) in link.state.object_store else "without effect"


def another_content(link: SuperLink, member: Member) -> str:
    """Send other bytes under an announced name."""
    question = questioned(link, member, "content")
    answer = reply(question, SMALL, 0.1)
    own = pb.message(1, pb.uint(1, question.node))
    announced = member._call("push-messages", own + pb.message(2, answer.envelope) + pb.message(3, answer.tree))
    name = next(iter(answer.records))
    body = own + pb.uint(2, question.run) + pb.text(3, name) + pb.message(4, b"other bytes")
    member.ask("push-object", body + pb.text(5, pb.words(announced, 4)))
    return "taken" if link.state.object_store.get(name) else "without effect"


def replays(link: SuperLink, member: Member) -> str:
    """The same answer twice, and once more to another question: the second question must not have it for an answer."""
    content = {0: (link.nodes[0], pack({"kind": "replay"}, {}))}
    found: list[object] = []
    answer: Outgoing | None = None
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: found.append(link.courier().ask(content, "query", "x", 2.0, 1 << 20)[0]), daemon=True
        )
        thread.start()
        question = member.waiting()
        if question is None:
            return "not asked"
        answer = answer or reply(question, SMALL, 0.1)
        for _ in range(2):
            member.push(question.run, answer, 0.1)
        thread.join()
    return "taken" if isinstance(found[1], Answer) else "without effect"


def late(link: SuperLink, member: Member) -> str:
    """Answer a question that is no longer awaited; nothing of it may stay in the database."""
    content = {0: (link.nodes[0], pack({"kind": "late"}, {}))}
    thread = threading.Thread(target=link.courier().ask, args=(content, "query", "x", 0.5, 1 << 20), daemon=True)
    thread.start()
    question = member.waiting()
    thread.join()
    if question is None:
        return "not asked"
    time.sleep(0.5)
    answer = reply(question, SMALL, 0.1)
    member.push_raw(answer.envelope, answer.tree)
    return "taken" if pb.words(pb.read(answer.tree), 1) in link.state.object_store else "without effect"


def second(link: SuperLink) -> str:
    """Come online with the key of the honest device, which is there."""
    return Member(link.address, link.authority, link.keys[1]).come()


def fullest(link: SuperLink, member: Member) -> str:
    """Send as much as is taken, in answer to one question after another."""
    taken = 0
    for number in range(8):
        content = {0: (link.nodes[0], pack({"kind": f"fullest {number}"}, {}))}
        thread = threading.Thread(target=link.courier().ask, args=(content, "train", "x", 10.0, 1 << 30), daemon=True)
        thread.start()
        question = member.waiting()
        if question is not None:
            whole = reply(question, (os.urandom(MOST_UPLOAD - (1 << 12)),), 0.1)
            with contextlib.suppress(AwayError, StatusError):
                member.push(question.run, whole, 0.1)
                taken += 1
        thread.join()
    return f"{taken} of 8 taken"


def flooded(link: SuperLink, members: int) -> str:
    """Members next to an honest device that is asked without a pause."""
    return crowd(link, list(range(2, 2 + members)), lambda: honest_answer_s(link) or DEADLINE_S)


@contextmanager
def honest_device(link: SuperLink) -> Iterator[None]:
    """A second device that answers whatever it is asked."""
    device, over = FleetApi(link.address, link.authority, link.keys[1]), threading.Event()
    device.activate()

    def live() -> None:
        for look in itertools.count():
            if over.wait(LOOK_S):
                break
            try:
                if look % 50 == 49:
                    device.heartbeat()
                if (question := device.pull()) is not None:
                    device.push(question.run, reply(question, SMALL, 0.1), 0.0)
            except (AwayError, StatusError):
                continue

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        device.deactivate()
        device.close()


def honest_answer_s(link: SuperLink) -> float | None:
    """Seconds until the honest device's answer is there; None where it is not in time."""
    asked = {1: (link.nodes[1], pack({"kind": "profile", "nonce": os.urandom(8).hex()}, {}))}
    found = link.courier().ask(asked, "query", "profile", DEADLINE_S, 1 << 20)[1]
    return found.seconds if isinstance(found, Answer) else None


def _size(link: SuperLink) -> int:
    return sum(path.stat().st_size for path in link.database.parent.glob(f"{link.database.name}*"))


if __name__ == "__main__":
    raise SystemExit(main())
