"""The split as text shows the split."""

import numpy as np
import pytest

from kfl.cli.split_table import split_table
from kfl.data import partition


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
