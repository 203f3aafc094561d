"""A dataset seen through an encoder."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, KflError, ModelError
from kfl.core.lazy import import_object
from kfl.core.text import quantity
from kfl.data.dataset import Dataset, View
from kfl.data.storage import Decoded, kept, resolve_cache_dir
from kfl.encoders.base import Encoder
from kfl.encoders.names import ENCODERS, check_encoder
from kfl.encoders.workers import in_pieces

if TYPE_CHECKING:
    from torch import Tensor, nn

log = logging.getLogger("kfl")
SAID_AFTER_S = 5.0


def make_encoder(name: str) -> Encoder:
    """Return the encoder that a text names.

    Raises:
        ConfigError: Where it names none.
        ModelError: For an own module that cannot be used.

    >>> make_encoder("scattering-64").size((3, 32, 32))
    64
    """
    word, numbers = check_encoder(name)
    if word in ENCODERS:
        found: Encoder = import_object(ENCODERS[word])(numbers)
        return found
    return Own.of(word)


@dataclass(frozen=True, eq=False)
class Own(Encoder):
    """A module of the user's, frozen: it maps samples (n, *shape) to numbers (n, d)."""

    name: ClassVar[str] = "own"
    module: nn.Module | None = None
    source: str = ""

    @staticmethod
    def of(source: str) -> Own:
        """Build it by calling `package.module:function`."""
        import torch

        try:
            build = import_object(source)
        except ImportError as problem:
            expected = "package.module:function of one that can be imported"
            raise ConfigError("encoder", source, f"{expected} ({problem})") from problem
        try:
            module = build()
        except KflError:
            raise
        except Exception as problem:  # a user's function may raise anything
            raise ModelError(f"encoder {source!r} cannot be built: {problem}") from problem
        if not isinstance(module, torch.nn.Module):
            raise ModelError(f"encoder {source!r} returned {type(module).__name__}, but must return a torch.nn.Module.")
        return Own(None, module.eval().requires_grad_(False), source)

    def size(self, shape: tuple[int, ...]) -> int:
        """What comes out for one sample of zeros."""
        import torch

        assert self.module is not None
        try:
            with torch.no_grad():
                found = self.module(torch.zeros(2, *shape))
        except Exception as problem:  # a user's module may raise anything
            raise ModelError(f"encoder {self.source!r} cannot take samples of shape {shape}: {problem}.") from problem
        if found.ndim != 2 or len(found) != 2:
            raise ModelError(
                f"encoder {self.source!r} gives {tuple(found.shape)} for two samples, but must give (2, d)."
            )
        return int(found.shape[1])

    def encode(self, samples: Tensor) -> Tensor:
        """Run it."""
        assert self.module is not None
        found: Tensor = self.module(samples.float())
        return found.float()

    def flops(self, shape: tuple[int, ...]) -> float:
        """As those of networks are counted, or what the module says in `flops`."""
        from kfl.models.profile import count_flops

        assert self.module is not None
        told = getattr(self.module, "flops", None)
        found = float(count_flops(self.module, shape, f"encoder {self.source!r}") if told is None else told)
        if told is None and not found:
            raise ModelError(
                f"encoder {self.source!r} does nothing that PyTorch could count, so its devices would encode for "
                "nothing: give the module an attribute `flops`, the operations for one sample (0 if there are none)."
            )
        return found

    @property
    def download_bits(self) -> float:
        """32 bits a parameter; the module may say otherwise in `download_bits`, 0 if it came with the device."""
        assert self.module is not None
        own = getattr(self.module, "download_bits", None)
        return float(sum(32 * value.numel() for value in self.module.parameters()) if own is None else own)


def encoded(data: Dataset, name: str, cache_dir: Path | None = None) -> Dataset:
    """Return a dataset of what an encoder makes of each sample: computed once, then read from the cache.

    Args:
        data: The samples.
        name: An encoder's name, as `--encoder` takes it.
        cache_dir: Where encodings are kept; the usual folder where it is not given.

    >>> import numpy as np
    >>> data = Dataset.from_arrays(np.random.default_rng(0).random((20, 6, 32)), np.arange(20) % 2)
    >>> encoded(data, "statistics").input_shape
    (54,)
    """
    encoder = make_encoder(name)
    d = encoder.size(data.input_shape)  # says at once what cannot be encoded
    key = hashlib.blake2b(f"{name} {encoder.version} {data.scale} {data.mean} {data.std}".encode(), digest_size=12)
    for values in (data.train_x, data.test_x):
        key.update(repr((values.shape, values.dtype.str)).encode())
        for start in range(0, len(values), 4096):
            key.update(np.ascontiguousarray(values[start : start + 4096]).tobytes())

    def compute() -> Decoded:
        return Decoded({"train": _encode(data, encoder, "train"), "test": _encode(data, encoder, "test")})

    own = ":" in name  # a module's weights may change without its name
    found = compute() if own else kept(f"encoded-{key.hexdigest()}", compute, resolve_cache_dir(cache_dir))
    view = View(name, encoder.flops(data.input_shape), encoder.download_bits, encoder.whitened)
    return replace(
        data,
        train_x=found.arrays["train"].reshape(-1, d),
        test_x=found.arrays["test"].reshape(-1, d),
        scale=1.0,
        mean=None,
        std=None,
        view=view,
    )


def _encode(data: Dataset, encoder: Encoder, split: Literal["train", "test"]) -> NDArray[np.float32]:
    """Every sample of a split, in float32."""
    count = len(data.train_y if split == "train" else data.test_y)
    found = np.empty((count, encoder.size(data.input_shape)), np.float32)
    began = said = time.monotonic()
    for start in range(0, count, 1024):
        rows = np.arange(start, min(start + 1024, count))
        found[rows] = in_pieces(encoder.encode, data.unstandardized(split, rows)).numpy()
        now = time.monotonic()
        if now - said > SAID_AFTER_S:
            left = (now - began) * (count - rows[-1] - 1) / (rows[-1] + 1)
            done = f"{rows[-1] + 1:,} of {count:,}"
            log.info("Encoding %s: %s %s samples, about %s left.", data.name, done, split, quantity(left, "s"))
            said = now
    return found
