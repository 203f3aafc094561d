"""Memory that is used again: buffers of one worker, and inputs that are kept while there is room."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock, local
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
        self._whole: dict[Hashable, Tensor] = {}

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of this shape with anything in it; `PADDING` more numbers follow it and are finite."""
        size = math.prod(shape)
        flat = self._flat.get((name, dtype))
        if flat is None or flat.numel() < size + PADDING:
            flat = self._flat[name, dtype] = torch.zeros(size + PADDING, dtype=dtype)
        return flat[:size].view(shape)

    def keep(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A buffer that was prepared once, for those who leave alone what they do not write."""
        if key not in self._whole:
            self._whole[key] = make()
        return self._whole[key]


_mine = local()


def workspace() -> Workspace:
    """The buffers of the thread that asks."""
    if not hasattr(_mine, "workspace"):
        _mine.workspace = Workspace()
    found: Workspace = _mine.workspace
    return found


class BoundedCache:
    """Values that can be computed again, kept while they fit into so many bytes: the least lately used goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of a key, made where it is missing. Two workers may both make it; they make the same."""
        held = self.find(key)
        if held is not None:
            found: T = held  # type: ignore[assignment]  # a key always stands for one type
            return found
        value = make()
        self.put(key, value, size(value))
        return value

    def find(self, key: Hashable) -> object | None:
        """The value of a key, None where there is none."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: object, cost: int) -> None:
        """Keep a value, replacing any other of this key; one that is larger than the whole room is not kept."""
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


@dataclass(frozen=True, eq=False)
class OwnedValue:
    """A value that was computed from some tensors and belongs to them alone.

    Personal models do not change between the end of a round and the device's next: what is computed from them at the
    one is there at the other. Tensors count as the same if they are the very objects and nobody wrote into them.
    """

    value: Tensor
    owners: tuple[weakref.ref[Tensor], ...]
    versions: tuple[int, ...]

    @staticmethod
    def of(value: Tensor, owners: Sequence[Tensor]) -> OwnedValue | None:
        """A copy of a value with its owners; None for owners of which PyTorch does not know whether they change."""
        if any(owner.is_inference() for owner in owners):
            return None
        own = own_pages(*value.shape, dtype=value.dtype).copy_(value)
        return OwnedValue(own, tuple(map(weakref.ref, owners)), tuple(owner._version for owner in owners))

    def belongs_to(self, owners: Sequence[Tensor]) -> bool:
        """Whether these are the owners, as they were."""
        same = all(mine() is owner for mine, owner in zip(self.owners, owners, strict=True))
        return same and self.versions == tuple(owner._version for owner in owners)


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
