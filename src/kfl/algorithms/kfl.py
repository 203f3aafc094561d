"""Knowledge-aided federated learning: Algorithm 1 and equations (1) to (9) of the paper.

Chen, Yi, Liu, Nallanathan: Knowledge-aided Federated Learning for Energy-limited Wireless Networks.

A device trains its own model on F_k + λ L_k, where L_k pulls the feature of each sample towards the global
knowledge Ω_c of its class, then uploads the mean feature of each of its classes. The server averages those means
weighted by how many samples stand behind each. Models never leave their device and may all be different.

Where the paper is silent: a class nobody has reported yet has no knowledge loss; a class nobody reports this
round keeps its last knowledge (`memory`); a class a device does not hold is uploaded with count 0 and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import BITS_PER_VALUE, Algorithm, Cost, Rejection, Upload, require, training_flops
from kfl.algorithms.knowledge import average_knowledge, empty_knowledge

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class Kfl(Algorithm):
    """Knowledge-aided federated learning: devices share the mean feature of each class, never weights."""

    name: ClassVar[str] = "kfl"

    knowledge_weight: float = 1 / 32
    """Weight λ of the knowledge loss ½‖h(x) − Ω_c‖². From 0.01 to 0.1 all work; 10 destroys learning."""
    memory: bool = True
    """Keep the last knowledge of a class that nobody reports in a round."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        weight = self.knowledge_weight
        require(0 <= weight < float("inf"), "knowledge_weight", weight, "0 or more")

    def server_init(self, engine: Engine, seed: int) -> State:
        """No knowledge of any class."""
        return empty_knowledge(engine.classes, engine.features)

    def broadcast(self, server: State) -> Message:
        """The global knowledge Ω, and which classes it covers."""
        return server

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on F + λL, equations (7) and (8), then the mean feature of each class, equation (4)."""
        from kfl.engine import FeatureTargets, Supervised

        pull = FeatureTargets(self.knowledge_weight, message["knowledge"], message["known"])
        trained = engine.train(devices, states, Supervised(pull), self.sgd(), key)
        means, counts = engine.class_means(devices, trained)
        uploads = [
            Upload(device, {"means": mean, "counts": count})
            for device, mean, count in zip(devices, means, counts, strict=True)
        ]
        return trained, uploads

    def aggregate(self, server: State, uploads: Sequence[Upload]) -> tuple[State, list[Rejection]]:
        """Equation (9): Ω_c = Σ_k D_{k,c} Ω_{k,c} / Σ_k D_{k,c} over the devices that reported."""
        return average_knowledge(server, uploads, memory=self.memory)

    def cost(self, profile: DeviceProfile, *, real_work: bool) -> Cost:
        """Knowledge is p numbers for each class, up and down; real work adds the pass that reads features."""
        bits = profile.model.features * profile.model.classes * BITS_PER_VALUE
        flops = training_flops(self.local_steps, profile, real_work=real_work)
        if real_work:
            flops += profile.samples * profile.model.body_flops
        return Cost(flops, bits, bits)
