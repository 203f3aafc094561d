"""`mixed_models` for a cohort: each device has its own α."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.cuda.closed_form import ClosedForm
from kfl.engine.cuda.mixed_models import Mixable, MixedModels, join_mixture, split_mixture
from kfl.engine.cuda.network import CohortNetwork, Prepared, Workspace, prepared
from kfl.engine.objectives import MIXING, Descent
from kfl.engine.samples import Batch
from kfl.models import State


@dataclass(frozen=True, eq=False)
class _CohortStep(Mixable):
    network: CohortNetwork
    batch: Prepared
    memory: Workspace
    descent: Descent

    def push(self, weights: State, velocity: State) -> None:
        tape = self.network.forward(weights, self.batch.inputs, self.memory, keep=True)
        self.network.push(weights, velocity, self.batch, tape, self.descent)

    def gradient(self, weights: State) -> State:
        found: State = {}
        self.push(weights, found)
        return found

    def mix(self, shared: State, personal: State, mixing: Tensor) -> State:
        return {name: torch.lerp(value, personal[name], _share(mixing, value)) for name, value in shared.items()}

    def along(self, shared: State, personal: State, gradient: State, mixing: Tensor) -> Tensor:
        apart = [((personal[name] - shared[name]) * value).flatten(1).sum(1) for name, value in gradient.items()]
        return torch.stack(apart).sum(0).reshape(mixing.shape)

    def push_share(self, velocity: State, gradient: State, mixing: Tensor) -> None:
        for name, value in gradient.items():
            share = _share(mixing, value)
            if name in velocity:
                velocity[name].mul_(self.descent.momentum).addcmul_(value, share)
            else:
                velocity[name] = share * value


def _share(mixing: Tensor, value: Tensor) -> Tensor:
    """α of each device, to be multiplied with a stacked tensor."""
    return mixing.reshape(-1, *[1] * (value.dim() - 1))


@torch.no_grad()
def train_cohort_mixture(
    network: CohortNetwork, state: State, steps: Sequence[Callable[[], Batch]], form: ClosedForm, descent: Descent
) -> State:
    """Descend the mixture's loss, once per entry of `steps`. May change the stacked state given."""
    shared, personal, mixing = split_mixture(state)
    models = MixedModels(network.joined(shared), network.joined(personal), mixing)
    joined, memory = network.of_joined(descent), Workspace()

    with network.arithmetic.products():
        ready = (_CohortStep(network, batch, memory, joined) for batch in prepared(network, steps, form))
        models.train(ready, joined, descent.rates.get(MIXING, 0.0))
    return join_mixture(network.taken_apart(models.shared), network.taken_apart(models.personal), models.mixing)
