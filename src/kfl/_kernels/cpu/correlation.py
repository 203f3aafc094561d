"""Convolutions of any network as compiled loops: forward, the gradient of the inputs, the gradient of the weights.

All three are sums over shifted images. With an image laid out as one row after another, its border of zeros between
them, a tap of the kernel is a constant shift of the whole image:

    out[o, p] = Σ_k  w[o, k] · in[shift_k + p]            k runs over channels and taps, p over pixels
    dw[o, k]  = Σ_p  d_out[o, p] · in[shift_k + p]

so that vectors hold 16 neighbouring pixels whatever the kernel, few channels waste nothing, and one compiled function
does for all shapes: the shifts are a table. With a stride of 2, even and odd columns (and rows) lie apart, each as
an image of its own. The gradient of the inputs is the first sum again, with the roles of inputs and outputs
exchanged, once for each such part. One sample at a time is laid out, summed and brought back: it stays in the cache.

The border of one row is that of the next: a row takes as many numbers as its pixels and its zeros on one side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from kfl._kernels.cpu.vector_code import LANES, Code, Kernel, Value

OUTPUTS = 8
"""Output channels summed at once; their weights lie side by side."""
VECTORS = 3
"""Vectors of pixels summed at once: 8 · 3 running sums are in registers."""
SLOPES = 4
"""Output channels of a tile of the gradient of the weights."""
SHIFTS = 6
"""Shifts of such a tile: 4 · 6 running sums."""
SLACK = VECTORS * LANES
"""Numbers behind an image that may be read or written with its last vectors."""


@functools.cache
def sum_kernel(step_in: int, step_out: int) -> Kernel:
    """(inputs, weights, biases, shifts, rows in, rows out, jobs, layout in, layout out, outputs, sizes, samples).

    A job is (first shift, number of shifts, first weight, start in the result, first pixel, vectors). `step_in` is
    2 where even and odd columns of the inputs lie apart, `step_out` where those of the outputs do.
    """
    code = Code("sums", 11)
    inputs, weights, biases, shifts, rows_in, rows_out, jobs, laid, summed, outputs, sizes, samples = code.arguments
    size = [code.look_up(sizes, code.whole(place)) for place in range(11)]
    channels, height, width, plane, groups, results, out_height, out_width, out_plane, job_count, _ = size
    with code.loop(samples) as sample:
        first = code.times(code.times(sample, channels), code.times(height, width))
        _lay_out(code, step_in, (inputs, first), (laid, code.whole(0)), rows_in, (channels, height, width, plane))
        with code.loop(job_count) as number:
            job = [code.look_up(jobs, code.plus(code.times(number, 6), part)) for part in range(6)]
            _sums(code, job, (laid, shifts, weights, biases), (summed, groups, out_plane))
        first = code.times(code.times(sample, results), code.times(out_height, out_width))
        _bring_back(code, step_out, (summed, rows_out), (outputs, first), (results, out_height, out_width, out_plane))
    return code.compile(unroll=False)


def _sums(
    code: Code, job: list[Value], source: tuple[Value, Value, Value, Value], target: tuple[Value, Value, Value]
) -> None:
    laid, shifts, weights, biases = source
    summed, groups, out_plane = target
    first_shift, count, first_weight, start, first_pixel, vectors = job
    b = code.builder
    whole = b.udiv(vectors, code.whole(VECTORS))
    rest = b.urem(vectors, code.whole(VECTORS))
    for at_once in range(VECTORS, 0, -1):
        if at_once == VECTORS:
            tiles, begin = whole, code.whole(0)
        else:
            tiles = b.zext(b.icmp_unsigned("==", rest, code.whole(at_once)), code.index)
            begin = code.times(whole, VECTORS)
        with code.loop(tiles) as tile, code.loop(groups) as group:
            pixel = code.plus(first_pixel, code.times(code.plus(begin, code.times(tile, VECTORS)), LANES))
            channel = code.times(group, OUTPUTS)
            sums = [
                [code.variable(code.splat(code.load_one(biases, code.plus(channel, o)))) for _ in range(at_once)]
                for o in range(OUTPUTS)
            ]
            own = code.plus(first_weight, code.times(code.times(group, count), OUTPUTS))
            with code.loop(count) as k:
                at = code.plus(code.look_up(shifts, code.plus(first_shift, k)), pixel)
                pixels = [code.load(laid, code.plus(at, v * LANES)) for v in range(at_once)]
                for o in range(OUTPUTS):
                    weight = code.splat(code.load_one(weights, code.plus(own, code.times(k, OUTPUTS), o)))
                    for v in range(at_once):
                        code.accumulate(weight, pixels[v], sums[o][v])
            for o in range(OUTPUTS):
                to = code.plus(start, code.times(code.plus(channel, o), out_plane), pixel)
                for v in range(at_once):
                    code.store(code.get(sums[o][v]), summed, code.plus(to, v * LANES))


@functools.cache
def weight_kernel(step_in: int) -> Kernel:
    """(inputs, slopes, shifts, rows in, rows of slopes, layout in, layout of slopes, result, sizes, samples).

    Adds to the result, tile by tile. Several small images are laid out at a time, side by side in each channel, so that
    running sums stay in registers for a while.
    """
    code = Code("weights", 9)
    inputs, slopes, shifts, rows_in, rows_out, laid, laid_slopes, result, sizes, samples = code.arguments
    b = code.builder
    size = [code.look_up(sizes, code.whole(place)) for place in range(14)]
    channels, height, width, plane, outs, out_height, out_width, out_plane, vectors, groups, tiles, block = size[:12]
    in_stride, out_stride = size[12:]
    blocks = b.udiv(code.plus(samples, block, -1), block)
    with code.loop(blocks) as number:
        before = code.times(number, block)
        left = b.sub(samples, before)
        here = b.select(b.icmp_unsigned("<", left, block), left, block)
        with code.loop(here) as sample:
            which = code.plus(before, sample)
            first = code.times(code.times(which, channels), code.times(height, width))
            there = (laid, code.times(sample, in_stride))
            _lay_out(code, step_in, (inputs, first), there, rows_in, (channels, height, width, plane))
            first = code.times(code.times(which, outs), code.times(out_height, out_width))
            there = (laid_slopes, code.times(sample, out_stride))
            _lay_out(code, 1, (slopes, first), there, rows_out, (outs, out_height, out_width, out_plane))
        with code.loop(groups) as group, code.loop(tiles) as tile:
            slots = [code.variable(code.splat(0.0)) for _ in range(SLOPES * SHIFTS)]
            moved = [code.look_up(shifts, code.plus(code.times(tile, SHIFTS), k)) for k in range(SHIFTS)]
            base = code.times(code.times(group, SLOPES), out_plane)
            with code.loop(here) as sample, code.loop(vectors) as vector:
                pixel = code.times(vector, LANES)
                in_image = code.plus(code.times(sample, in_stride), pixel)
                in_slopes = code.plus(code.times(sample, out_stride), base, pixel)
                values = [code.load(laid, code.plus(in_image, shift)) for shift in moved]
                for o in range(SLOPES):
                    slope = code.load(laid_slopes, code.plus(in_slopes, code.times(out_plane, o)))
                    for k in range(SHIFTS):
                        code.accumulate(slope, values[k], slots[o * SHIFTS + k])
            own = code.times(code.plus(code.times(group, tiles), tile), SLOPES * SHIFTS)
            for first in range(0, SLOPES * SHIFTS, LANES):
                sums = [code.get(slot) for slot in slots[first : first + LANES]]
                at, count = code.plus(own, first), code.whole(len(sums))
                code.store_some(b.fadd(code.load_some(result, at, count), code.totals(sums)), result, at, count)
    return code.compile(unroll=False)


def _lay_out(
    code: Code,
    step: int,
    source: tuple[Value, Value],
    target: tuple[Value, Value],
    rows: Value,
    sizes: tuple[Value, Value, Value, Value],
) -> None:
    """Rows of pixels to where a table says, channel by channel; with step 2, even and odd columns apart."""
    channels, height, width, plane = sizes
    with code.loop(channels) as channel, code.loop(height) as row:
        line = code.plus(source[1], code.times(code.plus(code.times(channel, height), row), width))
        image = code.plus(target[1], code.times(channel, plane))
        to = [code.plus(image, code.look_up(rows, code.plus(code.times(row, step), part))) for part in range(step)]

        def move(first: Value, counts: list[Value] | None, parts: list[Value] | None) -> None:
            values = code.load_line(source[0], code.plus(line, code.times(first, step)), step, counts)
            for part, value in enumerate(code.parted(values)):
                at = code.plus(to[part], first)
                code.store_line([value], target[0], at, parts and parts[part : part + 1])

        _each_vector(code, width, step, move)


def _bring_back(
    code: Code,
    step: int,
    source: tuple[Value, Value],
    target: tuple[Value, Value],
    sizes: tuple[Value, Value, Value, Value],
) -> None:
    """The way back: rows from where a table says; with step 2, even and odd columns are joined."""
    channels, height, width, plane = sizes
    summed, rows = source
    with code.loop(channels) as channel, code.loop(height) as row:
        line = code.plus(target[1], code.times(code.plus(code.times(channel, height), row), width))
        image = code.times(channel, plane)
        starts = [code.plus(image, code.look_up(rows, code.plus(code.times(row, step), part))) for part in range(step)]

        def move(first: Value, counts: list[Value] | None, _: list[Value] | None) -> None:
            values = [code.load(summed, code.plus(start, first)) for start in starts]
            code.store_line(code.joined(values), target[0], code.plus(line, code.times(first, step)), counts)

        _each_vector(code, width, step, move)


def _each_vector(
    code: Code, width: Value, step: int, work: Callable[[Value, list[Value] | None, list[Value] | None], None]
) -> None:
    """Work on the vectors of a row: whole ones, then what is left of it.

    Each time the first number of the parts is given, how many numbers there are in each vector of the row, and how
    many in each of its parts; None stands for whole vectors.
    """
    b = code.builder
    whole = b.udiv(width, code.whole(step * LANES))
    with code.loop(whole) as number:
        work(code.times(number, LANES), None, None)
    first = code.times(whole, LANES)
    left = b.sub(width, code.times(first, step))
    with code.loop(b.zext(b.icmp_unsigned("!=", left, code.whole(0)), code.index)):
        counts = [code.clipped(b.sub(left, code.whole(part * LANES))) for part in range(step)]
        parts = [code.clipped(b.udiv(code.plus(left, step - 1 - part), code.whole(step))) for part in range(step)]
        work(first, counts, parts)
