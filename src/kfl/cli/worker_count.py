"""How many processes a command that runs many experiments uses, where it is not told."""

from __future__ import annotations

import os


def worker_count(workers: int | None, device: str) -> int:
    """As many as asked for; else one for each core, or a single one on a GPU.

    >>> worker_count(3, "cpu")
    3
    """
    if workers is not None:
        return workers
    if device != "cpu":
        from kfl.engine.factory import check_device

        if check_device(device) == "cuda":
            return 1
    return os.cpu_count() or 1
