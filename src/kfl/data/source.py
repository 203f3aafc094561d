"""Where a dataset comes from: its files, and how they are fetched.

A file is streamed, checked against its md5, and only then given its name. Standard library only.
"""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from kfl.core.errors import ConfigError, DataError
from kfl.core.files import atomic_file

if TYPE_CHECKING:
    from kfl.data.dataset import Dataset

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes expected in all."""

PIECE_BYTES = 1 << 16
TIMEOUT_S = 30
LONGEST = 1 << 32
"""Bytes of a file whose size nobody has published, at most."""


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server and what it must be when it arrives."""

    name: str
    md5: str = ""
    """Empty where nobody has published one: then the reader's checks of sizes, shapes and labels must do."""
    size: int | None = None
    """In bytes; for the progress bar and to stop a transfer that does not end. The md5 decides."""
    members: Mapping[str, int | None] = field(default_factory=dict)
    """For a tar or zip archive: the files to take out of it, with their exact sizes; None where the archive's md5 must
    do. Empty: keep the file itself."""

    @property
    def most(self) -> int:
        """Bytes after which a transfer is stopped."""
        return LONGEST if self.size is None else 2 * self.size


@dataclass(frozen=True)
class Download:
    """Where the files of a dataset can be fetched, and where they go."""

    base_url: str
    folder: str
    """Below the data folder."""
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True)
class Source:
    """A dataset that has a name: what it is, who loads it, which files it needs and how to get them."""

    name: str
    """The word that selects it."""
    description: str
    """One line, for help texts."""
    load: Callable[[Path, Path], Dataset]
    """Called with the data folder and the cache folder."""
    files: Callable[[Path], list[Path]] | None = None
    """Its files in a data folder, empty where they are not all there; None for a dataset that needs no files."""
    by_hand: Callable[[Path], str] | None = None
    """Which files to put where in a data folder, as a clause."""
    download: Download | None = None
    """Where `kfl data download` gets it; None where it cannot."""
    command: str = ""
    """The command that installs it, where that is not `kfl data download`."""
    radio: str = "paper-mnist"
    """Preset cell that `radio = auto` means with this dataset."""

    @property
    def get(self) -> str:
        """The command that gets this dataset; empty where there is none."""
        return f"kfl data download {self.name}" if self.download is not None else self.command

    def how_to_get(self, data_dir: Path) -> str:
        """What to do about files that are missing, as the end of a sentence."""
        ways = [self.by_hand(data_dir)] if self.by_hand is not None else []
        ways += [f"run `{self.get}` to fetch it"] if self.get else []
        return f"{', or '.join(ways)} (KFL_DATA_DIR names another data folder)"


def fetch(source: Source, data_dir: Path, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Fetch the files of a dataset, each whole or not at all; the folder they are in.

    What is already there stays. `base_url` names a mirror. A failed transfer leaves nothing behind.
    """
    remote = source.download
    if remote is None:
        raise ConfigError("dataset", source.name, "one that can be downloaded")
    folder = data_dir / remote.folder
    base = (base_url or remote.base_url).rstrip("/") + "/"
    sizes = [file.size or 0 for file in remote.files]
    total, before = (sum(sizes) if all(sizes) else None), 0
    for file in remote.files:
        report = _shifted(progress, before, total)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _is_there(folder, file):
                _fetch_file(base + file.name, folder, file, report)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(
                f"{base + file.name} cannot be fetched ({reason}): {source.how_to_get(data_dir)}."
            ) from error
        except OSError as error:
            raise DataError(f"{folder} cannot be written: {error.strerror or error}.") from error
        report(file.size or 0)
        before += file.size or 0
    return folder


def _shifted(progress: Progress | None, before: int, total: int | None) -> Callable[[int], None]:
    """Report one file's bytes as part of the whole."""

    def report(received: int) -> None:
        if progress is not None:
            done = before + received
            progress(done if total is None else min(done, total), total)

    return report


def _is_there(folder: Path, file: RemoteFile) -> bool:
    """Already fetched: the same md5, or for an archive every member with its size."""
    if file.members:
        paths = {folder / member: size for member, size in file.members.items()}
        return all(path.is_file() and size in (None, path.stat().st_size) for path, size in paths.items())
    path = folder / file.name
    if not path.is_file():
        return False
    if not file.md5:
        return file.size in (None, path.stat().st_size)
    with path.open("rb") as content:
        return hashlib.file_digest(content, _md5).hexdigest() == file.md5


def _fetch_file(url: str, folder: Path, file: RemoteFile, report: Callable[[int], None]) -> None:
    if file.members:
        with _scratch(folder) as scratch:
            archive = scratch / "archive"
            with archive.open("wb") as out:
                _transfer(url, out, file, report)
            _unpack(url, archive, scratch, file.members)
            for member in file.members:
                (folder / member).parent.mkdir(parents=True, exist_ok=True)
                (scratch / member).replace(folder / member)
    else:
        with atomic_file(folder / file.name) as out:
            _transfer(url, out, file, report)


def _transfer(url: str, out: BinaryIO, file: RemoteFile, report: Callable[[int], None]) -> None:
    """Stream `url` to `out` and check what came."""
    digest, received = _md5(), 0
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        expected = response.headers.get("Content-Length")
        while piece := response.read(PIECE_BYTES):
            out.write(piece)
            digest.update(piece)
            received += len(piece)
            report(received if file.size is None else min(received, file.size))
            if received > file.most:
                expected_size = "fewer" if file.size is None else file.size
                raise DataError(f"{url} is longer than {file.most} bytes, but must have {expected_size}.")
    if expected is not None and received != int(expected):
        raise DataError(f"{url} broke off after {received} of {expected} bytes: try again.")
    if file.md5 and digest.hexdigest() != file.md5:
        raise DataError(f"{url} is not the expected file: it has md5 {digest.hexdigest()}, not {file.md5}.")


def _unpack(url: str, archive: Path, scratch: Path, members: Mapping[str, int | None]) -> None:
    """Take the named members, and nothing else, out of the archive: regular files of the right size."""
    try:
        opened: dict[str, tuple[int, IO[bytes] | None]]
        with ExitStack() as stack:
            if zipfile.is_zipfile(archive):
                zipped = stack.enter_context(zipfile.ZipFile(archive))
                opened = {name: (zipped.getinfo(name).file_size, zipped.open(name)) for name in members}
            else:
                tar = stack.enter_context(tarfile.open(archive))
                opened = {name: _member(tar, name) for name in members}
            for name, size in members.items():
                found, content = opened[name]
                if content is None or size not in (None, found):
                    raise DataError(f"{url}: {name} is not a regular file of {size} bytes.")
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(scratch / name) as out:
                    while piece := content.read(1 << 20):
                        out.write(piece)
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DataError(f"{url} is not the expected archive: {error}.") from error


def _member(tar: tarfile.TarFile, name: str) -> tuple[int, IO[bytes] | None]:
    """Size and content of a regular file in the archive; no content for anything else."""
    member = tar.getmember(name)
    return member.size, tar.extractfile(member) if member.isreg() else None


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the final place (so that a move is a rename), gone afterwards whatever happens."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as name:
        yield Path(name)


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
