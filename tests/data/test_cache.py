"""The cache: decoded once, noticed when damaged or stale, never in the way."""

import os
from pathlib import Path

import numpy as np
import pytest

from kfl.data.storage import Decoded, cached

X, Y = np.arange(1000, dtype=np.uint8).reshape(10, 100), np.arange(10)


class Decoder:
    """Counts how often it had to work."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Decoded:
        self.calls += 1
        return Decoded({"x": X, "y": Y}, note="remark")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"raw")
    return path


def check(found: Decoded) -> None:
    assert np.array_equal(found.arrays["x"], X) and np.array_equal(found.arrays["y"], Y)
    assert found.arrays["x"].dtype == np.uint8 and found.note == "remark"


def test_decodes_once_and_maps_afterwards(tmp_path: Path, source: Path) -> None:
    decode, folder = Decoder(), tmp_path / "deep" / "cache"
    for _ in range(3):
        found = cached("toy", [source], decode, folder)
        check(found)
        assert isinstance(found.arrays["x"], np.memmap) and not found.arrays["x"].flags.writeable
    assert decode.calls == 1


def test_another_source_or_name_is_another_entry(tmp_path: Path, source: Path) -> None:
    decode, folder = Decoder(), tmp_path / "cache"
    cached("toy", [source], decode, folder)
    os.utime(source, ns=(1, 1))
    cached("toy", [source], decode, folder)
    source.write_bytes(b"longer")
    cached("toy", [source], decode, folder)
    cached("other", [source], decode, folder)
    assert decode.calls == 4


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: flip(entry / "x.npy"),
        lambda entry: os.truncate(entry / "x.npy", 300),
        lambda entry: os.truncate(entry / "y.npy", 0),
        lambda entry: (entry / "y.npy").unlink(),
        lambda entry: (entry / "index.json").write_text("{"),
        lambda entry: (entry / "index.json").write_text("[]"),
        lambda entry: (entry / "index.json").unlink(),
        lambda entry: np.save(entry / "y.npy", np.array([{"a": 1}], dtype=object)),
        lambda entry: np.save(entry / "x.npy", X.reshape(20, 50)),
    ],
)
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, source: Path, damage) -> None:
    decode, folder = Decoder(), tmp_path / "cache"
    cached("toy", [source], decode, folder)
    damage(next(folder.iterdir()))
    check(cached("toy", [source], decode, folder))
    assert decode.calls == 2
    check(cached("toy", [source], decode, folder))
    assert decode.calls == 2


def test_a_folder_that_cannot_be_written_means_no_cache(tmp_path: Path, source: Path) -> None:
    decode, folder = Decoder(), tmp_path / "cache"
    folder.write_text("a file is in the way")
    for _ in range(2):
        check(cached("toy", [source], decode, folder))
    assert decode.calls == 2
