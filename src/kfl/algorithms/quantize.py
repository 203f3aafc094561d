"""Numbers in few bits: knowledge on a grid between its least and largest value, updates on one around zero.

**Knowledge** (`encode`, `quantize_rows`).

With q bits a message of n numbers is n codes 0 … 2^q − 1 and its range, two float32 numbers: n q + 64 bits. The
values stand on the grid low + code · (high − low)/(2^q − 1).

Uploads are rounded at random, up or down with the probabilities that make the expected value exact: an average
over many devices then loses little, while the errors of rounding to the nearest would all lean the same way
where devices agree. The broadcast is one message for all and is rounded to the nearest: half the largest error,
and no draw. One value is off by at most one step of the grid at random, half a step to the nearest.

**Updates of weights** (`pack`, `unpack`) are many small numbers around zero, a few of them large, and what is lost in
one round is kept by its sender and added to the next (error feedback). So the grid is symmetric, s · {±1, ±3, … ±(2^q
− 1)}, one s for each array, chosen to lose as little as possible in squares, and rounding is to the nearest. With one
bit a value is its sign, and s is the array's mean magnitude (Bernstein et al. 2018 and Karimireddy et al. 2019 send
signs in this way). Codes travel as bytes, eight bits in each, so that what is charged is what is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfl.algorithms.uploads import ArrayFormat, UploadFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FULL_PRECISION_BITS = 32
"""Bits of a float32: from here on nothing is quantized."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """A message as it is sent: codes and their range."""

    codes: Tensor
    """Integers from 0 to 2^bits − 1, in the shape of the values."""
    low: float
    high: float
    bits: int

    def decode(self) -> Tensor:
        """The values on the grid, float32."""
        step = (self.high - self.low) / (2**self.bits - 1)
        values: Tensor = self.low + self.codes.double() * step
        return values.clamp(self.low, self.high).float()


def encode(values: Tensor, bits: int, generator: torch.Generator | None = None) -> Quantized:
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
        return Quantized(torch.zeros(values.shape, dtype=torch.int64), low, high, bits)
    chance = 0.5 if generator is None else torch.rand(exact.shape, generator=generator, dtype=torch.float64)
    codes = ((exact - low) / step + chance).floor().clamp(0, 2**bits - 1)
    return Quantized(codes.long(), low, high, bits)


def quantize_rows(values: Tensor, rows: Tensor, bits: int, generator: torch.Generator | None = None) -> Tensor:
    """What arrives of the chosen rows of a matrix after `bits` bits per value; the other rows are not sent.

    Values that are not finite are left as they are, for the receiver to refuse.
    """
    import torch

    if bits >= FULL_PRECISION_BITS or not bool(rows.any()) or not bool(torch.isfinite(values[rows]).all()):
        return values
    arrived = torch.zeros_like(values)
    arrived[rows] = encode(values[rows], bits, generator).decode().to(values)
    return arrived


SEARCHED_BITS = 8
"""Above this many bits the grid simply reaches the largest value: a search would gain nothing."""
SCALES_TRIED = 24
"""Sizes of the grid that are compared, each 0.9 of the one before."""
VALUES_TRIED = 2**16
"""On so many values of an array, evenly spread, at the most."""


def packed_format(sizes: Sequence[int], bits: int) -> UploadFormat:
    """The arrays that `pack` makes of arrays with so many values each.

    >>> [(name, form.shape, form.dtype) for name, form in packed_format([450, 6], bits=1).items()]
    [('scales', (2,), 'float32'), ('codes', (57,), 'uint8')]
    """
    if bits >= FULL_PRECISION_BITS:
        return {"values": ArrayFormat((sum(sizes),))}
    return {
        "scales": ArrayFormat((len(sizes),)),
        "codes": ArrayFormat((math.ceil(sum(sizes) * bits / 8),), "uint8"),
    }


def packed_bits(sizes: Sequence[int], bits: int) -> int:
    """Bits of a packed message: the codes in whole bytes, and a float32 for each array.

    >>> packed_bits([450, 6, 2400, 16], 1), packed_bits([450, 6, 2400, 16], 32)
    (3000, 91904)
    """
    if bits >= FULL_PRECISION_BITS:
        return sum(sizes) * FULL_PRECISION_BITS
    return 8 * math.ceil(sum(sizes) * bits / 8) + FULL_PRECISION_BITS * len(sizes)


def pack(values: Tensor, sizes: Sequence[int], bits: int) -> dict[str, Tensor]:
    """Some arrays, one after another in a row of numbers, as they are sent with `bits` bits per value.

    >>> import torch
    >>> sent = pack(torch.tensor([0.1, -0.3, 0.2, 5.0, 5.0]), [3, 2], bits=1)
    >>> sent["scales"].tolist(), unpack(sent, [3, 2], bits=1).tolist()
    ([0.20000000298023224, 5.0], [0.20000000298023224, -0.20000000298023224, 0.20000000298023224, 5.0, 5.0])
    """
    import torch

    if bits >= FULL_PRECISION_BITS:
        return {"values": values.detach().float().cpu()}
    scales, codes = [], []
    for part in values.detach().double().cpu().split(list(sizes)):
        scale = torch.tensor(_best_scale(part, bits), dtype=torch.float32)
        scales.append(scale)
        codes.append(_codes(part, scale.double(), bits))
    places = 1 << torch.arange(bits)
    ones = (torch.cat(codes)[:, None] & places != 0).flatten()
    spare = -len(ones) % 8
    rows = torch.cat([ones, ones.new_zeros(spare)]).view(-1, 8).to(torch.uint8)
    return {"scales": torch.stack(scales), "codes": (rows << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)}


def unpack(arrays: Mapping[str, Tensor], sizes: Sequence[int], bits: int) -> Tensor:
    """What `pack` sent, as a row of numbers in float64 on the CPU."""
    import torch

    if bits >= FULL_PRECISION_BITS:
        return arrays["values"].double().cpu()
    count = sum(sizes)
    rows = arrays["codes"].cpu().to(torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    codes = (rows.flatten()[: count * bits].view(count, bits).long() << torch.arange(bits)).sum(1)
    scale = arrays["scales"].cpu().double().repeat_interleave(torch.tensor(list(sizes)))
    # Rounded to float32, as a device holds it: both ends then agree to the last bit on what was sent.
    values: Tensor = (2 * codes - (2**bits - 1)) * scale
    return values.float().double()


def pack_updates(
    updates: Sequence[Tensor], kept: Sequence[Tensor], sizes: Sequence[int], bits: int
) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Pack each device's update with what its earlier ones lost; what this one loses is to be kept (error feedback).

    Args:
        updates: One row of numbers for each device.
        kept: What each device has kept so far.
        sizes: Values of each array in a row.
        bits: Of one value.

    Returns:
        The packed updates, and one row per device of what they lost, in float64 on the CPU.
    """
    import torch

    corrected = torch.stack(list(updates)).double().cpu() + torch.stack(list(kept)).double().cpu()
    sent = [pack(update, sizes, bits) for update in corrected]
    return sent, corrected - torch.stack([unpack(arrays, sizes, bits) for arrays in sent])


def to_row(arrays: Mapping[str, Tensor]) -> Tensor:
    """Return arrays one after another, as a row of numbers."""
    import torch

    return torch.cat([value.flatten() for value in arrays.values()])


def from_row(row: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return arrays of these shapes from a row of numbers."""
    parts = row.split([math.prod(shape) for shape in shapes.values()])
    return {name: part.reshape(tuple(shape)) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _codes(values: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The nearest points of the grid: 0 … 2^bits − 1 for the odd multiples of the scale."""
    import torch

    if not float(scale) > 0:  # nothing but zeros, or not finite: whatever is sent, the scale says so
        return torch.zeros(values.shape, dtype=torch.int64)
    top = 2**bits - 1
    return torch.floor((values / scale + top + 1) / 2).clamp(0, top).long()


def _best_scale(values: Tensor, bits: int) -> float:
    """The scale of the grid that loses least in squares: exact for one bit, the best of a few for more."""
    import torch

    magnitude = values.abs()
    if not len(values):
        return 0.0
    if bits == 1:
        return float(magnitude.mean())
    top = float(2**bits - 1)
    largest = float(magnitude.max()) / top
    if bits > SEARCHED_BITS or not 0 < largest < math.inf:
        return largest
    magnitude = magnitude[:: math.ceil(len(magnitude) / VALUES_TRIED)]  # of a large array a part says as much
    scales = largest * 0.9 ** torch.arange(SCALES_TRIED, dtype=torch.float64)[:, None]
    # Of magnitudes only: the grid is symmetric. The odd multiple nearest to |x|/s.
    odd = (2 * torch.floor(magnitude / scales / 2) + 1).clamp(max=top)
    fitted = (odd * magnitude).sum(1) / odd.square().sum(1)  # the best scale for these codes
    lost = (fitted[:, None] * odd - magnitude).square().sum(1)
    return float(fitted[int(lost.argmin())])
