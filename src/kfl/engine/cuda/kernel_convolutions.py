"""Convolution blocks by our own CUDA kernels (`convolution.cu`), each device with its own weights.

PyTorch has no fast way for many small convolutions with different weights: a grouped convolution uses a small part
of the GPU, and written-out windows are ten times the data. Here one block of convolution, bias, ReLU and pooling is
one kernel that reads each image from memory about once; so is each of the two halves of its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from kfl.engine.compile import CompileError
from kfl.engine.cuda.convolutions import Convolutions, GroupedConvolutions
from kfl.engine.nvrtc import CompiledKernels, Grid
from kfl.models.network import Convolution

if TYPE_CHECKING:
    from kfl.engine.precision import Arithmetic
    from kfl.models import State

SOURCE = Path(__file__).with_name("convolution.cu")
THREADS = 128
MOST_CHANNELS = 16
"""Four sums for each output channel are kept in registers."""
MOST_SUMS = 150
"""Sums that one thread keeps in registers while it adds up weight gradients."""
AGREEMENT = 1e-5
"""Largest distance from float64, relative to the norm, at which the kernels are trusted; rounding gives 1e-7."""


class Kernels(Protocol):
    """Something that can run the kernels of `convolution.cu`, compiled for one layer."""

    def launch(self, name: str, grid: Grid, threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Run one kernel on contiguous tensors."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """What the backward pass of one block needs."""

    images: Tensor
    code: Tensor


class KernelConvolutions(Convolutions):
    """Convolution blocks by kernels. Images are (devices, channels, height, width, samples)."""

    name = "kernel"

    def __init__(self, reason: str, compiled: Callable[[Convolution], Kernels]) -> None:
        self.reason = reason
        self._compile = compiled
        self._compiled: dict[Convolution, Kernels] = {}

    def prepare(self, inputs: Tensor) -> Tensor:
        """Samples side by side, in float32."""
        return inputs.to(torch.float32).permute(0, 2, 3, 4, 1).contiguous()

    def forward(
        self, layers: Sequence[Convolution], state: State, images: Tensor, *, keep: bool
    ) -> tuple[Tensor, object]:
        """One kernel per block."""
        kept, value = [], images
        for layer in layers:
            pooled, code = self._forward(layer, state, value)
            kept.append(_Kept(value, code))
            value = pooled
        return value.flatten(1, 3).transpose(1, 2), kept if keep else None

    def backward(
        self, layers: Sequence[Convolution], state: State, kept: object, gradient: Tensor
    ) -> Iterable[tuple[str, Tensor]]:
        """Two kernels per block; the first block's images need no gradient."""
        assert isinstance(kept, list)
        coming = gradient.transpose(1, 2).to(torch.float32).contiguous()
        found: list[tuple[str, Tensor]] = []
        for index in reversed(range(len(layers))):
            layer, own = layers[index], kept[index]
            weight, bias = self._weight_gradient(layer, own, coming)
            found += [(f"{layer.name}.weight", weight), (f"{layer.name}.bias", bias)]
            if index > 0:
                coming = self._input_gradient(layer, state, own, coming)
        return found

    def _forward(self, layer: Convolution, state: State, images: Tensor) -> tuple[Tensor, Tensor]:
        devices, samples = images.shape[0], images.shape[-1]
        height, width = layer.pooled
        shape = (devices, layer.channels_out, height, width, samples)
        pooled = torch.empty(shape, device=images.device)
        code = torch.empty(shape, dtype=torch.uint8, device=images.device)
        columns = 1 if layer.channels_out > 8 else min(width, 7)
        grid = (-(-samples // THREADS), height * -(-width // columns), devices)
        weight, bias = (state[f"{layer.name}.{part}"].contiguous() for part in ("weight", "bias"))
        self._of(layer).launch("forward", grid, THREADS, [images, weight, bias, pooled, code, samples, columns])
        return pooled, code

    def _weight_gradient(self, layer: Convolution, kept: _Kept, gradient: Tensor) -> tuple[Tensor, Tensor]:
        devices, samples = kept.images.shape[0], kept.images.shape[-1]
        groups = layer.channels_out // group_size(layer)
        # Work for a few thousand warps, so that none waits long for the last; more for each where there are many.
        parts = 2 if layer.pooled[0] > 8 else 1
        chunks = 2 if devices * groups * layer.channels_in > 400 and parts == 1 else 1
        blocks = -(-samples // (THREADS * chunks))
        taps = layer.channels_in * layer.kernel**2
        partial = torch.empty(devices, parts * blocks, layer.channels_out, taps + 1, device=gradient.device)
        grid = (blocks, parts * groups * layer.channels_in, devices)
        arguments: list[Tensor | int] = [kept.images, gradient, kept.code, partial, samples, parts, chunks]
        self._of(layer).launch("weight_gradient", grid, THREADS, arguments)
        square = (devices, layer.channels_out, layer.channels_in, layer.kernel, layer.kernel)
        # Two sums, so that both are contiguous: then all weights move in one operation.
        return partial[..., :taps].sum(1).reshape(square), partial[..., taps].sum(1)

    def _input_gradient(self, layer: Convolution, state: State, kept: _Kept, gradient: Tensor) -> Tensor:
        devices, samples = kept.images.shape[0], kept.images.shape[-1]
        result = torch.empty_like(kept.images)
        grid = (-(-samples // THREADS), -(-layer.height // 2) * -(-layer.width // 2), devices)
        weight = state[f"{layer.name}.weight"].contiguous()
        arguments: list[Tensor | int] = [gradient, kept.code, weight, result, samples]
        self._of(layer).launch("input_gradient", grid, THREADS, arguments)
        return result

    def _of(self, layer: Convolution) -> Kernels:
        if layer not in self._compiled:
            self._compiled[layer] = self._compile(layer)
        return self._compiled[layer]


def group_size(layer: Convolution) -> int:
    """Output channels whose weight gradients fit into the registers of one thread."""
    return max(
        size
        for size in range(1, layer.channels_out + 1)
        if layer.channels_out % size == 0 and (size == 1 or size * layer.kernel**2 <= MOST_SUMS)
    )


def compile_options(layer: Convolution) -> list[str]:
    """The sizes of a layer as preprocessor definitions for the kernels' source."""
    sizes = {
        "IC": layer.channels_in,
        "OC": layer.channels_out,
        "H": layer.height,
        "W": layer.width,
        "KS": layer.kernel,
        "GROUP": group_size(layer),
    }
    return [f"-D{name}={value}" for name, value in sizes.items()]


def try_kernels(
    layers: Sequence[Convolution], arithmetic: Arithmetic, where: torch.device
) -> tuple[KernelConvolutions | None, str]:
    """The kernels for these layers, compiled and compared with PyTorch in float64; or None. With the reason."""
    if where.type != "cuda" or torch.version.hip is not None:
        return None, "our kernels run on NVIDIA GPUs only"
    if arithmetic.precision == "float64":
        return None, "our kernels compute in float32"
    for layer in layers:
        if layer.channels_out > MOST_CHANNELS or layer.channels_in > MOST_CHANNELS or layer.kernel not in (3, 5):
            return None, f"our kernels are for at most {MOST_CHANNELS} channels and windows of 3×3 or 5×5"
    try:
        found = KernelConvolutions("", lambda layer: _compiled(layer, where))
        worst = _checked(tuple(layers), where)
    except (CompileError, OSError, RuntimeError) as problem:
        return None, f"our kernels do not run here: {problem}"
    if not worst <= AGREEMENT:
        return None, f"our kernels differ from PyTorch by {worst:.1e}"
    found.reason = f"our kernels agree with PyTorch to {worst:.0e}"
    return found, found.reason


@cache
def _compiled(layer: Convolution, where: torch.device) -> CompiledKernels:
    """Compiling takes about a second, so it is done once per process."""
    return CompiledKernels(SOURCE, compile_options(layer), where)


@cache
def _checked(layers: tuple[Convolution, ...], where: torch.device) -> float:
    return disagreement(KernelConvolutions("", lambda layer: _compiled(layer, where)), layers, where)


def disagreement(
    kernels: Convolutions, layers: Sequence[Convolution], where: torch.device, devices: int = 3, samples: int = 150
) -> float:
    """The largest relative distance of outputs and gradients from PyTorch's on a CPU in float64.

    The numbers are small multiples of 1/4, which float32 adds up exactly: with others, two values of a pooling
    window could be so close that rounding decides which is larger, and a whole gradient goes elsewhere. There are
    many equal values, so it is seen that the same one wins.
    """
    from kfl.engine.precision import Arithmetic

    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=draw).to(torch.float32) / 4

    state: State = {}
    for layer in layers:
        square = (devices, layer.channels_out, layer.channels_in, layer.kernel, layer.kernel)
        state[f"{layer.name}.weight"] = random(*square)
        state[f"{layer.name}.bias"] = random(devices, layer.channels_out)
    first, last = layers[0], layers[-1]
    images = random(devices, samples, first.channels_in, first.height, first.width)
    gradient = random(devices, samples, last.channels_out * last.pooled[0] * last.pooled[1])
    exact = GroupedConvolutions("", Arithmetic("float64", "cpu"))
    double = {name: value.double() for name, value in state.items()}
    outputs, kept = exact.forward(layers, double, exact.prepare(images), keep=True)
    expected = dict(exact.backward(layers, double, kept, gradient.double()))

    here = {name: value.to(where) for name, value in state.items()}
    found, kept = kernels.forward(layers, here, kernels.prepare(images.to(where)), keep=True)
    pairs = [(found, outputs)]
    pairs += [(value, expected[name]) for name, value in kernels.backward(layers, here, kept, gradient.to(where))]
    distances = [(a.double().cpu() - b).norm() / b.norm().clamp(min=1e-30) for a, b in pairs]
    return float(torch.stack(distances).max())
