"""One round, step by step, with a fleet whose replies are written down: what the server keeps, counts and logs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import kfl
from kfl.algorithms import Upload
from kfl.algorithms.sums import Sums, summation_of
from kfl.scheduling import Decision, Status
from kfl.simulation import build_world
from kfl.simulation.fleet import Replies
from kfl.simulation.round import (
    accuracy,
    aggregate,
    begin,
    evaluate,
    has_quorum,
    initial_state,
    play_round,
    radio_facts,
    round_log,
)
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.wireless import PRESETS, ConstantHarvest, SolarHarvest
from tests.reference.runs import data

EXPERIMENT = kfl.Experiment(devices=4, rounds=7, widths=(8,), scheduler=kfl.Uniform(count=3), radio=None)


class Scripted(SimulatedFleet):
    """Devices that give scripted replies; whom they were asked to test is kept."""

    def __init__(self, experiment=EXPERIMENT, **replies):
        super().__init__(build_world(experiment, dataset=data()))
        self.replies, self.tested = replies, []

    def exchange(self, state, conditions, decision, message):
        nothing = np.zeros(self.table.size)
        usual = {"uploads": [], "usable": 0, "compute_energy_j": nothing, "upload_energy_j": nothing}
        return Replies(**{**usual, "time_s": 2.5, "sent": (), **self.replies})

    def evaluate(self, state, devices):
        self.tested.append((state.round, sorted(devices)))
        return super().evaluate(state, devices)


def decided(chosen, **more):
    members = np.isin(np.arange(4), chosen)
    nothing = Decision.nobody(4, Status())
    return replace(nothing, chosen=members, share=members * np.array([0.1, 0.2, 0.3, 0.4]), **more)


def knowledge(device, value):
    return Upload(device, {"means": torch.full((4, 64), value), "counts": torch.tensor([1, 1, 0, 1])})


@pytest.fixture(scope="module")
def fleet():
    return Scripted()


def replies(**given):
    nothing = np.zeros(4)
    usual = {"uploads": [], "usable": 0, "compute_energy_j": nothing, "upload_energy_j": nothing, "time_s": 1.0}
    return Replies(**{**usual, "sent": (), **given})


def test_before_round_0_everybody_is_tested_and_nothing_is_spent(fleet):
    state = begin(fleet)
    assert fleet.tested[-1] == (0, [0, 1, 2, 3])
    assert (state.round, state.devices, state.untested, state.fading) == (0, {}, set(), None)
    for name in ("compute_j", "upload_j", "participation_count"):
        assert getattr(state.accounts, name).tolist() == [0, 0, 0, 0], name
    assert state.accounts.batteries is None
    assert state.accounts.participation_count.dtype == state.correct.dtype == np.int64
    assert not state.server["known"].any()


@pytest.mark.parametrize(("usable", "counts"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_round_without_its_quorum_leaves_the_server_as_it_was(fleet, usable, counts):
    state, status = initial_state(fleet), Status.note("as decided")
    fleet.quorum = 0.5
    try:
        found = replies(uploads=[knowledge(0, 2.0), knowledge(1, 4.0)], usable=usable, rejected=[{"device": 3}])
        server, rejected, said = aggregate(fleet, state, decided([0, 1, 2], status=status), found)
    finally:
        fleet.quorum = 0.0
    assert rejected == [{"device": 3}]
    if counts:
        assert said is status
        assert server["known"].tolist() == [True, True, False, True]
        assert server["knowledge"][0].tolist() == [3.0] * 64
    else:
        assert server is state.server
        assert (said.code, dict(said.facts)) == ("no_quorum", {"usable": usable, "chosen": 3})


def test_uploads_that_cannot_be_used_are_named_after_those_rejected_on_the_way(fleet):
    bad = Upload(1, {"means": torch.zeros(2, 64), "counts": torch.tensor([1, 1])})
    found = replies(uploads=[knowledge(0, 2.0), bad], usable=2, rejected=[{"device": 3}])
    server, rejected, _ = aggregate(fleet, initial_state(fleet), decided([0, 1]), found)
    assert [one["device"] for one in rejected] == [3, 1]
    assert server["knowledge"][0].tolist() == [2.0] * 64


def test_sums_replace_uploads_and_the_lack_of_them_leaves_the_server(fleet):
    state = initial_state(fleet)
    missing = Status.note("too few survived")
    server, _, said = aggregate(fleet, state, decided([0, 1]), replies(sums=missing, usable=2))
    assert server is state.server
    assert said is missing
    summation = summation_of(fleet.experiment.algorithm)
    message = fleet.experiment.algorithm.broadcast(state.server)
    sums = [summation.terms(knowledge(d, v), message, fleet.engine) for d, v in ((0, 2.0), (1, 4.0))]
    total = sums[0] + sums[1]
    assert isinstance(total, Sums)
    server, _, said = aggregate(fleet, state, decided([0, 1]), replies(sums=total, usable=2))
    assert said.ok
    assert server["knowledge"][1].tolist() == pytest.approx([3.0] * 64)


def test_evaluations_come_every_so_many_rounds_and_after_the_last_and_wait_for_nobody():
    """Every 3 of 7 rounds: after rounds 3, 6 and 7; devices that changed in between wait until then."""
    fleet = Scripted()
    fleet.evaluate_every = 3
    state = begin(fleet)
    fleet.tested.clear()
    for number, changed in ((1, [2]), (2, [0, 2]), (3, [1]), (4, []), (5, [3]), (6, []), (7, [0])):
        state = evaluate(fleet, state.at_round(number), changed)
        tested = number in (3, 6, 7)
        assert (accuracy(fleet, state) is not None) == tested
        assert (state.untested == frozenset()) or not tested
        if number == 2:
            assert state.untested == {0, 2}
    assert fleet.tested == [(3, [0, 1, 2]), (6, [3]), (7, [0])]


def test_accuracy_is_over_all_test_samples_of_all_devices(fleet):
    state, tests = begin(fleet), fleet.table.test_samples
    state = replace(state, correct=np.array([1, 2, 3, 4]))
    assert accuracy(fleet, state) == pytest.approx(10 / tests.sum())
    fleet.table = replace(fleet.table, test_samples=np.array([0, 5, 5, 10]))
    try:  # who has no test samples has no right predictions either, whatever it says
        assert accuracy(fleet, state) == pytest.approx(9 / 20)
        fleet.table = replace(fleet.table, test_samples=np.zeros(4, dtype=np.int64))
        assert accuracy(fleet, state) is None
    finally:
        fleet.table = replace(fleet.table, test_samples=tests)


def test_a_round_adds_up_what_was_spent_counted_and_reported():
    compute, upload = np.array([1.0, 2.0, 0.0, 4.0]), np.array([0.5, 0.0, 0.0, 0.25])
    fleet = Scripted(
        replace(EXPERIMENT, evaluate_every=100),
        compute_energy_j=compute,
        upload_energy_j=upload,
        usable=2,
        uploads=[knowledge(0, 1.0)],
        correct={1: 11, 3: 13},
        states={0: {"weight": torch.ones(1)}},
    )
    fleet.evaluate_every = 100
    state = begin(fleet)
    start = replace(state, correct=np.array([1, 2, 3, 4]), devices={2: {}})
    spent = {"compute_j": np.full(4, 10.0), "upload_j": np.full(4, 20.0), "participation_count": np.full(4, 5)}
    start = replace(start, accounts=replace(start.accounts, **spent))
    following, log = play_round(fleet, start)
    assert start.correct.tolist() == [1, 2, 3, 4]  # a state is a value: playing on does not change it
    assert following.round == 1
    assert following.correct.tolist() == [1, 11, 3, 13]
    assert following.accounts.compute_j.tolist() == [11.0, 12.0, 10.0, 14.0]
    assert following.accounts.upload_j.tolist() == [20.5, 20.0, 20.0, 20.25]
    assert set(following.devices) == {0, 2}
    chosen = [device in log.devices for device in range(4)]
    assert sum(chosen) == 3
    assert following.accounts.participation_count.tolist() == [5 + one for one in chosen]
    assert (log.round, log.accuracy, log.time_s) == (0, None, 2.5)
    assert log.compute_energy_j == tuple(compute[list(log.devices)])
    assert log.upload_energy_j == tuple(upload[list(log.devices)])
    assert following.untested == {0}
    assert following.server["known"].tolist() == [True, True, False, True]


def test_queues_follow_what_was_really_spent():
    radio = kfl.CellConfig(budget_j_per_round=1.0)
    fleet = Scripted(
        replace(EXPERIMENT, radio=radio),
        compute_energy_j=np.array([3.0, 0.0, 0.0, 1.5]),
        upload_energy_j=np.full(4, 0.25),
    )
    following, _ = play_round(fleet, begin(fleet))
    # Equation (21): q + spent − E/T, and never below 0.
    assert following.accounts.scheduler.queue_j.tolist() == pytest.approx([2.25, 0.0, 0.0, 0.75])
    following, log = play_round(fleet, following)
    assert following.accounts.scheduler.queue_j.tolist() == pytest.approx([4.5, 0.0, 0.0, 1.5])
    assert log.queue_j == tuple([2.25, 0.0, 0.0, 0.75][device] for device in log.devices)


def test_the_log_counts_bits_that_were_sent_and_says_where_the_declared_ones_differ(fleet):
    state, up, down = begin(fleet).at_round(1), fleet.table.bits_up, fleet.table.bits_down
    decision = decided([0, 2, 3], objective=4.0)
    log = round_log(fleet, state, decision, replies(sent=[0, 3], missed=[3, 2], lost=[2, 0]), [{"device": 1}])
    assert (log.round, log.devices, log.share) == (0, (0, 2, 3), (0.1, pytest.approx(0.3), 0.4))
    assert log.bits_up == up[0] + up[3]
    assert log.declared_bits_up is None
    assert log.bits_down == down[0] + down[2] + down[3]
    assert (log.missed, log.lost, log.rejected) == ((2, 3), (0, 2), ({"device": 1},))
    assert (log.objective, log.lower_bound) == (4.0, None)
    counted = round_log(fleet, state, decision, replies(sent=[0, 3], sent_bits={3: 7.0}), [])
    assert counted.bits_up == up[0] + 7.0
    assert counted.declared_bits_up == up[0] + up[3]


def test_only_who_is_there_and_has_charge_is_seen(fleet):
    conditions = fleet.observe(begin(fleet))
    assert conditions.link is None and conditions.harvest_j is None
    assert conditions.observation.empty is None
    assert conditions.observation.available.all()


@pytest.mark.parametrize(
    ("usable", "chosen", "quorum", "counts"),
    [
        (2, 4, 0.5, True),
        (1, 4, 0.5, False),
        (0, 0, 1.0, True),
        (7, 10, 0.7, True),
        (21, 30, 0.7, True),  # 0.7 × 30 is a little more than 21 in binary
        (0, 1, 1e-9, True),
        (0, 1, 1.5e-9, False),
    ],
)
def test_a_quorum_may_be_missed_by_rounding_alone(usable, chosen, quorum, counts):
    assert has_quorum(usable, chosen, quorum) == counts


def test_a_device_with_one_test_sample_counts_with_it(fleet):
    state, tests = replace(begin(fleet), correct=np.array([1, 0, 1, 2])), fleet.table.test_samples
    fleet.table = replace(fleet.table, test_samples=np.array([1, 1, 2, 4]))
    try:
        assert accuracy(fleet, state) == 0.5
    finally:
        fleet.table = replace(fleet.table, test_samples=tests)


def test_before_anybody_is_tested_nobody_is_right(fleet):
    state = initial_state(fleet)
    assert state.correct.tolist() == [0, 0, 0, 0]
    assert state.correct.dtype == state.accounts.participation_count.dtype == np.int64


def test_the_log_of_a_round_has_all_that_came_back(fleet):
    state = begin(fleet).at_round(3)
    found = replies(
        broadcast_s=0.25,
        faults=[{"device": 1, "fault": "late"}],
        diverged=[2],
        clipped=[{"device": 0, "code": "weight_capped"}],
        compute_energy_j=np.array([1.0, 2.0, 3.0, 4.0]),
        upload_energy_j=np.array([5.0, 6.0, 7.0, 8.0]),
    )
    decision = decided([1, 2], objective=4.0, lower_bound=3.0, power_w=np.array([0.1, 0.2, 0.3, 0.4]))
    log = round_log(fleet, state, replace(decision, status=Status.note("few")), found, [])
    assert (log.round, log.broadcast_s, log.diverged) == (2, 0.25, (2,))
    assert log.faults == ({"device": 1, "fault": "late"},)
    assert log.clipped == ({"device": 0, "code": "weight_capped"},)
    assert (log.power_w, log.compute_energy_j, log.upload_energy_j) == ((0.2, 0.3), (2.0, 3.0), (6.0, 7.0))
    assert (log.objective, log.lower_bound, str(log.status)) == (4.0, 3.0, "few")


def test_whoever_needs_the_server_to_predict_is_tested_after_every_round():
    for algorithm, untested in ((kfl.algorithms.Kfl(), {0}), (kfl.algorithms.FedAvg(), {0, 1, 2, 3})):
        fleet = Scripted(replace(EXPERIMENT, algorithm=algorithm), states={0: {"weight": torch.ones(1)}})
        fleet.evaluate_every = 100
        assert play_round(fleet, begin(fleet))[0].untested == untested


def test_the_status_of_a_round_is_what_became_of_it():
    fleet = Scripted(usable=0)
    fleet.quorum = 1.0
    _, log = play_round(fleet, begin(fleet))
    assert (log.status.code, dict(log.status.facts)) == ("no_quorum", {"usable": 0, "chosen": 3})


RADIO = kfl.CellConfig(budget_j_per_round=1.0)
COSTS = {"compute_energy_j": np.array([0.3, 0.0, 0.1, 0.2]), "upload_energy_j": np.full(4, 0.05)}


def test_the_log_of_a_round_has_what_its_costs_follow_from():
    fleet = Scripted(replace(EXPERIMENT, radio=replace(RADIO, channel_error=0.5)))
    state = begin(fleet)
    following, log = play_round(fleet, state)
    conditions = fleet.observe(state)
    decision = fleet.experiment.scheduler.decide(state.accounts.scheduler, conditions.observation)
    chosen = np.flatnonzero(decision.chosen)
    assert log.devices == tuple(chosen)
    assert (log.gain, log.true_gain) == (
        tuple(conditions.link.uplink.gain[chosen]),
        tuple(conditions.link.true_gain[chosen]),
    )
    assert log.gain != log.true_gain
    assert log.compute_time_s == tuple(decision.compute_time_s[chosen])
    assert log.upload_time_s == tuple(decision.upload_time_s[chosen])
    assert (log.reserved_s, log.clock_hz, log.static_j) == (conditions.link.reserved_s, (), ())
    assert following.fading.round == conditions.link.fading.round
    assert np.array_equal(following.fading.coefficient, conditions.link.fading.coefficient)
    known = replace(conditions, link=replace(conditions.link, true_gain=conditions.link.uplink.gain))
    assert radio_facts(state, known, decision, replies())["true_gain"] == ()
    assert radio_facts(state, replace(conditions, link=None), decision, replies()) == {}


def test_without_a_radio_a_round_has_no_channel_no_queue_and_no_charge(fleet):
    following, log = play_round(fleet, begin(fleet))
    assert (following.fading, following.accounts.batteries) == (None, None)
    assert (log.gain, log.queue_j, log.reserved_s, log.charge_j, log.harvest_j) == ((), (), None, (), ())


def test_blocks_of_the_band_are_what_shares_are_made_of():
    for blocks in (None, 5):
        fleet = Scripted(replace(EXPERIMENT, radio=replace(RADIO, resource_blocks=blocks)))
        _, log = play_round(fleet, begin(fleet))
        whole = all(abs(5 * share - round(5 * share)) < 1e-9 for share in log.share)
        assert whole == (blocks is not None)
        assert sum(log.share) == pytest.approx(1.0)


def whole_devices(**changes):
    cell = replace(PRESETS["wifi"], downlink_power_dbm=20.0, **changes)
    fleet = Scripted(replace(EXPERIMENT, radio=cell))
    state = begin(fleet)
    conditions = fleet.observe(state)
    return state, conditions, fleet.experiment.scheduler.decide(state.accounts.scheduler, conditions.observation)


def test_what_a_whole_device_spent_is_split_as_it_was_planned():
    """A device that spent twice what was planned on computing and half of it on the radio, and one that did nothing."""
    state, conditions, decision = whole_devices()
    planned = decision.parts_j(conditions.observation.uplink)
    chosen = np.flatnonzero(decision.chosen)
    assert all((planned[name][chosen] > 0).all() for name in ("static", "circuits", "tail", "receiving"))
    compute_j, upload_j = 2 * decision.compute_energy_j, 0.5 * decision.upload_energy_j
    compute_j[chosen[1]] = upload_j[chosen[1]] = 0.0
    found = replies(compute_energy_j=compute_j, upload_energy_j=upload_j)
    facts = radio_facts(state, conditions, decision, found)
    worked = np.array([1.0, 0.0, 1.0])
    assert facts["clock_hz"] == tuple(decision.clock_hz[chosen])
    assert facts["static_j"] == pytest.approx(2 * worked * planned["static"][chosen])
    for name in ("circuits", "tail", "receiving"):
        assert facts[f"{name}_j"] == pytest.approx(0.5 * worked * planned[name][chosen]), name


def test_a_radio_that_was_to_spend_nothing_spent_nothing_on_any_part():
    state, conditions, decision = whole_devices()
    silent = replace(decision, upload_energy_j=np.zeros(4))
    facts = radio_facts(state, conditions, silent, replies(compute_energy_j=decision.compute_energy_j))
    assert facts["circuits_j"] == facts["tail_j"] == facts["receiving_j"] == (0.0, 0.0, 0.0)
    assert all(joule > 0 for joule in facts["static_j"])


def test_a_model_without_a_choice_of_clock_splits_nothing():
    state, conditions, decision = whole_devices()
    assert "clock_hz" not in radio_facts(state, conditions, replace(decision, clock_hz=None), replies())
    fleet = Scripted(replace(EXPERIMENT, radio=RADIO))
    printed = fleet.observe(begin(fleet))
    facts = radio_facts(begin(fleet), printed, decided([0, 1], clock_hz=np.full(4, 1e9)), replies())
    assert set(facts) == {"gain", "true_gain", "compute_time_s", "upload_time_s", "queue_j", "reserved_s"}


BATTERY = replace(RADIO, battery_capacity_j=2.0, initial_charge=0.5)
SUNNY = replace(BATTERY, round_period_s=10.0, harvest=ConstantHarvest(0.01))


def test_a_battery_that_nothing_fills_pays_for_the_round_beside_the_budget():
    fleet = Scripted(replace(EXPERIMENT, radio=BATTERY), **COSTS)
    state = begin(fleet)
    assert state.accounts.batteries.charge_j.tolist() == [1.0] * 4
    assert state.accounts.scheduler.queue_j.tolist() == [0.0] * 4  # of the budget, not of the battery
    following, log = play_round(fleet, state)
    assert following.accounts.batteries.charge_j.tolist() == pytest.approx([0.65, 0.95, 0.85, 0.75])
    assert following.accounts.batteries.harvested_j.tolist() == [0.0] * 4
    assert following.accounts.batteries.empty_rounds.tolist() == [0] * 4
    assert following.accounts.scheduler.queue_j.tolist() == [0.0] * 4
    assert (log.charge_j, log.empty, log.harvest_j) == ((1.0, 1.0, 1.0), (), ())


def test_a_battery_that_fills_up_has_a_queue_of_what_it_lacks():
    fleet = Scripted(replace(EXPERIMENT, radio=SUNNY), **COSTS)
    state = begin(fleet)
    assert state.accounts.scheduler.queue_j.tolist() == [1.0] * 4
    following, log = play_round(fleet, state)
    assert following.accounts.batteries.charge_j.tolist() == pytest.approx([0.75, 1.05, 0.95, 0.85])
    assert following.accounts.scheduler.queue_j.tolist() == pytest.approx([1.25, 0.95, 1.05, 1.15])
    assert following.accounts.batteries.harvested_j.tolist() == pytest.approx([0.1] * 4)
    assert log.harvest_j == pytest.approx((0.1,) * 4)


def test_a_queue_follows_the_battery_by_night_too():
    """The sun gives joules on average, and none at midnight."""
    fleet = Scripted(replace(EXPERIMENT, radio=replace(SUNNY, harvest=SolarHarvest(peak_w=0.01, start_h=0.0))), **COSTS)
    following, log = play_round(fleet, begin(fleet))
    assert log.harvest_j == (0.0,) * 4
    assert following.accounts.batteries.charge_j.tolist() == pytest.approx([0.65, 0.95, 0.85, 0.75])
    assert following.accounts.scheduler.queue_j.tolist() == pytest.approx([1.35, 1.05, 1.15, 1.25])


class Unasked(Scripted):
    """A fleet that does not say who is without charge."""

    def observe(self, state):
        found = super().observe(state)
        return replace(found, observation=replace(found.observation, empty=None))


def test_who_is_without_charge_is_counted_where_anybody_knows():
    drained = np.array([1.0, 0.0, 1.0, 0.0])
    for kind, empty in ((Scripted, (1, 3)), (Unasked, ())):
        fleet = kind(replace(EXPERIMENT, radio=BATTERY))
        state = begin(fleet)
        batteries = replace(state.accounts.batteries, charge_j=drained)
        state = replace(state, accounts=replace(state.accounts, batteries=batteries))
        following, log = play_round(fleet, state)
        assert log.empty == empty
        assert following.accounts.batteries.empty_rounds.tolist() == [device in empty for device in range(4)]
        assert following.accounts.batteries.charge_j.tolist() == drained.tolist()
        assert log.charge_j == tuple(drained[list(log.devices)])


def test_what_an_algorithm_says_devices_are_worth_is_what_is_seen_and_who_is_worth_nothing_is_away(fleet):
    class Once(kfl.Kfl):
        """A device whose classes are all known is worth nothing any more."""

        name = "once"

        def worth(self, server, samples, counts=None):
            return np.where(np.arange(len(samples)) == int(server["known"].sum()), 0.0, 2.0 * samples)

    plain = fleet.observe(initial_state(fleet)).observation
    assert plain.samples is fleet.table.samples and plain.available.all()
    own = Scripted(replace(EXPERIMENT, algorithm=Once()))
    state = initial_state(own)
    for known, away in (([False] * 4, 0), ([True, True, False, False], 2)):
        seen = own.observe(replace(state, server={**state.server, "known": torch.tensor(known)})).observation
        assert np.flatnonzero(~seen.available).tolist() == [away]
        assert seen.samples[away] == 0
        assert np.delete(seen.samples, away).tolist() == np.delete(2 * own.table.samples, away).tolist()
