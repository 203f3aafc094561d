"""Work on many devices side by side: one single-threaded worker per core.

Two threads inside each operation wait for each other, on a busy machine for most of the time; two devices side by side
do not. Workers are threads, because PyTorch and compiled kernels release the interpreter while they compute: nothing is
copied or pickled, and worker processes measured no faster.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import torch

from kfl.core.threads import torch_threads

Item = TypeVar("Item")
T = TypeVar("T")

KEPT_BYTES = 256 * 2**20
"""Freed memory that the process keeps for its next use, at most."""


def spread(
    work: Callable[[Item], T], items: Sequence[Item], workers: int, cost: Callable[[Item], float] | None = None
) -> list[T]:
    """Apply `work` to every item in parallel; results are in the order of the items.

    Args:
        work: Called without gradients and with one PyTorch thread.
        items: What it is called with.
        workers: Number of threads.
        cost: Where it is given, the most expensive items begin first.
    """
    # A run has one thread around all of its calls already.
    with torch.no_grad(), nullcontext() if torch.get_num_threads() == 1 else torch_threads(1):
        if workers == 1 or len(items) < 2:
            return [work(item) for item in items]
        order = list(range(len(items)))
        if cost is not None:
            order.sort(key=lambda index: -cost(items[index]))
        found = _pool(workers).map(functools.partial(_quietly, work), [items[index] for index in order])
        by_index = dict(zip(order, found, strict=True))
        return [by_index[index] for index in range(len(items))]


def _quietly(work: Callable[[Item], T], item: Item) -> T:
    with torch.no_grad():  # gradient mode belongs to a thread
        return work(item)


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "kfl-worker", initializer=_start)


def _start() -> None:
    torch.set_num_threads(1)


@functools.cache
def keep_memory() -> bool:
    """Ask the C library to keep freed memory, up to a limit, instead of handing it back after every operation.

    Autograd frees and takes the same few megabytes in every step. Memory that went back to the system comes again page
    by page, which took 10 to 18 % of a step of small networks. Where the environment already says how memory is to be
    kept, and where the C library is another one, nothing is changed. Returns whether it was.
    """
    said = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"))
    if said or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    library = ctypes.CDLL(None)
    largest = 32 * 2**20  # the most that glibc allows
    return bool(library.mallopt(mmap_threshold, largest) and library.mallopt(trim_threshold, KEPT_BYTES))
