"""Robust rules on models: the same as on knowledge, with whole updates as reports."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.algorithms import Apfl, FedAvg, FedMrl, FedRep, Upload
from kfl.algorithms.sums import summation_of, why_not_summed
from kfl.core.errors import ConfigError

SERVER = {
    "body.weight": torch.tensor([[1.0, 2.0]]),
    "body.num_batches_tracked": torch.tensor(10),
    "head.bias": torch.tensor([3.0], dtype=torch.float64),
}


def upload(device, update, samples, counter=10):
    """A model that differs from the server's by an update of three values."""
    weight = SERVER["body.weight"] + torch.tensor([update[:2]], dtype=torch.float32)
    bias = SERVER["head.bias"] + update[2]
    counts = torch.tensor(counter), torch.tensor(float(samples), dtype=torch.float64)
    return Upload(
        device,
        {"body.weight": weight, "body.num_batches_tracked": counts[0], "head.bias": bias, "samples": counts[1]},
    )


def after(rule, uploads, trim=0.25):
    found, rejected = FedAvg(aggregation=rule, trim=trim).aggregate(SERVER, uploads, engine=None, key=None)
    assert not rejected
    return found


def moved(state):
    """What the server's model moved by, as one vector."""
    return np.concatenate(
        [(state[name].double() - SERVER[name]).numpy().ravel() for name in ("body.weight", "head.bias")]
    )


UPLOADS = [
    upload(0, (3.0, 0.0, 4.0), 10, 12),
    upload(1, (0.0, 1.0, 0.0), 30, 13),
    upload(2, (1.0, 2.0, 2.0), 20, 14),
    upload(3, (-600.0, 0.0, 800.0), 2**53, 10**6),
    upload(4, (9.0, 9.0, 9.0), 0, 99),  # of no sample: it has no say
]


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
def test_by_hand(rule, expected):
    state = after(rule, UPLOADS)
    np.testing.assert_allclose(moved(state), expected, atol=1e-6)
    assert state["body.num_batches_tracked"] == 14  # the median of 12, 13, 14 and a million is 13.5
    assert {name: value.dtype for name, value in state.items()} == {name: value.dtype for name, value in SERVER.items()}
    assert state["body.weight"].shape == (1, 2)


def test_samples_count_to_the_last_one():
    many, along = 2**24 + 1, (0.0, 1.0, 0.0)  # a number that 32 bits do not hold
    found = moved(after("clip", [upload(0, along, many), upload(1, along, many), upload(2, (0.0, 0.0, 1.0), 1)]))
    assert found[2] == pytest.approx(1 / (2 * many + 1), rel=4e-8, abs=0)


def test_trim_is_how_much_is_left_out():
    few = [upload(k, (float(k), 0.0, 0.0), 1) for k in range(10)]
    assert moved(after("trimmed", few, trim=0.0))[0] == pytest.approx(4.5)
    few[9] = upload(9, (1000.0, 0.0, 0.0), 1)
    assert moved(after("trimmed", few, trim=0.0))[0] == pytest.approx(103.6)
    assert moved(after("trimmed", few, trim=0.1))[0] == pytest.approx(4.5)


@settings(max_examples=30)
@given(
    honest=st.lists(st.tuples(*[st.floats(-5, 5, width=16)] * 3), min_size=3, max_size=7),
    poison=st.lists(st.tuples(*[st.floats(-(2.0**100), 2.0**100)] * 3), max_size=2),
)
def test_a_minority_stays_within_the_honest_ones(honest, poison):
    uploads = [upload(k, values, 5) for k, values in enumerate([*poison, *honest])]
    values, slack = np.array(honest), 1e-5
    for rule in ("median", "trimmed"):
        found = moved(after(rule, uploads, trim=0.49))
        assert (found >= values.min(axis=0) - slack).all() and (found <= values.max(axis=0) + slack).all()
    assert math.hypot(*moved(after("clip", uploads))) <= np.linalg.norm(values, axis=1).max() + slack


def test_nobody_who_has_samples_leaves_the_server_as_it_was():
    for uploads in ([], [UPLOADS[4]]):
        for rule in ("clip", "median", "trimmed"):
            assert after(rule, uploads) is SERVER


def test_what_is_not_a_model_is_refused_and_the_rest_is_used():
    broken = Upload(7, {**UPLOADS[0].arrays, "body.weight": torch.full((1, 2), math.nan)})
    found, rejected = FedAvg(aggregation="median").aggregate(SERVER, [broken, *UPLOADS], engine=None, key=None)
    assert [one.device for one in rejected] == [7]
    np.testing.assert_array_equal(moved(found), moved(after("median", UPLOADS)))


@pytest.mark.parametrize("algorithm", [FedAvg, FedRep, Apfl, FedMrl])
def test_every_average_of_weights_has_the_rules(algorithm):
    assert summation_of(algorithm()) is not None
    assert why_not_summed(algorithm(aggregation="clip")) == (
        "algorithm.aggregation = 'clip' compares what single devices send"
    )
    with pytest.raises(ConfigError, match=r"aggregation.*mean, clip, median, trimmed"):
        algorithm(aggregation="krum").validate()
    with pytest.raises(ConfigError, match=r"trim.*below 0\.5"):
        algorithm(trim=0.5).validate()
