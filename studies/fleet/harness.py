"""The fleet that is broken: real processes, each machine with its own disk, clock and way to the server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kfl.core.errors import KflError
from kfl_fleet._flower.objects import Incoming
from kfl_fleet.device.worker_link import WORKER
from kfl_fleet.local.fleet import RESTART_S, LocalFleet
from kfl_fleet.local.processes import ProcessGroup
from kfl_fleet.project.certificates import make_device_key
from kfl_fleet.project.project import Project
from studies.fleet.machine import Clocks, Disk
from studies.fleet.member import Mischief
from studies.fleet.network import Relay

SERVER_MB, DEVICE_MB = 192, 24
SILENT_S, SUBMIT_S = 8.0, 45.0
"""A run folder that no process has held for so long has lost its server; a new one gets so long to take it."""

WITNESS = """
import hashlib, json, os
from dataclasses import replace
from kfl_fleet.device import simulated as demo
from kfl_fleet.device.worker import Worker

BOOK, plain, honest = {}, Worker._train, Worker.answer

def write(what, number, arrays, table):
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(arrays):
        digest.update(name.encode() + arrays[name].detach().numpy().tobytes())
    line = {"what": what, "round": number, "upload": digest.hexdigest(), "status": table.get("status"),
            "compute_j": table.get("compute_energy_j"), "upload_j": table.get("upload_energy_j"), "pid": os.getpid()}
    with open(BOOK["path"], "ab", buffering=0) as file:
        file.write((json.dumps(line) + "\\n").encode())

def train(worker, values, arrays, advice, algorithm, kept):
    found = plain(worker, values, arrays, advice, algorithm, kept)
    write("trained", found.round, found.upload, found.answer)
    return found

def answer(worker, values, arrays):
    reply, upload = honest(worker, values, arrays)
    if values.get("kind") == "round" and reply.get("status") in ("ok", "diverged"):
        write("answered", reply.get("round"), upload, reply)
    return reply, upload

Worker._train, Worker.answer = train, answer

def device(partition, config):
    own = dict(config)
    BOOK["path"], budget_j = own.pop("book"), own.pop("budget_j", None)
    return replace(demo.device(partition, own), budget_j=budget_j)
"""
"""The device function: the demo's, with a book outside the device's disk of all that it trained and answered."""


class Machines(ProcessGroup):
    """Processes that find the clock of their machine."""

    clocks: Clocks

    def start(
        self, name: str, command: Sequence[str], folder: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        machine = name if name.startswith("device-") else "server"
        return super().start(name, command, folder, **environment, **self.clocks.environment(machine))


@dataclass
class ChaosFleet(LocalFleet):
    """A fleet under a supervisor that starts again what died, as a service manager would."""

    outside: Path = field(default_factory=Path)
    """Where books and clocks are: no fault reaches them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.config.experiment.devices
        machines = Machines(self.processes.logs, self.processes.environment)
        machines.clocks = self.clocks = Clocks(self.outside / "clocks")
        self.processes = machines
        self.server_disk = Disk(self.folder, SERVER_MB)
        self.disks = [Disk(self.device_folder(device), DEVICE_MB) for device in range(count)]
        self.relays = [Relay(self.port) for _ in range(count)]
        self.server_relay = Relay(self.port)
        self.restarts: Counter[str] = Counter()
        self.tried: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        """Faults of a process that was not there."""
        self.mischief: Mischief | None = None
        self.asked: Incoming | None = None
        self._submission: threading.Thread | None = None
        self._served_s = time.monotonic()
        self._submitted = 0.0

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "app" / "local_fleet" / "witness.py").write_text(WITNESS)

    def start_superexec(self) -> None:
        words = [sys.executable, "-m", "kfl_fleet._flower.control_auth", "superexec"]
        words += ["--runtime-api-address", f"127.0.0.1:{self.server_relay.port}"]
        words += ["--root-certificates", str(self.authority)]
        words += ["--superexec-auth-secret-file", str(Project(self.folder).superexec_secret)]
        self.processes.start("superexec", words)

    def start_device(self, device: int, key: Path | None = None, superlink: str | None = None) -> None:
        super().start_device(device, key, superlink or f"127.0.0.1:{self.relays[device].port}")

    def __enter__(self) -> ChaosFleet:
        super().__enter__()
        number = self.config.experiment.devices  # one more than devices take part: it has a key and no data
        self.member_key = make_device_key(self.outside, number)
        self.control.register({number: self.member_key.public})
        return self

    def begin_mischief(self, kind: str) -> None:
        """Let the member with no data do one kind of harm."""
        self.end_mischief()
        self.mischief = Mischief(self.address, self.authority, self.member_key.private, kind, self.asked)

    def end_mischief(self) -> None:
        """End it."""
        if self.mischief is not None:
            self.mischief.end()
            self.tried += self.mischief.tried
            self.asked = self.mischief.last
            self.mischief = None

    def __exit__(self, *_: object) -> None:
        self.end_mischief()
        super().__exit__()
        if self._submission is not None:
            self._submission.join(timeout=130)
        for relay in (*self.relays, self.server_relay):
            relay.close()
        for disk in (*self.disks, self.server_disk):
            disk.free()

    def unmount(self) -> None:
        """Take the disks away, with all that is on them."""
        for disk in (*self.disks, self.server_disk):
            disk.unmount()

    def supervise(self) -> None:
        """Start again what has died, each at most every few seconds; what fails is tried again the next time."""
        starts: dict[str, Callable[[], None]] = {
            "superlink": partial(self.start_superlink, wait=False),
            "superexec": self.start_superexec,
        }
        starts |= {f"device-{d}": partial(self.start_device, d) for d in range(self.config.experiment.devices)}
        now = time.monotonic()
        for name, start in starts.items():
            if not self.processes.alive(name) and now - self._restarted.get(name, -RESTART_S) >= RESTART_S:
                self._restarted[name] = now
                self.restarts[name.rstrip("-0123456789")] += 1
                with contextlib.suppress(OSError, KflError):
                    start()
        if self.serving or self.finished:
            self._served_s = now
        busy = self._submission is not None and self._submission.is_alive()
        if not busy and now - self._served_s > SILENT_S and now - self._submitted > SUBMIT_S:
            self._submitted = now
            self._submission = threading.Thread(target=self._submit_quietly, daemon=True)
            self._submission.start()

    def _submit_quietly(self) -> None:
        with contextlib.suppress(KflError, OSError, subprocess.SubprocessError):
            self.submit()
        self._submitted = time.monotonic()

    def node(self, device: int) -> int | None:
        """The process of a device's node, while it lives."""
        name = f"device-{device}"
        return self.processes.program(name).pid if self.processes.alive(name) else None

    def worker(self, device: int) -> int | None:
        """The process of a device's worker."""
        session = self.processes.program(f"device-{device}").pid
        return next((pid for pid in self._named(WORKER) if _session(pid) == session), None)

    def server(self) -> int | None:
        """The process of the server app."""
        return next(iter(self._named("flwr-serverapp")), None)

    def superlink(self) -> int | None:
        """The process of the SuperLink."""
        return self.processes.program("superlink").pid if self.processes.alive("superlink") else None

    def _named(self, word: str) -> list[int]:
        found = []
        for process in self.processes.members():
            with contextlib.suppress(OSError):
                if word.encode() in (Path("/proc") / str(process) / "cmdline").read_bytes():
                    found.append(process)
        return sorted(found)


def _session(process: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[3])
    return -1
