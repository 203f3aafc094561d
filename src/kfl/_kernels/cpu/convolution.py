"""Convolutions of any network, as PyTorch functions that autograd can follow, through the loops of `correlation`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kfl._kernels.cpu.correlation import OUTPUTS, SHIFTS, SLACK, SLOPES, sum_kernel, weight_kernel
from kfl._kernels.cpu.vector_code import LANES
from kfl._kernels.memory import PADDING, Workspace, workspace
from kfl._kernels.window import Pair, Window

BLOCK_VECTORS = 64
"""Vectors of pixels that the gradient of the weights adds up before its running sums leave the registers."""

LARGE = 512
"""Pixels of an image that is worth not being brought into another order."""


@dataclass(frozen=True)
class Shape:
    """The shape of a convolution of images."""

    channels: int
    outputs: int
    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def result(self) -> Pair:
        """Rows and columns of the output."""
        return Window(self.kernel, self.stride, self.padding, self.dilation).outputs(self.image)


@dataclass(frozen=True, eq=False)
class Tables:
    """Where everything lies, for one shape."""

    forward: tuple[Tensor, ...]
    """Shifts, rows in, rows out, jobs, sizes."""
    backward: tuple[Tensor, ...]
    """The same for the gradient of the inputs."""
    weights: tuple[Tensor, ...]
    """Shifts, rows in, rows of slopes, sizes."""
    parts: tuple[tuple[int, ...], ...]
    """The taps of each part of the inputs: all of them, or with a stride those of even and odd rows and columns."""
    in_numbers: int
    slope_numbers: int
    out_numbers: int
    back_numbers: int
    block_numbers: int
    block_slope_numbers: int


def whole(values: list[int]) -> Tensor:
    """A table of whole numbers."""
    return torch.tensor(values, dtype=torch.int64)


def up(count: int, step: int) -> int:
    """The least multiple of `step` that is not less."""
    return -(-count // step) * step


@functools.cache
def tables(shape: Shape) -> Tables:
    """Shifts, rows and sizes of a convolution and of its gradients."""
    (height, width), (down, right) = shape.image, shape.result
    (tall, wide), (step_y, step_x), (pad_y, pad_x), (far_y, far_x) = (
        shape.kernel,
        shape.stride,
        shape.padding,
        shape.dilation,
    )
    channels, outputs = shape.channels, shape.outputs
    # Of each tap: its part (even or odd rows and columns), and by how many rows and columns of the part it is moved.
    taps = [
        ((y * far_y % step_y) * step_x + x * far_x % step_x, y * far_y // step_y, x * far_x // step_x)
        for y in range(tall)
        for x in range(wide)
    ]
    most_y, most_x = max(y for _, y, _ in taps), max(x for _, _, x in taps)
    first_column, last_column = pad_x // step_x, (width - 1 + pad_x) // step_x
    last_row = (height - 1 + pad_y) // step_y
    # A row is as long as its pixels, and long enough that what a tap finds beyond it is a zero of the next one.
    pitch = max(last_column + 1, right + most_x - first_column)
    vectors = up((down - 1) * pitch + right, LANES) // LANES
    plane = max((last_row + 1) * pitch, vectors * LANES + most_y * pitch + most_x)
    parts = step_y * step_x

    def rows(channel_plane: int, count: int) -> list[int]:
        """Where the even and the odd columns of each row of an image begin, or the row as a whole."""
        found = []
        for y in range(height):
            part_y, row = (y + pad_y) % step_y, (y + pad_y) // step_y
            for x in range(step_x):
                part = part_y * step_x + (x + pad_x) % step_x
                found.append(part * count * channel_plane + row * pitch + (x + pad_x) // step_x)
        return found

    in_shifts = [(part * channels + c) * plane + y * pitch + x for c in range(channels) for part, y, x in taps]
    results = up(outputs, OUTPUTS)
    out_plane = vectors * LANES
    forward = (
        whole(in_shifts),
        whole(rows(plane, channels)),
        whole([row * pitch for row in range(down)]),
        whole([0, len(in_shifts), 0, 0, 0, vectors]),
        whole([channels, height, width, plane, results // OUTPUTS, outputs, down, right, out_plane, 1, 0]),
    )
    # Slopes are laid out with a margin before them, where taps that look back find zeros.
    margin = most_y * pitch + most_x
    back_first = (pad_y // step_y) * pitch + first_column
    back_vectors = up(last_row * pitch + last_column + 1 - back_first, LANES) // LANES
    back_plane = back_first + back_vectors * LANES
    slope_plane = margin + max(vectors * LANES, down * pitch, back_plane)
    backs = up(channels, OUTPUTS)
    members = tuple(tuple(i for i, (part, _, _) in enumerate(taps) if part == which) for which in range(parts))
    back_shifts: list[int] = []
    jobs: list[int] = []
    first_weight = 0
    for which, tap_numbers in enumerate(members):
        own = [o * slope_plane + margin - taps[i][1] * pitch - taps[i][2] for o in range(outputs) for i in tap_numbers]
        start = which * backs * back_plane
        jobs += [len(back_shifts), len(own), first_weight, start, back_first, back_vectors]
        back_shifts += own
        first_weight += len(own) * backs
    slope_rows = [margin + row * pitch for row in range(down)]
    backward = (
        whole(back_shifts),
        whole(slope_rows),
        whole(rows(back_plane, backs)),
        whole(jobs),
        whole([outputs, down, right, slope_plane, backs // OUTPUTS, channels, height, width, back_plane, parts, 0]),
    )
    tiles = up(len(in_shifts), SHIFTS) // SHIFTS
    groups = up(outputs, SLOPES) // SLOPES
    block = max(1, BLOCK_VECTORS // vectors)
    # Here the samples of a block lie side by side in each channel: a tile of sums reads a few channels of all of them.
    row_plane = max(out_plane, down * pitch)
    own = [(part * channels + c) * plane * block + y * pitch + x for c in range(channels) for part, y, x in taps]
    own += [own[-1]] * (tiles * SHIFTS - len(own))
    sizes = [channels, height, width, plane * block, outputs, down, right, row_plane * block, vectors]
    return Tables(
        forward=forward,
        backward=backward,
        weights=(
            whole(own),
            whole(rows(plane * block, channels)),
            whole([row * pitch for row in range(down)]),
            whole([*sizes, groups, tiles, block, plane, row_plane]),
        ),
        parts=members,
        in_numbers=parts * channels * plane + SLACK,
        slope_numbers=outputs * slope_plane + SLACK,
        block_numbers=parts * channels * plane * block + SLACK,
        block_slope_numbers=groups * SLOPES * row_plane * block + SLACK,
        out_numbers=results * out_plane + SLACK,
        back_numbers=parts * backs * back_plane + SLACK,
    )


def zeros(space: Workspace, name: str, shape: Shape, count: int) -> Tensor:
    """Memory of this thread for one shape, in which borders stay zero because only pixels are written."""
    return space.keep((name, shape), lambda: torch.zeros(count + PADDING))


def side_by_side(weights: Tensor) -> Tensor:
    """(outputs, k) weights as (outputs / 8, k, 8), filled up with zeros."""
    outputs, count = weights.shape
    groups = up(outputs, OUTPUTS) // OUTPUTS
    if outputs % OUTPUTS:
        weights = torch.cat([weights, weights.new_zeros(groups * OUTPUTS - outputs, count)])
    return weights.view(groups, OUTPUTS, count).transpose(1, 2).contiguous()


def convolved(inputs: Tensor, weights: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """The convolution of a batch of images."""
    found, space = tables(shape), workspace()
    beside = side_by_side(weights.reshape(shape.outputs, -1))
    biases = torch.zeros(up(shape.outputs, OUTPUTS))
    if bias is not None:
        biases[: shape.outputs] = bias
    out = torch.empty(len(inputs), shape.outputs, *shape.result)
    shifts, rows_in, rows_out, jobs, sizes = found.forward
    _call(
        sum_kernel(shape.stride[1], 1),
        inputs,
        beside,
        biases,
        shifts,
        rows_in,
        rows_out,
        jobs,
        zeros(space, "inputs", shape, found.in_numbers),
        space.take("summed", found.out_numbers),
        out,
        sizes,
        count=len(inputs),
    )
    return out


def input_gradient(slopes: Tensor, weights: Tensor, shape: Shape) -> Tensor:
    """The gradient of the inputs."""
    found, space = tables(shape), workspace()
    taps = weights.reshape(shape.outputs, shape.channels, -1).transpose(0, 1)
    beside = [
        side_by_side((taps if len(found.parts) == 1 else taps[:, :, list(part)]).reshape(shape.channels, -1)).view(-1)
        for part in found.parts
    ]
    out = torch.empty(len(slopes), shape.channels, *shape.image)
    shifts, rows_in, rows_out, jobs, sizes = found.backward
    _call(
        sum_kernel(1, shape.stride[1]),
        slopes,
        torch.cat(beside) if len(beside) > 1 else beside[0],
        torch.zeros(up(shape.channels, OUTPUTS)),
        shifts,
        rows_in,
        rows_out,
        jobs,
        zeros(space, "slopes", shape, found.slope_numbers),
        space.take("summed", found.back_numbers),
        out,
        sizes,
        count=len(slopes),
    )
    return out


def weight_gradient(inputs: Tensor, slopes: Tensor, shape: Shape) -> Tensor:
    """The gradient of the weights."""
    found, space = tables(shape), workspace()
    count = shape.channels * math.prod(shape.kernel)
    result = torch.zeros(up(shape.outputs, SLOPES) // SLOPES, up(count, SHIFTS) // SHIFTS, SLOPES, SHIFTS)
    shifts, rows_in, rows_out, sizes = found.weights
    _call(
        weight_kernel(shape.stride[1]),
        inputs,
        slopes,
        shifts,
        rows_in,
        rows_out,
        zeros(space, "block of inputs", shape, found.block_numbers),
        zeros(space, "block of slopes", shape, found.block_slope_numbers),
        result,
        sizes,
        count=len(inputs),
    )
    flat = result.transpose(1, 2).reshape(up(shape.outputs, SLOPES), -1)[: shape.outputs, :count]
    return flat.reshape(shape.outputs, shape.channels, *shape.kernel)


def _call(kernel: Any, *arrays: Tensor, count: int) -> None:
    kernel(*(array.data_ptr() for array in arrays), count)


class ConvolutionFunction(torch.autograd.Function):
    """The convolution and its gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weights: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(inputs, weights)
        ctx.shape, ctx.with_bias = shape, bias is not None
        return convolved(inputs, weights, bias, shape)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients that are needed."""
        inputs, weights = ctx.saved_tensors
        shape, needs = ctx.shape, ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients are PyTorch's affair
            padding = shape.stride, shape.padding, shape.dilation, False, (0, 0), 1
            biases = [shape.outputs] if ctx.with_bias else None
            found = torch.ops.aten.convolution_backward(slopes[0], inputs, weights, biases, *padding, list(needs[:3]))
            return *found, None
        slope = slopes[0].contiguous()
        return (
            input_gradient(slope, weights, shape) if needs[0] else None,
            weight_gradient(inputs, slope, shape) if needs[1] else None,
            slope.sum((0, 2, 3)) if needs[2] else None,
            None,
        )


@functools.cache
def pays(shape: Shape) -> bool:
    """Whether the compiled loops are faster than PyTorch's, which brings images into an order of its own and back.

    That costs most where images are large for the work on them: few channels, few taps, many pixels. Channels that
    are no multiple of 16 it fills up. Where all three are otherwise, its products are the faster ones, and so they are
    for images that do not fill our vectors, and for strides of more than 2 we have no loops.
    """
    down, right = shape.result
    if not set(shape.stride) <= {1, 2} or min(down, right) < 1:
        return False
    pitch = right + (shape.kernel[1] - 1) * shape.dilation[1] // 2
    full = down * right >= 0.85 * up((down - 1) * pitch + right, LANES)
    few_taps, odd, many = math.prod(shape.kernel) == 1, shape.channels % LANES != 0, math.prod(shape.image) >= LARGE
    return full and (few_taps or odd or many)
