"""FedProto: devices share class prototypes, each device's counting the same.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients,
AAAI 2022, equations (3) to (7) and Algorithm 1.

A close relative of KFL. A device's prototype of class j is the mean feature of its samples of the class,
equation (3). The server's is the *plain* mean over the devices that hold the class: the authors' code divides
by their number only, where KFL weighs by samples (the printed equation (6) has a further factor |D_ij|/N_j that
the code does not). The device minimizes cross-entropy + `prototype_weight` · mean over samples and over the p
dimensions of (h(x) − C̄_y)², as the authors' `nn.MSELoss` does: in KFL's form ½‖·‖² that is λ = 2/p, which is
1/32 for p = 64 and weight 1.

Where we decide: in the authors' experiments every device takes part in every round; with a part of them, a
prototype is replaced when its class is reported and kept otherwise. Prototypes are computed after the local
steps, as printed (their code averages the features seen during the last epoch). Devices predict with their own
model, as KFL does, not by the nearest prototype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import QuantizedUploads, RobustRules, require
from kfl.algorithms.prototypes import PrototypeMethod

if TYPE_CHECKING:
    from kfl.engine import Engine


@dataclass(frozen=True)
class FedProto(QuantizedUploads, RobustRules, PrototypeMethod):
    """FedProto: class prototypes, averaged over devices without regard to their samples.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedProto()))
    >>> history.summary["algorithm"]
    'fedproto'
    """

    name: ClassVar[str] = "fedproto"
    held_rows: ClassVar[bool] = False
    # 0.32 and 3.2 are KFL's λ of 0.01 and 0.1 in FedProto's own scale, for 64 features.
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("prototype_weight", (0.32, 1.0, 3.2))

    prototype_weight: float = 1.0
    """Weight of the mean squared distance to the prototype; 1 in the authors' experiments."""

    def twin(self) -> str:
        """Its pull, to means of the device's own features."""
        return "self-knowledge"

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        weight = self.prototype_weight
        require(0 <= weight < float("inf"), "prototype_weight", weight, "0 or more")

    def pull_weight(self, engine: Engine) -> float:
        """2/p times the weight, as a mean over the dimensions is not halved."""
        return 2 * self.prototype_weight / engine.features
