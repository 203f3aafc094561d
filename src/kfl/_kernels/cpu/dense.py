"""Dense layers by hand: forward, backward and momentum into buffers that are used again.

    Z_l = A_{l−1} W_lᵀ + b_l,   A_l = max(Z_l, 0),   the last layer (the head) without the maximum
    ∂/∂W_l = S_lᵀ A_{l−1},   ∂/∂A_{l−1} = S_l W_l   with S_l = ∂/∂Z_l
    V ← m V + ∂/∂W,   W ← W − η V

Weights and velocities have the type of the states (`dtype`). Products may be taken in a shorter one (`factor_dtype`,
bfloat16): activations and slopes are then kept in it and weights are rounded before each pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.closed_form import Descent
from kfl._kernels.memory import Workspace
from kfl.models import State


class DenseLayers:
    """Some dense layers at work: their weights, velocities and what the last forward pass left behind."""

    def __init__(
        self,
        names: Sequence[str],
        state: State,
        descent: Descent,
        arithmetic: Arithmetic,
        memory: Workspace,
        *,
        copy: bool = True,
    ) -> None:
        self.names = tuple(names)
        self.weights = [state[f"{name}.weight"].clone() if copy else state[f"{name}.weight"] for name in names]
        self.biases = [state[f"{name}.bias"].clone() if copy else state[f"{name}.bias"] for name in names]
        self._rates = [descent.rates.get(f"{name}.weight", 0.0) for name in names]
        self._momentum = descent.momentum
        self._dtype, self._factor_dtype = arithmetic.dtype, arithmetic.factor_dtype
        self._memory = memory
        self._velocities: dict[int, tuple[Tensor, Tensor]] = {}
        self._activations: list[Tensor] = []
        self._lowered: list[tuple[Tensor, Tensor]] = []

    def trained(self) -> State:
        """The weights by name."""
        pairs = zip(self.names, self.weights, self.biases, strict=True)
        return {f"{name}.{part}": value for name, w, b in pairs for part, value in (("weight", w), ("bias", b))}

    @property
    def features(self) -> Tensor:
        """What went into the last layer."""
        return self._activations[-2]

    def forward(self, inputs: Tensor) -> Tensor:
        """The output of the last layer. Inputs are in the low type, and are kept for the backward pass."""
        self._lowered = [(self._low(w, "weight", i), self._low(b, "bias", i)) for i, (w, b) in enumerate(self._pairs())]
        self._activations = [inputs]
        for index, (weight, bias) in enumerate(self._lowered):
            out = self._take("activation", index, len(inputs), len(bias))
            torch.addmm(bias, self._activations[-1], weight.t(), out=out)
            if index < len(self._lowered) - 1:
                out.relu_()
            self._activations.append(out)
        return self._activations[-1]

    def step(self, slope: Tensor, feature_slope: Tensor | None, *, to_inputs: bool) -> Tensor | None:
        """One step of descent, given ∂/∂(output) and what else pulls at the features.

        With `to_inputs`, returns ∂/∂inputs, for inputs that are themselves outputs of a ReLU.
        """
        last = len(self.names) - 1
        needed = to_inputs
        below_needed = []
        for rate in self._rates:
            below_needed.append(needed)
            needed = needed or rate != 0
        here: Tensor | None = slope
        for index in range(last, -1, -1):
            assert here is not None
            below = None
            if below_needed[index]:
                weight, inputs = self._lowered[index][0], self._activations[index]
                below = torch.mm(here, weight, out=self._take("slope", index, *inputs.shape))
                if index == last and feature_slope is not None:
                    below.add_(feature_slope)
                through_relu(below, inputs)
            if self._rates[index]:
                self._descend(index, here, self._activations[index])
            here = below
            if here is None:
                break
        return here

    def _descend(self, index: int, slope: Tensor, inputs: Tensor) -> None:
        """V ← m V + SᵀA, W ← W − η V."""
        weight, bias, rate = self.weights[index], self.biases[index], self._rates[index]
        started = index in self._velocities
        if not started:
            self._velocities[index] = (
                self._memory.take(f"velocity {index}", *weight.shape, dtype=self._dtype),
                self._memory.take(f"bias velocity {index}", *bias.shape, dtype=self._dtype),
            )
        velocity, of_bias = self._velocities[index]
        keep = self._momentum if started else 0.0
        if self._factor_dtype == self._dtype:
            torch.addmm(velocity, slope.t(), inputs, beta=keep, out=velocity)
        else:
            gradient = torch.mm(slope.t(), inputs, out=self._take("gradient", index, *weight.shape))
            decay(velocity, keep).add_(gradient)
        decay(of_bias, keep).add_(slope.sum(0, dtype=self._dtype))
        weight.add_(velocity, alpha=-rate)
        bias.add_(of_bias, alpha=-rate)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.weights, self.biases, strict=True))

    def _low(self, value: Tensor, what: str, index: int) -> Tensor:
        if value.dtype == self._factor_dtype:
            return value
        return self._take(f"low {what}", index, *value.shape).copy_(value)

    def _take(self, name: str, index: int, *shape: int) -> Tensor:
        # Named by the layer, not its index: a head alone has the buffers of a head.
        return self._memory.take(f"{name} {self.names[index]}", *shape, dtype=self._factor_dtype)


class DenseGradients(DenseLayers):
    """The same passes for weights that stay where they are: a step leaves the gradients, in buffers."""

    def __init__(self, names: Sequence[str], state: State, arithmetic: Arithmetic, memory: Workspace) -> None:
        all_move = Descent({f"{name}.weight": 1.0 for name in names}, 0.0)
        super().__init__(names, state, all_move, arithmetic, memory, copy=False)
        self.gradients: State = {}

    def _descend(self, index: int, slope: Tensor, inputs: Tensor) -> None:
        """SᵀA."""
        name = self.names[index]
        weight = self._take("gradient", index, *self.weights[index].shape)
        self.gradients[f"{name}.weight"] = torch.mm(slope.t(), inputs, out=weight).to(self._dtype)
        self.gradients[f"{name}.bias"] = slope.sum(0, dtype=self._dtype)


def decay(velocity: Tensor, keep: float) -> Tensor:
    """velocity · keep in place; a fresh start at keep 0, whatever was there (0 · NaN is NaN)."""
    return velocity.mul_(keep) if keep else velocity.zero_()


def through_relu(slope: Tensor, outputs: Tensor) -> Tensor:
    """Keep the slope where a ReLU's output is above 0, in place."""
    kept: Tensor = torch.ops.aten.threshold_backward.grad_input(slope, outputs, 0, grad_input=slope)
    return kept
