"""The paper's CNN with full-batch steps: compiled convolutions, dense layers by hand.

A pass over n samples: conv–ReLU–pool twice on blocks of 16 samples, then the dense layers on one row per sample.
Backward, the dense layers give ∂/∂(pooled), the second convolution turns it into the gradients of its weights and
inputs, the first only into that of its weights. Convolutions are in the type of the weights; in bfloat16 only the
dense layers are shortened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kfl.engine import conv_kernels
from kfl.engine.base import Sgd
from kfl.engine.conv_kernels import ConvShape
from kfl.engine.dense import DenseGradients, DenseLayers, Numbers, decay
from kfl.engine.losses import Slopes
from kfl.engine.structure import ConvNet
from kfl.engine.vector_code import LANES
from kfl.engine.workspace import PADDING, Workspace, own_pages
from kfl.models import State


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Images channels last, one after another, zeros up to a whole block and a little more."""

    flat: Tensor
    count: int

    @staticmethod
    def empty(count: int, shape: tuple[int, ...], numbers: Numbers) -> tuple[ImageSamples, Tensor]:
        """Room for images, and a view of it as (samples, channels, height, width) to fill."""
        channels, height, width = shape
        pixels = channels * height * width
        flat = own_pages(whole_blocks(count) * LANES * pixels + PADDING, dtype=numbers.exact)
        images = flat[: count * pixels].view(count, height, width, channels).permute(0, 3, 1, 2)
        return ImageSamples(flat, count), images

    @staticmethod
    def of(images: Tensor, numbers: Numbers) -> ImageSamples:
        """Reorder (samples, channels, height, width)."""
        samples, room = ImageSamples.empty(len(images), tuple(images.shape[1:]), numbers)
        room.copy_(images)
        return samples

    def read(self, stored: NDArray[np.uint8], table: Tensor, indices: NDArray[np.int64]) -> None:
        """Fill with stored images of bytes, each byte replaced by the number the table has for it."""
        channels, *plane = stored.shape[1:]
        if len(indices) != self.count or (len(indices) and not 0 <= indices.min() <= indices.max() < len(stored)):
            raise IndexError(f"Indices go from {indices.min()} to {indices.max()}, of {len(stored)} samples.")
        kernel = conv_kernels.read_kernel(channels, math.prod(plane), str(table.dtype).removeprefix("torch."))
        stored, indices = np.ascontiguousarray(stored), np.ascontiguousarray(indices)
        kernel(stored.ctypes.data, table.data_ptr(), indices.ctypes.data, self.flat.data_ptr(), self.count)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.flat.nbytes


def whole_blocks(samples: int) -> int:
    """Blocks of 16 that hold so many samples."""
    return -(-samples // LANES)


class Convolution:
    """One pooled convolution at work: its weights as the kernels want them, and its velocity."""

    def __init__(self, name: str, shape: ConvShape, state: State) -> None:
        self.name = name
        self.shape = shape
        weight, self.bias = state[f"{name}.weight"], state[f"{name}.bias"].clone()
        self._used = shape.kernel * shape.channels
        # (outputs, kernel, lanes) with a row (x, c): see conv_kernels.
        self.rows = weight.new_zeros(shape.outputs, shape.kernel, shape.row_lanes)
        self.rows[:, :, : self._used] = weight.permute(0, 2, 3, 1).reshape(shape.outputs, shape.kernel, -1)
        self.velocity = torch.zeros_like(self.rows)
        self.bias_velocity = torch.zeros_like(self.bias)

    def taps(self) -> Tensor:
        """The weights in the order of the forward kernel."""
        together = conv_kernels.outputs_at_once(self.shape)
        groups = (self.shape.outputs // together, together)
        grid = self._grid(self.rows)
        return grid.view(*groups, *grid.shape[1:]).permute(0, 2, 4, 3, 1).contiguous()

    def descend(self, rate: float) -> None:
        """W ← W − η V, and the lanes that are no weights stay zero."""
        self.rows.add_(self.velocity, alpha=-rate)
        self.rows[:, :, self._used :] = 0
        self.bias.add_(self.bias_velocity, alpha=-rate)

    def trained(self) -> State:
        """Weight and bias by name, as PyTorch orders them."""
        weight = self._grid(self.rows).permute(0, 3, 1, 2).contiguous()
        return {f"{self.name}.weight": weight, f"{self.name}.bias": self.bias}

    def gradients(self) -> State:
        """After a backward pass without momentum, its gradients by name."""
        weight = self._grid(self.velocity).permute(0, 3, 1, 2).contiguous()
        return {f"{self.name}.weight": weight, f"{self.name}.bias": self.bias_velocity}

    def _grid(self, rows: Tensor) -> Tensor:
        """(outputs, y, x, c)"""
        shape = self.shape
        return rows[:, :, : self._used].reshape(shape.outputs, shape.kernel, shape.kernel, shape.channels)


def stride_of(net: ConvNet) -> int:
    """Numbers from one sample of the first convolution's output to the next: room for whole vectors."""
    return (net.shapes[0].pooled // LANES + 2) * LANES


def compile_kernels(net: ConvNet, numbers: Numbers) -> None:
    """Compile now what a network will need, half a second for the paper's, so that no round waits for it."""
    one, two = net.shapes
    number, stride = str(numbers.exact).removeprefix("torch."), stride_of(net)
    conv_kernels.read_kernel(one.channels, one.height * one.width, number)
    conv_kernels.to_blocks_kernel(one.pixels, number)
    conv_kernels.forward_kernel(one, number, True)
    conv_kernels.forward_kernel(two, number, False)
    for rows, distance in ((one.pooled, stride), (two.pooled, two.pooled)):
        conv_kernels.to_samples_kernel(rows, distance, number)
        conv_kernels.to_samples_kernel(rows, distance, None)
    conv_kernels.backward_kernel(two, number, (stride, stride))
    conv_kernels.weight_gradient_kernel(one, number, (one.pixels, stride))


class ConvPass:
    """Both convolutions over one set of images, with all buffers between them."""

    def __init__(self, net: ConvNet, images: ImageSamples, numbers: Numbers, memory: Workspace) -> None:
        self._net = net
        self._images = images
        self._number = str(numbers.exact).removeprefix("torch.")
        self._exact = numbers.exact
        self._memory = memory
        self._blocks = whole_blocks(images.count)
        self._stride = stride_of(net)
        shape = net.shapes[0]
        self._in_blocks = self._take("conv blocks", self._blocks, shape.pixels, LANES)
        kernel = conv_kernels.to_blocks_kernel(shape.pixels, self._number)
        kernel(images.flat.data_ptr(), self._in_blocks.data_ptr(), self._blocks)

    def forward(self, first: Convolution, second: Convolution) -> Tensor:
        """What the dense layers see: (samples, pooled), channels first as PyTorch flattens it."""
        self._pool(first, self._in_blocks, 0, channels_last=True)
        self._pool(second, self._buffer("pooled", 0), 1, channels_last=False)
        pooled = self._net.shapes[1].pooled
        return self._samples("pooled", 1, pooled)[: self._images.count]

    def backward(self, first: Convolution, second: Convolution, slope: Tensor, momentum: float) -> None:
        """Add the gradients to momentum · velocity, given ∂/∂(pooled) with zeros where the ReLU was."""
        one, two = self._net.shapes
        inner = self._samples("pooled", 0, self._stride)
        back = self._take("conv back", self._blocks * LANES, self._stride)
        for convolution in (first, second):
            decay(convolution.velocity, momentum)
            decay(convolution.bias_velocity, momentum)
        kernel = conv_kernels.backward_kernel(two, self._number, (self._stride, self._stride))
        kernel(
            inner.data_ptr(),
            slope.data_ptr(),
            self._samples("chosen", 1, two.pooled).data_ptr(),
            second.rows.data_ptr(),
            second.velocity.data_ptr(),
            back.data_ptr(),
            self._images.count,
        )
        second.bias_velocity.add_(slope.sum(0).view(two.outputs, -1).sum(1))
        kernel = conv_kernels.weight_gradient_kernel(one, self._number, (one.pixels, self._stride))
        kernel(
            self._images.flat.data_ptr(),
            back.data_ptr(),
            self._samples("chosen", 0, self._stride).data_ptr(),
            first.velocity.data_ptr(),
            self._images.count,
        )
        first.bias_velocity.add_(back[: self._images.count, : one.pooled].sum(0).view(-1, one.outputs).sum(0))

    def _pool(self, convolution: Convolution, blocks: Tensor, which: int, *, channels_last: bool) -> None:
        kernel = conv_kernels.forward_kernel(convolution.shape, self._number, channels_last)
        taps = convolution.taps()
        kernel(
            blocks.data_ptr(),
            taps.data_ptr(),
            convolution.bias.data_ptr(),
            self._buffer("pooled", which).data_ptr(),
            self._buffer("chosen", which).data_ptr(),
            self._blocks,
        )

    def _samples(self, what: str, which: int, stride: int) -> Tensor:
        """A pooled array with one row per sample."""
        blocks = self._buffer(what, which)
        rows = self._memory.take(f"{what} samples {which}", self._blocks * LANES, stride, dtype=blocks.dtype)
        number = None if blocks.dtype == torch.uint8 else self._number
        kernel = conv_kernels.to_samples_kernel(blocks.shape[1], stride, number)
        kernel(blocks.data_ptr(), rows.data_ptr(), self._blocks)
        return rows

    def _buffer(self, what: str, which: int) -> Tensor:
        dtype = torch.uint8 if what == "chosen" else self._exact
        shape = (self._blocks, self._net.shapes[which].pooled, LANES)
        return self._memory.take(f"{what} blocks {which}", *shape, dtype=dtype)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._memory.take(name, *shape, dtype=self._exact)


def train_cnn(
    net: ConvNet,
    state: State,
    images: ImageSamples,
    slopes: Slopes,
    sgd: Sgd,
    numbers: Numbers,
    memory: Workspace,
) -> State:
    """τ full-batch steps."""
    first, second = (Convolution(name, shape, state) for name, shape in zip(net.convolutions, net.shapes, strict=True))
    passes = ConvPass(net, images, numbers, memory)
    layers = DenseLayers(net.dense, state, sgd, numbers, memory)
    frozen = sgd.body_rate == 0
    for number in range(sgd.steps):
        if number == 0 or not frozen:
            pooled = passes.forward(first, second).to(numbers.low)
        logits = layers.forward(pooled)
        pull = slopes.of_features(layers.features)
        slope = layers.step(slopes.of_logits(logits, numbers.low), pull, to_inputs=not frozen)
        if slope is not None:
            passes.backward(first, second, _padded(slope, numbers, memory), sgd.momentum if number else 0.0)
            first.descend(sgd.body_rate)
            second.descend(sgd.body_rate)
    return {**first.trained(), **second.trained(), **layers.trained()}


class CnnGradients:
    """∇F at any weights, for one set of images."""

    def __init__(self, net: ConvNet, images: ImageSamples, slopes: Slopes, numbers: Numbers, memory: Workspace) -> None:
        self._net, self._slopes, self._numbers, self._memory = net, slopes, numbers, memory
        self._passes = ConvPass(net, images, numbers, memory)

    def __call__(self, state: State) -> State:
        """The gradient of every weight, overwritten by the next call."""
        net, numbers = self._net, self._numbers
        first, second = (
            Convolution(name, shape, state) for name, shape in zip(net.convolutions, net.shapes, strict=True)
        )
        layers = DenseGradients(net.dense, state, numbers, self._memory)
        logits = layers.forward(self._passes.forward(first, second).to(numbers.low))
        pull = self._slopes.of_features(layers.features)
        slope = layers.step(self._slopes.of_logits(logits, numbers.low), pull, to_inputs=True)
        assert slope is not None
        self._passes.backward(first, second, _padded(slope, numbers, self._memory), 0.0)
        return {**first.gradients(), **second.gradients(), **layers.gradients}


def _padded(slope: Tensor, numbers: Numbers, memory: Workspace) -> Tensor:
    """∂/∂(pooled) in the type of the convolutions, in a buffer that may be read past its end."""
    if slope.dtype == numbers.exact:
        return slope
    return memory.take("conv slope", *slope.shape, dtype=numbers.exact).copy_(slope)


def conv_features(net: ConvNet, state: State, images: ImageSamples, numbers: Numbers, memory: Workspace) -> Tensor:
    """Features of the samples; overwritten by the next call with this memory."""
    first, second = (Convolution(name, shape, state) for name, shape in zip(net.convolutions, net.shapes, strict=True))
    out = ConvPass(net, images, numbers, memory).forward(first, second).to(numbers.low)
    for place, name in enumerate(net.dense[:-1]):
        weight, bias = state[f"{name}.weight"].to(numbers.low), state[f"{name}.bias"].to(numbers.low)
        target = memory.take(f"feature {place}", len(out), len(bias), dtype=numbers.low)
        out = torch.addmm(bias, out, weight.t(), out=target).relu_()
    return out
