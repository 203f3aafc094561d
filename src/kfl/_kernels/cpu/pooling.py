"""The largest number of each cell of an image, as compiled loops: PyTorch's reads one number at a time.

Cells do not overlap. What is kept for the way back is a byte for each: which number of its cell won, the first of equal
ones, and one that is not a number before all others, as in PyTorch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kfl._kernels.cpu.vector_code import LANES, Code, Kernel, Value

MOST_COLUMNS = 8
"""Columns of a cell, at most: as many vectors are in registers."""


@functools.cache
def forward_kernel(rows: int, columns: int) -> Kernel:
    """(inputs, largest, winners, sizes, images) for cells of so many rows and columns."""
    code = Code("pooled", 4)
    inputs, largest, winners, sizes, images = code.arguments
    with _cells(code, sizes, images) as (image, row, vector, (height, width, down, right, vectors)):
        best: Value = None
        for number, value in enumerate(_cell(code, (rows, columns), inputs, (image, row, vector), (height, width))):
            if number == 0:
                best, winner = value, code.bytes_of(0)
                continue
            larger = code.larger(best, value)
            best = code.builder.select(larger, value, best)
            winner = code.builder.select(larger, code.bytes_of(number), winner)
        line = code.plus(code.times(image, down), row)
        first = code.times(vector, LANES)
        left = code.clipped(code.builder.sub(right, first))
        code.store_some(best, largest, code.plus(code.times(line, right), first), left)
        code.store_bytes(winner, winners, code.plus(code.times(code.times(line, vectors), LANES), first))
    return code.compile(unroll=False)


@functools.cache
def backward_kernel(rows: int, columns: int) -> Kernel:
    """(slopes of the largest, winners, slopes of the inputs, sizes, images): a winner takes the slope of its cell."""
    code = Code("unpooled", 4)
    slopes, winners, result, sizes, images = code.arguments
    with _cells(code, sizes, images) as (image, row, vector, (height, width, down, right, vectors)):
        line = code.plus(code.times(image, down), row)
        first = code.times(vector, LANES)
        left = code.clipped(code.builder.sub(right, first))
        slope = code.load_some(slopes, code.plus(code.times(line, right), first), left)
        winner = code.load_bytes(winners, code.plus(code.times(code.times(line, vectors), LANES), first))
        for y in range(rows):
            mine = [
                code.builder.select(
                    code.builder.icmp_unsigned("==", winner, code.bytes_of(y * columns + x)), slope, code.splat(0.0)
                )
                for x in range(columns)
            ]
            to, start = _line(code, (rows, columns), y, (image, row, vector), (height, width))
            for part, value in enumerate(code.joined(mine)):
                count = code.clipped(code.builder.sub(width, code.plus(start, part * LANES)))
                code.store_some(value, result, code.plus(to, start, part * LANES), count)
    return code.compile(unroll=False)


@contextmanager
def _cells(code: Code, sizes: Value, images: Value) -> Iterator[tuple[Value, Value, Value, list[Value]]]:
    """All vectors of cells: image, row, vector in the row, and the sizes."""
    size = [code.look_up(sizes, code.whole(place)) for place in range(5)]
    with code.loop(images) as image, code.loop(size[2]) as row, code.loop(size[4]) as vector:
        yield image, row, vector, size


def _line(
    code: Code, cell: tuple[int, int], y: int, at: tuple[Value, Value, Value], sizes: tuple[Value, Value]
) -> tuple[Value, Value]:
    """Where a row of the image starts that is the y-th of these cells, and the first column of the cells."""
    image, row, vector = at
    line = code.plus(code.times(image, sizes[0]), code.times(row, cell[0]), y)
    return code.times(line, sizes[1]), code.times(vector, LANES * cell[1])


def _cell(
    code: Code,
    cell: tuple[int, int],
    inputs: Value,
    at: tuple[Value, Value, Value],
    sizes: tuple[Value, Value],
) -> Iterator[Value]:
    """The numbers of 16 cells, one place of the cell after another."""
    for y in range(cell[0]):
        line, start = _line(code, cell, y, at, sizes)
        counts = [code.clipped(code.builder.sub(sizes[1], code.plus(start, x * LANES))) for x in range(cell[1])]
        loaded = [code.load_some(inputs, code.plus(line, start, x * LANES), count) for x, count in enumerate(counts)]
        yield from code.parted(loaded)


class PoolingFunction(torch.autograd.Function):
    """The largest number of each cell, and the way back."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cell: tuple[int, int]) -> Tensor:
        """The largest number of each cell of (samples, channels, rows, columns)."""
        *outer, height, width = inputs.shape
        down, right = height // cell[0], width // cell[1]
        vectors = -(-right // LANES)
        sizes = torch.tensor([height, width, down, right, vectors])
        largest = inputs.new_empty(*outer, down, right)
        winners = torch.empty(len(inputs) * outer[1] * down * vectors * LANES, dtype=torch.uint8)
        forward_kernel(*cell)(
            inputs.data_ptr(), largest.data_ptr(), winners.data_ptr(), sizes.data_ptr(), len(inputs) * outer[1]
        )
        ctx.save_for_backward(inputs, winners, sizes)
        ctx.cell = cell
        return largest

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """The slope of each cell at its largest number."""
        inputs, winners, sizes = ctx.saved_tensors
        cell = ctx.cell
        if torch.is_grad_enabled():  # gradients of gradients are PyTorch's affair
            places = cell, cell, (0, 0), (1, 1), False
            _, chosen = torch.ops.aten.max_pool2d_with_indices(inputs.detach(), *places)
            return torch.ops.aten.max_pool2d_with_indices_backward(slopes[0], inputs, *places, chosen), None
        whole = inputs.shape[2] % cell[0] == 0 and inputs.shape[3] % cell[1] == 0
        result = torch.empty_like(inputs) if whole else torch.zeros_like(inputs)
        slope = slopes[0].contiguous()
        images = inputs.shape[0] * inputs.shape[1]
        backward_kernel(*cell)(slope.data_ptr(), winners.data_ptr(), result.data_ptr(), sizes.data_ptr(), images)
        return result, None
