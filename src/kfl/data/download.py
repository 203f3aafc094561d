"""Fetch a dataset: streamed, checked against its md5, and only then given its name. Standard library only."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kfl.core.errors import ConfigError, DataError
from kfl.core.files import atomic_file
from kfl.data import cifar10, mnist
from kfl.data.folders import resolve_data_dir

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the bytes expected in all."""

PIECE_BYTES = 1 << 16
TIMEOUT_S = 30


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server and what it must be when it arrives."""

    name: str
    md5: str
    size: int
    """In bytes; for the progress bar and to stop a transfer that does not end. The md5 decides."""
    members: Mapping[str, int] = field(default_factory=dict)
    """For a tar archive: the files to take out of it, with their exact sizes. Empty: keep the file itself."""


@dataclass(frozen=True)
class Download:
    """Where a dataset comes from and where it goes."""

    base_url: str
    folder: str
    """Below the data folder."""
    files: tuple[RemoteFile, ...]
    wanted: Callable[[Path], str]
    """What to put where by hand, as the end of a sentence."""


DOWNLOADS: dict[str, Download] = {
    "mnist": Download(
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        folder="mnist",
        files=(
            RemoteFile("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            RemoteFile("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            RemoteFile("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            RemoteFile("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
        wanted=mnist.wanted,
    ),
    "cifar10": Download(
        base_url="https://www.cs.toronto.edu/~kriz/",
        folder="cifar10",
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
                members={
                    f"{cifar10.BINARY_FOLDER}/{name}": cifar10.IMAGES_PER_FILE * cifar10.RECORD_BYTES
                    for names in cifar10.BINARY_FILES.values()
                    for name in names
                },
            ),
        ),
        wanted=cifar10.wanted,
    ),
}


def download(
    name: str,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    base_url: str | None = None,
) -> Path:
    """Fetch a dataset into the data folder and return the folder it is in. What is already there stays.

    `base_url` names a mirror. A failed transfer leaves nothing behind.

    >>> sorted(DOWNLOADS)
    ['cifar10', 'mnist']
    """
    if name not in DOWNLOADS:
        raise ConfigError("dataset", name, f"one of {', '.join(DOWNLOADS)} to be downloaded")
    return fetch(DOWNLOADS[name], resolve_data_dir(data_dir), progress, base_url)


def fetch(source: Download, data_dir: Path, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Fetch the files of `source`, each whole or not at all."""
    folder = data_dir / source.folder
    base = (base_url or source.base_url).rstrip("/") + "/"
    total, before = sum(file.size for file in source.files), 0
    for file in source.files:
        report = _shifted(progress, before, total)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _is_there(folder, file):
                _fetch_file(base + file.name, folder, file, report)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(f"{base + file.name} cannot be fetched ({reason}): {source.wanted(data_dir)}.") from error
        except OSError as error:
            raise DataError(f"{folder} cannot be written: {error.strerror or error}.") from error
        before += file.size
        report(file.size)
    return folder


def _shifted(progress: Progress | None, before: int, total: int) -> Callable[[int], None]:
    """Report one file's bytes as part of the whole."""
    return lambda received: progress(min(before + received, total), total) if progress else None


def _is_there(folder: Path, file: RemoteFile) -> bool:
    """Already fetched: the same md5, or for an archive every member with its size."""
    if file.members:
        paths = {folder / member: size for member, size in file.members.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
    path = folder / file.name
    if not path.is_file():
        return False
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
            report(min(received, file.size))
            if received > 2 * file.size:
                raise DataError(f"{url} is longer than {2 * file.size} bytes, but must have {file.size}.")
    if expected is not None and received != int(expected):
        raise DataError(f"{url} broke off after {received} of {expected} bytes: try again.")
    if digest.hexdigest() != file.md5:
        raise DataError(f"{url} is not the expected file: it has md5 {digest.hexdigest()}, not {file.md5}.")


def _unpack(url: str, archive: Path, scratch: Path, members: Mapping[str, int]) -> None:
    """Take the named members, and nothing else, out of the archive: regular files of the right size."""
    try:
        with tarfile.open(archive) as tar:
            for name, size in members.items():
                member = tar.getmember(name)
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or member.size != size:
                    raise DataError(f"{url}: {name} is not a regular file of {size} bytes.")
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(scratch / name) as out:
                    while piece := content.read(1 << 20):
                        out.write(piece)
    except (KeyError, tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{url} is not the expected archive: {error}.") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the final place (so that a move is a rename), gone afterwards whatever happens."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".part") as name:
        yield Path(name)


def _md5() -> hashlib._Hash:
    return hashlib.md5(usedforsecurity=False)
