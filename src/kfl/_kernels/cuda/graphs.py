"""CUDA graphs: a computation that is repeated in one shape is recorded once and then played back.

Between two launches a GPU waits for Python. A recorded graph has no such gaps: all its kernels, on fixed memory,
are one launch. The first call of a shape runs directly, the second records, later ones play.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Body = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""The computation. It may change its inputs in place and return them."""

KEPT = 16
"""Graphs that are kept; the one that was not used for longest makes room."""


@dataclass(frozen=True, eq=False)
class Input:
    """One tensor that goes into a computation, not made yet."""

    shape: tuple[int, ...]
    fill: Callable[[Tensor | None], Tensor]
    """Puts it into the given memory; or gives it, in memory that may be its own, where none is given."""
    rows: Sequence[Tensor] | None = None
    """Its rows, where they are at hand in its type: the rows of many inputs are copied in one operation."""


@dataclass(eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    """The rows of inputs that were filled by them."""
    outputs: dict[str, Tensor]

    def fill(self, inputs: Mapping[str, Input]) -> None:
        """Put inputs into their memory."""
        into, values = list[Tensor](), list[Tensor]()
        for name, one in inputs.items():
            if one.rows is None:
                one.fill(self.inputs[name])
            else:
                if name not in self.rows:
                    self.rows[name] = list(self.inputs[name].unbind(0))
                into.extend(self.rows[name])
                values.extend(one.rows)
        if into:
            torch._foreach_copy_(into, values, non_blocking=True)


class GraphRunner:
    """Runs computations, as graphs where that is possible."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.recorded = 0
        """Graphs recorded so far."""
        self.problem = ""
        """Why a computation could not be recorded; empty where all could."""
        self._seen: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, _Recorded] = OrderedDict()
        self._refused: set[Hashable] = set()
        self._pool: Any = None

    def run(self, key: Hashable | None, inputs: Mapping[str, Input], body: Body) -> dict[str, Tensor]:
        """The outputs of `body`, in memory of their own.

        Calls with the same key and the same shapes must mean the same computation. A key of None: never recorded.
        """
        recorded = None
        if key is not None and self.enabled:
            shapes = tuple((name, one.shape) for name, one in inputs.items())
            recorded = self._recorded((key, shapes), inputs, body)
        if recorded is None:
            return body({name: one.fill(None) for name, one in inputs.items()})
        recorded.fill(inputs)
        recorded.graph.replay()
        return {name: value.clone() for name, value in recorded.outputs.items()}

    def forget(self) -> None:
        """Give the memory of all graphs back."""
        self._kept.clear()

    def _recorded(self, key: Hashable, inputs: Mapping[str, Input], body: Body) -> _Recorded | None:
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key not in self._seen or key in self._refused:
            self._seen.add(key)
            return None
        try:
            recorded = self._record(inputs, body)
        except torch.OutOfMemoryError:
            self._refused.add(key)
            raise
        except Exception as problem:  # anything that cannot be recorded still runs directly
            self._refused.add(key)
            self.problem = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            logging.getLogger("kfl").warning("A CUDA graph could not be recorded: %s", self.problem)
            return None
        self._kept[key] = recorded
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return recorded

    def _record(self, inputs: Mapping[str, Input], body: Body) -> _Recorded:
        held = {name: one.fill(None).clone() for name, one in inputs.items()}
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            # One pool for all graphs: they never run at the same time, and what they return is copied at once.
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = body(dict(held))
        self.recorded += 1
        return _Recorded(graph, held, {}, outputs)
