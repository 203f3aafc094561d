"""A problem as arrays, its rounds decided one after the other, and both as plain tables."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.core.units import dbm_to_watt
from kfl.scheduling import AllDevices, Dual, Lyapunov, RoundRobin, read_problem, schedule
from kfl.scheduling.accounts import observe
from kfl.scheduling.result_table import never_schedulable, result_csv, result_table
from kfl.scheduling.status import OUTCOMES
from kfl.scheduling.uplink import CLOCK_BY, ENERGY_PARTS, UPLOAD_BY, DeviceEnergyModel
from kfl.wireless import PRESETS, Cell, CellConfig
from tests.reference.uplinks import device_uplink


def problem(*devices, **top):
    base = {"gain": 1e-9, "payload_bits": 1e5}
    rows = [{"id": f"d{k}", **base, **device} for k, device in enumerate(devices)]
    return read_problem(json.dumps({**top, "devices": rows}))


WHOLE = {
    "compute_time_s": 0.2,
    "compute_energy_j": 0.02,
    "cpu_hz": 1e9,
    "min_cpu_hz": 2.5e8,
    "static_power_w": 0.01,
    "circuit_power_w": 0.5,
    "amplifier_efficiency": 0.25,
    "min_power_w": 1e-6,
    "tail_energy_j": 0.004,
    "receive_energy_j": 0.001,
}


def at(problem, index, spent_j):
    """What a scheduler sees in a round described, when devices have spent so much."""
    accounts = replace(problem.accounts(AllDevices()), round=problem.round + index, compute_j=spent_j)
    inputs = list(problem.rounds_described())[index]
    return observe(accounts, inputs, budget_j=problem.budget_j, hard_budget=problem.hard_budget)


# ── What a scheduler sees ────────────────────────────────────────────────────


def test_a_problem_is_seen_round_by_round():
    seen = problem(
        {"gain": None, "gains": [1e-9, 2e-9, 3e-9], "available": [True, False, True], "budget_j": 5.0, "spent_j": 1.0},
        {"compute_time_s": 0.25, "compute_energy_j": 0.5, "samples": 7, "deadline_s": 2.0},
        round=4,
        seed=9,
        rounds=20,
        hard_budget=True,
        bandwidth_hz=1e6,
        noise_dbm_per_hz=-170,
    )
    assert (seen.size, seen.described) == (2, 3)
    third = at(seen, 2, np.array([1.5, 0.5]))
    assert (third.round, third.seed, third.hard_budget) == (6, 9, True)
    assert third.samples.tolist() == [1, 7] and third.available.tolist() == [True, True]
    assert not at(seen, 1, seen.spent_j).available[0]
    assert third.battery_j.tolist() == [3.5, np.inf]
    assert third.base_energy_j.tolist() == [0.0, 0.5] and third.compute_time_s.tolist() == [0.0, 0.25]
    assert third.uplink.gain.tolist() == [3e-9, 1e-9]
    assert third.uplink.upload_time_s.tolist() == [1.0, 1.75]
    assert (third.uplink.bandwidth_hz, third.uplink.noise_w_per_hz) == (1e6, pytest.approx(1e-20))
    assert third.uplink.device.is_paper_model


def test_a_computation_that_takes_until_the_deadline_is_too_slow():
    seen = problem(*[{"compute_time_s": time_s, "compute_energy_j": 0.0} for time_s in (0.999, 1.0, 1.001)])
    assert seen.too_slow.tolist() == [False, True, True]


def test_the_problem_that_follows_has_the_last_gains_and_what_was_left():
    seen = problem({"gain": None, "gains": [1e-9, 2e-9], "available": [True, False]}, round=3, rounds=9, max_power_w=23)
    assert seen.notes  # a power that no battery device has
    horizon = schedule(seen, RoundRobin(count=1))
    after = horizon.following
    assert (after.round, after.rounds, after.described, after.notes) == (5, 9, 1, ())
    assert after.gain.tolist() == [[2e-9]] and after.available.tolist() == [[False]]
    assert after.spent_j.tolist() == (horizon.compute_energy_j + horizon.upload_energy_j).tolist() != [0.0]
    assert {name: values.tolist() for name, values in after.memory.items()} == {"next": [0.0]}


def test_memory_goes_on_where_it_was_and_must_have_the_schedulers_size():
    two = problem({}, {}, memory={"next": [1.0]})
    assert schedule(two, RoundRobin(count=1)).rounds[0].devices.tolist() == [1]
    with pytest.raises(ConfigError) as refused:
        schedule(problem({}, memory={"next": [1.0, 2.0]}), RoundRobin())
    assert refused.value.field == "memory.next"
    assert str(refused.value).endswith("but must be a list of 1, as round-robin keeps it.")
    other = schedule(problem({}, memory={"stranger": [1.0, 2.0]}), AllDevices())
    assert other.following.memory["stranger"].tolist() == [1.0, 2.0]


# ── A cell as a problem ──────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "radio",
    [
        CellConfig(fading_correlation=0.9, deadline_s=3.0, budget_j_per_round=0.25),
        replace(PRESETS["wifi"], downlink_power_dbm=20.0),
    ],
)
def test_a_cell_as_a_problem_is_the_cell(radio):
    cell = Cell.build(radio, 3, 5)
    made = cell.problem(4, flops=1e9, payload_bits=2e4, samples=600, hard_budget=True)
    assert made.ids == ("d0", "d1", "d2")
    assert (made.rounds, made.round, made.seed, made.hard_budget, made.described) == (4, 0, 5, True, 4)
    assert (made.bandwidth_hz, made.noise_dbm_per_hz) == (radio.bandwidth_hz, radio.noise_dbm_per_hz)
    for t in range(4):
        link = cell.link_state(t, 1e9, 2e4)
        assert (made.gain[t] == link.uplink.gain).all()
        seen = at(made, t, made.spent_j)
        assert seen.uplink.upload_time_s == pytest.approx(link.uplink.upload_time_s)
        assert (seen.uplink.max_power_w == link.uplink.max_power_w).all()
        assert seen.battery_j == pytest.approx(np.full(3, 4 * radio.budget_j_per_round))
    assert made.available.all() and made.samples.tolist() == [600.0] * 3
    assert (made.compute_energy_j == link.compute_energy_j).all()
    assert (made.compute_time_s == link.uplink.device.fastest_s).all()
    assert made.payload_bits.tolist() == [2e4] * 3
    assert made.spent_j.tolist() == made.queue_j.tolist() == [0.0] * 3
    assert made.device.is_paper_model == radio.printed_model
    assert not cell.problem(1, flops=1e9, payload_bits=2e4, samples=1).hard_budget


def test_devices_of_a_cell_draw_what_its_configuration_says():
    radio = replace(PRESETS["wifi"], downlink_power_dbm=20.0)
    cell = Cell.build(radio, 3, 5)
    link = cell.link_state(0, 1e9, 2e4, broadcast_bits=1e6)
    device = link.uplink.device
    assert (device.min_cpu_hz == 80e6).all() and (device.cpu_hz == cell.hardware.cpu_hz).all()
    assert device.receiving_j == pytest.approx(0.21 * link.reserved_s) and link.reserved_s > 0
    assert device.tail_j == pytest.approx(0.04)
    assert device.min_power_w == pytest.approx(dbm_to_watt(2.0))
    weak = replace(cell, hardware=replace(cell.hardware, max_power_w=np.array([1e-6, 1.0, 1.0])))
    assert weak.link_state(0, 1e9, 2e4).uplink.device.min_power_w[0] == 1e-6
    assert Cell.build(CellConfig(), 3, 5).link_state(0, 1e9, 2e4).uplink.device.is_paper_model


# ── Whole devices ────────────────────────────────────────────────────────────


def test_the_uplink_of_whole_devices_follows_from_time_and_energy_at_the_fastest_clock():
    """κW³ = E t²; the slowest clock takes as much longer as it is slower; who sends nothing has no tail."""
    seen = problem(WHOLE, {**WHOLE, "payload_bits": 0.0}, {**WHOLE, "payload_bits": 0.5, "min_cpu_hz": 1e9})
    link = at(seen, 0, seen.spent_j).uplink
    assert not link.device.is_paper_model
    assert link.device.fastest_s.tolist() == [0.2] * 3
    assert link.device.slowest_s == pytest.approx([0.8, 0.8, 0.2])
    assert link.device.work_j_s2 == pytest.approx([0.02 * 0.2**2] * 3)
    assert link.device.once_j == pytest.approx([0.005, 0.001, 0.005])
    assert link.device.receiving_j.tolist() == [0.001] * 3
    assert link.device.static_power_w.tolist() == [0.01] * 3 and link.device.circuit_power_w.tolist() == [0.5] * 3
    assert link.device.amplifier_efficiency.tolist() == [0.25] * 3 and link.device.min_power_w.tolist() == [1e-6] * 3
    assert link.device.cpu_hz.tolist() == [1e9] * 3 and link.upload_time_s.tolist() == [0.8] * 3


PAPER = {
    "fastest_s": 0.5,
    "slowest_s": 0.5,
    "static_power_w": 0.0,
    "circuit_power_w": 0.0,
    "amplifier_efficiency": 1.0,
    "min_power_w": 0.0,
    "tail_j": 0.0,
    "receiving_j": 0.0,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"static_power_w": 1e-9},
        {"circuit_power_w": 1e-9},
        {"amplifier_efficiency": 0.5},
        {"min_power_w": 1e-9},
        {"tail_j": 1e-9},
        {"receiving_j": 1e-9},
        {"slowest_s": 0.6},
    ],
)
def test_one_number_of_one_device_makes_it_more_than_the_papers_model(change):
    rows = {name: np.array([value, change.get(name, value)]) for name, value in PAPER.items()}
    assert DeviceEnergyModel(**rows).is_paper_model == (not change)
    assert DeviceEnergyModel(**{**rows, "work_j_s2": 1.0, "cpu_hz": 1e9}).is_paper_model == (not change)


def cases():
    """How a device with a second from 0.2 s on ran: times, power, and what decided them.

    It computes between 0.2 s and 0.6 s, radiates between 0.1 W and 1 W.
    """
    near, same = 0.9e-9, 1e-9
    yield (0.25, (1 - same) - 0.25, 0.5), ("clock", "deadline")  # the last that counts as the same, and so below
    yield (0.2 * (1 + same), 0.8, 0.5), ("deadline", "fastest")
    yield (0.4, 0.5, 0.1 * (1 + same)), ("least_power", "static")
    yield (0.4, 0.5, 1.0 * (1 - same)), ("full_power", "static")
    yield (0.6 * (1 - same), 0.3, 0.5), ("circuits", "slowest")
    yield (0.2, 0.8, 0.5), ("deadline", "fastest")
    yield (0.2, 0.8 * (1 - near), 0.5), ("deadline", "fastest")
    yield (0.2 * (1 + near), 0.8, 0.5), ("deadline", "fastest")
    yield (0.4, 0.6, 0.5), ("clock", "deadline")
    yield (0.4, 0.5, 0.5), ("circuits", "static")
    yield (0.2, 0.5, 0.5), ("circuits", "fastest")
    yield (0.6, 0.4, 0.5), ("clock", "slowest")
    yield (0.6 * (1 - near), 0.3, 0.5), ("circuits", "slowest")
    yield (0.6 * (1 - 3e-9), 0.3, 0.5), ("circuits", "static")
    yield (0.4, 0.5, 0.1), ("least_power", "static")
    yield (0.4, 0.5, 0.1 * (1 + near)), ("least_power", "static")
    yield (0.4, 0.5, 0.1 * (1 + 3e-9)), ("circuits", "static")
    yield (0.4, 0.5, 1.0), ("full_power", "static")
    yield (0.4, 0.6, 1.0 - near), ("full_power", "deadline")
    yield (0.4, 0.6, 1.0 - 3e-9), ("clock", "deadline")
    yield (0.2 * (1 + 3e-9), 0.8 - 0.6e-9, 0.5), ("clock", "deadline")
    yield (0.2, 0.8 - 3e-9, 0.5), ("circuits", "fastest")


def link_of(n, **changes):
    one = np.ones(n)
    values = {
        "bandwidth_hz": 1e6,
        "noise_w_per_hz": 4e-21,
        "gain": 1e-9 * one,
        "payload_bits": 1e5 * one,
        "upload_time_s": 0.8 * one,
        "max_power_w": one,
        "fastest_s": 0.2 * one,
        "slowest_s": 0.6 * one,
        "work_j_s2": 1e-4 * one,
        "static_power_w": 0.01 * one,
        "circuit_power_w": 0.1 * one,
        "amplifier_efficiency": 0.5 * one,
        "min_power_w": 0.1 * one,
        "once_j": 0.0 * one,
    }
    return device_uplink(**{**values, **{name: value * one for name, value in changes.items()}})


def words(upload, clock):
    return [(tuple(UPLOAD_BY)[one], tuple(CLOCK_BY)[other]) for one, other in zip(upload, clock, strict=True)]


def test_what_decided_times_and_clocks():
    """To a relative 1e-9, as deadlines and powers are kept."""
    runs, expected = zip(*cases(), strict=True)
    found = link_of(len(runs)).decided_by(*np.array(runs).T)
    assert words(*found) == list(expected)
    assert found[0].dtype == found[1].dtype == np.int8


def test_what_decided_where_there_is_nothing_to_decide():
    one = np.ones(1)
    run = (0.2 * one, 0.5 * one, 0.5 * one)
    assert words(*link_of(1, payload_bits=0.0).decided_by(*run)) == [("nothing", "fastest")]
    assert words(*link_of(1, payload_bits=0.5).decided_by(*run)) == [("circuits", "fastest")]
    assert words(*link_of(1, slowest_s=0.2).decided_by(*run)) == [("circuits", "fixed")]
    silent = (0.2 * one, 0.5 * one, 0.0 * one)
    assert words(*link_of(1, min_power_w=0.0).decided_by(*silent)) == [("circuits", "fastest")]


# ── What became of it ────────────────────────────────────────────────────────


def test_totals_are_the_sums_of_the_rounds():
    rows = [{"gain": None, "gains": [1e-9, 1e-10, 1e-9], "available": [True, k > 0, True]} for k in range(3)]
    for extra in ({"compute_time_s": 0.2, "compute_energy_j": 0.02}, WHOLE):
        horizon = schedule(problem(*rows, **extra, rounds=3), RoundRobin(count=2))
        taken, compute_j, upload_j = np.zeros(3), np.zeros(3), np.zeros(3)
        for one in horizon.rounds:
            taken[one.devices] += 1
            compute_j[one.devices] += one.compute_energy_j
            upload_j[one.devices] += one.upload_energy_j
            assert one.energy_j == pytest.approx((one.compute_energy_j + one.upload_energy_j).sum())
            assert one.time_s == pytest.approx((one.compute_time_s + one.upload_time_s).max())
            assert sum(one.counts) == 3 and one.counts[0] == len(one.devices)
        assert horizon.participation_count.tolist() == taken.tolist() and taken.sum() == 6
        assert horizon.compute_energy_j == pytest.approx(compute_j) and horizon.upload_energy_j == pytest.approx(
            upload_j
        )
        assert horizon.following.spent_j == pytest.approx(compute_j + upload_j)
        assert [tuple(OUTCOMES)[k] for k in horizon.outcome].count("scheduled") == 2
    parts = {name: np.zeros(3) for name in ENERGY_PARTS}
    for one in horizon.rounds:
        for name in ENERGY_PARTS:
            parts[name][one.devices] += one.parts_j[name]
    for name in ENERGY_PARTS:
        assert horizon.parts_j[name] == pytest.approx(parts[name]), name
    assert sum(parts.values()) == pytest.approx(compute_j + upload_j)


def test_a_round_of_nobody_takes_no_time_and_no_energy():
    horizon = schedule(problem({"available": False}), AllDevices())
    one = horizon.rounds[0]
    assert (one.time_s, one.energy_j, len(one.devices)) == (0.0, 0.0, 0)
    assert horizon.reason(0) == "not available"
    assert one.counts == tuple(int(code == "unavailable") for code in OUTCOMES)
    assert horizon.parts_j is None and one.clock_hz is None


def test_the_default_scheduler_is_dual_and_its_gap_is_the_distance_to_its_bound():
    horizon = schedule(problem({}, {}))
    assert horizon.scheduler == Dual()
    one = horizon.rounds[0]
    assert one.gap == one.objective - one.lower_bound >= 0


@pytest.mark.parametrize("scheduler", [Lyapunov(), Dual()])
def test_a_queue_that_makes_a_device_dearer_than_any_number_is_decided_without_a_warning(scheduler):
    dear = {"compute_time_s": 0.0, "compute_energy_j": 1e45, "queue_j": 1e300}
    assert schedule(problem(dear, {}), scheduler).rounds[0].devices.tolist() == [1]


def test_sizes_at_the_end_of_what_a_file_may_hold_are_decided_without_a_warning():
    """An upload and a clock of which no price of the band can be reckoned: no device is worth it."""
    vast = {"gain": 1.0, "payload_bits": 1e45, "compute_time_s": 1.0, "compute_energy_j": 1.0, "deadline_s": 1e45}
    slow = {"cpu_hz": 1.0, "min_cpu_hz": 1e-45}
    one = schedule(problem({**vast, **slow}, bandwidth_hz=1e45, rounds=5), Lyapunov()).rounds[0]
    assert (len(one.devices), one.status.code) == (0, "nobody_worth")


# ── Tables ───────────────────────────────────────────────────────────────────


def test_the_table_of_a_horizon_says_what_its_rounds_say():
    horizon = schedule(
        problem(WHOLE, {**WHOLE, "gain": 1e-10}, {"available": False}, budget_j=2.0, rounds=5), AllDevices()
    )
    table = result_table(horizon)
    assert set(table) == {"scheduler", "notes", "rounds", "devices", "next"}
    one, row = horizon.rounds[0], table["rounds"][0]
    assert (row["round"], row["scheduled"], row["status"], row["note"]) == (0, 2, "ok", "")
    assert row["share"] == pytest.approx(one.share.sum())
    assert row["energy_j"] == one.energy_j and row["time_s"] == one.time_s
    assert row["compute_energy_j"] == pytest.approx(one.compute_energy_j.sum())
    assert row["upload_energy_j"] == pytest.approx(one.upload_energy_j.sum())
    for name in ENERGY_PARTS:
        assert row[f"{name}_j"] == pytest.approx(one.parts_j[name].sum()), name
    for k, device in enumerate(row["devices"]):
        assert device["id"] == f"d{k}"
        assert device["energy_j"] == device["compute_energy_j"] + device["upload_energy_j"]
        assert device["time_s"] == device["compute_time_s"] + device["upload_time_s"]
        assert device["clock_hz"] == one.clock_hz[k] and device["queue_j"] == one.queue_j[k]
        assert device["upload_decided_by"] in UPLOAD_BY and device["clock_decided_by"] in CLOCK_BY
        assert device["tail_j"] == pytest.approx(0.004) and device["receiving_j"] == pytest.approx(0.001)
    for k, device in enumerate(table["devices"]):
        assert (device["id"], device["rounds_scheduled"]) == (f"d{k}", int(k < 2))
        assert device["energy_j"] == pytest.approx(device["compute_energy_j"] + device["upload_energy_j"])
        assert device["battery_j"] == pytest.approx(2.0 - device["energy_j"])
        assert device["queue_j"] == horizon.following.queue_j[k]
        assert device["outcome"] == ("scheduled" if k < 2 else "unavailable")
    text = result_csv(horizon)
    assert "\r" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(line["round"], line["id"]) for line in rows] == [("0", "d0"), ("0", "d1")]
    assert [float(line["clock_hz"]) for line in rows] == one.clock_hz.tolist()


def test_a_note_is_the_sentence_of_a_round_that_is_not_as_asked_for():
    late = {"compute_time_s": 2.0, "compute_energy_j": 0.0}
    table = result_table(schedule(problem({}, late), Lyapunov()))
    row = table["rounds"][0]
    assert row["status"] == "unschedulable"
    assert row["note"] == (
        "1 of 2 devices cannot be scheduled this round: device d1 past the deadline after computing."
    )
    fine = result_table(schedule(problem({}), AllDevices()))
    assert (fine["rounds"][0]["status"], fine["rounds"][0]["note"], fine["notes"]) == ("ok", "", [])
    assert table["notes"] == ["Device 'd1' can never be scheduled: computing takes 2 s, and the deadline is 1 s."]


@pytest.mark.parametrize(("slow", "sentences"), [(0, 0), (4, 4), (5, 5), (6, 6), (9, 6)])
def test_at_most_five_devices_are_named_that_can_never_be_scheduled(slow, sentences):
    late = {"compute_time_s": 1.0, "compute_energy_j": 0.0}
    horizon = schedule(problem({}, *[late] * slow), AllDevices())
    said = never_schedulable(horizon)
    assert len(said) == sentences
    if slow > 5:
        assert said[-1] == f"{slow - 5} more devices can never be scheduled for the same reason."
    assert len(never_schedulable(horizon, named=1)) == min(slow, 2)
