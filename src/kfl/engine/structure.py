"""Recognises the paper's two kinds of networks in a module, layer by layer and exactly.

Anything that is not certain is not recognised: a subclass, a hook, a shared layer, a layer without bias. Such a
module is trained by plain autograd instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from kfl.engine.conv_kernels import ConvShape
from kfl.models import parts

POOLED_CONVOLUTION = (nn.Conv2d, nn.ReLU, nn.MaxPool2d)
BACKWARD_OUTPUTS = 16
"""Output channels of the second convolution: one vector."""
REGISTER_SUMS = 30
"""Running sums that the first convolution's backward pass can keep in registers."""


@dataclass(frozen=True)
class DenseNet:
    """Dense layers with ReLU after each but the last, which is the head."""

    dense: tuple[str, ...]
    """Names of the layers, `body.1` … `head`."""

    @property
    def parameters(self) -> list[str]:
        """Names of all weights and biases."""
        return _weights_and_biases(self.dense)


@dataclass(frozen=True)
class ConvNet:
    """Two convolutions with ReLU and 2×2 pooling each, then dense layers as in `DenseNet`."""

    convolutions: tuple[str, str]
    shapes: tuple[ConvShape, ConvShape]
    dense: tuple[str, ...]

    @property
    def parameters(self) -> list[str]:
        """Names of all weights and biases."""
        return _weights_and_biases((*self.convolutions, *self.dense))


def _weights_and_biases(layers: tuple[str, ...]) -> list[str]:
    return [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


def recognise(module: nn.Module, input_shape: tuple[int, ...]) -> DenseNet | ConvNet | None:
    """What a module is, or None where it is something else."""
    body, head = parts(module)
    if type(body) is not nn.Sequential or not _plain_dense(head):
        return None
    layers = [(f"body.{number}", layer) for number, layer in body.named_children()]
    every = [body, head, *(layer for _, layer in layers)]
    if len({id(layer) for layer in every}) < len(every) or any(_hooked(layer) for layer in every):
        return None
    if layers and type(layers[0][1]) is nn.Conv2d:
        return _conv_net(layers, input_shape)
    if layers and _flattens(layers[0][1]):
        layers = layers[1:]
    elif len(input_shape) != 1:
        return None
    dense = _dense_names(layers)
    return None if dense is None else DenseNet((*dense, "head"))


def _conv_net(layers: list[tuple[str, nn.Module]], input_shape: tuple[int, ...]) -> ConvNet | None:
    kinds = tuple(type(layer) for _, layer in layers[:7])
    if kinds != (*POOLED_CONVOLUTION, *POOLED_CONVOLUTION, nn.Flatten) or len(input_shape) != 3:
        return None
    first = _pooled_convolution(layers[0][1], layers[2][1], input_shape)
    if first is None:
        return None
    second = _pooled_convolution(layers[3][1], layers[5][1], (first.outputs, *first.cells))
    dense = _dense_names(layers[7:])
    if second is None or dense is None or not _flattens(layers[6][1]):
        return None
    fits = second.outputs == BACKWARD_OUTPUTS and first.outputs * first.kernel <= REGISTER_SUMS
    if not fits or first.row_lanes != BACKWARD_OUTPUTS or min(first.pooled, second.pooled) < BACKWARD_OUTPUTS:
        return None
    return ConvNet((layers[0][0], layers[3][0]), (first, second), (*dense, "head"))


def _pooled_convolution(layer: nn.Module, pool: nn.Module, shape: tuple[int, ...]) -> ConvShape | None:
    assert isinstance(layer, nn.Conv2d) and isinstance(pool, nn.MaxPool2d)
    size = layer.kernel_size[0]
    plain = (
        layer.kernel_size == (size, size)
        and layer.stride == layer.dilation == (1, 1)
        and layer.padding in ((0, 0), 0, "valid")
        and layer.groups == 1
        and layer.bias is not None
        and layer.in_channels == shape[0]
    )
    halves = (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.return_indices
        and not pool.ceil_mode
    )
    found = ConvShape(layer.in_channels, shape[1], shape[2], layer.out_channels, size)
    return found if plain and halves and min(found.cells) >= 1 else None


def _dense_names(layers: list[tuple[str, nn.Module]]) -> list[str] | None:
    """The names of alternating Linear and ReLU layers."""
    if not layers or len(layers) % 2:
        return None
    pairs = zip(layers[::2], layers[1::2], strict=True)
    if not all(_plain_dense(linear) and type(relu) is nn.ReLU for (_, linear), (_, relu) in pairs):
        return None
    return [name for name, _ in layers[::2]]


def _plain_dense(layer: nn.Module) -> bool:
    # A layer without bias has None there, which PyTorch's types do not say.
    return type(layer) is nn.Linear and "bias" in dict(layer.named_parameters()) and not _hooked(layer)


def _flattens(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
