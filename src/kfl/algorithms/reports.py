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


def own_statistics(means: Tensor, counts: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Return a device's own mean and its standard deviation within classes, both (d,); the latter is never zero.

    Args:
        means: Class means, (classes, d).
        counts: Samples of each class.
        away: What each sample differs from the mean of its class, (n, d).
    """
    center = (counts[:, None] * means).sum(0) / counts.sum().clamp(min=1)
    freedom = float(counts.sum() - (counts > 0).sum())
    if freedom <= 0:
        return center, torch.ones_like(center)
    spread = (away.square().sum(0) / freedom).sqrt()
    largest = float(spread.max())
    return center, spread.clamp(min=SMALLEST_SPREAD * largest) if largest > 0 else torch.ones_like(spread)


def moments(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts and means of each class, and what samples (n, d) differ from these."""
    one_hot = torch.nn.functional.one_hot(y, classes).double()
    counts = one_hot.sum(0)
    means = one_hot.T @ x / counts.clamp(min=1)[:, None]
    return counts, means, x - means[y]


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


def pack_means(relative: Tensor, held: Tensor, bits: int, seed: int, device: int) -> tuple[Tensor, Tensor]:
    """Quantize class means.

    Args:
        relative: (classes, d), in units of the device's own spread.
        held: Which rows are sent, (classes,).
        bits: Of one number.
        seed: The run's seed.
        device: The device's number.

    Returns:
        Codes (classes, ⌈d bits/8⌉) in uint8, and each row's largest magnitude in float32, zero where none is sent.
    """
    turned = rotated(relative, seed)
    largest = torch.where(held, turned.abs().amax(1), 0.0).float()
    step = 2 * largest.double() / (2**bits - 1)
    shifted = (turned + largest[:, None]) / step.clamp(min=1e-300)[:, None] + _dither(turned.shape, seed, device)
    codes = shifted.round().clamp(0, 2**bits - 1) * held[:, None]
    return pack_codes(codes.long(), bits), largest


def unpack_means(codes: Tensor, largest: Tensor, d: int, bits: int, seed: int, device: int) -> tuple[Tensor, Tensor]:
    """Return what `pack_means` sent, (classes, d), and the variance of its error in each number, (classes,)."""
    step = 2 * largest.double() / (2**bits - 1)
    numbers = unpack_codes(codes, bits, d).double() - _dither((len(codes), d), seed, device)
    turned = numbers * step[:, None] - largest.double()[:, None]
    return rotated(turned, seed, back=True), step.square() / 12


def pack_range(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Put numbers on a grid between their least and largest: codes (⌈n bits/8⌉,) and the range (2,) in float32."""
    ends = torch.stack([values.min(), values.max()]).float()
    step = (ends[1] - ends[0]).double() / (2**bits - 1)
    codes = ((values - ends[0].double()) / step.clamp(min=1e-300)).round().clamp(0, 2**bits - 1)
    return pack_codes(codes.long()[None], bits)[0], ends


def unpack_range(codes: Tensor, ends: Tensor, d: int, bits: int) -> Tensor:
    """Return what `pack_range` sent, (d,) in float64."""
    low, high = ends.double()
    result: Tensor = low + unpack_codes(codes[None], bits, d)[0].double() * (high - low) / (2**bits - 1)
    return result


def sketch_signs(away: Tensor, number: int, seed: int, device: int) -> Tensor:
    """Return the signs of random sums of what samples differ from their class means: (number, d) of ±1.

    >>> sketch_signs(torch.tensor([[1.0, -2.0]]), 2, seed=0, device=0).abs().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    random = torch.randint(0, 2, (number, len(away)), generator=_generator("sketches", seed, device)) * 2 - 1
    return torch.where(random.to(away) @ away >= 0, 1.0, -1.0).to(torch.float64)


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
    """Turn rows (n, d) by an orthogonal matrix that follows from the seed, or back."""
    signs, cosines = _rotation(rows.shape[1], seed)
    return rows @ cosines.T * signs if back else (rows * signs) @ cosines


@lru_cache(maxsize=4)
def _rotation(d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random signs, then a cosine transform: it spreads any one number over all of them."""
    signs = torch.randint(0, 2, (d,), generator=_generator("rotation", seed, 0)).double() * 2 - 1
    place = torch.arange(d, dtype=torch.float64)
    cosines = torch.cos(math.pi / d * (place[:, None] + 0.5) * place) * math.sqrt(2 / d)
    cosines[:, 0] /= math.sqrt(2)
    return signs, cosines


def _dither(shape: tuple[int, ...] | torch.Size, seed: int, device: int) -> Tensor:
    """Numbers between −½ and ½ that both ends know."""
    return torch.rand(tuple(shape), generator=_generator("dither", seed, device), dtype=torch.float64) - 0.5


def _generator(purpose: str, seed: int, device: int) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(seed, f"common knowledge, {purpose}", 0, device))
