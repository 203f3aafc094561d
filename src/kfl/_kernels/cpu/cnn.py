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

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.closed_form import Descent
from kfl._kernels.cpu import conv_kernels
from kfl._kernels.cpu.dense import DenseGradients, DenseLayers, decay
from kfl._kernels.cpu.vector_code import LANES
from kfl._kernels.memory import PADDING, Workspace, own_pages
from kfl._kernels.output_gradients import OutputGradients
from kfl.models import Convolution, Network, State


@dataclass(frozen=True, eq=False)
class ImageSamples:
    """Images channels last, one after another, zeros up to a whole block and a little more."""

    flat: Tensor
    count: int

    @staticmethod
    def empty(count: int, shape: tuple[int, ...], arithmetic: Arithmetic) -> tuple[ImageSamples, Tensor]:
        """Room for images, and a view of it as (samples, channels, height, width) to fill."""
        channels, height, width = shape
        pixels = channels * height * width
        flat = own_pages(whole_blocks(count) * LANES * pixels + PADDING, dtype=arithmetic.dtype)
        images = flat[: count * pixels].view(count, height, width, channels).permute(0, 3, 1, 2)
        return ImageSamples(flat, count), images

    @staticmethod
    def of(images: Tensor, arithmetic: Arithmetic) -> ImageSamples:
        """Reorder (samples, channels, height, width)."""
        samples, room = ImageSamples.empty(len(images), tuple(images.shape[1:]), arithmetic)
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


class ConvolutionWeights:
    """One pooled convolution at work: its weights as the kernels want them, and its velocity."""

    def __init__(self, layer: Convolution, state: State) -> None:
        self.layer = layer
        weight, self.bias = state[f"{layer.name}.weight"], state[f"{layer.name}.bias"].clone()
        self._used = layer.kernel * layer.channels_in
        # (outputs, kernel, lanes) with a row (x, c): see conv_kernels.
        self.rows = weight.new_zeros(layer.channels_out, layer.kernel, conv_kernels.row_lanes(layer))
        self.rows[:, :, : self._used] = weight.permute(0, 2, 3, 1).reshape(layer.channels_out, layer.kernel, -1)
        self.velocity = torch.zeros_like(self.rows)
        self.bias_velocity = torch.zeros_like(self.bias)

    def taps(self) -> Tensor:
        """The weights in the order of the forward kernel."""
        at_once = conv_kernels.outputs_at_once(self.layer)
        groups = (self.layer.channels_out // at_once, at_once)
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
        return {f"{self.layer.name}.weight": weight, f"{self.layer.name}.bias": self.bias}

    def gradients(self) -> State:
        """After a backward pass without momentum, its gradients by name."""
        weight = self._grid(self.velocity).permute(0, 3, 1, 2).contiguous()
        return {f"{self.layer.name}.weight": weight, f"{self.layer.name}.bias": self.bias_velocity}

    def _grid(self, rows: Tensor) -> Tensor:
        """(outputs, y, x, c)"""
        layer = self.layer
        return rows[:, :, : self._used].reshape(layer.channels_out, layer.kernel, layer.kernel, layer.channels_in)


def stride_of(network: Network) -> int:
    """Numbers from one sample of the first convolution's output to the next: room for whole vectors."""
    return (network.convolutions[0].outputs // LANES + 2) * LANES


def compile_kernels(network: Network, arithmetic: Arithmetic) -> None:
    """Compile now what a network will need, half a second for the paper's, so that no round waits for it."""
    one, two = network.convolutions
    number, stride = str(arithmetic.dtype).removeprefix("torch."), stride_of(network)
    conv_kernels.read_kernel(one.channels_in, one.height * one.width, number)
    conv_kernels.to_blocks_kernel(one.inputs, number)
    conv_kernels.forward_kernel(one, number, True)
    conv_kernels.forward_kernel(two, number, False)
    for rows, distance in ((one.outputs, stride), (two.outputs, two.outputs)):
        conv_kernels.to_samples_kernel(rows, distance, number)
        conv_kernels.to_samples_kernel(rows, distance, None)
    conv_kernels.backward_kernel(two, number, (stride, stride))
    conv_kernels.weight_gradient_kernel(one, number, (one.inputs, stride))


class ConvPass:
    """Both convolutions over one set of images, with all buffers between them."""

    def __init__(self, network: Network, images: ImageSamples, arithmetic: Arithmetic, memory: Workspace) -> None:
        self._network = network
        self._images = images
        self._number = str(arithmetic.dtype).removeprefix("torch.")
        self._exact = arithmetic.dtype
        self._memory = memory
        self._blocks = whole_blocks(images.count)
        self._stride = stride_of(network)
        layer = network.convolutions[0]
        self._in_blocks = self._take("conv blocks", self._blocks, layer.inputs, LANES)
        kernel = conv_kernels.to_blocks_kernel(layer.inputs, self._number)
        kernel(images.flat.data_ptr(), self._in_blocks.data_ptr(), self._blocks)

    def forward(self, first: ConvolutionWeights, second: ConvolutionWeights) -> Tensor:
        """What the dense layers see: (samples, pooled), channels first as PyTorch flattens it."""
        self._pool(first, self._in_blocks, 0, channels_last=True)
        self._pool(second, self._buffer("pooled", 0), 1, channels_last=False)
        pooled = self._network.convolutions[1].outputs
        return self._samples("pooled", 1, pooled)[: self._images.count]

    def backward(self, first: ConvolutionWeights, second: ConvolutionWeights, slope: Tensor, momentum: float) -> None:
        """Add the gradients to momentum · velocity, given ∂/∂(pooled) with zeros where the ReLU was."""
        one, two = self._network.convolutions
        inner = self._samples("pooled", 0, self._stride)
        back = self._take("conv back", self._blocks * LANES, self._stride)
        for convolution in (first, second):
            decay(convolution.velocity, momentum)
            decay(convolution.bias_velocity, momentum)
        kernel = conv_kernels.backward_kernel(two, self._number, (self._stride, self._stride))
        kernel(
            inner.data_ptr(),
            slope.data_ptr(),
            self._samples("chosen", 1, two.outputs).data_ptr(),
            second.rows.data_ptr(),
            second.velocity.data_ptr(),
            back.data_ptr(),
            self._images.count,
        )
        second.bias_velocity.add_(slope.sum(0).view(two.channels_out, -1).sum(1))
        kernel = conv_kernels.weight_gradient_kernel(one, self._number, (one.inputs, self._stride))
        kernel(
            self._images.flat.data_ptr(),
            back.data_ptr(),
            self._samples("chosen", 0, self._stride).data_ptr(),
            first.velocity.data_ptr(),
            self._images.count,
        )
        first.bias_velocity.add_(back[: self._images.count, : one.outputs].sum(0).view(-1, one.channels_out).sum(0))

    def _pool(self, convolution: ConvolutionWeights, blocks: Tensor, index: int, *, channels_last: bool) -> None:
        kernel = conv_kernels.forward_kernel(convolution.layer, self._number, channels_last)
        taps = convolution.taps()
        kernel(
            blocks.data_ptr(),
            taps.data_ptr(),
            convolution.bias.data_ptr(),
            self._buffer("pooled", index).data_ptr(),
            self._buffer("chosen", index).data_ptr(),
            self._blocks,
        )

    def _samples(self, what: str, index: int, stride: int) -> Tensor:
        """A pooled array with one row per sample."""
        blocks = self._buffer(what, index)
        rows = self._memory.take(f"{what} samples {index}", self._blocks * LANES, stride, dtype=blocks.dtype)
        number = None if blocks.dtype == torch.uint8 else self._number
        kernel = conv_kernels.to_samples_kernel(blocks.shape[1], stride, number)
        kernel(blocks.data_ptr(), rows.data_ptr(), self._blocks)
        return rows

    def _buffer(self, what: str, index: int) -> Tensor:
        dtype = torch.uint8 if what == "chosen" else self._exact
        shape = (self._blocks, self._network.convolutions[index].outputs, LANES)
        return self._memory.take(f"{what} blocks {index}", *shape, dtype=dtype)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._memory.take(name, *shape, dtype=self._exact)


def train_cnn(
    network: Network,
    state: State,
    images: ImageSamples,
    outputs: OutputGradients,
    descent: Descent,
    steps: int,
    arithmetic: Arithmetic,
    memory: Workspace,
) -> State:
    """τ full-batch steps."""
    first, second = (ConvolutionWeights(layer, state) for layer in network.convolutions)
    passes = ConvPass(network, images, arithmetic, memory)
    layers = DenseLayers(network.dense_names, state, descent, arithmetic, memory)
    rate = descent.rates.get(f"{network.convolutions[0].name}.weight", 0.0)
    for number in range(steps):
        if number == 0 or rate:
            pooled = passes.forward(first, second).to(arithmetic.factor_dtype)
        logits = layers.forward(pooled)
        pull = outputs.at_features(layers.features)
        slope = layers.step(outputs.at_logits(logits).to(arithmetic.factor_dtype), pull, to_inputs=rate != 0)
        if slope is not None:
            passes.backward(first, second, _padded(slope, arithmetic, memory), descent.momentum if number else 0.0)
            first.descend(rate)
            second.descend(rate)
    return {**first.trained(), **second.trained(), **layers.trained()}


class CnnGradients:
    """∇F at any weights, for one set of images."""

    def __init__(
        self,
        network: Network,
        images: ImageSamples,
        outputs: OutputGradients,
        arithmetic: Arithmetic,
        memory: Workspace,
    ) -> None:
        self._network, self._outputs, self._arithmetic, self._memory = network, outputs, arithmetic, memory
        self._passes = ConvPass(network, images, arithmetic, memory)

    def __call__(self, state: State) -> State:
        """The gradient of every weight, overwritten by the next call."""
        network, arithmetic = self._network, self._arithmetic
        first, second = (ConvolutionWeights(layer, state) for layer in network.convolutions)
        layers = DenseGradients(network.dense_names, state, arithmetic, self._memory)
        logits = layers.forward(self._passes.forward(first, second).to(arithmetic.factor_dtype))
        pull = self._outputs.at_features(layers.features)
        slope = layers.step(self._outputs.at_logits(logits).to(arithmetic.factor_dtype), pull, to_inputs=True)
        assert slope is not None
        self._passes.backward(first, second, _padded(slope, arithmetic, self._memory), 0.0)
        return {**first.gradients(), **second.gradients(), **layers.gradients}


def _padded(slope: Tensor, arithmetic: Arithmetic, memory: Workspace) -> Tensor:
    """∂/∂(pooled) in the type of the convolutions, in a buffer that may be read past its end."""
    if slope.dtype == arithmetic.dtype:
        return slope
    return memory.take("conv slope", *slope.shape, dtype=arithmetic.dtype).copy_(slope)


def conv_features(
    network: Network, state: State, images: ImageSamples, arithmetic: Arithmetic, memory: Workspace
) -> Tensor:
    """Features of the samples; overwritten by the next call with this memory."""
    first, second = (ConvolutionWeights(layer, state) for layer in network.convolutions)
    out = ConvPass(network, images, arithmetic, memory).forward(first, second).to(arithmetic.factor_dtype)
    for index, name in enumerate(network.dense_names[:-1]):
        weight, bias = (
            state[f"{name}.weight"].to(arithmetic.factor_dtype),
            state[f"{name}.bias"].to(arithmetic.factor_dtype),
        )
        target = memory.take(f"feature {index}", len(out), len(bias), dtype=arithmetic.factor_dtype)
        out = torch.addmm(bias, out, weight.t(), out=target).relu_()
    return out
