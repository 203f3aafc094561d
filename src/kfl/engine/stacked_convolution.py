"""A convolution inside `torch.func.vmap` over devices, with no pass whose time depends on cuDNN's luck.

PyTorch turns a convolution whose weights differ from device to device into one grouped convolution. Forward that is
quick; backward it takes many times as long for some shapes as for their neighbors, as cuDNN happens to choose.
So the three passes are done apart. With x' the windows of x written out as columns (`unfold.cu`), each can be a plain
batched product, which is quick for every shape:

    forward    y = w x'        weight gradient    u = d x'ᵀ        input gradient    g = fold(wᵀ d)

The weight gradient always is. The others are where that is less work than a grouped convolution: over time, for
windows of one place, and for few channels. Otherwise they are forward grouped convolutions, the input gradient of a
window that moves by one being a convolution with the weights turned round. Where an image has more positions than
there are filters, each sample is a matrix of its own; where it has fewer, the samples of a device are side by side in
one. On a CPU, for tests, PyTorch writes the windows out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kfl.engine.compile import CompileError
from kfl.engine.nvrtc import CompiledKernels
from kfl.engine.precision import Arithmetic

SOURCE = Path(__file__).with_name("unfold.cu")
THREADS = 128
MOST_MAPS = 65_535
"""Largest third side of a grid."""
FEW_CHANNELS = 4
"""Up to so many channels an image is unfolded forward too."""

Pair = tuple[int, int]
"""Of rows and of columns."""


@dataclass(frozen=True)
class Window:
    """A window that moves over an image."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def outputs(self, size: Pair) -> Pair:
        """Height and width of the output for those of the image.

        >>> Window((3, 3), (2, 2), (1, 1), (1, 1)).outputs((32, 32))
        (16, 16)
        """
        sides = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        rows, columns = ((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, k, s, p, d in sides)
        return rows, columns

    def turned(self) -> Window | None:
        """The window over the output whose convolution is the input gradient; None where there is none."""
        sides = zip(self.kernel, self.padding, self.dilation, strict=True)
        rows, columns = (d * (k - 1) - p for k, p, d in sides)
        if self.stride != (1, 1) or rows < 0 or columns < 0:
            return None
        return Window(self.kernel, (1, 1), (rows, columns), self.dilation)

    @property
    def is_point(self) -> bool:
        """Whether the windows of an image are the image."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)


def both_axes(value: Any, of_rows: int, lines: bool) -> Pair:
    """A setting of a layer, as PyTorch takes it, for rows and columns; a line is an image of one row.

    >>> both_axes(2, 1, lines=False), both_axes((2,), 1, lines=True)
    ((2, 2), (1, 2))
    """
    values = (value,) if isinstance(value, int) else tuple(value)
    return (of_rows, values[0]) if lines else (values[0], values[-1])


class StackedConvolution:
    """Takes the place of `torch.conv1d` and `torch.conv2d` inside `vmap` (`kfl.engine.layers.Layers`)."""

    def __init__(self, arithmetic: Arithmetic, where: torch.device) -> None:
        self.problem = ""
        """Why convolutions are left to PyTorch; empty where they are not."""
        if arithmetic.precision == "bf16":
            self.problem = "bf16"
        elif where.type == "cuda":
            try:
                _kernels(torch.zeros(1, device=where).device)
            except (CompileError, OSError) as problem:
                self.problem = str(problem)
        self._dtype = arithmetic.dtype

    def __call__(
        self,
        function: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        """The convolution; what this is not for goes to PyTorch."""
        flat = function is torch.conv1d
        if (
            self.problem
            or groups != 1
            or isinstance(padding, str)
            or input.dim() != (3 if flat else 4)
            or not (input.dtype == weight.dtype == self._dtype)
            or (input.is_cuda and self._dtype != torch.float32)
        ):
            return function(input, weight, bias, stride, padding, dilation, groups)
        kernel = (1, weight.shape[2]) if flat else (weight.shape[2], weight.shape[3])
        window = Window(kernel, both_axes(stride, 1, flat), both_axes(padding, 0, flat), both_axes(dilation, 1, flat))
        images, filters = (input.unsqueeze(2), weight.unsqueeze(2)) if flat else (input, weight)
        output: Tensor = _Convolution.apply(images, filters, window)  # type: ignore[no-untyped-call]  # PyTorch's
        output = output.squeeze(2) if flat else output
        return output if bias is None else output + bias.reshape(-1, *[1] * (output.dim() - 2))


# Each of the three is a function of one device with a rule for many. The gradients are functions of their own, because
# vmap sees them from outside the gradient.


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, window: Window) -> Tensor:
        return forward(x[None], weight[None], window)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Window], output: Tensor) -> None:
        x, weight, ctx.window = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        to_input = to_weight = None
        if ctx.needs_input_grad[0]:
            to_input = _InputGradient.apply(d, weight, tuple(x.shape[-2:]), ctx.window)  # type: ignore[no-untyped-call]  # PyTorch's
        if ctx.needs_input_grad[1]:
            to_weight = _WeightGradient.apply(x, d, ctx.window)  # type: ignore[no-untyped-call]  # PyTorch's
        return to_input, to_weight, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, weight: Tensor, window: Window) -> tuple[Tensor, int]:
        return forward(_stacked(x, in_dims[0], info), _stacked(weight, in_dims[1], info), window), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(d: Tensor, weight: Tensor, size: Pair, window: Window) -> Tensor:
        return input_gradient(d[None], weight[None], size, window)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, d: Tensor, weight: Tensor, size: Pair, window: Window) -> tuple[Tensor, int]:
        return input_gradient(_stacked(d, in_dims[0], info), _stacked(weight, in_dims[1], info), size, window), 0


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, d: Tensor, window: Window) -> Tensor:
        return weight_gradient(x[None], d[None], window)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, d: Tensor, window: Window) -> tuple[Tensor, int]:
        return weight_gradient(_stacked(x, in_dims[0], info), _stacked(d, in_dims[1], info), window), 0


def _stacked(value: Tensor, axis: int | None, info: Any) -> Tensor:
    """A tensor with devices first; one that all share is repeated without being copied."""
    return value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)


# ── The three passes of a stack ──


def forward(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """(K, N, C, H, W), (K, O, C, R, S) → (K, N, O, H', W')."""
    devices, samples = x.shape[:2]
    filters = weight.shape[1]
    if not _unfolds(x.shape[2], window):
        return _grouped(x, weight, window)
    rows, columns = window.outputs((x.shape[3], x.shape[4]))
    flat = weight.reshape(devices, filters, -1)
    if _side_by_side(filters, rows * columns):
        y = torch.bmm(flat, unfold(x, window, samples))
        return y.reshape(devices, filters, samples, rows, columns).transpose(1, 2)
    y = torch.bmm(_repeated(flat, samples), unfold(x, window, 1))
    return y.reshape(devices, samples, filters, rows, columns)


def _unfolds(channels: int, window: Window) -> bool:
    """Whether written-out windows are less work than a grouped convolution."""
    return channels <= FEW_CHANNELS or 1 in window.kernel


def _grouped(x: Tensor, weight: Tensor, window: Window) -> Tensor:
    """A stack of convolutions as a grouped one: (N, K C, H, W)."""
    devices, samples, channels, height, width = x.shape
    images = x.transpose(0, 1).reshape(samples, devices * channels, height, width)
    flat = weight.reshape(-1, *weight.shape[2:])
    y = torch.conv2d(images, flat, None, window.stride, window.padding, window.dilation, devices)
    return y.reshape(samples, devices, weight.shape[1], *y.shape[2:]).transpose(0, 1)


def weight_gradient(x: Tensor, d: Tensor, window: Window) -> Tensor:
    """(K, N, C, H, W), (K, N, O, H', W') → (K, O, C, R, S)."""
    devices, samples, filters, rows, columns = d.shape
    shape = (devices, filters, x.shape[2], *window.kernel)
    if _side_by_side(filters, rows * columns):
        coming = d.transpose(1, 2).reshape(devices, filters, -1)
        return torch.bmm(coming, unfold(x, window, samples).transpose(1, 2)).reshape(shape)
    coming = d.reshape(devices * samples, filters, -1)
    each = torch.bmm(coming, unfold(x, window, 1).transpose(1, 2))
    return each.reshape(devices, samples, -1).sum(1).reshape(shape)


def input_gradient(d: Tensor, weight: Tensor, size: Pair, window: Window) -> Tensor:
    """(K, N, O, H', W'), (K, O, C, R, S) → (K, N, C, H, W) with (H, W) = `size`."""
    devices, samples, filters, rows, columns = d.shape
    back = window.turned()
    if back is not None and not _unfolds(filters, window):
        return _grouped(d, weight.flip(3, 4).transpose(1, 2), back)
    turned = weight.reshape(devices, filters, -1).transpose(1, 2)
    shape = (devices, samples, weight.shape[2], *size)
    if _side_by_side(filters, rows * columns):
        return fold(torch.bmm(turned, d.transpose(1, 2).reshape(devices, filters, -1)), shape, window, samples)
    coming = d.reshape(devices * samples, filters, -1)
    return fold(torch.bmm(_repeated(turned, samples), coming), shape, window, 1)


def _side_by_side(filters: int, positions: int) -> bool:
    """Whether the samples of a device share a matrix: repeating the weights for each would be more data."""
    return positions < filters


def _repeated(weight: Tensor, samples: int) -> Tensor:
    """A device's weights for each of its samples."""
    devices = len(weight)
    return weight[:, None].expand(devices, samples, *weight.shape[1:]).reshape(devices * samples, *weight.shape[1:])


def unfold(x: Tensor, window: Window, per: int) -> Tensor:
    """The windows of (K, N, C, H, W) as columns: (K N / per, C R S, per H' W')."""
    devices, samples, channels, *size = x.shape
    maps = devices * samples
    rows, columns = window.outputs((size[0], size[1]))
    inner = channels * math.prod(window.kernel)
    if window.is_point and per == 1:
        return x.reshape(maps, channels, -1)
    if x.is_cuda:
        found = x.new_empty(maps // per, inner, per * rows * columns)
        grid = (-(-rows * columns // THREADS), channels, min(maps, MOST_MAPS))
        arguments: list[Tensor | int] = [
            x.contiguous(),
            found,
            *_geometry(maps, channels, (size[0], size[1]), window, per),
        ]
        _kernels(x.device).launch("unfold", grid, THREADS, arguments)
        return found
    flat = functional.unfold(
        x.reshape(maps, channels, *size), window.kernel, window.dilation, window.padding, window.stride
    )
    return flat.reshape(maps // per, per, inner, -1).transpose(1, 2).reshape(maps // per, inner, -1)


def fold(columns: Tensor, shape: tuple[int, ...], window: Window, per: int) -> Tensor:
    """The transpose of `unfold`: columns added up to images of this shape, (K, N, C, H, W)."""
    devices, samples, channels, height, width = shape
    maps, size = devices * samples, (height, width)
    if window.is_point and per == 1:
        return columns.reshape(shape)
    if columns.is_cuda:
        image = columns.new_empty(shape)
        grid = (-(-height * width // THREADS), channels, min(maps, MOST_MAPS))
        arguments: list[Tensor | int] = [columns.contiguous(), image, *_geometry(maps, channels, size, window, per)]
        _kernels(columns.device).launch("fold", grid, THREADS, arguments)
        return image
    inner = columns.shape[1]
    flat = columns.reshape(maps // per, inner, per, -1).transpose(1, 2).reshape(maps, inner, -1)
    image = functional.fold(flat, size, window.kernel, window.dilation, window.padding, window.stride)
    return image.reshape(shape)


def _geometry(maps: int, channels: int, size: Pair, window: Window, per: int) -> list[int]:
    """The numbers that both kernels take, in their order."""
    moves = (*window.kernel, *window.stride, *window.padding, *window.dilation)
    return [maps, channels, *size, *window.outputs(size), *moves, per]


@cache
def _kernels(where: torch.device) -> CompiledKernels:
    return CompiledKernels(SOURCE, [], where)
