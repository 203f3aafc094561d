"""Images in parquet tables, the layout of dataset hubs: a column of encoded images, one of labels, perhaps one of
devices, in files called train…, test… or valid….

A new set that has a name is a `TableSet` in `named.py`; others are read by the path of their file or folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.errors import DataError, MissingExtraError
from kfl.data.arrays import as_labels, check_labels
from kfl.data.images import LARGEST_ENCODED, Shape, stack, with_moments
from kfl.data.roles import DEVICE_WORDS, X_WORDS, Y_WORDS, choose, column_words, split_of
from kfl.data.samples import Samples, decode
from kfl.data.source import Download, RemoteFile, Source
from kfl.data.storage import Decoded

SITE = "https://huggingface.co/datasets"
ROWS_AT_ONCE = 256
JPEG_NOTE = "Its images went through JPEG: where the original did not, results can differ a little."

Files = Mapping[str, Sequence[Path]]
"""The tables of each set, by the words train and test."""


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; an empty name is found by type and name."""

    x: str = ""
    y: str = ""
    device: str = ""


BY_NAME = Columns()


def table_files(path: Path, ending: str = "parquet") -> dict[str, list[Path]]:
    """The files of each set with an ending: of a folder by their names or the names of its subfolders; empty for none.

    A set is called by a word that its files begin with: train, test or valid, the last for a test set where there is
    none. Files without such a word are the training set, where no other is.
    """
    if path.is_file():
        return {"train": [path]}
    every = sorted(found for pattern in (f"*.{ending}", f"*/*.{ending}") for found in path.glob(pattern))
    by_split: dict[str, list[Path]] = {}
    for file in every:
        own = re.split(r"[^a-z0-9]+", file.name.lower())
        split = split_of(own[:1]) or (split_of([file.parent.name.lower()]) if file.parent != path else "")
        by_split.setdefault(split, []).append(file)
    train = by_split.get("train") or [file for file in by_split.get("", []) if file.parent == path]
    test = by_split.get("test") or by_split.get("valid") or []
    if not train:
        return {}
    return {"train": train, "test": test} if test else {"train": train}


def decode_tables(
    name: str, files: Files, cache_dir: Path, columns: Columns = BY_NAME, shape: Shape | None = None, size: int = 0
) -> Decoded:
    """Training and test set of some tables; `shape` is that of every image, where it is known."""
    train = read_table(files["train"], cache_dir, columns, shape, size=size)
    known: Shape = train.x.shape[1:]
    test = read_table(files["test"], cache_dir, columns, known, size=size) if files.get("test") else None
    jpeg = train.jpeg or (test is not None and test.jpeg)
    return with_moments(decode(name, train, test, cache_dir, JPEG_NOTE if jpeg else ""))


def read_table(
    paths: Sequence[Path],
    cache_dir: Path,
    columns: Columns = BY_NAME,
    shape: Shape | None = None,
    *,
    size: int = 0,
    rows: int = 0,
) -> Samples:
    """Images, labels and devices of tables with the same columns, one after another; streamed, row by row.

    `rows` is how many there must be, where that is known.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data", f"Reading {paths[0]}") from error
    labels: list[Any] = []
    ids: list[Any] = []

    def read(path: Path) -> Iterator[tuple[str, bytes]]:
        row = 0
        with parquet.ParquetFile(path) as table:
            x, y, device = _columns(path, table, columns)
            wanted = [column for column in (x, y, device) if column]
            for batch in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted):
                found = [batch.column(column).to_pylist() for column in wanted]
                for cell, label, *rest in zip(*found, strict=True):
                    data = cell.get("bytes") if isinstance(cell, dict) else cell
                    if not isinstance(data, bytes) or label is None or None in rest:
                        raise DataError(f"{path}, row {row}: image bytes or label are missing.")
                    labels.append(label)
                    ids.extend(rest)
                    yield f"{path}, row {row}", data
                    row += 1

    def images() -> Iterator[tuple[str, bytes]]:
        labels.clear()
        ids.clear()
        for path in paths:
            yield from read(path)

    path = paths[0]
    try:
        count = 0
        for path in paths:
            with parquet.ParquetFile(path) as table:
                count += table.metadata.num_rows
                _check_cells(path, table.metadata, _columns(path, table, columns)[0])
        if count == 0 or rows not in (0, count):
            raise DataError(f"{path} has {count} rows, but must have {rows or 'at least one'}.")
        x, jpeg = stack(count, images, cache_dir, shape, size)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {str(error).rstrip('.')}.") from error
    if len(labels) != count:
        raise DataError(f"{path} has {len(labels)} rows, but declares {count}.")
    return Samples(x, np.array(labels), np.array(ids) if ids else None, jpeg)


def on_hub(repository: str, name: str, *files: str) -> Download:
    """Return where the tables of a set are at the hub: `repository` is owner, name, and the folder in it."""
    owner, project, *inner = repository.split("/")
    # The hub publishes no md5.
    return Download("/".join([SITE, owner, project, "resolve/main", *inner]), name, tuple(map(RemoteFile, files)))


@dataclass(frozen=True)
class TableSet(Source):
    """A set of image tables that has a name."""

    shape: Shape
    """Channels, height and width of every image."""
    rows: Mapping[str, int]
    """Images of the sets train and test, 0 for any number; without test a part is held out."""
    columns: Columns

    def files(self, data_dir: Path) -> list[Path]:
        """Its tables in `<data_dir>/<name>/`."""
        return [path for paths in self._tables(data_dir).values() for path in paths]

    def by_hand(self, data_dir: Path) -> str:
        """The tables into a folder of its name."""
        words = " and ".join(f"{split}*.parquet" for split in self.rows)
        page = "" if self.download is None else f" of {self.download.base_url.partition('/resolve/')[0]}"
        return f"put {words}{page} into {data_dir / self.name}"

    def decode(self, data_dir: Path, cache_dir: Path) -> Decoded:
        """Training and test set, which must be as declared."""
        samples, tables = {}, self._tables(data_dir)
        for split, rows in self.rows.items():
            table = read_table(tables[split], cache_dir, self.columns, self.shape, rows=rows)
            labels = as_labels(f"{tables[split][0]}: {split} label", table.y)
            check_labels(f"{tables[split][0]}: {split} label", labels, self.classes)
            absent = np.setdiff1d(np.arange(self.classes), labels)
            if len(absent):
                raise DataError(f"{tables[split][0]} has no {split} images of class {absent[0]}.")
            samples[split] = replace(table, y=labels)
        return with_moments(decode(self.name, samples["train"], samples.get("test"), cache_dir))

    def _tables(self, data_dir: Path) -> dict[str, list[Path]]:
        folder = data_dir / self.name
        found = table_files(folder) if folder.is_dir() else {}
        return {split: found[split] for split in self.rows} if set(self.rows) <= set(found) else {}


def _check_cells(path: Path, metadata: Any, column: str) -> None:
    """Refuse a table whose images would unpack to more than images are: a few kilobytes can declare gigabytes."""
    for group in range(metadata.num_row_groups):
        some = metadata.row_group(group)
        inside = [some.column(index) for index in range(some.num_columns)]
        unpacked = sum(one.total_uncompressed_size for one in inside if one.path_in_schema.split(".")[0] == column)
        if unpacked > LARGEST_ENCODED * max(some.num_rows, 1):
            raise DataError(
                f"{path}: {some.num_rows:,} images unpack to {unpacked:,} bytes, but one may have at most "
                f"{LARGEST_ENCODED:,}."
            )


def _columns(path: Path, table: Any, given: Columns) -> tuple[str, str, str]:
    """The columns of images, labels and devices; the last may be empty."""
    schema = table.schema_arrow
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    encoded = [name for name, kind in kinds.items() if kind in ("binary", "large_binary") or "bytes: " in kind]
    wholes = [name for name, kind in kinds.items() if kind.startswith(("int", "uint", "string", "large_string"))]
    where, options = str(path), list(kinds)
    x = given.x or (encoded[0] if len(encoded) == 1 else "")
    x = choose(where, "x", x, encoded, options, X_WORDS, "images (encoded bytes)")
    y = choose(where, "y", given.y, [name for name in kinds if name != x], options, Y_WORDS, "labels", like="label")
    if y not in wholes:
        raise DataError(f"{path} has labels of type {kinds[y]}, but labels must be integers or strings.")
    device = given.device
    if device or any(column_words(name) in DEVICE_WORDS for name in wholes if name != y):
        others = [name for name in wholes if name not in (x, y)]
        device = choose(where, "device", device, others, options, DEVICE_WORDS, "ids of devices")
    return x, y, device
