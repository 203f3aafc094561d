"""Break everything once: a fleet of real processes on 127.0.0.1, with TLS and authenticated devices.

    python -m studies.fleet.every_fault --out docs/results/fleet-faults.txt

Four devices play rounds without end while faults happen to them, to their server and to the SuperLink. A row for each:
what was seen, how many rounds went without the answer of the device it happened to, and whether that is what a fleet
has to do. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from kfl.algorithms import Kfl, Rejection
from kfl.core.refusals import describe, stored_refusal
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS
from kfl.simulation import RoundLog
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.device.memory import Memory
from kfl_fleet.device.node import NodeOptions, command
from kfl_fleet.device.worker_link import WORKER
from kfl_fleet.local.fleet import LocalFleet
from kfl_fleet.project.certificates import make_authority, make_device_key

DEADLINE_S = 12.0
MOST_ROUNDS = 60
"""A fault that is not over after so many rounds is not survived."""

FRAGILE = """
import os, resource, signal, time
from dataclasses import replace
from pathlib import Path
import torch
from kfl_fleet.device import simulated as demo
from kfl_fleet.device.worker import Worker

honest, said = Worker.answer, {}

def answer(worker, values, arrays):
    order = worker.folder / "order"
    what = order.read_text() if values.get("kind") == "round" and order.exists() else ""
    if what:
        order.unlink()
        (worker.folder / "obeyed").write_text(what)
    if what == "hang":
        time.sleep(3600)
    if what == "memory":
        torch.ones(2**45)
    if what == "raise":
        raise RuntimeError("no camera")
    if what in ("slow", "very slow"):
        time.sleep(4 if what == "slow" else 8)
    if what == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        reply, upload = honest(worker, values, arrays)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if values.get("kind") == "round":
        said.setdefault("first", (reply, upload))
    if what == "replay":
        return said["first"]
    if what == "nan":
        upload = {**upload, "means": torch.full((10, 64), torch.nan)}
    return reply, upload

Worker.answer = answer

def device(partition, config):
    own = dict(config)
    count = own.pop("samples", None)
    setup = demo.device(partition, own)
    return setup if count is None else replace(setup, train_x=setup.train_x[:count], train_y=setup.train_y[:count])
"""


class FragileFleet(LocalFleet):
    """A fleet whose devices do once what a file in their state folder says."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "app" / "local_fleet" / "fragile.py").write_text(FRAGILE)

    def order(self, device: int, what: str) -> None:
        """Have a device misbehave in the next round it takes part in."""
        (self.device_folder(device) / "state" / "obeyed").unlink(missing_ok=True)
        (self.device_folder(device) / "state" / "order").write_text(what)

    def obeyed(self, device: int) -> None:
        """Wait until it does."""
        note = self.device_folder(device) / "state" / "obeyed"
        end = time.monotonic() + 60
        while not note.exists():
            if time.monotonic() > end:
                raise AssertionError("the device did not obey")
            time.sleep(0.05)
        note.unlink()


@dataclass
class Table:
    """A fleet, its rounds as they come, and a row for every fault."""

    fleet: FragileFleet
    out: Path | None
    lines: list[str] = field(default_factory=list)
    logs: list[RoundLog] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _rounds: Iterator[RoundLog] = field(default_factory=lambda: iter(()))

    def begin(self) -> None:
        self._rounds = self.fleet.rounds(patience_s=240)

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.lines.append(text)
        if self.out is not None:
            self.out.write_text("\n".join(self.lines) + "\n")

    def next(self) -> RoundLog:
        log = next(self._rounds)
        assert log.round == len(self.logs), "the round number only ever advances, by one"
        self.logs.append(log)
        return log

    def catch_up(self) -> None:
        """Take in the rounds that are done already."""
        while len(self.fleet.history()) > len(self.logs):
            self.next()

    def until(self, over: Callable[[RoundLog], bool]) -> int:
        """Play until a round is as it should be; how many there were before it."""
        for count in range(MOST_ROUNDS):
            if over(self.next()):
                return count
        raise AssertionError(f"not over after {MOST_ROUNDS} rounds")

    def fault(self, name: str, what: Callable[[], tuple[str, int]]) -> None:
        """Do it, and write its row."""
        self.catch_up()
        try:
            (seen, lost), fine = what(), "yes"
        except Exception as problem:  # a row that says so is what this table is for
            seen, lost, fine = f"{type(problem).__name__}: {problem}", -1, "NO"
            self.failed.append(name)
        self.say(f"{name:<34} {lost if lost >= 0 else '–':>6}  {fine:<4} {seen}")

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.fleet.run_folder / "fleet.json").read_text())
        return found

    def node(self, device: int) -> str:
        return str(self.facts()["devices"][str(device)]["node"])

    def server(self) -> int:
        return int(json.loads((self.fleet.run_folder / "environment.json").read_text())["process"])

    def kept_round(self, device: int) -> int:
        kept = Memory(self.fleet.device_folder(device) / "state", str(self.facts()["run"]), device).load()
        assert kept is not None
        return kept.round

    def worker(self, device: int) -> int:
        """The process of a device's worker."""
        session = self.fleet.processes.program(f"device-{device}").pid
        for process in self.fleet.processes.members():
            folder = Path("/proc") / str(process)
            works = WORKER.encode() in (folder / "cmdline").read_bytes()
            if works and int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                return process
        raise AssertionError("it has no worker")


def used(log: RoundLog) -> set[int]:
    return set(log.devices) - set(log.lost) - {int(r["device"]) for r in log.rejected}


def why(log: RoundLog, device: int) -> str:
    """What a round's record says about a device whose answer was not used."""
    for entry in log.faults:
        if entry["device"] == device:
            return describe(*stored_refusal(entry))
    for entry in log.rejected:
        if entry["device"] == device:
            return Rejection.from_dict(entry).describe()
    return "not chosen" if device not in log.devices else "used"


class Faults:
    """What happens to the fleet, each with what is seen and how many rounds it costs."""

    def __init__(self, table: Table) -> None:
        self.table, self.fleet = table, table.fleet

    def back(self, device: int) -> int:
        return self.table.until(lambda log: device in used(log))

    def ordered(self, device: int, what: str, said: str) -> Callable[[], tuple[str, int]]:
        """A device obeys; its record must say so, and it must come back."""

        def do() -> tuple[str, int]:
            self.fleet.order(device, what)
            start = len(self.table.logs)
            self.table.until(lambda log: said in why(log, device))
            text = why(self.table.logs[-1], device)
            self.back(device)
            lost = sum(device not in used(log) for log in self.table.logs[start:])
            return f"the record says: {text}; back in round {self.table.logs[-1].round}", lost

        return do

    def slow(self) -> tuple[str, int]:
        self.fleet.order(1, "slow")
        self.fleet.obeyed(1)
        start = len(self.table.logs)
        self.table.until(lambda log: log.time_s > 3.5)
        return f"the round waited {self.table.logs[-1].time_s:.1f} s for it", sum(
            1 not in used(x) for x in self.table.logs[start:]
        )

    def worker_killed(self) -> tuple[str, int]:
        self.fleet.order(1, "slow")
        self.fleet.obeyed(1)
        os.kill(self.table.worker(1), signal.SIGKILL)
        start = len(self.table.logs)
        self.table.until(lambda log: "its worker died" in why(log, 1))
        text = why(self.table.logs[-1], 1)
        self.back(1)
        return f"the record says: {text}", sum(1 not in used(log) for log in self.table.logs[start:])

    def resting_worker_killed(self) -> tuple[str, int]:
        before = self.table.worker(2)
        os.kill(before, signal.SIGKILL)
        start = len(self.table.logs)
        self.table.until(lambda log: 2 in used(log))
        self.table.until(lambda log: 2 in used(log))
        assert self.table.worker(2) != before
        return "a fresh worker answers", sum(2 not in used(log) for log in self.table.logs[start:])

    def stale(self) -> tuple[str, int]:
        own = self.fleet.device_folder(3) / "device.toml"
        before, done = self.table.worker(3), self.table.kept_round(3)
        own.write_text(own.read_text() + "samples = 100\n")
        start = len(self.table.logs)
        self.table.until(lambda log: "changed since it said what it has" in why(log, 3))
        self.back(3)
        assert self.table.worker(3) != before
        assert self.table.kept_round(3) > done
        assert self.table.facts()["devices"]["3"]["profile"]["samples"] == 100
        lost = sum(3 not in used(log) for log in self.table.logs[start:])
        return "a fresh worker with the new data; it is asked again what it has, and keeps its model", lost

    def device_killed(self) -> tuple[str, int]:
        node, done, worker = self.table.node(1), self.table.kept_round(1), self.table.worker(1)
        self.fleet.order(1, "slow")
        self.fleet.obeyed(1)
        os.kill(self.fleet.processes.program("device-1").pid, signal.SIGKILL)  # the node alone
        end = time.monotonic() + 5
        while worker in self.fleet.processes.members() and time.monotonic() < end:
            time.sleep(0.1)
        assert worker not in self.fleet.processes.members(), "an orphan"
        start = len(self.table.logs)
        self.table.until(lambda log: 1 not in used(log))
        self.back(1)
        assert self.table.node(1) == node
        assert self.table.kept_round(1) > done
        lost = sum(1 not in used(log) for log in self.table.logs[start:])
        return "no orphan; started again, it knocks until the server lets it in: same node, model from disk", lost

    def vanished(self) -> tuple[str, int]:
        self.fleet._restarted["device-2"] = time.monotonic() + 3600  # it is not restarted
        self.fleet.order(2, "slow")
        self.fleet.obeyed(2)
        self.fleet.processes.kill("device-2")
        start = len(self.table.logs)
        self.table.until(lambda log: 2 in log.devices and 2 not in used(log))
        text = why(self.table.logs[-1], 2)
        self.table.until(lambda log: 2 not in log.devices)
        assert all({0, 1, 3} <= used(log) for log in self.table.logs[start:])
        self.fleet._restarted["device-2"] = 0.0
        self.back(2)
        return f"{text}; chosen no more until it is back", sum(2 not in used(log) for log in self.table.logs[start:])

    def superlink_killed(self) -> tuple[str, int]:
        server = self.table.server()
        self.fleet.order(0, "slow")
        self.fleet.obeyed(0)
        self.fleet.processes.kill("superlink")
        start = len(self.table.logs)
        self.table.until(lambda log: used(log) == {0, 1, 2, 3} and len(self.table.logs) > start + 1)
        assert self.table.server() == server
        assert self.fleet.runs == 1
        lost = sum(used(log) != {0, 1, 2, 3} for log in self.table.logs[start:])
        return "started again; the same server process went on", lost

    def server_killed(self) -> tuple[str, int]:
        server = self.table.server()
        self.fleet.order(0, "slow")
        self.fleet.obeyed(0)
        os.kill(server, signal.SIGKILL)
        start = len(self.table.logs)
        self.table.until(lambda log: used(log) == {0, 1, 2, 3} and self.table.server() != server)
        lost = sum(used(log) != {0, 1, 2, 3} for log in self.table.logs[start:])
        return "a new process went on with the round; a device that had trained answered from its disk", lost

    def stranger(self, name: str, said: str) -> Callable[[], tuple[str, int]]:
        def do() -> tuple[str, int]:
            key = make_device_key(self.fleet.folder / name, 9).private
            authority = self.fleet.authority if name == "stranger" else make_authority(self.fleet.folder / name).public
            options = NodeOptions(self.fleet.address, str(authority), str(key), 0, str(self.fleet.folder / name))
            self.fleet.processes.start(name, command(options))
            start, text = len(self.table.logs), ""
            end = time.monotonic() + 60
            while said not in text and time.monotonic() < end:
                time.sleep(0.2)
                text = (self.fleet.folder / "logs" / f"{name}.log").read_text()
            assert said in text
            assert "Online" not in text
            self.fleet.processes.kill(name)
            self.table.until(lambda log: used(log) == {0, 1, 2, 3})
            sentence = next(line for line in text.splitlines() if said in line)
            return f"outside: {sentence[:110]}", sum(used(x) != {0, 1, 2, 3} for x in self.table.logs[start:])

        return do

    def skewed(self) -> tuple[str, int]:
        self.fleet.processes.program("device-3").send_signal(signal.SIGTERM)
        self.fleet.processes.program("device-3").wait()
        plain, home = self.fleet.processes.start, self.fleet.device_folder(3)

        def start_skewed(name: str, words: list[str], folder: Path | None = None, **more: str) -> Any:
            shift = "import sys, time; real = time.time; time.time = lambda: real() + 3600.0; "
            code = shift + "from kfl_fleet.device.node import main; sys.exit(main(sys.argv[1:]))"
            return plain(name, [sys.executable, "-c", code, words[-1]], folder or home, **more)

        vars(self.fleet.processes)["start"] = start_skewed
        try:
            self.fleet.start_device(3)
        finally:
            del vars(self.fleet.processes)["start"]
        start = len(self.table.logs)
        self.back(3)
        self.table.until(lambda log: used(log) == {0, 1, 2, 3})
        assert "signed with the server's" in (self.fleet.folder / "logs" / "device-3.log").read_text()
        lost = sum(3 in log.devices and 3 not in used(log) for log in self.table.logs[start:])
        return "an hour ahead: it signs with the server's time and takes part", lost

    def revoked(self) -> tuple[str, int]:
        old, done = self.table.node(2), self.table.kept_round(2)
        self.fleet.control("supernode", "unregister", old, "fleet")
        start = len(self.table.logs)
        self.table.until(lambda log: 2 not in log.devices)
        self.fleet._restarted["device-2"] = time.monotonic() + 3600
        pair = make_device_key(self.fleet.folder / "new-keys", 2)
        self.fleet.register([2], {2: pair})
        self.fleet.start_device(2, key=pair.private)
        self.back(2)
        assert self.table.node(2) != old
        assert self.table.kept_round(2) > done
        lost = sum(2 not in used(log) for log in self.table.logs[start:])
        return "shut out; with a new key back as another node, with its own model", lost


def play(table: Table) -> None:
    faults = Faults(table)
    table.until(lambda log: used(log) == {0, 1, 2, 3})
    table.fault("device slow, within the deadline", faults.slow)
    table.fault("device function raises", faults.ordered(1, "raise", "no camera"))
    table.fault("NaN in an upload", faults.ordered(1, "nan", "not a number"))
    table.fault("an old answer again (replay)", faults.ordered(1, "replay", "it answers for round"))
    table.fault("worker killed in mid-round", faults.worker_killed)
    table.fault("worker killed at rest", faults.resting_worker_killed)
    table.fault("worker hangs", faults.ordered(2, "hang", "did not answer in time"))
    table.fault("worker out of memory", faults.ordered(3, "memory", "ran out of memory"))
    table.fault("worker stale: its data changed", faults.stale)
    table.fault("disk of a device full", faults.ordered(2, "full disk", "File too large"))
    table.fault("outsider, unknown key", faults.stranger("stranger", "Knocking"))
    table.fault("wrong certificate", faults.stranger("wrong-authority", "authority did not sign"))
    table.fault("clock an hour ahead", faults.skewed)
    table.fault("device killed in mid-round", faults.device_killed)
    table.fault("device vanishes in mid-round", faults.vanished)
    table.fault("SuperLink killed in mid-round", faults.superlink_killed)
    table.fault("key revoked and replaced", faults.revoked)
    table.fault("server killed in mid-round", faults.server_killed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    experiment = Experiment(
        devices=4,
        distinct_classes=False,
        rounds=100_000,
        widths=(128, 192, 256),
        algorithm=Kfl(),
        scheduler=SCHEDULERS["all"](),
    )
    settings = FleetSettings(deadline_s=DEADLINE_S, profile_deadline_s=DEADLINE_S, quorum=0.25, pause_s=0.3)
    with tempfile.TemporaryDirectory(prefix="kfl-faults-") as folder:
        fleet = FragileFleet(Path(folder) / "fleet", ServerConfig(experiment, settings), "local_fleet.fragile:device")
        table = Table(fleet, out)
        table.say("python -m studies.fleet.every_fault; " + machine())
        table.say(f"Four devices, TLS, authenticated, database. Deadline {DEADLINE_S:g} s, quorum 0.25.")
        table.say("")
        table.say(f"{'fault':<34} {'lost':>6}  {'ok':<4} what was seen")
        with fleet:
            table.begin()
            play(table)
        left = fleet.processes.members()
        table.say("")
        table.say(f"{len(table.logs)} rounds in one run; lost: rounds without the answer of a device it happened to.")
        table.say("All processes stopped." if not left else f"Processes left: {left}")
    return 1 if table.failed or left else 0


if __name__ == "__main__":
    sys.exit(main())
