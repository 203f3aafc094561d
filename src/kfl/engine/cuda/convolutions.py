"""Blocks of convolution, ReLU and pooling for a cohort in which each device has its own weights.

Two ways that agree up to rounding:

    kernel   our own CUDA kernels (`kernel_convolutions`): one block is one kernel, samples are the last axis
    grouped  one grouped convolution of PyTorch, a group for each device
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from kfl.core.errors import ConfigError

if TYPE_CHECKING:
    from kfl.engine.precision import Arithmetic
    from kfl.models import State
    from kfl.models.network import Convolution

WAYS = ("auto", "kernel", "grouped")


class Convolutions(ABC):
    """All convolution blocks of a network, forward and backward."""

    name: str
    reason: str
    """Why this one was chosen."""

    @abstractmethod
    def prepare(self, inputs: Tensor) -> Tensor:
        """Images (devices, samples, channels, height, width) in the order that this way needs."""

    @abstractmethod
    def forward(
        self, layers: Sequence[Convolution], state: State, images: Tensor, *, keep: bool
    ) -> tuple[Tensor, object]:
        """Flattened outputs (devices, samples, values), and what `backward` needs where `keep`."""

    @abstractmethod
    def backward(
        self, layers: Sequence[Convolution], state: State, kept: object, gradient: Tensor
    ) -> Iterable[tuple[str, Tensor]]:
        """The gradients of all weights and biases by name, from that of the outputs."""


@dataclass(eq=False)
class GroupedConvolutions(Convolutions):
    """Convolution blocks from PyTorch's own operations; autograd does the backward pass."""

    reason: str
    arithmetic: Arithmetic
    name = "grouped"

    def prepare(self, inputs: Tensor) -> Tensor:
        """As they are, rounded where products are."""
        return inputs.to(self.arithmetic.factor_dtype)

    def forward(
        self, layers: Sequence[Convolution], state: State, images: Tensor, *, keep: bool
    ) -> tuple[Tensor, object]:
        """Block after block."""
        names = [f"{layer.name}.{part}" for layer in layers for part in ("weight", "bias")]
        leaves = {name: state[name].detach().requires_grad_(keep) for name in names}
        value = images
        with torch.set_grad_enabled(keep):
            for layer in layers:
                weight, bias = (leaves[f"{layer.name}.{part}"] for part in ("weight", "bias"))
                value = grouped_block(value, weight.to(images.dtype), bias.to(images.dtype))
            value = value.flatten(2)
        return value.detach(), (value, leaves)

    def backward(
        self, layers: Sequence[Convolution], state: State, kept: object, gradient: Tensor
    ) -> Iterable[tuple[str, Tensor]]:
        """Ask autograd."""
        assert isinstance(kept, tuple)
        value, leaves = kept
        found = torch.autograd.grad(value, list(leaves.values()), gradient.to(value.dtype))
        return zip(leaves, found, strict=True)


def grouped_block(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One convolution with a group for each device."""
    devices, samples, channels, height, width = images.shape
    side_by_side = images.transpose(0, 1).reshape(samples, devices * channels, height, width)
    out = functional.conv2d(side_by_side, weight.flatten(0, 1), bias.flatten(), groups=devices)
    pooled: Tensor = functional.max_pool2d(out.relu(), 2)
    apart: Tensor = pooled.unflatten(1, (devices, -1)).transpose(0, 1)
    return apart


def choose_convolutions(
    way: str, layers: Sequence[Convolution], arithmetic: Arithmetic, where: torch.device
) -> Convolutions:
    """The way that was asked for; with "auto" our kernels where they run and agree with PyTorch's."""
    if way not in WAYS:
        raise ConfigError("convolution", way, f"one of {', '.join(WAYS)}")
    reason = "asked for"
    if way in ("auto", "kernel"):
        from kfl.engine.cuda.kernel_convolutions import try_kernels

        kernels, reason = try_kernels(layers, arithmetic, where)
        if kernels is not None:
            return kernels
        if way == "kernel":
            raise ConfigError("convolution", way, f"auto or grouped: {reason}")
    return GroupedConvolutions(reason, arithmetic)
