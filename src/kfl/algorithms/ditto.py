"""Ditto: a personal model on each device, pulled to one that is averaged over all.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1.

A chosen device receives w^t, takes τ steps from it on F_k and uploads that, as in federated averaging; next to it, it
takes τ steps of its personal model v_k on F_k(v) + λ/2 ‖v − w^t‖². It predicts with v_k.

Where we decide: both take the same number of steps; v_k begins at the common start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from kfl.algorithms.base import require, training_flops
from kfl.algorithms.weights import FEEDBACK, WeightAveraging, proximal, without_feedback

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.algorithms.uploads import Upload
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class Ditto(WeightAveraging):
    """A personal model on each device, pulled to the averaged one.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Ditto(pull=0.5)))
    >>> history.summary["algorithm"]
    'ditto'
    """

    name: ClassVar[str] = "ditto"
    predicts_alone: ClassVar[bool] = True
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("pull", (0.1, 1.0, 2.0))

    pull: float = 1.0
    """Weight λ of the pull of the personal model to the averaged one; 0 is training alone."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(0 <= self.pull < float("inf"), "pull", self.pull, "0 or more")

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """A personal model, the common start."""
        return engine.initial(device, seed, common=True)

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps of the averaged model, which is sent up, and τ of the personal one."""
        feedback = [{name: value for name, value in state.items() if name == FEEDBACK} for state in states]
        kept, uploads = super().local_update(message, devices, feedback, engine, key)
        personal = [without_feedback(state) for state in states]
        own = engine.train(devices, personal, proximal(self.pull, message), self.sgd(), replace(key, phase=1))
        return [{**mine, **rest} for mine, rest in zip(own, kept, strict=True)], uploads

    def predictor(self, server: State, device: State) -> State:
        """The personal model."""
        return without_feedback(device)

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps of two models."""
        return 2 * training_flops(self.local_steps, profile)
