"""Aggregation as sums: what the server makes of added terms is what it makes of the uploads themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar

import pytest
import torch

from kfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    CommonKnowledge,
    FedAvg,
    FedKd,
    FedProto,
    Kfl,
    Local,
    SharedStem,
    Upload,
)
from kfl.algorithms.sums import Sums, summation_of, why_not_summed
from kfl.engine import RoundKey

WITH_SETTINGS = ("kfl", "shared-stem", "fedkd", "common-knowledge")
"""Algorithms that need settings or tests of their own here; every other one that can be summed joins by itself."""
SUMMED = [
    Kfl(),
    Kfl(memory=False, bits_per_value=6),
    Kfl(clip_norm=1.0, noise_multiplier=0.1, noise_counts=True),
    SharedStem(budget_bits=10_000),
    SharedStem(budget_bits=10_000, pull="knowledge", bits_per_value=32),
    FedKd(proxy_per_class=3),
    FedAvg(bits_per_value=4),
    FedKd(proxy_per_class=3, bits_per_value=5),
    *(cls() for name, cls in ALGORITHMS.items() if name not in WITH_SETTINGS and why_not_summed(cls()) is None),
]


@pytest.mark.parametrize("algorithm", SUMMED, ids=lambda algorithm: algorithm.name)
def test_sums_give_what_uploads_give(algorithm: Algorithm, play: Callable[..., Any], toy: Any, mixed_toy: Any) -> None:
    world = (mixed_toy if isinstance(algorithm, SharedStem) else toy).of(algorithm)
    before = play(algorithm, world, [[0, 1, 2, 3, 4]])  # a server that has learned something, error feedback, knowledge
    cohort, key = [0, 2, 3], RoundKey(world.seed, 1)
    message = algorithm.broadcast(before.server)
    _, uploads = algorithm.local_update(message, cohort, [before.devices[k] for k in cohort], world.engine, key)
    expected, rejected = algorithm.aggregate(before.server, uploads, engine=world.engine, key=key)
    assert not rejected

    summation = summation_of(algorithm)
    assert summation is not None and why_not_summed(algorithm) is None
    terms = [summation.terms(upload, message, world.engine) for upload in uploads]
    values, weights = summation.shapes(before.server)
    for own in terms:
        assert {name: tuple(array.shape) for name, array in own.values.items()} == values
        assert {name: tuple(array.shape) for name, array in own.weights.items()} == weights
        for array in own.weights.values():
            assert bool((array >= 0).all()) and float(array.max()) <= summation.heaviest(before.server)
    found = summation.apply(before.server, reduce(add, terms))
    assert set(found) == set(expected)
    changed = False
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-6, atol=1e-7)
        changed |= not torch.equal(value, before.server[name])
    assert changed  # the round moved the server, so that equality means something


def test_sums_of_reports_give_the_same_common_knowledge(play: Callable[..., Any], toy: Any) -> None:
    """The sums alone: who has reported is what the server does not learn from them."""
    algorithm = CommonKnowledge()
    world, key = toy.of(algorithm), RoundKey(toy.of(algorithm).seed, 1)
    before = play(algorithm, world, [[1, 4]]).server
    message, cohort = algorithm.broadcast(before), [0, 2, 3]
    _, uploads = algorithm.local_update(message, cohort, [{}, {}, {}], world.engine, key)
    expected, rejected = algorithm.aggregate(before, uploads, engine=world.engine, key=key)
    assert not rejected
    summation = summation_of(algorithm)
    assert summation is not None
    found = summation.apply(before, reduce(add, [summation.terms(upload, message, world.engine) for upload in uploads]))
    assert found["reported"].tolist() == [1, 4] and expected["reported"].tolist() == [0, 1, 2, 3, 4]
    after, once = algorithm.broadcast(found), algorithm.broadcast(expected)
    assert list(after) == list(once)
    for name, value in once.items():
        torch.testing.assert_close(after[name].double(), value.double(), rtol=1e-5, atol=1e-6)


def test_every_other_algorithm_and_every_robust_rule_says_why_not() -> None:
    summed = {algorithm.name for algorithm in (*SUMMED, CommonKnowledge())}
    for name, cls in ALGORITHMS.items():
        assert (why_not_summed(cls()) is None) == (name in summed), name
        if name in summed:
            reason = why_not_summed(cls(aggregation="clip"))
            assert reason == "algorithm.aggregation = 'clip' compares what single devices send"
    assert why_not_summed(Local()) == "devices send nothing in 'local'"


def test_a_rule_of_ones_own_is_not_taken_for_the_inherited_sum() -> None:
    @dataclass(frozen=True)
    class Loudest(FedAvg):
        name: ClassVar[str] = "loudest"

        def aggregate(self, server: Any, uploads: Any, *, engine: Any, key: Any) -> Any:
            return dict(uploads[-1].arrays), []

    assert summation_of(Loudest()) is None
    assert "'loudest' looks at what single devices send" in str(why_not_summed(Loudest()))


def test_terms_are_added_name_by_name() -> None:
    one = Sums({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}, {"n": torch.tensor(4.0)})
    both = one + Sums({"b": torch.tensor(30.0), "a": torch.tensor([10.0, 20.0])}, {"n": torch.tensor(40.0)})
    assert {name: value.tolist() for name, value in both.values.items()} == {"a": [11.0, 22.0], "b": 33.0}
    assert {name: value.tolist() for name, value in both.weights.items()} == {"n": 44.0}


MODEL = {"body.weight": torch.tensor([9.0, 9.0]), "body.n": torch.tensor(7)}


@pytest.mark.parametrize("samples", [0.0, 0.5, 1.0, 4.0])
def test_sums_of_weights_are_divided_by_the_samples_and_counters_rounded(samples: float) -> None:
    """A device adds D_k w_k and D_k. Where there are no samples the server keeps what it has."""
    arrays = {"body.weight": torch.tensor([1.0, 3.0]), "body.n": torch.tensor(2), "samples": torch.tensor(samples)}
    summation: Any = summation_of(FedAvg())
    terms = summation.terms(Upload(0, arrays), MODEL, None)
    assert terms.values["body.weight"].tolist() == [samples, 3 * samples]
    assert {name: value.tolist() for name, value in terms.weights.items()} == {"samples": samples}
    more = Sums({"body.weight": torch.zeros(2), "body.n": torch.tensor(0.6 * samples)}, {"samples": torch.tensor(0.0)})
    after = summation.apply(MODEL, terms + more)
    if samples == 0:
        assert after is MODEL
    else:
        assert after["body.weight"].tolist() == [1.0, 3.0] and after["body.n"].item() == 3
        assert after["body.weight"].dtype == torch.float32 and after["body.n"].dtype == torch.int64


KNOWN = {"knowledge": torch.full((3, 2), 9.0), "known": torch.tensor([True, True, False])}


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [(Kfl(), [1.0, 0.0, 6.0]), (Kfl(memory=False), [1.0, 0.0, 6.0]), (FedProto(), [1.0, 0.0, 1.0])],
)
def test_sums_of_knowledge_weigh_by_samples_or_not_and_leave_out_what_is_not_held(
    algorithm: Algorithm, weights: list[float]
) -> None:
    """A single sample counts, and a row of a class without samples may hold anything."""
    means = torch.tensor([[1.0, 2.0], [float("nan"), 5.0], [3.0, 4.0]])
    summation: Any = summation_of(algorithm)
    terms = summation.terms(Upload(0, {"means": means, "counts": torch.tensor([1, 0, 6])}), KNOWN, None)
    assert terms.weights["counts"].tolist() == weights
    heavy = weights[2]
    assert terms.values["means"].tolist() == [[1.0, 2.0], [0.0, 0.0], [3 * heavy, 4 * heavy]]
    assert terms.values["means"].dtype == terms.weights["counts"].dtype == torch.float64
    after = summation.apply(KNOWN, terms)
    keeps = getattr(algorithm, "memory", True)
    assert after["knowledge"].tolist() == [[1.0, 2.0], [9.0, 9.0] if keeps else [0.0, 0.0], [3.0, 4.0]]
    assert after["known"].tolist() == [True, keeps, True]
    assert summation.shapes(KNOWN) == ({"means": (3, 2)}, {"counts": (3,)})
    assert summation.heaviest(KNOWN) == (1 if weights[2] == 1.0 else 2**53)
