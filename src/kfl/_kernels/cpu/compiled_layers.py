"""Layers of any module through compiled loops: the calls that are taken over, whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from kfl._kernels.cpu.convolution import ConvolutionFunction, Shape, pays
from kfl._kernels.cpu.pooling import MOST_COLUMNS, PoolingFunction
from kfl._kernels.window import both_axes


class CompiledLayers(TorchFunctionMode):
    """Inside, what the compiled loops are made for goes through them; everything else is PyTorch's as ever.

    Taken over are convolutions and max pooling of float32 images and lines. Gradients of gradients work, and inside a
    transform of `torch.func` nothing is taken over.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """One call of a function of PyTorch."""
        named = kwargs or {}
        if func in _TAKEN:
            found = _TAKEN[func](*args, **named)
            if found is not None:
                return found
        return func(*args, **named)


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary float32 tensors on the CPU, outside of any transform."""
    ordinary = all(
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        for tensor in tensors
        if tensor is not None
    )
    return ordinary and torch._C._functorch.peek_interpreter_stack() is None


def _convolution(
    lines: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """A convolution by the compiled loops; None for one that they are not made for."""
    ready = groups == 1 and not isinstance(padding, str)
    if not (ready and _is_plain(input, weight, bias)) or input.dim() != (3 if lines else 4) or not len(input):
        return None
    if lines:
        input, weight = input.unsqueeze(2), weight.unsqueeze(2)
    shape = Shape(
        input.shape[1],
        weight.shape[0],
        (input.shape[2], input.shape[3]),
        (weight.shape[2], weight.shape[3]),
        both_axes(stride, 1, lines),
        both_axes(padding, 0, lines),
        both_axes(dilation, 1, lines),
    )
    if input.shape[1] != weight.shape[1] or not pays(shape):
        return None
    inputs = (input.contiguous(), weight.contiguous(), bias)
    result: Tensor = ConvolutionFunction.apply(*inputs, shape)  # type: ignore[no-untyped-call]  # PyTorch's
    return result.squeeze(2) if lines else result


def _pooling(
    lines: bool,
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """Max pooling over cells that do not overlap; None for any other."""
    if ceil_mode or return_indices or not _is_plain(input) or input.dim() != (3 if lines else 4):
        return None
    cell = both_axes(kernel_size, 1, lines)
    # PyTorch takes an empty stride for the size of a cell.
    step = cell if stride is None or stride in ((), []) else both_axes(stride, 1, lines)
    plain = both_axes(padding, 0, lines) == (0, 0) and both_axes(dilation, 1, lines) == (1, 1)
    image = input.unsqueeze(2) if lines else input
    fits = (
        image.shape[2] >= cell[0] and image.shape[3] >= cell[1] and cell[1] <= MOST_COLUMNS and cell[0] * cell[1] < 256
    )
    if step != cell or not plain or not fits or not image.numel():
        return None
    result: Tensor = PoolingFunction.apply(image.contiguous(), cell)  # type: ignore[no-untyped-call]  # PyTorch's
    return result.squeeze(2) if lines else result


def _of_lines(work: Callable[..., Tensor | None], lines: bool) -> Callable[..., Tensor | None]:
    return lambda *arguments, **named: work(lines, *arguments, **named)


_TAKEN: dict[Any, Callable[..., Tensor | None]] = {
    torch.conv1d: _of_lines(_convolution, True),
    torch.conv2d: _of_lines(_convolution, False),
    functional.max_pool1d: _of_lines(_pooling, True),
    functional.max_pool2d: _of_lines(_pooling, False),
    torch.max_pool1d: _of_lines(_pooling, True),
    torch.max_pool2d: _of_lines(_pooling, False),
}
"""Functions of PyTorch that are taken over; each answers None where it is not."""
