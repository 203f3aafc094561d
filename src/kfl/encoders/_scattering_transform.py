"""Wavelet scattering of images: how much of each direction and scale there is, and where, roughly.

With x a channel, φ a Gaussian low-pass filter of width 2^J pixels and ψ_jθ Morlet wavelets at J scales and L angles:

    S0 = x ⋆ φ        S1(j, θ) = |x ⋆ ψ_jθ| ⋆ φ        S2(j, θ, j', θ') = ||x ⋆ ψ_jθ| ⋆ ψ_j'θ'| ⋆ φ   for j < j'

each kept at every 2^J-th pixel (Bruna and Mallat, "Invariant Scattering Convolution Networks", 2013). Filters,
padding and order of the paths are those of the package kymatio, which the tests hold these numbers to. All products are
taken in the Fourier domain; a map that holds low frequencies only goes on at half the resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SCALES = 2
"""J: wavelets of one and two pixels' width."""
ANGLES = 8
"""L."""
PATHS = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
"""Maps of one channel: 1 + 16 + 64."""
AT_ONCE = 32
"""Images whose maps are in memory together: few enough for a processor's cache."""


@dataclass(frozen=True, eq=False)
class FilterBank:
    """Filters for images of one size, padded to `size`."""

    size: tuple[int, int]
    low_pass: tuple[tuple[Tensor, Tensor], ...]
    """φ, every 2^J-th pixel and no padding, as a matrix along each axis: (kept, height/2^r), (kept, width/2^r)."""
    wavelets: tuple[tuple[Tensor, ...], ...]
    """ψ of scale j in the Fourier domain at resolutions 0 … j: (angles, height/2^r, width/2^r)."""


@torch.no_grad()
def scattering(images: Tensor) -> Tensor:
    """Scatter every image.

    Args:
        images: (n, height, width), at least 4 pixels each way, float32.

    Returns:
        (n, `PATHS`, about height/4, about width/4).

    >>> scattering(torch.zeros(2, 28, 32)).shape
    torch.Size([2, 81, 7, 8])
    """
    bank = filter_bank(*images.shape[-2:])
    return torch.cat([_scattered(some, bank) for some in images.split(AT_ONCE)])


def _scattered(images: Tensor, bank: FilterBank) -> Tensor:
    padded = _padded(images, bank.size)
    spectrum = torch.fft.fft2(padded)
    maps, second = [_low(padded, bank, 0)[:, None]], []
    for j, of_scale in enumerate(bank.wavelets):
        first = torch.fft.ifft2(_subsampled(spectrum[:, None] * of_scale[0], j)).abs()
        maps.append(_low(first, bank, j))
        if j + 1 < SCALES:
            again = torch.fft.fft2(first)
        for further in range(j + 1, SCALES):
            for angle in range(ANGLES):  # one at a time: all pairs at once do not fit the cache
                product = again[:, angle, None] * bank.wavelets[further][j]
                second.append(_low(torch.fft.ifft2(_subsampled(product, further - j)).abs(), bank, further))
    return torch.cat(maps + second, dim=1)


def _padded(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Reflect images at their edges until they have the size of the filters."""
    (height, width), (high, wide) = images.shape[-2:], size
    top, left = (high - height) // 2, (wide - width) // 2
    edges = (left, wide - width - left, top, high - height - top)
    return nn.functional.pad(images[:, None], edges, mode="reflect")[:, 0]


def _low(maps: Tensor, bank: FilterBank, resolution: int) -> Tensor:
    """What the low-pass filter leaves of maps at 2^-resolution."""
    down, right = bank.low_pass[resolution]
    return down @ maps @ right.T


def _subsampled(spectrum: Tensor, halvings: int) -> Tensor:
    """The spectrum of a map of which every 2^halvings-th pixel is kept: its folded mean."""
    if not halvings:
        return spectrum
    fold = 2**halvings
    height, width = spectrum.shape[-2:]
    result: Tensor = spectrum.unflatten(-1, (fold, width // fold)).unflatten(-3, (fold, height // fold)).mean((-4, -2))
    return result


@lru_cache(maxsize=8)
def filter_bank(height: int, width: int) -> FilterBank:
    """Make the filters for images of this size."""
    step = 2**SCALES
    high, wide = (((side + step) // step + 1) * step for side in (height, width))
    wavelets = []
    for j in range(SCALES):
        angles = [(ANGLES // 2 - 1 - theta) * math.pi / ANGLES for theta in range(ANGLES)]
        found = np.stack([_spectrum(_morlet(high, wide, 0.8 * 2**j, angle, 0.75 * math.pi / 2**j)) for angle in angles])
        wavelets.append(tuple(torch.from_numpy(_folded(_folded(found, r, -2), r, -1)).float() for r in range(j + 1)))
    low = tuple((_low_matrix(high, r), _low_matrix(wide, r)) for r in range(SCALES))
    return FilterBank((high, wide), low, tuple(wavelets))


def _low_matrix(size: int, resolution: int) -> Tensor:
    """The low-pass filter along one axis of maps at 2^-resolution, which has `size` pixels before it is subsampled."""
    # A Gaussian is the product of its parts along the axes: the second axis of one pixel's height gives one part.
    gaussian = _gabor(1, size, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0, rows=False)
    spectrum = _folded(np.fft.fft(gaussian[0]).real, resolution, -1)
    columns = np.fft.ifft(spectrum[:, None] * np.fft.fft(np.eye(len(spectrum)), axis=0), axis=0).real
    return torch.from_numpy(columns[:: 2 ** (SCALES - resolution)][1:-1].copy()).float()


def _spectrum(filter_: NDArray[np.complex128]) -> NDArray[np.float64]:
    """Its Fourier transform, which is real: the real part of a filter is even, its imaginary part odd."""
    return np.fft.fft2(filter_).real


def _folded(spectrum: NDArray[np.float64], resolution: int, axis: int) -> NDArray[np.float64]:
    """A filter for maps at 2^-resolution along an axis: frequencies too high for these are dropped, the rest folded."""
    size, fold = spectrum.shape[axis], 2**resolution
    kept = np.moveaxis(spectrum, axis, -1).copy()
    kept[..., int(size / fold / 2) : int(size / fold / 2) + int(size * (1 - 1 / fold))] = 0
    found: NDArray[np.float64] = kept.reshape(*kept.shape[:-1], fold, size // fold).sum(-2)
    return np.moveaxis(found, -1, axis)


def _morlet(height: int, width: int, sigma: float, angle: float, frequency: float) -> NDArray[np.complex128]:
    """A Gabor filter minus as much of its envelope as makes its mean zero."""
    slant = 4.0 / ANGLES
    wave = _gabor(height, width, sigma, angle, frequency, slant)
    envelope = _gabor(height, width, sigma, angle, 0.0, slant)
    found: NDArray[np.complex128] = wave - wave.sum() / envelope.sum() * envelope
    return found


def _gabor(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float, *, rows: bool = True
) -> NDArray[np.complex128]:
    """A wave under a Gaussian envelope, `1/slant` times as long across the wave, wrapped around the edges.

    Without `rows`, one axis of it: a Gaussian of unit sum instead of a surface of unit volume.
    """
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    curvature = turn @ np.diag([1.0, slant**2]) @ turn.T / (2 * sigma**2)
    total: NDArray[np.complex128] = np.zeros((height, width), np.complex128)
    for down in range(-2, 3) if rows else (0,):
        for right in range(-2, 3):
            y, x = np.mgrid[down * height : (down + 1) * height, right * width : (right + 1) * width].astype(float)
            envelope = curvature[0, 0] * y * y + 2 * curvature[0, 1] * y * x + curvature[1, 1] * x * x
            total += np.exp(-envelope + 1j * frequency * (y * np.cos(angle) + x * np.sin(angle)))
    volume = 2 * math.pi * sigma**2 / slant
    found: NDArray[np.complex128] = total / complex(volume if rows else math.sqrt(volume))
    return found
