"""Robust aggregation: by hand, and what a minority of poisoned reports can never do."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import Kfl, Upload
from kfl.algorithms.robust import clipped_mean, combine, coordinate_median, trimmed_mean
from kfl.core.errors import ConfigError

RULES = ("mean", "clip", "median", "trimmed")
numbers = st.floats(-1e6, 1e6, width=32)


def aggregate(algorithm, server, uploads):
    """These algorithms need neither an engine nor a draw to aggregate."""
    return algorithm.aggregate(server, uploads, engine=None, key=None)


def report(device, means, counts):
    return Upload(device, {"means": torch.tensor(means), "counts": torch.tensor(counts)})


def server(knowledge, known):
    return {"knowledge": torch.tensor(knowledge), "known": torch.tensor(known)}


UPLOADS = [
    report(0, [[1.0, 0.0], [math.nan, 7.0]], [10, 0]),
    report(1, [[2.0, 4.0], [5.0, 5.0]], [30, 2]),
    report(2, [[60.0, -80.0], [0.0, 0.0]], [1000, 0]),
]
FRESH = server([[0.0, 0.0], [9.0, 9.0]], [False, True])


def test_by_hand():
    """Class 0 has three reports, class 1 one (whose holder alone is asked)."""
    expected = {
        # Median (2, 0); distances 1, 4, √(58² + 80²) > 4, so the radius is 4; counts 10, 30 and no more than 30.
        "clip": [
            2 + (10 * -1 + 0 + 30 * 4 * 58 / math.hypot(58, 80)) / 70,
            (30 * 4 - 30 * 4 * 80 / math.hypot(58, 80)) / 70,
        ],
        "median": [2.0, 0.0],
        "trimmed": [2.0, 0.0],
        "mean": [(10 + 60 + 60000) / 1040, (120 - 80000) / 1040],
    }
    for rule, value in expected.items():
        after, rejected = aggregate(Kfl(aggregation=rule), FRESH, UPLOADS)
        assert rejected == []
        torch.testing.assert_close(after["knowledge"], torch.tensor([value, after["knowledge"][1].tolist()]))
        assert after["known"].all()
        if rule != "clip":
            assert after["knowledge"][1].tolist() == [5.0, 5.0]
    # The centre of class 1 is what was known, and of one report the distance is the median distance.
    assert aggregate(Kfl(aggregation="clip"), FRESH, UPLOADS)[0]["knowledge"][1].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("rule", RULES)
def test_counts_of_different_types_count_alike(rule):
    means = [[[1.0, 2.0], [0.0, 0.0]], [[3.0, 4.0], [0.0, 0.0]], [[2.0, 3.0], [0.0, 0.0]]]
    # 100,000 is infinite as a half-precision number, which the third device's counts are.
    kinds = (torch.int64, torch.int64, torch.float16)
    counts = [torch.tensor([n, 0]).to(kind) for n, kind in zip((100_000, 100_000, 100), kinds, strict=True)]
    uploads = [
        Upload(k, {"means": torch.tensor(m), "counts": c}) for k, (m, c) in enumerate(zip(means, counts, strict=True))
    ]
    alike = [Upload(u.device, {**u.arrays, "counts": u.arrays["counts"].double()}) for u in uploads]
    (found, rejected), (wanted, _) = (aggregate(Kfl(aggregation=rule), FRESH, some) for some in (uploads, alike))
    assert rejected == [] and torch.isfinite(found["knowledge"]).all()
    assert torch.equal(found["knowledge"], wanted["knowledge"])


@pytest.mark.parametrize("kind", [torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_types_that_cannot_be_computed_with_are_refused(kind):
    odd = Upload(1, {"means": torch.ones(2, 2), "counts": torch.tensor([1, 2]).to(kind)})
    after, rejected = aggregate(Kfl(), FRESH, [report(0, [[1.0, 2.0], [3.0, 4.0]], [1, 1]), odd])
    assert [one.device for one in rejected] == [1]
    assert after["knowledge"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_an_even_number_of_reports_takes_the_middle_two():
    reports = torch.tensor([[1.0], [2.0], [4.0], [100.0]])
    assert coordinate_median(reports).item() == 3.0
    assert trimmed_mean(reports, 0.25).item() == 3.0
    assert trimmed_mean(reports, 0.0).item() == 26.75
    assert trimmed_mean(reports[:2], 0.49).item() == 1.5


def by_hand(rule, reports, weights, centre, trim):
    """The four rules as plain loops over numbers."""
    n, columns = len(reports), list(zip(*reports, strict=True))
    if rule == "mean":
        return [sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns]
    if rule == "median":
        return [statistics.median(column) for column in columns]
    if rule == "trimmed":
        cut = min(math.ceil(trim * n), (n - 1) // 2)
        return [statistics.fmean(sorted(column)[cut : n - cut]) for column in columns]
    middle = [statistics.median(column) for column in columns] if centre is None else centre
    distances = [math.dist(row, middle) for row in reports]
    radius = statistics.median_low(distances)
    if centre is not None and math.hypot(*centre) > 0:
        radius = min(radius, math.hypot(*centre))
    shares = [min(w, statistics.median_low(weights)) for w in weights]
    drawn = [1.0 if d <= radius else radius / d for d in distances]
    return [
        m + sum(w * f * (x - m) for w, f, x in zip(shares, drawn, column, strict=True)) / sum(shares)
        for m, column in zip(middle, columns, strict=True)
    ]


CENTRES = {"none": None, "near": [1.0, 2.0], "far": [-40.0, 30.0], "short": [0.0, 0.25], "zero": [0.0, 0.0]}


@pytest.mark.parametrize("centre", CENTRES.values(), ids=CENTRES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_its_plain_loop(rule, count, centre):
    """The first report lies on a centre, where nothing is drawn anywhere."""
    reports = [[1.0, 2.0], [3.0, -1.0], [90.0, 7.0], [-2.0, -2.5], [0.5, 0.0], [4.0, 4.0], [-60.0, 1.0], [2.5, 2.0]]
    weights = [5.0, 1.0, 1000.0, 2.0, 7.0, 3.0, 4.0, 2.0]
    for trim in (0.0, 0.2, 0.25, 0.4):
        kinds = [torch.tensor(values, dtype=torch.float64) for values in (reports[:count], weights[:count])]
        known = None if centre is None else torch.tensor(centre, dtype=torch.float64)
        found = combine(rule, *kinds, known, trim)
        assert found.tolist() == pytest.approx(by_hand(rule, reports[:count], weights[:count], centre, trim))


def test_a_clipped_round_measures_from_what_is_known_and_else_from_the_median():
    """Class 0 is known and short, class 1 is unknown, class 2 known but nobody holds it."""
    before = server([[0.0, 1.0], [9.0, 9.0], [7.0, 7.0]], [True, False, True])
    means = [
        [[0.0, 3.0], [1.0, 1.0], [0.0, 0.0]],
        [[0.0, 9.0], [2.0, 5.0], [0.0, 0.0]],
        [[4.0, 1.0], [9.0, 0.0], [0.0, 0.0]],
    ]
    uploads = [report(k, mean, [k + 1, 4, 0]) for k, mean in enumerate(means)]
    after, rejected = aggregate(Kfl(aggregation="clip"), before, uploads)
    assert rejected == [] and after["known"].tolist() == [True, True, True]
    # Everybody is drawn to distance 1 of (0, 1); samples 1, 2, 3 count as 1, 2, 2.
    assert after["knowledge"][0].tolist() == pytest.approx([2 / 5, 1 + 3 / 5])
    # Median (2, 1), distances 1, 4, √50: the radius is 4, and all weigh the same.
    wide = 4 / math.sqrt(50)
    assert after["knowledge"][1].tolist() == pytest.approx([2 + (-1 + 7 * wide) / 3, 1 + (4 - wide) / 3])
    assert after["knowledge"][2].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("rule", RULES)
def test_equal_reports_are_the_result_and_memory_is_kept(rule):
    same = [report(k, [[3.0, -1.0], [0.0, 0.0], [0.0, 0.0]], [k + 1, 0, 0]) for k in range(4)]
    before = server([[9.0, 9.0], [8.0, 8.0], [0.0, 0.0]], [True, True, False])
    after, _ = aggregate(Kfl(aggregation=rule), before, same)
    torch.testing.assert_close(after["knowledge"], torch.tensor([[3.0, -1.0], [8.0, 8.0], [0.0, 0.0]]))
    assert after["known"].tolist() == [True, True, False]
    forgets, _ = aggregate(Kfl(aggregation=rule, memory=False), before, same)
    assert forgets["known"].tolist() == [True, False, False]


@pytest.mark.parametrize("rule", RULES)
def test_bad_uploads_are_refused_and_the_rest_is_used(rule):
    algorithm = Kfl(aggregation=rule)
    good = [report(k, [[float(k), 1.0], [2.0, k * 3.0]], [k + 1, 2]) for k in range(3)]
    bad = report(9, [[math.nan, 1.0], [2.0, 3.0]], [1, 1])
    after, rejected = aggregate(algorithm, FRESH, [good[0], bad, *good[1:]])
    assert [r.device for r in rejected] == [9]
    torch.testing.assert_close(after, aggregate(algorithm, FRESH, good)[0])
    assert aggregate(algorithm, FRESH, [bad])[0] is FRESH
    torch.testing.assert_close(after, aggregate(algorithm, FRESH, [*good[::-1], bad])[0])


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
def test_a_clipped_mean_moves_no_further_than_an_honest_report_below_one_half(case, centre, claim):
    """Whatever the liars say, and however many samples they claim."""
    honest, reports = case
    middle = torch.tensor(centre).double()
    weights = torch.linspace(1, claim, len(reports)).double()
    moved = (clipped_mean(reports, weights, middle) - middle).norm()
    assert moved <= (honest - middle).norm(dim=1).max() * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed"])
def test_one_liar_in_five_moves_the_mean_and_not_the_robust_rules(rule):
    honest = [report(k, [[1.0 + k / 10, 2.0]], [20]) for k in range(4)]
    liar = report(4, [[1e9, -1e9]], [10**9])
    before = server([[1.0, 2.0]], [True])
    plain = aggregate(Kfl(), before, [*honest, liar])[0]["knowledge"]
    robust = aggregate(Kfl(aggregation=rule), before, [*honest, liar])[0]["knowledge"]
    assert plain.abs().max() > 1e8
    assert (robust - torch.tensor([[1.15, 2.0]])).abs().max() < 0.3


def test_options_are_checked():
    for trim in (-0.1, 0.5, math.nan):
        with pytest.raises(ConfigError, match="trim"):
            Kfl(trim=trim).validate()
    with pytest.raises(ConfigError, match="aggregation is 'mode'"):
        Kfl(aggregation="mode").validate()


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
