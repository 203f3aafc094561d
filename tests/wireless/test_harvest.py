"""What every source of energy promises, and what each of them gives, against integrals done otherwise."""

from __future__ import annotations

import dataclasses
import inspect
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from kfl.core.errors import ConfigError, KflError
from kfl.experiment import Experiment
from kfl.scheduling.accounts import Batteries
from kfl.wireless import HARVESTS, Cell, CellConfig, ConstantHarvest, Harvest, HarvestTrace, SolarHarvest

DAY_S = 86_400.0
every = pytest.mark.parametrize("cls", HARVESTS.values(), ids=HARVESTS.keys())


@pytest.fixture
def csv(tmp_path):
    """A day of watts for six devices."""
    path = tmp_path / "watts.csv"
    path.write_text("time_s,device,watts\n0,*,0\n30000,*,0.2\n40000,2,0.7\n60000,*,0\n")
    return path


@pytest.fixture
def source(cls, csv):
    return cls(path=str(csv), repeat_s=DAY_S) if cls is HarvestTrace else cls()


def cell_with(harvest, **changes) -> CellConfig:
    config = CellConfig(harvest=harvest, battery_capacity_j=1e4, **{"round_period_s": 600.0, **changes})
    config.validate()
    return config


@every
def test_a_round_is_a_function_of_its_address(source):
    cell = Cell.build(cell_with(source), 6, seed=3)
    forth = [cell.harvest_j(t) for t in range(200)]
    for t in (150, 3, 60):
        again = cell.harvest_j(t)
        assert (again == forth[t]).all() and again.shape == (6,)
        assert np.isfinite(again).all() and (again >= 0).all()


@every
def test_the_mean_is_the_mean_over_many_days(source):
    cell, rounds = Cell.build(cell_with(source, round_period_s=3600.0), 6, seed=3), 24 * 600
    mean = sum(cell.harvest_j(t) for t in range(rounds)) / rounds
    told = cell.config.source.mean_j(cell.config, 3, rounds, 6)
    assert mean == pytest.approx(told, rel=0.05)
    if source.fills:
        assert (cell.budget_j(rounds) == told * rounds).all()


@every
def test_it_is_written_and_read_by_its_name(source):
    config = cell_with(source)
    experiment = Experiment(radio=config)
    assert Experiment.from_toml(experiment.to_toml()).radio == config and type(source).__doc__
    assert Harvest.from_plain(source.to_plain(), "radio.harvest") == source


@every
def test_every_field_is_an_option_with_a_docstring(cls):
    text = inspect.getsource(cls)
    for field in dataclasses.fields(cls):
        after = text.split(f"    {field.name}: ")[1].split("\n")[1]
        assert after.strip().startswith('"""'), f"{field.name} says what it is"


def test_a_harvest_of_none_leaves_the_digest_as_it_was():
    plain = Experiment(radio="paper-mnist")
    spelled = dataclasses.replace(plain.resolved(), radio=dataclasses.replace(plain.cell_config, harvest="none"))
    assert spelled.digest() == plain.digest()
    battery = dataclasses.replace(plain.cell_config, battery_capacity_j=3.0)
    assert dataclasses.replace(plain, radio=battery).digest() != plain.digest()


@settings(max_examples=40)
@given(
    period=st.floats(60.0, 4e5),
    t=st.integers(0, 50),
    sunrise=st.floats(0, 23.9),
    daylight=st.floats(0.5, 24),
    start=st.floats(0, 23.9),
)
def test_sun_is_the_integral_of_its_formula(period, t, sunrise, daylight, start):
    sun = SolarHarvest(peak_w=0.3, sunrise_h=sunrise, daylight_h=daylight, start_h=start)
    cell = cell_with(sun, round_period_s=period)

    def watts(time_s: float) -> float:  # of a well placed panel; straight from the docstring
        since_h = time_s / 3600 + start - sunrise
        day, hour = divmod(since_h, 24)
        light = np.sin(np.pi * hour / daylight) if hour < daylight else 0.0
        return 0.3 * sun.clearness(7, int(day)) * light

    low, high = t * period, (t + 1) * period
    days = range(int((low / 3600 + start - sunrise) // 24), int((high / 3600 + start - sunrise) // 24) + 1)
    edges = [3600 * (day * 24 + sunrise - start + part) for day in days for part in (0, daylight, 24)]
    edges = [low, *sorted(edge for edge in set(edges) if low < edge < high), high]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if b - a > 1e-7]  # shorter ones are one edge, rounded twice
    pieces = [quad(watts, a, b, epsabs=1e-9, epsrel=1e-11)[0] for a, b in spans]
    expected = sum(pieces) * sun.panels(7, 3)
    assert cell.source.energy_j(cell, 7, t, 3) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_first_half_second_of_light_is_harvested():
    """From the sunrise on, and nothing in the half second before it or after the sunset."""
    sun = SolarHarvest(peak_w=1e6, sunrise_h=6.0, daylight_h=2.0, start_h=6.0, worst_panel=1.0, clouds=0.0)
    cell = cell_with(sun, deadline_s=0.5, round_period_s=0.5)
    light_s = 7200 / np.pi * (1 - np.cos(np.pi * 0.5 / 7200))
    sunset, next_sunrise = 2 * 7200, 2 * 86_400
    for t in (0, sunset - 1, next_sunrise):
        assert sun.energy_j(cell, 0, t, 1) == pytest.approx([1e6 * light_s], rel=1e-3)
    for t in (sunset, next_sunrise - 1):
        assert sun.energy_j(cell, 0, t, 1).tolist() == [0.0]


def test_the_mean_of_the_sun_is_its_formula():
    """2/π of the daylight's share of the day, half of the clouds, and the panel's place."""
    sun = SolarHarvest(peak_w=0.3, daylight_h=8.0, worst_panel=0.2, clouds=0.5)
    cell = cell_with(sun, round_period_s=600.0)
    expected = 0.3 * (1 - 0.25) * (8 / 24) * (2 / np.pi) * 600.0 * sun.panels(5, 4)
    assert sun.mean_j(cell, 5, 10, 4) == pytest.approx(expected)


def test_panels_and_clouds_stay_within_their_ranges_and_belong_to_device_and_day():
    sun = SolarHarvest(worst_panel=0.4, clouds=0.5)
    few, many = sun.panels(1, 4), sun.panels(1, 4000)
    assert (few == many[:4]).all() and many.min() >= 0.4 and many.max() <= 1 and many.mean() == pytest.approx(0.7, 0.02)
    days = np.array([sun.clearness(1, day) for day in range(2000)])
    assert days.min() >= 0.5 and days.max() <= 1 and days.mean() == pytest.approx(0.75, rel=0.02)


@settings(max_examples=30)
@given(data=st.data())
def test_a_trace_is_integrated_as_a_sum_over_seconds_is(tmp_path_factory, data):
    times = sorted(data.draw(st.lists(st.integers(1, 999), max_size=30)))
    rows = [(0, "*", 1)] + [(t, data.draw(st.sampled_from("012*")), data.draw(st.integers(0, 9))) for t in times]
    path = tmp_path_factory.mktemp("trace") / "watts.csv"
    path.write_text("time_s,device,watts\n" + "".join(f"{t},{k},{w}\n" for t, k, w in rows))
    period = data.draw(st.integers(1, 400))
    cell = cell_with(HarvestTrace(str(path)), deadline_s=1.0, round_period_s=float(period))
    watts = np.zeros((3, 1300))  # one value per second
    for t, k, w in rows:
        watts[slice(None) if k == "*" else int(k), t:] = w
    for index in data.draw(st.lists(st.integers(0, 1200 // period - 1), min_size=1, max_size=8)):
        expected = watts[:, index * period : (index + 1) * period].sum(axis=1)
        assert cell.source.energy_j(cell, 0, index, 3) == pytest.approx(expected)
    assert cell.source.mean_j(cell, 0, 1200 // period, 3) * (1200 // period) == pytest.approx(
        watts[:, : 1200 // period * period].sum(axis=1)
    )


def test_a_trace_repeats_and_refuses_gaps_as_it_is_told(csv):
    """The file has no row between 0 s and 30,000 s."""
    watts = HarvestTrace(str(csv), repeat_s=70_000.0)
    again = cell_with(watts, round_period_s=35_000.0)
    first, third = (watts.energy_j(again, 0, t, 6) for t in (0, 2))
    assert first.tolist() == third.tolist() == [5_000 * 0.2] * 6
    assert watts.energy_j(again, 0, 1, 6) == pytest.approx(
        [25_000 * 0.2] * 2 + [5_000 * 0.2 + 20_000 * 0.7] + [5e3] * 3
    )
    HarvestTrace(str(csv), max_gap_s=30_000.0).energy_j(cell_with(HarvestTrace(str(csv))), 0, 0, 6)
    with pytest.raises(KflError, match="max_gap_s"):
        HarvestTrace(str(csv), max_gap_s=29_999.0).energy_j(cell_with(HarvestTrace(str(csv))), 0, 0, 6)


@pytest.mark.parametrize("watts", [0.0, 1e6])
def test_the_least_and_the_most_watts_of_a_trace(tmp_path, watts):
    path = tmp_path / "watts.csv"
    path.write_text(f"time_s,device,watts\n0,*,{watts}\n")
    assert Cell.build(cell_with(HarvestTrace(str(path))), 1, seed=0).harvest_j(0).tolist() == [600 * watts]


def test_nothing_is_harvested_of_nothing_and_a_constant_is_watts_times_seconds():
    cell = cell_with("none")
    assert cell.source.energy_j(cell, 0, 3, 2).tolist() == cell.source.mean_j(cell, 0, 3, 2).tolist() == [0.0, 0.0]
    cell = cell_with(ConstantHarvest(watts=0.5), round_period_s=60.0)
    assert cell.source.energy_j(cell, 0, 3, 2).tolist() == cell.source.mean_j(cell, 0, 3, 2).tolist() == [30.0, 30.0]


def test_the_defaults_are_those_that_are_documented():
    sun = SolarHarvest()
    assert (sun.peak_w, sun.sunrise_h, sun.daylight_h, sun.start_h) == (0.1, 6.0, 12.0, 0.0)
    assert (sun.worst_panel, sun.clouds, ConstantHarvest().watts) == (0.3, 0.7, 0.01)
    assert HarvestTrace() == HarvestTrace(path="", repeat_s=None, max_gap_s=None)
    assert [name for name, cls in HARVESTS.items() if not cls.fills] == ["none"]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"initial_charge": 0.5}, "initial_charge", "left out where there is no battery_capacity_j"),
        ({"harvest": "sun"}, "battery_capacity_j", "given where harvest is 'sun'"),
        ({"harvest": "moon"}, "harvest", "one of none, constant, sun, trace"),
        ({"harvest": "trace", "battery_capacity_j": 5.0}, "harvest.path", "a CSV file"),
    ],
)
def test_what_does_not_go_together_is_named(changes, field, words):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CellConfig(), **changes).validate()
    assert error.value.field == field and words in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("time_s,device,watts\n0,*,-1\n", "watts is '-1', but must be a number of watts, 0 or more"),
        ("time_s,device,watts\n0,*,5e6\n", "at most 1e+06"),
        ("time_s,device,power\n0,*,1\n", "no column watts"),
    ],
)
def test_a_bad_trace_is_answered_with_a_sentence(tmp_path, content, words):
    path = tmp_path / "watts.csv"
    path.write_text(content)
    with pytest.raises(KflError) as error:
        Cell.build(cell_with(HarvestTrace(str(path))), 2, seed=0).budget_j(5)
    assert words in str(error.value) and str(path) in str(error.value)


@settings(max_examples=60)
@given(data=st.data(), capacity=st.floats(0.1, 100), fraction=st.floats(0, 1))
def test_no_joule_of_a_battery_is_lost_or_made(data, capacity, fraction):
    batteries = Batteries.charged(capacity, fraction, 3)
    first, spent = batteries.charge_j, np.zeros(3)
    for _ in range(data.draw(st.integers(1, 20))):
        use = np.array(data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=3))) * batteries.charge_j
        income = np.array(data.draw(st.lists(st.floats(0, 2 * capacity), min_size=3, max_size=3)))
        batteries, spent = batteries.after(use, income, use > capacity), spent + use
        assert (batteries.charge_j >= 0).all() and (batteries.charge_j <= capacity).all()
    assert batteries.charge_j + spent + batteries.wasted_j == pytest.approx(first + batteries.harvested_j)
