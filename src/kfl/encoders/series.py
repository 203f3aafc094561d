"""Encoders of series (channels, time): statistics for measurements, mel bands for sound."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfl.core.errors import ConfigError, DataError
from kfl.encoders.base import Encoder
from kfl.encoders.names import SERIES_STEPS

if TYPE_CHECKING:
    from torch import Tensor

QUANTILES = (0.1, 0.5, 0.9)
SMALL = 1e-6
"""Added before a logarithm, relative to the mean energy of a sample."""


@dataclass(frozen=True)
class Statistics(Encoder):
    """Of each channel: mean, logarithm of its spread, three quantiles and the energy of each octave of frequencies.

    >>> import torch
    >>> Statistics().encode(torch.randn(5, 6, 128)).shape
    torch.Size([5, 66])
    """

    name: ClassVar[str] = "statistics"

    def size(self, shape: tuple[int, ...]) -> int:
        """2 + 3 + the octaves, for each channel."""
        _check_series(self.name, shape, SERIES_STEPS)
        found = shape[0] * (2 + len(QUANTILES) + _octaves(shape[1]))
        if self.numbers not in (None, found):
            raise ConfigError("encoder", f"statistics-{self.numbers}", f"statistics: of these series it has {found}")
        return found

    def encode(self, samples: Tensor) -> Tensor:
        """Compute them."""
        import torch

        x = samples.double()
        mean, spread = x.mean(2), x.std(2)
        quantiles = torch.quantile(x, torch.tensor(QUANTILES, dtype=x.dtype), dim=2).permute(1, 2, 0)
        power = torch.fft.rfft(x - mean[:, :, None], dim=2).abs().square()[:, :, 1:]
        # Octave j holds the frequencies from 2^j up to 2^(j + 1) − 1 periods per series, the last one all above.
        bounds = [2**j - 1 for j in range(_octaves(x.shape[2]))] + [power.shape[2]]
        bands = [power[:, :, a:b].sum(2) for a, b in itertools.pairwise(bounds)]
        energy = torch.stack(bands, 2)
        floor = SMALL * energy.sum((1, 2), keepdim=True).clamp(min=1e-30)
        parts = [mean[:, :, None], (spread + SMALL).log()[:, :, None], quantiles, (energy + floor).log()]
        return torch.cat(parts, 2).flatten(1).float()

    def flops(self, shape: tuple[int, ...]) -> float:
        """A Fourier transform, a sort and a few passes."""
        steps = shape[1]
        return float(shape[0] * steps * (7 * math.log2(steps) + 10))


def _octaves(steps: int) -> int:
    return int(math.log2(steps // 2))


@dataclass(frozen=True)
class LogMel(Encoder):
    """Sound at 8 kHz: logarithms of the energy in 32 mel bands over six stretches of the clip, then a cosine transform.

    The stretches divide the part of the recording that is not silent. Of the transform along the bands the first 20
    are kept, as is usual for speech.

    >>> import torch
    >>> LogMel().encode(torch.randn(2, 1, 8000)).shape
    torch.Size([2, 120])
    """

    name: ClassVar[str] = "log-mel"
    rate_hz: ClassVar[float] = 8000.0
    frame: ClassVar[int] = 256
    hop: ClassVar[int] = 80
    bands: ClassVar[int] = 32
    kept: ClassVar[int] = 20
    stretches: ClassVar[int] = 6
    silence: ClassVar[float] = 0.01
    """Frames of less than this part of the loudest frame's energy are silent at either end."""

    def size(self, shape: tuple[int, ...]) -> int:
        """20 × 6 for each channel."""
        _check_series(self.name, shape, self.frame + self.stretches * self.hop)
        found = shape[0] * self.kept * self.stretches
        if self.numbers not in (None, found):
            raise ConfigError("encoder", f"log-mel-{self.numbers}", f"log-mel: of this sound it has {found}")
        return found

    def encode(self, samples: Tensor) -> Tensor:
        """Transform every clip."""
        import torch

        frames = samples.float().unfold(2, self.frame, self.hop) * torch.hann_window(self.frame)
        power = torch.fft.rfft(frames, dim=3).abs().square()  # (n, channels, frames, frequencies)
        mel = (power @ _mel_filters(self.bands, self.frame, self.rate_hz)).transpose(2, 3)
        loudness = power.sum((1, 3))
        active = loudness > self.silence * loudness.amax(1, keepdim=True)
        first = active.int().argmax(1)
        last = active.shape[1] - active.int().flip(1).argmax(1)
        found = torch.empty(len(samples), samples.shape[1], self.bands, self.stretches)
        for index, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            clip = mel[index, :, :, start : max(end, start + 1)]
            found[index] = torch.nn.functional.adaptive_avg_pool1d(clip, self.stretches)
        logs = (found + SMALL * found.mean((1, 2, 3), keepdim=True).clamp(min=1e-30)).log()
        transformed = _cosines(self.bands)[: self.kept] @ logs @ _cosines(self.stretches).T
        return transformed.flatten(1)

    def flops(self, shape: tuple[int, ...]) -> float:
        """Fourier transforms of all frames and the mel bands."""
        frames = (shape[1] - self.frame) // self.hop + 1
        return float(shape[0] * frames * (2 * self.frame * math.log2(self.frame) + self.frame * self.bands))


def _mel_filters(bands: int, frame: int, rate_hz: float) -> Tensor:
    """Triangles that are evenly wide on the mel scale: (frequencies, bands)."""
    import torch

    top = 2595 * math.log10(1 + rate_hz / 2 / 700)
    centers = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    frequency = torch.linspace(0, rate_hz / 2, frame // 2 + 1)[:, None]
    low, middle, high = centers[:-2], centers[1:-1], centers[2:]
    return torch.minimum((frequency - low) / (middle - low), (high - frequency) / (high - middle)).clamp(min=0)


def _cosines(size: int) -> Tensor:
    """The orthogonal cosine transform as a matrix, (frequencies, places)."""
    import torch

    place = torch.arange(size)
    rows = torch.cos(math.pi / size * place[:, None] * (place + 0.5)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows


def _check_series(name: str, shape: tuple[int, ...], steps: int) -> None:
    if len(shape) != 2 or shape[1] < steps:
        raise DataError(
            f"The encoder {name} takes series of shape (channels, time) with at least {steps} steps, but samples here "
            f"have the shape {shape}."
        )
