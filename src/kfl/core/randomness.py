"""Randomness by name: every draw has an address, never "the next number".

A draw is addressed by the seed, its purpose and indices (round, device). Two addresses give independent
streams: adding a draw in one place changes nothing elsewhere, another device's draw never shifts yours, and
a resumed run is the same run.

    >>> stream(0, "fading", 3).random() == stream(0, "fading", 3).random()
    True
    >>> stream(0, "fading", 3).random() == stream(0, "fading", 4).random()
    False
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def key(seed: int, purpose: str, *address: int) -> int:
    """A 128-bit integer that names one draw: the same arguments always give the same key.

    >>> key(0, "init", 7) == key(0, "init", 7), key(0, "init", 7) == key(0, "init", 8)
    (True, False)
    """
    name = repr((int(seed), purpose, *(int(a) for a in address)))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")


def stream(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """A NumPy generator for one address. Philox, so that it is the same on every machine."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, *address)))


def streams(seed: int, purpose: str, count: int) -> list[np.random.Generator]:
    """The generators of the addresses 0 to count − 1, for example one per class."""
    return [stream(seed, purpose, index) for index in range(count)]


def torch_seed(seed: int, purpose: str, *address: int) -> int:
    """The same address as a 63-bit seed for PyTorch's generators."""
    return key(seed, purpose, *address) & (2**63 - 1)


def torch_stream(seed: int, purpose: str, *address: int) -> torch.Generator:
    """A PyTorch CPU generator for one address."""
    import torch

    return torch.Generator().manual_seed(torch_seed(seed, purpose, *address))
