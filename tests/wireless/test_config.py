import dataclasses
import math

import pytest

from kfl.core.errors import ConfigError
from kfl.wireless import PRESETS, CellConfig

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid(name: str) -> None:
    PRESETS[name].validate()


def test_infinite_budget_means_none() -> None:
    CellConfig(budget_j_per_round=INF).validate()


def test_rounds_follow_each_other_at_the_deadline_unless_a_period_is_given() -> None:
    assert CellConfig(deadline_s=2.0).period_s == 2.0 and CellConfig(round_period_s=600.0).period_s == 600.0


def test_no_fading_has_no_fading_options() -> None:
    with pytest.raises(ConfigError, match="fading_correlation"):
        CellConfig(fading="none", fading_correlation=0.5).validate()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bandwidth_hz": -1.0}, "bandwidth_hz is -1.0, but must be a positive number of hertz, from 1e-12 to 1e+12."),
        ({"radius_m": INF}, "radius_m is inf, but must be a positive number of meters, from 1e-12 to 1e+12."),
        (
            {"deadline_s": 1e13},
            "deadline_s is 10000000000000.0, but must be a positive number of seconds, from 1e-12 to 1e+12.",
        ),
        ({"power_coefficient": -1.0}, "power_coefficient is -1.0, but must be a number from 0 to 400."),
        ({"channel_margin_db": 401.0}, "channel_margin_db is 401.0, but must be a number from 0 to 400."),
        ({"static_power_w": 1e5}, "static_power_w is 100000.0, but must be from 0 to 10,000 watts."),
        ({"connect_energy_j": 2e6}, "connect_energy_j is 2000000.0, but must be from 0 to 1,000,000 joules."),
        ({"tail_s": 2e6}, "tail_s is 2000000.0, but must be from 0 to 1,000,000 seconds."),
        ({"min_power_dbm": 30.0}, "min_power_dbm is 30.0, but must be at least -400 and below max_power_dbm, 30."),
        (
            {"min_cpu_hz": 9e8},
            "min_cpu_hz is 900000000.0, but must be above 0 and at most 8.5e+08, the smallest of cpu_frequencies_hz.",
        ),
    ],
)
def test_the_sentence_says_what_would_be_right(changes: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CellConfig(), **changes).validate()
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [("fading", "rican", "rician"), ("harvest", "sunn", "sun"), ("mobility", "waypont", "waypoint")],
)
def test_a_part_that_is_not_there_is_answered_with_those_that_are(field: str, value: str, near: str) -> None:
    """A CellConfig may be made with any word; using it raises."""
    with pytest.raises(ConfigError) as error:
        CellConfig(**{field: value}).validate()
    assert error.value.field == field and f"did you mean {near}?" in str(error.value)
