"""Where a dataset comes from: its files, and how they are fetched.

`pooch` transfers a file, checks it against its md5, and only then gives it its name.
"""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfl.core.errors import ConfigError, DataError
from kfl.data.samples import as_dataset
from kfl.data.storage import Decoded, cached

if TYPE_CHECKING:
    from kfl.data.dataset import Dataset

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes expected in all."""

TIMEOUT_S = 30


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server and what it must be when it arrives."""

    name: str
    md5: str = ""
    """Empty where none is published: then the reader's checks of sizes, shapes and labels must do."""
    size: int | None = None
    """In bytes, for the progress bar. The md5 decides."""
    members: Mapping[str, int | None] = field(default_factory=dict)
    """For a tar or zip archive, which must have an md5: the files to take out of it, with their exact sizes; None where
    that md5 must do. Empty: keep the file itself."""


@dataclass(frozen=True)
class Download:
    """Where the files of a dataset can be fetched, and where they go."""

    base_url: str
    folder: str
    """Below the data folder."""
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Source(ABC):
    """A dataset that has a name: what it is, which files it needs, how they are read and how to get them.

    A set of a known format is an `IdxSet` or a `TableSet`; one of a format of its own is a subclass.
    """

    name: str
    """The word that selects it."""
    description: str
    """One line, for help texts."""
    classes: int
    _: KW_ONLY
    download: Download | None = None
    """Where `kfl data download` gets it; None where it cannot."""
    command: str = ""
    """The command that installs it, where that is not `kfl data download`."""

    @abstractmethod
    def files(self, data_dir: Path) -> list[Path]:
        """Return its files in a data folder; empty where they are not all there."""

    @abstractmethod
    def decode(self, data_dir: Path, cache_dir: Path) -> Decoded:
        """Read its files, which are all there, into arrays; large ones are decoded below the cache folder."""

    def by_hand(self, data_dir: Path) -> str:
        """Return which files to put where in a data folder, as a clause; empty where that is no way."""
        return ""

    def load(self, data_dir: Path, cache_dir: Path) -> Dataset:
        """Return the dataset, decoded once and then read from the cache.

        Raises:
            DataError: If files are missing or damaged.
        """
        files = self.files(data_dir)
        if not files:
            named = self.description.partition(",")[0]
            raise DataError(f"{named} is not there or not complete: {self.how_to_get(data_dir)}.")
        found = cached(self.name, files, lambda: self.decode(data_dir, cache_dir), cache_dir)
        return as_dataset(self.name, found, standardise=True, classes=self.classes)

    @property
    def get(self) -> str:
        """The command that gets this dataset; empty where there is none."""
        return f"kfl data download {self.name}" if self.download is not None else self.command

    def how_to_get(self, data_dir: Path) -> str:
        """What to do about files that are missing, as the end of a sentence."""
        ways = [self.by_hand(data_dir), f"run `{self.get}` to fetch it" if self.get else ""]
        return f"{', or '.join(way for way in ways if way)} (KFL_DATA_DIR names another data folder)"


def fetch(source: Source, data_dir: Path, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Fetch the files of a dataset, each whole or not at all. What is already there stays.

    Args:
        source: The dataset.
        data_dir: The folder below which its own folder is.
        progress: Called with bytes received and expected.
        base_url: A mirror, in place of the dataset's own address.

    Returns:
        The folder that the files are in. A failed transfer leaves nothing behind.
    """
    remote = source.download
    if remote is None:
        raise ConfigError("dataset", source.name, "one that can be downloaded")
    folder = data_dir / remote.folder
    base = (base_url or remote.base_url).rstrip("/") + "/"
    bar = _Bar(progress, [file.size for file in remote.files])
    for file in remote.files:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not file.members:
                _retrieve(base + file.name, folder, file, bar)
            elif not _has_members(folder, file.members):
                _unpack(base + file.name, folder, file, bar)
        except ConnectionError as problem:
            raise DataError(
                f"{base + file.name} cannot be fetched ({problem}): {source.how_to_get(data_dir)}."
            ) from problem
        except OSError as problem:
            raise DataError(f"{folder} cannot be written: {problem.strerror or problem}.") from problem
        bar.finish(file.size)
    return folder


def _retrieve(url: str, folder: Path, file: RemoteFile, bar: _Bar, processor: Any = None) -> None:
    """Bring one file into a folder, unless it is there with its md5; ConnectionError where the server does not."""
    import pooch
    import requests

    if not file.md5 and (folder / file.name).is_file():
        return
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            url,
            known_hash=f"md5:{file.md5}" if file.md5 else None,
            fname=file.name,
            path=folder,
            processor=processor,
            downloader=pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_S, chunk_size=1 << 16),
        )
    except requests.RequestException as problem:
        reason = "" if problem.response is None else problem.response.reason
        raise ConnectionError(reason or str(problem)) from problem
    except ValueError as problem:
        raise DataError(f"{url} is not the expected file: its md5 is not {file.md5}.") from problem


def _has_members(folder: Path, members: Mapping[str, int | None]) -> bool:
    """Whether every member of an archive is there as a regular file of its size."""
    paths = {folder / name: size for name, size in members.items()}
    return all(
        path.is_file() and not path.is_symlink() and size in (None, path.stat().st_size) for path, size in paths.items()
    )


def _unpack(url: str, folder: Path, file: RemoteFile, bar: _Bar) -> None:
    """Take the members of an archive out of it, in a folder next to their final place that is gone afterward."""
    import pooch

    unpack = pooch.Unzip if file.name.endswith(".zip") else pooch.Untar
    with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as name:
        scratch = Path(name)
        try:
            _retrieve(url, scratch, file, bar, unpack(members=list(file.members), extract_dir="members"))
        except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as problem:
            raise DataError(f"{url} is not the expected archive: {problem}.") from problem
        if not _has_members(scratch / "members", file.members):
            raise DataError(f"{url} is not the expected archive: it has not the files that it should have.")
        for member in file.members:
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            (scratch / "members" / member).replace(folder / member)


class _Bar:
    """Reports the bytes of one file after another as parts of the whole, in the terms of pooch."""

    total = 0
    """Bytes of the present file, as its server says."""

    def __init__(self, progress: Progress | None, sizes: list[int | None]) -> None:
        self._progress = progress
        known = [size for size in sizes if size is not None]
        self._all = sum(known) if len(known) == len(sizes) else None
        self._before = self._received = 0

    def update(self, received: int) -> None:
        """Some more bytes came."""
        self._received += received
        if self._progress is not None:
            # pooch counts whole pieces, so that the last one may go beyond the end.
            done = self._before + min(self._received, self.total or self._received)
            self._progress(done if self._all is None else min(done, self._all), self._all)

    def reset(self) -> None:
        """pooch says once more, exactly, how many bytes there were."""
        self._received = 0

    def close(self) -> None:
        """pooch has no more to say of this file."""

    def finish(self, size: int | None) -> None:
        """The file is there, fetched now or before."""
        self._before, self._received = self._before + (size or self._received), 0
        self.update(0)
