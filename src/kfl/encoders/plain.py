"""Controls: what is gained if an encoder does nothing, or nothing sensible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.core.errors import ConfigError
from kfl.core.randomness import torch_seed
from kfl.encoders.base import Encoder

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Raw(Encoder):
    """The numbers of a sample in a row.

    >>> Raw().size((1, 28, 28))
    784
    """

    name: ClassVar[str] = "raw"

    def size(self, shape: tuple[int, ...]) -> int:
        """All of them."""
        found = math.prod(shape)
        if self.numbers not in (None, found):
            raise ConfigError("encoder", f"raw-{self.numbers}", f"raw: samples of shape {shape} have {found} numbers")
        return found

    def encode(self, samples: Tensor) -> Tensor:
        """Flatten."""
        return samples.flatten(1).float()

    def flops(self, shape: tuple[int, ...]) -> float:
        """Nothing is computed."""
        return 0.0


@dataclass(frozen=True)
class Random(Encoder):
    """A layer with random weights and a ReLU.

    >>> import torch
    >>> Random(8).encode(torch.ones(2, 3, 5)).shape
    torch.Size([2, 8])
    """

    name: ClassVar[str] = "random"
    usual: ClassVar[int] = 256

    def size(self, shape: tuple[int, ...]) -> int:
        """As many as asked for, 256 otherwise."""
        return self.numbers or self.usual

    def encode(self, samples: Tensor) -> Tensor:
        """Multiply by Gaussian weights that are always the same, and drop what is negative."""
        import torch

        flat = samples.flatten(1).float()
        draw = torch.Generator().manual_seed(torch_seed(0, "random encoder", flat.shape[1], self.size(())))
        weights = torch.randn(flat.shape[1], self.size(()), generator=draw) / math.sqrt(flat.shape[1])
        return (flat @ weights).relu()

    def flops(self, shape: tuple[int, ...]) -> float:
        """A product with a matrix."""
        return 1.0 * math.prod(shape) * self.size(shape)
