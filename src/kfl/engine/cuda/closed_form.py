"""Losses of the hand-written GPU network: their gradients in closed form at a model's logits z and features h.

cross-entropy    ∂F/∂z = (softmax(z) − e_y) / n
distillation     ∂/∂z T² KL = T (softmax(z/T) − softmax(z*/T)) / n
of labels        ∂/∂z λ H(softmax(z*_y), softmax(z)) = λ (softmax(z) − softmax(z*_y)) / n where label y has logits z*_y
pull             ∂(λL)/∂h = λ (h − Ω_y) / n where class y has a target
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.objectives import Distillation, FeatureTargets, LabelDistillation, Mixture, Objective, Supervised

CLOSED_FORMS = (Supervised, Distillation, LabelDistillation, Mixture)
"""Objectives with known gradients, these very classes: a subclass may have another loss."""


@dataclass(frozen=True, eq=False)
class OutputGradients:
    """The gradients of a loss at logits and features, for the samples of one batch.

    The axes are devices, samples, and classes or features. Coefficients are multiplied in a fixed order, because
    results depend on it in their last digits.
    """

    probabilities: Tensor
    """Targets of the softmax, (…, samples, classes)."""
    temperature: float
    scale: Tensor | float
    """Weight of each sample times the temperature."""
    feature_targets: Tensor | None
    """Ω_y of each sample, (…, samples, features)."""
    pull: Tensor | float
    """λ times the weight of each sample, 0 where its class has no target."""

    @staticmethod
    def for_cohort(
        objective: Objective, targets: Tensor, classes: int, dtype: torch.dtype, weights: Tensor | None
    ) -> OutputGradients:
        """Samples of many devices, (devices, samples), with weights that add up to 1; None for equal ones.

        Of a mixture it is the plain cross-entropy, by which both of its models are judged.
        """
        share = 1.0 / targets.shape[1] if weights is None else weights.to(dtype).unsqueeze(-1)
        if isinstance(objective, Distillation):
            temperature = objective.temperature
            scale = share if temperature == 1 else share * temperature
            return OutputGradients(torch.softmax(targets.to(dtype) / temperature, -1), temperature, scale, None, 0.0)
        probabilities = (targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)).to(dtype)
        if isinstance(objective, LabelDistillation):
            # Two cross-entropies of the weights 1 and λ are one of the weight 1 + λ with the mean of both targets.
            more = (objective.weight * objective.known[targets].to(dtype)).unsqueeze(-1)
            said = torch.softmax(objective.targets.to(dtype), -1)[targets]
            return OutputGradients((probabilities + more * said) / (1 + more), 1.0, share * (1 + more), None, 0.0)
        if not isinstance(objective, Supervised) or objective.pull is None:
            return OutputGradients(probabilities, 1.0, share, None, 0.0)
        goal, strength = _pull_of_samples(objective.pull, targets)
        return OutputGradients(probabilities, 1.0, share, goal.to(dtype), strength.to(dtype) * share)

    def at_logits(self, logits: Tensor) -> Tensor:
        """∂/∂z, in the type of the weights."""
        logits = logits.to(self.probabilities.dtype)
        logits = logits if self.temperature == 1 else logits / self.temperature
        return torch.softmax(logits, -1).sub_(self.probabilities).mul_(self.scale)


def _pull_of_samples(pull: FeatureTargets, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample its target (devices, samples, features), and λ where its class has one, else 0."""
    if pull.targets.dim() == 2:
        goal, known = pull.targets[labels], pull.known[labels]
    else:
        device = torch.arange(len(labels), device=labels.device)[:, None]
        goal, known = pull.targets[device, labels], pull.known[device, labels]
    return goal, pull.weight * known.to(goal.dtype).unsqueeze(-1)
