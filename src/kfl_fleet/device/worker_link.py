"""A node's hold on its worker process: started, asked with a time limit, ended, and started again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from kfl.core.errors import KflError
from kfl_fleet.device.pipe import ClosedError, Pipe
from kfl_fleet.messages.protocol import Parts

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
}
"""For the worker, where its own environment does not say otherwise: one thread, and memory that can be given back."""
BREATH_S = 1.0
GRACE_S = 5.0
"""How long a worker that closed its end may take to be gone, and one that begins to answer to say all."""
READY_S = 300.0
"""How long a worker may take to import PyTorch and to call the device function, over as many messages as that takes."""


WORKER = "kfl_fleet.device.worker_process"
"""The program that a worker is."""


class WorkerError(KflError):
    """The worker has no answer: a code of `kfl.core.refusals`, and what is known."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class WorkerLink:
    """One worker process at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._setup: Mapping[str, Any] | None = None
        """What the worker is set up for, or being set up."""
        self._ready, self._started_s = False, 0.0

    @property
    def pid(self) -> int | None:
        """The process, if one is there."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start a worker that has everything imported and waits for its configuration."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**ENVIRONMENT, **os.environ},
            )
        self._pipe, self._setup = Pipe(ours), None
        self._ready, self._started_s = False, time.monotonic()

    def tend(self) -> str | None:
        """Start a worker again that died while it had nothing to do; how it died, None where all is well."""
        if self._process is None:
            self.start()
            return None
        if self._process.poll() is None:
            return None
        how = self._epitaph()
        self.start()
        return how

    def answer(self, setup: Mapping[str, Any], parts: Parts, until: float, meanwhile: Callable[[], None]) -> Parts:
        """The worker's answer to a message; WorkerError with a code where there is none.

        A worker that was set up for something else is replaced; one that died or is too slow for the time `until` is
        ended, and the next message finds a fresh one. One that is still getting ready is not: on a slow machine the
        next would be no sooner ready, and no message ever answered. `meanwhile` is called every second.
        """
        if self._setup is not None and self._setup != setup:
            self.stop()
        self.tend()
        try:
            if self._setup is None:
                self._send("setup", (), **setup)
                self._setup = setup
            if not self._ready:
                self._wait(until, meanwhile)
                self._ready = True
            self._send("message", parts)
            return self._wait(until, meanwhile)
        except TimeoutError:
            if not self._ready and time.monotonic() - self._started_s < READY_S:
                raise WorkerError("failed", "its worker is still getting ready") from None
            self.stop()
            self.start()
            raise WorkerError("worker_hung", "it did not answer in time") from None
        except ClosedError:
            how = self._epitaph()
            self.start()
            raise WorkerError("worker_died", how) from None
        except WorkerError as problem:
            if not self._ready or problem.code == "worker_memory":  # it has ended, or is about to
                self.stop()
                self.start()
            raise

    def stop(self) -> None:
        """End the worker, now."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._process = self._pipe = self._setup = None

    def _send(self, kind: str, blocks: Parts, **facts: Any) -> None:
        assert self._pipe is not None
        self._pipe.send(kind, blocks, **facts)

    def _wait(self, until: float, meanwhile: Callable[[], None]) -> Parts:
        """What the worker says to what it was sent; TimeoutError if it does not begin to speak before `until`."""
        assert self._pipe is not None
        while not select.select([self._pipe.end], [], [], min(BREATH_S, max(until - time.monotonic(), 0.0)))[0]:
            if time.monotonic() >= until:
                raise TimeoutError
            meanwhile()
        header, found = self._pipe.receive(max(until, time.monotonic()) + GRACE_S)
        if header.get("kind") == "error":
            raise WorkerError(str(header.get("code")), str(header.get("reason")))
        return found

    def _epitaph(self) -> str:
        """How a worker ended that is gone or about to be."""
        assert self._process is not None
        end = time.monotonic() + GRACE_S
        while (status := self._process.poll()) is None and time.monotonic() < end:
            time.sleep(0.01)
        self.stop()
        if status is None:
            return "it closed its connection"
        if status >= 0:
            return f"it ended with status {status}"
        name = signal.Signals(-status).name if -status in signal.Signals._value2member_map_ else f"signal {-status}"
        return f"killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
