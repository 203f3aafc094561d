"""All that is computed for several threads is computed by one."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

import torch


class OneThread:
    """Does what it is given, in a thread of its own that is always the same.

    cuBLAS keeps what it needs for each thread, and in a thread that has nothing yet no CUDA graph can be recorded. No
    daemon: a process that ends while one computes inside PyTorch is aborted.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], None], Event] | None] = SimpleQueue()
        # PyTorch's threads are set for each thread anew: as for the one that asks first.
        Thread(target=self._live, args=(torch.get_num_threads(),), name="kfl-engine").start()

    def do(self, work: Callable[[], None]) -> None:
        """Have something done, and wait for it. It must not raise."""
        done = Event()
        self._work.put((work, done))
        done.wait()

    def end(self) -> None:
        """No more work will come."""
        self._work.put(None)

    def _live(self, threads: int) -> None:
        torch.set_num_threads(threads)
        while (order := self._work.get()) is not None:
            work, done = order
            work()
            done.set()
            del order, work  # and with them the states that were trained
