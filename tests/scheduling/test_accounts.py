"""One accounting of a round: what is seen, what is decided, and what a round leaves to the next."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.scheduling import AllDevices, Dual, read_problem, schedule, write_problem
from kfl.scheduling.accounts import Accounts, Batteries, RoundInputs, decide, observe, settle
from kfl.scheduling.problem_schema import ProblemError
from kfl.scheduling.simulate import simulate


def problem(*devices, **top):
    base = {"gain": 1e-9, "payload_bits": 1e5, "compute_time_s": 0.2, "compute_energy_j": 0.5}
    rows = [{"id": f"d{k}", **base, **device} for k, device in enumerate(devices)]
    return read_problem(json.dumps({**top, "devices": rows}))


def seen_by(accounts: Accounts, harvest_j=None, budget_j=np.inf, **top):
    inputs = replace(next(iter(problem({}, {}, **top).rounds_described())), harvest_j=harvest_j)
    return observe(accounts, inputs, budget_j=np.full(2, budget_j), hard_budget=False)


def start(charge_j=None, *, fills=False, budget_j=4.0, rounds=4) -> Accounts:
    batteries = None if charge_j is None else Batteries.holding(2.0, np.array(charge_j))
    return Accounts.start(AllDevices(), np.full(2, budget_j), rounds, batteries, fills=fills)


def test_observe_counts_a_budget_down_by_what_was_spent():
    accounts = replace(start(), compute_j=np.array([1.0, 0.0]), upload_j=np.array([0.5, 0.25]))
    assert seen_by(accounts, budget_j=4.0).battery_j.tolist() == [2.5, 3.75]
    assert seen_by(accounts, budget_j=4.0).base_energy_j.tolist() == [0.5, 0.5]


def test_observe_keeps_devices_without_charge_out():
    seen = seen_by(start([0.4, 0.5]))
    assert (seen.empty.tolist(), seen.available.tolist()) == ([True, False], [False, True])
    assert seen.battery_j.tolist() == [0.4, 0.5] and seen.capacity_j is None
    filled = seen_by(start([0.4, 0.5], fills=True), harvest_j=np.ones(2), budget_j=0.1)
    assert filled.battery_j.tolist() == [0.4, 0.5], "a harvest has no other end than the charge"
    assert filled.capacity_j == 2.0
    assert seen_by(start([0.4, 0.5]), budget_j=0.1).battery_j.tolist() == [0.1, 0.1]


def test_observe_without_radio_costs_nothing():
    inputs = RoundInputs(0, np.ones(2), np.ones(2, bool), None, np.zeros(2))
    seen = observe(start(), inputs, budget_j=np.full(2, np.inf), hard_budget=False)
    assert seen.base_energy_j.tolist() == seen.compute_time_s.tolist() == [0.0, 0.0] and seen.uplink is None


def test_settle_moves_queues_charges_and_counts_with_what_was_really_spent():
    accounts, spent = start([1.0, 1.0], fills=True), (np.array([0.75, 0.0]), np.array([0.5, 0.0]))
    seen = seen_by(accounts, harvest_j=np.ones(2))
    decision = decide(AllDevices(), accounts, seen)
    harvest_j = np.array([0.25, 3.0])
    after = settle(AllDevices(), accounts, seen, decision, *spent, harvest_j)
    assert (after.round, after.participation_count.tolist()) == (1, [1, 1])
    assert (after.compute_j.tolist(), after.upload_j.tolist()) == ([0.75, 0.0], [0.5, 0.0])
    assert after.batteries.charge_j.tolist() == [0.25, 2.0]  # a meter may say more than there was; no debt is kept
    assert after.batteries.wasted_j.tolist() == [0.0, 2.0]
    assert after.scheduler.queue_j.tolist() == [1.75, 0.0]  # what the batteries lack
    bare = settle(AllDevices(), start(), seen, decision, *spent)
    assert bare.scheduler.queue_j.tolist() == [0.25, 0.0] and bare.batteries is None  # equation (21), E/T = 1
    drained = settle(AllDevices(), start([1.0, 1.0]), seen, decision, *spent)
    assert drained.batteries.charge_j.tolist() == [0.0, 1.0]
    assert drained.scheduler.queue_j.tolist() == [0.25, 0.0], "nothing fills: queues follow the budget"


def test_decide_gives_shares_in_blocks_where_the_band_has_any():
    accounts = start()
    seen = seen_by(accounts, bandwidth_hz=1e5)
    blocks = decide(AllDevices(), accounts, seen, 7)
    assert 7 * blocks.share == pytest.approx(np.round(7 * blocks.share)) and blocks.share.sum() == pytest.approx(1.0)
    assert (decide(AllDevices(), accounts, seen).share == 0.5).all()


# ── Blocks, batteries and harvest in a problem ───────────────────────────────


LIVING = {
    "resource_blocks": 9,
    "battery_capacity_j": 2.0,
    "rounds": 6,
    "bandwidth_hz": 2e5,
    "hard_budget": True,
}
ROWS = (
    {"gain": None, "gains": [1e-9, 2e-9, 1e-9, 3e-9], "harvest_j": [0.6, 0.0, 0.7, 0.1], "charge_j": 0.9},
    {"gain": None, "gains": [2e-9, 1e-9, 1e-9, 1e-9], "harvest_j": 0.2, "charge_j": 0.1},
)


def test_a_trace_with_batteries_is_decided_as_round_after_round(tmp_path):
    """To the last bit, through files of either kind."""
    whole = problem(*ROWS, **LIVING)
    result = schedule(whole, Dual())
    assert result.participation_count.sum() > 0
    assert any(one.counts[3] for one in result.rounds), "a device is without charge in some round"
    assert all(abs(9 * share - round(9 * share)) < 1e-9 for one in result.rounds for share in one.share)
    for kind in ("json", "csv"):
        following = replace(whole, gain=whole.gain[:1], available=whole.available[:1], harvest_j=whole.harvest_j[:1])
        for t, expected in enumerate(result.rounds):
            rows = slice(t, t + 1)
            now = {"gain": whole.gain[rows], "available": whole.available[rows], "harvest_j": whole.harvest_j[rows]}
            one = schedule(replace(following, **now), Dual())
            assert one.rounds[0].devices.tolist() == expected.devices.tolist()
            assert one.rounds[0].share.tolist() == expected.share.tolist()
            write_problem(one.following, tmp_path / f"next.{kind}")
            following = read_problem(tmp_path / f"next.{kind}")
        assert following.charge_j.tolist() == result.following.charge_j.tolist()
        assert following.queue_j.tolist() == result.following.queue_j.tolist()


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_problems_with_batteries_are_read_as_they_were_written(tmp_path, kind):
    charged, filled = problem({"charge_j": 0.5}, {}, **LIVING), problem({}, harvest_j=1, **LIVING)
    for written in (problem(*ROWS, **LIVING), charged, filled):
        write_problem(written, tmp_path / f"one.{kind}")
        back = read_problem(tmp_path / f"one.{kind}")
        assert (back.resource_blocks, back.battery_capacity_j) == (9, 2.0)
        assert back.charge_j.tolist() == written.charge_j.tolist()
        assert (back.harvest_j is None) == (written.harvest_j is None)
        assert written.harvest_j is None or back.harvest_j.tolist() == written.harvest_j.tolist()
    assert problem({}, **LIVING).charge_j.tolist() == [2.0], "full by default"


def test_charge_moves_by_harvest_less_what_is_spent():
    charge_j = np.array([0.9, 0.1])
    for t, one in enumerate(simulate(problem(*ROWS, **LIVING), Dual())):
        assert one.before.batteries.charge_j.tolist() == pytest.approx(charge_j.tolist())
        charge_j = np.minimum(charge_j - one.compute_j - one.upload_j + [ROWS[0]["harvest_j"][t], 0.2], 2.0)
        assert one.after.scheduler.queue_j == pytest.approx(2.0 - charge_j)


@pytest.mark.parametrize(
    ("devices", "top", "sentence"),
    [
        ([{"charge_j": 1}], {}, "charge_j is given but no battery_capacity_j, which says what batteries hold."),
        ([{}], {"harvest_j": 1}, "harvest_j is given but no battery_capacity_j, which says what batteries hold."),
        (
            [{"charge_j": 3}],
            {"battery_capacity_j": 2},
            "charge_j of device 'd0' is 3.0, but must be at most battery_capacity_j, 2.",
        ),
        (
            [{}],
            {"battery_capacity_j": 0},
            "battery_capacity_j is 0, but must be a positive number of joules.",
        ),
        (
            [{}],
            {"resource_blocks": 2.5},
            "resource_blocks is 2.5, but must be an integer of blocks from 1 to 1e9.",
        ),
        (
            [{}],
            {"resource_blocks": 0},
            "resource_blocks is 0, but must be an integer of blocks from 1 to 1e9.",
        ),
        (
            [{"harvest_j": -1}],
            {"battery_capacity_j": 2},
            "harvest_j of device 'd0' is -1.0, but must be a finite number, 0 or more.",
        ),
    ],
)
def test_what_cannot_be_of_batteries_and_blocks_is_one_sentence(devices, top, sentence):
    with pytest.raises((ConfigError, ProblemError)) as refused:
        problem(*devices, **top)
    assert str(refused.value) == sentence
