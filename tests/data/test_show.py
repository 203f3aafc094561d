"""Pictures of a split show the split."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kfl.core.errors import DataError
from kfl.data import partition, plot_split, split_table


def split(devices: int, classes: int = 10, kind: str = "shards", samples: int = 20_000):
    y = np.arange(samples) % classes
    return partition(kind, y, y, classes, devices, seed=0)


def test_a_small_fleet_is_listed_with_its_counts() -> None:
    shown = split(12)
    lines = split_table(shown, width=120).splitlines()
    assert lines[0] == "12 devices, 20,000 training and 20,000 test samples"
    head, rows = lines[4].split(), lines[5:]
    assert head == ["device", *map(str, range(10)), "train", "test"] and len(rows) == 12
    for k, row in enumerate(rows):
        cells = [int(c.replace(",", "").replace("·", "0")) for c in row.split()]
        assert cells == [k, *shown.train_counts[k], len(shown.train[k]), len(shown.test[k])]


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize(("devices", "classes"), [(5, 100), (40, 10), (100, 10), (5000, 10), (700, 250)])
def test_the_map_keeps_to_the_width(devices, classes, width) -> None:
    table = split_table(split(devices, classes), width).splitlines()[4:]
    body = [line for line in table[1:-1] if line]
    assert max(map(len, body)) <= width
    assert len(body) <= 32


def test_the_map_shows_who_holds_what() -> None:
    shown = split(40)
    lines = split_table(shown, width=80).splitlines()
    rows = [line.split("│")[1] for line in lines if "│" in line]
    assert np.array_equal(np.array([[c != " " for c in row] for row in rows]).T, shown.train_counts > 0)


def test_the_summary_counts_classes_per_device() -> None:
    assert "classes per device (number of devices): 10: 50" in split_table(split(50, kind="iid"))


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
