"""FedTGP: devices share class prototypes, and the server trains the global ones apart from each other.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
and Model Heterogeneity in Federated Learning, AAAI 2024, and the authors' code, github.com/TsingZ0/FedTGP.

Devices do what they do in FedProto: cross-entropy + `prototype_weight` · mean over samples and dimensions of
(h(x) − P_y)², then the mean feature of each class goes up. The server does not average. It has a small generator, a
trainable vector of each class through two linear layers with a ReLU between, whose outputs are the global prototypes.
In each round it trains the generator for `server_epochs` passes over the uploaded prototypes: softmax cross-entropy
with minus the Euclidean distances to all P_c as logits, where the distance to the own class is first made longer by a
margin. In the code the margin is the largest distance between the mean prototype of a class and its nearest other
class, at most `margin_limit`. So prototypes come as far apart as the best separated class of the devices' own.

Where we decide: in the authors' experiments every device takes part in every round. With a part of them, the margin
follows from the classes that were reported, and the generator is trained on these alone; a class that no device ever
reported has no prototype, although the generator has an output for it. Devices predict with their own model, as in
kfl and fedproto, where the authors take the class of the nearest global prototype. Their code trains the server with
the devices' learning rate and batch size, 0.01 and 10 in their script: here the server has its own. Distances are
computed as such, not from products, whose rounding can leave the root of a negative number. The server computes in
float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import require
from kfl.algorithms.prototypes import TrainingServer
from kfl.algorithms.weights import part_of

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine import Engine, RoundKey
    from kfl.models import State

GENERATOR = "generator/"
"""Prefix of the generator's weights in the server's state."""


@dataclass(frozen=True)
class FedTgp(TrainingServer):
    """FedTGP: class prototypes that the server trains to be apart.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedTgp(server_epochs=5)))
    >>> history.summary["algorithm"]
    'fedtgp'
    """

    name: ClassVar[str] = "fedtgp"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("prototype_weight", (0.32, 1.0, 10.0))

    prototype_weight: float = 10.0
    """Weight of the mean squared distance to the prototype, as in fedproto; 10 in the authors' script."""
    server_epochs: int = 100
    """Passes of the server over the uploaded prototypes in a round."""
    server_learning_rate: float = 0.01
    """Learning rate of the server's generator of prototypes."""
    server_batch_size: int = 10
    """Uploaded prototypes per step of the server."""
    margin_limit: float = 100.0
    """Largest margin between a prototype and those of other classes."""

    def twin(self) -> str:
        """Its pull, to means of the device's own features."""
        return "self-knowledge"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        inf = float("inf")
        require(0 <= self.prototype_weight < inf, "prototype_weight", self.prototype_weight, "0 or more")
        super().check()
        require(0 <= self.margin_limit < inf, "margin_limit", self.margin_limit, "0 or more")

    def server_init(self, engine: Engine, seed: int) -> State:
        """No prototype of any class, and a generator with weights as PyTorch draws them."""
        import torch

        from kfl.core.randomness import torch_stream

        draw, size = torch_stream(seed, "prototype generator"), engine.features
        bound = size**-0.5

        def uniform(*shape: int) -> Tensor:
            return torch.empty(*shape).uniform_(-bound, bound, generator=draw)

        return {
            **super().server_init(engine, seed),
            GENERATOR + "embedding": torch.randn(engine.classes, size, generator=draw),
            GENERATOR + "hidden.weight": uniform(size, size),
            GENERATOR + "hidden.bias": uniform(size),
            GENERATOR + "output.weight": uniform(size, size),
            GENERATOR + "output.bias": uniform(size),
        }

    def pull_weight(self, engine: Engine) -> float:
        """As in FedProto."""
        return 2 * self.prototype_weight / engine.features

    def learned(
        self, server: State, samples: tuple[Tensor, Tensor], mean: Tensor, reported: Tensor, key: RoundKey
    ) -> State:
        """Train the generator on the uploaded prototypes; its outputs are the new global ones."""
        import torch
        from torch.nn import functional

        margin = self._margin(mean[reported])

        def loss(generator: Mapping[str, Tensor], vectors: Tensor, labels: Tensor) -> Tensor:
            prototypes = _generate(generator)
            distance = torch.cdist(vectors, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
            own = functional.one_hot(labels, len(prototypes))
            return functional.cross_entropy(-(distance + margin * own), labels)

        trained = self.descend(part_of(server, GENERATOR), loss, samples, key)
        known = server["known"] | reported.to(server["known"].device)
        made = _generate(trained).to(server["knowledge"])
        after = {"knowledge": made.where(known[:, None], 0.0), "known": known}
        return {**after, **{name: value.to(server[name]) for name, value in trained.items()}}

    def _margin(self, means: Tensor) -> float:
        """The largest distance of a class to its nearest other class, up to the limit, which holds for one class alone.

        >>> import torch
        >>> FedTgp()._margin(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 6.0]])), FedTgp()._margin(torch.zeros(1, 2))
        (5.0, 100.0)
        """
        import torch

        if len(means) < 2:
            return self.margin_limit
        apart = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = apart.fill_diagonal_(float("inf")).amin(1)
        return min(float(nearest.max()), self.margin_limit)


def _generate(generator: Mapping[str, Tensor]) -> Tensor:
    """The prototypes of all classes: each class's vector through two linear layers."""
    from torch.nn import functional

    hidden, output = GENERATOR + "hidden.", GENERATOR + "output."
    inner = functional.linear(
        generator[GENERATOR + "embedding"], generator[hidden + "weight"], generator[hidden + "bias"]
    )
    return functional.linear(inner.relu(), generator[output + "weight"], generator[output + "bias"])
