"""Encoding many samples: in pieces that fit the cache, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kfl.core.threads import torch_threads

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 64


def in_pieces(encode: Callable[[Tensor], Tensor], samples: Tensor) -> Tensor:
    """Encode samples piece by piece, as many pieces at a time as there are cores.

    Pieces are always the same, so results do not depend on the number of cores.
    """
    import torch

    def work(piece: Tensor) -> Tensor:
        with torch.no_grad():  # each thread has a setting of its own
            return encode(piece)

    with torch_threads(1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return torch.cat(list(pool.map(work, samples.split(AT_ONCE))))
