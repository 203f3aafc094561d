"""Splits: every sample once, exact shard counts, tests follow training, the same seed the same split."""

from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError, DataError
from kfl.data import Partition, partition
from kfl.data.apportionment import assign_distinct, level_fill, skim
from kfl.data.holdout import largest_remainder

PROPERTY = settings(max_examples=60)


@st.composite
def problems(draw):
    classes = draw(st.integers(1, 8))
    sizes = draw(st.lists(st.integers(0, 40), min_size=classes, max_size=classes).filter(any))
    tests = draw(st.lists(st.integers(0, 20), min_size=classes, max_size=classes))
    order = np.random.default_rng(draw(st.integers(0, 99)))
    train_y = order.permutation(np.repeat(np.arange(classes), sizes))
    test_y = order.permutation(np.repeat(np.arange(classes), tests))
    return train_y, test_y, classes


def check_bookkeeping(split: Partition, train_y, test_y, classes: int, devices: int) -> None:
    for parts, counts, y in (
        (split.train, split.train_counts, train_y),
        (split.test, split.test_counts, test_y),
    ):
        assert len(parts) == devices and counts.shape == (devices, classes)
        for indices, row in zip(parts, counts, strict=True):
            assert (np.diff(indices) > 0).all()
            assert np.array_equal(np.bincount(y[indices], minlength=classes), row)
        together = np.concatenate(parts)
        assert len(np.unique(together)) == len(together)
    assert all(len(indices) for indices in split.train)


def same(one: Partition, other: Partition) -> bool:
    pairs = [*zip(one.train, other.train, strict=True), *zip(one.test, other.test, strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs)


@PROPERTY
@given(problems(), st.integers(1, 30), st.integers(1, 4), st.booleans(), st.integers(0, 5))
def test_shards(problem, devices, m, distinct, seed) -> None:
    train_y, test_y, classes = problem
    sizes = np.bincount(train_y, minlength=classes)
    feasible = np.minimum(sizes, devices).sum() if distinct else sizes.sum()
    arguments = ("shards", train_y, test_y, classes, devices, seed)
    if feasible < m * devices:
        with pytest.raises(DataError):
            partition(*arguments, classes_per_device=m, distinct=distinct)
        return
    split = partition(*arguments, classes_per_device=m, distinct=distinct)
    check_bookkeeping(split, train_y, test_y, classes, devices)
    assert same(split, partition(*arguments, classes_per_device=m, distinct=distinct))
    held = split.train_counts > 0
    assert (held.sum(axis=1) <= m).all()
    if distinct:
        assert (held.sum(axis=1) == m).all()
    # Whole classes are dealt out; one is left out only where there are fewer shards than classes.
    totals = split.train_counts.sum(axis=0)
    assert ((totals == sizes) | (totals == 0)).all()
    if m * devices >= (sizes > 0).sum():
        assert np.array_equal(totals, sizes)
    # The test set follows: no device is tested on a class it does not hold, and nothing else is lost.
    assert (split.test_counts[~held] == 0).all()
    expected = np.where(totals > 0, np.bincount(test_y, minlength=classes), 0)
    assert np.array_equal(split.test_counts.sum(axis=0), expected)


@pytest.mark.parametrize("distinct", [False, True])
def test_shards_are_the_papers_for_round_numbers(distinct: bool) -> None:
    """K = 100, m = 2, C = 10: 20 shards of 30 samples per class, two for each device."""
    y, t = np.repeat(np.arange(10), 600), np.repeat(np.arange(10), 100)
    split = partition("shards", y, t, 10, 100, seed=3, distinct=distinct)
    assert set(np.unique(split.train_counts)) <= {0, 30, 60}
    assert np.array_equal(split.train_counts, split.test_counts * 6)
    assert (split.train_counts.sum(axis=1) == 60).all()
    assert ((split.train_counts // 30).sum(axis=0) == 20).all()


def test_one_device_in_ten_draws_a_class_twice_as_printed() -> None:
    """P = (mK/C − 1)/(mK − 1) = 19/199 ≈ 9.5 % at K = 100, m = 2."""
    y = np.repeat(np.arange(10), 20)
    doubles = [
        ((partition("shards", y, y, 10, 100, seed).train_counts > 0).sum(axis=1) == 1).mean() for seed in range(100)
    ]
    assert np.mean(doubles) == pytest.approx(19 / 199, abs=4 * np.std(doubles) / 10)


def test_unequal_remainders_still_give_exactly_mk_shards() -> None:
    """7 devices × 3 over 4 classes: 21 shards, so 5, 5, 5 and 6; shards of a class differ by one sample."""
    y = np.repeat(np.arange(4), 60)
    split = partition("shards", y, y, 4, 7, seed=1, classes_per_device=3, distinct=True)
    assert sorted((split.train_counts > 0).sum(axis=0).tolist()) == [5, 5, 5, 6]


def test_small_classes_give_their_shards_to_others() -> None:
    y = np.repeat([0, 1, 2], [2, 500, 500])
    split = partition("shards", y, y, 3, 20, seed=0)
    assert split.train_counts[:, 0].sum() == 2 and (split.train_counts[:, 0] <= 2).all()


def test_the_distinct_deal_is_uniform() -> None:
    """All valid deals of a small table come up equally often (chi-squared, fixed seed)."""
    shards, devices, m = np.array([2, 2, 1, 1]), 3, 2
    pairs = list(combinations(range(4), 2))
    deals = {
        deal
        for chosen in (permutations(pairs, 3), ((a, a, b) for a in pairs for b in pairs))
        for deal in chosen
        if Counter(c for pair in deal for c in pair) == {0: 2, 1: 2, 2: 1, 3: 1}
    }
    deals |= {tuple(p) for deal in deals for p in permutations(deal)}
    generator, seen, draws = np.random.default_rng(0), Counter(), 6000
    klass = np.repeat(np.arange(4), shards)
    for _ in range(draws):
        owner = assign_distinct(shards, devices, m, generator)
        seen[tuple(tuple(sorted(klass[owner == k].tolist())) for k in range(devices))] += 1
    assert set(seen) == deals
    expected = draws / len(deals)
    statistic = sum((n - expected) ** 2 / expected for n in seen.values())
    freedom = len(deals) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@PROPERTY
@given(problems(), st.integers(1, 30), st.integers(0, 5))
def test_iid(problem, devices, seed) -> None:
    train_y, test_y, classes = problem
    arguments = ("iid", train_y, test_y, classes, devices, seed)
    if devices > len(train_y):
        with pytest.raises(DataError, match=f"only {len(train_y)}"):
            partition(*arguments)
        return
    split = partition(*arguments)
    check_bookkeeping(split, train_y, test_y, classes, devices)
    assert same(split, partition(*arguments))
    for counts, y in ((split.train_counts, train_y), (split.test_counts, test_y)):
        assert counts.sum() == len(y)
        assert np.ptp(counts.sum(axis=1)) <= 1


@PROPERTY
@given(problems(), st.integers(1, 30), st.integers(0, 5), st.sampled_from([1e-300, 1e-3, 0.5, 10.0, 1e308]))
def test_dirichlet(problem, devices, seed, alpha) -> None:
    train_y, test_y, classes = problem
    arguments = ("dirichlet", train_y, test_y, classes, devices, seed)
    if devices > len(train_y):
        with pytest.raises(DataError):
            partition(*arguments, alpha=alpha)
        return
    split = partition(*arguments, alpha=alpha)
    check_bookkeeping(split, train_y, test_y, classes, devices)
    assert same(split, partition(*arguments, alpha=alpha))
    assert split.train_counts.sum() == len(train_y)
    assert (split.test_counts[split.train_counts == 0] == 0).all()
    trained = split.train_counts.sum(axis=0) > 0
    assert split.test_counts.sum() == trained[test_y].sum()


def test_dirichlet_has_the_right_spread() -> None:
    """A share of Dir(α) over K devices has variance (1/K)(1 − 1/K)/(Kα + 1)."""
    y = np.repeat([0, 1], 20_000)
    devices, alpha = 10, 0.7
    shares = np.concatenate(
        [partition("dirichlet", y, y, 2, devices, s, alpha=alpha).train_counts / 20_000 for s in range(60)]
    )
    expected = (1 / devices) * (1 - 1 / devices) / (devices * alpha + 1)
    assert shares.var() == pytest.approx(expected, rel=0.2)


def test_the_dirichlet_test_set_has_the_training_proportions() -> None:
    y, t = np.repeat(np.arange(5), 1000), np.repeat(np.arange(5), 500)
    split = partition("dirichlet", y, t, 5, 8, seed=0, alpha=0.3)
    assert np.abs(split.train_counts / 2 - split.test_counts).max() <= 1


@pytest.mark.parametrize("kind", ["shards", "iid", "dirichlet"])
def test_another_seed_is_another_split(kind) -> None:
    y = np.arange(500) % 5
    assert not same(partition(kind, y, y, 5, 10, seed=0), partition(kind, y, y, 5, 10, seed=1))


@pytest.mark.parametrize("kind", ["shards", "iid", "dirichlet"])
def test_a_large_fleet(kind) -> None:
    y = np.arange(40_000) % 10
    split = partition(kind, y, y[:5000], 10, 20_000, seed=0)
    assert split.train_counts.sum() == 40_000 and split.test_counts.sum() == 5000
    assert min(len(indices) for indices in split.train) >= 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"devices": 0}, "devices"),
        ({"devices": 2.5}, "devices"),
        ({"devices": True}, "devices"),
        ({"classes": 0}, "classes"),
        ({"classes_per_device": 0}, "classes_per_device"),
        ({"classes_per_device": -1}, "classes_per_device"),
        ({"kind": "dirichlet", "alpha": 0}, "alpha"),
        ({"kind": "dirichlet", "alpha": -1.0}, "alpha"),
        ({"kind": "dirichlet", "alpha": float("nan")}, "alpha"),
        ({"kind": "dirichlet", "alpha": float("inf")}, "alpha"),
        ({"kind": "by-owner"}, "partition"),
    ],
)
def test_settings_that_cannot_work(change, field) -> None:
    y = np.arange(20) % 2
    arguments = {"kind": "shards", "train_y": y, "test_y": y, "classes": 2, "devices": 3, "seed": 0}
    with pytest.raises(ConfigError, match=f"^{field} is "):
        partition(**(arguments | change))


def test_numbers_may_come_from_numpy() -> None:
    y = np.arange(40) % 4
    plain = partition("shards", y, y, 4, 5, 0, distinct=True)
    assert same(plain, partition("shards", y, y, np.int64(4), np.int64(5), 0, distinct=True))


def test_more_shards_than_samples_is_one_sentence() -> None:
    y = np.arange(20) % 2
    with pytest.raises(DataError, match="15 devices with 2 shards each need 30 training samples, but there are 20"):
        partition("shards", y, y, 2, 15, 0)


def test_distinct_classes_need_enough_classes() -> None:
    y = np.arange(20) % 2
    with pytest.raises(DataError, match="classes_per_device is 3"):
        partition("shards", y, y, 2, 2, 0, classes_per_device=3, distinct=True)


def test_labels_out_of_range_are_named() -> None:
    with pytest.raises(DataError, match=r"train_y\[1\] is 7"):
        partition("iid", [0, 7], [0], 2, 1, 0)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=12), st.integers(0, 50))
def test_largest_remainder_is_exact_and_within_one(weights, total) -> None:
    quotas = np.array(weights) / np.sum(weights) * total
    counts = largest_remainder(quotas, total)
    assert counts.sum() == total and (np.abs(counts - quotas) < 1 + 1e-9).all()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.data())
def test_level_fill_and_skim_are_as_equal_as_they_can_be(capacities, data) -> None:
    capacity = np.array(capacities)
    total = data.draw(st.integers(0, int(capacity.sum())))
    priority = np.array(data.draw(st.permutations(range(len(capacity)))))
    filled = level_fill(capacity, total, priority)
    assert filled.sum() == total and (filled >= 0).all() and (filled <= capacity).all()
    assert filled[filled < capacity].min(initial=10**6) >= filled.max() - 1
    left = capacity - skim(capacity, total, priority)
    assert left.sum() == capacity.sum() - total and (left >= 0).all()
    assert left[left < capacity].min(initial=10**6) >= left.max() - 1
