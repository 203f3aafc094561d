"""The states of a cohort as one tensor per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kfl.engine.graphs import Input
from kfl.models import State


@dataclass(frozen=True, eq=False)
class Stack:
    """Puts the states of a cohort into one tensor per name, filled up with zeros to the widest, and takes them out.

    Devices of one architecture are neighbors, so that each width is one slice.
    """

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of every entry of the widest model's state."""
    states: Sequence[State]
    dtype: torch.dtype
    where: torch.device

    def names(self) -> list[str]:
        """The entries of every state."""
        return list(self.states[0])

    def inputs(self) -> dict[str, Input]:
        """Every entry of all states, stacked."""
        return {name: self._input(name) for name in self.names()}

    @cached_property
    def _columns(self) -> dict[str, list[Tensor]]:
        return {name: [state[name] for state in self.states] for name in self.names()}

    @cached_property
    def _runs(self) -> dict[str, list[tuple[int, int]]]:
        """For each entry, ranges of neighbors of one shape."""
        return {name: _runs(values) for name, values in self._columns.items()}

    def _input(self, name: str) -> Input:
        values, runs = self._columns[name], self._runs[name]
        shape = self._shape(name, values[0])
        dtype = self.dtype if values[0].is_floating_point() else values[0].dtype
        whole = len(runs) == 1 and tuple(values[0].shape) == shape and _ready(values, dtype, self.where)

        def into(memory: Tensor | None) -> Tensor:
            if whole:
                return torch.stack(values) if memory is None else torch.stack(values, out=memory)
            if memory is None:
                memory = torch.zeros((len(values), *shape), dtype=dtype, device=self.where)
            else:
                memory.zero_()
            for start, stop in runs:
                narrow = memory[(slice(start, stop), *(slice(size) for size in values[start].shape))]
                narrow.copy_(torch.stack([value.to(self.where, dtype) for value in values[start:stop]]))
            return memory

        return Input((len(values), *shape), into, values if whole else None)

    def take(self, stacked: State) -> list[State]:
        """The state of each device, as slices of the stacked tensors without what they were filled up with."""
        columns = {}
        for name, value in stacked.items():
            values, found = self._columns[name], list[Tensor]()
            for start, stop in self._runs[name]:
                narrow = value[(slice(start, stop), *(slice(size) for size in values[start].shape))]
                found.extend(narrow.contiguous().unbind(0))
            columns[name] = found
        return [{name: columns[name][index] for name in state} for index, state in enumerate(self.states)]

    def _shape(self, name: str, value: Tensor) -> tuple[int, ...]:
        """The shape of the widest; an entry that is not the model's (a mixing weight) has its own."""
        return self.shapes.get(name.rpartition("/")[2], tuple(value.shape))


def _ready(values: Sequence[Tensor], dtype: torch.dtype, where: torch.device) -> bool:
    on_gpu = where.type == "cuda"
    return all(value.dtype is dtype and value.is_cuda == on_gpu for value in values)


def _runs(values: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Ranges of neighbors of one shape."""
    shapes = [value.shape for value in values]
    if shapes.count(shapes[0]) == len(shapes):
        return [(0, len(shapes))]
    starts = [index for index in range(len(shapes)) if index == 0 or shapes[index] != shapes[index - 1]]
    return list(zip(starts, [*starts[1:], len(shapes)], strict=True))
