"""Aggregation as sums: a server that needs Σ_k D_k x_k and Σ_k D_k alone need not see what a single device sent.

`Algorithm.summation` says how a round's uploads become such sums and how the server goes on from them; a fleet can then
add them under masks (`kfl_fleet.secure`). An algorithm whose server compares or trains on single uploads has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Algorithm, Message
    from kfl.algorithms.uploads import Upload
    from kfl.engine import Engine
    from kfl.models import State

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Sums:
    """What a round adds up: of one device its own terms, of the server their sums. All in float64 on the CPU."""

    values: Mapping[str, Tensor]
    """Weighted values Σ_k D_k x_k."""
    weights: Mapping[str, Tensor]
    """Their weights Σ_k D_k: none is negative, and none of a device is above its number of samples."""

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            {name: value + other.values[name] for name, value in self.values.items()},
            {name: weight + other.weights[name] for name, weight in self.weights.items()},
        )


class Summation(ABC):
    """How uploads become sums, and what the server makes of these."""

    heaviest: float = inf
    """No weight of a device is larger, however many samples it has."""

    @abstractmethod
    def shapes(self, server: State) -> tuple[Shapes, Shapes]:
        """Names and shapes of the weighted values, and of the weights."""

    @abstractmethod
    def terms(self, upload: Upload, message: Message, engine: Engine) -> Sums:
        """What one device adds, from its upload; `message` and `engine` are those it trained with."""

    @abstractmethod
    def apply(self, server: State, sums: Sums) -> State:
        """The server's new state: what `aggregate` makes of the uploads themselves, but for rounding."""


def summation_of(algorithm: Algorithm) -> Summation | None:
    """How an algorithm's uploads are added; None where it needs each of them.

    Who overrides `aggregate` alone aggregates in a way of their own, for which an inherited summation is not right.
    """
    order = type(algorithm).__mro__
    defines = {name: next(i for i, cls in enumerate(order) if name in vars(cls)) for name in ("aggregate", "summation")}
    return algorithm.summation() if defines["summation"] <= defines["aggregate"] else None


def why_not_summed(algorithm: Algorithm) -> str | None:
    """Why an algorithm's uploads cannot be added without being seen, in words; None where they can.

    >>> from kfl.algorithms import FedTgp, Kfl
    >>> why_not_summed(Kfl()), why_not_summed(Kfl(aggregation="median"))
    (None, "algorithm.aggregation = 'median' compares what single devices send")
    >>> why_not_summed(FedTgp())
    "the server of 'fedtgp' looks at what single devices send"
    """
    if summation_of(algorithm) is not None:
        return None
    if not algorithm.sends():
        return f"devices send nothing in {algorithm.name!r}"
    rule = getattr(algorithm, "aggregation", "mean")
    if rule != "mean":
        return f"algorithm.aggregation = {rule!r} compares what single devices send"
    return f"the server of {algorithm.name!r} looks at what single devices send"
