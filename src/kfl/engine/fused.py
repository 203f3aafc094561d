"""Training of known networks with every product written out: forward, backward and momentum for a whole cohort.

For a dense layer a' = relu(a Wᵀ + b) with dz the loss's gradient at its pre-activation,

    dW = dzᵀ a,    db = Σ dz,    da = dz W,    v ← m v + dW,    W ← W − η v.

What a GPU waits for here is small operations and memory more than products, so there are few of them. Biases are one
more column of the weights, and activations have a column of ones: a Wᵀ and dzᵀ a then include b and db. The gradient
is added to m v inside the product itself, so it never exists on its own, and all weights move in one operation. At the
head, dz = (softmax − one-hot) / n, and the pull of equation (6) adds λ (h − Ω_y) / n to the feature's gradient. For
distillation, dz = T (softmax(z/T) − softmax(z*/T)) / n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kfl.engine.arithmetic import adds_up_wide
from kfl.engine.convolutions import Convolutions
from kfl.engine.objectives import Distillation, FeatureTargets, Objective, Supervised
from kfl.engine.vectorised import Batch, Descent

if TYPE_CHECKING:
    from kfl.engine.arithmetic import Arithmetic
    from kfl.engine.recipe import Dense, Recipe
    from kfl.models import State


ALIGNMENT = 8
"""Rows of matrices are filled up to a multiple of this many numbers: products are slow where they begin anywhere."""


def row_length(size: int) -> int:
    """How long a row of `size` numbers is with its one and what it is filled up with.

    >>> row_length(64), row_length(784)
    (72, 792)
    """
    return -(-(size + 1) // ALIGNMENT) * ALIGNMENT


class Activations:
    """Memory for activations, (devices, samples, row length): after the numbers of a row a 1, then zeros.

    Asked for again under the same name, it is the same memory: steps write over what the step before left.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.Size], Tensor] = {}

    def take(self, name: str, like: Tensor, size: int, dtype: torch.dtype, *, tall: bool = False) -> Tensor:
        """Rows of `size` numbers for the devices and samples of `like`; with `tall`, columns lie together in memory."""
        key = (name, like.shape[:2])
        if key not in self._kept:
            devices, samples = like.shape[:2]
            shape = (devices, row_length(size), samples) if tall else (devices, samples, row_length(size))
            rows = torch.empty(shape, dtype=dtype, device=like.device)
            rows = rows.transpose(1, 2) if tall else rows
            rows[..., size:].zero_()
            rows[..., size].fill_(1)
            self._kept[key] = rows
        return self._kept[key]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch in the form the steps need, made once where all steps see the same samples."""

    inputs: Tensor
    wanted: Tensor
    """What the softmax should be."""
    temperature: float
    share: Tensor | float
    """Weight of each sample, (devices, samples, 1), or one number for all; times the temperature."""
    goal: Tensor | None
    pull: Tensor | float


@dataclass(eq=False)
class Tape:
    """What the backward pass needs of the forward pass."""

    convolved: object
    activations: list[Tensor]
    """Input of each dense layer of the body, then the feature: rows with their one."""
    logits: Tensor


@dataclass(frozen=True, eq=False)
class FusedNetwork:
    """A known network for a cohort. Its weights are those of `joined`."""

    recipe: Recipe
    arithmetic: Arithmetic
    convolutions: Convolutions | None
    """None for a network without any."""

    @property
    def layers(self) -> tuple[Dense, ...]:
        """All dense layers."""
        return (*self.recipe.dense, self.recipe.head)

    def joined(self, state: State) -> State:
        """A state with each dense layer as one tensor under the layer's name: weights, biases, zeros."""
        found = {name: state[name] for layer in self.recipe.convolutions for name in _names(layer.name)}
        for layer in self.layers:
            weight, bias = (state[name] for name in _names(layer.name))
            rest = weight.new_zeros(*bias.shape, row_length(layer.inputs) - layer.inputs - 1)
            found[layer.name] = torch.cat([weight, bias.unsqueeze(2), rest], 2)
        return found

    def taken_apart(self, joined: State) -> State:
        """The state that was joined, with weights and biases as views."""
        found = {name: joined[name] for layer in self.recipe.convolutions for name in _names(layer.name)}
        for layer in self.layers:
            weight, bias = _names(layer.name)
            found[weight] = joined[layer.name][..., : layer.inputs]
            found[bias] = joined[layer.name][..., layer.inputs]
        return found

    def of_joined(self, descent: Descent) -> Descent:
        """The same rates for joined tensors. Weights and biases of a layer have one rate."""
        convolutions = {name for layer in self.recipe.convolutions for name in _names(layer.name)}
        rates = {name: rate for name, rate in descent.rates.items() if name in convolutions}
        for layer in self.layers:
            weight, bias = (descent.rates.get(name, 0.0) for name in _names(layer.name))
            assert weight == bias, "the weights and the biases of a layer have different rates"
            if weight:
                rates[layer.name] = weight
        return Descent(rates, descent.momentum)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs (devices, samples, *shape) as the first layer wants them."""
        if self.convolutions is not None:
            return self.convolutions.prepare(inputs)
        return self._in_rows(inputs.flatten(2), Activations())

    def _in_rows(self, values: Tensor, memory: Activations) -> Tensor:
        size, tall = values.shape[2], values.stride(1) == 1
        rows = memory.take("inputs", values, size, self.arithmetic.factor_dtype, tall=tall)
        rows[..., :size].copy_(values)
        return rows

    def forward(self, weights: State, inputs: Tensor, memory: Activations, *, keep: bool) -> Tape:
        """The forward pass of all devices; without `keep` there is nothing for a backward pass."""
        convolved: object = None
        value = inputs
        if self.convolutions is not None:
            features, convolved = self.convolutions.forward(self.recipe.convolutions, weights, inputs, keep=keep)
            value = self._in_rows(features, memory)
        activations = [value]
        for layer in self.recipe.dense:
            rows = memory.take(layer.name, value, layer.outputs, value.dtype)
            torch.bmm(value, self._factor(weights[layer.name]).transpose(1, 2), out=rows[..., : layer.outputs])
            # The one and the zeros of a row are no different after a ReLU.
            value = rows.relu_() if layer.rectified else rows
            activations.append(value)
        return Tape(convolved, activations, self.logits(weights, value))

    def logits(self, weights: State, feature: Tensor) -> Tensor:
        """What the head says."""
        return torch.bmm(feature, self._factor(weights[self.recipe.head.name]).transpose(1, 2))

    def feature(self, tape: Tape) -> Tensor:
        """The feature of each sample."""
        return tape.activations[-1][..., : self.recipe.head.inputs]

    def _factor(self, value: Tensor) -> Tensor:
        return value.to(self.arithmetic.factor_dtype)

    def step(self, weights: State, velocity: State, batch: Prepared, tape: Tape, descent: Descent) -> None:
        """One step of gradient descent with momentum from a finished forward pass; changes weights and velocity."""
        self.push(weights, velocity, batch, tape, descent)
        move(weights, velocity, descent)

    def push(self, weights: State, velocity: State, batch: Prepared, tape: Tape, descent: Descent) -> None:
        """v ← m v + gradient of what has a rate. From an empty velocity, that is the gradient."""
        found = self._backward(weights, velocity, batch, tape, descent)
        moving = [name for name in found if name in velocity]
        if moving:
            into = [velocity[name] for name in moving]
            torch._foreach_mul_(into, descent.momentum)
            torch._foreach_add_(into, [found[name] for name in moving])
        velocity.update({name: value for name, value in found.items() if name not in velocity})

    def _backward(self, weights: State, velocity: State, batch: Prepared, tape: Tape, descent: Descent) -> State:
        """The gradients, but for those that went into the velocity at once."""
        logits = tape.logits.to(self.arithmetic.dtype)
        logits = logits if batch.temperature == 1 else logits / batch.temperature
        gradient = torch.softmax(logits, dim=2).sub_(batch.wanted).mul_(batch.share)
        layers, rates = self.layers, descent.rates
        moving = [place for place, layer in enumerate(layers) if layer.name in rates]
        convolves = any(name in rates for layer in self.recipe.convolutions for name in _names(layer.name))
        last = -1 if convolves else min(moving, default=len(layers))
        found: State = {}
        for place in reversed(range(max(last, 0), len(layers))):
            layer, value = layers[place], tape.activations[place]
            # A pre-activation that ReLU cut off passes no gradient. The head has no ReLU.
            if layer.rectified:
                gradient = torch.ops.aten.threshold_backward(gradient, tape.activations[place + 1], 0)
            factor = self._factor(gradient)[..., : layer.outputs]
            if layer.name in rates:
                if factor.dtype != self.arithmetic.dtype:
                    found[layer.name] = self._rounded_product(factor, value)
                elif layer.name in velocity:
                    velocity[layer.name].baddbmm_(factor.transpose(1, 2), value, beta=descent.momentum)
                else:
                    velocity[layer.name] = torch.bmm(factor.transpose(1, 2), value)
            if place == last:
                return found
            gradient = self._passed_down(weights, layer, factor, transposed=place == 0)
            if place == len(layers) - 1 and batch.goal is not None:
                # The feature is where the pull acts.
                exact = self.arithmetic.dtype
                own = gradient[..., : layer.inputs]
                away = self.feature(tape).to(exact) - batch.goal
                own.copy_(own.to(exact).addcmul_(away, torch.as_tensor(batch.pull)))
        if convolves and self.convolutions is not None:
            of_convolutions = self.convolutions.backward(self.recipe.convolutions, weights, tape.convolved, gradient)
            found |= {name: value for name, value in of_convolutions if name in rates}
        return found

    def _passed_down(self, weights: State, layer: Dense, factor: Tensor, *, transposed: bool) -> Tensor:
        """da = dz W, in rows as long as those of a, whose ends nobody reads. Towards convolutions: in their order."""
        weight = self._factor(weights[layer.name])[..., : layer.inputs]
        if transposed:
            return torch.bmm(weight.transpose(1, 2), factor.transpose(1, 2)).transpose(1, 2)
        rows = factor.new_empty(*factor.shape[:2], row_length(layer.inputs))
        torch.bmm(factor, weight, out=rows[..., : layer.inputs])
        return rows

    def _rounded_product(self, factor: Tensor, value: Tensor) -> Tensor:
        """dzᵀ a of rounded factors, added up and returned in float32 where the processor can."""
        if adds_up_wide(factor.device.type):
            return torch.bmm(factor.transpose(1, 2), value, out_dtype=self.arithmetic.dtype)
        return torch.bmm(factor.transpose(1, 2), value).to(self.arithmetic.dtype)


def _names(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


def move(weights: State, velocity: State, descent: Descent) -> None:
    """w ← w − η v, all of one rate in one operation."""
    for rate in dict.fromkeys(descent.rates.values()):
        names = [name for name, own in descent.rates.items() if own == rate]
        torch._foreach_add_([weights[name] for name in names], [velocity[name] for name in names], alpha=-rate)


@torch.no_grad()
def train_fused(
    network: FusedNetwork,
    state: State,
    steps: Sequence[Callable[[], Batch]],
    objective: Supervised | Distillation,
    descent: Descent,
) -> State:
    """Descend an objective, once per entry of `steps`. May change the stacked state given."""
    weights, velocity = network.joined(state), dict[str, Tensor]()
    descent = network.of_joined(descent)
    batch: Prepared | None = None
    tape: Tape | None = None
    memory = Activations()
    body_moves = any(name != network.recipe.head.name for name in descent.rates)
    with network.arithmetic.products():
        for place, read in enumerate(steps):
            same = place > 0 and read is steps[place - 1]
            if batch is None or not same:
                batch = prepare(network, read(), objective)
            if tape is None or body_moves or not same:
                tape = network.forward(weights, batch.inputs, memory, keep=True)
            else:
                # Same samples, same body: only the head has anything new to say.
                tape.logits = network.logits(weights, tape.activations[-1])
            network.step(weights, velocity, batch, tape, descent)
    return network.taken_apart(weights)


def prepare(network: FusedNetwork, batch: Batch, objective: Objective) -> Prepared:
    """A batch for the steps. Of `Mixture` it is the plain loss, in which both of its models are judged."""
    inputs, targets, weights = batch
    dtype = network.arithmetic.dtype
    share = 1.0 / targets.shape[1] if weights is None else weights.to(dtype).unsqueeze(-1)
    ready = network.prepare(inputs)
    if isinstance(objective, Distillation):
        temperature = objective.temperature
        wanted = torch.softmax(targets.to(dtype) / temperature, dim=2)
        return Prepared(ready, wanted, temperature, share * temperature, None, 0.0)
    classes = torch.arange(network.recipe.head.outputs, device=targets.device)
    wanted = (targets.unsqueeze(-1) == classes).to(dtype)
    pull = objective.pull if isinstance(objective, Supervised) else None
    if pull is None:
        return Prepared(ready, wanted, 1.0, share, None, 0.0)
    goal, strength = _goals(pull, targets)
    return Prepared(ready, wanted, 1.0, share, goal.to(dtype), strength.to(dtype) * share)


def _goals(pull: FeatureTargets, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample its target (devices, samples, features), and λ where its class has one, else 0."""
    if pull.targets.dim() == 2:
        goal, known = pull.targets[labels], pull.known[labels]
    else:
        device = torch.arange(len(labels), device=labels.device)[:, None]
        goal, known = pull.targets[device, labels], pull.known[device, labels]
    return goal, pull.weight * known.to(goal.dtype).unsqueeze(-1)


@torch.no_grad()
def run_fused(network: FusedNetwork, state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of a cohort; inputs have one row per device."""
    with network.arithmetic.products():
        tape = network.forward(network.joined(state), network.prepare(inputs), Activations(), keep=False)
    dtype = network.arithmetic.dtype
    return network.feature(tape).to(dtype), tape.logits.to(dtype)
