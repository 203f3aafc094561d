"""Federated averaging: one model for all, averaged over the devices of a round.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, Algorithm 1.

The server sends its model w; each chosen device takes τ steps from it on its own loss F_k and uploads the whole
model; the server sets w = Σ_k D_k w_k / Σ_k D_k. Every device predicts with the server's model, chosen or not.
All models start from one common draw and need one architecture. A device keeps nothing between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.weights import WeightAveraging

if TYPE_CHECKING:
    from kfl.engine import Engine
    from kfl.models import State


@dataclass(frozen=True)
class FedAvg(WeightAveraging):
    """Federated averaging: one model for all devices, weighted by their samples.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FedAvg(local_steps=2)))
    >>> history.summary["algorithm"]
    'fedavg'
    """

    name: ClassVar[str] = "fedavg"

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """Nothing: a device trains what it is sent."""
        return {}
