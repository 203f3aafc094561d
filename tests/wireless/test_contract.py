"""What every channel model and every model of movement promises. A new one joins by being registered."""

from __future__ import annotations

import dataclasses
import inspect
import tempfile
from pathlib import Path

import numpy as np
import pytest

from kfl.core.config import from_table, to_table
from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.wireless import CHANNELS, MOBILITIES, Cell, CellConfig, Channel, GainTrace, Mobility

every = pytest.mark.parametrize("cls", CHANNELS.values(), ids=CHANNELS.keys())


@pytest.fixture(scope="module")
def made():
    """A model of each kind; a trace needs a file."""
    path = Path(tempfile.mkdtemp()) / "gains.csv"
    path.write_text("round,device,gain_db\n0,*,-90\n0,1,-70.5\n2,0,-80\n3,*,-60\n4,3,-50\n")
    return lambda cls: GainTrace(path=str(path)) if cls is GainTrace else cls()


CHANGES = (
    {},
    {"fading_correlation": 0.7},
    {"channel_error": 0.1},
    {"shadowing_db": 8.0},
    {"mobility": "waypoint", "round_period_s": 60.0},
    {"mobility": "waypoint", "round_period_s": 60.0, "shadowing_db": 8.0, "fading_correlation": 0.7},
)


def cells(model):
    """The model as it is, with memory, an error of the server, shadowing and movement, where it allows them."""
    for changes in CHANGES:
        config = CellConfig(fading=model, **changes)
        try:
            config.validate()
        except ConfigError:
            continue
        yield Cell.build(config, 6, seed=3)


@every
def test_a_round_is_its_address_whatever_was_asked_before(cls, made):
    for cell in cells(made(cls)):
        previous = None
        for t in range(6):
            walked, asked = cell.gains(t, previous), cell.gains(t)
            assert (walked.true_gain == asked.true_gain).all() and (walked.known_gain == asked.known_gain).all()
            assert (walked.position_m == asked.position_m).all() and walked.fading.round == t
            assert all((walked.fading.memory[name] == array).all() for name, array in asked.fading.memory.items())
            previous = walked.fading
        assert (cell.gains(2, previous).true_gain == cell.gains(2).true_gain).all(), "the future is no use"
        skipped = cell.gains(5, cell.gains(1).fading)
        assert (skipped.true_gain == cell.gains(5).true_gain).all(), "rounds may be left out"


@every
def test_gains_are_finite_and_not_negative_and_places_are_points(cls, made):
    for cell in cells(made(cls)):
        gains = cell.gains(4)
        for values in (gains.true_gain, gains.known_gain):
            assert values.shape == (6,) and np.isfinite(values).all() and (values >= 0).all()
        assert gains.position_m.shape == (6, 2) and np.isfinite(gains.position_m).all()


@every
def test_more_devices_change_nobody_and_another_seed_does(cls, made):
    for cell in cells(made(cls)):
        few, many = Cell.build(cell.config, 4, seed=1), Cell.build(cell.config, 40, seed=1)
        assert (few.gains(3).true_gain == many.gains(3).true_gain[:4]).all()
        other = Cell.build(cell.config, 4, seed=2).gains(3)
        assert (few.gains(3).true_gain == other.true_gain).any() == (cls is GainTrace), "a trace has no seed"


@every
def test_the_mean_power_of_fading_is_one(cls, made):
    config = CellConfig(fading=made(cls))
    power = np.abs(config.channel.fading(config, 0, 5, 40_000).coefficient) ** 2
    assert power.mean() == pytest.approx(1.0, abs=0.02)


@every
def test_what_the_server_expects_is_true_on_average(cls, made):
    for cell in cells(made(cls)):
        alike = {"radius_m": 1.0, "reference_gain_db": 0.0, "shadowing_db": 0.0, "mobility": "none"}
        config = dataclasses.replace(cell.config, **alike)
        gains = Cell.build(config, 40_000, seed=0).gains(2)
        high = gains.known_gain >= np.median(gains.known_gain)
        for part in (high, ~high):
            if part.any():
                assert gains.true_gain[part].mean() == pytest.approx(gains.known_gain[part].mean(), rel=0.03)


@every
def test_it_is_written_and_read_by_its_name(cls, made):
    config = CellConfig(fading=made(cls))
    assert (cls is GainTrace or CellConfig(fading=cls.name) == config) and cls.__doc__
    assert from_table(CellConfig, to_table(config)) == config
    experiment = Experiment(radio=config)
    assert Experiment.from_toml(experiment.to_toml()).radio == config
    plain = config.channel.to_plain()
    assert Channel.from_plain(plain, "radio.fading") == config.channel
    if not dataclasses.fields(cls):
        assert plain == cls.name


every_mobility = pytest.mark.parametrize("cls", MOBILITIES.values(), ids=MOBILITIES.keys())


@every_mobility
def test_places_are_points_of_the_cell_and_a_function_of_seed_and_round(cls):
    cell = CellConfig(mobility=cls(), round_period_s=100.0, min_distance_m=20.0)
    cell.validate()
    start_m = Cell.build(cell, 30, seed=4).position_m
    previous = None
    for t in range(30):
        motion = cls().move(cell, 4, t, start_m, previous)
        assert (motion.position_m == cls().move(cell, 4, t, start_m).position_m).all()
        assert (motion.position_m[:3] == cls().move(cell, 4, t, start_m[:3]).position_m).all()
        distance_m = np.hypot(*motion.position_m.T)
        assert (distance_m >= 20 * (1 - 1e-12)).all() and (distance_m <= 500 * (1 + 1e-12)).all()
        previous = motion if t % 3 else previous
    assert (cls().move(cell, 4, 0, start_m).position_m == start_m).all(), "a run begins where devices are placed"
    moved = (cls().move(cell, 4, 29, start_m).position_m != start_m).any(axis=1)
    assert not moved.any() if cls.stays else moved.all()


@every_mobility
def test_a_mobility_is_written_and_read_by_its_name(cls):
    config = CellConfig(mobility=cls())
    assert CellConfig(mobility=cls.name) == config and cls.__doc__
    experiment = Experiment(radio=config)
    assert Experiment.from_toml(experiment.to_toml()).radio == config
    assert Mobility.from_plain(config.movement.to_plain(), "radio.mobility") == config.movement


@pytest.mark.parametrize("cls", [*CHANNELS.values(), *MOBILITIES.values()])
def test_every_field_is_an_option_with_a_docstring(cls):
    source = inspect.getsource(cls)
    for field in dataclasses.fields(cls):
        assert f"    {field.name}: " in source
        after = source.split(f"    {field.name}: ")[1].split("\n")[1]
        assert after.strip().startswith('"""'), f"{field.name} says what it is"
