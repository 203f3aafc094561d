"""Splits with overlap: what the words promise, the same whenever they are read, and no memory for samples."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError, DataError
from kfl.data import Dataset, limit_tested, partition
from kfl.experiment import DataSettings, Experiment
from kfl.simulation import build_world

LABELS = np.arange(600) % 10
TESTS = np.arange(200) % 10


def overlap(devices: int, seed: int, m: int, samples: int, train=LABELS, test=TESTS):
    return partition("overlap", train, test, 10, devices, seed, classes_per_device=m, samples=samples)


@given(devices=st.integers(1, 60), seed=st.integers(0, 9), m=st.integers(1, 10), samples=st.integers(1, 60))
@settings(max_examples=60)
def test_every_device_has_what_was_asked_for(devices: int, seed: int, m: int, samples: int) -> None:
    split = overlap(devices, seed, m, samples)
    assert split.devices == devices
    assert (split.train_sizes == samples).all()
    assert (split.test_sizes > 0).all()
    for rows, counts, sizes, labels in (
        (split.train, split.train_counts, split.train_sizes, LABELS),
        (split.test, split.test_counts, split.test_sizes, TESTS),
    ):
        assert len(rows) == devices
        for device, own in enumerate(rows):
            assert len(own) == sizes[device] == len(set(own.tolist()))
            assert (np.diff(own) > 0).all()
            assert np.array_equal(counts[device], np.bincount(labels[own], minlength=10))
    held = (split.train_counts > 0).sum(axis=1)
    assert (held == min(m, samples)).all()
    assert (split.test_counts[split.train_counts == 0] == 0).all()
    # At least one test of every class that was learned, and as many of each as of any other.
    assert (split.test_counts[split.train_counts > 0] > 0).all()
    positive = np.where(split.train_counts > 0, split.train_counts, samples)
    assert (split.train_counts.max(axis=1) - positive.min(axis=1) <= 1).all()


def test_reading_again_or_in_another_order_gives_the_same() -> None:
    one, other = overlap(30, 5, 2, 50), overlap(30, 5, 2, 50)
    late = [other.train[device] for device in reversed(range(30))]
    assert all(np.array_equal(a, b) for a, b in zip(one.train, reversed(late), strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(one.train[3:6], [one.train[k] for k in (3, 4, 5)], strict=True))
    assert np.array_equal(one.train[-1], one.train[29])
    with pytest.raises(IndexError):
        one.train[30]
    assert not np.array_equal(one.train[0], overlap(30, 6, 2, 50).train[0])
    # A device's draw does not depend on how many others there are.
    assert np.array_equal(one.train[7], overlap(20, 5, 2, 50).train[7])


def test_devices_share_samples_and_all_classes_are_used() -> None:
    split = overlap(400, 0, 2, 50)
    assert len(np.unique(np.concatenate(list(split.train)))) == len(LABELS) < split.train_sizes.sum()
    per_class = (split.train_counts > 0).sum(axis=0)
    assert per_class.sum() == 800 and per_class.min() > 50


def test_a_fleet_of_a_hundred_thousand_takes_no_memory_for_its_samples() -> None:
    tracemalloc.start()
    split = overlap(100_000, 0, 2, 100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert split.train_sizes.sum() == 10_000_000
    assert peak < 60e6  # class counts are 16 MB; the samples would be 80 MB


def test_a_class_without_enough_samples_is_nobodys() -> None:
    some = LABELS[LABELS != 4]
    split = overlap(50, 0, 9, 90, train=some)
    assert (split.train_counts[:, 4] == 0).all()
    with pytest.raises(ConfigError, match="classes_per_device is 10, but must be at most 9"):
        overlap(50, 0, 10, 90, train=some)
    rare = np.concatenate([some, [4, 4, 4]])
    split = overlap(50, 0, 2, 50, train=rare)
    assert (split.train_counts[:, 4] == 0).all() and (split.train_sizes == 50).all()
    assert overlap(50, 0, 2, 6, train=rare).train_counts[:, 4].max() == 3


def test_tests_go_to_the_classes_that_have_any() -> None:
    two = TESTS[TESTS < 2]
    split = overlap(200, 0, 4, 8, test=two)
    holds = (split.train_counts[:, :2] > 0).any(axis=1)
    assert np.array_equal(split.test_sizes > 0, holds)
    draw = np.random.default_rng(0)
    data = Dataset.from_arrays(
        draw.normal(size=(300, 3)), np.arange(300) % 4, draw.normal(size=(9, 3)), np.zeros(9, int)
    )
    lonely = Experiment(devices=1, rounds=1, split="overlap", samples_per_device=10, classes_per_device=1, widths=(8,))
    with pytest.raises(DataError, match="No device has a test sample"):
        for seed in range(8):
            build_world(replace(lonely, seed=seed), dataset=data)


def test_what_is_left_over_does_not_go_to_the_same_class_twice() -> None:
    split = overlap(100, 0, 2, 7, test=np.arange(2000) % 10)
    more, tested = split.train_counts.argmax(axis=1), split.test_counts
    assert (split.test_sizes % 2 == 1).all()
    assert (tested[np.arange(100), more] < tested.max(axis=1)).all()


def test_proxy_samples_belong_to_nobody() -> None:
    draw = np.random.default_rng(0)
    data = Dataset.from_arrays(draw.normal(size=(600, 3)), LABELS, draw.normal(size=(200, 3)), TESTS)
    told = DataSettings(devices=40, split="overlap", samples_per_device=30)
    proxy = told.proxy(data, per_class=20)
    assert proxy is not None
    split = told.partition(data, proxy)
    for device, own in enumerate(split.train):
        assert not np.intersect1d(own, proxy).size
        assert np.array_equal(split.train_counts[device], np.bincount(LABELS[own], minlength=10))


def test_clear_words_about_bad_numbers() -> None:
    with pytest.raises(ConfigError, match="samples_per_device is 130, but must be at most 120: 2 classes have 60"):
        overlap(5, 0, 2, 130)
    with pytest.raises(ConfigError, match="samples_per_device is None, but must be 1 or more"):
        partition("overlap", LABELS, TESTS, 10, 5, 0)
    with pytest.raises(ConfigError, match="samples_per_device"):
        Experiment(split="overlap").validate()
    with pytest.raises(ConfigError, match="tested_devices is 0, but must be 1 or more, or none"):
        Experiment(tested_devices=0).validate()
    with pytest.raises(ConfigError, match="tested_devices"):
        limit_tested(overlap(5, 0, 2, 10), 0, 0)


@given(most=st.integers(1, 30), seed=st.integers(0, 20))
@settings(max_examples=30)
def test_only_some_devices_are_tested(most: int, seed: int) -> None:
    before = partition("shards", LABELS, TESTS, classes=10, devices=20, seed=seed)
    after = limit_tested(before, most, seed)
    tested = np.flatnonzero(after.test_sizes)
    assert len(tested) == min(most, np.count_nonzero(before.test_sizes))
    for device in range(20):
        wanted = before.test[device] if device in tested else []
        assert np.array_equal(after.test[device], wanted)
        assert np.array_equal(after.test_counts[device], np.bincount(TESTS[after.test[device]], minlength=10))
        assert np.array_equal(after.train[device], before.train[device])
