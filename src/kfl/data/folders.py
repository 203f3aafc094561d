"""Where datasets and their decoded copies live."""

from __future__ import annotations

import os
from pathlib import Path


def resolve_data_dir(data_dir: Path | None = None) -> Path:
    """The folder that holds datasets: the argument, else KFL_DATA_DIR, else the user's data folder.

    >>> resolve_data_dir(Path("my/data")) == Path("my/data")
    True
    """
    return _first(data_dir, "KFL_DATA_DIR", "XDG_DATA_HOME", Path(".local/share"))


def resolve_cache_dir(cache_dir: Path | None = None) -> Path:
    """The folder for decoded copies: the argument, else KFL_CACHE_DIR, else the user's cache folder."""
    return _first(cache_dir, "KFL_CACHE_DIR", "XDG_CACHE_HOME", Path(".cache"))


def _first(given: Path | None, variable: str, xdg_variable: str, below_home: Path) -> Path:
    if given is not None:
        return Path(given).expanduser()
    if own := os.environ.get(variable):
        return Path(own).expanduser()
    if xdg := os.environ.get(xdg_variable):
        return Path(xdg).expanduser() / "kfl"
    return Path("~").expanduser() / below_home / "kfl"
