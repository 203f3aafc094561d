"""Every number of a cell: the values at the edge that are taken, the next ones, and what a cell makes of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.scheduling.accounts import Batteries
from kfl.wireless import Cell, CellConfig, ConstantHarvest, GainTrace, HarvestTrace, Rician, SolarHarvest
from kfl.wireless.costs import uplink_rate, upload_time
from kfl.wireless.waypoint import Waypoint

INF, TINY = math.inf, 5e-324


def above(value):
    return math.nextafter(value, INF)


def below(value):
    return math.nextafter(value, -INF)


def from_to(least, most):
    return [least, most], [below(least), above(most)]


POSITIVE = from_to(1e-12, 1e12)
BOUNDS = {
    "bandwidth_hz": POSITIVE,
    "deadline_s": POSITIVE,
    "shadowing_distance_m": POSITIVE,
    "flops_per_cycle": POSITIVE,
    "radius_m": ([1.0, 1e12], [below(1e-12), above(1e12)]),
    "min_distance_m": ([1e-12, 500.0], [below(1e-12), above(500.0)]),
    "noise_dbm_per_hz": from_to(-400.0, 400.0),
    "reference_gain_db": from_to(-400.0, 400.0),
    "max_power_dbm": from_to(-400.0, 400.0),
    "downlink_power_dbm": ([None, -400.0, 400.0], [below(-400.0), above(400.0)]),
    "path_loss_exponent": from_to(0.0, 400.0),
    "power_coefficient": from_to(0.0, 400.0),
    "channel_margin_db": from_to(0.0, 400.0),
    "round_period_s": ([None, 1.0, 1e12], [below(1.0), above(1e12)]),
    "budget_j_per_round": ([TINY, INF], [0.0, -1.0]),
    "fading_correlation": ([0.0, below(1.0)], [-TINY, 1.0]),
    "channel_error": ([0.0, below(1.0)], [-TINY, 1.0]),
    "shadowing_db": from_to(0.0, 100.0),
    "resource_blocks": ([None, 1, 10**9], [0, 10**9 + 1]),
    "cpu_frequencies_hz": ([(1e-12,), (1e9, 1e12)], [(), (below(1e-12),), (1e9, above(1e12)), (0.0, 1e9)]),
    "static_power_w": from_to(0.0, 1e4),
    "circuit_power_w": from_to(0.0, 1e4),
    "receive_power_w": from_to(0.0, 1e4),
    "tail_power_w": from_to(0.0, 1e4),
    "connect_energy_j": from_to(0.0, 1e6),
    "tail_s": from_to(0.0, 1e6),
    "amplifier_efficiency": ([TINY, 1.0], [0.0, above(1.0)]),
    "min_cpu_hz": ([None, TINY, 1e9], [0.0, above(1e9)]),
    "min_power_dbm": ([None, -400.0, below(30.0)], [below(-400.0), 30.0]),
    "battery_capacity_j": ([None, TINY, 1e6], [0.0, -1.0, INF]),
}


@pytest.mark.parametrize("field", BOUNDS)
def test_the_last_value_that_works_is_taken_and_the_next_refused(field):
    cell = CellConfig(cpu_frequencies_hz=(1e9, 2e9), max_power_dbm=30.0, radius_m=500.0, deadline_s=1.0)
    taken, refused = BOUNDS[field]
    for value in taken:
        replace(cell, **{field: value}).validate()
    nan = (1e9, math.nan) if field == "cpu_frequencies_hz" else math.nan
    for value in (*refused, nan):
        with pytest.raises(ConfigError) as problem:
            Cell.build(replace(cell, **{field: value}), 3, 0)
        assert problem.value.field == field and str(problem.value).startswith(f"{field} is {value!r}, but must be")


SUN, WALK = SolarHarvest(), Waypoint()
TRACE, GAINS = HarvestTrace(path="watts.csv"), GainTrace(path="gains.csv")
PARTS = {
    "harvest.repeat_s": (TRACE, "repeat_s", [None, TINY, 1e300], [0.0, -1.0, INF]),
    "harvest.max_gap_s": (TRACE, "max_gap_s", [None, TINY, 1e300], [0.0, -1.0, INF]),
    "fading.repeat_s": (GAINS, "repeat_s", [None, TINY, 1e300], [0.0, -1.0, INF]),
    "fading.max_gap_s": (GAINS, "max_gap_s", [None, TINY, 1e300], [0.0, -1.0, INF]),
    "fading.reference_power_dbm": (
        GAINS,
        "reference_power_dbm",
        [None, -200.0, 100.0],
        [below(-200.0), above(100.0)],
    ),
    "harvest.watts": (ConstantHarvest(), "watts", *from_to(0.0, 1e6)),
    "harvest.peak_w": (SUN, "peak_w", *from_to(0.0, 1e6)),
    "harvest.daylight_h": (SUN, "daylight_h", [TINY, 24.0], [0.0, above(24.0)]),
    "harvest.sunrise_h": (SUN, "sunrise_h", [0.0, below(24.0)], [-TINY, 24.0]),
    "harvest.start_h": (SUN, "start_h", [0.0, below(24.0)], [-TINY, 24.0]),
    "harvest.worst_panel": (SUN, "worst_panel", *from_to(0.0, 1.0)),
    "harvest.clouds": (SUN, "clouds", *from_to(0.0, 1.0)),
    "mobility.min_speed_m_per_s": (
        replace(WALK, max_speed_m_per_s=1e3),
        "min_speed_m_per_s",
        [TINY, 1e3],
        [0.0, 1001.0],
    ),
    "mobility.max_speed_m_per_s": (WALK, "max_speed_m_per_s", [0.5, 1e3], [below(0.5), above(1e3)]),
    "mobility.pause_s": (WALK, "pause_s", [0.0, 1e300], [-TINY, INF]),
    "fading.k_factor_db": (Rician(), "k_factor_db", *from_to(-100.0, 100.0)),
}


@pytest.mark.parametrize("field", PARTS)
def test_the_same_for_the_parts_of_a_cell(field):
    part, name, taken, refused = PARTS[field]
    place = field.partition(".")[0]
    cell = CellConfig(battery_capacity_j=100.0) if place == "harvest" else CellConfig()
    for value in taken:
        replace(cell, **{place: replace(part, **{name: value})}).validate()
    for value in (*refused, math.nan):
        with pytest.raises(ConfigError) as problem:
            replace(cell, **{place: replace(part, **{name: value})}).validate()
        assert problem.value.field == field


def test_the_charge_is_a_fraction_of_a_battery_that_is_there():
    battery = CellConfig(battery_capacity_j=100.0)
    for charge in (0.0, 0.5, 1.0):
        replace(battery, initial_charge=charge).validate()
    for cell in (
        replace(battery, initial_charge=-TINY),
        replace(battery, initial_charge=above(1.0)),
        CellConfig(initial_charge=0.5),
    ):
        with pytest.raises(ConfigError, match="initial_charge"):
            cell.validate()
    CellConfig(initial_charge=1.0).validate()
    with pytest.raises(ConfigError, match="battery_capacity_j"):
        CellConfig(harvest=ConstantHarvest()).validate()


def test_what_the_server_cannot_know_is_at_most_the_scattered_part():
    sight = Rician(k_factor_db=0.0)  # half of the power is scattered
    CellConfig(fading=sight, channel_error=0.5).validate()
    with pytest.raises(ConfigError, match="channel_error"):
        CellConfig(fading=sight, channel_error=above(0.5)).validate()


WHOLE = CellConfig(
    min_cpu_hz=2e8,
    static_power_w=0.25,
    circuit_power_w=0.5,
    amplifier_efficiency=0.4,
    min_power_dbm=0.0,
    connect_energy_j=3.0,
    tail_power_w=0.5,
    tail_s=10.0,
    receive_power_w=0.125,
    cpu_frequencies_hz=(1e9,),
    flops_per_cycle=4.0,
    power_coefficient=1e-27,
    max_power_dbm=30.0,
)


def test_a_device_is_described_by_what_its_costs_are_computed_from():
    printed = Cell.build(CellConfig(cpu_frequencies_hz=(1e9,), max_power_dbm=30.0), 2, 0)
    assert printed.hardware.is_paper_model
    assert set(printed.describe(1)) == {"position_m", "cpu_hz", "flops_per_cycle", "power_coefficient", "max_power_w"}
    assert printed.describe(1)["position_m"] == printed.position_m[1].tolist()
    whole = Cell.build(WHOLE, 2, 0)
    assert not whole.hardware.is_paper_model
    found = whole.describe(0)
    assert found.pop("position_m") == whole.position_m[0].tolist()
    assert found == pytest.approx(
        {
            "cpu_hz": 1e9,
            "flops_per_cycle": 4.0,
            "power_coefficient": 1e-27,
            "max_power_w": 1.0,
            "min_cpu_hz": 2e8,
            "min_power_w": 1e-3,
            "static_power_w": 0.25,
            "circuit_power_w": 0.5,
            "amplifier_efficiency": 0.4,
            "tail_j": 3.0 + 0.5 * 10.0,
            "receive_power_w": 0.125,
        }
    )
    assert whole.distance_m.tolist() == pytest.approx([math.dist((0, 0), place) for place in whole.position_m])


@pytest.mark.parametrize(
    "change",
    [
        {"static_power_w": 0.1},
        {"circuit_power_w": 0.1},
        {"min_power_dbm": -10.0},
        {"connect_energy_j": 0.1},
        {"receive_power_w": 0.1},
        {"amplifier_efficiency": 0.9},
        {"min_cpu_hz": 1e8},
        {"tail_power_w": 0.5, "tail_s": 10.0},
    ],
)
def test_one_number_makes_a_cell_of_whole_devices(change):
    assert CellConfig().printed_model and not CellConfig(**change).printed_model
    cell = Cell.build(CellConfig(**change), 3, 0)
    assert not cell.hardware.is_paper_model
    model = cell.link_state(0, 1e9, 1e4).uplink.device
    assert model.is_paper_model == ("receive_power_w" in change)  # without a downlink there is nothing to receive
    assert Cell.build(CellConfig(), 3, 0).link_state(0, 1e9, 1e4).uplink.device.is_paper_model


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("static_power_w", 0.1),
        ("circuit_power_w", 0.1),
        ("min_power_w", 0.1),
        ("tail_j", 0.1),
        ("receive_power_w", 0.1),
        ("amplifier_efficiency", 0.9),
        ("min_cpu_hz", 1e8),
    ],
)
def test_one_whole_device_among_printed_ones_makes_the_cell_whole(name, value):
    printed = Cell.build(CellConfig(cpu_frequencies_hz=(1e9,)), 3, 0)
    array = getattr(printed.hardware, name).copy()
    array[1] = value
    cell = replace(printed, hardware=replace(printed.hardware, **{name: array}))
    assert printed.hardware.is_paper_model and not cell.hardware.is_paper_model
    assert cell.describe(1)[name] == value


def test_whole_devices_cost_what_their_formulas_say():
    """Work of 8 GFLOP at 4 per cycle: 2e9 cycles, κ c³ = 8 J s², 2 s at 1 GHz and 10 s at 0.2 GHz."""
    cell = Cell.build(replace(WHOLE, deadline_s=20.0), 2, 0)
    link = cell.link_state(0, 8e9, [1e4, 0.0])
    device = link.uplink.device
    assert device.fastest_s.tolist() == pytest.approx([2.0, 2.0])
    assert link.compute_energy_j.tolist() == pytest.approx([2.0, 2.0])  # κ c f²
    assert link.uplink.upload_time_s.tolist() == pytest.approx([18.0, 18.0])
    assert device.slowest_s.tolist() == pytest.approx([10.0, 10.0])
    assert device.work_j_s2.tolist() == pytest.approx([8.0, 8.0])
    assert device.tail_j.tolist() == [8.0, 0.0]  # who sends nothing opens no connection
    assert cell.link_state(0, 8e9, [0.5, 0.0]).uplink.device.tail_j.tolist() == [8.0, 0.0]
    assert device.min_power_w == pytest.approx(1e-3)
    assert (device.static_power_w, device.circuit_power_w, device.amplifier_efficiency) == (0.25, 0.5, 0.4)
    assert device.receiving_j == 0.0  # no downlink
    loud = Cell.build(replace(WHOLE, deadline_s=20.0, downlink_power_dbm=30.0), 2, 0)
    heard = loud.link_state(0, 8e9, 1e4, broadcast_bits=1e6)
    assert heard.uplink.device.receiving_j == pytest.approx(0.125 * heard.reserved_s) and heard.reserved_s > 0


def test_a_budget_is_per_round_and_a_harvest_replaces_it():
    assert Cell.build(CellConfig(budget_j_per_round=0.5), 2, 0).budget_j(40).tolist() == [20.0, 20.0]
    config = CellConfig(harvest=ConstantHarvest(watts=2.0), battery_capacity_j=9.0, initial_charge=0.25, deadline_s=3.0)
    cell = Cell.build(config, 2, 0)
    assert cell.budget_j(10).tolist() == [60.0, 60.0]
    assert cell.harvest_j(5).tolist() == [6.0, 6.0]
    batteries = cell.batteries()
    assert (batteries.capacity_j, batteries.charge_j.tolist()) == (9.0, [2.25, 2.25])
    assert Cell.build(CellConfig(), 2, 0).batteries() is None


def test_the_broadcast_is_missed_by_whom_it_is_too_fast_for():
    cell = Cell.build(CellConfig(downlink_power_dbm=30.0), 3, 0)
    link = cell.link_state(0, 1e9, 1e4, broadcast_bits=1e6)
    everybody, bits = np.ones(3, bool), 1e6
    time_s, missed = cell.broadcast(link, everybody, bits)
    assert time_s > 0
    assert not missed.any()  # a channel that is known carries its own rate
    weak = replace(link, true_gain=link.uplink.gain * np.array([1.0, 1e-9, 1e-9]))
    same_s, missed = cell.broadcast(weak, np.array([True, True, False]), bits)
    assert missed.tolist() == [False, True, False]  # who was not chosen misses nothing
    assert same_s == pytest.approx(cell.broadcast_time(link.uplink.gain, np.array([True, True, False]), bits))
    for silent, sent in ((cell, 0.0), (Cell.build(CellConfig(), 3, 0), bits)):
        time_s, missed = silent.broadcast(weak, everybody, sent)
        assert time_s == 0
        assert missed.tolist() == [False, False, False]


def test_a_broadcast_is_heard_up_to_a_relative_1e_9_later():
    """A bit in a band of 1 Hz at a signal-to-noise ratio of 1 takes a second; the last true gains that carry it."""
    last_s = 1 + 1e-9
    gain = (2 ** (1 / last_s) - 1) * (1 + 1e-16 * np.arange(-400, 400))
    cell = Cell.build(CellConfig(downlink_power_dbm=0.0, noise_dbm_per_hz=0.0, bandwidth_hz=1.0), len(gain), 0)
    link = replace(cell.with_gains(cell.link_state(0, 1.0, 1.0), np.ones(len(gain)), 0.0), true_gain=gain)
    time_s, missed = cell.broadcast(link, np.ones(len(gain), bool), 1.0)
    takes_s = upload_time(1.0, uplink_rate(1.0, 1e-3, gain, 1.0, 1e-3))
    assert time_s == 1.0 and (takes_s == last_s).any() and missed.any()
    assert missed.tolist() == (takes_s > last_s).tolist()


def test_one_bit_of_a_broadcast_takes_its_time():
    """At a signal-to-noise ratio of 1 in a band of 1 Hz: a second for each bit."""
    config = CellConfig(downlink_power_dbm=0.0, noise_dbm_per_hz=0.0, bandwidth_hz=1.0)
    cell, gain = Cell.build(config, 2, 0), np.array([1.0, 3.0])
    assert cell.broadcast_time(gain, np.array([True, True]), 1.0) == pytest.approx(1.0)
    assert cell.broadcast_time(gain, np.array([False, True]), 1.0) == pytest.approx(0.5)
    assert cell.broadcast_time(gain, np.array([False, False]), 1.0) == 0.0
    link = replace(cell.with_gains(cell.link_state(0, 1.0, 1.0), gain, 0.0), true_gain=np.array([0.9, 3.0]))
    time_s, missed = cell.broadcast(link, np.array([True, True]), 1.0)
    assert (time_s, missed.tolist()) == (1.0, [True, False])


def test_who_has_no_share_loses_no_upload():
    link = Cell.build(CellConfig(), 3, 0).link_state(0, 1e9, 1e4)
    share, power_w = np.array([0.5, 0.0, 0.5]), np.array([1.0, 1.0, 0.0])
    assert link.outage(share, power_w, link.uplink.upload_time_s).tolist() == [False, False, True]
    assert link.outage(share / 1e3, power_w, link.uplink.upload_time_s).tolist() == [False, False, True]


def test_a_cell_reckons_in_floats_whatever_numbers_it_is_given():
    """Work beyond every integer, a clock and an upload in integers."""
    cell = Cell.build(replace(WHOLE, cpu_frequencies_hz=(10**9,), min_cpu_hz=10**8), 2, 0)
    link = cell.link_state(0, 10**20, 20480)
    assert cell.hardware.cpu_hz.dtype == link.uplink.payload_bits.dtype == np.float64
    assert link.uplink.device.work_j_s2.dtype == np.float64
    assert link.uplink.device.work_j_s2.tolist() == pytest.approx([1e-27 * 2.5e19**3] * 2)


def test_work_beyond_all_bounds_costs_every_joule():
    link = Cell.build(WHOLE, 1, 0).link_state(0, 1e120, 1e4)
    assert link.uplink.device.work_j_s2.tolist() == [INF]
    assert link.uplink.upload_time_s[0] < 0


def test_batteries_begin_with_a_charge_and_no_history():
    batteries = Batteries.charged(8.0, 0.25, 3)
    assert batteries.charge_j.tolist() == [2.0] * 3
    assert batteries.harvested_j.tolist() == batteries.wasted_j.tolist() == [0.0] * 3
    assert batteries.empty_rounds.tolist() == [0] * 3
    assert batteries.empty_rounds.dtype == np.int64  # rounds are counted


def test_a_plan_may_use_the_last_joule_and_a_relative_1e_9_more():
    batteries = Batteries.charged(1e3, 1.0, 4)
    last = 1e3 * (1 + 1e-9)
    needed = np.array([1e3, 1e3 * (1 + 0.7e-9), last, above(last)])
    assert batteries.running_dry(needed).tolist() == [False, False, False, True]


def test_a_device_runs_dry_when_a_round_needs_more_than_its_charge():
    batteries = Batteries(10.0, np.array([1.0, 1.0, 1.0, 0.0]), *[np.zeros(4)] * 2, np.zeros(4, dtype=np.int64))
    assert batteries.running_dry(np.array([1.0, 1.0 + 1e-10, 1.0 + 1e-8, 0.0])).tolist() == [False, False, True, False]
    after = batteries.after(
        np.array([3.0, 0.5, 0.0, 0.0]), np.array([1.0, 0.0, 20.0, 0.0]), np.array([0, 0, 0, 1], bool)
    )
    assert after.charge_j.tolist() == [1.0, 0.5, 10.0, 0.0]  # a meter may say more than there was; no debt is kept
    assert after.wasted_j.tolist() == [0.0, 0.0, 11.0, 0.0]
    assert after.harvested_j.tolist() == [1.0, 0.0, 20.0, 0.0]
    assert after.empty_rounds.tolist() == [0, 0, 0, 1]
