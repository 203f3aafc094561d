"""NumPy's .npz files: arrays x and y, perhaps `device`, and perhaps the same of a test set. Never a pickle.

Headers, archive and contents must agree before memory is taken.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.errors import DataError
from kfl.core.text import quantity
from kfl.data.arrays import channels_first
from kfl.data.roles import DEVICE_WORDS, X_WORDS, Y_WORDS, column_words, missing, split_of, unclear
from kfl.data.samples import Samples, decode
from kfl.data.storage import LARGEST_BYTES, Decoded
from kfl.data.untrusted import read_header

LARGEST_RATIO = 200
"""How many times larger than packed an array of more than a gigabyte may be: real numbers do not shrink so well."""
WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "x": (X_WORDS, "inputs"),
    "y": (Y_WORDS, "labels"),
    "device": (DEVICE_WORDS, "ids of devices"),
}


@dataclass(frozen=True)
class Member:
    """An array in the archive, as its header says."""

    name: str
    """Of the file in the archive."""
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


def decode_npz(path: Path, given: Mapping[str, str], cache_dir: Path) -> Decoded:
    """Training and test set of an .npz file. `given` names arrays by their role: x, y, device.

    Names are read liberally: x_train, train_images, X; labels, y_test; subject, client_id. A set for validation is the
    test set where there is no other.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [_member(path, archive, info) for info in archive.infolist() if not info.is_dir()]
            sets = _sets(path, members, given)
            found = {split: _samples(path, archive, roles) for split, roles in sets.items()}
    except DataError:
        raise
    except Exception as problem:  # zipfile and NumPy's header parser raise anything from KeyError to TokenError
        text = str(problem).partition("\n")[0].rstrip(".") or type(problem).__name__
        raise DataError(f"{path} cannot be read as .npz: {text}.") from problem
    note = channels_first(found["train"].x)[1]
    turned = {split: replace(one, x=channels_first(one.x)[0]) for split, one in found.items()}
    return decode(str(path), turned["train"], turned.get("test"), cache_dir, note)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """The header of an array, which must promise as much as there is."""
    key = info.filename.removesuffix(".npy")
    with archive.open(info) as content:
        try:
            shape, _, dtype = read_header(content)
        except ValueError as problem:
            raise DataError(f"{path} holds {key}, which is not an array of numbers or text ({problem}).") from problem
        begins = content.tell()
    if dtype.hasobject:
        raise DataError(f"{path} holds {key}, which has Python objects, but must have numbers or text.")
    found = Member(info.filename, key, shape, dtype)
    unpacked = info.file_size - begins
    if found.size != unpacked:
        raise DataError(f"{path}: {key} declares the shape {shape}, but holds {unpacked} bytes of {dtype}.")
    bomb = unpacked > 1 << 30 and unpacked > LARGEST_RATIO * max(info.compress_size, 1)
    if unpacked > LARGEST_BYTES or bomb:
        packed = quantity(info.compress_size, "B")
        raise DataError(f"{path}: {key} would fill {quantity(unpacked, 'B')} from {packed}, which no real data does.")
    return found


def _sets(path: Path, members: list[Member], given: Mapping[str, str]) -> dict[str, dict[str, Member]]:
    """Which array is x, y and device of the training set and, where there is one, of the test set."""
    by_split: dict[str, dict[str, Member]] = {}
    rest: dict[str, str] = {}
    for member in members:
        parts = [word for word in re.split(r"[^a-z0-9]+", member.key.lower()) if word]
        parts = [part for word in parts for part in re.split(r"(?<=^[xy])(?=t[re])", word)]  # xtrain
        split = split_of(parts) or "train"
        rest[member.key] = "_".join(part for part in parts if not split_of([part]))
        by_split.setdefault(split, {})[member.key] = member
    found: dict[str, dict[str, Member]] = {}
    test = next((split for split in ("test", "valid") if split in by_split), "")
    for split, own in (("train", by_split.get("train", {})), ("test", by_split.get(test, {}))):
        if not own and split == "test":
            continue
        roles: dict[str, Member] = {}
        for role, (words, what) in WORDS.items():
            name = given.get(role, "")
            known = (name,) if name else words
            hits = [name] if name in own else [key for key in own if _is(rest[key], known)]
            if len(hits) > 1:
                raise unclear(str(path), role, hits, what)
            if not hits and (role != "device" or (name and split == "train")):
                present = [f"{member.key} {member.shape}" if not name else member.key for member in members]
                raise missing(str(path), role, present, known, f"{what} of the {split} set")
            if hits:
                roles[role] = own[hits[0]]
        found[split] = roles
    return found


def _is(rest: str, known: tuple[str, ...]) -> bool:
    return rest in known or column_words(rest) in known


def _samples(path: Path, archive: zipfile.ZipFile, roles: Mapping[str, Member]) -> Samples:
    arrays = {role: _values(path, archive, member) for role, member in roles.items()}
    x = arrays["x"]
    if x.dtype.kind not in "buif":
        raise DataError(f"{path}: {roles['x'].key} has type {x.dtype}, but inputs must be numbers.")
    if x.ndim < 2 or 0 in x.shape:
        raise DataError(
            f"{path}: {roles['x'].key} has shape {x.shape}, but inputs must be (samples, …) with at least one of each."
        )
    for role in ("y", "device"):
        if role in arrays and arrays[role].ndim == 0:
            raise DataError(f"{path}: {roles[role].key} is one value, but must be one for each sample.")
    return Samples(x, arrays["y"], arrays.get("device"))


def _values(path: Path, archive: zipfile.ZipFile, member: Member) -> NDArray[Any]:
    """The values of an array, whose header was checked."""
    with archive.open(member.name) as content:
        try:
            values: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
        except ValueError as problem:
            raise DataError(f"{path}: {member.key} is truncated, fewer than {member.size} bytes.") from problem
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
