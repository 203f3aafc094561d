"""The process that holds a device's PyTorch, data and engine: `python -m kfl_fleet.device.worker_process FD`.

Its node starts it and is the only one that can talk to it, over a socket that both inherited. It ends when its node is
gone. It answers one message at a time; what a message or the device function breaks costs this process at most, and
the node starts another.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfl.core.errors import ShortOfMemoryError
from kfl.core.text import scrub
from kfl_fleet.device.pipe import ClosedError, Pipe
from kfl_fleet.logs import format_from_environment, note, start_logging

if TYPE_CHECKING:
    from kfl_fleet.device.worker import Worker

PR_SET_PDEATHSIG = 1

Frame = tuple[Mapping[str, Any], tuple[bytes, ...]]


def main(arguments: list[str]) -> int:
    """Serve the node at the other end of a socket."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the node decides
    start_logging(format_from_environment())
    pipe = Pipe(socket.socket(fileno=int(arguments[0])))
    frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, frames), daemon=True).start()
    _warm_up()
    return serve(pipe, frames)


def serve(pipe: Pipe, frames: queue.SimpleQueue[Frame]) -> int:
    """Answer what comes, until something breaks that a fresh process should not inherit."""
    worker: Worker | None = None
    while True:
        header, blocks = frames.get()
        try:
            if header["kind"] == "setup":
                worker = _set_up(header)
                pipe.send("ready")
            elif worker is not None:
                pipe.send("answer", worker.open(blocks))
        except Exception as problem:  # a device function may raise anything; the fleet must continue
            note("device_failed", "The device could not answer.", level=logging.ERROR, error=problem)
            code = "worker_memory" if ShortOfMemoryError.means(problem) else "failed"
            pipe.send("error", code=code, reason=f"{type(problem).__name__}: {scrub(problem)}")
            if code == "worker_memory" or header["kind"] == "setup":
                return 1
        del header, blocks
        _tidy()


def _set_up(header: Mapping[str, Any]) -> Worker:
    """The worker for one app. Its modules come first, then those in the folder where the device was started."""
    from kfl_fleet.device.worker import make_worker

    sys.path[:0] = [str(header["app"]), ""]
    return make_worker(header["node"], header["config"])


def _listen(pipe: Pipe, frames: queue.SimpleQueue[Frame]) -> None:
    """Take in what the node says; when it is gone, so is this process, in the middle of a round or not."""
    try:
        while True:
            frames.put(pipe.receive())
    except ClosedError:
        os._exit(0)


def _warm_up() -> None:
    """Import now what the first message needs; one thread, since devices are small and may share a machine."""
    import torch

    import kfl.engine.plan
    import kfl.experiment
    import kfl.simulation.fleet  # noqa: F401

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what was imported stays: no collection need look at it again
    _tidy()


def _tidy() -> None:
    """Give memory back that a round needed and nothing holds."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every libc
        if trim is not None:
            trim(0)


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its node is gone, however that went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
