"""Training of known networks with every product written out: forward, backward and momentum for a whole cohort.

For a dense layer a' = relu(a Wᵀ + b) with dz the loss's gradient at its pre-activation,

    dW = dzᵀ a,    db = Σ dz,    da = dz W,    v ← m v + dW,    W ← W − η v.

What a GPU waits for here is small operations and memory more than products, so there are few of them. Biases are one
more column of the weights, and activations have a column of ones: a Wᵀ and dzᵀ a then include b and db. The gradient
is added to m v inside the product itself, so it never exists on its own, and all weights move in one operation. The
gradients at the head's logits and at the feature are those of `closed_form`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.cuda.closed_form import OutputGradients
from kfl.engine.cuda.convolutions import Convolutions
from kfl.engine.descent import step
from kfl.engine.objectives import Descent, Objective
from kfl.engine.precision import Arithmetic, adds_up_wide
from kfl.engine.samples import Batch
from kfl.models import State
from kfl.models.network import Dense, Network

ALIGNMENT = 8
"""Rows of matrices are filled up to a multiple of this many numbers: products are slow where they begin anywhere."""


class Workspace:
    """Buffers by name, which are made once and handed out again."""

    def __init__(self) -> None:
        self._whole: dict[Hashable, Tensor] = {}

    def keep(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """A buffer that was prepared once, for those who leave alone what they do not write."""
        if key not in self._whole:
            self._whole[key] = make()
        return self._whole[key]


def row_length(size: int) -> int:
    """How long a row of `size` numbers is with its one and what it is filled up with.

    >>> row_length(64), row_length(784)
    (72, 792)
    """
    return -(-(size + 1) // ALIGNMENT) * ALIGNMENT


def take_rows(
    memory: Workspace, name: str, like: Tensor, size: int, dtype: torch.dtype, *, tall: bool = False
) -> Tensor:
    """Memory for activations, (devices, samples, row length): after the numbers of a row a 1, then zeros.

    Rows have `size` numbers, for the devices and samples of `like`; with `tall`, columns are contiguous. Asked
    for again under the same name, it is the same memory: steps write over what the step before left.
    """

    def make() -> Tensor:
        devices, samples = like.shape[:2]
        shape = (devices, row_length(size), samples) if tall else (devices, samples, row_length(size))
        rows = torch.empty(shape, dtype=dtype, device=like.device)
        rows = rows.transpose(1, 2) if tall else rows
        rows[..., size:].zero_()
        rows[..., size].fill_(1)
        return rows

    return memory.keep((name, like.shape[:2]), make)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch in the form the steps need, made once where all steps see the same samples."""

    inputs: Tensor
    outputs: OutputGradients


@dataclass(eq=False)
class Tape:
    """What the backward pass needs of the forward pass."""

    convolved: object
    activations: list[Tensor]
    """Input of each dense layer of the body, then the feature: rows with their one."""
    logits: Tensor


@dataclass(frozen=True, eq=False)
class CohortNetwork:
    """A known network for a cohort. Its weights are those of `joined`."""

    network: Network
    arithmetic: Arithmetic
    convolutions: Convolutions | None
    """None for a network without any."""

    @property
    def layers(self) -> tuple[Dense, ...]:
        """All dense layers."""
        return (*self.network.dense, self.network.head)

    def joined(self, state: State) -> State:
        """A state with each dense layer as one tensor under the layer's name: weights, biases, zeros."""
        found = {name: state[name] for layer in self.network.convolutions for name in _names(layer.name)}
        for layer in self.layers:
            weight, bias = (state[name] for name in _names(layer.name))
            rest = weight.new_zeros(*bias.shape, row_length(layer.inputs) - layer.inputs - 1)
            found[layer.name] = torch.cat([weight, bias.unsqueeze(2), rest], 2)
        return found

    def taken_apart(self, joined: State) -> State:
        """The state that was joined, with weights and biases as views."""
        found = {name: joined[name] for layer in self.network.convolutions for name in _names(layer.name)}
        for layer in self.layers:
            weight, bias = _names(layer.name)
            found[weight] = joined[layer.name][..., : layer.inputs]
            found[bias] = joined[layer.name][..., layer.inputs]
        return found

    def of_joined(self, descent: Descent) -> Descent:
        """The same rates for joined tensors. Weights and biases of a layer have one rate."""
        convolutions = {name for layer in self.network.convolutions for name in _names(layer.name)}
        rates = {name: rate for name, rate in descent.rates.items() if name in convolutions}
        for layer in self.layers:
            weight, bias = (descent.rates.get(name, 0.0) for name in _names(layer.name))
            assert weight == bias, "the weights and the biases of a layer have different rates"
            if weight:
                rates[layer.name] = weight
        return Descent(rates, descent.momentum)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Inputs (devices, samples, *shape) in the order of the first layer."""
        if self.convolutions is not None:
            return self.convolutions.prepare(inputs)
        return self._in_rows(inputs.flatten(2), Workspace())

    def prepare_batch(self, batch: Batch, objective: Objective) -> Prepared:
        """A batch for the steps."""
        inputs, targets, weights = batch
        ready = self.prepare(inputs)
        classes, dtype = self.network.head.outputs, self.arithmetic.dtype
        return Prepared(ready, OutputGradients.for_cohort(objective, targets, classes, dtype, weights))

    def _in_rows(self, values: Tensor, memory: Workspace) -> Tensor:
        size, tall = values.shape[2], values.stride(1) == 1
        rows = take_rows(memory, "inputs", values, size, self.arithmetic.factor_dtype, tall=tall)
        rows[..., :size].copy_(values)
        return rows

    def forward(self, weights: State, inputs: Tensor, memory: Workspace, *, keep: bool) -> Tape:
        """The forward pass of all devices; without `keep` there is nothing for a backward pass."""
        convolved: object = None
        value = inputs
        if self.convolutions is not None:
            features, convolved = self.convolutions.forward(self.network.convolutions, weights, inputs, keep=keep)
            value = self._in_rows(features, memory)
        activations = [value]
        for layer in self.network.dense:
            rows = take_rows(memory, layer.name, value, layer.outputs, value.dtype)
            torch.bmm(value, self._factor(weights[layer.name]).transpose(1, 2), out=rows[..., : layer.outputs])
            # The one and the zeros of a row are no different after a ReLU.
            value = rows.relu_() if layer.rectified else rows
            activations.append(value)
        return Tape(convolved, activations, self.logits(weights, value))

    def logits(self, weights: State, feature: Tensor) -> Tensor:
        """The output of the head."""
        return torch.bmm(feature, self._factor(weights[self.network.head.name]).transpose(1, 2))

    def feature(self, tape: Tape) -> Tensor:
        """The feature of each sample."""
        return tape.activations[-1][..., : self.network.head.inputs]

    def _factor(self, value: Tensor) -> Tensor:
        return value.to(self.arithmetic.factor_dtype)

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
        outputs = batch.outputs
        gradient = outputs.at_logits(tape.logits)
        layers, rates = self.layers, descent.rates
        moving = [index for index, layer in enumerate(layers) if layer.name in rates]
        convolves = any(name in rates for layer in self.network.convolutions for name in _names(layer.name))
        last = -1 if convolves else min(moving, default=len(layers))
        found: State = {}
        for index in reversed(range(max(last, 0), len(layers))):
            layer, value = layers[index], tape.activations[index]
            # A pre-activation that ReLU cut off passes no gradient. The head has no ReLU.
            if layer.rectified:
                gradient = torch.ops.aten.threshold_backward(gradient, tape.activations[index + 1], 0)
            factor = self._factor(gradient)[..., : layer.outputs]
            if layer.name in rates:
                if factor.dtype != self.arithmetic.dtype:
                    found[layer.name] = self._rounded_product(factor, value)
                elif layer.name in velocity:
                    velocity[layer.name].baddbmm_(factor.transpose(1, 2), value, beta=descent.momentum)
                else:
                    velocity[layer.name] = torch.bmm(factor.transpose(1, 2), value)
            if index == last:
                return found
            gradient = self._passed_down(weights, layer, factor, transposed=index == 0)
            if index == len(layers) - 1 and outputs.feature_targets is not None:
                # The pull acts on the feature.
                exact = self.arithmetic.dtype
                own = gradient[..., : layer.inputs]
                away = self.feature(tape).to(exact) - outputs.feature_targets
                own.copy_(own.to(exact).addcmul_(away, torch.as_tensor(outputs.pull)))
        if convolves and self.convolutions is not None:
            of_convolutions = self.convolutions.backward(self.network.convolutions, weights, tape.convolved, gradient)
            found |= {name: value for name, value in of_convolutions if name in rates}
        return found

    def _passed_down(self, weights: State, layer: Dense, factor: Tensor, *, transposed: bool) -> Tensor:
        """da = dz W, in rows as long as those of a, whose ends are not read. Toward convolutions: in their order."""
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
    """w ← w − η v."""
    names = descent.rates
    step([weights[name] for name in names], list(names.values()), [velocity[name] for name in names])


@torch.no_grad()
def train_cohort(
    network: CohortNetwork, state: State, steps: Sequence[Callable[[], Batch]], objective: Objective, descent: Descent
) -> State:
    """Descend a loss, once per entry of `steps`. May change the stacked state given."""
    weights, velocity = network.joined(state), dict[str, Tensor]()
    descent = network.of_joined(descent)
    tape: Tape | None = None
    before: Prepared | None = None
    memory = Workspace()
    body_moves = any(name != network.network.head.name for name in descent.rates)
    with network.arithmetic.products():
        for batch in prepared(network, steps, objective):
            if tape is None or body_moves or batch is not before:
                tape = network.forward(weights, batch.inputs, memory, keep=True)
            else:
                # Same samples, same body: only the logits are new.
                tape.logits = network.logits(weights, tape.activations[-1])
            network.push(weights, velocity, batch, tape, descent)
            move(weights, velocity, descent)
            before = batch
    return network.taken_apart(weights)


def prepared(network: CohortNetwork, steps: Sequence[Callable[[], Batch]], objective: Objective) -> Iterator[Prepared]:
    """The batch of each step; neighbors that read the same samples have the same batch."""
    for index, read in enumerate(steps):
        if index == 0 or read is not steps[index - 1]:
            batch = network.prepare_batch(read(), objective)
        yield batch


@torch.no_grad()
def run_cohort(network: CohortNetwork, state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of a cohort; inputs have one row per device."""
    with network.arithmetic.products():
        tape = network.forward(network.joined(state), network.prepare(inputs), Workspace(), keep=False)
    dtype = network.arithmetic.dtype
    return network.feature(tape).to(dtype), tape.logits.to(dtype)
