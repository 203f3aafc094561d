"""A step of training, written once: a network bound to one device's weights, and gradient descent on any objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kfl.engine.base import RoundKey, Sgd
from kfl.engine.layers import Layers, step_seed
from kfl.engine.objectives import Objective
from kfl.engine.precision import Arithmetic
from kfl.models import State, parts
from kfl.models.network import tied, with_ties

if TYPE_CHECKING:
    from kfl.engine.objectives import Forward

Batch = tuple[Tensor, Tensor, AbstractContextManager[object]]
"""Inputs and targets of a step, and what its layers have besides their inputs."""


class Network:
    """A module whose weights are replaced from device to device, as one thread uses it."""

    def __init__(self, module: nn.Module, first: int | None = None) -> None:
        """`first` is the place in the body of a first dense layer that may be rewritten (`sample_space`)."""
        self.module, self.first = module, first
        self.body, self.head = parts(module)
        self.ties = tied(module)
        self.buffers = {name for name, _ in module.named_buffers()}
        self.values = self._values()

    def load(self, state: State, *, training: bool) -> None:
        """Take the weights and buffers of a state; entries of other models next to them are left alone."""
        self.module.train(training)
        self.values = self._values()
        names = [name for name in self.values if name not in self.ties]
        for name in names:
            if name not in state:
                raise RuntimeError(f"The state has no {name}, which the network needs.")
            own, given = list(self.values[name].shape), list(state[name].shape)
            if own != given:
                raise RuntimeError(f"{name} has the shape {given}, but the network's is {own}.")
        with torch.no_grad():
            torch._foreach_copy_([self.values[name] for name in names], [state[name] for name in names])

    def _values(self) -> State:
        """Parameters and buffers as the module holds them now: a layer may have replaced a buffer."""
        found = self.module.state_dict(keep_vars=True)
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    @property
    def first_layer(self) -> nn.Linear:
        """The dense layer at `first`."""
        assert self.first is not None and isinstance(self.body, nn.Sequential)
        layer = self.body[self.first]
        assert isinstance(layer, nn.Linear)
        return layer

    @property
    def first_name(self) -> str:
        """Its name in the state: "body.1"."""
        assert self.first is not None
        return f"body.{list(self.body._modules)[self.first]}"

    def features(self, inputs: Tensor, *, after_first: bool = False) -> Tensor:
        """The output of the body, or of what comes after its first dense layer."""
        layers = self.body
        if after_first:
            assert self.first is not None and isinstance(layers, nn.Sequential)
            layers = layers[self.first + 1 :]
        found: Tensor = layers(inputs)
        return found

    def state(self) -> State:
        """Copies of the weights and buffers, as they are now."""
        return {name: value.detach().clone() for name, value in self._values().items()}


class Bound:
    """A network bound to the weights of one device: its parameters are the leaves that autograd follows."""

    def __init__(self, network: Network, state: State, rates: Mapping[str, float], arithmetic: Arithmetic) -> None:
        """`rates` are the learning rates of the entries that move. The state that is given is never changed."""
        self.network, self.arithmetic = network, arithmetic
        network.load(state, training=True)
        # A second model in the same state, such as a personal one, has leaves of its own.
        self.leaves: State = {
            name: network.values[name] if name in network.values else value.clone() for name, value in state.items()
        }
        self.rates = {name: rate for name, rate in rates.items() if name not in network.ties}
        for name, value in self.leaves.items():
            if name not in network.buffers:
                value.requires_grad_(False)
        for name in self.rates:
            self.leaves[name].requires_grad_()
        self._functional = as_function(network.module)

    @property
    def moving(self) -> list[Tensor]:
        """The tensors whose gradients are taken."""
        return [self.leaves[name] for name in self.rates]

    def forward(self, state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits. With the bound weights the module is called as it is, with others as a function."""
        with self.arithmetic.autocast():
            if all(state.get(name) is self.leaves.get(name) for name in self.network.values):
                feature = self.network.body(inputs)
                logits = self.network.head(feature)
            else:
                feature, logits = self._functional(state, inputs)
        # The loss is computed in the type of the weights.
        return feature.to(self.arithmetic.dtype), logits.to(self.arithmetic.dtype)

    def step(self, speeds: Sequence[Tensor | None]) -> None:
        """w ← w − η v for everything in `moving`."""
        step(self.moving, list(self.rates.values()), speeds)

    def project(self, objective: Objective) -> None:
        """Bring parameters back to where they may be."""
        for name in self.rates:
            self.leaves[name].copy_(objective.project(name, self.leaves[name].detach()))

    def state(self) -> State:
        """The weights, under the names of the state that was given."""
        own = self.network.state()
        found = {name: own[name] if name in own else value.detach() for name, value in self.leaves.items()}
        return with_ties(found, self.network.ties, copies=True)


def descend(bound: Bound, objective: Objective, momentum: float, batches: Iterable[Batch]) -> State:
    """Equations (7) and (8): w ← w − η v with v ← m v + ∇, once per batch; returns the trained state."""
    speeds: list[Tensor | None] = [None] * len(bound.moving)
    projects = type(objective).project is not Objective.project
    for inputs, targets, layers in batches:
        with torch.enable_grad(), layers:
            loss = objective.loss(bound.forward, bound.leaves, inputs, targets)
        gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, bound.moving, allow_unused=True)
        with torch.no_grad():
            if objective.gradient_limit is not None:
                gradients = limited(gradients, objective.gradient_limit)
            add_momentum(speeds, momentum, gradients)
            bound.step(speeds)
            if projects:
                bound.project(objective)
    with torch.no_grad():
        return bound.state()


def limited(gradients: Sequence[Tensor | None], limit: float) -> list[Tensor | None]:
    """Return gradients scaled so that all together have at most a norm.

    >>> limited([torch.tensor([3.0]), None, torch.tensor([4.0])], 1.0)
    [tensor([0.6000]), None, tensor([0.8000])]
    """
    squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
    factor = (limit / torch.stack(squares).sum().sqrt()).clamp(max=1.0)
    return [None if gradient is None else gradient * factor for gradient in gradients]


def add_momentum(speeds: list[Tensor | None], momentum: float, gradients: Sequence[Tensor | None]) -> None:
    """v ← m v + ∇ in place; the first gradient of a parameter is its first v."""
    pairs = [(v, g) for v, g in zip(speeds, gradients, strict=True) if v is not None and g is not None]
    if pairs:
        kept, new = [v for v, _ in pairs], [g for _, g in pairs]
        torch._foreach_mul_(kept, momentum)
        torch._foreach_add_(kept, new)
    for index, gradient in enumerate(gradients):
        if gradient is not None and speeds[index] is None:
            speeds[index] = gradient.clone()  # gradients of two parameters may be one tensor


def step(weights: Sequence[Tensor], rates: Sequence[float], speeds: Sequence[Tensor | None]) -> None:
    """w ← w − η v, all of one rate in one operation."""
    for rate in dict.fromkeys(rates):
        pairs = [(w, v) for w, own, v in zip(weights, rates, speeds, strict=True) if own == rate and v is not None]
        if pairs:
            torch._foreach_add_([w for w, _ in pairs], [v for _, v in pairs], alpha=-rate)


def as_function(module: nn.Module) -> Forward:
    """A module as a pure function (parameters, inputs) → (features, logits)."""
    body, head = parts(module)
    ties = tied(module)

    def forward(state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
        state = with_ties(state, ties)
        feature = functional_call(body, _part(state, "body."), (inputs,))
        return feature, functional_call(head, _part(state, "head."), (feature,))

    return forward


def _part(state: State, prefix: str) -> State:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


def batches(samples: int, sgd: Sgd, key: RoundKey, device: int) -> Iterator[Tensor | None]:
    """The index sets of each step: None stands for all samples."""
    for number in range(sgd.steps):
        if sgd.batch_size is None or sgd.batch_size >= samples:
            yield None
        else:
            generator = torch.Generator().manual_seed(key.torch_seed("batches", device, number))
            yield from torch.randperm(samples, generator=generator).split(sgd.batch_size)


def batches_per_pass(samples: int, sgd: Sgd) -> int:
    """How many steps one pass over a device's samples takes; 0 stands for one step over all of them."""
    if sgd.batch_size is None or sgd.batch_size >= samples:
        return 0
    return -(-samples // sgd.batch_size)


def layers_of_step(seed: Tensor | None, number: int, samples: int) -> AbstractContextManager[object]:
    """What the layers of a step have besides their inputs; nothing for most."""
    if seed is not None:
        return Layers(seed=step_seed(seed, number))
    return Layers() if samples == 1 else nullcontext()
