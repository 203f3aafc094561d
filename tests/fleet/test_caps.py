"""No device outweighs the others: caps on weights in small cases, and against the definition in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfl.algorithms import ArrayFormat, Upload
from kfl_fleet.server.caps import Capped, cap_weights, weight_limits

SAMPLES = {"samples": ArrayFormat((), "float64", "samples")}


def exact_limit(weights: list[int], largest: float) -> float:
    """The largest t with min(w_k, t) ≤ s Σ_j min(w_j, t), infinite where t = max w will do.

    The right side minus the left is linear between two weights and 0 at 0, so its last root is between two of them.
    """
    share = max(Fraction(largest).limit_denominator(1000), Fraction(1, max(sum(w > 0 for w in weights), 1)))

    def gap(t: Fraction) -> Fraction:
        return share * sum(min(Fraction(w), t) for w in weights) - min(Fraction(max(weights)), t)

    places = [Fraction(0), *map(Fraction, sorted(set(weights) - {0}))]
    if gap(places[-1]) >= 0:
        return math.inf
    for below, above in zip(places[-2::-1], places[:0:-1], strict=True):
        if gap(below) >= 0:
            return float(below + (above - below) * gap(below) / (gap(below) - gap(above)))
    raise AssertionError("at 0 both sides are 0")


@given(
    st.lists(st.integers(0, 40) | st.integers(0, 10**6), min_size=1, max_size=7),
    st.sampled_from([1e-3, 0.1, 0.2, 0.25, 1 / 3, 0.375, 0.5, 0.6, 0.9]),
)
@example([90, 5, 5], 0.5)
@example([10, 5, 5], 0.5)  # exactly the share that is allowed
@example([9, 9, 9], 1 / 3)
@example([1, 26, 27, 27], 1 / 3)
@example([0, 7, 0], 0.1)
@example([0, 0], 0.5)
@settings(max_examples=80)
def test_the_limit_is_the_largest_that_leaves_nobody_more(weights, largest):
    wanted = exact_limit(weights, largest)
    # A second column of other size shows that columns have nothing to do with each other.
    columns = np.array([weights, [3.0 * w for w in weights]]).T
    found = weight_limits(columns, largest)
    if math.isinf(wanted):
        # A cut by a rounding error is none: no device weighs more than such a limit.
        assert found[0] >= max(weights) * (1 - 1e-9) and found[1] >= 3 * max(weights) * (1 - 1e-9)
    else:
        np.testing.assert_allclose(found, [wanted, 3 * wanted], rtol=1e-6)


def test_no_limit_where_the_largest_weight_has_just_the_share_that_is_allowed():
    assert weight_limits(np.array([[10.0], [5.0], [5.0]]), 0.5).tolist() == [math.inf]
    assert weight_limits(np.array([[4.0], [4.0], [4.0]]), 0.1).tolist() == [math.inf]
    assert weight_limits(np.array([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), 0.5).tolist() == [math.inf, math.inf]


def test_a_billionth_too_much_is_a_rounding_error_and_a_little_more_is_not():
    """Of 10 (1 + x), 5 and 5 the first has half a share and x/4 of it too much, x/2 more than its limit."""
    assert weight_limits(np.array([[10 * (1 + 1e-9)], [5.0], [5.0]]), 0.5).tolist() == [math.inf]
    assert weight_limits(np.array([[10 * (1 + 3e-9)], [5.0], [5.0]]), 0.5).tolist() == [10.0]


def capped_samples(samples, largest):
    uploads = [Upload(d, {"samples": torch.tensor(float(n), dtype=torch.float64)}) for d, n in enumerate(samples)]
    after, cut = cap_weights(uploads, SAMPLES, largest)
    assert [a is b for a, b in zip(after, uploads, strict=True)] == [
        d not in {c.device for c in cut} for d in range(len(after))
    ]
    return [float(upload.arrays["samples"]) for upload in after], cut


@pytest.mark.parametrize(
    ("samples", "largest", "after", "cut"),
    [
        ([900.0, 30.0], 0.5, [30.0, 30.0], [Capped(0, "samples", 900 / 930, 0.5)]),
        ([900.0, 30.0], 0.1, [30.0, 30.0], [Capped(0, "samples", 900 / 930, 0.5)]),  # of two, one has at least a half
        ([900.0, 30.0], 0.9, [270.0, 30.0], [Capped(0, "samples", 900 / 930, 0.9)]),
        ([900.0, 30.0], 1.0, [900.0, 30.0], []),
        ([900.0], 0.5, [900.0], []),
        ([900.0, 0.0, 0.0], 0.5, [900.0, 0.0, 0.0], []),
        ([0.0, 0.0], 0.5, [0.0, 0.0], []),
        # Two of them are cut; the second had less than the share before.
        (
            [10.0, 90.0, 10.0, 50.0],
            0.375,
            [10.0, 30.0, 10.0, 30.0],
            [Capped(1, "samples", 90 / 160, 0.375), Capped(3, "samples", 50 / 160, 0.375)],
        ),
        ([0.6, 0.1, 0.1], 0.5, [0.2, 0.1, 0.1], [Capped(0, "samples", 0.75, 0.5)]),
        ([], 0.5, [], []),
        ([7.0, 6.0, 2.0, 2.0], 0.375, [6.0, 6.0, 2.0, 2.0], [Capped(0, "samples", 7 / 17, 0.375)]),
    ],
)
def test_weights_are_cut_to_the_limit_and_the_rest_are_the_same_objects(samples, largest, after, cut):
    found, capped = capped_samples(samples, largest)
    assert found == pytest.approx(after, rel=1e-9)
    assert [(c.device, c.array) for c in capped] == [(c.device, c.array) for c in cut]
    assert [x for c in capped for x in (c.found, c.limit)] == pytest.approx(
        [x for c in cut for x in (c.found, c.limit)]
    )


def of_counts(rows, dtype="int64"):
    kind = getattr(torch, dtype)
    return (
        [Upload(d, {"counts": torch.tensor(row, dtype=kind)}) for d, row in enumerate(rows)],
        {"counts": ArrayFormat((len(rows[0]),), dtype, "counts")},
    )


@pytest.mark.parametrize(
    ("rows", "largest", "after"),
    [
        # Each class by itself; a class of no samples stays one, and who alone holds a class keeps it all.
        ([[900, 7, 0], [10, 7, 5], [25, 0, 0]], 0.5, [[35, 7, 0], [10, 7, 5], [25, 0, 0]]),
        ([[900, 0], [10, 3]], 0.5, [[10, 0], [10, 3]]),
        # Integers are cut to whole ones: t = 0.4 (t + 5) = 10/3; and never to none, t = 1.
        ([[8], [3], [2]], 0.4, [[3], [3], [2]]),
        ([[9], [1]], 0.3, [[1], [1]]),
        ([[5], [1], [1]], 0.5, [[2], [1], [1]]),
        # t = 0.6 (t + 2) = 3, which in floating point is a little less.
        ([[99], [1], [1]], 0.6, [[3], [1], [1]]),
    ],
)
def test_whole_counts_stay_whole(rows, largest, after):
    uploads, formats = of_counts(rows)
    found, capped = cap_weights(uploads, formats, largest)
    assert [upload.arrays["counts"].tolist() for upload in found] == after
    assert all(upload.arrays["counts"].dtype == torch.int64 for upload in found)
    assert [one.device for one in capped] == [d for d, (a, b) in enumerate(zip(rows, after, strict=True)) if a != b]


def test_noisy_counts_are_cut_to_fractions():
    uploads, formats = of_counts([[8.0], [3.0], [2.0]], "float64")
    found, _ = cap_weights(uploads, formats, 0.4)
    assert [float(upload.arrays["counts"]) for upload in found] == pytest.approx([10 / 3, 3.0, 2.0])


def test_a_cut_is_told_by_the_class_where_the_share_was_largest_among_those_that_are_cut():
    """Alone in class 0, at the very limit in class 1, cut in classes 2 and 3 from 5/16 and from 50/140."""
    rows = [[0, 7, 90, 70], [9, 6, 50, 50], [0, 2, 10, 10], [0, 2, 10, 10]]
    uploads, formats = of_counts(rows)
    found, capped = cap_weights(uploads, formats, 0.375)
    assert found[1].arrays["counts"].tolist() == [9, 6, 30, 30]
    of_one = next(one for one in capped if one.device == 1)
    assert (of_one.found, of_one.limit) == pytest.approx((50 / 140, 0.375))
    two_classes = cap_weights(*of_counts([row[:3] for row in rows]), 0.375)[1]
    of_one = next(one for one in two_classes if one.device == 1)
    assert (of_one.found, of_one.limit) == pytest.approx((50 / 160, 0.375))


def test_values_are_no_weights_and_every_array_of_weights_is_capped():
    formats = {
        "body": ArrayFormat((2,)),
        "counts": ArrayFormat((2,), "int64", "counts"),
        "more": ArrayFormat((2,)),
        "samples": ArrayFormat((), "float64", "samples"),
    }

    def upload(device, scale):
        values, count = torch.tensor([scale, -scale]), torch.tensor([int(scale), 1])
        samples = torch.tensor(scale, dtype=torch.float64)
        return Upload(device, {"body": values, "counts": count, "more": values, "samples": samples})

    uploads = [upload(3, 100.0), upload(5, 2.0), upload(8, 4.0)]
    after, capped = cap_weights(uploads, formats, 0.5)
    assert [(one.device, one.array) for one in capped] == [(3, "counts"), (3, "samples")]
    big = after[0].arrays
    assert after[0].device == 3 and big["counts"].tolist() == [6, 1] and float(big["samples"]) == pytest.approx(6.0)
    assert big["body"] is uploads[0].arrays["body"] and big["more"] is uploads[0].arrays["more"]
    assert after[1] is uploads[1] and after[2] is uploads[2]
    assert uploads[0].arrays["counts"].tolist() == [100, 1]  # what arrived is not changed


def test_a_cut_is_kept_as_plain_values():
    assert Capped(3, "counts", 0.9, 0.5).to_dict() == {
        "device": 3,
        "code": "weight_capped",
        "array": "counts",
        "found": 0.9,
        "limit": 0.5,
    }
