"""What a run at a table asks for (`kfl.engine.joint`), and how several such calls are made as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Self, TypeVar

from torch import Tensor

from kfl.engine.base import RoundKey, Sgd
from kfl.engine.objective_parts import spec_of
from kfl.engine.objectives import Objective
from kfl.engine.stacked import StackedEngine
from kfl.models import State

Item = TypeVar("Item")
Kind = tuple[bool, bool, str]
"""What a call asks for: whether training, whether on the devices' own data, and how.

Any fixed order of kinds brings runs that fell out of step together again: they gather at the greatest, which is the
training of all devices on their own data. Who came first must not matter, or a run could not be repeated.
"""


@dataclass(eq=False)
class Call(ABC):
    """A call that waits for its answer."""

    devices: Sequence[int]
    """Numbers in their own run."""
    states: Sequence[State]
    answered: bool = field(default=False, init=False)
    batch: Hashable = field(default=None, init=False)
    """Of one kind, calls that are equal in this are made as one."""
    _answer: Any = field(default=None, init=False)
    _problem: BaseException | None = field(default=None, init=False)

    @property
    def kind(self) -> Kind:
        """Calls of the least kind are answered when the table is next served; other kinds wait."""
        return False, False, type(self).__name__

    @classmethod
    @abstractmethod
    def together(cls, engine: StackedEngine, calls: Sequence[Self], first: Sequence[int]) -> list[Any]:
        """The answers to calls that are one. `first` is, for each, the number of its run's device 0 in `engine`."""

    def answer(self, value: Any) -> None:
        """Give the answer."""
        self._answer, self.answered = value, True

    def fail(self, problem: BaseException) -> None:
        """Give the reason why there is none."""
        self._problem, self.answered = problem, True

    def result(self) -> Any:
        """The answer, once; raises what went wrong."""
        if self._problem is not None:
            raise self._problem
        return self._answer


@dataclass(eq=False)
class Train(Call):
    """`Engine.train`."""

    objective: Objective
    sgd: Sgd
    key: RoundKey
    data: tuple[Tensor, Tensor] | None

    @property
    def kind(self) -> Kind:
        """Phases of a round that differ in their steps or their loss do not meet."""
        loss = type(self.objective)
        return True, self.data is None, f"{loss.__module__}.{loss.__qualname__}, {self.sgd}"

    def __post_init__(self) -> None:
        """Together: objectives that differ in nothing but tensors. Data that was handed over is the run's own."""
        self.batch = id(self)
        if self.data is None:
            spec = spec_of(self.objective.for_device(0))
            with suppress(TypeError):  # what has no hash cannot be compared
                hash(spec)
                self.batch = spec

    @classmethod
    def together(cls, engine: StackedEngine, calls: Sequence[Self], first: Sequence[int]) -> list[Any]:
        """One training, every device with the objective and the draws of its own run."""
        devices, states = _flat(calls, first)
        objectives = [call.objective.for_device(place) for call in calls for place in range(len(call.devices))]
        draws = [(call.key, device) for call in calls for device in call.devices]
        return _shared(engine.train_runs(devices, states, objectives, calls[0].sgd, draws, calls[0].data), calls)


@dataclass(eq=False)
class ClassMeans(Call):
    """`Engine.class_means`."""

    clip_norm: float | None

    def __post_init__(self) -> None:
        """Together: those with the same limit."""
        self.batch = self.clip_norm

    @classmethod
    def together(cls, engine: StackedEngine, calls: Sequence[Self], first: Sequence[int]) -> list[Any]:
        """One pass over the samples of all devices."""
        means, counts = engine.class_means(*_flat(calls, first), calls[0].clip_norm)
        sizes = [len(call.devices) for call in calls]
        return list(zip(means.split(sizes), counts.split(sizes), strict=True))


@dataclass(eq=False)
class Correct(Call):
    """`Engine.correct`."""

    @classmethod
    def together(cls, engine: StackedEngine, calls: Sequence[Self], first: Sequence[int]) -> list[Any]:
        """One test of all devices."""
        return _shared(engine.correct(*_flat(calls, first)), calls)


@dataclass(eq=False)
class Logits(Call):
    """`Engine.logits`."""

    inputs: Tensor

    def __post_init__(self) -> None:
        """Each alone: the inputs are the run's own."""
        self.batch = id(self)

    @classmethod
    def together(cls, engine: StackedEngine, calls: Sequence[Self], first: Sequence[int]) -> list[Any]:
        """Each with its own inputs."""
        return [engine.logits(*_flat([call], [start]), call.inputs) for call, start in zip(calls, first, strict=True)]


def _flat(calls: Sequence[Call], first: Sequence[int]) -> tuple[list[int], list[State]]:
    """Devices under their numbers in the joint fleet, and their states."""
    devices = [start + device for call, start in zip(calls, first, strict=True) for device in call.devices]
    return devices, [state for call in calls for state in call.states]


def _shared(found: Sequence[Item], calls: Sequence[Call]) -> list[list[Item]]:
    """A list over all devices as one list for each call."""
    ends = [0, *accumulate(len(call.devices) for call in calls)]
    return [list(found[start:end]) for start, end in pairwise(ends)]
