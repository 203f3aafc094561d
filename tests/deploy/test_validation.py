"""Every array, count and joule of an answer: used only if it can be true."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import FedAvg, FedRep, Kfl, Local
from kfl.deploy.frames import RawArray
from kfl.deploy.profile import Profile
from kfl.deploy.protocol import RefusedError
from kfl.deploy.validation import (
    EnergyLimits,
    check_counts,
    energy_limits,
    read_arrays,
    refuse_energy,
)
from kfl.simulation.round import has_quorum

SERVER = {"knowledge": torch.zeros(3, 4), "known": torch.zeros(3, dtype=torch.bool)}
EXPECTED = Kfl().upload_format(SERVER)
PROFILE = Profile(0, 3, 4, 50, 40, 50, 40, (2,), 30, (10, 0, 20), 5, 3)


def raw(array):
    return RawArray(array.dtype.name, array.shape, array.tobytes())


def good(means=None, counts=None):
    return {
        "means": raw(np.ones((3, 4), dtype=np.float32) if means is None else means),
        "counts": raw(np.array([10, 0, 20]) if counts is None else counts),
    }


def judge(arrays, profile=PROFILE, expected=EXPECTED):
    found = read_arrays(arrays, expected)
    check_counts(found, expected, profile)
    return found


def test_a_good_upload_comes_through_unchanged():
    found = judge(good())
    assert found["means"].dtype == np.float32
    assert found["counts"].tolist() == [10, 0, 20]


NAN = np.ones((3, 4), dtype=np.float32)
NAN[1, 2] = math.nan


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"means": raw(np.ones((3, 4), dtype=np.float32))}, "no array counts"),
        ({**good(), "more": raw(np.ones(1))}, "array more, which nobody asked for"),
        (good(means=np.ones((3, 5), dtype=np.float32)), r"shape \(3, 5\), not \(3, 4\)"),
        (good(means=np.ones((4, 3), dtype=np.float32)), r"shape \(4, 3\), not \(3, 4\)"),
        (good(means=np.ones((3, 4))), "type float64, not float32"),
        (good(means=NAN), "infinite or not a number"),
        (good(means=NAN * np.inf), "infinite or not a number"),
        (good(counts=np.array([10.0, 0.0, 20.0])), "type float64, not int64"),
        (good(counts=np.array([11, 0, 20])), "11 samples of class 0, more than the 10"),
        (good(counts=np.array([10, 1, 20])), "1 samples of class 1, more than the 0"),
        (good(counts=np.array([-1, 0, 20])), "negative"),
        (good(counts=np.array([2**62, 0, 20])), "more than the 10"),
    ],
)
def test_what_cannot_be_an_upload_is_refused_with_its_reason(arrays, said):
    with pytest.raises(RefusedError, match=said):
        judge(arrays)


@given(st.lists(st.integers(-5, 40), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_counts_are_used_exactly_when_each_is_within_what_was_declared(counts):
    fine = all(0 <= n <= most for n, most in zip(counts, PROFILE.samples_per_class, strict=True))
    try:
        judge(good(counts=np.array(counts)))
        assert fine
    except RefusedError:
        assert not fine


def test_hidden_counts_may_be_noisy_but_not_absurd():
    algorithm = Kfl(clip_norm=1.0, noise_multiplier=1.0, noise_counts=True)
    expected = algorithm.upload_format(SERVER)
    hidden = Profile(0, 3, 4, 50, 40, 50, 40, (2,), 30, (), 5, 3)
    judge(good(counts=np.array([12.7, 0.0, 31.0])), hidden, expected)
    with pytest.raises(RefusedError, match="more samples than the 30"):
        judge(good(counts=np.array([51.0, 0.0, 20.0])), hidden, expected)


def test_weights_come_with_samples_and_local_learning_uploads_nothing():
    server = {"body.0.weight": torch.zeros(2, 2)}
    for algorithm in (FedAvg(), FedRep()):
        expected = algorithm.upload_format(server)
        weights = {"body.0.weight": raw(np.ones((2, 2), dtype=np.float32))}
        judge({**weights, "samples": raw(np.array(30.0))}, expected=expected)
        for lie, said in ((31.0, "31 samples, more than the 30"), (29.5, "not whole"), (-1.0, "negative")):
            with pytest.raises(RefusedError, match=said):
                judge({**weights, "samples": raw(np.array(lie))}, expected=expected)
    assert Local().upload_format({}) == {}
    with pytest.raises(RefusedError, match="nobody asked for"):
        judge({"means": raw(np.ones(2))}, expected={})


numbers = st.one_of(st.floats(), st.integers(-(10**6), 10**6), st.none(), st.text(max_size=3), st.booleans())


@given(numbers, numbers)
@settings(max_examples=300, deadline=None)
def test_energy_is_believed_exactly_when_it_is_a_number_within_what_can_be(compute, upload):
    limits = EnergyLimits(compute_j=50.0, upload_j=2.0)

    def possible(value, most):
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most

    reason = refuse_energy(compute, upload, limits)
    assert (reason is None) == (possible(compute, 50.0) and possible(upload, 2.0))


@given(*[st.floats(1e-6, 1e6)] * 3, *[st.floats(0, 1e9)] * 2)
@settings(max_examples=100, deadline=None)
def test_the_plan_itself_is_always_plausible(power, radio, deadline, compute, upload):
    limits = energy_limits(power, radio, deadline, compute, upload)
    assert refuse_energy(compute, upload, limits) is None
    assert refuse_energy(power * deadline * 0.999, radio * deadline * 0.999, limits) is None
    assert refuse_energy(3 * max(power * deadline, compute) + 1, 0.0, limits) is not None


@given(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_a_quorum_is_a_share_of_the_chosen(usable, chosen, quorum):
    counts = has_quorum(usable, chosen, quorum)
    assert counts or usable < quorum * chosen
    assert not counts or usable >= quorum * chosen - 1e-6
    assert has_quorum(chosen, chosen, quorum)
