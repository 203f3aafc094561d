"""Encoded images, decoded into one array: from parquet tables, and from folders with one subfolder per class.

Whose files they are is not known, so Pillow is given a short list of formats and tries no other. Left to itself it
recognizes some forty by their first bytes, whatever a file is called, and for one of them (EPS) starts a program.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import ConfigError, DataError, MissingExtraError
from kfl.data.roles import split_of
from kfl.data.samples import Samples, channel_moments, decode
from kfl.data.storage import LARGEST_BYTES, Decoded, spacious

TABLE_FORMATS = ("PNG", "JPEG")
"""Formats of images in tables: what dataset hubs store."""
ENDINGS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".ppm": "PPM",
    ".pgm": "PPM",
}
"""Files that are images, and the one format that each may have."""
LARGEST_ENCODED = 64 * 1024**2
"""Bytes of one encoded image: far more than one of the largest size takes."""
JPEG_MAGIC = b"\xff\xd8\xff"
GREY_MODES = ("1", "L", "LA")
MODES = (*GREY_MODES, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's words for pixels of eight bits; others would lose something."""
LARGEST_SIDE = 4096
"""Pixels of the longer side of an image that a network is to learn from; four times that of one that is scaled."""

Shape = tuple[int, int, int]
Encoded = Iterable[tuple[str, bytes | Path]]
"""Images with what to call each in a sentence: encoded bytes, or the file that holds them."""


def stack(count: int, images: Callable[[], Encoded], cache_dir: Path, shape: Shape | None = None, size: int = 0) -> Any:
    """All images as (count, channels, height, width) bytes, one at a time in memory; and whether any was a JPEG.

    `shape` is what every image must have, or follows from the first: gray unless one of them has colors. With `size`
    all are scaled to so many pixels each way.
    """
    if size and not 1 <= size <= LARGEST_SIDE:
        raise ConfigError("size", size, f"1 to {LARGEST_SIDE} pixels")
    try:
        return _stack(count, images(), cache_dir, shape, size, grey=shape is None or shape[0] == 1)
    except _ColourError:
        return _stack(count, images(), cache_dir, shape, size, grey=False)


class _ColourError(Exception):
    """An image with colors among gray ones: all of them are read again, in color."""


def _stack(
    count: int, images: Encoded, cache_dir: Path, shape: Shape | None, size: int, *, grey: bool
) -> tuple[NDArray[np.uint8], bool]:
    out: NDArray[np.uint8] | None = None
    first, jpeg = "", False
    pixels = (shape[2], shape[1]) if shape is not None else (size, size) if size else None
    for row, (name, content) in enumerate(images):
        picture, is_jpeg = _picture(name, content, pixels, first, size)
        jpeg = jpeg or is_jpeg
        if grey and picture.mode not in GREY_MODES:
            raise _ColourError
        if out is None:
            first, pixels = (name if not size and shape is None else ""), picture.size
            whole = (count, 1 if grey else 3, pixels[1], pixels[0])
            if math.prod(whole) > LARGEST_BYTES:
                raise DataError(
                    f"{name}: {count:,} images of {_in_pixels(pixels)} need more than 64 GiB; use smaller ones."
                )
            out = spacious(whole, np.uint8, cache_dir)
        values = np.asarray(picture.convert("L" if grey else "RGB"))
        out[row] = values[None] if grey else values.transpose(2, 0, 1)
    if out is None:
        raise DataError("There is no image, but there must be at least one.")
    return out, jpeg


def _picture(
    name: str, content: bytes | Path, pixels: tuple[int, int] | None, first: str, size: int
) -> tuple[Any, bool]:
    """One decoded image and whether it was a JPEG. Its size is in its header: checked before pixels are decoded."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError("pillow", "data", f"Reading {name}") from error
    try:
        data = _encoded(name, content)
        formats = TABLE_FORMATS if isinstance(content, bytes) else (ENDINGS[content.suffix.lower()],)
        with Image.open(io.BytesIO(data), formats=formats) as image:
            found = image.size
            most = 4 * LARGEST_SIDE if size else LARGEST_SIDE
            fits = max(found) <= most and (size > 0 or pixels is None or found == pixels)
            if fits and image.mode in MODES:
                image.load()
                scaled = image if pixels is None or found == pixels else _scaled(image, pixels)
                return scaled, data.startswith(JPEG_MAGIC)
            mode = image.mode
    except UnidentifiedImageError as error:
        raise DataError(f"{name}: the image cannot be decoded, it is not a {' or '.join(formats)} image.") from error
    except (OSError, SyntaxError, ValueError, OverflowError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: the image cannot be decoded ({str(error).partition(' <')[0]}).") from error
    if fits:
        raise DataError(f"{name}: the image has pixels of the kind {mode}, but must have eight bits for each color.")
    if max(found) > most:
        raise DataError(f"{name}: the image has {_in_pixels(found)}, but must have at most {most} each way.")
    wanted = _in_pixels(pixels or found)
    if not first:
        raise DataError(f"{name}: the image has {_in_pixels(found)}, but must have {wanted.removesuffix(' pixels')}.")
    raise DataError(
        f"{name}: the image has {_in_pixels(found)}, but {first} has {wanted}: give images of one size, or scale them "
        "all by ',size=N' at the end of the path."
    )


def _encoded(name: str, content: bytes | Path) -> bytes:
    """The bytes of an image, refused before they are read where they are too many."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if size > LARGEST_ENCODED:
        raise DataError(f"{name}: the encoded image has {size:,} bytes, but must have at most {LARGEST_ENCODED:,}.")
    return content if isinstance(content, bytes) else content.read_bytes()


def _scaled(image: Any, pixels: tuple[int, int]) -> Any:
    from PIL import Image

    kept = image if image.mode in ("L", "RGB") else image.convert("L" if image.mode in GREY_MODES else "RGB")
    return kept.resize(pixels, Image.Resampling.BILINEAR)


def _in_pixels(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]} pixels"


def with_moments(found: Decoded) -> Decoded:
    """Arrays of images with what standardizes them, where they are in color."""
    x = found.arrays["train_x"]
    return Decoded({**found.arrays, **channel_moments(x)}, found.note) if x.shape[1] == 3 else found


# ── Folders ──────────────────────────────────────────────────────────────────


def has_images(folder: Path) -> bool:
    """Whether images lie in subfolders of a folder, which are then classes or sets of them."""
    return any(_is_image(path) for inner in _folders(folder) for path in inner.rglob("*"))


def image_files(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """The image files of each set and class: {"train": {"cat": […]}}, sets by the names train, test and valid.

    Without subfolders of such names, all subfolders are classes of the training set.
    """
    named = {split: inner for inner in reversed(_folders(folder)) if (split := split_of([inner.name.lower()]))}
    tops = named if "train" in named else {"train": folder}
    found = {
        split: {inner.name: files for inner in _folders(top) if (files := list(_images_in(inner)))}
        for split, top in tops.items()
    }
    if not found["train"]:
        raise DataError(f"{tops['train']} has no subfolder with images, but needs one for each class.")
    return found


def decode_folder(folder: Path, files: dict[str, dict[str, list[Path]]], cache_dir: Path, size: int = 0) -> Decoded:
    """All images of a folder; the classes are its subfolders in alphabetical order."""
    classes = sorted(files["train"])
    test = next((split for split in ("test", "valid") if files.get(split)), None)
    strange = [name for name in files.get(test or "", {}) if name not in classes]
    if strange:
        raise DataError(f"{folder} has test images of the class {strange[0]!r}, but no training images of it.")
    wanted = [split for split in ("train", test) if split is not None]
    counts = {split: sum(len(some) for some in files[split].values()) for split in wanted}

    def images() -> Iterator[tuple[str, Path]]:
        for split in wanted:
            for name in classes:
                yield from ((str(path), path) for path in files[split].get(name, ()))

    x, _ = stack(sum(counts.values()), images, cache_dir, size=size)
    labels = [np.repeat(np.array(classes), [len(files[split].get(c, ())) for c in classes]) for split in wanted]
    first = counts["train"]
    train = Samples(x[:first], labels[0])
    other = Samples(x[first:], labels[1]) if test is not None else None
    return with_moments(decode(str(folder), train, other, cache_dir))


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _images_in(folder: Path) -> Iterator[Path]:
    """Image files at any depth, in order of their paths."""
    return (path for path in sorted(folder.rglob("*")) if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and path.is_file()
