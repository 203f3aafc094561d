"""A shared and a personal model at once (`Mixture`), by hand: full-batch steps of APFL.

With w the shared model, v the personal one and v̄ = α v + (1 − α) w, all at the start of a step,

    w moves along ∇F(w),    v along α ∇F(v̄),    α along ⟨v − w, ∇F(v̄)⟩ and stays between 0 and 1.

So a step is two gradients of the plain loss, and a few sums over the weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kfl.engine.base import Sgd
from kfl.engine.dense import decay
from kfl.engine.objectives import MIXING, PERSONAL, Mixture
from kfl.models import State

Gradients = Callable[[State], State]
"""∇F at given weights; what it returns is overwritten by the next call."""


def train_mixture(gradients: Gradients, state: State, objective: Mixture, sgd: Sgd) -> State:
    """τ full-batch steps."""
    shared = [name for name in state if name != MIXING and not name.startswith(PERSONAL)]
    now = {name: value.clone() for name, value in state.items()}
    velocity = {name: torch.zeros_like(value) for name, value in now.items()}
    mixed = {name: torch.empty_like(now[name]) for name in shared}
    for number in range(sgd.steps):
        keep, mixing = sgd.momentum if number else 0.0, now[MIXING]
        for name in shared:
            torch.lerp(now[name], now[PERSONAL + name], mixing, out=mixed[name])
        for name, slope in gradients({name: now[name] for name in shared}).items():
            decay(velocity[name], keep).add_(slope)
        towards: Tensor = torch.zeros_like(mixing)
        share = float(mixing)
        for name, slope in gradients(mixed).items():
            apart = torch.sub(now[PERSONAL + name], now[name], out=mixed[name])  # the mixture is no longer needed
            towards += torch.dot(apart.view(-1), slope.reshape(-1))
            decay(velocity[PERSONAL + name], keep).add_(slope, alpha=share)
        decay(velocity[MIXING], keep).add_(towards)
        for name, value in now.items():
            value.sub_(velocity[name], alpha=objective.rate(name, sgd))
        now[MIXING].clamp_(0.0, 1.0)
    return now
