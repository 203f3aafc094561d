"""CUDA graphs: a computation that is repeated in one shape is recorded once and then played back.

Between two launches a GPU waits for Python. A recorded graph has no such gaps: all its kernels, on fixed memory,
are one launch. The first call of a shape runs directly, the second records, later ones play. A training of many equal
steps is a graph of one step, recorded after the first and played for all others (`GraphRunner.run_steps`).

Graphs that run in different streams may run at the same time: each stream has graphs and a memory pool of its own.
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

KEPT = 48
"""Computations whose graphs are kept; the one that was not used for longest makes room."""

Step = Callable[[dict[str, Tensor]], None]
"""One step of a training: changes its inputs in place."""


@dataclass(frozen=True, eq=False)
class Input:
    """One tensor that goes into a computation, not made yet."""

    shape: tuple[int, ...]
    fill: Callable[[Tensor | None], Tensor]
    """Puts it into the given memory; or gives it, in memory that may be its own, where none is given."""
    rows: Sequence[Tensor] | None = None
    """Its rows, where they are at hand in its type: the rows of many inputs are copied in one operation."""


@dataclass(eq=False)
class _Memory:
    """Fixed memory that inputs are put into."""

    inputs: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    """The rows of inputs that were filled by them."""

    @staticmethod
    def of(inputs: Mapping[str, Input]) -> _Memory:
        """Memory with these inputs in it."""
        return _Memory({name: one.fill(None).clone() for name, one in inputs.items()}, {})

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


@dataclass(eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    memory: _Memory
    outputs: dict[str, Tensor]


@dataclass(eq=False)
class _Training:
    """The memory of a training, and a graph of one step for each shape of what steps differ in."""

    memory: _Memory
    graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]]
    """The graph and the memory of what one step sees."""
    refused: set[Hashable]


class GraphRunner:
    """Runs computations, as graphs where that is possible."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.recorded = 0
        """Graphs recorded so far."""
        self.problem = ""
        """Why a computation could not be recorded; empty where all could."""
        self._seen: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, _Recorded | _Training] = OrderedDict()
        self._refused: set[Hashable] = set()
        self._pools: dict[int, Any] = {}

    def run(self, key: Hashable | None, inputs: Mapping[str, Input], body: Body) -> dict[str, Tensor]:
        """The outputs of `body`, in memory of their own.

        Calls with the same key and the same shapes must mean the same computation. A key of None: never recorded.
        """
        recorded = None
        if key is not None and self.enabled:
            recorded = self._recorded(self._address(key, inputs), inputs, body)
        if recorded is None:
            return body({name: one.fill(None) for name, one in inputs.items()})
        recorded.memory.fill(inputs)
        recorded.graph.replay()
        return {name: value.clone() for name, value in recorded.outputs.items()}

    def run_steps(
        self,
        key: Hashable | None,
        inputs: Mapping[str, Input],
        steps: Sequence[Mapping[str, Tensor]],
        body: Step,
        results: Sequence[str],
    ) -> dict[str, Tensor]:
        """Do a step for each entry of `steps`, with what it sees besides the inputs; then give some of the inputs back.

        Calls with the same key and the same shapes must mean the same computation. A key of None: never recorded.
        """
        if key is None or not self.enabled:
            held = {name: one.fill(None) for name, one in inputs.items()}
            for step in steps:
                body({**held, **step})
            return {name: held[name] for name in results}
        training = self._training(("steps", self._address(key, inputs)), inputs)
        held = training.memory.inputs
        shapes = [tuple((name, value.shape) for name, value in step.items()) for step in steps]
        for index, (step, shape) in enumerate(zip(steps, shapes, strict=True)):
            if shape in training.graphs:
                graph, seen = training.graphs[shape]
                torch._foreach_copy_(list(seen.values()), list(step.values()), non_blocking=True)
                graph.replay()
                continue
            body({**held, **step})
            if shape not in training.refused and shapes.count(shape) > 1 and shape in shapes[index + 1 :]:
                self._record_step(training, shape, step, body)
        return {name: held[name].clone() for name in results}

    def forget(self) -> None:
        """Give the memory of all graphs back."""
        self._kept.clear()

    def _address(self, key: Hashable, inputs: Mapping[str, Input]) -> Hashable:
        """A computation by its key, the shapes of its inputs and the stream it runs in."""
        return key, tuple((name, one.shape) for name, one in inputs.items()), _stream()

    def _training(self, key: Hashable, inputs: Mapping[str, Input]) -> _Training:
        found = self._kept.get(key)
        if isinstance(found, _Training):
            self._kept.move_to_end(key)
            found.memory.fill(inputs)
            return found
        found = _Training(_Memory.of(inputs), {}, set())
        self._keep(key, found)
        return found

    def _record_step(self, training: _Training, shape: Hashable, step: Mapping[str, Tensor], body: Step) -> None:
        seen = {name: value.clone() for name, value in step.items()}
        captured = self._captured(lambda: body({**training.memory.inputs, **seen}), shape, training.refused)
        if captured is not None:
            training.graphs[shape] = captured[0], seen

    def _recorded(self, key: Hashable, inputs: Mapping[str, Input], body: Body) -> _Recorded | None:
        found = self._kept.get(key)
        if isinstance(found, _Recorded):
            self._kept.move_to_end(key)
            return found
        if key not in self._seen or key in self._refused:
            self._seen.add(key)
            return None
        memory = _Memory.of(inputs)
        captured = self._captured(lambda: body(dict(memory.inputs)), key, self._refused)
        if captured is None:
            return None
        recorded = _Recorded(captured[0], memory, captured[1])
        self._keep(key, recorded)
        return recorded

    def _keep(self, key: Hashable, found: _Recorded | _Training) -> None:
        self._kept[key] = found
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def _captured(
        self, work: Callable[[], Any], key: Hashable, refused: set[Hashable]
    ) -> tuple[torch.cuda.CUDAGraph, Any] | None:
        """A graph of some work and what that returned; None, and the key among the refused, where there can be none."""
        try:
            return self._capture(work)
        except torch.OutOfMemoryError:
            refused.add(key)
            raise
        except Exception as problem:  # anything that cannot be recorded still runs directly
            refused.add(key)
            self._say(problem)
            return None

    def _capture(self, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        graph = torch.cuda.CUDAGraph()
        stream = _stream()
        if stream not in self._pools:
            # One pool for all graphs of a stream: they never run at the same time, and what they return is copied.
            self._pools[stream] = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pools[stream]):
            outputs = work()
        self.recorded += 1
        return graph, outputs

    def _say(self, problem: Exception) -> None:
        self.problem = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        logging.getLogger("kfl").warning("A CUDA graph could not be recorded: %s", self.problem)


def _stream() -> int:
    """The stream that computes now."""
    return int(torch.cuda.current_stream().cuda_stream) if torch.cuda.is_initialized() else 0
