"""A shared and a personal model at once (`Mixture`) for a whole cohort, by hand: the steps of APFL.

With w the shared model, v the personal one and v̄ = α v + (1 − α) w, all at the start of a step,

    w moves along ∇F(w),    v along α ∇F(v̄),    α along ⟨v − w, ∇F(v̄)⟩ and stays between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kfl.engine.fused import FusedNetwork, Prepared, Rows, move, prepare
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
    rates = network.rates(Descent({name: descent.rates[name] for name in plain}, descent.momentum))
    of_shared, of_personal = dict[str, Tensor](), dict[str, Tensor]()
    of_mixing: Tensor | None = None
    memory, batch = Rows(), None
    with network.arithmetic.products():
        for place, read in enumerate(steps):
            if batch is None or read is not steps[place - 1]:
                batch = prepare(network, read(), objective)
            share = {name: mixing.reshape(-1, *[1] * (value.dim() - 1)) for name, value in shared.items()}
            mixed = {name: torch.lerp(value, personal[name], share[name]) for name, value in shared.items()}
            _push(network, shared, of_shared, batch, memory, rates, descent.momentum)
            slope: State = {}
            _push(network, mixed, slope, batch, memory, rates, 0.0)
            apart = [((personal[name] - shared[name]) * slope[name]).flatten(1).sum(1) for name in slope]
            towards = torch.stack(apart).sum(0)
            of_mixing = towards if of_mixing is None else of_mixing.mul_(descent.momentum).add_(towards)
            for name, value in slope.items():
                own = of_personal.get(name)
                moved = share[name] * value if own is None else own.mul_(descent.momentum).addcmul_(value, share[name])
                of_personal[name] = moved
            move(shared, of_shared, rates)
            move(personal, of_personal, rates)
            mixing = mixing.sub(of_mixing, alpha=descent.rates.get(MIXING, 0.0)).clamp_(0.0, 1.0)
    trained = {PERSONAL + name: value for name, value in network.taken_apart(personal).items()}
    return {**network.taken_apart(shared), **trained, MIXING: mixing}


def _push(
    network: FusedNetwork,
    weights: State,
    velocity: State,
    batch: Prepared,
    memory: Rows,
    rates: dict[str, float],
    momentum: float,
) -> None:
    tape = network.forward(weights, batch.inputs, memory, keep=True)
    network.push(weights, velocity, batch, tape, rates, momentum)
