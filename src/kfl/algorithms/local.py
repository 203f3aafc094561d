"""Local-only training: each device trains alone and nothing is shared.

The baseline the paper leaves out. On devices with two classes it is strong, so every comparison includes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import Algorithm, Cost, Rejection, Upload, training_flops
from kfl.algorithms.uploads import refuse_all

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class Local(Algorithm):
    """Local-only training: λ = 0, nothing shared."""

    name: ClassVar[str] = "local"

    def broadcast(self, server: State) -> Message:
        """Nothing."""
        return {}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on the device's own loss F."""
        from kfl.engine import Supervised

        return engine.train(devices, states, Supervised(), self.sgd(), key), []

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """Nothing is expected, nothing changes."""
        return server, refuse_all(uploads, self.name)

    def cost(self, profile: DeviceProfile, *, real_work: bool) -> Cost:
        """The local passes, and no bits."""
        return Cost(training_flops(self.local_steps, profile, real_work=real_work), 0, 0)
