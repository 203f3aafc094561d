"""Prepared samples that are kept while there is room."""

from __future__ import annotations

import math
import mmap
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class BoundedCache:
    """Values that can be computed again, kept while they fit into so many bytes: the least lately used goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the value of a key, made where it is missing. Two workers may both make it; they make the same."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                found: T = self._held[key][0]  # type: ignore[assignment]  # a key always stands for one type
                return found
        value = make()
        self._put(key, value, size(value))
        return value

    def _put(self, key: Hashable, value: object, cost: int) -> None:
        """Keep a value; one that is larger than the whole room is not kept."""
        with self._lock:
            _, freed = self._held.pop(key, (None, 0))
            self._bytes -= freed
            if cost <= self._limit:
                self._held[key] = (value, cost)
                self._bytes += cost
            while self._bytes > self._limit:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        return self._bytes


def own_pages(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros in pages of memory of their own, which go back to the system as soon as no tensor holds them.

    What a cache holds comes and goes in another order than it came; from the heap, that left holes of several
    times the cache's size.
    """
    count = math.prod(shape)
    pages = mmap.mmap(-1, max(count, 1) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype, count=max(count, 1))[:count].view(shape)


def tensor_bytes(*tensors: Tensor | None) -> int:
    """The memory of some tensors."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
