"""Convolution, ReLU and pooling as one pass over 16 samples, and the backward pass of what pooling chose.

    forward    p[o, i, j] = max over the 2×2 cell of ReLU(b_o + Σ w[o, c, y, x] · in[c, 2i + a + y, 2j + b + x])

Forward, a vector holds the same pixel of 16 samples, and the 2×2 cell of several channels is kept in registers
until it is pooled: the full convolution is never written. Backward, only the winner of each cell has a gradient,
a quarter of the pixels, and which one differs from sample to sample; so samples are taken one by one and a vector
holds neighbouring weights (x, c), which are neighbours in memory for images stored channels last.

Three layouts, all channels last:

    blocks    (samples / 16, rows, 16)    the forward pass; a row is a pixel and channel, the last axis a sample
    samples   (samples, rows)             the backward pass; padded by at least 16 numbers at the end
    weights   (outputs, kernel, lanes)    a row is (x, c), padded with zeros to whole vectors
"""

from __future__ import annotations

import functools

from kfl._kernels.cpu.vector_code import LANES, Code, Kernel, Value
from kfl.models import Convolution

BACKWARD_OUTPUTS = 16
"""Output channels that the second convolution must have: one vector."""
REGISTER_SUMS = 30
"""Running sums that the first convolution's backward pass can keep in registers."""


def row_lanes(layer: Convolution) -> int:
    """Length of a row (x, c) of weights, in whole vectors."""
    return -(-layer.kernel * layer.channels_in // LANES) * LANES


def outputs_at_once(layer: Convolution) -> int:
    """Output channels whose 2×2 cell stays in registers: the largest divisor up to 6 (24 of 32 registers)."""
    return max(count for count in range(1, 7) if layer.channels_out % count == 0)


@functools.cache
def forward_kernel(layer: Convolution, number: str, channels_last: bool) -> Kernel:
    """(blocks in, weights, biases, pooled blocks out, chosen out, number of blocks).

    Weights are stored as (outputs / n, kernel rows, channels, kernel columns, n) for n = `outputs_at_once`. `chosen` is
    a byte for each pooled number: 0 to 3 for the winner at (0, 0), (0, 1), (1, 0), (1, 1) of its cell; the first of
    equal ones, as in PyTorch. Results are stored channels last, or channels first where a dense layer follows.
    """
    code = Code("forward", 5, number)
    inputs, weights, biases, pooled, chosen, blocks = code.arguments
    rows, columns = layer.pooled
    at_once = outputs_at_once(layer)
    per_group = layer.kernel**2 * layer.channels_in * at_once
    with (
        code.loop(blocks) as block,
        code.loop(layer.channels_out // at_once) as group,
        code.loop(rows) as row,
        code.loop(columns) as column,
    ):
        first = code.times(group, at_once)
        sums = [
            [code.variable(code.splat(code.load_one(biases, code.plus(first, o)))) for _ in range(4)]
            for o in range(at_once)
        ]
        corner = code.plus(code.times(code.times(row, 2), layer.width), code.times(column, 2))
        start = code.plus(code.times(block, layer.inputs), code.times(corner, layer.channels_in))
        with code.loop(layer.kernel) as y, code.loop(layer.channels_in) as c:
            image_row = code.plus(start, code.times(y, layer.width * layer.channels_in), c)
            tap = code.plus(
                code.times(group, per_group),
                code.times(code.plus(code.times(y, layer.channels_in), c), layer.kernel * at_once),
            )
            _row_of_taps(code, layer, (inputs, image_row), (weights, tap), sums)
        cell = code.plus(code.times(row, columns), column)
        for o in range(at_once):
            output = code.plus(first, o)
            at = (
                code.plus(code.times(cell, layer.channels_out), output)
                if channels_last
                else code.plus(code.times(output, rows * columns), cell)
            )
            at = code.times(code.plus(code.times(block, layer.outputs), at), LANES)
            best, winner = _winner(code, [code.get(slot) for slot in sums[o]])
            code.store(code.positive(best), pooled, at)
            code.store_bytes(winner, chosen, at)
    return code.compile()


def _row_of_taps(
    code: Code, layer: Convolution, inputs: tuple[Value, Value], weights: tuple[Value, Value], sums: list[list[Value]]
) -> None:
    """All taps of one kernel row and input channel, for the four pixels of a cell and several outputs."""

    def pixel(a: int, x: int) -> Value:
        offset = code.plus(inputs[1], (a * layer.width + x) * layer.channels_in)
        return code.load(inputs[0], code.times(offset, LANES))

    left = [pixel(0, 0), pixel(1, 0)]
    for x in range(layer.kernel):
        right = [pixel(0, x + 1), pixel(1, x + 1)]
        for o, cell in enumerate(sums):
            weight = code.splat(code.load_one(weights[0], code.plus(weights[1], x * len(sums) + o)))
            for value, slot in zip((left[0], right[0], left[1], right[1]), cell, strict=True):
                code.accumulate(weight, value, slot)
        left = right


def _winner(code: Code, values: list[Value]) -> tuple[Value, Value]:
    """The largest of four, and its number."""
    best, winner = values[0], code.bytes_of(0)
    for number, value in enumerate(values[1:], start=1):
        larger = code.larger(best, value)
        best = code.builder.select(larger, value, best)
        winner = code.builder.select(larger, code.bytes_of(number), winner)
    return best, winner


@functools.cache
def read_kernel(channels: int, plane: int, number: str) -> Kernel:
    """(stored bytes, table, indices, samples out, number of indices): images of bytes by index, channels last.

    Stored images are (channels, plane); the table has the number that each of the 256 bytes stands for in each channel.
    """
    code = Code("read", 4, number)
    stored, table, indices, out, count = code.arguments
    size = channels * plane
    with code.loop(count) as sample:
        image = code.times(code.look_up(indices, sample), size)
        target = code.times(sample, size)
        with code.loop(plane) as pixel:
            for channel in range(channels):
                byte = code.load_byte(stored, code.plus(image, channel * plane, pixel))
                value = code.load_one(table, code.plus(byte, channel * 256))
                code.store_one(value, out, code.plus(target, code.times(pixel, channels), channel))
    return code.compile()


@functools.cache
def to_samples_kernel(rows: int, stride: int, number: str | None) -> Kernel:
    """(blocks in, samples out, number of blocks): from blocks to one sample after another.

    `stride` is the distance of two samples. `number` None moves bytes. There are at least 16 rows.
    """
    code = Code("to_samples", 2, number or "float32")
    blocks_in, samples_out, blocks = code.arguments
    with code.loop(blocks) as block, code.loop(-(-rows // LANES)) as tile:
        first = _start_of_tile(code, tile, rows)
        source = code.times(code.plus(code.times(block, rows), first), LANES)
        read, write = (code.load_bytes, code.store_bytes) if number is None else (code.load, code.store)
        square = [read(blocks_in, code.plus(source, row * LANES)) for row in range(LANES)]
        for sample, line in enumerate(code.transposed(square)):
            target = code.plus(code.times(code.plus(code.times(block, LANES), sample), stride), first)
            write(line, samples_out, target)
    return code.compile()


@functools.cache
def to_blocks_kernel(rows: int, number: str) -> Kernel:
    """(samples in, blocks out, number of blocks): the way back, for samples without gaps between them."""
    code = Code("to_blocks", 2, number)
    samples_in, blocks_out, blocks = code.arguments
    with code.loop(blocks) as block, code.loop(-(-rows // LANES)) as tile:
        first = _start_of_tile(code, tile, rows)
        source = code.plus(code.times(block, rows * LANES), first)
        square = [code.load(samples_in, code.plus(source, sample * rows)) for sample in range(LANES)]
        target = code.times(code.plus(code.times(block, rows), first), LANES)
        for row, line in enumerate(code.transposed(square)):
            code.store(line, blocks_out, code.plus(target, row * LANES))
    return code.compile()


def _start_of_tile(code: Code, tile: Value, rows: int) -> Value:
    """The first row of a tile. The last tile ends at the last row: what it shares with another is written alike."""
    first = code.times(tile, LANES)
    inside = code.builder.icmp_unsigned("<", first, code.whole(rows - LANES))
    return code.builder.select(inside, first, code.whole(rows - LANES))


@functools.cache
def weight_gradient_kernel(layer: Convolution, number: str, strides: tuple[int, int]) -> Kernel:
    """(samples in, gradient of pooled, chosen, gradient of weights, number of samples), for a few outputs.

    Adds Σ g · in[winner + (y, x, c)] to the (outputs, kernel, lanes) gradient of the weights. `strides` are the
    distances of two samples in the inputs and in the gradient of the pooled numbers, which lie channels last and
    are zero where the ReLU was. All outputs' sums are kept in registers: outputs · kernel ≤ 30.
    """
    code = Code("weight_gradient", 4, number)
    inputs, gradient, chosen, result, samples = code.arguments
    winners = code.table(winner_offsets(layer))
    sums = [
        [code.variable(code.load(result, (o * layer.kernel + y) * LANES)) for y in range(layer.kernel)]
        for o in range(layer.channels_out)
    ]
    with code.loop(samples) as sample, code.loop(layer.pooled[0] * layer.pooled[1]) as cell:
        for o in range(layer.channels_out):
            at = code.plus(code.times(sample, strides[1]), code.times(cell, layer.channels_out), o)
            winner = code.look_up(winners, code.plus(code.times(cell, 4), code.load_byte(chosen, at)))
            start = code.plus(code.times(sample, strides[0]), winner)
            slope = code.splat(code.load_one(gradient, at))
            for y in range(layer.kernel):
                pixels = code.load(inputs, code.plus(start, y * layer.width * layer.channels_in))
                code.accumulate(slope, pixels, sums[o][y])
    for o in range(layer.channels_out):
        for y in range(layer.kernel):
            code.store(code.get(sums[o][y]), result, (o * layer.kernel + y) * LANES)
    return code.compile()


@functools.cache
def backward_kernel(layer: Convolution, number: str, strides: tuple[int, int]) -> Kernel:
    """(samples in, gradient of pooled, chosen, weights, gradient of weights, gradient of inputs, number of samples).

    The whole backward pass of a convolution with 16 outputs whose inputs are themselves outputs of a ReLU. The
    pooled numbers lie channels first here, without gaps between samples. `strides` are the distances of two
    samples in the inputs and in their gradient. Entries of the gradient that are zero cost nothing.
    """
    code = Code("backward", 6, number)
    inputs, gradient, chosen, weights, result, back, samples = code.arguments
    cells = layer.pooled[0] * layer.pooled[1]
    winners = code.table(winner_offsets(layer))
    by_cell, chosen_by_cell = code.scratch(cells * LANES), code.scratch(cells * LANES, code.byte)
    pooled = cells * LANES
    rows = [(y, lane) for y in range(layer.kernel) for lane in range(0, row_lanes(layer), LANES)]
    in_image = [y * layer.width * layer.channels_in + lane for y, lane in rows]
    in_weights = [y * row_lanes(layer) + lane for y, lane in rows]
    per_output = layer.kernel * row_lanes(layer)
    with code.loop(samples) as sample:
        image, slopes = code.times(sample, strides[0]), code.times(sample, pooled)
        with code.loop(LANES) as output:
            sums = [
                code.variable(code.load(result, code.plus(code.times(output, per_output), at))) for at in in_weights
            ]
            for first in range(0, cells, LANES):
                at = code.plus(slopes, code.times(output, cells), first)
                with code.each_bit(_live(code, code.load(gradient, at), cells - first)) as bit:
                    pixel = code.load_byte(chosen, code.plus(at, bit))
                    winner = code.look_up(winners, code.plus(code.times(code.plus(bit, first), 4), pixel))
                    slope = code.splat(code.load_one(gradient, code.plus(at, bit)))
                    for slot, offset in zip(sums, in_image, strict=True):
                        code.accumulate(slope, code.load(inputs, code.plus(image, winner, offset)), slot)
            for slot, at in zip(sums, in_weights, strict=True):
                code.store(code.get(slot), result, code.plus(code.times(output, per_output), at))
        _by_cell(code, cells, (gradient, chosen, slopes), (by_cell, chosen_by_cell))
        target = code.times(sample, strides[1])
        with code.loop(strides[1] // LANES) as line:
            code.store(code.splat(0.0), back, code.plus(target, code.times(line, LANES)))
        with code.loop(cells) as cell:
            at = code.times(cell, LANES)
            slope_of_outputs, chosen_of_outputs = code.load(by_cell, at), code.load_bytes(chosen_by_cell, at)
            live = code.builder.fcmp_unordered("!=", slope_of_outputs, code.splat(0.0))
            for pixel in range(4):
                here = code.builder.icmp_unsigned("==", chosen_of_outputs, code.bytes_of(pixel))
                sums = [code.variable(code.splat(0.0)) for _ in rows]
                with code.each_bit(code.mask(code.builder.and_(live, here))) as output:
                    slope = code.splat(code.load_one(by_cell, code.plus(at, output)))
                    for slot, offset in zip(sums, in_weights, strict=True):
                        weight = code.load(weights, code.plus(code.times(output, per_output), offset))
                        code.accumulate(slope, weight, slot)
                winner = code.look_up(winners, code.plus(code.times(cell, 4), pixel))
                for slot, offset in zip(sums, in_image, strict=True):
                    to = code.plus(target, winner, offset)
                    code.store(code.builder.fadd(code.load(back, to), code.get(slot)), back, to)
        with code.loop(-(-layer.inputs // LANES)) as line:
            at = code.plus(target, code.times(line, LANES))
            passed = code.builder.fcmp_unordered(
                ">", code.load(inputs, code.plus(image, code.times(line, LANES))), code.splat(0.0)
            )
            code.store(code.builder.select(passed, code.load(back, at), code.splat(0.0)), back, at)
    return code.compile()


def _live(code: Code, values: Value, count: int) -> Value:
    """The bits of the first `count` values that are not zero."""
    bits = code.mask(code.builder.fcmp_unordered("!=", values, code.splat(0.0)))
    return bits if count >= LANES else code.builder.and_(bits, code.ir.Constant(bits.type, (1 << count) - 1))


def _by_cell(code: Code, cells: int, source: tuple[Value, Value, Value], target: tuple[Value, Value]) -> None:
    """A sample's (16 outputs, cells) slopes and choices as (cells, 16 outputs)."""
    gradient, chosen, start = source
    for first in sorted({max(0, min(first, cells - LANES)) for first in range(0, cells, LANES)}):
        starts = [code.plus(start, output * cells + first) for output in range(LANES)]
        slopes = code.transposed([code.load(gradient, at) for at in starts])
        choices = code.transposed([code.load_bytes(chosen, at) for at in starts])
        for cell in range(first, min(first + LANES, cells)):
            code.store(slopes[cell - first], target[0], code.whole(cell * LANES))
            code.store_bytes(choices[cell - first], target[1], code.whole(cell * LANES))


def winner_offsets(layer: Convolution) -> list[int]:
    """For each cell and each of its four pixels, the offset of that pixel in an image stored channels last."""
    return [
        ((2 * row + down) * layer.width + 2 * column + right) * layer.channels_in
        for row in range(layer.pooled[0])
        for column in range(layer.pooled[1])
        for down in range(2)
        for right in range(2)
    ]
