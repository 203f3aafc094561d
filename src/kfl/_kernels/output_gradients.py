"""Gradients of a loss in closed form at the outputs of a model, its logits z and its features h.

cross-entropy    ∂F/∂z = (softmax(z) − e_y) / n
distillation     ∂/∂z T² KL = T (softmax(z/T) − softmax(z*/T)) / n
pull             ∂(λL)/∂h = λ (h − Ω_y) / n where class y has a target
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kfl._kernels.closed_form import ClosedForm, FeatureTargets


@dataclass(frozen=True, eq=False)
class OutputGradients:
    """The gradients of a loss at logits and features, for the samples of one batch.

    The last two axes are samples and classes (or features); a cohort has devices before them. Coefficients are
    multiplied in a fixed order, for a device and for a cohort its own, because results depend on it in their last
    digits.
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
    def for_device(form: ClosedForm, targets: Tensor, classes: int, dtype: torch.dtype) -> OutputGradients:
        """All samples of one device with equal weights."""
        count = len(targets)
        probabilities, scale = _probabilities(form, targets, classes, dtype), form.temperature / count
        if form.pull is None or form.pull.weight == 0:
            return OutputGradients(probabilities, form.temperature, scale, None, 0.0)
        goal = form.pull.targets.to(dtype)[targets]
        pull = form.pull.known[targets].to(dtype) * (form.pull.weight / count)
        return OutputGradients(probabilities, form.temperature, scale, goal, pull[:, None])

    @staticmethod
    def for_cohort(
        form: ClosedForm, targets: Tensor, classes: int, dtype: torch.dtype, weights: Tensor | None
    ) -> OutputGradients:
        """Samples of many devices, (devices, samples), with weights that add up to 1; None for equal ones."""
        share = 1.0 / targets.shape[1] if weights is None else weights.to(dtype).unsqueeze(-1)
        probabilities = _probabilities(form, targets, classes, dtype)
        scale = share if form.temperature == 1 else share * form.temperature
        if form.pull is None:
            return OutputGradients(probabilities, form.temperature, scale, None, 0.0)
        goal, strength = _pull_of_samples(form.pull, targets)
        return OutputGradients(probabilities, form.temperature, scale, goal.to(dtype), strength.to(dtype) * share)

    def at_logits(self, logits: Tensor) -> Tensor:
        """∂/∂z, in the type of the weights."""
        logits = logits.to(self.probabilities.dtype)
        logits = logits if self.temperature == 1 else logits / self.temperature
        return torch.softmax(logits, -1).sub_(self.probabilities).mul_(self.scale)

    def at_features(self, features: Tensor) -> Tensor | None:
        """∂/∂h of the pull, in the type of the features; None where there is no pull."""
        if self.feature_targets is None:
            return None
        away = features.to(self.feature_targets.dtype) - self.feature_targets
        return away.mul_(self.pull).to(features.dtype)


def _probabilities(form: ClosedForm, targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    if form.logit_targets:
        return torch.softmax(targets.to(dtype) / form.temperature, -1)
    return (targets.unsqueeze(-1) == torch.arange(classes, device=targets.device)).to(dtype)


def _pull_of_samples(pull: FeatureTargets, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample its target (devices, samples, features), and λ where its class has one, else 0."""
    if pull.targets.dim() == 2:
        goal, known = pull.targets[labels], pull.known[labels]
    else:
        device = torch.arange(len(labels), device=labels.device)[:, None]
        goal, known = pull.targets[device, labels], pull.known[device, labels]
    return goal, pull.weight * known.to(goal.dtype).unsqueeze(-1)
