"""The same run again, bit for bit: on a CPU always, on a GPU where it is asked for.

On a CPU every run is repeated exactly by the same plan (threads, kernels, precision), which the run folder records.
On a GPU a few of PyTorch's kernels add in an order that differs from run to run; `deterministic` makes PyTorch take
others, or fail where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""cuBLAS repeats exactly only with workspaces of a fixed size, which this variable sets before its first use."""


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """While the block runs, PyTorch uses only algorithms that give the same result every time, if `wanted`.

    >>> import torch
    >>> with deterministic_algorithms(True):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not wanted:
        yield
        return
    import torch

    os.environ.setdefault(WORKSPACE, ":4096:8")
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # which would choose kernels by a stopwatch
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
