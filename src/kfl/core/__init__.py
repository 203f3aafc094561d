"""What every floor needs: randomness by name, errors, safe files, units."""

from typing import TYPE_CHECKING, Any

from kfl.core.errors import (
    ConfigError,
    DataError,
    KflError,
    MissingExtraError,
    ModelError,
    RunFolderError,
    TraceError,
)
from kfl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from kfl.core.randomness import key, stream, torch_seed, torch_stream

_LAZY = dict.fromkeys(("key", "stream", "torch_seed", "torch_stream"), "kfl.core.randomness")


def __getattr__(name: str) -> Any:
    """Randomness needs NumPy, which a process that only carries messages does without."""
    return lazy_exports(__name__, _LAZY, name)


__all__ = [
    "ConfigError",
    "DataError",
    "KflError",
    "MissingExtraError",
    "ModelError",
    "RunFolderError",
    "TraceError",
    "key",
    "stream",
    "torch_seed",
    "torch_stream",
]
