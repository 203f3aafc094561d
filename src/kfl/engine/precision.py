"""The precision of products: float32, tf32, bf16 or float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from kfl.core.errors import ConfigError

PRECISIONS = ("float32", "tf32", "bf16", "float64")


@dataclass(frozen=True)
class Arithmetic:
    """A precision by name, as in a plan. Weights are kept in float32, or in float64 where that is asked for."""

    precision: str = "float32"
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError("precision", self.precision, f"one of {', '.join(PRECISIONS)}")

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of weights and of everything that is added up."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @cached_property
    def factor_dtype(self) -> torch.dtype:
        """The type of the two factors of a product."""
        return torch.bfloat16 if self.precision == "bf16" else self.dtype

    @contextmanager
    def products(self, *, exact: bool = False) -> Iterator[None]:
        """Matrix products inside round their factors to this precision; not at all where `exact`.

        Convolutions inside are those that give the same bits in every run. PyTorch keeps all this in global switches:
        they are set for the block alone.
        """
        if self.device_type != "cuda":
            yield
            return
        chosen = "tf32" if self.precision in ("tf32", "bf16") and not exact else "ieee"
        backends: Any = torch.backends
        matmul, conv = backends.cuda.matmul, backends.cudnn.conv
        before = matmul.fp32_precision, conv.fp32_precision
        repeats = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
        matmul.fp32_precision, conv.fp32_precision = chosen, chosen
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        try:
            yield
        finally:
            matmul.fp32_precision, conv.fp32_precision = before
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = repeats

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Context manager for third-party modules: bf16 factors through PyTorch's own rules, and the switches above."""
        with (
            self.products(),
            torch.autocast(
                self.device_type, dtype=torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False
            ),
        ):
            yield


@cache
def adds_up_wide(device_type: str) -> bool:
    """Whether a batched product of bf16 factors can be had in float32; older PyTorch rounds it to bf16."""
    factor = torch.ones(1, 16, 16, dtype=torch.bfloat16, device=device_type)
    try:
        return torch.bmm(factor.transpose(1, 2), factor, out_dtype=torch.float32).dtype == torch.float32
    except (RuntimeError, TypeError, NotImplementedError):  # what PyTorch raises, by version
        return False
