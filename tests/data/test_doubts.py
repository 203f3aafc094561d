"""Arrays as people have them: bytes, channels last, labels from 1 or with gaps; repaired, and said."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import kfl
from kfl.core.errors import DataError

DRAW = np.random.default_rng(0)


def test_bytes_are_divided_by_255_unless_a_scale_is_given():
    x, y = DRAW.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8), np.arange(40) % 4
    data = kfl.Dataset.from_arrays(x, y)
    assert float(data.inputs("train").max()) <= 1.0 and data.scale == 1 / 255
    assert float(kfl.Dataset.from_arrays(x, y, scale=1.0).inputs("train").max()) > 1.0
    assert kfl.Dataset.from_arrays(x.astype(np.float32), y).scale == 1.0


def test_bytes_learn_like_the_same_numbers_from_0_to_1():
    y = np.arange(400) % 4
    x = (DRAW.integers(0, 100, (400, 5, 5)) + 30 * y[:, None, None]).astype(np.uint8)
    few = kfl.Experiment(devices=4, rounds=3, widths=(16,), radio=None, classes_per_device=4)
    as_bytes = kfl.run(few, dataset=kfl.Dataset.from_arrays(x, y))
    as_floats = kfl.run(few, dataset=kfl.Dataset.from_arrays(x[:, None].astype(np.float32) / 255, y))
    assert as_bytes.accuracy == pytest.approx(as_floats.accuracy, abs=0.02)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_channels_that_stand_last_come_first(kind):
    x = DRAW.integers(0, 256, (12, 8, 9, 3)).astype(kind)
    data = kfl.Dataset.from_arrays(x, np.arange(12) % 2, x[:4], np.arange(4) % 2)
    assert data.input_shape == (3, 8, 9) and "(height, width, channels)" in data.note
    np.testing.assert_array_equal(data.test_x[2, 1], x[2, :, :, 1])
    first = kfl.Dataset.from_arrays(x.transpose(0, 3, 1, 2), np.arange(12) % 2)
    assert first.input_shape == (3, 8, 9) and first.note == ""


def test_labels_from_1_or_with_gaps_make_no_phantom_classes():
    x = DRAW.normal(size=(30, 4))
    data = kfl.Dataset.from_arrays(x, np.array([1, 2, 5] * 10))
    assert data.classes == 3 and set(data.train_y) == {0, 1, 2}
    assert data.note == "Its 3 labels, 1 … 5, are numbered 0 … 2 in order."
    kept = kfl.Dataset.from_arrays(x, np.array([1, 2, 5] * 10), classes=6)
    assert kept.classes == 6 and set(kept.train_y) == {1, 2, 5} and kept.note == ""
    assert kfl.Dataset.from_arrays(x, np.arange(30) % 3).note == ""
    with pytest.raises(DataError, match="-1"):
        kfl.Dataset.from_arrays(x, np.array([-1, 0, 1] * 10))


def test_devices_with_one_class_are_questioned(caplog):
    x, y = DRAW.normal(size=(200, 4)), np.arange(200) % 4  # noise: nothing can be learned
    data = kfl.Dataset.from_arrays(x, y)
    single = kfl.Experiment(devices=8, rounds=1, widths=(8,), radio=None, classes_per_device=1)
    with caplog.at_level(logging.WARNING):
        kfl.run(single, dataset=data)
    assert "8 of 8 devices hold samples of one class" in caplog.text and "scores 100 %" in caplog.text
    caplog.clear()
    kfl.run(kfl.Experiment(devices=4, rounds=1, widths=(8,), radio=None, split="iid"), dataset=data)
    assert "one class" not in caplog.text


def test_no_device_draws_a_class_twice_unless_the_papers_split_is_asked_for(caplog):
    labels = np.arange(600) % 6
    data = kfl.Dataset.from_arrays(DRAW.normal(size=(600, 4)), labels)
    held = [
        (split.partition(data).train_counts > 0).sum(axis=1)
        for split in (kfl.Experiment(devices=30), kfl.Experiment(devices=30, distinct_classes=False))
    ]
    assert set(held[0]) == {2} and 1 in held[1]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("labels", "m", "why"),
    [
        (np.arange(200) % 2, 3, "classes_per_device is 3, but the training set has 2 classes"),
        (np.r_[np.zeros(195, int), np.ones(5, int)], 2, "some classes have fewer samples than the 20 devices need"),
    ],
)
def test_where_classes_are_too_few_they_are_drawn_twice_and_that_is_said(labels, m, why, caplog):
    data = kfl.Dataset.from_arrays(DRAW.normal(size=(200, 4)), labels, DRAW.normal(size=(9, 4)), np.arange(9) % 2)
    with caplog.at_level(logging.WARNING):
        split = kfl.Experiment(devices=20, classes_per_device=m).partition(data)
    assert split.train_sizes.min() >= 1
    assert why in caplog.text and "a device may draw the same class twice" in caplog.text


def test_numbers_up_to_255_and_a_single_class_are_questioned(caplog):
    x = DRAW.integers(0, 256, (80, 6)).astype(np.float32)
    small = kfl.Experiment(devices=2, rounds=1, widths=(8,), radio=None)
    kfl.run(small, dataset=kfl.Dataset.from_arrays(x, np.arange(80) % 4))
    assert "Inputs reach 255" in caplog.text and "divide them" in caplog.text
    caplog.clear()
    kfl.run(small, dataset=kfl.Dataset.from_arrays(x / 255, np.zeros(80, int)))
    assert "one class only" in caplog.text and "Inputs" not in caplog.text


def test_gains_and_powers_that_no_radio_has_are_questioned(caplog):
    data = kfl.Dataset.from_arrays(DRAW.normal(size=(80, 6)), np.arange(80) % 4)
    cell = kfl.CellConfig(reference_gain_db=30.0, max_power_dbm=53.0)
    kfl.run(kfl.Experiment(devices=2, rounds=1, widths=(8,), radio=cell), dataset=data)
    assert "reference_gain_db is 30" in caplog.text and "gain of -30" in caplog.text
    assert "max_power_dbm is 53, that is 200 W" in caplog.text


def test_tiny_colour_images_get_a_network_that_takes_them():
    x = DRAW.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    history = kfl.run(
        kfl.Experiment(devices=2, rounds=1, widths=(8,), radio=None),
        dataset=kfl.Dataset.from_arrays(x, np.arange(40) % 2),
    )
    assert history.devices[0]["model"] == "mlp-8"
