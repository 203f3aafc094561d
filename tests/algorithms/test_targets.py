"""Fixed targets of features: norms, corners of a simplex, draws by name."""

from __future__ import annotations

import pytest
import torch

from kfl.algorithms.targets import fixed_targets
from kfl.core.errors import ConfigError


@pytest.mark.parametrize("kind", ["random", "simplex"])
@pytest.mark.parametrize(("classes", "features"), [(3, 40), (10, 64), (6, 6)])
def test_every_target_has_the_norm_that_was_asked_for_and_no_negative_coordinate(kind, classes, features):
    for scale in (0.5, 3.0):
        targets = fixed_targets(kind, classes, features, scale, seed=1)
        assert targets.shape == (classes, features) and bool((targets >= 0).all())
        lengths = targets.norm(dim=1)
        if kind == "simplex" or features > classes:  # of few numbers, all may be negative before the ReLU
            torch.testing.assert_close(lengths, torch.full((classes,), scale))


@pytest.mark.parametrize(("classes", "features"), [(3, 7), (10, 64), (6, 6)])
def test_corners_of_the_simplex_are_equally_far_apart_and_share_all_features(classes, features):
    targets = fixed_targets("simplex", classes, features, 2.0, seed=3)
    apart = torch.cdist(targets, targets)[~torch.eye(classes, dtype=torch.bool)]
    torch.testing.assert_close(apart, torch.full((classes * (classes - 1),), 2.0 * 2**0.5))
    owners = (targets > 0).sum(0)
    assert owners.tolist() == [1] * features  # each feature belongs to one class
    own = (targets > 0).sum(1)
    assert int(own.max()) - int(own.min()) <= 1


@pytest.mark.parametrize("kind", ["random", "simplex"])
def test_targets_follow_from_the_seed_alone(kind):
    torch.manual_seed(1)
    first = fixed_targets(kind, 4, 30, 1.0, seed=5)
    torch.manual_seed(2)
    assert fixed_targets(kind, 4, 30, 1.0, seed=5).equal(first)
    assert not fixed_targets(kind, 4, 30, 1.0, seed=6).equal(first)


def test_random_targets_are_normal_draws_after_a_relu():
    """Half of the numbers are zero, and the others are half-normal: their mean square is 1/2 of all, before scaling."""
    targets = fixed_targets("random", 8, 2000, 1.0, seed=0)
    assert float((targets == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    positive = targets[targets > 0]
    assert float(positive.mean() / positive.square().mean().sqrt()) == pytest.approx((2 / torch.pi) ** 0.5, rel=0.02)


def test_a_draw_of_zeros_is_a_target_at_zero():
    """With one feature, half of the classes draw a negative number."""
    targets = fixed_targets("random", 20, 1, 3.0, seed=0)
    assert sorted(set(targets.flatten().tolist())) == [0.0, 3.0]


def test_a_simplex_needs_as_many_features_as_classes():
    with pytest.raises(ConfigError, match=r"random: 5 corners of a simplex need 5 features, not 4") as problem:
        fixed_targets("simplex", 5, 4, 1.0, seed=0)
    assert problem.value.field == "algorithm.targets"
    assert fixed_targets("random", 5, 4, 1.0, seed=0).shape == (5, 4)
