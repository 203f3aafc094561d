"""Every number among an algorithm's settings: the values at the edge that are taken, and the ones next to them."""

import dataclasses
import math
import typing

import pytest

from kfl.algorithms import ALGORITHMS, Algorithm, FixedKnowledge, Kfl, SharedStem
from kfl.core.errors import ConfigError

TINY = 5e-324
"""The smallest number above 0."""
HUGE = math.nextafter(math.inf, 0)
WEIGHT = ([0.0, TINY, HUGE], [-TINY, math.inf])
POSITIVE = ([TINY, HUGE], [0.0, -1.0, math.inf])
RATE = ([TINY, 1e30], [0.0, -1.0, math.nextafter(1e30, math.inf)])
COUNT = ([1, 2, 10**6], [0, -1])
BITS = ([1, 2, 32], [0, 33])
BOUNDS = {
    "local_steps": COUNT,
    "learning_rate": RATE,
    "head_learning_rate": ([None, *RATE[0]], RATE[1]),
    "momentum": ([0.0, math.nextafter(1, 0)], [-TINY, 1.0]),
    "batch_size": ([None, *COUNT[0]], COUNT[1]),
    "knowledge_weight": WEIGHT,
    "prototype_weight": WEIGHT,
    "distill_weight": WEIGHT,
    "small_loss_weight": ([0.0, 1e30], [-TINY, math.nextafter(1e30, math.inf)]),
    "bits_per_value": BITS,
    "bits_down": BITS,
    "budget_bits": ([None, *COUNT[0]], COUNT[1]),
    "clip_norm": ([None, *POSITIVE[0]], POSITIVE[1]),
    "noise_multiplier": WEIGHT,
    "trim": ([0.0, math.nextafter(0.5, 0)], [-TINY, 0.5]),
    "scale": POSITIVE,
    "mixing": ([0.0, 1.0], [-TINY, math.nextafter(1, 2)]),
    "mixing_rate": WEIGHT,
    "server_epochs": COUNT,
    "server_learning_rate": RATE,
    "server_batch_size": COUNT,
    "margin_limit": WEIGHT,
    "proxy_per_class": COUNT,
    "distill_steps": ([0, 1], [-1]),
    "distill_rate": POSITIVE,
    "temperature": POSITIVE,
    "small_features": COUNT,
    "small_width": COUNT,
    "largest_gradient": ([None, *POSITIVE[0]], POSITIVE[1]),
    "proximal": WEIGHT,
    "pull": WEIGHT,
    "mean_bits": ([1, 16, 32], [0, 17, 33]),
    "sketches": ([1, 1024], [0, 1025]),
    "head_steps": ([None, *COUNT[0]], COUNT[1]),
    "body_steps": ([None, *COUNT[0]], COUNT[1]),
}
NEEDS = {"noise_multiplier": {"clip_norm": 1.0}}
"""Settings without which another one is refused."""
NEEDS_HERE = {("common-knowledge", "noise_multiplier"): {"clip_norm": 1.0, "covariance": "none"}}
"""The same of one algorithm."""
STEPS = {one.name for one in dataclasses.fields(Algorithm)}


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_last_value_that_works_is_taken_and_the_next_refused(cls):
    hints = typing.get_type_hints(cls)
    for one in dataclasses.fields(cls):
        if one.name in STEPS and not cls.trains:
            continue
        needs = NEEDS_HERE.get((cls.name, one.name), NEEDS.get(one.name, {}))
        if not {int, float} & {hints[one.name], *typing.get_args(hints[one.name])}:
            continue
        taken, refused = BOUNDS.get(one.name, ([one.default], [math.nan, math.inf, -math.inf]))
        for value in taken:
            cls(**{one.name: value}, **needs).validate()
        for value in refused:
            with pytest.raises(ConfigError, match=one.name) as problem:
                cls(**{one.name: value}, **needs).validate()
            assert problem.value.field == f"algorithm.{one.name}"


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        (Kfl(noise_multiplier=1.0), "clip_norm"),
        (Kfl(noise_counts=True), "noise_counts"),
        (Kfl(aggregation="majority"), "aggregation"),
        (Kfl(charge="nothing"), "charge"),
        (SharedStem(noise_multiplier=1.0), "clip_norm"),
        (SharedStem(noise_multiplier=1.0, clip_norm=1.0, pull="knowledge"), "pull"),
        (SharedStem(bits_per_value=1, aggregation="median"), "aggregation"),
        (SharedStem(bits_per_value=1, aggregation="trimmed"), "aggregation"),
        (SharedStem(aggregation="majority"), "aggregation"),
        (SharedStem(pull="push"), "pull"),
        (FixedKnowledge(targets="corners"), "targets"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(algorithm, field):
    with pytest.raises(ConfigError, match=field) as problem:
        algorithm.validate()
    # A sentence about the value that is there, not about another one.
    assert str(problem.value).startswith(f"algorithm.{field} is {getattr(algorithm, field)!r}, but must be ")


@pytest.mark.parametrize(
    "algorithm",
    [
        Kfl(noise_multiplier=1.0, clip_norm=1.0, noise_counts=True),
        SharedStem(noise_multiplier=1.0, clip_norm=1.0),
        SharedStem(pull="knowledge"),
        SharedStem(bits_per_value=1, aggregation="mean"),
        SharedStem(bits_per_value=1, aggregation="clip"),
        SharedStem(bits_per_value=2, aggregation="median"),
    ],
)
def test_settings_that_go_together_are_taken(algorithm):
    algorithm.validate()
