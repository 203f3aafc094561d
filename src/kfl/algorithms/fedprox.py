"""FedProx: federated averaging whose devices do not move far from the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, Algorithm 2.

Each chosen device takes τ steps from the server's w^t on h_k(w) = F_k(w) + μ/2 ‖w − w^t‖² and uploads its whole model.

Where we decide: the server weighs by D_k, as in federated averaging (the paper draws devices with probabilities
proportional to D_k and averages them evenly).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import require
from kfl.algorithms.fedavg import FedAvg
from kfl.algorithms.weights import proximal

if TYPE_CHECKING:
    from kfl.engine import Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Federated averaging with a proximal term: local models are pulled to the server's.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedProx(proximal=0.1)))
    >>> history.summary["algorithm"]
    'fedprox'
    """

    name: ClassVar[str] = "fedprox"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("proximal", (0.01, 0.1, 1.0))

    proximal: float = 0.01
    """Weight μ of the pull to the server's model; 0 is federated averaging."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(0 <= self.proximal < float("inf"), "proximal", self.proximal, "0 or more")

    def train(self, devices: Sequence[int], models: Sequence[State], engine: Engine, key: RoundKey) -> list[State]:
        """τ steps on h_k, from the server's model, which all chosen devices hold."""
        return engine.train(devices, models, proximal(self.proximal, models[0]), self.sgd(), key) if models else []
