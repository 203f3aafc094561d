"""FedMRL: a small model, the same for all, next to each device's own; their features are fused on the device.

Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024,
arXiv:2406.00488.

A device's own network has d features, and any architecture. The small model has d₁ ≤ d. On a device both bodies'
features are put side by side and brought to d numbers by a linear layer of the device's own, its projector. All d go to
the own head and the first d₁ to the small model's, like a smaller doll in a larger one. A chosen device receives the
small model, minimizes the sum of both heads' cross-entropies over all weights at once, and uploads the small model; the
server averages by samples. A device predicts with its own head, from the fused feature.

The authors' code (github.com/LipingYi/FedMRL) gives both losses the weight 1 and starts all projectors from one draw. A
device keeps its projector and its own network from round to round, and is tested with the small model as it has just
trained it. A public reimplementation (HtFLlib) does not store the trained projector: each round starts from the first
one again, and devices are tested with it. Here it is part of a device's state. The authors' networks are CNNs with
d = 500 in five sizes, and their small model is the smallest of these with d₁ features; small d₁ did best.

Where we decide: the small model is the paper's CNN, narrow, for color images, and an MLP with one hidden layer for all
else. With the defaults 16,402 values go up and down on CIFAR-10, and 25,818 on MNIST. d₁ is 16 of 64 features. An idle
device predicts with the small model that it trained last, not with the server's; one that never trained, with the
common start. Both heads have the head's learning rate, everything else the body's; gradients are not clipped unless
asked for and weights do not decay, as in the other algorithms here (the authors clip at 50 and decay by 0.001).
Momentum starts fresh in every round; in their code the small model's and the projector's goes on from device to device.
Averages are weighted by training samples, theirs by all samples of a device. We average all uploads: their script
collects references to one model, so that its mean is the last device's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import LARGEST, require, training_flops
from kfl.algorithms.weights import WeightAveraging, without_feedback

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.small_network import SmallNetwork
    from kfl.engine import DeviceProfile, Engine, Objective
    from kfl.models import FleetModels, State


@dataclass(frozen=True)
class FedMrl(WeightAveraging):
    """FedMRL: a small shared model next to each device's own, their features fused by a projector that stays.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8, 12), algorithm=kfl.FedMrl(small_width=8)))
    >>> history.summary["algorithm"]
    'fedmrl'
    """

    name: ClassVar[str] = "fedmrl"
    needs_equal_models: ClassVar[bool] = False
    predicts_alone: ClassVar[bool] = True
    keeps_shared: ClassVar[bool] = True
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("small_features", (8, 16, 32))

    small_features: int = 16
    """Features of the small model, d₁; where a device's own network has fewer, as many as that."""
    small_width: int = 32
    """Units of the small model's hidden layer, which decides most of its size."""
    small_loss_weight: float = 1.0
    """Weight of the small head's cross-entropy next to that of a device's own head."""
    largest_gradient: float | None = None
    """Norm to which a step's gradient is scaled down, 50 in the authors' code; none for no limit."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(self.small_features >= 1, "small_features", self.small_features, "1 or more")
        require(self.small_width >= 1, "small_width", self.small_width, "1 or more")
        weight = self.small_loss_weight
        require(0 <= weight <= LARGEST, "small_loss_weight", weight, "0 or more")
        limit = self.largest_gradient
        require(limit is None or 0 < limit < float("inf"), "largest_gradient", limit, "a number above 0, or none")

    def device_models(self, models: FleetModels) -> FleetModels:
        """Each device's own network with the small one next to it."""
        from kfl.algorithms.small_network import with_small

        return with_small(models, self._small(models.features))

    def added_parameters(self, profile: DeviceProfile) -> int:
        """The small model and the projector."""
        small, features = self._small(profile.model.features), profile.model.features
        projector = (small.features + features + 1) * features
        return small.parameters(profile.model.input_shape, profile.model.classes) + projector

    def server_init(self, engine: Engine, seed: int) -> State:
        """The small model of the common start, which does not depend on a device's network."""
        return _of_small(engine.initial(0, seed, common=True))

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """A network of its own; small model and projector are the common start's."""
        own, common = engine.initial(device, seed), engine.initial(device, seed, common=True)
        return {name: value if ".own." in name else common[name] for name, value in own.items()}

    def objective(self) -> Objective:
        """Both losses, on all weights."""
        from kfl.engine import Matryoshka

        return Matryoshka(self.small_loss_weight, self.largest_gradient)

    def predictor(self, server: State, device: State) -> State:
        """What the device trained last: its own network was fused with that small one."""
        return without_feedback(device)

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps of everything that predicts, and of the small head."""
        small_head = (self._small(profile.model.features).features + 1) * profile.model.classes
        return training_flops(self.local_steps, profile) + 3.0 * self.local_steps * profile.samples * small_head

    def _small(self, features: int) -> SmallNetwork:
        """The small model next to networks with so many features."""
        from kfl.algorithms.small_network import SmallNetwork

        return SmallNetwork(min(self.small_features, features), self.small_width)


def _of_small(state: Mapping[str, Tensor]) -> State:
    return {name: value for name, value in state.items() if name.startswith(("body.small.", "head.small."))}
