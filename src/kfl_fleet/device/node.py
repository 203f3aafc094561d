"""A device's own program: it asks the server for messages, hands them to its worker, and sends the answers.

    kfl deploy device --superlink fleet.example.org:8443 --number 3 …

It speaks Flower's Fleet API to an ordinary SuperLink, in place of Flower's SuperNode. It imports neither Flower nor
NumPy nor PyTorch: PyTorch, data and model live in a process of their own (`worker_process`) that waits, warm, for the
next message. That process may die, hang or run out of memory: the server is notified, and the next message finds a
fresh one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from kfl.core.errors import ConfigError, KflError
from kfl.core.files import read_regular
from kfl.core.telemetry import hush
from kfl.core.terminal import tell
from kfl.core.text import scrub
from kfl_fleet._flower import bundle
from kfl_fleet._flower.fleet_api import HEARTBEAT_S, UNKNOWN, App, AwayError, FleetApi, StatusError
from kfl_fleet._flower.objects import Incoming, Outgoing, error_reply, read_entries, reply
from kfl_fleet.device.worker_link import WorkerError, WorkerLink
from kfl_fleet.logs import format_from_environment, note, start_logging, warn
from kfl_fleet.messages.protocol import Parts, RefusedError, from_entries, refusal
from kfl_fleet.private import exposed, keep_private
from kfl_fleet.retry import Retry
from kfl_fleet.stopping import StopRequested, stopping_on_signals

T = TypeVar("T")

FAILED, INVALID_APP, CRASHED = 2, 7, 8
"""Flower's codes of error replies."""
ENTER_S = 90.0
"""How long to knock: the server believes a device that was killed to be there for a minute."""
KNOCK_S = 3.0
AWAY = Retry(0.5, factor=2.0, most_s=10.0, jitter=0.2)
"""While the server cannot be reached."""
MARGIN = 0.1
"""This share of a message's time, at most MARGIN_S, is kept for the answer's way."""
MARGIN_S = 2.0
WAIT_S = 10
"""A look may be answered so much later, when there is a message: heartbeats and a worker that died wait so long too."""
OBJECT, OBJECT_S = Retry(0.2), 15.0
"""A message is announced before it is there; to ask for it sooner would delay it. After so long its server has died in
between, and another may be asking already."""
BEAT_S = 0.7 * HEARTBEAT_S
ONLINE = "KFL_ONLINE_FILE"
MOST_CONFIG = 1 << 22


@dataclass(frozen=True)
class NodeOptions:
    """Start parameters of a device."""

    superlink: str
    root_certificates: str
    key: str
    number: int
    state: str
    config: str = ""
    device: str = ""
    meter: str = "formula"
    poll_s: float = 0.5
    idle_poll_s: float = 3.0
    idle_after_s: float = 60.0

    def validate(self) -> None:
        """Raise ConfigError for the first option that cannot work."""
        if self.number < 0:
            raise ConfigError("number", self.number, "the device's number, from 0")
        for name in ("poll_s", "idle_poll_s"):
            if not 0 < getattr(self, name) <= HEARTBEAT_S:
                raise ConfigError(name.replace("_", "-"), getattr(self, name), f"above 0 and at most {HEARTBEAT_S:g}")
        if self.idle_after_s < 0:
            raise ConfigError("idle-after-s", self.idle_after_s, "0 or more")
        if self.config and not Path(self.config).is_file():
            raise ConfigError("config", self.config, "a TOML file that can be read")

    def table(self) -> dict[str, Any]:
        """What the worker receives of them, by the names that Flower's node configuration has."""
        named = {"partition-id": self.number, "state": self.state, "config": self.config}
        return {**named, "device": self.device, "meter": self.meter}


class Node:
    """One device that is or wants to be online."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.api = FleetApi(options.superlink, Path(options.root_certificates), Path(options.key))
        self.worker = WorkerLink()
        self.refresh = False
        """Whether the device function must be called again."""
        self._apps: dict[int, App] = {}
        self._who: dict[str, Any] = {"device": options.number}
        self._beat_s = self._asked_s = self._empty_s = time.monotonic()
        """When the last heartbeat was sent, the last message came, and the last look found none."""

    def run(self) -> None:
        """Take part until StopRequested."""
        self.worker.start()  # it imports PyTorch while this process knocks
        try:
            number = self._enter()
            mark_online()
            if self.api.clock_is_off:
                why = "The clock of this machine is not the server's; requests are signed with the server's."
                warn("clock_off", why, **self._who)
            note("online", f"Online as node {number}, device {self.options.number}.", **self._who, node=str(number))
            while True:
                self._turn()
        finally:
            self.worker.stop()
            self.api.close()  # it may have been interrupted in the middle of an answer
            with contextlib.suppress(KflError):
                self.api.deactivate()
            self.api.close()

    def _enter(self) -> int:
        """Come online. The server refuses a device that it believes to be there, for a minute after a crash."""
        end, told = time.monotonic() + ENTER_S, False
        while True:
            try:
                return self._patiently(self.api.activate)
            except StatusError as problem:
                if problem.status == UNKNOWN or time.monotonic() > end:
                    raise KflError(
                        f"The server does not admit this device. {problem} On the server: kfl deploy keys --register"
                    ) from None
                if not told:
                    told = True
                    why = "Its key is not admitted, or the server still holds the connection it had before a crash."
                    note("knocking", f"{problem} {why} Knocking for up to {ENTER_S:g} s.", **self._who)
                time.sleep(KNOCK_S)

    def _turn(self) -> None:
        """Look for a message once, and answer it or rest."""
        question = self._patiently(partial(self.api.pull, WAIT_S), refusals=True)
        now = time.monotonic()
        if question is None:
            self._empty_s = now
            how = self.worker.tend()
            if how is not None:
                why = f"The worker died while it had nothing to do ({how}); a fresh one is started."
                warn("worker_died", why, **self._who)
            quick = now - self._asked_s < self.options.idle_after_s
            self._beat()
            # Not all devices at the same moment.
            time.sleep((self.options.poll_s if quick else self.options.idle_poll_s) * random.uniform(0.9, 1.1))
            return
        try:
            self._take(question, now)
        except (
            StatusError,
            AwayError,
            ValueError,
        ) as problem:  # its run has ended, no device waits any more, or it is none
            text = f"Message {scrub(question.id):.8} of run {question.run} is dropped. {problem}"
            warn("message_dropped", text, **self._who)
            time.sleep(self.options.poll_s)  # the server may have as many as it likes
        self._asked_s = time.monotonic()
        self._beat()

    def _take(self, question: Incoming, arrived_s: float) -> None:
        """Answer one message."""
        # How long it has waited, by the server's clock and this one's; no longer than since the last look.
        waited_s = min(max(self.api.now_s() - question.created_at, 0.0), arrived_s - self._empty_s)
        margin_s = min(MARGIN * question.ttl_s, MARGIN_S)
        until = arrived_s + question.ttl_s - waited_s - margin_s
        if until <= time.monotonic():
            raise StatusError(408, "no device waits for its answer any more")
        parts = self._content(question, until)
        began_s = time.monotonic()
        answer = self._answer(question, parts, until, lambda: waited_s + time.monotonic() - arrived_s)
        worked_s = time.monotonic() - began_s
        what: dict[str, Any] = {"group": question.group, "kind": question.kind, "seconds": worked_s}
        note("answered", f"Round {question.group}: {question.kind} in {worked_s:.2f} s.", **self._who, **what)
        self._patiently(partial(self.api.push, question.run, answer, worked_s), until + margin_s)

    def _content(self, question: Incoming, until: float) -> Parts | RefusedError:
        """What a message holds, or why it cannot be used."""
        entries: dict[str, Any] = {}
        for name in question.records:
            pull = partial(self.api.pull_object, question.run, name)
            for _ in OBJECT.pauses(min(until, time.monotonic() + OBJECT_S)):
                self._beat()
                if (content := self._patiently(pull, until)) is not None:
                    entries |= read_entries(name, content)
                    break
            else:
                raise StatusError(404, "the message never arrived whole")
        try:
            return from_entries(entries)
        except RefusedError as problem:
            return problem

    def _answer(
        self, question: Incoming, parts: Parts | RefusedError, until: float, after: Callable[[], float]
    ) -> Outgoing:
        """The worker's answer or what became of it; `after` says how long ago the question was asked."""
        if isinstance(parts, RefusedError):
            return refuse(question, parts, after())
        try:
            setup = self._setup(question.run, until)
            if self.refresh:
                self.refresh = False
                self.worker.stop()
            return reply(question, self.worker.answer(setup, parts, until, self._beat_if_possible), after())
        except WorkerError as problem:
            warn("worker_failed", str(problem), **self._who, code=problem.code)
            if problem.code == "failed":
                return error_reply(question, FAILED, str(problem).removeprefix("failed: "), after())
            return error_reply(question, CRASHED, str(problem), after())
        except (KflError, OSError) as problem:
            if isinstance(problem, StatusError | AwayError):
                raise
            warn("app_failed", str(problem), **self._who)
            return error_reply(question, INVALID_APP, str(problem), after())

    def _setup(self, run: int, until: float) -> dict[str, Any]:
        """What the worker must be for a run: another run, app or configuration is another worker."""
        if run not in self._apps:
            self._apps = {run: self._patiently(partial(self.api.app, run), until)}
        app, folder = self._apps[run], Path(self.options.state) / "apps"
        place = bundle.installed(folder, app.hash)
        if place is None:
            content = self._patiently(partial(self.api.bundle, run, app.hash), until)
            place = bundle.install(folder, app.hash, content)
        own = read_regular(Path(self.options.config), MOST_CONFIG) if self.options.config else b""
        return {
            "run": run,
            "app": str(place),
            "config": bundle.configuration(place, app.overrides),
            "node": self.options.table(),
            "own": hashlib.sha256(own).hexdigest(),
        }

    def _beat(self) -> None:
        if time.monotonic() - self._beat_s >= BEAT_S:
            self._beat_s = time.monotonic()
            self._patiently(self.api.heartbeat, refusals=True)
            mark_online()

    def _beat_if_possible(self) -> None:
        """The same while the worker works, which needs no patience: the answer will need it."""
        if time.monotonic() - self._beat_s >= BEAT_S:
            with contextlib.suppress(AwayError):
                self.api.heartbeat()
                self._beat_s = time.monotonic()
                mark_online()

    def _patiently(self, call: Callable[[], T], until: float = inf, refusals: bool = False) -> T:
        """The result of a request; while the server is away, try again and again, at most every ten seconds.

        Args:
            call: the request.
            until: when to give up, with AwayError.
            refusals: whether it is the device's very presence that is refused, which passes; but not where the device
                is not known (401).
        """
        told = False
        for _ in AWAY.pauses(until):
            try:
                return call()
            except (AwayError, StatusError) as problem:
                if isinstance(problem, StatusError) and (not refusals or problem.status == UNKNOWN):
                    raise
                last = problem
                if not told:
                    told = True
                    warn("server_away", f"{problem} Trying on.", **self._who)
        raise AwayError(str(last))


def mark_online() -> None:
    """Touch the file that KFL_ONLINE_FILE names, if any: a container is well while the server hears of it."""
    if path := os.environ.get(ONLINE):
        with contextlib.suppress(OSError):
            Path(path).touch()


def refuse(question: Incoming, problem: RefusedError, after_s: float) -> Outgoing:
    """A refusal that servers of every version can read; it needs no worker."""
    from kfl_fleet.messages.frames import pack  # it needs NumPy, and this is rare

    return reply(question, pack(refusal(problem), {}), after_s)


def main(arguments: list[str]) -> int:
    """Run a device by the options in JSON that `kfl deploy device` gives."""
    keep_private()
    hush()
    try:
        start_logging(format_from_environment())
        options = NodeOptions(**json.loads(arguments[0]))
        options.validate()
        if (sentence := exposed([Path(options.key)])) is not None:
            warn("key_exposed", sentence, device=options.number)
        node = Node(options)
        signal.signal(signal.SIGHUP, lambda *_: setattr(node, "refresh", True))
        with stopping_on_signals():
            node.run()
    except StopRequested:
        note("ended", "Ended.")
        return 0
    except KflError as problem:
        tell(f"kfl: {problem}", file=sys.stderr)
        return problem.exit_status
    return 0


def command(options: NodeOptions) -> list[str]:
    """The command that runs a device."""
    return [sys.executable, "-m", "kfl_fleet.device.node", json.dumps(asdict(options))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
