"""One single-threaded worker per core. Any other way to spread devices over a CPU belongs here.

Two threads inside each matrix product of this size wait for each other; two devices side by side do not. Workers
are threads: PyTorch and compiled kernels let go of the interpreter while they compute, so nothing is copied.
Each device is computed by one worker alone, so results do not depend on which one or on how many there are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """`work` on every item, results in the order of the items."""
    with torch_threads(1), torch.no_grad():
        if workers == 1 or len(items) < 2:
            return [work(item) for item in items]
        return list(_pool(workers).map(functools.partial(_quietly, work), items))


def _quietly(work: Callable[[Item], Result], item: Item) -> Result:
    with torch.no_grad():  # gradient mode belongs to a thread
        return work(item)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Threads inside PyTorch's own operations for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "kfl-worker", initializer=_start)


def _start() -> None:
    torch.set_num_threads(1)
