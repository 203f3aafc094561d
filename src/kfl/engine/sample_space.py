"""Rewrite of training: a first dense layer descends in the space of the samples.

The first layer is most of the work of a dense network, and its input X never changes in full-batch steps. With
Z = X W₁ᵀ + b₁ and S_t = ∂/∂Z at step t, the gradient is ∂/∂W₁ = S_tᵀ X, so gradient descent with momentum m and rate η
moves Z by products with X Xᵀ alone:

    Q_t = m Q_{t−1} + S_t,    Z_{t+1} = Z_t − η (X Xᵀ + 1) Q_t,    W₁ ← W₁ − η (Σ_t Q_t)ᵀ X  once at the end

(the 1 in every entry is the bias, an input that is always one). Two products with n × d per step become one with
n × n. Autograd follows Z in the place of W₁ and b₁; all other layers are as ever. Columns of X that are zero for a
device, as at the edges of digits, have no gradient and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kfl.engine.cache import own_pages, tensor_bytes
from kfl.engine.descent import Bound, Network, step
from kfl.engine.objectives import Objective
from kfl.engine.precision import Arithmetic
from kfl.models import State

WORTH_SKIPPING = 0.9
"""Zero columns are left out where fewer than this part of the columns remain."""
ROWS_WORTH_SKIPPING = 200
"""With fewer samples, picking columns of the weights takes longer than the products it saves."""


@dataclass(frozen=True, eq=False)
class FlatSamples:
    """Inputs as rows, in the type of the products."""

    rows: Tensor
    columns: Tensor | None
    """Which columns of the inputs these are; None for all."""

    @staticmethod
    def of(inputs: Tensor, arithmetic: Arithmetic) -> FlatSamples:
        """Flatten inputs and leave out columns that are zero throughout, where that saves time."""
        rows = inputs.reshape(len(inputs), -1)
        columns = None
        if len(rows) >= ROWS_WORTH_SKIPPING:
            used = rows.ne(0).any(0)
            if int(used.sum()) < WORTH_SKIPPING * len(used):
                columns = used.nonzero().squeeze(1)
                rows = rows.index_select(1, columns)
        return FlatSamples(own_pages(*rows.shape, dtype=arithmetic.factor_dtype).copy_(rows), columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice) -> FlatSamples:
        return FlatSamples(self.rows[some], self.columns)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return tensor_bytes(self.rows, self.columns)

    def gram(self) -> Tensor:
        """X Xᵀ + 1."""
        count = len(self.rows)
        return torch.mm(self.rows, self.rows.t(), out=own_pages(count, count, dtype=self.rows.dtype)).add_(1.0)

    def through(self, first: nn.Linear) -> Tensor:
        """Z = X W₁ᵀ + b₁, in the type of the weights."""
        weight = first.weight if self.columns is None else first.weight.index_select(1, self.columns)
        if self.rows.dtype == weight.dtype:
            return torch.addmm(first.bias, self.rows, weight.t())
        return torch.mm(self.rows, weight.to(self.rows.dtype).t()).to(first.bias.dtype).add_(first.bias)


def first_dense(module: nn.Module, input_shape: Sequence[int]) -> int | None:
    """The place of the first dense layer in a body that may be rewritten; None where it may not.

    >>> from kfl.models import cnn, mlp
    >>> first_dense(mlp(), (1, 28, 28)), first_dense(cnn(), (3, 32, 32))
    (1, None)
    """
    body = getattr(module, "body", None)
    if type(body) is not nn.Sequential or body._forward_hooks or body._forward_pre_hooks:
        return None
    layers = list(body)
    place = 1 if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1) else 0
    if place >= len(layers) or type(layers[place]) is not nn.Linear:
        return None
    first = layers[place]
    # A linear layer takes the last axis of its input: without a Flatten before it, a sample must have no other.
    if first.in_features != math.prod(input_shape) or (place == 0 and len(input_shape) > 1):
        return None
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers[: place + 1])
    plain = isinstance(first.weight, nn.Parameter) and isinstance(first.bias, nn.Parameter)
    # What follows must not write into Z, and nothing else may use the layer.
    writes = place + 1 < len(layers) and getattr(layers[place + 1], "inplace", False)
    known = [id(value) for _, value in module.named_parameters(remove_duplicate=False)]
    alone = known.count(id(first.weight)) == 1 and known.count(id(first.bias)) == 1
    called_once = [id(layer) for layer in module.modules()].count(id(first)) == layers.count(first) == 1
    return place if plain and alone and called_once and not hooked and not writes else None


def gram_pays(samples: int, inputs: int, width: int, steps: int) -> bool:
    """Whether the Gram matrix saves work within one round, even if it has to be computed for it."""
    plain = 2 * steps * samples * inputs * width
    gram = samples * samples * inputs + 2 * samples * inputs * width + (steps - 1) * samples * samples * width
    return gram < plain


class SampleSpace(Bound):
    """A network whose first dense layer is the leaf Z instead of its weights."""

    def __init__(
        self,
        network: Network,
        state: State,
        rates: Mapping[str, float],
        arithmetic: Arithmetic,
        samples: FlatSamples,
        gram: Tensor,
    ) -> None:
        super().__init__(network, state, rates, arithmetic)
        self._samples, self._gram, self._names = samples, gram, list(state)
        weight, bias = (f"{network.first_name}.{name}" for name in ("weight", "bias"))
        self._rate = self.rates.pop(weight)
        del self.rates[bias], self.leaves[weight], self.leaves[bias]
        with torch.no_grad():
            self._z = samples.through(network.first_layer)
        self._z.requires_grad_()
        self._total: Tensor | None = None
        """Σ Q over the steps."""
        self._pending: Tensor | None = None
        """The Q that Z has not moved along yet: after the last step it need not."""

    @staticmethod
    def fits(network: Network, rates: Mapping[str, float], objective: Objective) -> bool:
        """Whether an objective sees the first layer through its output alone, and its weight and bias have one rate."""
        weight, bias = (rates.get(f"{network.first_name}.{name}", 0.0) for name in ("weight", "bias"))
        projects = type(objective).project is not Objective.project
        return objective.single_pass and objective.gradient_limit is None and weight == bias != 0 and not projects

    @property
    def moving(self) -> list[Tensor]:
        """Z and all other weights."""
        return [self._z, *super().moving]

    def forward(self, state: State, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of the bound samples."""
        if state is not self.leaves:
            raise RuntimeError("An objective with single_pass calls forward with the state that it was given.")
        if self._pending is not None:
            with torch.no_grad():
                _add_product(self._z, self._gram, self._pending, -self._rate)
            self._pending = None
        with self.arithmetic.autocast():
            feature = self.network.features(self._z, after_first=True)
            logits = self.network.head(feature)
        return feature.to(self.arithmetic.dtype), logits.to(self.arithmetic.dtype)

    def step(self, speeds: Sequence[Tensor | None]) -> None:
        """Z moves with the next forward pass, the other weights now."""
        first, *rest = speeds
        if first is not None:
            self._total = first.clone() if self._total is None else self._total.add_(first)
            self._pending = first
        step(super().moving, list(self.rates.values()), rest)

    def state(self) -> State:
        """All weights; those of the first layer from the sum of all Q."""
        if self._total is not None:
            rows, columns = self._samples.rows, self._samples.columns
            first = self.network.first_layer
            first.bias.sub_(self._total.sum(0), alpha=self._rate)
            _add_product(first.weight, self._total.t(), rows, -self._rate, columns)
        found = self.network.state()
        others = {name: value.detach() for name, value in self.leaves.items() if name not in found}
        return {name: (found | others)[name] for name in self._names}


def _add_product(into: Tensor, left: Tensor, right: Tensor, scale: float, columns: Tensor | None = None) -> None:
    """into += scale · left right, in some columns where not all are meant; factors may be in a shorter type."""
    short = torch.bfloat16 if torch.bfloat16 in (left.dtype, right.dtype) else into.dtype
    if columns is None and short == into.dtype:
        into.addmm_(left, right, alpha=scale)
        return
    product = torch.mm(left.to(short), right.to(short)).to(into.dtype)
    if columns is None:
        into.add_(product, alpha=scale)
    else:
        into.index_add_(1, columns, product, alpha=scale)
