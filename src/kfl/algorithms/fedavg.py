"""Federated averaging: one model for all, averaged over the devices of a round.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, Algorithm 1.

The server sends its model w; each chosen device takes τ steps from it on its own loss F_k and uploads the whole
model; the server sets w = Σ_k D_k w_k / Σ_k D_k. Every device predicts with the server's model, chosen or not.
All models start from one common draw and need one architecture. A device keeps nothing between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.uploads import Upload
from kfl.algorithms.weights import WeightAveraging, weights_upload

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import Engine, RoundKey
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

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on F_k from the global model; the whole model goes up."""
        from kfl.engine import Supervised

        received = [dict(message) for _ in devices]
        trained = engine.train(devices, received, Supervised(), self.sgd(), key)
        uploads = [weights_upload(device, state, engine) for device, state in zip(devices, trained, strict=True)]
        return [{} for _ in devices], uploads

    def predictor(self, server: State, device: State) -> State:
        """The global model."""
        return server
