"""LG-FedAvg beyond its twin: which part can be shared, and what is said where none can."""

from __future__ import annotations

import pytest
from torch import nn

from kfl.algorithms import LgFedAvg
from kfl.core.errors import ConfigError, ModelError
from kfl.models import SplitModel, fleet_from_modules


def fleet(first, heads):
    """Two networks; their first layers have these widths, and their heads a bias or not."""
    return fleet_from_modules(
        [
            SplitModel(nn.Sequential(nn.Linear(6, width), nn.Linear(width, 5)), nn.Linear(5, 3, bias=bias))
            for width, bias in zip(first, heads, strict=True)
        ],
        2,
        (6,),
        3,
    )


@pytest.mark.parametrize(
    ("share", "first", "heads", "missing"),
    [
        ("head", (4, 7), (True, True), None),
        ("head", (4, 4), (True, False), "heads"),
        ("stem", (4, 4), (True, False), None),
        ("stem", (4, 7), (True, True), "first layers"),
    ],
)
def test_the_part_that_is_averaged_must_be_alike_and_only_that(share, first, heads, missing):
    algorithm = LgFedAvg(share=share)
    if missing is None:
        algorithm.check_models(fleet(first, heads))
        return
    words = rf"averages the {missing} of the networks.*whose {missing} are alike, or share the other part"
    with pytest.raises(ModelError, match=words):
        algorithm.check_models(fleet(first, heads))


def test_there_are_two_parts():
    with pytest.raises(ConfigError, match=r"algorithm\.share is 'neck', but must be one of head, stem"):
        LgFedAvg(share="neck").validate()
