"""What an encoder is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Encoder(ABC):
    """A fixed map from samples to numbers, the same on all devices.

    A new encoder is a subclass and a line in `kfl.encoders.names.ENCODERS`.
    """

    numbers: int | None = None
    """How many numbers it gives; None for its own choice."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raise this where the numbers of the same sample change: cached ones are then computed anew."""
    whitened: ClassVar[bool] = False
    """Whether all numbers vary about alike within classes, around a common origin: reports then need no scale."""

    @abstractmethod
    def size(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers it makes of a sample; DataError for a shape that it cannot take."""

    @abstractmethod
    def encode(self, samples: Tensor) -> Tensor:
        """Return the numbers of samples (n, *shape) in float32, (n, size)."""

    @abstractmethod
    def flops(self, shape: tuple[int, ...]) -> float:
        """Return the operations of one sample, counted as the work of networks (`kfl.models.profile`)."""

    @property
    def download_bits(self) -> float:
        """What a device must download before it can encode: nothing, where formulas say it all."""
        return 0.0
