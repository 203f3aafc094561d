"""Datasets by name: a new one is one module with a `SOURCE`, and one line in `DATASETS`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, DataError
from kfl.core.lazy import import_object
from kfl.data import cifar10, mnist, mnist5k
from kfl.data.dataset import Dataset
from kfl.data.source import Progress, Source, fetch
from kfl.data.storage import resolve_cache_dir, resolve_data_dir

DATASETS: dict[str, Source] = {source.name: source for source in (mnist5k.SOURCE, mnist.SOURCE, cifar10.SOURCE)}
"""Datasets by the word that selects them."""


def load_dataset(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """A dataset by its name in `DATASETS`, or your own as `package.module:name`, a callable without arguments.

    Folders that are not given come from KFL_DATA_DIR and KFL_CACHE_DIR, else from the user's folders.

    >>> load_dataset("mnist-5k").input_shape
    (1, 28, 28)
    """
    if name in DATASETS:
        try:
            result = DATASETS[name].load(resolve_data_dir(data_dir), resolve_cache_dir(cache_dir))
        except OSError as error:
            raise DataError(f"dataset {name!r} cannot be read: {error}.") from error
    elif ":" in name:
        result = _loader(name)()
    else:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError("dataset", name, f"one of {', '.join(DATASETS)} or 'package.module:name'{hint}")
    if not isinstance(result, Dataset):
        raise DataError(f"dataset {name!r} returned {type(result).__name__}, but must return a kfl Dataset.")
    return result


def _loader(address: str) -> Callable[[], Any]:
    """The callable at `package.module:name`."""
    try:
        found: Callable[[], Any] = import_object(address)
    except ImportError as error:
        raise DataError(f"dataset is {address!r}, but it cannot be imported: {error}.") from error
    if not callable(found):
        raise DataError(f"dataset is {address!r}, which is not callable, but must return a kfl Dataset.")
    return found


def download(
    name: str, data_dir: Path | None = None, progress: Progress | None = None, base_url: str | None = None
) -> Path:
    """Fetch a dataset into the data folder and return the folder it is in. What is already there stays.

    `base_url` names a mirror. A failed transfer leaves nothing behind.

    >>> {"mnist", "cifar10"} <= set(downloadable())
    True
    """
    if name not in downloadable():
        raise ConfigError("dataset", name, f"one of {', '.join(downloadable())} to be downloaded")
    return fetch(DATASETS[name], resolve_data_dir(data_dir), progress, base_url)


def downloadable() -> list[str]:
    """The datasets that `download` can fetch."""
    return [name for name, source in DATASETS.items() if source.download is not None]
