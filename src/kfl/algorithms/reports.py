"""What a device reports of its classes, in few bits: counts, class means, and its covariance in random signs.

    means      μ_kc, less the device's own mean where that is sent, over its own standard deviation within classes; then
               turned by a rotation that all know, so that every number is about as large, and put on a grid of 2^b
               points between ± the largest. A dither that both ends know is added before rounding and taken off after
               it: the error is then uniform, has variance Δ²/12 and does not depend on the value (Roberts 1962).
    spread     the standard deviation within classes, its logarithm in 4 bits.
    center     the device's own mean in 16 bits; left out where features have a common origin and scale already.
    signs      sketches: signs of Σ_i ε_i (x_i − μ_{c(i)}) with random ε_i = ±1. Each is a draw of a Gaussian with the
               device's covariance; a server reads correlations off signs by the arcsine law.
    scatter    instead of signs: the scatter matrix itself, 32 bits a number.

Rotation, dither and signs ε follow from the run's seed and the device's number: they take no bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from kfl.core.randomness import torch_seed

FULL_BITS = 32
"""From here on numbers are sent as they are."""
SPREAD_BITS = 4
"""Of a standard deviation's logarithm: off by a few percent, averaged over devices."""
CENTER_BITS = 16
SMALLEST_SPREAD = 1e-3
"""Of a feature, relative to the largest of the same device: a constant feature has none."""


def triangle(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, in a row."""
    rows, columns = torch.triu_indices(*matrix.shape)
    return matrix[rows, columns]


def square(triangle: Tensor, d: int) -> Tensor:
    """Return the symmetric matrix of an upper triangle."""
    rows, columns = torch.triu_indices(d, d)
    found = torch.zeros(d, d, dtype=triangle.dtype)
    found[rows, columns] = triangle
    found[columns, rows] = triangle
    return found


def pack_means(relative: Tensor, held: Tensor, bits: int, seed: int, dither: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize class means.

    Args:
        relative: (…, classes, d), in units of the device's own spread.
        held: Which of them are sent, (…, classes).
        bits: Of one number.
        seed: The run's seed.
        dither: Of all rows, by `dither_of`.

    Returns:
        Codes (rows, ⌈d bits/8⌉) in uint8 of those that are sent, and each row's largest magnitude in float32.
    """
    turned, dither = rotated(relative, seed)[held], dither[held]
    largest = turned.abs().amax(1).float()
    step = 2 * largest.double() / (2**bits - 1)
    shifted = (turned + largest[:, None]) / step.clamp(min=1e-300)[:, None] + dither
    return pack_codes(shifted.round().clamp(0, 2**bits - 1).long(), bits), largest


def unpack_means(codes: Tensor, largest: Tensor, d: int, bits: int, seed: int, dither: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `pack_means` sent, (rows, d), and the variance of its error in each number, (rows,)."""
    step = 2 * largest.double() / (2**bits - 1)
    turned = (unpack_codes(codes, bits, d).double() - dither) * step[:, None] - largest.double()[:, None]
    return rotated(turned, seed, back=True), step.square() / 12


def pack_range(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Put numbers (…, n) on a grid between their least and largest: codes (…, ⌈n bits/8⌉), ranges (…, 2) in float32."""
    ends = torch.stack([values.amin(-1), values.amax(-1)], -1).float()
    step = (ends[..., 1:] - ends[..., :1]).double() / (2**bits - 1)
    codes = ((values - ends[..., :1].double()) / step.clamp(min=1e-300)).round().clamp(0, 2**bits - 1).long()
    return pack_codes(codes.reshape(-1, codes.shape[-1]), bits).reshape(*values.shape[:-1], -1), ends


def unpack_range(codes: Tensor, ends: Tensor, d: int, bits: int) -> Tensor:
    """Return what `pack_range` sent, (…, d) in float64."""
    low, high = ends.double()[..., :1], ends.double()[..., 1:]
    numbers = unpack_codes(codes.reshape(-1, codes.shape[-1]), bits, d).reshape(*codes.shape[:-1], d)
    result: Tensor = low + numbers.double() * (high - low) / (2**bits - 1)
    return result


def sketch_signs(away: Tensor, number: int, seed: int, devices: Sequence[int]) -> Tensor:
    """Return which random sums of what samples differ from their class means are not negative: (devices, number, d).

    Args:
        away: The differences of each device, (devices, n, d).
        number: How many sums each device draws.
        seed: The run's seed.
        devices: Their numbers.

    >>> sketch_signs(torch.tensor([[[1.0, -2.0]]]), 2, seed=0, devices=[0]).sum(2).tolist()
    [[1, 1]]
    """
    size = (number, away.shape[1])
    draws = [torch.randint(0, 2, size, generator=_generator("sketches", seed, device)) for device in devices]
    return (torch.stack(draws) * 2 - 1).to(away) @ away >= 0


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Pack rows of integers below 2^bits into bytes.

    >>> pack_codes(torch.tensor([[1, 0, 1, 1]]), bits=1).tolist()
    [[13]]
    """
    ones = (codes[:, :, None] >> torch.arange(bits) & 1).flatten(1)
    padded = torch.nn.functional.pad(ones, (0, -ones.shape[1] % 8)).unflatten(1, (-1, 8)).to(torch.uint8)
    result: Tensor = (padded << torch.arange(8, dtype=torch.uint8)).sum(2).to(torch.uint8)
    return result


def unpack_codes(packed: Tensor, bits: int, number: int) -> Tensor:
    """Undo `pack_codes`: (rows, number) in int64."""
    ones = (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1)[:, : number * bits]
    result: Tensor = (ones.unflatten(1, (number, bits)).long() << torch.arange(bits)).sum(2)
    return result


def rotated(rows: Tensor, seed: int, *, back: bool = False) -> Tensor:
    """Turn rows (…, d) by an orthogonal matrix that follows from the seed, or back."""
    signs, cosines = _rotation(rows.shape[-1], seed)
    return rows @ cosines.T * signs if back else (rows * signs) @ cosines


@lru_cache(maxsize=4)
def _rotation(d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random signs, then a cosine transform: it spreads any one number over all of them."""
    signs = torch.randint(0, 2, (d,), generator=_generator("rotation", seed, 0)).double() * 2 - 1
    place = torch.arange(d, dtype=torch.float64)
    cosines = torch.cos(math.pi / d * (place[:, None] + 0.5) * place) * math.sqrt(2 / d)
    cosines[:, 0] /= math.sqrt(2)
    return signs, cosines


def dither_of(classes: int, d: int, seed: int, devices: Sequence[int]) -> Tensor:
    """Return numbers between −½ and ½ that both ends know: (devices, classes, d)."""
    found = torch.empty(len(devices), classes, d, dtype=torch.float64)
    for row, device in zip(found, devices, strict=True):
        torch.rand((classes, d), generator=_generator("dither", seed, device), out=row)
    return found.sub_(0.5)


def _generator(purpose: str, seed: int, device: int) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(seed, f"common knowledge, {purpose}", 0, device))
