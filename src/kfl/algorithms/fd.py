"""FD: devices share what their models say, on average, about the samples of each label, and learn from the mean.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data, arXiv:1811.11479, 2018, Algorithm 1.

Distillation without the common samples that FedKD needs. A device uploads the mean logit vector of its samples of each
label, the server averages them label by label, and a device minimizes cross-entropy on its labels + `distill_weight` ·
cross-entropy on the mean logits of the sample's label, both from one forward pass. A message has as many numbers as
labels squared, whatever the network. Models may all be different.

Where we decide: both terms are the same loss in the authors' algorithm, a cross-entropy, so that probabilities are
compared: the target is the softmax of the mean logits. HtFLlib (github.com/TsingZ0/HtFLlib) did the same until November
2025; since then it takes the raw logits for probabilities, and as these may be negative, its loss has no lower bound.
The authors give each device the mean of the *others*. Here, as in HtFLlib, all get the mean of those that reported: it
is one message for all, and it is defined for a device that did not report last. A label that no device reports keeps
its logits, and one that no device ever reported has no such loss. Logits are read after the local steps, where the
authors average over the steps. FAug, the data augmentation of the same paper, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from kfl.algorithms.base import QuantizedUploads, RobustRules, require
from kfl.algorithms.prototypes import PrototypeMethod

if TYPE_CHECKING:
    from kfl.algorithms.base import Message
    from kfl.engine import Engine, Objective


@dataclass(frozen=True)
class FederatedDistillation(QuantizedUploads, RobustRules, PrototypeMethod):
    """Federated distillation: the mean logits of each label, averaged over devices.

    >>> import kfl
    >>> algorithm = kfl.FederatedDistillation()
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=1, widths=(8,), algorithm=algorithm))
    >>> history.summary["algorithm"]
    'fd'
    """

    name: ClassVar[str] = "fd"
    of: ClassVar[Literal["inputs", "features", "logits"]] = "logits"
    main_parameter: ClassVar[tuple[str, tuple[float, ...]] | None] = ("distill_weight", (0.3, 1.0, 3.0))

    distill_weight: float = 1.0
    """Weight of the cross-entropy on the mean logits of a sample's label; 1 in HtFLlib."""

    def check(self) -> None:
        """Raise ConfigError for a value that cannot work."""
        super().check()
        require(0 <= self.distill_weight < float("inf"), "distill_weight", self.distill_weight, "0 or more")

    def objective(self, message: Message, engine: Engine) -> Objective:
        """Cross-entropy, and the distillation."""
        from kfl.engine import LabelDistillation

        return LabelDistillation(self.distill_weight, message["knowledge"], message["known"])
