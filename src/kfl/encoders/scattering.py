"""Scattering coefficients of images, projected on the directions in which drawn images vary most, and whitened.

    s = log(scattering + 0.001), averaged to 4 × 4 places        81 · 16 numbers for each channel
    x_j = q_j · (s − r) / √(0.9 λ_j + 0.1 λ̄)                      j = 1 … 256

r, q_j and λ_j are mean, principal directions and variances of s over 3,000 images of `dead_leaves`, and λ̄ the mean
variance: no data is looked at. The first numbers are those of a shorter encoding, so that `scattering-64` is part of
`scattering`. For color images of 32 × 32 pixels and gray ones of 28 × 28 the projection comes with the package
(`python -m studies.scattering_projection` makes the files); for other sizes it is computed at first use and kept.
"""

from __future__ import annotations

import io
import logging
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, DataError
from kfl.core.files import atomic_file
from kfl.data.storage import resolve_cache_dir
from kfl.encoders.base import Encoder

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("kfl")

IMAGES = 3000
"""Drawn images that a projection is fitted to."""
MOST_NUMBERS = 256
PLACES = 4
"""Maps are averaged to this many places along each axis."""
OFFSET = 1e-3
"""Added before the logarithm; images go from 0 to 1."""
SMALLEST_SIDE = 8


@dataclass(frozen=True, eq=False)
class Projection:
    """Which combinations of the logarithms of coefficients are kept."""

    mean: NDArray[np.float32]
    """r, (coefficients,)."""
    directions: NDArray[np.float32]
    """q_j / √(0.9 λ_j + 0.1 λ̄), (256, coefficients)."""


@dataclass(frozen=True)
class Scattering(Encoder):
    """Wavelet scattering of images of any size and number of channels.

    >>> import torch
    >>> Scattering(64).encode(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 64])
    """

    name: ClassVar[str] = "scattering"
    whitened: ClassVar[bool] = True

    def size(self, shape: tuple[int, ...]) -> int:
        """As many numbers as asked for, 256 at most."""
        if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
            raise DataError(
                f"The encoder scattering takes images (channels, height, width) of at least {SMALLEST_SIDE} × "
                f"{SMALLEST_SIDE} pixels, but samples here have the shape {shape}."
            )
        if self.numbers is not None and self.numbers > MOST_NUMBERS:
            raise ConfigError("encoder", f"scattering-{self.numbers}", f"scattering with at most {MOST_NUMBERS}")
        return self.numbers or MOST_NUMBERS

    def encode(self, samples: Tensor) -> Tensor:
        """Scatter and project images with values from 0 to 1."""
        import torch

        shape = tuple(samples.shape[1:])
        projection = projection_for(shape)
        directions = torch.from_numpy(projection.directions[: self.size(shape)])
        return (coefficients(samples) - torch.from_numpy(projection.mean)) @ directions.T

    def flops(self, shape: tuple[int, ...]) -> float:
        """What the formula takes, counted as the work of networks is: see `kfl.models.profile`.

        A Fourier transform of N complex numbers takes 4 N log₂ N operations (split radix), of real ones half of it. A
        complex number times a filter takes 2, a product of matrices 1 per multiply-add; moduli, sums of folded
        spectra and logarithms are free, as activations and pooling are. Averaging to 4 × 4 places is part of the
        low-pass filter's matrices.
        """
        from kfl.encoders._scattering_transform import ANGLES, PATHS, filter_bank

        height, width = filter_bank(*shape[1:]).size
        pixels, quarter = height * width, height * width // 4
        real, complex_, small = (4 * n * math.log2(n) * part for n, part in ((pixels, 0.5), (pixels, 1), (quarter, 1)))
        # The image; per angle of the first scale back and forth; back for the second scale, of it and of each pair.
        transforms = real + ANGLES * (complex_ + real) + (ANGLES + ANGLES**2) * small
        filters = 2 * pixels * (2 * ANGLES + ANGLES**2)
        large_maps, small_maps = 1 + ANGLES, ANGLES + ANGLES**2
        low = PLACES * (large_maps * (pixels + PLACES * width) + small_maps * (quarter + PLACES * width / 2))
        return shape[0] * (transforms + filters + low + PATHS * PLACES**2 * self.size(shape))


def coefficients(images: Tensor) -> Tensor:
    """Return logarithms of averaged scattering coefficients, (n, channels · 81 · 16), of images (n, c, h, w)."""
    import torch

    from kfl.encoders._scattering_transform import scattering

    count, _channels, height, width = images.shape
    maps = scattering(images.float().reshape(-1, height, width))
    pooled = torch.nn.functional.adaptive_avg_pool2d(maps, PLACES)
    return (pooled.clamp(min=0) + OFFSET).log().reshape(count, -1)


@lru_cache(maxsize=4)
def projection_for(shape: tuple[int, ...]) -> Projection:
    """Return the projection for images of a shape: the package's, one kept earlier, or a new one."""
    name = f"scattering-{'x'.join(map(str, shape))}.npz"
    packaged = resources.files("kfl.encoders") / "projections" / name
    if packaged.is_file():
        return _read(packaged.read_bytes())
    kept = resolve_cache_dir() / "encoders" / name
    try:
        return _read(kept.read_bytes())
    except (OSError, ValueError, KeyError):
        pass
    log.info("Fitting the projection of the encoder scattering to %d drawn images of shape %s, once.", IMAGES, shape)
    content = fit_projection(shape)
    _keep(kept, content)
    return _read(content)


def fit_projection(shape: tuple[int, ...], images: int = IMAGES) -> bytes:
    """Fit a projection to drawn images of a shape and return it as a file: half precision, the same every time."""
    import torch

    from kfl.encoders._dead_leaves import dead_leaves
    from kfl.encoders.workers import in_pieces

    drawn = torch.from_numpy(dead_leaves(images, *shape))
    found = in_pieces(coefficients, drawn).double()
    mean = found.mean(0)
    _, singular, directions = torch.linalg.svd(found - mean, full_matrices=False)
    variance = singular[:MOST_NUMBERS].square() / (images - 1)
    average = singular.square().sum() / (images - 1) / found.shape[1]
    kept = directions[:MOST_NUMBERS]
    # A direction and its opposite are the same to the decomposition: the largest entry is positive here.
    kept = kept * kept.gather(1, kept.abs().argmax(1, keepdim=True)).sign()
    scaled = kept / (0.9 * variance + 0.1 * average).sqrt()[:, None]
    stream = io.BytesIO()
    np.savez_compressed(stream, mean=mean.numpy().astype(np.float16), directions=scaled.numpy().astype(np.float16))
    return stream.getvalue()


def _read(content: bytes) -> Projection:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return Projection(found["mean"].astype(np.float32), found["directions"].astype(np.float32))


def _keep(path: Path, content: bytes) -> None:
    """Keep a projection; a folder that cannot be written means that it is computed again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(content)
    except OSError:
        log.debug("%s cannot be written.", path)
