"""Spreads and paired differences against scipy.stats and numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kfl.simulation.statistics import paired_difference, spread

fractions = st.floats(0, 1, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(fractions, fractions), min_size=2, max_size=12))
def test_the_interval_is_that_of_scipys_paired_t_test(pairs):
    ours, theirs = {s: a for s, (a, _) in enumerate(pairs)}, {s: b for s, (_, b) in enumerate(pairs)}
    found = paired_difference(ours, theirs)
    differences = np.array([a - b for a, b in pairs])
    assert found.mean == pytest.approx(differences.mean(), abs=1e-12)
    if differences.std() > 1e-9:
        low, high = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval(0.95)
        assert found.low == pytest.approx(low, rel=1e-9, abs=1e-12)
        assert found.high == pytest.approx(high, rel=1e-9, abs=1e-12)


def test_a_case_worked_out_by_hand():
    # Differences 1, 2, 3: mean 2, s = 1, t_2(0.975) = 4.302653, half width 4.302653/√3 = 2.484138.
    found = paired_difference({0: 3.0, 1: 4.0, 2: 5.0, 9: 100.0}, {2: 2.0, 1: 2.0, 0: 2.0, 7: -5.0})
    assert (found.mean, found.count) == (2.0, 3)
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-6)
    assert not found.clear
    assert paired_difference({0: 3.0, 1: 4.1, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.1}).clear


def test_one_pair_has_no_interval_and_no_pair_no_difference():
    one = paired_difference({3: 0.5}, {3: 0.25, 4: 0.0})
    assert (one.mean, one.low, one.high, one.clear) == (0.25, None, None, False)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_equal_differences_give_a_point():
    found = paired_difference({0: 0.75, 1: 0.5}, {0: 0.5, 1: 0.25})
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)
    assert found.clear


def test_spread_divides_by_one_less_than_the_count():
    assert spread([0.1, 0.2, 0.6]).deviation == pytest.approx(np.sqrt((0.04 + 0.01 + 0.09) / 2))
    assert spread([0.4]).deviation is None
