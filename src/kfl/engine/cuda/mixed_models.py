"""A shared and a personal model at once: the steps of APFL (`kfl.engine.Mixture`).

With w the shared model, v the personal one and v̄ = α v + (1 − α) w, all at the start of a step,

    w moves along ∇F(w),    v along α ∇F(v̄),    α along ⟨v − w, ∇F(v̄)⟩ and stays between 0 and 1.

So a step is two gradients of the plain loss, and a few sums over the weights. Those are written for one device
(`cpu.mixture`) and for a cohort (`cuda.mixture`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.objectives import MIXING, PERSONAL, Descent
from kfl.models import State


class Mixable(ABC):
    """A network on the samples of one step, and sums over its weights. All weights move."""

    @abstractmethod
    def push(self, weights: State, velocity: State) -> None:
        """v ← m v + ∇F(w); from an empty velocity, v = ∇F(w)."""

    @abstractmethod
    def gradient(self, weights: State) -> State:
        """∇F(w); may be overwritten by the next call of this object."""

    @abstractmethod
    def mix(self, shared: State, personal: State, mixing: Tensor) -> State:
        """α v + (1 − α) w; may be overwritten by the next call of this object."""

    @abstractmethod
    def along(self, shared: State, personal: State, gradient: State, mixing: Tensor) -> Tensor:
        """⟨v − w, ∇⟩, in the shape of α. May overwrite what `mix` returned."""

    @abstractmethod
    def push_share(self, velocity: State, gradient: State, mixing: Tensor) -> None:
        """v ← m v + α ∇; from an empty velocity, v = α ∇."""


@dataclass(eq=False)
class MixedModels:
    """The shared and the personal weights by the same names, and how they are mixed; changed in place."""

    shared: State
    personal: State
    mixing: Tensor

    def train(self, steps: Iterable[Mixable], descent: Descent, mixing_rate: float) -> None:
        """One step for each entry of `steps`; `descent` has the rates of both models."""
        shared_velocity, personal_velocity = dict[str, Tensor](), dict[str, Tensor]()
        mixing_velocity: Tensor | None = None
        for step in steps:
            mixed = step.mix(self.shared, self.personal, self.mixing)
            step.push(self.shared, shared_velocity)
            gradient = step.gradient(mixed)
            along = step.along(self.shared, self.personal, gradient, self.mixing)
            mixing_velocity = along if mixing_velocity is None else mixing_velocity.mul_(descent.momentum).add_(along)
            step.push_share(personal_velocity, gradient, self.mixing)
            move(self.shared, shared_velocity, descent)
            move(self.personal, personal_velocity, descent)
            self.mixing = self.mixing.sub(mixing_velocity, alpha=mixing_rate).clamp_(0.0, 1.0)


def move(weights: State, velocity: State, descent: Descent) -> None:
    """w ← w − η v, all of one rate in one operation."""
    for rate in dict.fromkeys(descent.rates.values()):
        names = [name for name, own in descent.rates.items() if own == rate]
        torch._foreach_add_([weights[name] for name in names], [velocity[name] for name in names], alpha=-rate)


def split_mixture(state: State) -> tuple[State, State, Tensor]:
    """The shared and the personal model of a state, both by the names of the shared one, and α."""
    shared = {name: value for name, value in state.items() if name != MIXING and not name.startswith(PERSONAL)}
    return shared, {name: state[PERSONAL + name] for name in shared}, state[MIXING]


def join_mixture(shared: State, personal: State, mixing: Tensor) -> State:
    """The state that was split."""
    return {**shared, **{PERSONAL + name: value for name, value in personal.items()}, MIXING: mixing}
