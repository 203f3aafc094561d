"""Numbers in few bits: uniform quantisation of one message between its own least and largest value.

With q bits a message of n numbers is n codes 0 … 2^q − 1 and its range, two float32 numbers: n q + 64 bits. The
values stand on the grid low + code · (high − low)/(2^q − 1).

Uploads are rounded at random, up or down with the probabilities that make the expected value exact: an average
over many devices then loses little, while the errors of rounding to the nearest would all lean the same way
where devices agree. The broadcast is one message for all and is rounded to the nearest: half the largest error,
and no draw. One value is off by at most one step of the grid at random, half a step to the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FULL_PRECISION_BITS = 32
"""Bits of a float32: from here on nothing is quantised."""
RANGE_BITS = 64
"""Bits of the least and the largest value, which travel with the codes."""


@dataclass(frozen=True, eq=False)
class Quantised:
    """A message as it is sent: codes and their range."""

    codes: Tensor
    """Whole numbers from 0 to 2^bits − 1, in the shape of the values."""
    low: float
    high: float
    bits: int

    def decode(self) -> Tensor:
        """The values on the grid, float32."""
        step = (self.high - self.low) / (2**self.bits - 1)
        values: Tensor = self.low + self.codes.double() * step
        return values.clamp(self.low, self.high).float()


def encode(values: Tensor, bits: int, generator: torch.Generator | None = None) -> Quantised:
    """Finite values as codes of `bits` bits; rounded at random with a generator, to the nearest without.

    >>> import torch
    >>> encode(torch.tensor([0.0, 0.4, 1.0]), bits=1).codes.tolist()
    [0, 0, 1]
    """
    import torch

    exact = values.detach().double().cpu()
    low, high = float(exact.min()), float(exact.max())
    step = (high - low) / (2**bits - 1)
    if step == 0:
        return Quantised(torch.zeros(values.shape, dtype=torch.int64), low, high, bits)
    chance = 0.5 if generator is None else torch.rand(exact.shape, generator=generator, dtype=torch.float64)
    codes = ((exact - low) / step + chance).floor().clamp(0, 2**bits - 1)
    return Quantised(codes.long(), low, high, bits)


def quantise_rows(values: Tensor, rows: Tensor, bits: int, generator: torch.Generator | None = None) -> Tensor:
    """What arrives of the chosen rows of a matrix after `bits` bits per value; the other rows are not sent.

    Values that are not finite are left as they are, for the receiver to refuse.
    """
    import torch

    if bits >= FULL_PRECISION_BITS or not bool(rows.any()) or not bool(torch.isfinite(values[rows]).all()):
        return values
    arrived = torch.zeros_like(values)
    arrived[rows] = encode(values[rows], bits, generator).decode().to(values)
    return arrived


def message_bits(values: int, bits: int) -> int:
    """Bits of a message of so many values; the range travels along when they are quantised.

    >>> message_bits(640, 32), message_bits(640, 8)
    (20480, 5184)
    """
    return values * bits + (RANGE_BITS if bits < FULL_PRECISION_BITS else 0)
