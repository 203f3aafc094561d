"""Datasets by name or path: a new set of a known format is one entry in `named.py`, one of a format of its own a module
with a `SOURCE`; and each is one line in `DATASETS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfl.core.errors import ConfigError, DataError
from kfl.core.lazy import import_object
from kfl.core.names import for_file_name
from kfl.data import cifar10, mnist5k, named
from kfl.data.dataset import Dataset
from kfl.data.paths import check_options, load_path, looks_like_path, name_of_path, parse_place
from kfl.data.source import Progress, Source, fetch
from kfl.data.storage import resolve_cache_dir, resolve_data_dir

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (
        mnist5k.SOURCE,
        named.MNIST,
        cifar10.SOURCE,
        named.FASHION_MNIST,
        named.KMNIST,
        *named.EMNIST.values(),
        named.FEMNIST,
        named.CIFAR100,
        named.SVHN,
        named.TINY_IMAGENET,
    )
}
"""Datasets by the word that selects them."""


def load_dataset(name: str, data_dir: Path | None = None, cache_dir: Path | None = None) -> Dataset:
    """A dataset by its name in `DATASETS`, by the path of a file or folder, or your own as `package.module:name`, a
    callable without arguments.

    Folders that are not given come from KFL_DATA_DIR and KFL_CACHE_DIR, else from the user's folders.

    Args:
        name: A word, a path, or `package.module:name`.
        data_dir: Where the files of named sets are.
        cache_dir: Where decoded arrays are kept.

    Raises:
        DataError: The files are missing, or are not what they should be; the sentence says what to do.

    >>> load_dataset("mnist-5k").input_shape
    (1, 28, 28)
    """
    check_name(name)
    try:
        if name in DATASETS:
            result: Any = DATASETS[name].load(resolve_data_dir(data_dir), resolve_cache_dir(cache_dir))
        elif looks_like_path(name):
            result = load_path(name, resolve_cache_dir(cache_dir))
        else:
            result = _loader(name)()
    except OSError as error:
        raise DataError(f"dataset {name!r} cannot be read: {error}.") from error
    if not isinstance(result, Dataset):
        raise DataError(f"dataset {name!r} returned {type(result).__name__}, but must return a kfl Dataset.")
    return result


def check_name(name: str) -> None:
    """Refuse what can be neither the name of a dataset, nor a path, nor a function; nothing is read."""
    check_options(name)
    if name in DATASETS or looks_like_path(name) or ":" in name:
        return
    near = [path.name for path in Path().iterdir()] if "." in name else []
    expected = f"one of {', '.join(DATASETS)}, a file or folder, or 'package.module:name'"
    raise ConfigError("dataset", name, expected, choices=[*DATASETS, *near])


def dataset_path(name: str) -> Path | None:
    """The file or folder that a dataset's name is the path of; None for other names."""
    if name in DATASETS or not looks_like_path(name):
        return None
    return parse_place(name).path.absolute()


def short_name(name: str) -> str:
    """A dataset's name as part of a file's name.

    >>> short_name("mnist"), short_name("my_data:load"), short_name("../data/har.npz,y=activity")
    ('mnist', 'my_data-load', 'har')
    """
    if name not in DATASETS and looks_like_path(name):
        return name_of_path(name)
    return for_file_name(name)


def _loader(address: str) -> Callable[[], Any]:
    """The callable at `package.module:name`."""
    try:
        found: Callable[[], Any] = import_object(address)
    except ImportError as error:
        raise DataError(f"dataset is {address!r}, but it cannot be imported: {error}.") from error
    if not callable(found):
        raise DataError(f"dataset is {address!r}, which is not callable, but must return a kfl Dataset.")
    try:
        inspect.signature(found).bind()
    except TypeError as problem:
        raise ConfigError("dataset", address, f"callable without arguments ({problem})") from problem
    return found


def download(
    name: str, data_dir: Path | None = None, progress: Progress | None = None, base_url: str | None = None
) -> Path:
    """Fetch a dataset into the data folder and return the folder it is in. What is already there stays.

    `base_url` names a mirror. A failed transfer leaves nothing behind.

    Args:
        name: One of `downloadable()`.
        data_dir: Where to; None for the default data folder.
        progress: Called with the bytes so far and in all.
        base_url: A mirror.

    Raises:
        DataError: The transfer failed, or what arrived is not the dataset.

    >>> {"mnist", "cifar10"} <= set(downloadable())
    True
    """
    if name not in downloadable():
        raise ConfigError(
            "dataset", name, f"one of {', '.join(downloadable())} to be downloaded", choices=downloadable()
        )
    return fetch(DATASETS[name], resolve_data_dir(data_dir), progress, base_url)


def downloadable() -> list[str]:
    """The datasets that `download` can fetch."""
    return [name for name, source in DATASETS.items() if source.download is not None]
