"""FD: devices share what their models say, on average, about the samples of each label, and learn from the mean.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data, arXiv:1811.11479, 2018, Algorithm 1.

Distillation without the common samples that FedKD needs. A device uploads the mean logit vector of its samples of each
label, the server averages them label by label, and a device minimises cross-entropy on its labels + `distill_weight` ·
cross-entropy on the mean logits of the sample's label, both from one forward pass. A message has as many numbers as
labels squared, whatever the network. Models may all be different.

Where we decide: both terms are the same loss in the authors' algorithm, a cross-entropy, so that probabilities are
compared: the target is the softmax of the mean logits. HtFLlib (github.com/TsingZ0/HtFLlib) did the same until November
2025; since then it takes the raw logits for probabilities, and as these may be negative, its loss has no lower bound.
The authors give each device the mean of the *others*. Here, as in HtFLlib, all get the mean of those that reported: it
is one message for all, and it is defined for a device that did not report last. A label that nobody reports keeps its
logits, and one that nobody ever reported has no such loss. Logits are read after the local steps, where the authors
average over the steps. FAug, the data augmentation of the same paper, is left out.
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
from kfl.algorithms.base import BITS_PER_VALUE, Algorithm, PlotStyle, held_bits, require, training_flops
from kfl.algorithms.sums import Summation
from kfl.algorithms.uploads import Rejection, Upload, UploadFormat

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import DeviceProfile, Engine, RoundKey
    from kfl.models import State


@dataclass(frozen=True)
class Fd(Algorithm):
    """Federated distillation: the mean logits of each label, averaged over devices.

    >>> import kfl
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=kfl.Fd()))
    >>> history.summary["algorithm"]
    'fd'
    """

    name: ClassVar[str] = "fd"
    style: ClassVar[PlotStyle | None] = PlotStyle("#8a5a44", (4, 1.5))
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("distill_weight", (0.3, 1.0, 3.0))

    distill_weight: float = 1.0
    """Weight of the cross-entropy on the mean logits of a sample's label; 1 in HtFLlib."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        require(0 <= self.distill_weight < float("inf"), "distill_weight", self.distill_weight, "0 or more")

    def server_init(self, engine: Engine, seed: int) -> State:
        """No logits of any label."""
        return empty_knowledge(engine.classes, engine.classes)

    def broadcast(self, server: State) -> Message:
        """The mean logits of each label, and which labels have some."""
        return server

    def local_update(
        self, message: Message, devices: Sequence[int], states: Sequence[State], engine: Engine, key: RoundKey
    ) -> tuple[list[State], list[Upload]]:
        """τ steps on cross-entropy and the distillation, then the mean logits of each label."""
        from kfl.engine import LabelDistillation

        objective = LabelDistillation(self.distill_weight, message["knowledge"], message["known"])
        trained = engine.train(devices, states, objective, self.sgd(), key)
        means, counts = (values.cpu() for values in engine.class_means(devices, trained, of="logits"))
        return trained, equal_uploads(devices, means, counts)

    def upload_format(self, server: State) -> UploadFormat:
        """The mean logits of each label, and 1 or 0 for whether the device holds it."""
        return knowledge_format(server, held=True)

    def aggregate(
        self, server: State, uploads: Sequence[Upload], *, engine: Engine, key: RoundKey
    ) -> tuple[State, list[Rejection]]:
        """The mean of the logits of each label over the devices that hold it."""
        return average_knowledge(server, uploads, memory=True, heaviest=1.0)

    def summation(self) -> Summation | None:
        """The sums of that mean: each device that holds a class weighs 1."""
        return KnowledgeSums(heaviest=1.0)

    def real_flops(self, profile: DeviceProfile) -> float:
        """The local steps, and the pass that reads the logits."""
        return training_flops(self.local_steps, profile) + profile.samples * profile.model.flops

    def bits(self, profile: DeviceProfile) -> tuple[float, float]:
        """As many numbers as there are labels: up for each label that the device holds, down for all."""
        classes = profile.model.classes
        return held_bits(profile, classes), classes * classes * BITS_PER_VALUE
