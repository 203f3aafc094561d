"""Synthetic images: discs and boxes of random size, place and color that lie on one another like leaves.

Edges, areas and occlusion make their statistics those of photographs (Lee, Mumford, Huang, "Occlusion models for
natural images", 2001), and networks that train on them see much of what photographs teach (Baradad et al., "Learning
to see by looking at noise", 2021). Here they only say how scattering coefficients vary together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kfl.core.randomness import stream

LEAVES = 20
"""On each image; the last ones lie on top."""
SMALLEST, LARGEST = 0.04, 0.6
"""Radius of a leaf as a part of the shorter side; small ones are many: density 1/r³."""
TEXTURE = 0.04
"""Standard deviation of the 1/f noise on each image."""


def dead_leaves(count: int, channels: int, height: int, width: int) -> NDArray[np.float32]:
    """Draw images, always the same ones: (count, channels, height, width) from 0 to 1.

    >>> images = dead_leaves(2, channels=3, height=8, width=8)
    >>> images.shape, bool(images.min() >= 0), bool(images.max() <= 1)
    ((2, 3, 8, 8), True, True)
    """
    return np.stack([_image(stream(0, "dead leaves", index), channels, height, width) for index in range(count)])


def _image(draw: np.random.Generator, channels: int, height: int, width: int) -> NDArray[np.float32]:
    y, x = (np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None] + 0.5) / width
    ratio = width / height
    image = np.empty((channels, height, width))
    image[:] = _color(draw, channels)[:, None, None]
    # Inverse of the distribution function of a density that falls as 1/r³ between two ends.
    u = draw.random(LEAVES)
    radius = 1 / np.sqrt(1 / SMALLEST**2 - u * (1 / SMALLEST**2 - 1 / LARGEST**2))
    for r in radius:
        down, right, turn = draw.random(), draw.random(), draw.random() * np.pi
        across, along = (x - right) * ratio, y - down
        if draw.random() < 0.5:
            inside = across**2 + along**2 < r**2
        else:
            longer = r * draw.uniform(1.0, 2.5)
            one, other = np.cos(turn) * across + np.sin(turn) * along, np.cos(turn) * along - np.sin(turn) * across
            inside = (abs(one) < longer) & (abs(other) < r * 0.7)
        image[:, inside] = _color(draw, channels)[:, None]
    return np.clip(image + TEXTURE * _texture(draw, height, width), 0, 1).astype(np.float32)


def _color(draw: np.random.Generator, channels: int) -> NDArray[np.float64]:
    """Channels that mostly rise and fall together, as in photographs."""
    return np.clip(draw.random() + 0.15 * draw.standard_normal(channels), 0, 1)


def _texture(draw: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """1/f noise of unit variance."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(np.fft.fft2(draw.standard_normal((height, width))) / frequency).real
    found: NDArray[np.float64] = noise / noise.std()
    return found
