"""What every floor needs: randomness by name, errors, safe files, units."""

from kfl.core.errors import (
    ConfigError,
    DataError,
    KflError,
    MissingExtraError,
    ModelError,
    RunFolderError,
    TraceError,
)
from kfl.core.randomness import key, stream, torch_seed, torch_stream

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
