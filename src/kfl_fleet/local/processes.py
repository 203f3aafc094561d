"""Processes of a fleet on this machine: started in groups of their own, marked, and ended to the last one.

Flower's programs start others, which start others. Each program gets its own session, so that a group can be signaled
at once, and every process inherits a mark in its environment, by which those that left their group are found. On Linux
they also end when the process that started them is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from kfl_fleet.private import UMASK, no_core_file, private_folder

MARK = "KFL_FLEET"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
GRACE_S = 8.0
"""How long a process may take to end when it is asked to; then it is killed."""


class ProcessGroup:
    """All processes of one fleet."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """`logs` is a folder that will be its owner's alone; `environment` comes on top of this process's own."""
        self.mark = uuid.uuid4().hex
        self.logs = logs
        self.environment = {**os.environ, **environment, MARK: self.mark}
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []

    def start(
        self, name: str, command: Sequence[str], folder: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a program; what it prints goes to `<logs>/<name>.log`, after what is there."""
        if name in self._programs:  # what an earlier one of this name started may still be there
            self.kill(name)
        private_folder(self.logs)
        output = (self.logs / f"{name}.log").open("ab")
        self._files.append(output)
        program = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**self.environment, **environment},
            cwd=folder,
            start_new_session=True,
            umask=UMASK,
            preexec_fn=_prepare,  # noqa: PLW1509  # it makes two system calls and touches no lock of Python's
        )
        self._programs[name] = program
        return program

    def program(self, name: str) -> subprocess.Popen[bytes]:
        """A program that was started under this name."""
        return self._programs[name]

    def alive(self, name: str) -> bool:
        """Whether a program runs."""
        return name in self._programs and self._programs[name].poll() is None

    def kill(self, name: str) -> None:
        """End a program and its group at once, as a power cut would."""
        program = self._programs[name]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()

    def members(self) -> list[int]:
        """Every living process that carries the mark. Only where there is a /proc."""
        return marked(self.mark)

    def end(self) -> None:
        """Ask all to end, wait a little, and kill what is left. Ctrl-C does not stop this."""
        with _undisturbed():
            self._end()

    def _end(self) -> None:
        self._signal(signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        while time.monotonic() < end and self._living():
            time.sleep(0.1)
        for _ in range(20):  # a process that is being killed may just have started another
            if not self._signal(signal.SIGKILL):
                break
            time.sleep(0.1)
        for program in self._programs.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(timeout=5)
        for file in self._files:
            file.close()

    def _living(self) -> bool:
        return any(program.poll() is None for program in self._programs.values()) or bool(self.members())

    def _signal(self, number: signal.Signals) -> int:
        """Send a signal to all groups and to all that carry the mark; how many there were."""
        count = 0
        for program in self._programs.values():
            if program.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.pid, number)
                    count += 1
        for process in self.members():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
                count += 1
        return count


def _prepare() -> None:
    """In the new process: no core file, and on Linux it ends when its parent is gone, however that went."""
    no_core_file()
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C and termination while the block runs; only the main thread may decide that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def marked(mark: str) -> list[int]:
    """Processes whose environment carries a fleet's mark, zombies left out."""
    sought = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if sought in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now; all held open until the last is found, so they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def listening(port: int) -> bool:
    """Whether a server answers on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
