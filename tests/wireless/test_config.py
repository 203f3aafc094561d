import dataclasses
import math

import pytest

from kfl.core.errors import ConfigError
from kfl.wireless import PRESETS, Cell, CellConfig

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid(name: str) -> None:
    PRESETS[name].validate()


def test_infinite_budget_means_none() -> None:
    CellConfig(budget_j_per_round=INF).validate()


def test_rounds_follow_each_other_at_the_deadline_unless_a_period_is_given() -> None:
    assert CellConfig(deadline_s=2.0).period_s == 2.0 and CellConfig(round_period_s=600.0).period_s == 600.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[
            (f, bad)
            for f in ("bandwidth_hz", "radius_m", "min_distance_m", "deadline_s", "flops_per_cycle")
            for bad in (0.0, -1.0, NAN, INF)
        ],
        *[(f, bad) for f in ("noise_dbm_per_hz", "max_power_dbm", "reference_gain_db") for bad in (NAN, INF, 1e4)],
        *[(f, bad) for f in ("path_loss_exponent", "power_coefficient", "channel_margin_db") for bad in (-1.0, NAN)],
        *[(f, bad) for f in ("fading_correlation", "channel_error") for bad in (-0.1, 1.0, NAN)],
        *[("round_period_s", bad) for bad in (0.0, 0.9, NAN, INF)],
        ("budget_j_per_round", 0.0),
        ("budget_j_per_round", NAN),
        ("downlink_power_dbm", NAN),
        ("min_distance_m", 501.0),
        ("cpu_frequencies_hz", ()),
        ("cpu_frequencies_hz", (1e9, 0.0)),
        ("cpu_frequencies_hz", (1e9, NAN)),
        ("fading", "no-such-model"),
        ("resource_blocks", 0),
        *[
            (f, bad)
            for f in ("static_power_w", "circuit_power_w", "receive_power_w", "tail_power_w", "tail_s")
            for bad in (-0.1, NAN, INF, 2e6)
        ],
        *[("connect_energy_j", bad) for bad in (-1.0, NAN, INF)],
        *[("amplifier_efficiency", bad) for bad in (0.0, -0.3, 1.1, 35.0, NAN)],
        *[("min_cpu_hz", bad) for bad in (0.0, -1e9, 0.9e9, NAN, INF)],
        *[("min_power_dbm", bad) for bad in (30.0, 31.0, -500.0, NAN)],
    ],
)
def test_a_bad_value_is_named(field: str, value: object) -> None:
    radio = dataclasses.replace(CellConfig(), **{field: value})
    with pytest.raises(ConfigError) as error:
        radio.validate()
    assert error.value.field == field
    assert f"{field} is {value!r}, but must be" in str(error.value)
    with pytest.raises(ConfigError):
        Cell.build(radio, 3, 0)


def test_no_fading_has_no_fading_options() -> None:
    with pytest.raises(ConfigError, match="fading_correlation"):
        CellConfig(fading="none", fading_correlation=0.5).validate()


def test_a_cell_is_printed_until_one_field_of_the_whole_device_is_set() -> None:
    assert CellConfig().printed_model and PRESETS["paper-cifar10"].printed_model
    whole = {
        "min_cpu_hz": 1e8,
        "static_power_w": 0.1,
        "amplifier_efficiency": 0.4,
        "circuit_power_w": 0.2,
        "min_power_dbm": -40.0,
        "connect_energy_j": 0.1,
        "receive_power_w": 0.2,
        "tail_power_w": 0.5,
        "tail_s": 10.0,
    }
    for name, value in whole.items():
        config = dataclasses.replace(CellConfig(), **{name: value})
        config.validate()
        assert not config.printed_model


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
