"""How many threads PyTorch uses inside one operation.

An operation that PyTorch shares out over threads ends when its last thread has finished. On a busy machine that thread
waits for a core, and the others spin meanwhile. On two cores at a load of 5 to 9, training steps and passes of small
networks took 8 to 66 times the processor time with two threads that they took with one.
Small networks are therefore computed with one thread each, several of them side by side (`kfl.engine.workers`), and so
is everything else that a simulation does itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Threads inside PyTorch's own operations for a while.

    >>> import torch
    >>> before = torch.get_num_threads()
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
