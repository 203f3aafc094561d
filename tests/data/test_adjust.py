"""Fewer samples, and a class never met: against what the words promise, for any split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.data import add_new_class, limit_samples, partition

LABELS = np.arange(600) % 10
TESTS = np.arange(200) % 10


def split_of(seed: int, m: int = 2):
    return partition("shards", LABELS, TESTS, classes=10, devices=20, seed=seed, classes_per_device=m)


@given(seed=st.integers(0, 50), most=st.integers(1, 40))
@settings(max_examples=40)
def test_a_limit_keeps_a_subset_and_every_class_it_has_room_for(seed: int, most: int) -> None:
    before = split_of(seed)
    after = limit_samples(before, LABELS, most, seed)
    for device in range(20):
        assert len(after.train[device]) == min(most, len(before.train[device]))
        assert set(after.train[device]) <= set(before.train[device])
        assert np.array_equal(after.train_counts[device], np.bincount(LABELS[after.train[device]], minlength=10))
        held = np.count_nonzero(before.train_counts[device])
        assert np.count_nonzero(after.train_counts[device]) == min(held, most)
        assert np.array_equal(after.test[device], before.test[device])


@given(seed=st.integers(0, 50), count=st.integers(1, 20))
@settings(max_examples=40)
def test_a_new_class_is_new_and_the_only_one_tested(seed: int, count: int) -> None:
    before = split_of(seed)
    after = add_new_class(before, LABELS, TESTS, count, seed)
    for device in range(20):
        (tested,) = np.flatnonzero(after.test_counts[device])
        assert before.train_counts[device, tested] == 0
        assert after.train_counts[device, tested] == count
        assert set(before.train[device]) < set(after.train[device])
        assert np.array_equal(after.train_counts[device], np.bincount(LABELS[after.train[device]], minlength=10))
        assert set(TESTS[after.test[device]]) == {tested}


def test_draws_are_named_by_the_seed() -> None:
    one, other = (add_new_class(split_of(3), LABELS, TESTS, 5, 3) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True))
    assert not np.array_equal(one.test_counts, add_new_class(split_of(3), LABELS, TESTS, 5, 4).test_counts)


def test_nothing_new_for_a_device_that_knows_all() -> None:
    everything = partition("iid", LABELS, TESTS, classes=10, devices=2, seed=0)
    with pytest.raises(ConfigError, match="holds every class already"):
        add_new_class(everything, LABELS, TESTS, 5, 0)


def test_more_samples_than_the_class_has() -> None:
    with pytest.raises(ConfigError, match="at most 60"):
        add_new_class(split_of(0), LABELS, TESTS, 61, 0)
