"""How many processes a command that runs many experiments uses, where it is not told."""

from __future__ import annotations

import os


def worker_count(workers: int | None, device: str, together: int | None) -> int:
    """As many as asked for; else one for each core, but one alone on a GPU or for runs that train together.

    >>> worker_count(3, "cpu", None), worker_count(None, "cpu", 5)
    (3, 1)
    """
    if workers is not None:
        return workers
    if together is not None and together > 1:
        return 1
    if device != "cpu":
        from kfl.engine.factory import check_device

        if check_device(device) == "cuda":
            return 1
    return os.cpu_count() or 1
