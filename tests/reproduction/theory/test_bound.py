"""Theorem 1 against the print, summed term by term in plain loops; and its limits, weights and conditions."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from reproduction.theory.theorem1 import (
    PATTERNS,
    Constants,
    equal_counts,
    geometric_sum,
    pattern_schedule,
    round_weights,
    theorem1,
)

SMALL = Constants(
    body_smoothness=2.0,
    head_smoothness=3.0,
    cross_sensitivity=0.5,
    body_gradient=1.5,
    head_gradient=0.7,
    feature_gradient=1.2,
    feature_norm=0.8,
    body_rate=0.01,
    head_rate=0.008,
    local_steps=3,
    knowledge_weight=0.25,
    initial_gap=2.0,
)
positive = st.floats(0.05, 20)


def printed(c, counts, schedule):
    """Equation (19) and its A_1, A_2, A_3 in exact fractions, straight from the paper, in the paper's order."""
    names = "body_smoothness head_smoothness cross_sensitivity body_gradient head_gradient feature_gradient"
    Lu, Lv, chi, G1, G2, theta = (Fraction(getattr(c, name)) for name in names.split())
    names = "feature_norm body_rate head_rate local_steps knowledge_weight initial_gap"
    sigma, eu, ev, tau, lam, gap = (Fraction(getattr(c, name)) for name in names.split())
    half, third = Fraction(1, 2), Fraction(1, 3)
    A1 = tau * (tau + 1) * (2 * tau + 1)
    A1 *= (
        eu**3 * G1**2 * Lu**2
        + third * ev**3 * G2**2 * Lv**2
        + (2 * third * eu * G1**2 + half * ev * G2**2) * eu * ev * chi**2 * Lu * Lv
    )
    A2 = 10 * eu * lam**2 * tau * theta**2 * sigma**2
    A2 += 8 * eu**2 * lam**2 * theta**2 * sigma**2 * (3 * eu * Lu**2 + 2 * ev * chi**2 * Lu * Lv) * tau * (tau + 1)
    A3 = 1 + (4 * Lu**2 * eu**2 + 2 * Lv**2 * ev**2) * (1 + chi) * tau**2 - (eu * Lu + ev * Lv) * tau
    T, (K, C) = len(schedule), counts.shape
    Dk = [sum(int(counts[k, j]) for j in range(C)) for k in range(K)]
    Dc = [sum(int(counts[k, j]) for k in range(K)) for j in range(C)]
    D = sum(Dk)
    third_term = Fraction(0)
    for t in range(T - 1):
        for k in range(K):
            for j in range(C):
                everybody = sum(int(counts[i, j]) ** 2 for i in range(K))
                third_term += A3 ** (T - 2 - t) * Fraction(int(counts[k, j]) ** 2, Dc[j] ** 2 * Dk[k]) * everybody
    data = sum(A3 ** (T - 2 - t) * sum(Dk[k] for k in range(K) if schedule[t, k]) for t in range(T - 1))
    return {
        "drift": A1,
        "knowledge": A2,
        "contraction": A3,
        "start_term": A3**T * gap,
        "constant_term": (1 - A3**T) / (1 - A3) * (A1 + A2),
        "heterogeneity_term": A2 * Fraction(C * K, D) * third_term,
        "scheduling_term": -A2 * Fraction(1, D * K * (T - 1)) * Fraction(1, max(Dk)) * data**2,
    }


@pytest.mark.parametrize("seed", range(4))
def test_every_term_is_the_printed_one(seed):
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, 40, (5, 3)) + 1
    schedule = draw.random((7, 5)) < 0.5
    c = replace(SMALL, local_steps=1 + seed, cross_sensitivity=0.3 * seed, body_rate=0.004 * (1 + seed))
    bound, expected = theorem1(c, counts, schedule), printed(c, counts, schedule)
    for name, value in expected.items():
        assert getattr(bound, name) == pytest.approx(float(value), rel=1e-12), name
    total = sum(expected[n] for n in ("start_term", "constant_term", "heterogeneity_term", "scheduling_term"))
    assert bound.total == pytest.approx(float(total), rel=1e-12)
    assert bound.label == "as printed"


@settings(max_examples=60)
@given(positive, positive, st.floats(0, 10), st.integers(1, 20))
def test_at_the_largest_allowed_rates_the_gap_does_not_shrink(body, head, cross, steps):
    """A gap of the proof: A_3 = 1 there, and the printed quotient is 0/0; the limit is T."""
    c = replace(
        SMALL, body_smoothness=body, head_smoothness=head, cross_sensitivity=cross, local_steps=steps
    ).at_largest_rates()
    assert c.contraction == pytest.approx(1, abs=1e-12)
    assert c.violations() == ()
    bound = theorem1(c, equal_counts(4, 2, 1, 10), np.ones((30, 4), bool))
    assert bound.start_term == pytest.approx(c.initial_gap)
    assert bound.constant_term == pytest.approx(30 * (c.drift + c.knowledge), rel=1e-9)


@settings(max_examples=60)
@given(positive, positive, st.floats(0, 10), st.integers(1, 20), st.floats(0, 1), st.floats(0, 1))
def test_no_allowed_rate_shrinks_the_gap_faster_than_the_best(body, head, cross, steps, part_u, part_v):
    c = replace(SMALL, body_smoothness=body, head_smoothness=head, cross_sensitivity=cross, local_steps=steps)
    best = c.at_best_rates().contraction
    assert best == pytest.approx(1 - 3 / (16 * (1 + cross)))
    other = replace(c, body_rate=part_u * c.largest_body_rate, head_rate=part_v * c.largest_head_rate)
    assert best - 1e-12 <= other.contraction <= 1 + 1e-12


def test_the_geometric_sum_is_exact_near_one():
    for progress in (1e-3, 1e-9, 1e-15, -1e-9):
        exact = sum((1 - Fraction(progress)) ** t for t in range(50))
        assert geometric_sum(progress, 50) == pytest.approx(float(exact), rel=1e-13)


def test_weights_grow_with_the_round_which_is_the_reverse_of_remark_1():
    weights = round_weights(SMALL.contraction, 50)
    assert SMALL.contraction < 1
    assert (np.diff(weights[:-1]) > 0).all()
    assert weights[-2] == 1
    assert weights[-1] == 0


@pytest.mark.parametrize("part", [0.05, 0.5, 0.95])
def test_the_bound_prefers_ascend_to_uniform_to_descend(part):
    c = replace(SMALL, body_rate=part * SMALL.largest_body_rate, head_rate=part * SMALL.largest_head_rate)
    counts = equal_counts(devices=20, classes=10, classes_per_device=2, samples=100)
    schedules = {name: pattern_schedule(name, rounds=60, devices=20, count=10) for name in PATTERNS}
    assert len({schedule.sum() for schedule in schedules.values()}) == 1
    total = {name: theorem1(c, counts, schedule).total for name, schedule in schedules.items()}
    assert total["ascend"] < total["uniform"] < total["descend"]


def test_the_last_round_does_not_enter():
    counts, schedule = equal_counts(4, 2, 1, 10), np.ones((9, 4), bool)
    without = schedule.copy()
    without[-1] = False
    assert theorem1(SMALL, counts, without) == theorem1(SMALL, counts, schedule)
    without[-2] = False
    assert theorem1(SMALL, counts, without).total > theorem1(SMALL, counts, schedule).total


def test_rates_that_are_too_large_are_said_and_the_terms_computed_all_the_same():
    c = replace(SMALL, body_rate=10 * SMALL.largest_body_rate, head_rate=SMALL.largest_head_rate)
    bound = theorem1(c, equal_counts(4, 2, 1, 10), np.ones((5, 4), bool))
    assert bound.violations == (
        f"The body_rate η_u = {c.body_rate:.4g} is 10 times the largest the theorem allows, {c.largest_body_rate:.4g}.",
    )
    assert bound.verdict == "outside its assumptions"
    assert bound.start_term == pytest.approx(c.contraction**5 * c.initial_gap)
    assert c.contraction > 1
    endless = theorem1(c, equal_counts(4, 2, 1, 10), np.ones((4000, 4), bool))
    assert math.isinf(endless.start_term)
    assert math.isnan(endless.total)
    assert endless.vacuous


def test_the_largest_constants_end_in_infinities_not_in_errors():
    largest = Constants(*[1e30] * 9, local_steps=10**30, knowledge_weight=1e30, initial_gap=1e30)
    schedule = np.ones((50, 4), bool)
    schedule[::2] = False
    bound = theorem1(largest, equal_counts(4, 2, 1, 10), schedule)
    assert len(bound.violations) == 2
    assert bound.start_term == math.inf
    assert bound.scheduling_term == -math.inf
    with pytest.raises(ConfigError, match="initial_gap is inf"):
        replace(largest, initial_gap=math.inf)


def test_without_knowledge_nothing_of_knowledge_is_left():
    bound = theorem1(replace(SMALL, knowledge_weight=0.0), equal_counts(4, 2, 1, 10), np.ones((4000, 4), bool))
    assert (bound.knowledge, bound.heterogeneity_term, bound.scheduling_term) == (0, 0, 0)


def test_one_round_and_a_class_that_nobody_holds():
    counts = np.array([[3, 0, 2], [1, 0, 4]])
    one = theorem1(SMALL, counts, np.ones((1, 2), bool))
    assert (one.heterogeneity_term, one.scheduling_term) == (0, 0)
    assert one.constant_term == pytest.approx(SMALL.drift + SMALL.knowledge)
    assert math.isfinite(theorem1(SMALL, counts, np.ones((5, 2), bool)).heterogeneity_term)


def test_what_cannot_work_is_said():
    counts, schedule = equal_counts(4, 2, 1, 10), np.ones((5, 4), bool)
    with pytest.raises(ConfigError, match="schedule is 'of shape"):
        theorem1(SMALL, counts, schedule.T)
    with pytest.raises(ConfigError, match="counts is 'negative"):
        theorem1(SMALL, np.zeros((4, 2)), schedule)
    with pytest.raises(ConfigError, match="body_smoothness is -1"):
        replace(SMALL, body_smoothness=-1)
    with pytest.raises(ConfigError, match="head_rate is nan"):
        replace(SMALL, head_rate=math.nan)
    with pytest.raises(ConfigError, match=r"count is 30, but must be smaller: .* 59 of 20"):
        pattern_schedule("ascend", 20, 20, 30)
    with pytest.raises(ConfigError, match="schedule is 'sideways'"):
        pattern_schedule("sideways", 20, 20, 30)
    with pytest.raises(ConfigError, match="samples is 5, but must be a multiple of 2"):
        equal_counts(4, 4, 2, 5)
