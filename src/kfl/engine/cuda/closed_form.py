"""Losses in closed form, for the hand-written GPU network, and their gradients at a model's outputs.

cross-entropy    ∂F/∂z = (softmax(z) − e_y) / n
distillation     ∂/∂z T² KL = T (softmax(z/T) − softmax(z*/T)) / n
of labels        ∂/∂z λ H(softmax(z*_y), softmax(z)) = λ (softmax(z) − softmax(z*_y)) / n where label y has logits z*_y
pull             ∂(λL)/∂h = λ (h − Ω_y) / n where class y has a target
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.engine.objectives import (
    MIXING,
    PERSONAL,
    Distillation,
    FeatureTargets,
    LabelDistillation,
    Mixture,
    Objective,
    Supervised,
)

if TYPE_CHECKING:
    from torch import Tensor


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


def closed_form(objective: Objective) -> ClosedForm | None:
    """Return a loss by its known gradients; None for those that have none, as all subclasses of ours.

    >>> closed_form(Mixture(0.1)).mixture
    True
    """
    if type(objective) is Supervised:
        return ClosedForm(pull=objective.pull)
    if type(objective) is Distillation:
        return ClosedForm(logit_targets=True, temperature=objective.temperature)
    if type(objective) is LabelDistillation:
        return ClosedForm(label_logits=LabelLogits(objective.weight, objective.targets, objective.known))
    return ClosedForm(mixture=True) if type(objective) is Mixture else None


def mixture_names(parameters: Iterable[str]) -> set[str]:
    """The entries of a state that a mixture trains, for a network with these parameters.

    >>> sorted(mixture_names(["head.bias"]))
    ['head.bias', 'mixing', 'personal/head.bias']
    """
    parameters = set(parameters)
    return {*parameters, *(PERSONAL + name for name in parameters), MIXING}
