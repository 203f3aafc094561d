"""A shared and a personal model at once, for a cohort: the steps of APFL (`kfl.engine.Mixture`).

With w the shared model, v the personal one and v̄ = α v + (1 − α) w, all at the start of a step and α of each device,

    w moves along ∇F(w),    v along α ∇F(v̄),    α along ⟨v − w, ∇F(v̄)⟩ and stays between 0 and 1.

So a step is two gradients of the plain loss, and a few sums over the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from kfl.engine.cuda.network import CohortNetwork, Prepared, Workspace, move, prepared
from kfl.engine.objectives import MIXING, PERSONAL, Descent, Objective
from kfl.engine.samples import Batch
from kfl.models import State


@torch.no_grad()
def train_cohort_mixture(
    network: CohortNetwork, state: State, steps: Sequence[Callable[[], Batch]], objective: Objective, descent: Descent
) -> State:
    """Descend the mixture's loss, once per entry of `steps`. May change the stacked state given."""
    names = [name for name in state if name != MIXING and not name.startswith(PERSONAL)]
    shared = network.joined({name: state[name] for name in names})
    personal = network.joined({name: state[PERSONAL + name] for name in names})
    mixing, mixing_rate = state[MIXING], descent.rates.get(MIXING, 0.0)
    joined, memory = network.of_joined(descent), Workspace()
    shared_velocity, personal_velocity = dict[str, Tensor](), dict[str, Tensor]()
    mixing_velocity: Tensor | None = None

    def push(weights: State, velocity: State, batch: Prepared) -> State:
        """v ← m v + ∇F(w); from an empty velocity, v = ∇F(w)."""
        tape = network.forward(weights, batch.inputs, memory, keep=True)
        network.push(weights, velocity, batch, tape, joined)
        return velocity

    with network.arithmetic.products():
        for batch in prepared(network, steps, objective):
            # v̄ = α v + (1 − α) w, and its gradient.
            mixed = {name: torch.lerp(w, personal[name], _share(mixing, w)) for name, w in shared.items()}
            push(shared, shared_velocity, batch)
            gradient = push(mixed, {}, batch)
            # ⟨v − w, ∇F(v̄)⟩ of each device.
            parts = [((personal[name] - shared[name]) * value).flatten(1).sum(1) for name, value in gradient.items()]
            along = torch.stack(parts).sum(0).reshape(mixing.shape)
            mixing_velocity = along if mixing_velocity is None else mixing_velocity.mul_(descent.momentum).add_(along)
            for name, value in gradient.items():
                share = _share(mixing, value)
                if name in personal_velocity:
                    personal_velocity[name].mul_(descent.momentum).addcmul_(value, share)
                else:
                    personal_velocity[name] = share * value
            move(shared, shared_velocity, joined)
            move(personal, personal_velocity, joined)
            mixing = mixing.sub(mixing_velocity, alpha=mixing_rate).clamp_(0.0, 1.0)
    own = {PERSONAL + name: value for name, value in network.taken_apart(personal).items()}
    return {**network.taken_apart(shared), **own, MIXING: mixing}


def mixture_names(parameters: Iterable[str]) -> set[str]:
    """Return the entries of a state that a mixture trains, for a network with these parameters.

    >>> sorted(mixture_names(["head.bias"]))
    ['head.bias', 'mixing', 'personal/head.bias']
    """
    parameters = set(parameters)
    return {*parameters, *(PERSONAL + name for name in parameters), MIXING}


def _share(mixing: Tensor, value: Tensor) -> Tensor:
    """α of each device, to be multiplied with a stacked tensor."""
    return mixing.reshape(-1, *[1] * (value.dim() - 1))
