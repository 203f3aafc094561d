"""FedGH: devices share class prototypes, and the server trains one head for all on them.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM Multimedia 2023
(arXiv:2303.13137), and the authors' code, github.com/LipingYi/FedGH.

Bodies may all be different and stay on their devices; heads have one shape. A chosen device replaces its head by the
server's, trains body and head on its own data, and uploads the mean feature of each of its classes. The server takes
each of them as a sample with its class as label, and a step of gradient descent on its head with each.

The released code does not do that. Its server computes the gradients but calls `step` of an optimizer that holds the
weights of a device's network, in `FedGH.py` and `FedGH_mh.py` alike, so that the head that all devices receive stays
as it was drawn. `head="as-released"` is that: uploads are sent and charged, and nothing is learned from them. The
default is the algorithm of the paper, as HtFLlib (github.com/TsingZ0/HtFLlib) has it too.

Where we decide: as in the authors' code, devices receive no head before the server has heard from one, and a device
predicts with the model that it had after its last round, its own head included (HtFLlib puts the current head in). The
server's first head is a draw of its own, as theirs is. It takes the prototypes one by one in an order drawn anew in
each round (theirs follows the draw of the devices), with their learning rate, 0.01, without momentum, weight decay or
clipping. The head must be one linear layer, which it is in all the authors' networks and ours. The server computes in
float64, and keeps the mean prototype of each class for reports only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.base import require
from kfl.algorithms.prototypes import TrainingServer, empty_knowledge, renewed
from kfl.algorithms.weights import part_of
from kfl.core.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import Engine, RoundKey
    from kfl.models import FleetModels, State

Head = Literal["trained", "as-released"]
TRAINED = "trained"
"""Name under which devices learn whether the head is worth having."""


@dataclass(frozen=True)
class FedGh(TrainingServer):
    """FedGH: one head for all, trained by the server on class prototypes.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedGh()))
    >>> history.summary["algorithm"]
    'fedgh'
    """

    name: ClassVar[str] = "fedgh"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("server_learning_rate", (0.001, 0.01, 0.1))

    head: Head = "trained"
    """The head that devices receive: trained on the prototypes, or as-released, random as in the authors' code."""
    server_epochs: int = 1
    """Passes of the server over the uploaded prototypes in a round."""
    server_learning_rate: float = 0.01
    """Learning rate of the server's head."""
    server_batch_size: int = 1
    """Uploaded prototypes per step of the server."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(self.head in get_args(Head), "head", self.head, f"one of {', '.join(get_args(Head))}")
        super().check()

    def check_models(self, models: FleetModels) -> None:
        """Raise ModelError for a fleet whose heads are not one linear layer of one shape."""
        import torch

        from kfl.models import parts

        with torch.random.fork_rng(devices=[]):
            heads = [parts(models.builders[index]())[1] for index in sorted(set(models.architecture.tolist()))]
        if not models.shared.head or any(type(head) is not torch.nn.Linear for head in heads):
            raise ModelError(
                f"The algorithm {self.name} trains one head for all devices, which needs heads that are one linear "
                "layer of the same shape, such as torch.nn.Linear(64, 10)."
            )

    def server_init(self, engine: Engine, seed: int) -> State:
        """A head of its own, drawn as PyTorch draws a linear layer, and no prototype of any class."""
        import torch

        from kfl.core.randomness import torch_stream

        draw, bound = torch_stream(seed, "global head"), engine.features**-0.5
        like = part_of(engine.initial(0, seed, common=True), "head.")
        head = {
            name: torch.empty(value.shape).uniform_(-bound, bound, generator=draw).to(value)
            for name, value in like.items()
        }
        return {**head, **empty_knowledge(engine.classes, engine.features)}

    def broadcast(self, server: State) -> Message:
        """The head, and whether any device has reported yet."""
        return {**part_of(server, "head."), TRAINED: server["known"].any()}

    def start(self, message: Message, state: State) -> State:
        """The own body and the server's head, once that is worth having."""
        return {**state, **(part_of(message, "head.") if bool(message[TRAINED]) else {})}

    def learned(
        self, server: State, samples: tuple[Tensor, Tensor], mean: Tensor, reported: Tensor, key: RoundKey
    ) -> State:
        """Train the head on the uploaded prototypes; their means are kept for reports."""
        head = part_of(server, "head.")
        if self.head == "trained":
            head = {name: value.to(head[name]) for name, value in self.descend(head, _loss, samples, key).items()}
        return {**renewed(server, mean, reported, memory=True), **head}


def _loss(head: Mapping[str, Tensor], vectors: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of a linear head, with a bias or without."""
    from torch.nn import functional

    return functional.cross_entropy(functional.linear(vectors, *head.values()), labels)
