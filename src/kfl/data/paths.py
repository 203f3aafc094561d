"""Datasets by the path of a file or folder: which format it has is seen from what is there.

readings.npz                      arrays x, y and perhaps device
photos/                           a subfolder per class, perhaps below train/ and test/
pictures.parquet, hub/            encoded images in tables
readings.csv, readings/           a header, a column of labels, perhaps one of devices, and numbers
letters/                          four IDX files
hub/,y=coarse_label,size=32       options follow the path: x, y, device name columns, size scales images
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from kfl.core.errors import ConfigError, DataError
from kfl.core.names import for_file_name
from kfl.core.suggest import nearest
from kfl.data.csv_table import decode_csv
from kfl.data.dataset import Dataset
from kfl.data.idx import PATTERN, decode_idx, idx_files
from kfl.data.images import decode_folder, has_images, image_files
from kfl.data.npz import decode_npz
from kfl.data.parquet import Columns, decode_tables, table_files
from kfl.data.samples import as_dataset
from kfl.data.storage import Decoded, cached

FORMATS = ".npz, .csv, .parquet, a folder of IDX files, of such tables, or of images with a subfolder per class"
OPTIONS = {
    "npz": ("x", "y", "device"),
    "parquet": ("x", "y", "device", "size"),
    "csv": ("y", "device"),
    "images": ("size",),
    "idx": (),
}
"""What may follow a path, by format."""


@dataclass(frozen=True)
class Place:
    """A path with the options that follow it."""

    path: Path
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Found:
    """What lies at a path: its format, the files it is read from, and how."""

    kind: str
    files: list[Path]
    decode: Callable[[dict[str, str], Path], Decoded]


def looks_like_path(text: str) -> bool:
    """Whether a dataset's name is that of a file or folder rather than a module.

    >>> looks_like_path("data/har.npz"), looks_like_path("har.npz"), looks_like_path("my_data:load")
    (True, True, False)
    """
    if not text:
        return False
    path = parse_place(text).path
    if "/" in text or "\\" in text or text.startswith((".", "~")) or path.suffix in (".npz", ".parquet", ".csv"):
        return True
    return ":" not in text and _exists(path)


def parse_place(text: str) -> Place:
    """The path and its options; commas and equals signs may be part of a path that exists.

    >>> parse_place("photos,size=32").options
    (('size', '32'),)
    """
    whole = Path(text).expanduser()
    if _exists(whole):
        return Place(whole)
    path, *rest = text.split(",")
    pairs = [part.partition("=") for part in rest]
    if not all(name.strip() and sign and value.strip() for name, sign, value in pairs):
        return Place(whole)
    return Place(Path(path).expanduser(), tuple((name.strip(), value.strip()) for name, _, value in pairs))


def check_options(text: str) -> None:
    """Refuse a path that is followed by something other than options."""
    before, comma, _ = text.partition(",")
    place = parse_place(text)
    if comma and before and not place.options and not _exists(place.path) and _exists(Path(before).expanduser()):
        raise ConfigError("dataset", text, f"a path, or one with options such as {before},y=NAME")


def name_of_path(text: str) -> str:
    """A short name for what lies at a path: the last part of it, without its ending."""
    path = parse_place(text).path
    return for_file_name(path.absolute().name.partition(".")[0])


def load_path(text: str, cache_dir: Path) -> Dataset:
    """The dataset at a path, decoded once and then read from the cache."""
    place = parse_place(text)
    options = dict(place.options)
    found = _find(place.path)
    for option, value in options.items():
        if option not in OPTIONS[found.kind]:
            known = ", ".join(f"{name}=…" for name in OPTIONS[found.kind]) or "nothing"
            raise ConfigError("dataset", text, f"followed by {known}, not {option}={value}: it is read as {found.kind}")
    if "size" in options and not re.fullmatch(r"[1-9]\d{0,4}", options["size"]):
        raise ConfigError("dataset", text, "followed by size=N where N is an integer of pixels, 1 or more")
    name = name_of_path(text)
    key = blake2b(repr(sorted(options.items())).encode(), digest_size=3).hexdigest() if options else ""
    entry = "-".join(word for word in (found.kind, name, key) if word)
    decoded = cached(entry, found.files, lambda: found.decode(options, cache_dir), cache_dir)
    try:
        return as_dataset(name, decoded, standardise=found.kind in ("parquet", "images"))
    except DataError as problem:
        raise DataError(f"{place.path}: {problem}") from problem


def _find(path: Path) -> _Found:
    try:
        if not path.exists():
            raise DataError(f"{path} does not exist{_hint(path)}: give a file or folder, {FORMATS}.")
        found = _file(path) if path.is_file() else _folder(path)
        if strange := [file for file in found.files if not file.is_file()]:
            raise DataError(f"{strange[0]} is not a regular file.")
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    return found


def _file(path: Path) -> _Found:
    if path.suffix.lower() == ".npz":
        return _Found("npz", [path], lambda options, cache: decode_npz(path, options, cache))
    if path.suffix.lower() == ".parquet":
        return _tables(path, table_files(path))
    if path.suffix.lower() == ".csv":
        return _csv(path, table_files(path))
    if PATTERN.fullmatch(path.name):
        return _idx(path)
    raise DataError(f"{path} is of no format that is known by its name: give {FORMATS}.")


def _folder(path: Path) -> _Found:
    tables = table_files(path)
    if tables:
        return _tables(path, tables)
    if rows := table_files(path, "csv"):
        return _csv(path, rows)
    if any(PATTERN.fullmatch(inner.name) for inner in path.iterdir()):
        return _idx(path)
    if has_images(path):
        files = image_files(path)
        flat = [file for some in files.values() for own in some.values() for file in own]
        return _Found("images", flat, lambda options, cache: decode_folder(path, files, cache, _size(options)))
    inner = sorted(inner.name for inner in path.iterdir())
    holds = f"holds {', '.join(inner[:4])}{' …' if len(inner) > 4 else ''}" if inner else "is empty"
    archives = [name for name in inner if name.endswith(".npz")]
    hint = f" (did you mean {path / archives[0]}?)" if archives else ""
    raise DataError(f"The folder {path} {holds}{hint}, which is no dataset: give {FORMATS}.")


def _tables(path: Path, tables: dict[str, list[Path]]) -> _Found:
    def read(options: dict[str, str], cache: Path) -> Decoded:
        columns = Columns(*(options.get(role, "") for role in ("x", "y", "device")))
        return decode_tables(str(path), tables, cache, columns, size=_size(options))

    return _Found("parquet", [file for files in tables.values() for file in files], read)


def _csv(path: Path, tables: dict[str, list[Path]]) -> _Found:
    files = [file for some in tables.values() for file in some]
    return _Found("csv", files, lambda options, cache: decode_csv(str(path), tables, cache, options))


def _idx(path: Path) -> _Found:
    files = idx_files(path)
    return _Found("idx", list(files.values()), lambda _, cache: decode_idx(path, files, cache))


def _size(options: dict[str, str]) -> int:
    return int(options.get("size", 0))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file
        return False


def _hint(path: Path) -> str:
    """A file of nearly that name in the same folder, or that the folder is not there either."""
    folder = path.parent
    if not _exists(folder):
        return f", nor does {folder}"
    names = [inner.name for inner in folder.iterdir()] if folder.is_dir() else []
    close = nearest(path.name, names)
    return f" (did you mean {folder / close}?)" if close else f" in {folder.absolute()}"
