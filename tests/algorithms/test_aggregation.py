"""What servers make of uploads through `aggregate`, in cases small enough to work out manually."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import (
    Apfl,
    ArrayFormat,
    FedAvg,
    FederatedDistillation,
    FedKd,
    FedMrl,
    FedProto,
    FedRep,
    Kfl,
    LgFedAvg,
    SharedStem,
    Upload,
)
from kfl.core.errors import ConfigError

RULES = ("mean", "clip", "median", "trimmed")
ROBUST = RULES[1:]
PLAIN_MEANS = [Kfl, SharedStem, FedAvg, FedRep, Apfl, FedMrl, LgFedAvg, FedProto, FederatedDistillation, FedKd]


def aggregate(algorithm, server, uploads):
    """These algorithms need neither an engine nor a draw to aggregate."""
    return algorithm.aggregate(server, uploads, engine=None, key=None)


def report(device, means, counts, dtype=torch.float32):
    return Upload(device, {"means": torch.tensor(means, dtype=dtype), "counts": torch.tensor(counts)})


def server(knowledge, known, dtype=torch.float32):
    return {"knowledge": torch.tensor(knowledge, dtype=dtype), "known": torch.tensor(known)}


@pytest.mark.parametrize("cls", PLAIN_MEANS, ids=lambda cls: cls.name)
def test_every_average_has_the_robust_rules(cls):
    for rule in RULES:
        cls(aggregation=rule).validate()
    with pytest.raises(ConfigError, match=r"aggregation is 'krum'.*mean, clip, median, trimmed"):
        cls(aggregation="krum").validate()
    for trim in (-0.1, 0.5, math.nan):
        with pytest.raises(ConfigError, match=r"trim.*below 0\.5"):
            cls(trim=trim).validate()


# ── Class means ──────────────────────────────────────────────────────────────

REPORTS = [
    report(0, [[1.0, 0.0], [5.0, 5.0], [math.nan, 7.0]], [1, 2, 0]),
    report(1, [[4.0, 3.0], [0.0, 0.0], [0.0, 0.0]], [2, 0, 0]),
]
BEFORE = server([[9.0, 9.0], [9.0, 9.0], [8.0, 8.0]], [True, False, True])


def test_kfl_weighs_by_samples_and_remembers_or_forgets_classes_that_nobody_reports():
    """(1·(1, 0) + 2·(4, 3))/3 = (3, 2); one reporter gives its own mean."""
    for memory, last in ((True, [8.0, 8.0]), (False, [0.0, 0.0])):
        after, rejected = aggregate(Kfl(memory=memory), BEFORE, REPORTS)
        assert rejected == [] and after["knowledge"].tolist() == [[3.0, 2.0], [5.0, 5.0], last]
        assert after["known"].tolist() == [True, True, memory]


def test_a_server_keeps_what_it_has_when_nothing_usable_arrives():
    bad = report(0, [[math.nan, 0.0]] * 3, [1, 1, 1])
    for rule, uploads in itertools.product(RULES, ([], [bad])):
        after, rejected = aggregate(Kfl(memory=False, aggregation=rule), BEFORE, uploads)
        assert len(rejected) == len(uploads) and after is BEFORE


@pytest.mark.parametrize("cls", [FedProto, FederatedDistillation], ids=lambda cls: cls.name)
@pytest.mark.parametrize("counts", [([1, 2, 0], [2, 0, 0]), ([1, 1, 0], [1, 0, 0])], ids=["counts", "flags"])
def test_prototypes_weigh_devices_alike(cls, counts):
    """((1, 0) + (4, 3))/2 = (2.5, 1.5), whatever counts a device claims."""
    uploads = [Upload(u.device, {**u.arrays, "counts": torch.tensor(c)}) for u, c in zip(REPORTS, counts, strict=True)]
    after, _ = aggregate(cls(), BEFORE, uploads)
    assert after["knowledge"].tolist() == [[2.5, 1.5], [5.0, 5.0], [8.0, 8.0]]


def test_robust_rules_class_by_class_by_hand():
    """Class 0 has three reports, class 1 one (whose holder alone is asked)."""
    uploads = [
        report(0, [[1.0, 0.0], [math.nan, 7.0]], [10, 0]),
        report(1, [[2.0, 4.0], [5.0, 5.0]], [30, 2]),
        report(2, [[60.0, -80.0], [0.0, 0.0]], [1000, 0]),
    ]
    far = math.hypot(58, 80)
    expected = {
        # Median (2, 0); distances 1, 4, √(58² + 80²) > 4, so the radius is 4; counts 10, 30 and no more than 30.
        "clip": [2 + (10 * -1 + 0 + 30 * 4 * 58 / far) / 70, (30 * 4 - 30 * 4 * 80 / far) / 70],
        "median": [2.0, 0.0],
        "trimmed": [2.0, 0.0],
        "mean": [(10 + 60 + 60000) / 1040, (120 - 80000) / 1040],
    }
    fresh = server([[0.0, 0.0], [9.0, 9.0]], [False, True])
    for rule, value in expected.items():
        after, rejected = aggregate(Kfl(aggregation=rule), fresh, uploads)
        assert rejected == [] and after["known"].all()
        # The center of class 1 is what was known, and of one report the distance is the median distance.
        torch.testing.assert_close(after["knowledge"], torch.tensor([value, [5.0, 5.0]]))


def test_clip_measures_from_what_is_known_and_else_from_the_median():
    """Class 0 is known and short, class 1 is unknown, class 2 known but no device holds it."""
    before = server([[0.0, 1.0], [9.0, 9.0], [7.0, 7.0]], [True, False, True])
    means = [
        [[0.0, 3.0], [1.0, 1.0], [0.0, 0.0]],
        [[0.0, 9.0], [2.0, 5.0], [0.0, 0.0]],
        [[4.0, 1.0], [9.0, 0.0], [0.0, 0.0]],
    ]
    uploads = [report(k, mean, [k + 1, 4, 0]) for k, mean in enumerate(means)]
    after, rejected = aggregate(Kfl(aggregation="clip"), before, uploads)
    assert rejected == [] and after["known"].tolist() == [True, True, True]
    # Every device is drawn to distance 1 of (0, 1); samples 1, 2, 3 count as 1, 2, 2.
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


@pytest.mark.parametrize("rule", ROBUST)
def test_one_liar_in_five_moves_the_mean_and_not_the_robust_rules(rule):
    honest = [report(k, [[1.0 + k / 10, 2.0]], [20]) for k in range(4)]
    liar = report(4, [[1e9, -1e9]], [10**9])
    before = server([[1.0, 2.0]], [True])
    plain = aggregate(Kfl(), before, [*honest, liar])[0]["knowledge"]
    robust = aggregate(Kfl(aggregation=rule), before, [*honest, liar])[0]["knowledge"]
    assert plain.abs().max() > 1e8
    assert (robust - torch.tensor([[1.15, 2.0]])).abs().max() < 0.3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [False, True], ids=["all sound", "one refused"])
def test_a_class_of_a_single_sample_is_knowledge_and_no_digit_is_lost(rule, bad):
    """The server's own type decides how exactly: here float64, where 1 + 1e-12 is not 1."""
    one = server([[9.0, -9.0], [8.0, 8.0]], [True, True], torch.float64)
    odd = [report(7, [[math.inf, 0.0], [0.0, 0.0]], [1, 0], torch.float64)] if bad else []
    # A class without samples may hold anything, and does not make the rest of an upload useless.
    sound = [
        report(0, [[1 + 1e-12, -2.0], [math.nan, 0.0]], [1, 0], torch.float64),
        report(1, [[50.0, 50.0], [50.0, 50.0]], [0, 0], torch.float64),
    ]
    after, rejected = aggregate(Kfl(aggregation=rule, memory=False), one, [*sound, *odd])
    assert [(refused.device, refused.code) for refused in rejected] == [(7, "not_finite")] * bad
    assert after["knowledge"].dtype == torch.float64
    assert after["knowledge"][0].tolist() == pytest.approx([1 + 1e-12, -2.0], rel=1e-14)
    assert not after["knowledge"][1].any() and after["known"].tolist() == [True, False]
    assert one["knowledge"].tolist() == [[9.0, -9.0], [8.0, 8.0]]


@pytest.mark.parametrize("rule", RULES)
def test_counts_of_different_types_count_alike(rule):
    means = [[[1.0, 2.0], [0.0, 0.0]], [[3.0, 4.0], [0.0, 0.0]], [[2.0, 3.0], [0.0, 0.0]]]
    # 100,000 is infinite as a half-precision number, which the third device's counts are.
    kinds = (torch.int64, torch.int64, torch.float16)
    counts = [torch.tensor([n, 0]).to(kind) for n, kind in zip((100_000, 100_000, 100), kinds, strict=True)]
    uploads = [Upload(k, {"means": torch.tensor(m), "counts": counts[k]}) for k, m in enumerate(means)]
    alike = [Upload(u.device, {**u.arrays, "counts": u.arrays["counts"].double()}) for u in uploads]
    (found, rejected), (wanted, _) = (aggregate(Kfl(aggregation=rule), BEFORE_TWO, some) for some in (uploads, alike))
    assert rejected == [] and torch.isfinite(found["knowledge"]).all()
    assert torch.equal(found["knowledge"], wanted["knowledge"])


BEFORE_TWO = server([[0.0, 0.0], [9.0, 9.0]], [False, True])


@pytest.mark.parametrize("shape", [(2, 0), (0, 2)], ids=["features", "classes"])
def test_knowledge_of_nothing_at_all_is_no_error(shape):
    empty = {"knowledge": torch.zeros(shape), "known": torch.zeros(shape[0], dtype=torch.bool)}
    upload = Upload(0, {"means": torch.zeros(shape), "counts": torch.tensor([1, 0])[: shape[0]]})
    for rule in RULES:
        after, rejected = aggregate(Kfl(aggregation=rule), empty, [upload])
        assert rejected == [] and after["known"].tolist() == [True, False][: shape[0]]


@pytest.mark.parametrize(
    ("settings", "means", "counts"),
    [
        ({}, {}, {}),
        ({"bits_per_value": 8}, {"bits": 8}, {}),
        ({"charge": "held"}, {"held_rows": True}, {}),
        ({"clip_norm": 1.0, "noise_multiplier": 0.7}, {}, {}),
        (
            {"clip_norm": 1.0, "noise_multiplier": 0.7, "noise_counts": True, "charge": "held", "bits_per_value": 31},
            {"bits": 31},
            {"dtype": "float64", "noise": 1.4},
        ),
    ],
)
def test_kfl_declares_what_it_sends(settings, means, counts):
    """Noisy counts are declared with their noise, 2 z, and then every row is sent, since they hide which are held."""
    expected = {
        "means": ArrayFormat((2, 2), weight="counts", **means),
        "counts": ArrayFormat((2,), **{"dtype": "int64", **counts}, holds="counts"),
    }
    assert Kfl(**settings).upload_format(BEFORE_TWO) == expected


# ── Weights ──────────────────────────────────────────────────────────────────

SERVER = {
    "body.weight": torch.tensor([[1.0, 2.0]]),
    "body.num_batches_tracked": torch.tensor(10),
    "head.bias": torch.tensor([3.0], dtype=torch.float64),
}


def upload(device, update, samples, counter=10):
    """A model that differs from the server's by an update of three values; what else is in an upload is ignored."""
    return Upload(
        device,
        {
            "body.weight": SERVER["body.weight"] + torch.tensor([update[:2]], dtype=torch.float32),
            "body.num_batches_tracked": torch.tensor(counter),
            "head.bias": SERVER["head.bias"] + update[2],
            "samples": torch.tensor(float(samples), dtype=torch.float64),
            "more": torch.tensor(math.nan),
        },
    )


UPLOADS = [
    upload(0, (3.0, 0.0, 4.0), 10, 12),
    upload(1, (0.0, 1.0, 0.0), 30, 13),
    upload(2, (1.0, 2.0, 2.0), 20, 14),
    upload(3, (-600.0, 0.0, 800.0), 2**53, 10**6),
    upload(4, (9.0, 9.0, 9.0), 0, 99),  # of no sample: it has no say
]


def after(rule, uploads, trim=0.25, algorithm=FedAvg):
    found, rejected = aggregate(algorithm(aggregation=rule, trim=trim), SERVER, uploads)
    assert not rejected
    return found


def moved(state):
    """What the server's model moved by, as one vector."""
    return torch.cat([(state[name].double() - SERVER[name]).flatten() for name in ("body.weight", "head.bias")])


@pytest.mark.parametrize("cls", [FedAvg, FedRep, Apfl, LgFedAvg], ids=lambda cls: cls.name)
def test_weights_are_weighed_by_samples_and_counters_rounded(cls):
    """(10·(3, 0, 4) + 30·(0, 1, 0) + 20·(1, 2, 2))/60, and (120 + 390 + 280)/60 = 13.2 batches."""
    state = after("mean", UPLOADS[:3], algorithm=cls)
    assert moved(state).tolist() == pytest.approx([50 / 60, 70 / 60, 80 / 60])
    assert state["body.num_batches_tracked"].item() == 13
    assert {name: value.dtype for name, value in state.items()} == {name: value.dtype for name, value in SERVER.items()}


@pytest.mark.parametrize("cls", [FedAvg, LgFedAvg], ids=lambda cls: cls.name)
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("median", [0.5, 0.5, 3.0]),
        ("trimmed", [0.5, 0.5, 3.0]),
        # Lengths 5, 1, 3 and 1000: the smaller of the middle two is 3. Samples 10, 30, 20 and no more than 20.
        (
            "clip",
            [
                (10 * 3 * 3 / 5 + 0 + 20 * 1 - 20 * 3 * 0.6) / 70,
                (0 + 20 * 1 + 20 * 2 + 0) / 70,
                (10 * 4 * 3 / 5 + 0 + 20 * 2 + 20 * 3 * 0.8) / 70,
            ],
        ),
    ],
)
def test_robust_rules_see_whole_updates_by_hand(rule, expected, cls):
    state = after(rule, UPLOADS, algorithm=cls)
    assert moved(state).tolist() == pytest.approx(expected, abs=1e-5)
    assert state["body.num_batches_tracked"] == 14  # the median of 12, 13, 14 and a million is 13.5
    assert {name: value.dtype for name, value in state.items()} == {name: value.dtype for name, value in SERVER.items()}
    assert state["body.weight"].shape == (1, 2)


def test_samples_count_to_the_last_one():
    many, along = 2**24 + 1, (0.0, 1.0, 0.0)  # a number that 32 bits do not hold
    found = moved(after("clip", [upload(0, along, many), upload(1, along, many), upload(2, (0.0, 0.0, 1.0), 1)]))
    assert float(found[2]) == pytest.approx(1 / (2 * many + 1), rel=4e-8, abs=0)


def test_trim_is_how_much_is_left_out():
    few = [upload(k, (float(k), 0.0, 0.0), 1) for k in range(10)]
    assert float(moved(after("trimmed", few, trim=0.0))[0]) == pytest.approx(4.5)
    few[9] = upload(9, (1000.0, 0.0, 0.0), 1)
    assert float(moved(after("trimmed", few, trim=0.0))[0]) == pytest.approx(103.6)
    assert float(moved(after("trimmed", few, trim=0.1))[0]) == pytest.approx(4.5)


@settings(max_examples=30)
@given(
    honest=st.lists(st.tuples(*[st.floats(-5, 5, width=16)] * 3), min_size=3, max_size=7),
    poison=st.lists(st.tuples(*[st.floats(-(2.0**100), 2.0**100)] * 3), max_size=2),
)
def test_a_minority_stays_within_the_honest_ones(honest, poison):
    uploads = [upload(k, values, 5) for k, values in enumerate([*poison, *honest])]
    values, slack = torch.tensor(honest).double(), 1e-5
    for rule in ("median", "trimmed"):
        found = moved(after(rule, uploads, trim=0.49))
        assert (found >= values.amin(0) - slack).all() and (found <= values.amax(0) + slack).all()
    assert moved(after("clip", uploads)).norm() <= values.norm(dim=1).max() + slack


@pytest.mark.parametrize("rule", RULES)
def test_uploads_without_samples_leave_the_server_as_it_was_and_broken_ones_are_refused(rule):
    for uploads in ([], [UPLOADS[4]]):
        assert after(rule, uploads) is SERVER
    broken = Upload(7, {**UPLOADS[0].arrays, "body.weight": torch.full((1, 2), math.nan)})
    found, rejected = aggregate(FedAvg(aggregation=rule), SERVER, [broken, *UPLOADS])
    assert [one.device for one in rejected] == [7]
    assert moved(found).equal(moved(after(rule, UPLOADS)))


# ── Logits of a proxy set, where all devices weigh the same ──────────────────


def test_fedkd_averages_logits_or_combines_them_by_a_rule():
    before = {"consensus": torch.zeros(1, 2), "known": torch.tensor(False)}
    said = [[1.0, -1.0], [3.0, 5.0], [800.0, -4.0]]
    uploads = [Upload(k, {"logits": torch.tensor([values])}) for k, values in enumerate(said)]
    found = {rule: aggregate(FedKd(aggregation=rule), before, uploads)[0] for rule in RULES}
    assert found["mean"]["consensus"].tolist() == [[268.0, 0.0]] and bool(found["mean"]["known"])
    assert found["median"]["consensus"].tolist() == found["trimmed"]["consensus"].tolist() == [[3.0, -1.0]]
    # Around the median (3, −1): distances 2, 6 and about 797, so the radius is 6.
    far = math.hypot(797, 3)
    assert found["clip"]["consensus"][0].tolist() == pytest.approx(
        [3 + (-2 + 6 * 797 / far) / 3, -1 + (6 - 18 / far) / 3]
    )
    # Once there is a consensus, it is the center: from (3, −1) the same.
    known = {"consensus": torch.tensor([[3.0, -1.0]]), "known": torch.tensor(True)}
    again, _ = aggregate(FedKd(aggregation="clip"), known, uploads)
    torch.testing.assert_close(again["consensus"], found["clip"]["consensus"])
    assert aggregate(FedKd(aggregation="clip"), known, [])[0] is known
