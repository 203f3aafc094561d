"""Every array, count and joule of an answer: used only if it can be true."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import ArrayFormat, FedAvg, FedRep, Kfl, Local
from kfl.core.refusals import describe, stored_refusal
from kfl.simulation.round import has_quorum
from kfl_fleet.messages.frames import RawArray
from kfl_fleet.messages.profile import Profile
from kfl_fleet.messages.protocol import PROTOCOL_VERSION, RefusedError
from kfl_fleet.server import verdicts as validation
from kfl_fleet.server.claim_limits import Belief
from kfl_fleet.server.messaging import Answer, NoReply
from kfl_fleet.server.verdicts import (
    EnergyLimits,
    Question,
    check_counts,
    energy_limits,
    lower_counts,
    most_bytes,
    read_arrays,
    refuse_energy,
)

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
        ({**good(), "more": raw(np.ones(1))}, "array more, which was not requested"),
        (good(means=np.ones((3, 5), dtype=np.float32)), r"shape \(3, 5\), not \(3, 4\)"),
        (good(means=np.ones((4, 3), dtype=np.float32)), r"shape \(4, 3\), not \(3, 4\)"),
        (good(means=np.ones((0, 4), dtype=np.float32)), r"shape \(0, 4\), not \(3, 4\)"),
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
@settings(max_examples=200)
def test_counts_are_used_exactly_when_each_is_within_what_was_declared(counts):
    fine = all(0 <= n <= most for n, most in zip(counts, PROFILE.samples_per_class, strict=True))
    try:
        judge(good(counts=np.array(counts)))
        assert fine
    except RefusedError:
        assert not fine


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
    with pytest.raises(RefusedError, match="not requested"):
        judge({"means": raw(np.ones(2))}, expected={})


numbers = st.one_of(st.floats(), st.integers(-(10**6), 10**6), st.none(), st.text(max_size=3), st.booleans())


@given(numbers, numbers)
@settings(max_examples=300)
def test_energy_is_believed_exactly_when_it_is_a_number_within_what_can_be(compute, upload):
    limits = EnergyLimits(compute_j=50.0, upload_j=2.0)

    def possible(value, most):
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most

    reason = refuse_energy(compute, upload, limits)
    assert (reason is None) == (possible(compute, 50.0) and possible(upload, 2.0))


@given(*[st.floats(1e-6, 1e6)] * 3, *[st.floats(0, 1e9)] * 2)
@settings(max_examples=100)
def test_the_plan_itself_is_always_plausible(power, radio, deadline, compute, upload):
    limits = energy_limits(power, radio, deadline, compute, upload)
    assert refuse_energy(compute, upload, limits) is None
    assert refuse_energy(power * deadline * 0.999, radio * deadline * 0.999, limits) is None
    assert refuse_energy(3 * max(power * deadline, compute) + 1, 0.0, limits) is not None


@given(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1))
@settings(max_examples=200)
def test_a_quorum_is_a_share_of_the_chosen(usable, chosen, quorum):
    counts = has_quorum(usable, chosen, quorum)
    assert counts or usable < quorum * chosen
    assert not counts or usable >= quorum * chosen - 1e-6
    assert has_quorum(chosen, chosen, quorum)


LIMITS = EnergyLimits(compute_j=50.0, upload_j=2.0)
BELIEF = Belief(PROFILE, PROFILE.samples, PROFILE.test_samples)
QUESTION = Question(7, 0, PROFILE, BELIEF, EXPECTED, LIMITS, deadline_s=10.0)


def reply(arrays=None, **changes):
    """What an honest device answers to `QUESTION`, with changes; None leaves a field out."""
    values = {
        "protocol": PROTOCOL_VERSION,
        "kind": "round",
        "status": "ok",
        "round": 7,
        "device": 0,
        "digest": PROFILE.digest(),
        "correct": 4,
        "compute_energy_j": 3,
        "upload_energy_j": 0.5,
        "gain": 1e-9,
    }
    values = {name: value for name, value in (values | changes).items() if value is not None}
    return Answer(values, good() if arrays is None else arrays, seconds=1.0, bytes=100)


def test_an_honest_answer_is_used_whole():
    verdict = validation.judge(QUESTION, reply())
    assert verdict.usable
    assert verdict.upload.device == 0
    assert verdict.upload.arrays["counts"].tolist() == [10, 0, 20]
    assert torch.equal(verdict.upload.arrays["means"], torch.ones(3, 4))
    assert (verdict.correct, verdict.gain, verdict.energy_j) == (4, 1e-9, (3.0, 0.5))
    assert not (verdict.lost or verdict.diverged or verdict.changed or verdict.faults or verdict.refusal)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "version"),
        ({"kind": "profile"}, "not_an_answer"),
        ({"round": 6}, "other_round"),
        ({"device": 1}, "other_round"),
        ({"round": -1}, "out_of_range"),
        ({"device": -1}, "out_of_range"),
        ({"digest": "0" * 16}, "changed"),
        ({"correct": PROFILE.test_samples + 1}, "out_of_range"),
        ({"correct": -1}, "out_of_range"),
        ({"status": "well"}, "unknown_status"),
        ({"status": "refused", "reason": "no room"}, "device_refused"),
    ],
)
def test_an_answer_to_something_else_is_refused_and_nothing_of_it_used(changes, code):
    verdict = validation.judge(QUESTION, reply(**changes))
    assert verdict.refusal.code == code
    assert verdict.changed == (code == "changed")
    assert not (verdict.usable or verdict.lost or verdict.diverged)
    assert (verdict.upload, verdict.correct, verdict.gain) == (None, None, None)
    # Who was asked and worked is charged what it measured, whatever is wrong with the work.
    ours = code not in ("version", "not_an_answer", "other_round", "device_refused")
    assert verdict.energy_j == ((3.0, 0.5) if ours and "round" not in changes and "device" not in changes else None)


def test_counts_beyond_what_is_believed_are_lowered_with_a_note_and_nothing_else_is():
    cut = {"code": "more_than_registered", "field": "samples", "found": 30, "limit": 15}
    question = replace(QUESTION, belief=replace(BELIEF, samples=15, cuts=(cut,)))
    verdict = validation.judge(question, reply(work_s=2.5))
    assert verdict.upload.arrays["counts"].tolist() == [5, 0, 10]
    assert torch.equal(verdict.upload.arrays["means"], torch.ones(3, 4))
    assert verdict.clipped == ({"device": 0, **cut},)
    assert (verdict.usable, verdict.work_s, verdict.faults) == (True, 2.5, ())


def test_a_refusal_says_what_was_found():
    other = validation.judge(QUESTION, reply(round=3, device=2)).refusal
    assert other.facts == {"found_round": 3, "found_device": 2}
    assert validation.judge(QUESTION, reply(status="refused", reason="no room")).refusal.facts == {"text": "no room"}
    assert validation.judge(QUESTION, reply({})).refusal.facts == {"array": "counts"}


def test_bounds_themselves_are_allowed():
    for correct in (0, PROFILE.test_samples):
        assert validation.judge(QUESTION, reply(correct=correct)).correct == correct
    exact = validation.judge(QUESTION, reply(compute_energy_j=LIMITS.compute_j, upload_energy_j=LIMITS.upload_j))
    assert exact.energy_j == (50.0, 2.0)
    assert validation.judge(QUESTION, reply(compute_energy_j=0.0, upload_energy_j=0)).energy_j == (0.0, 0.0)
    first = replace(QUESTION, round=0)
    assert validation.judge(first, reply(round=0)).usable


def test_a_broken_meter_is_a_fault_and_the_upload_is_used_all_the_same():
    verdict = validation.judge(QUESTION, reply(upload_energy_j=2.5))
    assert verdict.usable
    assert verdict.energy_j is None
    fault = {"device": 0, "fault": "energy", "code": "energy_too_high", "part": "upload", "found": 2.5, "limit": 2.0}
    assert verdict.faults == (fault,)


def test_a_device_that_diverged_reports_its_count_and_no_upload():
    verdict = validation.judge(QUESTION, reply({}, status="diverged"))
    assert (verdict.diverged, verdict.correct, verdict.energy_j) == (True, 4, (3.0, 0.5))
    assert not verdict.usable
    assert verdict.upload is None


@pytest.mark.parametrize("gain", [0.0, -1e-9, 1.5, 1e6, math.inf, math.nan, 1, True, "1e-9", None])
def test_a_gain_that_cannot_be_is_not_known_and_the_answer_is_used(gain):
    verdict = validation.judge(QUESTION, reply(gain=gain))
    assert verdict.usable
    assert verdict.gain is None


def test_gains_are_believed_from_just_above_nothing_to_one():
    for gain in (5e-324, 0.5, 1.0):
        assert validation.judge(QUESTION, reply(gain=gain)).gain == gain


def test_no_answer_is_a_lost_device_and_says_why():
    verdict = validation.judge(QUESTION, NoReply("late", RefusedError("no_answer", deadline_s=9.0)))
    assert verdict.lost
    assert not verdict.usable
    assert verdict.faults == ({"device": 0, "fault": "late", "code": "no_answer", "deadline_s": 9.0},)


def test_an_outage_loses_the_upload_and_keeps_what_the_device_reported():
    verdict = validation.judge(QUESTION, reply(compute_energy_j=-1.0)).lost_in_outage(0)
    assert (verdict.usable, verdict.upload, verdict.lost, verdict.correct) == (False, None, True, 4)
    assert [fault["fault"] for fault in verdict.faults] == ["energy", "outage"]
    assert verdict.faults[1] == {"device": 0, "fault": "outage"}


def test_an_algorithm_that_uploads_nothing_has_usable_devices_without_an_upload():
    verdict = validation.judge(replace(QUESTION, formats={}), reply({}))
    assert verdict.usable
    assert verdict.upload is None


def test_an_answer_may_hold_its_arrays_and_a_table_and_no_more():
    # 3 × 4 float32 means and three int64 counts.
    assert most_bytes(EXPECTED) == 3 * 4 * 4 + 3 * 8 + 65_536
    assert most_bytes({}) == 65_536


def test_limits_are_power_for_the_whole_deadline_or_twice_the_plan():
    assert energy_limits(10.0, 1.0, 60.0, 0.1, 1e-8) == EnergyLimits(600.0, 60.0)
    assert energy_limits(10.0, 1.0, 60.0, 1000.0, 100.0) == EnergyLimits(2000.0, 200.0)


def test_a_refused_count_names_the_class_the_number_and_the_limit():
    with pytest.raises(RefusedError) as refused:
        judge(good(counts=np.array([10, 0, 21])))
    assert refused.value.facts == {"array": "counts", "found": 21, "limit": 20, "label": 2}
    # A device that hides its counts per class is held to all its samples.
    hidden = Profile(0, 3, 4, 50, 40, 50, 40, (2,), 30, (), 5, 3)
    judge(good(counts=np.array([30, 0, 30])), hidden)
    with pytest.raises(RefusedError) as refused:
        judge(good(counts=np.array([0, 31, 0])), hidden)
    assert refused.value.facts == {"array": "counts", "found": 31, "limit": 30, "label": 1}


def test_noise_on_counts_is_granted_ten_standard_deviations_and_no_sign():
    expected = Kfl(clip_norm=1.0, noise_multiplier=1.0, noise_counts=True).upload_format(SERVER)
    noise = expected["counts"].noise
    assert noise > 0
    hidden = Profile(0, 3, 4, 50, 40, 50, 40, (2,), 30, (), 5, 3)
    judge(good(counts=np.array([30 + 9.99 * noise, 0.0, 0.0])), hidden, expected)
    with pytest.raises(RefusedError) as refused:
        judge(good(counts=np.array([30 + 10.01 * noise, 0.0, 0.0])), hidden, expected)
    assert refused.value.facts == {"array": "counts", "limit": 30}
    with pytest.raises(RefusedError, match="negative"):
        judge(good(counts=np.array([-0.5, 0.0, 0.0])), hidden, expected)


def test_refused_energy_says_which_part_and_how_much():
    def reason(compute, upload):
        return refuse_energy(compute, upload, LIMITS)

    assert reason(1.0, 2.5).facts == {"part": "upload", "found": 2.5, "limit": 2.0}
    assert reason(51.0, 0.0).facts == {"part": "compute", "found": 51.0, "limit": 50.0}
    assert reason(0.0, -0.5).facts == {"part": "upload", "found": -0.5}
    for value in (math.nan, math.inf, -math.inf):
        assert (reason(1.0, value).code, reason(1.0, value).facts) == ("energy_not_finite", {"part": "upload"})
    for value in (True, "1", None):
        assert (reason(value, 0.0).code, reason(value, 0.0).facts) == ("energy_not_number", {"part": "compute"})


def test_arrays_and_counts_of_an_answer_are_checked():
    for arrays, code in ((good(counts=np.array([11, 0, 20])), "too_many_samples"), (good(means=NAN), "not_finite")):
        verdict = validation.judge(QUESTION, reply(arrays))
        assert verdict.refusal.code == code
        assert not verdict.usable
        assert verdict.upload is None


@pytest.mark.parametrize(
    ("work_s", "seconds", "known"),
    [
        (0.0, 1.0, True),
        (10.0, 1.0, True),  # the deadline: an answer that is asked for again comes at once
        (10.5, 1.0, False),
        (12.0, 12.0, True),  # who answers late may have worked as long
        (12.5, 12.0, False),
        (-0.5, 1.0, False),
        (True, 1.0, False),
        (5, 1.0, False),
        ("5", 1.0, False),
        (math.inf, 1.0, False),
        (math.nan, 1.0, False),
    ],
)
def test_work_takes_no_longer_than_there_was(work_s, seconds, known):
    verdict = validation.judge(QUESTION, replace(reply(work_s=work_s), seconds=seconds))
    assert verdict.usable
    assert verdict.work_s == (work_s if known else None)
    number = float(work_s) if isinstance(work_s, int | float) and math.isfinite(work_s) else 0.0
    fault = {"device": 0, "fault": "time", "code": "time_impossible", "found": number, "limit": max(10.0, seconds)}
    assert verdict.faults == (() if known else (fault,))


def test_everything_impossible_in_an_answer_is_noted():
    faults = validation.judge(QUESTION, reply(compute_energy_j=-1.0, work_s=11.0, gain=1.5)).faults
    assert [fault["fault"] for fault in faults] == ["energy", "time", "gain"]
    assert all(describe(*stored_refusal(fault)) != fault["code"] for fault in json.loads(json.dumps(faults)))
    assert faults[2] == {"device": 0, "fault": "gain", "code": "gain_impossible", "found": 1.5, "limit": 1.0}
    assert validation.judge(QUESTION, reply(gain=None, work_s=None)).faults == ()


def test_less_energy_than_the_work_takes_is_not_believed_beyond_rounding():
    limits = EnergyLimits(50.0, 2.0, least_compute_j=1.0, least_upload_j=0.1)
    for part in (1.0, 1 - 5e-7, 1 - 1e-6):
        assert refuse_energy(part, 0.1 * part, limits) is None
    reason = refuse_energy(1 - 1.5e-6, 0.1, limits)
    assert (reason.code, reason.facts) == ("energy_too_low", {"part": "compute", "found": 1 - 1.5e-6, "limit": 1.0})
    reason = refuse_energy(1.0, 0.05, limits)
    assert (reason.code, reason.facts) == ("energy_too_low", {"part": "upload", "found": 0.05, "limit": 0.1})
    # Who diverged sent nothing, and computed all the same.
    question = replace(QUESTION, limits=limits)
    assert validation.judge(question, reply({}, status="diverged", upload_energy_j=0.0)).energy_j == (3.0, 0.0)
    assert validation.judge(question, reply({}, status="diverged", compute_energy_j=0.5)).energy_j is None
    assert validation.judge(question, reply(upload_energy_j=0.0)).energy_j is None


def test_the_least_is_never_more_than_the_plan():
    found = energy_limits(10.0, 1.0, 60.0, 0.5, 0.25, least_compute_j=0.125, radiated_j=0.0625)
    assert (found.least_compute_j, found.least_upload_j) == (0.125, 0.0625)
    found = energy_limits(10.0, 1.0, 60.0, 0.5, 0.25, least_compute_j=2.0, radiated_j=1.0)
    assert (found.least_compute_j, found.least_upload_j) == (0.5, 0.25)


def test_the_first_name_in_alphabetical_order_is_the_one_that_is_said():
    some = {letter: ArrayFormat((1,)) for letter in "qwertyuiopasdfghjklzxcvbnm"}
    for arrays, formats in (({}, some), (dict.fromkeys(some, raw(np.ones(1))), {})):
        with pytest.raises(RefusedError) as refused:
            read_arrays(arrays, formats)
        assert refused.value.facts == {"array": "a"}


def test_long_words_of_a_stranger_are_said_in_40_characters():
    found = validation.judge(QUESTION, reply(status="x" * 500)).refusal.facts["found"]
    array = validation.judge(QUESTION, reply({**good(), "z" * 500: raw(np.ones(1))})).refusal.facts["array"]
    assert found == "x" * 39 + "…"
    assert array == "z" * 39 + "…"


NOISY = ArrayFormat((2,), "float64", holds="counts", noise=0.5)
WHOLE = ArrayFormat((2,), "float64", holds="counts")
HIDDEN = replace(PROFILE, samples_per_class=())


def test_counts_of_an_upload_are_checked_array_by_array():
    def check(noisy, whole=(0.0, 0.0)):
        arrays = {"noisy": np.array(noisy), "values": np.full(2, -1.5), "whole": np.array(whole)}
        check_counts(arrays, {"noisy": NOISY, "values": ArrayFormat((2,), "float64"), "whole": WHOLE}, HIDDEN)

    check([35.0, 0.0], [30.0, 0.0])  # 30 samples and ten times the noise
    for noisy, whole, code in (
        ([35.01, 0.0], [0.0, 0.0], "too_many_samples"),
        ([0.0, -0.01], [0.0, 0.0], "negative_count"),
        ([35.0, 0.0], [31.0, 0.0], "too_many_samples"),
        ([35.0, 0.0], [2.0, 1.5], "not_whole"),
        ([35.0, 0.0], [0.0, -1.0], "negative_count"),
    ):
        with pytest.raises(RefusedError) as refused:
            check(noisy, whole)
        assert refused.value.code == code, (noisy, whole)


CUT = {"code": "more_than_registered", "field": "samples", "found": 30, "limit": 10}
THIRD = replace(BELIEF, samples=10, cuts=({"code": "claim_cut", "field": "gain"}, CUT))


def test_lowered_counts_are_a_part_rounded_down_and_what_is_held_stays_held():
    formats = {"values": ArrayFormat((3,), "float64"), "noisy": NOISY, "whole": WHOLE}
    formats |= {"samples": ArrayFormat((), "float64", holds="samples"), "int": ArrayFormat((4,), "int64", "counts")}
    said = {
        "values": np.array([9.0, -9.0, 0.5]),
        "noisy": np.array([4.5, 0.75]),
        "whole": np.array([20.0, 1.0]),
        "samples": np.array(29.0),
        "int": np.array([0, 2, 3, 20]),
    }
    lowered, cut = lower_counts(said, formats, THIRD)
    assert cut is CUT
    found = {name: (array.dtype, array.tolist()) for name, array in lowered.items()}
    assert found["values"] == (np.float64, [9.0, -9.0, 0.5])
    assert found["noisy"] == (np.float64, pytest.approx([1.5, 0.25]))
    assert found["whole"] == (np.float64, [6.0, 1.0])
    assert found["samples"] == (np.float64, 9.0)
    assert found["int"] == (np.int64, [0, 1, 1, 6])
    assert said["int"].tolist() == [0, 2, 3, 20]


def test_counts_that_are_believed_or_not_sent_are_not_lowered():
    believed = replace(BELIEF, cuts=({"code": "claim_cut", "field": "gain"},))
    formats = {"int": ArrayFormat((1,), "int64", "counts")}
    exact = {"int": np.array([2**53 + 1])}  # more than a float can tell from its neighbor
    assert lower_counts(exact, formats, believed)[0]["int"].tolist() == [2**53 + 1]
    assert lower_counts(exact, formats, believed)[1] is None
    nothing = validation.judge(replace(QUESTION, formats={}, belief=THIRD), reply({}))
    assert (nothing.usable, nothing.clipped) == (True, ())
