"""Dense layers by hand: forward, backward and momentum into buffers that are used again.

    Z_l = A_{l−1} W_lᵀ + b_l,   A_l = max(Z_l, 0),   the last layer (the head) without the maximum
    ∂/∂W_l = S_lᵀ A_{l−1},   ∂/∂A_{l−1} = S_l W_l   with S_l = ∂/∂Z_l
    V ← m V + ∂/∂W,   W ← W − η V

Weights and velocities have the number type of the states (`exact`). Products may be taken in a shorter one
(`low`, bfloat16): activations and slopes are then kept in it and weights are rounded before each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kfl.engine.base import Sgd
from kfl.engine.workspace import Workspace
from kfl.models import State


@dataclass(frozen=True)
class Numbers:
    """Types of numbers: of the weights, and of what goes into products."""

    exact: torch.dtype = torch.float32
    low: torch.dtype = torch.float32


class DenseLayers:
    """Some dense layers at work: their weights, velocities and what the last forward pass left behind."""

    def __init__(
        self,
        names: Sequence[str],
        state: State,
        sgd: Sgd,
        numbers: Numbers,
        memory: Workspace,
        *,
        copy: bool = True,
    ) -> None:
        self.names = tuple(names)
        self.weights = [state[f"{name}.weight"].clone() if copy else state[f"{name}.weight"] for name in names]
        self.biases = [state[f"{name}.bias"].clone() if copy else state[f"{name}.bias"] for name in names]
        self._rates = [sgd.head_rate if name == "head" else sgd.body_rate for name in names]
        self._momentum = sgd.momentum
        self._numbers = numbers
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
        for place, (weight, bias) in enumerate(self._lowered):
            out = self._take("activation", place, len(inputs), len(bias))
            torch.addmm(bias, self._activations[-1], weight.t(), out=out)
            if place < len(self._lowered) - 1:
                out.relu_()
            self._activations.append(out)
        return self._activations[-1]

    def step(self, slope: Tensor, feature_slope: Tensor | None, *, to_inputs: bool) -> Tensor | None:
        """One step of descent, given ∂/∂(output) and what else pulls at the features.

        With `to_inputs`, returns ∂/∂inputs, for inputs that are themselves outputs of a ReLU.
        """
        last = len(self.names) - 1
        wanted = to_inputs
        below_wanted = []
        for rate in self._rates:
            below_wanted.append(wanted)
            wanted = wanted or rate != 0
        here: Tensor | None = slope
        for place in range(last, -1, -1):
            assert here is not None
            below = None
            if below_wanted[place]:
                weight, inputs = self._lowered[place][0], self._activations[place]
                below = torch.mm(here, weight, out=self._take("slope", place, *inputs.shape))
                if place == last and feature_slope is not None:
                    below.add_(feature_slope)
                through_relu(below, inputs)
            if self._rates[place]:
                self._descend(place, here, self._activations[place])
            here = below
            if here is None:
                break
        return here

    def _descend(self, place: int, slope: Tensor, inputs: Tensor) -> None:
        """V ← m V + SᵀA, W ← W − η V."""
        weight, bias, rate = self.weights[place], self.biases[place], self._rates[place]
        started = place in self._velocities
        if not started:
            exact = self._numbers.exact
            self._velocities[place] = (
                self._memory.take(f"velocity {place}", *weight.shape, dtype=exact),
                self._memory.take(f"bias velocity {place}", *bias.shape, dtype=exact),
            )
        velocity, of_bias = self._velocities[place]
        keep = self._momentum if started else 0.0
        if self._numbers.low == self._numbers.exact:
            torch.addmm(velocity, slope.t(), inputs, beta=keep, out=velocity)
        else:
            gradient = torch.mm(slope.t(), inputs, out=self._take("gradient", place, *weight.shape))
            decay(velocity, keep).add_(gradient)
        decay(of_bias, keep).add_(slope.sum(0, dtype=self._numbers.exact))
        weight.add_(velocity, alpha=-rate)
        bias.add_(of_bias, alpha=-rate)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.weights, self.biases, strict=True))

    def _low(self, value: Tensor, what: str, place: int) -> Tensor:
        if value.dtype == self._numbers.low:
            return value
        return self._take(f"low {what}", place, *value.shape).copy_(value)

    def _take(self, name: str, place: int, *shape: int) -> Tensor:
        # Named by the layer, not its place: a head alone has the buffers of a head.
        return self._memory.take(f"{name} {self.names[place]}", *shape, dtype=self._numbers.low)


class DenseGradients(DenseLayers):
    """The same passes for weights that stay where they are: a step leaves the gradients, in buffers."""

    def __init__(self, names: Sequence[str], state: State, numbers: Numbers, memory: Workspace) -> None:
        super().__init__(names, state, Sgd(1, 1.0, 1.0, 0.0), numbers, memory, copy=False)
        self.gradients: State = {}

    def _descend(self, place: int, slope: Tensor, inputs: Tensor) -> None:
        """SᵀA."""
        exact, name = self._numbers.exact, self.names[place]
        weight = self._take("gradient", place, *self.weights[place].shape)
        self.gradients[f"{name}.weight"] = torch.mm(slope.t(), inputs, out=weight).to(exact)
        self.gradients[f"{name}.bias"] = slope.sum(0, dtype=exact)


def decay(velocity: Tensor, keep: float) -> Tensor:
    """velocity · keep in place; a fresh start at keep 0, whatever was there (0 · NaN is NaN)."""
    return velocity.mul_(keep) if keep else velocity.zero_()


def through_relu(slope: Tensor, outputs: Tensor) -> Tensor:
    """Keep the slope where a ReLU's output is above 0, in place."""
    kept: Tensor = torch.ops.aten.threshold_backward.grad_input(slope, outputs, 0, grad_input=slope)
    return kept
