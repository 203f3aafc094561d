"""Plots of a split are whole files in the format that was asked for."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kfl.core.errors import DataError
from kfl.data import partition
from kfl.plots import plot_split


def split(devices: int):
    y = np.arange(20_000) % 10
    return partition("shards", y, y, 10, devices, seed=0)


@pytest.mark.parametrize("devices", [1, 12, 100, 5000])
def test_plots_are_written_whole(tmp_path: Path, devices) -> None:
    path = tmp_path / "split.png"
    plot_split(split(devices), path)
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        assert image.size[0] > 1000
        assert len(set(image.convert("L").resize((60, 60)).tobytes())) > 10, "not blank"
    assert list(tmp_path.iterdir()) == [path]


def test_the_ending_decides_the_format(tmp_path: Path) -> None:
    plot_split(split(5), tmp_path / "a.svg", title="Mine")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(DataError, match=r"ends in \.xyz"):
        plot_split(split(5), tmp_path / "a.xyz")


def test_the_same_split_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plot_split(split(5), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
