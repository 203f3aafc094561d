"""Federated learning that fits the battery and the band."""

from kfl._version import __version__

__all__ = ["__version__"]
