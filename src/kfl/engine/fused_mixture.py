"""A shared and a personal model at once (`Mixture`) for a whole cohort, by hand: the steps of APFL.

With w the shared model, v the personal one and v̄ = α v + (1 − α) w, all at the start of a step,

    w moves along ∇F(w),    v along α ∇F(v̄),    α along ⟨v − w, ∇F(v̄)⟩ and stays between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kfl.engine.fused import Activations, FusedNetwork, Prepared, move, prepare
from kfl.engine.objectives import MIXING, PERSONAL, Mixture
from kfl.engine.vectorised import Batch, Descent
from kfl.models import State


@torch.no_grad()
def train_fused_mixture(
    network: FusedNetwork, state: State, steps: Sequence[Callable[[], Batch]], objective: Mixture, descent: Descent
) -> State:
    """Descend the mixture's loss, once per entry of `steps`. May change the stacked state given."""
    plain = [name for name in state if name != MIXING and not name.startswith(PERSONAL)]
    shared = network.joined({name: state[name] for name in plain})
    personal = network.joined({name: state[PERSONAL + name] for name in plain})
    mixing = state[MIXING]
    joined_descent = network.of_joined(descent)
    shared_velocity, personal_velocity = dict[str, Tensor](), dict[str, Tensor]()
    mixing_velocity: Tensor | None = None
    memory, batch = Activations(), None
    with network.arithmetic.products():
        for place, read in enumerate(steps):
            if batch is None or read is not steps[place - 1]:
                batch = prepare(network, read(), objective)
            share = {name: mixing.reshape(-1, *[1] * (value.dim() - 1)) for name, value in shared.items()}
            mixed = {name: torch.lerp(value, personal[name], share[name]) for name, value in shared.items()}
            _push(network, shared, shared_velocity, batch, memory, joined_descent)
            slope: State = {}
            _push(network, mixed, slope, batch, memory, joined_descent)
            apart = [((personal[name] - shared[name]) * slope[name]).flatten(1).sum(1) for name in slope]
            towards = torch.stack(apart).sum(0).reshape(mixing.shape)
            mixing_velocity = (
                towards if mixing_velocity is None else mixing_velocity.mul_(descent.momentum).add_(towards)
            )
            for name, value in slope.items():
                own = personal_velocity.get(name)
                moved = share[name] * value if own is None else own.mul_(descent.momentum).addcmul_(value, share[name])
                personal_velocity[name] = moved
            move(shared, shared_velocity, joined_descent)
            move(personal, personal_velocity, joined_descent)
            mixing = mixing.sub(mixing_velocity, alpha=descent.rates.get(MIXING, 0.0)).clamp_(0.0, 1.0)
    trained = {PERSONAL + name: value for name, value in network.taken_apart(personal).items()}
    return {**network.taken_apart(shared), **trained, MIXING: mixing}


def _push(
    network: FusedNetwork, weights: State, velocity: State, batch: Prepared, memory: Activations, descent: Descent
) -> None:
    tape = network.forward(weights, batch.inputs, memory, keep=True)
    network.push(weights, velocity, batch, tape, descent)
