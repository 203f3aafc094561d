"""Memory that is used again and again: buffers of one worker, and inputs kept while there is room."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import TypeVar

import torch
from torch import Tensor

PADDING = 64
"""Numbers behind every buffer: vector loads may reach over the end."""

T = TypeVar("T")


class Workspace:
    """Buffers by name. A buffer is kept and handed out again, whatever it held; only its worker uses it."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of this shape with anything in it; `PADDING` more numbers lie behind it and are finite."""
        size = math.prod(shape)
        flat = self._flat.get((name, dtype))
        if flat is None or flat.numel() < size + PADDING:
            flat = self._flat[name, dtype] = torch.zeros(size + PADDING, dtype=dtype)
        return flat[:size].view(shape)


class BoundedCache:
    """Values that can be computed again, kept while they fit into so many bytes: the least lately used goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of a key, made where it is missing. Two workers may both make it; they make the same."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                found: T = self._held[key][0]  # type: ignore[assignment]  # a key always stands for one type
                return found
        value = make()
        cost = size(value)
        with self._lock:
            if key not in self._held and cost <= self._limit:
                self._held[key] = (value, cost)
                self._bytes += cost
            while self._bytes > self._limit:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed
        return value

    @property
    def held_bytes(self) -> int:
        """Bytes in use."""
        return self._bytes


class Starts:
    """For each device a value that belongs to one tensor of weights, kept while all fit into so many bytes.

    Personal models do not change between the end of a round and the device's next: what is computed from them at the
    one is there at the other. A tensor counts as the same if it is the very object; weights are never changed in place.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[int, tuple[weakref.ref[Tensor], Tensor]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def keep(self, device: int, weights: Tensor, value: Tensor) -> None:
        """Keep a copy of a value; the ones that were kept longest ago make room."""
        if value.nbytes > self._limit:
            return
        own = own_pages(*value.shape, dtype=value.dtype).copy_(value)
        with self._lock:
            self._drop(device)
            while self._bytes + own.nbytes > self._limit:
                self._drop(next(iter(self._held)))
            self._held[device] = (weakref.ref(weights), own)
            self._bytes += own.nbytes

    def of(self, device: int, weights: Tensor) -> Tensor | None:
        """The value that belongs to these very weights, if it is still there."""
        with self._lock:
            found = self._held.get(device)
        return found[1] if found is not None and found[0]() is weights else None

    def _drop(self, device: int) -> None:
        found = self._held.pop(device, None)
        self._bytes -= 0 if found is None else found[1].nbytes


def own_pages(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros in pages of memory of their own, which go back to the system as soon as nobody holds them.

    What a cache holds comes and goes in another order than it came; from the heap, that left holes of several
    times the cache's size.
    """
    count = math.prod(shape)
    pages = mmap.mmap(-1, max(count, 1) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype, count=max(count, 1))[:count].view(shape)


def tensor_bytes(*tensors: Tensor | None) -> int:
    """The memory of some tensors."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
