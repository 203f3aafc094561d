"""Robust rules on plain vectors: each against a plain loop, and what a minority of poisoned reports can never do."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import Kfl
from kfl.algorithms.aggregation import RULES, apply_rule, clipped_mean, coordinate_median, trimmed_mean

numbers = st.floats(-1e6, 1e6, width=32)


def test_an_even_number_of_reports_takes_the_middle_two():
    reports = torch.tensor([[1.0], [2.0], [4.0], [100.0]])
    assert coordinate_median(reports).item() == 3.0
    assert trimmed_mean(reports, 0.25).item() == 3.0
    assert trimmed_mean(reports, 0.0).item() == 26.75
    assert trimmed_mean(reports[:2], 0.49).item() == 1.5


def by_hand(rule, reports, weights, center, trim):
    """The four rules as plain loops over numbers."""
    n, columns = len(reports), list(zip(*reports, strict=True))
    if rule == "mean":
        return [sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns]
    if rule == "median":
        return [statistics.median(column) for column in columns]
    if rule == "trimmed":
        cut = min(math.ceil(trim * n), (n - 1) // 2)
        return [statistics.fmean(sorted(column)[cut : n - cut]) for column in columns]
    middle = [statistics.median(column) for column in columns] if center is None else center
    distances = [math.dist(row, middle) for row in reports]
    radius = statistics.median_low(distances)
    if center is not None and math.hypot(*center) > 0:
        radius = min(radius, math.hypot(*center))
    shares = [min(w, statistics.median_low(weights)) for w in weights]
    drawn = [1.0 if d <= radius else radius / d for d in distances]
    return [
        m + sum(w * f * (x - m) for w, f, x in zip(shares, drawn, column, strict=True)) / sum(shares)
        for m, column in zip(middle, columns, strict=True)
    ]


vectors = st.lists(st.integers(-100, 100).map(float), min_size=2, max_size=2)


@settings(max_examples=150)
@given(
    rule=st.sampled_from(RULES),
    reports=st.lists(st.tuples(vectors, st.integers(1, 1000).map(float)), min_size=1, max_size=8),
    center=st.none() | vectors | st.just([0.0, 0.0]),
    trim=st.sampled_from([0.0, 0.2, 0.25, 0.4]),
)
def test_every_rule_is_its_plain_loop(rule, reports, center, trim):
    """Integers, so that reports often lie on the center, where nothing is drawn anywhere."""
    rows, weights = [list(row) for row, _ in reports], [weight for _, weight in reports]
    kinds = [torch.tensor(values, dtype=torch.float64) for values in (rows, weights)]
    known = None if center is None else torch.tensor(center, dtype=torch.float64)
    found = apply_rule(rule, *kinds, known, trim)
    assert found.tolist() == pytest.approx(by_hand(rule, rows, weights, center, trim), rel=1e-9, abs=1e-9)


@st.composite
def poisoned_reports(draw, most):
    """Honest reports, and at most `most(n)` others that may say anything, in a random order."""
    n = draw(st.integers(1, 9))
    bad = draw(st.integers(0, most(n)))
    size = st.lists(numbers, min_size=2, max_size=2)
    honest = [draw(size) for _ in range(n - bad)]
    wild = st.floats(-(2.0**100), 2.0**100, width=32)
    liars = [draw(st.lists(wild, min_size=2, max_size=2)) for _ in range(bad)]
    order = draw(st.permutations(range(n)))
    everything = [*honest, *liars]
    return torch.tensor(honest).double(), torch.tensor([everything[i] for i in order]).double()


def within(value, honest):
    slack = 1e-9 * (1 + honest.abs().max())
    return bool(((value >= honest.min(dim=0).values - slack) & (value <= honest.max(dim=0).values + slack)).all())


@given(poisoned_reports(lambda n: (n - 1) // 2))
@settings(max_examples=150)
def test_the_median_stays_within_the_honest_range_below_one_half(case):
    honest, reports = case
    assert within(coordinate_median(reports), honest)


@given(
    st.sampled_from([0.1, 0.25, 0.35, 0.49]).flatmap(
        lambda trim: st.tuples(st.just(trim), poisoned_reports(lambda n: min(math.ceil(trim * n), (n - 1) // 2)))
    )
)
@settings(max_examples=150)
def test_the_trimmed_mean_stays_within_the_honest_range_up_to_its_share(case):
    trim, (honest, reports) = case
    assert within(trimmed_mean(reports, trim), honest)


@given(poisoned_reports(lambda n: (n - 1) // 2), st.lists(numbers, min_size=2, max_size=2), st.floats(1, 1e12))
@settings(max_examples=150)
def test_a_clipped_mean_moves_no_further_than_an_honest_report_below_one_half(case, center, claim):
    """Whatever the liars say, and however many samples they claim."""
    honest, reports = case
    middle = torch.tensor(center).double()
    weights = torch.linspace(1, claim, len(reports)).double()
    moved = (clipped_mean(reports, weights, middle) - middle).norm()
    assert moved <= (honest - middle).norm(dim=1).max() * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_it_learns_with_every_rule(rule, toy, play):
    devices = list(range(5))
    algorithm = Kfl(aggregation=rule)
    after = play(algorithm, toy, [devices] * 10)
    assert all(not rejected for rejected in after.rejections)
    assert torch.isfinite(after.server["knowledge"]).all() and after.server["known"].all()
    x, y = toy.train(0)
    start = algorithm.device_init(toy.engine, 0, toy.seed)
    fresh, trained = toy.engine.logits([0, 0], [start, after.devices[0]], x)
    entropy = torch.nn.functional.cross_entropy
    assert entropy(trained, y) < 0.7 * entropy(fresh, y)
