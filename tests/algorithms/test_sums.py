"""Aggregation as sums: what the server makes of added terms is what it makes of the uploads themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, ClassVar

import pytest
import torch

from kfl.algorithms import ALGORITHMS, Algorithm, FedAvg, Kfl, SharedStem
from kfl.algorithms.sums import summation_of, why_not_summed
from kfl.engine import RoundKey

SUMMED = [
    Kfl(),
    Kfl(memory=False, bits_per_value=6),
    Kfl(clip_norm=1.0, noise_multiplier=0.1, noise_counts=True),
    SharedStem(budget_bits=10_000),
    SharedStem(budget_bits=10_000, pull="knowledge", bits_per_value=32),
    FedAvg(),
    *(ALGORITHMS[name]() for name in ("fedrep", "apfl", "fedproto", "fd", "fedmrl", "lg-fedavg")),
]


@pytest.mark.parametrize("algorithm", SUMMED, ids=lambda algorithm: algorithm.name)
def test_sums_give_what_uploads_give(algorithm: Algorithm, play: Callable[..., Any], toy: Any, mixed_toy: Any) -> None:
    world = (mixed_toy if isinstance(algorithm, SharedStem) else toy).of(algorithm)
    before = play(algorithm, world, [[0, 1, 2, 3, 4]])  # a server that has learnt something, error feedback, knowledge
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
            assert bool((array >= 0).all())
    found = summation.apply(before.server, reduce(add, terms))
    assert set(found) == set(expected)
    changed = False
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name].double(), value.double(), rtol=1e-6, atol=1e-7)
        changed |= not torch.equal(value, before.server[name])
    assert changed  # the round moved the server, so that equality means something


def test_every_other_algorithm_says_why_not() -> None:
    summed = {algorithm.name for algorithm in SUMMED}
    for name, cls in ALGORITHMS.items():
        assert (why_not_summed(cls()) is None) == (name in summed), name
    for rule in ("clip", "median", "trimmed"):
        assert f"aggregation = '{rule}' compares" in str(why_not_summed(Kfl(aggregation=rule)))
        assert f"aggregation = '{rule}' compares" in str(why_not_summed(SharedStem(aggregation=rule)))


def test_a_rule_of_ones_own_is_not_taken_for_the_inherited_sum() -> None:
    @dataclass(frozen=True)
    class Loudest(FedAvg):
        name: ClassVar[str] = "loudest"

        def aggregate(self, server: Any, uploads: Any, *, engine: Any, key: Any) -> Any:
            return dict(uploads[-1].arrays), []

    assert summation_of(Loudest()) is None
    assert "'loudest' looks at what single devices send" in str(why_not_summed(Loudest()))
