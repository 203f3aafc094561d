"""The slopes of the objectives that fast engines know, written out.

cross-entropy    ∂F/∂z = (softmax(z) − e_y) / n
pull             ∂(λL)/∂h = λ (h − Ω_y) / n where class y has a target
distillation     ∂/∂z T² KL = T (softmax(z/T) − softmax(z*/T)) / n
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.objectives import Distillation, FeatureTargets, Objective, Supervised


def is_known(objective: Objective) -> bool:
    """Whether `Slopes` has this objective; a subclass may do anything, so only these very classes."""
    return type(objective) in (Supervised, Distillation)


@dataclass(frozen=True, eq=False)
class Slopes:
    """An objective of one device, prepared for its samples."""

    wanted: Tensor
    """What the softmax should be, (samples, classes)."""
    temperature: float
    pull: FeatureTargets | None
    labels: Tensor

    @staticmethod
    def of(objective: Objective, targets: Tensor, classes: int, exact: torch.dtype) -> Slopes:
        """Prepare an objective for its targets: labels, or logits to come close to."""
        if isinstance(objective, Distillation):
            temperature = objective.temperature
            return Slopes(torch.softmax(targets.to(exact) / temperature, 1), temperature, None, targets)
        assert isinstance(objective, Supervised)
        wanted = torch.zeros(len(targets), classes, dtype=exact)
        wanted.scatter_(1, targets[:, None], 1.0)
        return Slopes(wanted, 1.0, objective.pull, targets)

    def of_logits(self, logits: Tensor, like: torch.dtype) -> Tensor:
        """∂/∂z."""
        said = torch.softmax(logits.to(self.wanted.dtype) / self.temperature, 1)
        return said.sub_(self.wanted).mul_(self.temperature / len(said)).to(like)

    def of_features(self, features: Tensor) -> Tensor | None:
        """∂/∂h of the pull, or None where there is none."""
        if self.pull is None or self.pull.weight == 0:
            return None
        exact = self.wanted.dtype
        away = features.to(exact) - self.pull.targets.to(exact)[self.labels]
        scale = self.pull.known[self.labels].to(exact) * (self.pull.weight / len(features))
        return away.mul_(scale[:, None]).to(features.dtype)
