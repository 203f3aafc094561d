"""LG-FedAvg: a part of the network is averaged, the other stays on its device.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning
with Local and Global Representations, arXiv:2001.01523, 2020, Algorithm 1; their program is
github.com/pliang279/LG-FedAvg.

The paper's form has local bodies and one global head (`share = "head"`). Their program lists the layers of a network
and shares the last so many of that list, whose order is chosen per dataset; for CIFAR-10 its script shares the two
convolutions, so the other form, global first layers under a personal rest, is theirs too (`share = "stem"`). Devices
need only agree in the shapes of what is shared. A chosen device trains everything; the server averages the shared
part, and every device, chosen or not, uses the newest one, so predictions of an idle device change from round to
round.

Where we decide: the part is weighted by D_k, as the paper prints (their program takes the plain mean, the same for
devices with equally many samples). They start from a model that federated averaging has trained; here the shared part
starts from one common draw and the rest from the device's own, as no model that fits all devices could be had. They
report, for each user, the best network of all rounds by test accuracy; here it is the last one, as for all devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from kfl.algorithms.base import require
from kfl.algorithms.weights import WeightAveraging
from kfl.core.errors import ModelError

if TYPE_CHECKING:
    from kfl.engine import Engine
    from kfl.models import FleetModels, Layer, SharedLayers, State

Part = Literal["head", "stem"]
"""What is averaged: the head, or the first layers as far as they agree on all devices."""


@dataclass(frozen=True)
class LgFedAvg(WeightAveraging):
    """LG-FedAvg: one head for all under which every device has a body of its own, or one stem under personal layers.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8, 16), algorithm=kfl.LgFedAvg()))
    >>> history.summary["algorithm"]
    'lg-fedavg'
    """

    name: ClassVar[str] = "lg-fedavg"
    needs_equal_models: ClassVar[bool] = False
    server_needs_models: ClassVar[bool] = True
    keeps_shared: ClassVar[bool] = True

    share: Part = "head"
    """The part that is averaged: the head, or the first layers as far as all networks agree."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(self.share in get_args(Part), "share", self.share, f"one of {', '.join(get_args(Part))}")

    def check_models(self, models: FleetModels) -> None:
        """Raise ModelError for networks of which nothing could be shared."""
        if not self._layers(models.shared):
            part = "heads" if self.share == "head" else "first layers"
            raise ModelError(
                f"The algorithm lg-fedavg averages the {part} of the networks, but these differ in shape from device "
                f"to device: give networks whose {part} are alike, or share the other part with --algorithm.share."
            )

    def _layers(self, shared: SharedLayers) -> tuple[Layer, ...]:
        return shared.head if self.share == "head" else shared.stem

    def server_init(self, engine: Engine, seed: int) -> State:
        """The shared part of the common start."""
        start = engine.initial(0, seed, common=True)
        return {name: start[name] for layer in self._layers(engine.shared) for name, _ in layer.arrays}
