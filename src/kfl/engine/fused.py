"""Rewrite of networks: blocks of convolution, ReLU and max pooling become one operation each (`blocks.c`).

A rewrite changes what autograd differentiates, never the loss: a block has the gradient of the three layers that it
replaces, and its parameters keep their names, so that states do not notice. PyTorch writes the whole convolved image to
memory and reads it back for ReLU and again for pooling; a block keeps the four pixels of a pooling cell in registers.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kfl.engine.compile import CompileError, load_library

SOURCE = Path(__file__).with_name("blocks.c")
MOST_VECTORS = 25
"""Vectors of 16 numbers in the rows of one filter, all of which have to stay in registers."""
MOST_VALUES = 2**17
"""Numbers of one image: it is kept on the stack while gradients are computed."""
TOLERANCE = 1e-5
"""Largest deviation from PyTorch in the self-check, relative to the largest value."""

log = logging.getLogger("kfl")


def rewrite(module: nn.Module) -> bool:
    """Replace the blocks of a network in place; returns whether there were any.

    Only sequences that are called as a whole are searched: the body and the sequences inside it.

    >>> from kfl.models import cnn
    >>> network = cnn()
    >>> rewrite(network), [type(layer).__name__ for layer in network.body[:4]]
    (True, ['Block', 'Identity', 'Identity', 'Block'])
    >>> list(network.state_dict()) == list(cnn().state_dict())
    True
    """
    found = list(_triples(getattr(module, "body", module)))
    for sequence, names in found:
        block = Block(sequence._modules[names[0]])  # type: ignore[arg-type]  # a convolution, by its pattern
        for name, layer in zip(names, (block, nn.Identity(), nn.Identity()), strict=True):
            sequence._modules[name] = layer
    return bool(found)


def has_blocks(module: nn.Module) -> bool:
    """Whether a network has blocks that `rewrite` would replace."""
    return any(True for _ in _triples(getattr(module, "body", module)))


def _triples(part: nn.Module) -> Iterator[tuple[nn.Sequential, list[str]]]:
    """Names of convolution, ReLU and pooling that follow each other, with the sequence that they are in."""
    if type(part) is not nn.Sequential or _is_hooked(part):
        return
    names = list(part._modules)
    for start in range(len(names)):
        layers = [part._modules[name] for name in names[start : start + 3]]
        if len(layers) == 3 and _is_block(*layers):
            yield part, names[start : start + 3]
    for layer in part._modules.values():
        if layer is not None:
            yield from _triples(layer)


def _is_hooked(*modules: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for module in modules for name in hooks)


def _is_block(conv: nn.Module, relu: nn.Module, pool: nn.Module) -> bool:
    """Whether three layers are exactly what a block computes; a subclass of a layer may be anything."""
    if type(conv) is not nn.Conv2d or type(relu) is not nn.ReLU or type(pool) is not nn.MaxPool2d:
        return False
    if _is_hooked(conv, relu, pool):
        return False
    rows, columns = conv.kernel_size
    plain_convolution = (
        rows == columns
        and conv.stride == (1, 1)
        and conv.padding in ((0, 0), "valid")
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and isinstance(conv.bias, nn.Parameter)
        and isinstance(conv.weight, nn.Parameter)
        and rows * -(-rows * conv.in_channels // 16) <= MOST_VECTORS
    )
    plain_pooling = (
        pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )
    return plain_convolution and plain_pooling


class Block(nn.Module):
    """Convolution, ReLU and max pooling as one operation, with the parameters of the convolution."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.train(conv.training)

    def forward(self, images: Tensor) -> Tensor:
        """(samples, channels, height, width) → (samples, filters, half the height, half the width)."""
        assert self.bias is not None
        if images.is_floating_point() and torch.is_autocast_enabled("cpu"):
            images = images.to(self.weight.dtype)  # the loops are faster in float32 than PyTorch's in bfloat16
        kernels = _kernels_for(images, self.weight)
        if kernels is None:
            convolved = functional.conv2d(images, self.weight, self.bias)
            return functional.max_pool2d(functional.relu(convolved), 2)
        found: Tensor = BlockFunction.apply(images, self.weight, self.bias, kernels)  # type: ignore[no-untyped-call]  # PyTorch's
        return found


def _kernels_for(images: Tensor, weight: Tensor) -> Kernels | None:
    """The compiled loops for these images; None where PyTorch computes them."""
    fits = (
        images.dim() == 4
        and images.device.type == "cpu"
        and images.dtype == weight.dtype
        and images.dtype in (torch.float32, torch.float64)
        and torch._C._functorch.peek_interpreter_stack() is None
    )
    if not fits or images.shape[1] != weight.shape[1] or min(images.shape[2:]) < weight.shape[2] + 1:
        return None
    filters, channels, size, _ = weight.shape
    return compiled_block(Shape(channels, filters, images.shape[2], images.shape[3], size), images.dtype)


class BlockFunction(torch.autograd.Function):
    """A block for autograd."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, kernels: Kernels) -> Tensor:
        """Pooled outputs, and which pixel of each cell has won, where there will be a gradient."""
        images, weight = images.contiguous(), weight.contiguous()
        learns = any(ctx.needs_input_grad)
        pooled, code = kernels.forward(images, weight, bias.contiguous(), with_code=learns)
        if learns:
            ctx.save_for_backward(images, weight, pooled, code)
            ctx.kernels = kernels
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of images, weights and bias."""
        kernels: Kernels = ctx.kernels
        images, weight, pooled, code = ctx.saved_tensors
        learns = ctx.needs_input_grad[0]
        return *kernels.backward(images, weight, pooled, code, gradient.contiguous(), to_images=learns), None


@dataclass(frozen=True)
class Shape:
    """The sizes of a block, which its compiled loops are made for."""

    channels: int
    filters: int
    height: int
    width: int
    kernel: int

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; a last odd row or column is dropped."""
        return (self.height - self.kernel + 1) // 2, (self.width - self.kernel + 1) // 2


@dataclass(frozen=True, eq=False)
class Kernels:
    """The compiled loops of one shape."""

    shape: Shape
    library: ctypes.CDLL
    scratch: int
    """Numbers of scratch memory that a call needs."""

    def forward(self, images: Tensor, weight: Tensor, bias: Tensor, *, with_code: bool) -> tuple[Tensor, Tensor]:
        """Outputs, and the winner of each cell (empty unless `with_code`)."""
        size = (len(images), self.shape.filters, *self.shape.pooled)
        pooled = images.new_empty(size)
        code = torch.empty(size if with_code else 0, dtype=torch.uint8)
        arrays = (images, weight, bias, pooled, code if with_code else None, images.new_empty(self.scratch))
        self.library.forward(*map(_address, arrays), ctypes.c_int64(len(images)))
        return pooled, code

    def backward(
        self, images: Tensor, weight: Tensor, pooled: Tensor, code: Tensor, gradient: Tensor, *, to_images: bool
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Gradients of images (where they are asked for), weights and bias."""
        of_images = torch.empty_like(images) if to_images else None
        of_weight, of_bias = torch.empty_like(weight), weight.new_empty(self.shape.filters)
        scratch = images.new_empty(self.scratch)
        arrays = (images, weight, pooled, code, gradient, of_weight, of_bias, of_images, scratch)
        self.library.backward(*map(_address, arrays), ctypes.c_int64(len(images)))
        return of_images, of_weight, of_bias


def _address(array: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.data_ptr())


@functools.cache
def compiled_block(shape: Shape, dtype: torch.dtype) -> Kernels | None:
    """Return the compiled and checked loops for blocks of one shape; None, with one line in the log, where none are."""
    if min(shape.pooled) < 1 or shape.channels * shape.height * shape.width > MOST_VALUES:
        return None
    real, integer = ("float", "int32_t") if dtype == torch.float32 else ("double", "int64_t")
    sizes = {"IC": shape.channels, "OC": shape.filters, "H": shape.height, "W": shape.width, "KS": shape.kernel}
    macros = [f"REAL={real}", f"INTEGER={integer}", *(f"{name}={value}" for name, value in sizes.items())]
    try:
        library = load_library(SOURCE, macros)
        library.scratch.restype = ctypes.c_int64
        kernels = Kernels(shape, library, int(library.scratch()))
        deviation = check(kernels, dtype)
        if not deviation <= TOLERANCE:
            raise CompileError(f"the compiled loops deviate from PyTorch by {deviation:.1e}")
    except CompileError as problem:
        log.warning("Convolution blocks are computed by PyTorch, several times slower: %s.", problem)
        return None
    return kernels


def check(kernels: Kernels, dtype: torch.dtype = torch.float32) -> float:
    """Return the largest deviation of outputs and gradients from PyTorch's, relative to the largest value of each."""
    shape, draw = kernels.shape, torch.Generator().manual_seed(0)

    def some(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype)

    images = some(19, shape.channels, shape.height, shape.width)  # a whole vector of images and a part of one
    weight, bias = some(shape.filters, shape.channels, shape.kernel, shape.kernel), some(shape.filters)
    pooled, code = kernels.forward(images, weight, bias, with_code=True)
    gradient = some(*pooled.shape)
    found = (pooled, *kernels.backward(images, weight, pooled, code, gradient, to_images=True))
    with torch.enable_grad():
        leaves = [value.double().requires_grad_() for value in (images, weight, bias)]
        convolved = functional.conv2d(leaves[0], leaves[1], leaves[2])
        wanted = functional.max_pool2d(functional.relu(convolved), 2)
        expected = (wanted, *torch.autograd.grad(wanted, leaves, gradient.double()))
    pairs = [(one, other.detach()) for one, other in zip(found, expected, strict=True) if one is not None]
    return max(float((one.double() - other).abs().max() / other.abs().max()) for one, other in pairs)
