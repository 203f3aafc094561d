"""FedProto: devices share class prototypes, each device's counting the same.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients,
AAAI 2022, equations (3) to (7) and Algorithm 1.

A close relative of KFL. A device's prototype of class j is the mean feature of its samples of the class,
equation (3). The server's is the *plain* mean over the devices that hold the class: the authors' code divides
by their number only, where KFL weighs by samples (the printed equation (6) has a further factor |D_ij|/N_j that
the code does not). The device minimises cross-entropy + `prototype_weight` · mean over samples and over the p
dimensions of (h(x) − C̄_y)², as the authors' `nn.MSELoss` does: in KFL's form ½‖·‖² that is λ = 2/p, which is
1/32 for p = 64 and weight 1.

Where we decide: in the authors' experiments every device takes part in every round; with a part of them, a
prototype is replaced when its class is reported and kept otherwise. Prototypes are computed after the local
steps, as printed (their code averages the features seen during the last epoch). Devices predict with their own
model, as KFL does, not by the nearest prototype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.averaging import (
    KnowledgeSums,
    average_knowledge,
    empty_knowledge,
    equal_uploads,
    knowledge_format,
)
from kfl.algorithms.base import BITS_PER_VALUE, Algorithm, PlotStyle, feature_flops, require, training_flops
from kfl.algorithms.sums import Summation
from kfl.algorithms.uploads import Rejection, Upload, UploadFormat

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class FedProto(Algorithm):
    """FedProto: class prototypes, averaged over devices without regard to their samples.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedProto()))
    >>> history.summary["algorithm"]
    'fedproto'
    """

    name: ClassVar[str] = "fedproto"
    style: ClassVar[PlotStyle | None] = PlotStyle("#3a9bd9")
    # 0.32 and 3.2 are KFL's λ of 0.01 and 0.1 in FedProto's own scale, for 64 features.
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("prototype_weight", (0.32, 1.0, 3.2))

    prototype_weight: float = 1.0
    """Weight of the mean squared distance to the prototype; 1 in the authors' experiments."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        weight = self.prototype_weight
        require(0 <= weight < float("inf"), "prototype_weight", weight, "0 or more")

    def server_init(self, engine: Engine, seed: int) -> State:
        """No prototype of any class."""
        return empty_knowledge(engine.classes, engine.features)

    def broadcast(self, server: State) -> Message:
        """The global prototypes, and which classes have one."""
        return server

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on cross-entropy and the distance to the prototypes, then the own prototypes."""
        from kfl.engine import FeatureTargets, Supervised

        weight = 2 * self.prototype_weight / engine.features
        pull = FeatureTargets(weight, message["knowledge"], message["known"])
        trained = engine.train(devices, states, Supervised(pull), self.sgd(), key)
        means, counts = (values.cpu() for values in engine.class_means(devices, trained))
        return trained, equal_uploads(devices, means, counts)

    def upload_format(self, server: State) -> UploadFormat:
        """The prototype of each class, and 1 or 0 for whether the device holds it."""
        return knowledge_format(server)

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """C̄_j = the mean of the prototypes over the devices that hold class j."""
        return average_knowledge(server, uploads, memory=True, heaviest=1.0)

    def summation(self) -> Summation | None:
        """The sums of that mean: each device that holds a class weighs 1."""
        return KnowledgeSums(heaviest=1.0)

    def class_vectors(self, server: State) -> tuple[Tensor, Tensor] | None:
        """The global prototypes."""
        return server["knowledge"], server["known"]

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps, and the pass that reads the features."""
        return training_flops(self.local_steps, profile) + feature_flops(profile)

    def bits(self, profile: DeviceProfile) -> tuple[float, float]:
        """As KFL: p numbers for each class, up and down."""
        size = profile.model.features * profile.model.classes * BITS_PER_VALUE
        return size, size
