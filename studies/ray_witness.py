"""The algorithm of `studies.ray_sweep`: KFL that writes a line into a book whenever a run of it begins or goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from kfl.algorithms import Kfl

BOOK = "KFL_SWEEP_BOOK"
"""Environment variable: the file that lines are added to."""


@dataclass(frozen=True)
class Noted(Kfl):
    """KFL, on record: who plays which seed."""

    def server_init(self, engine: Any, seed: int) -> Any:
        """As KFL's; it is called once when a run begins, and once when it goes on."""
        if (book := os.environ.get(BOOK)) is not None:
            line = f"{self.knowledge_weight:g} {seed} {_node()} {os.getpid()}\n"
            file = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(file, line.encode())  # one write: lines of several processes do not mix
            finally:
                os.close(file)
        return super().server_init(engine, seed)


def _node() -> str:
    """The node of the cluster that this process belongs to."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else "here"
