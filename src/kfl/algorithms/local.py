"""Algorithms that share nothing: what any sharing has to beat. All run on mixed architectures.

`Local` trains each device alone: the baseline the paper leaves out. On devices with two classes it is strong, so every
comparison includes it.

Where does the gain of knowledge come from? KFL's pull ½‖h(x) − Ω_c‖² does two things: it regularizes, as any fixed
target would, and it carries what others know. Two ablations keep the pull and take a part of the sharing away.

- `SelfKnowledge`: a device's targets are its own class means of its previous round. No pull in its first round.
- `FixedKnowledge`: the targets are drawn once, from the run's seed, the same for all devices: random points, or the
  corners of a regular simplex. Every device agrees where each class belongs, and no device has told anyone anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from kfl.algorithms.base import Algorithm, feature_flops, require, training_flops
from kfl.algorithms.prototypes import empty_knowledge
from kfl.algorithms.targets import FixedTargets, fixed_targets, pull_to
from kfl.algorithms.uploads import Upload

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State

OWN = "own/"
"""Prefix of what a device remembers next to its model."""


@dataclass(frozen=True)
class Local(Algorithm):
    """Local-only training: λ = 0, nothing shared.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Local()))
    >>> history.summary["algorithm"]
    'local'
    """

    name: ClassVar[str] = "local"

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on the device's own loss F."""
        from kfl.engine import Supervised

        return engine.train(devices, states, Supervised(), self.sgd(), key), []


@dataclass(frozen=True)
class SelfKnowledge(Algorithm):
    """Ablation: each device is pulled to its own class means of its previous round.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.SelfKnowledge()))
    >>> history.summary["algorithm"]
    'self-knowledge'
    """

    name: ClassVar[str] = "self-knowledge"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("knowledge_weight", (0.01, 1 / 32, 0.1))

    knowledge_weight: float = 1 / 32
    """Weight λ of the pull, as in kfl."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(0 <= self.knowledge_weight < float("inf"), "knowledge_weight", self.knowledge_weight, "0 or more")

    def device_init(self, engine: Engine, device: int, seed: int) -> State:
        """The device's model, and no knowledge of any class."""
        start = engine.initial(device, seed)
        own = empty_knowledge(engine.classes, engine.features)
        where = next(iter(start.values())).device
        return {**start, **{OWN + name: value.to(where) for name, value in own.items()}}

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on F + λL toward the device's own last class means, then its class means anew."""
        import torch

        from kfl.engine import FeatureTargets, Supervised

        if not devices:
            return [], []
        targets = torch.stack([state[OWN + "knowledge"] for state in states])
        known = torch.stack([state[OWN + "known"] for state in states])
        pull = FeatureTargets(self.knowledge_weight, targets, known)
        models = [_model(state) for state in states]
        trained = engine.train(devices, models, Supervised(pull), self.sgd(), key)
        found = engine.class_statistics(devices, trained)
        return [
            {**model, OWN + "knowledge": own.means, OWN + "known": own.counts > 0}
            for model, own in zip(trained, found, strict=True)
        ], []

    def predictor(self, server: State, device: State) -> State:
        """The device's own model."""
        return _model(device)

    def real_flops(self, profile: DeviceProfile) -> float:
        """The work of KFL: the local steps, and the pass that reads the features."""
        return training_flops(self.local_steps, profile) + feature_flops(profile)


@dataclass(frozen=True)
class FixedKnowledge(Algorithm):
    """Ablation: all devices are pulled to the same targets, drawn once from the seed: random ones, or a simplex.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.FixedKnowledge()))
    >>> history.summary["algorithm"]
    'fixed-knowledge'
    """

    name: ClassVar[str] = "fixed-knowledge"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("knowledge_weight", (0.01, 1 / 32, 0.1))

    knowledge_weight: float = 1 / 32
    """Weight λ of the pull, as in kfl."""
    scale: float = 3.0
    """Euclidean norm of each target. KFL's own knowledge has norms of about 3 on CIFAR-10; 2 and 5 work as well."""
    targets: FixedTargets = "random"
    """Where the targets are: random points, or the corners of a simplex, every two classes equally far apart."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(0 <= self.knowledge_weight < float("inf"), "knowledge_weight", self.knowledge_weight, "0 or more")
        require(0 < self.scale < float("inf"), "scale", self.scale, "a number above 0")
        kinds = get_args(FixedTargets)
        require(self.targets in kinds, "targets", self.targets, f"one of {', '.join(kinds)}")

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on F + λL toward the fixed targets."""
        from kfl.engine import Supervised

        if not devices:
            return [], []
        targets = fixed_targets(self.targets, engine.classes, engine.features, self.scale, key.seed)
        pull = pull_to(targets, self.knowledge_weight, states[0])
        return engine.train(devices, states, Supervised(pull), self.sgd(), key), []


def _model(state: State) -> State:
    """A device's model without what it remembers next to it."""
    return {name: value for name, value in state.items() if not name.startswith(OWN)}
