"""`kfl._kernels.mixture` for one device: full-batch steps, in buffers that are used again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kfl._kernels.closed_form import MIXING, Descent
from kfl._kernels.cpu.dense import decay
from kfl._kernels.mixture import Mixable, MixedModels, join_mixture, split_mixture
from kfl.models import State

Gradients = Callable[[State], State]
"""∇F at given weights; what it returns is overwritten by the next call."""


class _DeviceStep(Mixable):
    def __init__(self, gradients: Gradients, weights: State, momentum: float) -> None:
        self._gradients = gradients
        self._momentum = momentum
        self._buffers = {name: torch.empty_like(value) for name, value in weights.items()}

    def push(self, weights: State, velocity: State) -> None:
        self._add(velocity, self._gradients(weights), 1.0)

    def gradient(self, weights: State) -> State:
        return self._gradients(weights)

    def mix(self, shared: State, personal: State, mixing: Tensor) -> State:
        for name, value in shared.items():
            torch.lerp(value, personal[name], mixing, out=self._buffers[name])
        return self._buffers

    def along(self, shared: State, personal: State, gradient: State, mixing: Tensor) -> Tensor:
        found = torch.zeros_like(mixing)
        for name, value in gradient.items():
            apart = torch.sub(personal[name], shared[name], out=self._buffers[name])
            found += torch.dot(apart.view(-1), value.reshape(-1))
        return found

    def push_share(self, velocity: State, gradient: State, mixing: Tensor) -> None:
        self._add(velocity, gradient, float(mixing))

    def _add(self, velocity: State, gradient: State, share: float) -> None:
        for name, value in gradient.items():
            keep = self._momentum if name in velocity else 0.0
            if name not in velocity:
                velocity[name] = torch.empty_like(value)
            decay(velocity[name], keep).add_(value, alpha=share)


def train_mixture(gradients: Gradients, state: State, descent: Descent, steps: int) -> State:
    """τ full-batch steps."""
    shared, personal, mixing = split_mixture({name: value.clone() for name, value in state.items()})
    models = MixedModels(shared, personal, mixing)
    of_models = Descent({name: descent.rates[name] for name in shared}, descent.momentum)
    step = _DeviceStep(gradients, shared, descent.momentum)
    models.train([step] * steps, of_models, descent.rates.get(MIXING, 0.0))
    return join_mixture(models.shared, models.personal, models.mixing)
