"""The paper's MLP with full-batch steps, its first layer through the Gram matrix of the samples.

The first layer is most of the work, and its input X never changes. With Z = X W₁ᵀ + b₁ and S_t = ∂/∂Z at step t,
the gradient is ∂/∂W₁ = S_tᵀ X, so gradient descent with momentum m and rate η moves Z by products with X Xᵀ alone:

    Q_t = m Q_{t−1} + S_t,    Z_{t+1} = Z_t − η (X Xᵀ + 1) Q_t,    W₁ ← W₁ − η (Σ_t Q_t)ᵀ X  once at the end

(the 1 in every entry is the bias, an input that is always one). Two products with n × d per step become one with
n × n. Columns of X that are zero for a device have no gradient and are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.closed_form import Descent
from kfl._kernels.cpu.dense import DenseGradients, DenseLayers
from kfl._kernels.memory import Workspace, own_pages, tensor_bytes
from kfl._kernels.output_gradients import OutputGradients
from kfl.models import Network, State

WORTH_SKIPPING = 0.9
"""Zero columns are left out where fewer than this part of the columns remain."""
ROWS_WORTH_SKIPPING = 200
"""With fewer samples, picking columns of the weights takes longer than the products it saves."""


@dataclass(frozen=True, eq=False)
class FlatSamples:
    """Inputs as rows in the type of the products."""

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

    def gram(self) -> Tensor:
        """X Xᵀ + 1."""
        count = len(self.rows)
        return torch.mm(self.rows, self.rows.t(), out=own_pages(count, count, dtype=self.rows.dtype)).add_(1.0)

    def narrow(self, weight: Tensor, memory: Workspace) -> Tensor:
        """The columns of a first layer's weights that these inputs meet."""
        if self.columns is None:
            return weight
        out = memory.take("first narrow", len(weight), len(self.columns), dtype=weight.dtype)
        return torch.index_select(weight, 1, self.columns, out=out)

    def low(self, weight: Tensor, memory: Workspace) -> Tensor:
        """Those columns in the type of the products."""
        chosen = self.narrow(weight, memory)
        if chosen.dtype == self.rows.dtype:
            return chosen
        return memory.take("first low weight", *chosen.shape, dtype=self.rows.dtype).copy_(chosen)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return tensor_bytes(self.rows, self.columns)


def gram_pays(samples: int, inputs: int, width: int, steps: int) -> bool:
    """Whether the Gram matrix saves work within one round, even if it has to be computed for it."""
    plain = 2 * steps * samples * inputs * width
    gram = samples * samples * inputs + 2 * samples * inputs * width + (steps - 1) * samples * samples * width
    return gram < plain


def train_mlp(
    network: Network,
    state: State,
    samples: FlatSamples,
    gram: Tensor | None,
    outputs: OutputGradients,
    descent: Descent,
    steps: int,
    arithmetic: Arithmetic,
    memory: Workspace,
    start: Tensor | None = None,
) -> State:
    """τ full-batch steps. Without a Gram matrix, the first layer is treated as the others are.

    `start` is Z at the given weights, where somebody has it; it is left as it is.
    """
    first = network.dense[0].name
    if not descent.rates.get(f"{first}.weight"):
        features = body_features(network, state, samples, arithmetic, memory)
        return {**_copies(state), **_train_head(state, features, outputs, descent, steps, arithmetic, memory)}
    if gram is None:
        narrow = {**state, f"{first}.weight": samples.narrow(state[f"{first}.weight"], memory)}
        layers = DenseLayers(network.dense_names, narrow, descent, arithmetic, memory)
        for _ in range(steps):
            logits = layers.forward(samples.rows)
            layers.step(
                outputs.at_logits(logits).to(arithmetic.factor_dtype),
                outputs.at_features(layers.features),
                to_inputs=False,
            )
        trained = layers.trained()
        trained[f"{first}.weight"] = _widened(samples, state[f"{first}.weight"], trained[f"{first}.weight"])
        return trained
    layers = DenseLayers(network.dense_names[1:], state, descent, arithmetic, memory)
    moved = _first_layer(first, state, samples, gram, start, outputs, descent, steps, arithmetic, memory, layers)
    return {**moved, **layers.trained()}


class MlpGradients:
    """∇F at any weights, for one set of samples."""

    def __init__(
        self,
        network: Network,
        samples: FlatSamples,
        outputs: OutputGradients,
        arithmetic: Arithmetic,
        memory: Workspace,
    ) -> None:
        self._network, self._samples, self._outputs, self._arithmetic, self._memory = (
            network,
            samples,
            outputs,
            arithmetic,
            memory,
        )

    def __call__(self, state: State) -> State:
        """The gradient of every weight, overwritten by the next call."""
        first, samples, arithmetic = f"{self._network.dense[0].name}.weight", self._samples, self._arithmetic
        narrow = {**state, first: samples.narrow(state[first], self._memory)}
        layers = DenseGradients(self._network.dense_names, narrow, arithmetic, self._memory)
        logits = layers.forward(samples.rows)
        pull = self._outputs.at_features(layers.features)
        layers.step(self._outputs.at_logits(logits).to(arithmetic.factor_dtype), pull, to_inputs=False)
        found = layers.gradients
        if samples.columns is not None:
            found[first] = torch.zeros_like(state[first]).index_copy_(1, samples.columns, found[first])
        return found


def _first_layer(
    first: str,
    state: State,
    samples: FlatSamples,
    gram: Tensor,
    start: Tensor | None,
    outputs: OutputGradients,
    descent: Descent,
    steps: int,
    arithmetic: Arithmetic,
    memory: Workspace,
    layers: DenseLayers,
) -> State:
    """All steps; returns the first layer, the others are in `layers`."""
    weight, bias, rate = state[f"{first}.weight"], state[f"{first}.bias"], descent.rates[f"{first}.weight"]
    shape = (len(samples.rows), len(bias))
    before = memory.take("first before", *shape, dtype=arithmetic.dtype)
    active = memory.take("first active", *shape, dtype=arithmetic.factor_dtype)
    moving = memory.take("first moving", *shape, dtype=arithmetic.dtype)
    total = memory.take("first total", *shape, dtype=arithmetic.dtype)
    if start is None:
        _affine(before, bias, samples.rows, samples.low(weight, memory), memory)
    else:
        before.copy_(start)
    for number in range(steps):
        active.copy_(before).relu_()
        logits = layers.forward(active)
        here = layers.step(
            outputs.at_logits(logits).to(arithmetic.factor_dtype), outputs.at_features(layers.features), to_inputs=True
        )
        assert here is not None
        if number == 0:
            moving.copy_(here)
            total.copy_(here)
        else:
            moving.mul_(descent.momentum).add_(here)
            total.add_(moving)
        if number < steps - 1:
            _subtract_product(before, gram, moving, rate, memory)
    change = memory.take("first change", len(bias), samples.rows.shape[1], dtype=arithmetic.factor_dtype)
    low = total if total.dtype == arithmetic.factor_dtype else active.copy_(total)
    torch.mm(low.t(), samples.rows, out=change)
    narrow = memory.take("first narrow", *change.shape, dtype=arithmetic.dtype)
    torch.sub(samples.narrow(weight, memory), change, alpha=rate, out=narrow)
    return {
        f"{first}.weight": _widened(samples, weight, narrow),
        f"{first}.bias": bias.sub(total.sum(0), alpha=rate),
    }


def _affine(out: Tensor, bias: Tensor, rows: Tensor, weight: Tensor, memory: Workspace) -> None:
    """out = rows weightᵀ + bias, the product in the type of the rows."""
    if rows.dtype == out.dtype:
        torch.addmm(bias, rows, weight.t(), out=out)
    else:
        product = torch.mm(rows, weight.t(), out=memory.take("first product", *out.shape, dtype=rows.dtype))
        torch.add(product, bias, out=out)


def _subtract_product(out: Tensor, gram: Tensor, moving: Tensor, rate: float, memory: Workspace) -> None:
    """out ← out − rate · gram · moving, the product in the type of the Gram matrix."""
    if gram.dtype == out.dtype:
        out.addmm_(gram, moving, alpha=-rate)
    else:
        low = memory.take("first low", *moving.shape, dtype=gram.dtype).copy_(moving)
        product = torch.mm(gram, low, out=memory.take("first product", *out.shape, dtype=gram.dtype))
        out.sub_(product, alpha=rate)


def _widened(samples: FlatSamples, before: Tensor, narrow: Tensor) -> Tensor:
    """The whole first layer, of which only the columns that inputs meet have changed."""
    return narrow.clone() if samples.columns is None else before.index_copy(1, samples.columns, narrow)


def _train_head(
    state: State,
    features: Tensor,
    outputs: OutputGradients,
    descent: Descent,
    steps: int,
    arithmetic: Arithmetic,
    memory: Workspace,
) -> State:
    """With the body frozen its features never change: they are computed once."""
    head = DenseLayers(("head",), state, descent, arithmetic, memory)
    for _ in range(steps):
        head.step(outputs.at_logits(head.forward(features)).to(arithmetic.factor_dtype), None, to_inputs=False)
    return head.trained()


def body_features(
    network: Network,
    state: State,
    samples: FlatSamples,
    arithmetic: Arithmetic,
    memory: Workspace,
    seen: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Features of the samples, in the type of the products; overwritten by the next call with this memory.

    `seen` is called with Z, which it must copy to keep it.
    """
    out = samples.rows
    for index, name in enumerate(network.dense_names[:-1]):
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        low = samples.low(weight, memory) if index == 0 else weight.to(arithmetic.factor_dtype)
        target = memory.take(f"feature {index}", len(out), len(bias), dtype=arithmetic.factor_dtype)
        out = torch.addmm(bias.to(arithmetic.factor_dtype), out, low.t(), out=target)
        if index == 0 and seen is not None:
            seen(out)
        out.relu_()
    return out


def _copies(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}
