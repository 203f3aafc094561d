"""Losses in closed form: what hand-written passes are told of an objective, and the gradients at a model's outputs.

cross-entropy    ∂F/∂z = (softmax(z) − e_y) / n
distillation     ∂/∂z T² KL = T (softmax(z/T) − softmax(z*/T)) / n
of labels        ∂/∂z λ H(softmax(z*_y), softmax(z)) = λ (softmax(z) − softmax(z*_y)) / n where label y has logits z*_y
pull             ∂(λL)/∂h = λ (h − Ω_y) / n where class y has a target
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

PERSONAL = "personal/"
"""Prefix of the parameters of a personal model beside the shared one."""
MIXING = "mixing"
"""Name of the mixing weight α of the personal and the shared model."""


@dataclass(frozen=True, eq=False)
class FeatureTargets:
    """Pulls the feature of each sample of class c towards `targets[c]`: λ ½‖h(x) − Ω_c‖², equation (6)."""

    weight: float
    """λ."""
    targets: Tensor
    """Ω, shape (classes, features); or one per device of the cohort, (devices, classes, features)."""
    known: Tensor
    """Bool, shape (classes,) or (devices, classes). Classes without a target have no such loss."""


@dataclass(frozen=True, eq=False)
class LabelLogits:
    """Brings the predictions for samples with label y close to softmax(z*_y): λ H(softmax(z*_y), softmax(z))."""

    weight: float
    """λ."""
    logits: Tensor
    """z*, shape (classes, classes): a row of logits for each label."""
    known: Tensor
    """Bool, shape (classes,). Labels without logits have no such loss."""


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """A loss with known gradients: softmax cross-entropy, perhaps softened, with a pull, or of two mixed models."""

    logit_targets: bool = False
    """Whether targets are logits to come close to, not labels."""
    temperature: float = 1.0
    """T; logits are divided by it. With labels it is 1."""
    pull: FeatureTargets | None = None
    label_logits: LabelLogits | None = None
    """A second cross-entropy on the logits of each sample's label; targets are labels then."""
    mixture: bool = False
    """Whether the loss is that of a shared model plus that of its mixture with a personal one (see `mixture`)."""


@dataclass(frozen=True)
class Descent:
    """Gradient descent with momentum: the learning rate of each parameter that moves, and the momentum."""

    rates: Mapping[str, float]
    momentum: float


def mixture_names(parameters: Iterable[str]) -> set[str]:
    """The entries of a state that a mixture trains, for a network with these parameters.

    >>> sorted(mixture_names(["head.bias"]))
    ['head.bias', 'mixing', 'personal/head.bias']
    """
    parameters = set(parameters)
    return {*parameters, *(PERSONAL + name for name in parameters), MIXING}
