"""Spreads, paired differences and Holm's correction against scipy.stats, the textbook and known numbers."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from kfl.comparison.statistics import holm, paired_difference, spread

fractions = st.floats(0, 1, allow_nan=False)


@settings(max_examples=60)
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


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=9, unique=True), st.floats(-6, 6), st.floats(0.5, 0.9999))
def test_p_values_and_intervals_of_any_confidence_are_those_of_scipy(values: list[float], value: float, level: float):
    assume(np.std(values) > 1e-3)
    found = paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    test = stats.ttest_1samp(values, value)
    assert found.p_value(value) == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    wide, bounds = found.at(level), test.confidence_interval(level)
    assert (wide.low, wide.high) == pytest.approx((bounds.low, bounds.high), rel=1e-6, abs=1e-6)
    assert wide.at(0.95).low == pytest.approx(found.low)


def test_one_pair_has_no_p_value_and_no_wider_interval():
    one = paired_difference({0: 1.0}, {0: 0.5})
    assert one.p_value() == 1.0 and one.at(0.99).low is None


def adjusted(values: list[float]) -> list[float]:
    """Holm's adjusted p-values by the textbook: the largest of (m − j + 1) p_(j) up to a place, at most 1."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    found = [0.0] * len(values)
    for place, index in enumerate(order):
        found[index] = min(1.0, max((len(values) - j) * values[order[j]] for j in range(place + 1)))
    return found


@given(st.lists(st.floats(0, 1), max_size=40), st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_what_the_textbook_rejects(values: list[float], alpha: float):
    textbook = adjusted(values)
    assume(all(abs(value - alpha) > 1e-9 for value in textbook))
    levels = holm(dict(enumerate(values)), alpha)
    assert [values[place] <= levels[place] for place in range(len(values))] == [one <= alpha for one in textbook]
    assert all(alpha / len(values) <= level <= alpha for level in levels.values())
    refused = {level for place, level in levels.items() if textbook[place] > alpha}
    assert len(refused) <= 1, "what is not rejected shares one level, Bonferroni's for those that are left"
    if refused:
        assert refused == {alpha / sum(one > alpha for one in textbook)}
