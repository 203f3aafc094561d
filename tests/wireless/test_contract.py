"""What every channel model promises. A new one joins by being registered in CHANNELS."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from kfl.core.config import from_table, to_table
from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.wireless import CHANNELS, Cell, CellConfig, Channel

every = pytest.mark.parametrize("cls", CHANNELS.values(), ids=CHANNELS.keys())


def cells(cls):
    """The model as it is, with memory and with an error of the server, where it allows them."""
    for changes in ({}, {"fading_correlation": 0.7}, {"channel_error": 0.2}):
        config = CellConfig(fading=cls(), **changes)
        try:
            config.validate()
        except ConfigError:
            continue
        yield Cell.build(config, 6, seed=3)


@every
def test_a_round_is_its_address_whatever_was_asked_before(cls):
    for cell in cells(cls):
        previous = None
        for t in range(6):
            walked, asked = cell.gains(t, previous), cell.gains(t)
            assert (walked.true_gain == asked.true_gain).all() and (walked.known_gain == asked.known_gain).all()
            assert (walked.position_m == asked.position_m).all() and walked.fading.round == t
            previous = walked.fading
        assert (cell.gains(2, previous).true_gain == cell.gains(2).true_gain).all(), "the future is no use"


@every
def test_gains_are_finite_and_not_negative_and_places_are_points(cls):
    for cell in cells(cls):
        gains = cell.gains(4)
        for values in (gains.true_gain, gains.known_gain):
            assert values.shape == (6,) and np.isfinite(values).all() and (values >= 0).all()
        assert gains.position_m.shape == (6, 2) and np.isfinite(gains.position_m).all()


@every
def test_more_devices_change_nobody_and_another_seed_does(cls):
    config = CellConfig(fading=cls())
    few, many = Cell.build(config, 4, seed=1), Cell.build(config, 40, seed=1)
    assert (few.gains(3).true_gain == many.gains(3).true_gain[:4]).all()
    assert not (few.gains(3).true_gain == Cell.build(config, 4, seed=2).gains(3).true_gain).any()


@every
def test_the_mean_power_of_fading_is_one(cls):
    config = CellConfig(fading=cls())
    power = np.abs(config.channel.fading(config, 0, 5, 40_000).coefficient) ** 2
    assert power.mean() == pytest.approx(1.0, abs=0.02)


@every
def test_what_the_server_expects_is_true_on_average(cls):
    for cell in cells(cls):
        config = dataclasses.replace(cell.config, radius_m=1.0, reference_gain_db=0.0)
        gains = Cell.build(config, 40_000, seed=0).gains(2)
        high = gains.known_gain >= np.median(gains.known_gain)
        for part in (high, ~high):
            if part.any():
                assert gains.true_gain[part].mean() == pytest.approx(gains.known_gain[part].mean(), rel=0.03)


@every
def test_it_is_written_and_read_by_its_name(cls):
    config = CellConfig(fading=cls())
    assert CellConfig(fading=cls.name) == config and cls.__doc__
    assert from_table(CellConfig, to_table(config)) == config
    experiment = Experiment(radio=config)
    assert Experiment.from_toml(experiment.to_toml()).radio == config
    plain = config.channel.to_plain()
    assert Channel.from_plain(plain, "radio.fading") == config.channel
    if not dataclasses.fields(cls):
        assert plain == cls.name


@every
def test_every_field_is_an_option_with_a_docstring(cls):
    source = inspect.getsource(cls)
    for field in dataclasses.fields(cls):
        assert f"    {field.name}: " in source
        after = source.split(f"    {field.name}: ")[1].split("\n")[1]
        assert after.strip().startswith('"""'), f"{field.name} says what it is"
