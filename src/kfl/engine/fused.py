"""Training of known networks with every product written out: forward, backward and momentum for a whole cohort.

For a dense layer a' = relu(a Wᵀ + b) with dz the loss's gradient at its pre-activation,

    dW = dzᵀ a,    db = Σ dz,    da = dz W,    v ← m v + dW,    W ← W − η v.

The gradient of the weights is added to m v inside the matrix product itself, so it never exists on its own; all
weights then move in one operation, since to a GPU many small ones are mostly gaps. At the head,
dz = (softmax − one-hot) / n, and the pull of equation (6) adds λ (h − Ω_y) / n to the feature's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kfl.engine.arithmetic import adds_up_wide
from kfl.engine.convolutions import Convolutions
from kfl.engine.vectorised import Batch, Descent

if TYPE_CHECKING:
    from kfl.engine.arithmetic import Arithmetic
    from kfl.engine.recipe import Dense, Recipe
    from kfl.models import State


@dataclass(frozen=True, eq=False)
class Pull:
    """The pull on features: targets (classes, features) and known (classes,), or with a first axis of devices."""

    weight: float
    targets: Tensor
    known: Tensor

    def goals(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """For each sample its target (devices, samples, features), and λ where its class has one, else 0."""
        if self.targets.dim() == 2:
            goal, known = self.targets[labels], self.known[labels]
        else:
            device = torch.arange(len(labels), device=labels.device)[:, None]
            goal, known = self.targets[device, labels], self.known[device, labels]
        return goal, self.weight * known.to(goal.dtype).unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A batch in the form the steps need, made once where all steps see the same samples."""

    inputs: Tensor
    onehot: Tensor
    share: Tensor | float
    """Weight of each sample, (devices, samples, 1), or one number for all."""
    goal: Tensor | None
    pull: Tensor | float


@dataclass(eq=False)
class _Tape:
    """What the backward pass needs of the forward pass."""

    convolved: object
    activations: list[Tensor]
    """Input of each dense layer of the body, then the feature."""
    logits: Tensor


@dataclass(frozen=True, eq=False)
class FusedNetwork:
    """A known network for a cohort."""

    recipe: Recipe
    arithmetic: Arithmetic
    convolutions: Convolutions | None
    """None for a network without any."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs (devices, samples, *shape) as the first layer wants them."""
        if self.convolutions is not None:
            return self.convolutions.prepare(inputs)
        return inputs.flatten(2).to(self.arithmetic.factor_dtype)

    def forward(self, state: State, inputs: Tensor, *, keep: bool) -> _Tape:
        """The forward pass of all devices; without `keep` there is nothing for a backward pass."""
        convolved: object = None
        value = inputs
        if self.convolutions is not None:
            value, convolved = self.convolutions.forward(self.recipe.convolutions, state, inputs, keep=keep)
            value = value.to(self.arithmetic.factor_dtype)
        activations = [value]
        for layer in self.recipe.dense:
            value = self._dense(state, layer, value)
            activations.append(value)
        return _Tape(convolved, activations, self._dense(state, self.recipe.head, value))

    def _dense(self, state: State, layer: Dense, value: Tensor) -> Tensor:
        weight, bias = (self._factor(state[f"{layer.name}.{part}"]) for part in ("weight", "bias"))
        out = torch.baddbmm(bias.unsqueeze(1), value, weight.transpose(1, 2))
        return out.relu_() if layer.rectified else out

    def _factor(self, value: Tensor) -> Tensor:
        return value.to(self.arithmetic.factor_dtype)

    def step(self, state: State, velocity: State, batch: _Prepared, tape: _Tape, descent: Descent) -> None:
        """One step of gradient descent with momentum from a finished forward pass; changes state and velocity."""
        gradients = self._backward(state, velocity, batch, tape, descent)
        _accumulate(velocity, gradients, descent.momentum)
        for rate in dict.fromkeys(descent.rates.values()):
            names = [name for name, own in descent.rates.items() if own == rate]
            torch._foreach_add_([state[name] for name in names], [velocity[name] for name in names], alpha=-rate)

    def _backward(self, state: State, velocity: State, batch: _Prepared, tape: _Tape, descent: Descent) -> State:
        """The gradients, but for those that went into the velocity at once."""
        gradient = torch.softmax(tape.logits.to(self.arithmetic.dtype), dim=2).sub_(batch.onehot).mul_(batch.share)
        feature = tape.activations[-1]
        layers = [*self.recipe.dense, self.recipe.head]
        moving = [place for place, layer in enumerate(layers) if _moves(layer, descent)]
        convolves = any(_moves(layer, descent) for layer in self.recipe.convolutions)
        last = -1 if convolves else min(moving, default=len(layers))
        found: State = {}
        for place in reversed(range(max(last, 0), len(layers))):
            layer, value = layers[place], tape.activations[place]
            # A pre-activation that ReLU cut off passes no gradient. The head has no ReLU.
            if layer.rectified:
                gradient = torch.ops.aten.threshold_backward(gradient, tape.activations[place + 1], 0)
            factor = self._factor(gradient)
            found |= self._of_layer(velocity, layer, factor, gradient, value, descent)
            if place == last:
                return found
            gradient = self._passed_down(state, layer, factor, transposed=place == 0)
            if place == len(layers) - 1 and batch.goal is not None:
                # The feature is where the pull acts.
                gradient = gradient.to(self.arithmetic.dtype)
                gradient.addcmul_(feature.to(self.arithmetic.dtype) - batch.goal, torch.as_tensor(batch.pull))
                gradient = gradient.to(feature.dtype)
        if self.convolutions is not None:
            of_convolutions = self.convolutions.backward(self.recipe.convolutions, state, tape.convolved, gradient)
            found |= {name: value for name, value in of_convolutions if name in descent.rates}
        return found

    def _passed_down(self, state: State, layer: Dense, factor: Tensor, *, transposed: bool) -> Tensor:
        """da = dz W. Towards convolutions in (features, samples) order, which is theirs."""
        weight = self._factor(state[f"{layer.name}.weight"])
        if transposed:
            return torch.bmm(weight.transpose(1, 2), factor.transpose(1, 2)).transpose(1, 2)
        return torch.bmm(factor, weight)

    def _of_layer(
        self, velocity: State, layer: Dense, factor: Tensor, gradient: Tensor, value: Tensor, descent: Descent
    ) -> State:
        """dW and db of a layer; dW is not among them where it could be added to the velocity at once."""
        found: State = {}
        name = f"{layer.name}.weight"
        if name in descent.rates:
            if factor.dtype != self.arithmetic.dtype:
                found[name] = self._rounded_product(factor, value)
            elif name in velocity:
                velocity[name].baddbmm_(factor.transpose(1, 2), value, beta=descent.momentum)
            else:
                velocity[name] = torch.bmm(factor.transpose(1, 2), value)
        name = f"{layer.name}.bias"
        if name in descent.rates:
            found[name] = gradient.sum(1, dtype=self.arithmetic.dtype)
        return found

    def _rounded_product(self, factor: Tensor, value: Tensor) -> Tensor:
        """dzᵀ a of rounded factors, added up and returned in float32 where the processor can."""
        if adds_up_wide(factor.device.type):
            return torch.bmm(factor.transpose(1, 2), value, out_dtype=self.arithmetic.dtype)
        return torch.bmm(factor.transpose(1, 2), value).to(self.arithmetic.dtype)


def _moves(layer: object, descent: Descent) -> bool:
    name = getattr(layer, "name", "")
    return f"{name}.weight" in descent.rates or f"{name}.bias" in descent.rates


def _accumulate(velocity: State, gradients: State, momentum: float) -> None:
    """v ← m v + g."""
    moving = [name for name in gradients if name in velocity]
    if moving:
        into = [velocity[name] for name in moving]
        torch._foreach_mul_(into, momentum)
        torch._foreach_add_(into, [gradients[name] for name in moving])
    velocity.update({name: value for name, value in gradients.items() if name not in velocity})


@torch.no_grad()
def train_fused(
    network: FusedNetwork,
    state: State,
    steps: Sequence[Callable[[], Batch]],
    pull: Pull | None,
    descent: Descent,
) -> State:
    """Descend cross-entropy plus pull, once per entry of `steps`. Changes the stacked state and returns it."""
    velocity: State = {}
    batch: _Prepared | None = None
    tape: _Tape | None = None
    body_moves = any(not name.startswith("head.") for name in descent.rates)
    with network.arithmetic.products():
        for place, read in enumerate(steps):
            same = place > 0 and read is steps[place - 1]
            if batch is None or not same:
                batch = _prepare(network, read(), pull)
            if tape is None or body_moves or not same:
                tape = network.forward(state, batch.inputs, keep=True)
            else:
                # Same samples, same body: only the head has anything new to say.
                tape.logits = network._dense(state, network.recipe.head, tape.activations[-1])
            network.step(state, velocity, batch, tape, descent)
    return state


def _prepare(network: FusedNetwork, batch: Batch, pull: Pull | None) -> _Prepared:
    inputs, labels, weights = batch
    dtype = network.arithmetic.dtype
    classes = torch.arange(network.recipe.head.outputs, device=labels.device)
    onehot = (labels.unsqueeze(-1) == classes).to(dtype)
    share = 1.0 / labels.shape[1] if weights is None else weights.to(dtype).unsqueeze(-1)
    if pull is None:
        return _Prepared(network.prepare(inputs), onehot, share, None, 0.0)
    goal, strength = pull.goals(labels)
    return _Prepared(network.prepare(inputs), onehot, share, goal.to(dtype), strength.to(dtype) * share)


@torch.no_grad()
def run_fused(network: FusedNetwork, state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of a cohort; inputs have one row per device."""
    with network.arithmetic.products():
        tape = network.forward(state, network.prepare(inputs), keep=False)
    dtype = network.arithmetic.dtype
    return tape.activations[-1].to(dtype), tape.logits.to(dtype)
