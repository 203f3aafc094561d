"""Aggregation as sums: a server that needs Σ_k w_k x_k and Σ_k w_k alone need not see what a single device sent.

Every algorithm whose `aggregate` is the default and whose rule is the mean can be added up: a fleet does so under
masks. An algorithm whose server compares or trains on single uploads cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.algorithms.aggregation import DEVICES, Sums, averaged, means, weighted_sums

if TYPE_CHECKING:
    from kfl.algorithms.base import Algorithm, Message
    from kfl.algorithms.uploads import Upload
    from kfl.engine import Engine
    from kfl.models import State

__all__ = ["Shapes", "Summation", "Sums", "summation_of", "why_not_summed"]

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Summation:
    """An algorithm's aggregation as sums: what each device adds, and what the server makes of the sums."""

    algorithm: Algorithm

    def heaviest(self, server: State) -> float:
        """Return the largest weight that any device can have, however many samples it has."""
        formats = self.algorithm.averaged_format(server)
        used = {formats[name].weight for name in averaged(formats)}
        return max(formats[name].most if name else 1.0 for name in used)

    def shapes(self, server: State) -> tuple[Shapes, Shapes]:
        """Return names and shapes of the weighted values, and of the weights."""
        formats = self.algorithm.averaged_format(server)
        names = averaged(formats)
        weights = {formats[name].weight for name in names}
        return (
            {name: formats[name].shape for name in names},
            {**({DEVICES: ()} if "" in weights else {}), **{n: f.shape for n, f in formats.items() if n in weights}},
        )

    def terms(self, upload: Upload, message: Message, engine: Engine) -> Sums:
        """Return what one device adds, in float64 on the CPU; `message` and `engine` are those it trained with."""
        server = self.algorithm.received(message, engine)
        sums = weighted_sums(self.algorithm.averaged_format(server), [self.algorithm.decoded(upload, server)])
        return Sums(
            {name: value.cpu() for name, value in sums.values.items()},
            {name: weight.cpu() for name, weight in sums.weights.items()},
        )

    def apply(self, server: State, sums: Sums) -> State:
        """Return the server's new state: what `aggregate` makes of the uploads themselves, but for rounding."""
        found = means(self.algorithm.averaged_format(server), sums)
        return server if found is None else self.algorithm.updated(server, found, sums.weights)


def summation_of(algorithm: Algorithm) -> Summation | None:
    """Return how an algorithm's uploads are added; None where it needs each of them."""
    from kfl.algorithms.base import Algorithm as Base

    default = type(algorithm).aggregate is Base.aggregate and algorithm.sends()
    return Summation(algorithm) if default and algorithm.rule()[0] == "mean" else None


def why_not_summed(algorithm: Algorithm) -> str | None:
    """Return why an algorithm's uploads cannot be added without being seen, in words; None where they can.

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
    rule, _ = algorithm.rule()
    if rule != "mean":
        return f"algorithm.aggregation = {rule!r} compares what single devices send"
    return f"the server of {algorithm.name!r} looks at what single devices send"
