"""Points that the features of each class are pulled to, the same on every device, without any upload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kfl.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from kfl.engine import FeatureTargets
    from kfl.models import State

FixedTargets = Literal["random", "simplex"]
"""`random`: a normal draw for each class after a ReLU, as features come after theirs. `simplex`: the corners of a
regular simplex, every two classes equally far apart, as features come to lie when a network is trained to the end
(Papyan, Han, Donoho 2020). Of all such corners those that features after a ReLU can reach, none negative: each class
has coordinates of its own."""


def fixed_targets(kind: FixedTargets, classes: int, features: int, scale: float, seed: int) -> Tensor:
    """One target per class (classes × features), each of Euclidean norm `scale`, drawn from the run's seed.

    >>> points = fixed_targets("simplex", classes=3, features=7, scale=2.0, seed=0)
    >>> (points @ points.T).round(decimals=4).tolist()
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """
    import torch

    from kfl.core.randomness import torch_stream

    generator = torch_stream(seed, "fixed knowledge")
    if kind == "random":
        drawn = torch.randn(classes, features, generator=generator).relu()
    else:
        if features < classes:
            raise ConfigError(
                "algorithm.targets",
                kind,
                f"random: {classes} corners of a simplex need {classes} features, not {features}",
            )
        own = torch.randperm(features, generator=generator) % classes
        drawn = (own == torch.arange(classes)[:, None]).float()
    unit: Tensor = drawn / drawn.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return scale * unit


def pull_to(targets: Tensor, weight: float, beside: State) -> FeatureTargets:
    """Return the pull of every class to its target, where the model `beside` it is computed with."""
    import torch

    from kfl.engine import FeatureTargets

    where = next(iter(beside.values())).device
    known = torch.ones(len(targets), dtype=torch.bool, device=where)
    return FeatureTargets(weight, targets.to(where), known)
