"""Who can take part in a round and who cannot, and why: `kfl.scheduling.share_band`, device by device."""

from dataclasses import replace

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.scheduling.allocation import SHARE_TOLERANCE, solve_shares
from kfl.scheduling.base import Observation
from kfl.scheduling.share_band import (
    _fitting,
    by_reason,
    decision_for,
    nobody_there,
    outcomes,
    reachable,
    serve,
    share_floor,
    standing,
)
from kfl.scheduling.status import OUTCOMES
from kfl.scheduling.uplink import Uplink
from tests.reference.uplinks import device_uplink, flat

CODES = tuple(OUTCOMES)


def observe(n=4, **changes):
    """Devices on a band of 1 MHz with half a second to send 100 kbit; the same channel for all."""
    link = {
        "bandwidth_hz": 1e6,
        "noise_w_per_hz": 4e-21,
        "gain": np.full(n, 1e-9),
        "payload_bits": np.full(n, 1e5),
        "time_s": np.full(n, 0.5),
        "max_power_w": np.ones(n),
    }
    link |= {name: np.asarray(changes.pop(name), float) for name in list(changes) if name in link}
    base = {
        "round": 0,
        "seed": 0,
        "samples": np.ones(n),
        "available": np.ones(n, bool),
        "compute_time_s": np.linspace(0.1, 0.4, n),
        "base_energy_j": np.linspace(0.01, 0.04, n),
        "battery_j": np.full(n, np.inf),
        "hard_budget": False,
        "uplink": Uplink(**link),
    }
    return Observation(**{**base, **changes})


def codes(positions):
    return [CODES[position] for position in positions]


def test_every_reason_and_which_comes_first():
    """Away, empty, past the deadline, out of reach, without energy: of several, the first."""
    for faults, code in (
        ({}, "not_chosen"),
        ({"battery_j": np.zeros(1)}, "no_energy"),
        ({"battery_j": np.zeros(1), "gain": [0.0]}, "out_of_reach"),
        ({"battery_j": np.zeros(1), "gain": [0.0], "time_s": [0.0]}, "past_deadline"),
        ({"gain": [0.0], "time_s": [-1.0], "empty": np.ones(1, bool), "available": np.zeros(1, bool)}, "empty"),
        ({"gain": [0.0], "time_s": [0.0], "available": np.zeros(1, bool)}, "unavailable"),
    ):
        seen = observe(1, **{"battery_j": np.ones(1), "hard_budget": True, **faults})
        assert codes(standing(seen)) == [code]
        possible, floor = reachable(seen)
        assert possible.tolist() == [code == "not_chosen"]
        assert np.isfinite(floor).tolist() == [not faults]


def test_without_a_radio_only_energy_and_presence_count():
    seen = observe(
        3,
        uplink=None,
        hard_budget=True,
        battery_j=np.array([0.005, 0.026, 0.05]),
        available=np.array([True, True, False]),
    )
    assert codes(standing(seen)) == ["no_energy", "not_chosen", "unavailable"]
    decision = serve(seen, np.ones(3, bool), np.ones(3))
    assert decision.chosen.tolist() == [False, True, False]
    assert decision.compute_energy_j.tolist() == [0.0, 0.025, 0.0]
    assert decision.compute_time_s == pytest.approx([0.0, 0.25, 0.0])
    assert decision.power_w.tolist() == decision.share.tolist() == [0.0, 0.0, 0.0]
    assert decision.clock_hz is None


def test_a_hard_budget_is_a_least_share_and_a_soft_one_is_none():
    """The share from which on the upload costs what is left next to the base; with it, exactly that is spent."""
    soft = observe(2, battery_j=np.array([0.02, 0.0]))
    assert (share_floor(soft) == soft.power_floor).all()
    base = soft.base_energy_j
    left = soft.curve.energy_j(np.array([0.3, 0.3])) * 1.5
    hard = replace(soft, hard_budget=True, battery_j=np.array([base[0] + left[0], base[1] * (1 - 1e-9)]))
    floor = share_floor(hard)
    assert soft.power_floor[0] < floor[0] < 0.3 and floor[1] == np.inf
    spent = base[0] + hard.curve.energy_j(np.full(2, floor[0]))[0]
    assert hard.battery_j[0] * (1 - 1e-9) < spent <= hard.battery_j[0]
    free = replace(hard, uplink=replace(hard.uplink, payload_bits=np.zeros(2)), battery_j=base * (1 + 1e-9))
    assert share_floor(free).tolist() == [0.0, 0.0]
    unlimited = replace(hard, battery_j=np.full(2, np.inf))
    assert share_floor(unlimited) == pytest.approx(unlimited.power_floor)


def test_who_is_left_out_is_told_by_reason():
    seen = observe(
        4,
        available=np.array([True, False, True, True]),
        time_s=[0.5, 0.5, 0.0, 0.5],
    )
    decision = serve(seen, np.array([True, True, True, False]), np.ones(4))
    assert decision.chosen.tolist() == [True, False, False, False]
    assert decision.status.code == "left_out"
    assert decision.status.devices == {"unavailable": (1,), "past_deadline": (2,)}
    assert decision.status.facts == {"chosen": 3}
    assert codes(outcomes(seen, decision)) == ["scheduled", "unavailable", "past_deadline", "not_chosen"]
    fine = serve(seen, np.array([True, False, False, True]), np.ones(4))
    assert fine.status.ok and fine.status.devices == {}


def test_the_largest_least_shares_are_crowded_out():
    """Floors of 0.3, 0.5, 0.2 and 0.4 for devices that have to radiate nearly all they may."""
    seen = observe(4)
    floors = np.array([0.3, 0.5, 0.2, 0.4])
    bits = seen.uplink.upload_time_s * floors * 1e6 * np.log2(1 + 1e-9 / (floors * 1e6 * 4e-21))
    crowded = observe(4, payload_bits=bits)
    assert share_floor(crowded) == pytest.approx(floors)
    decision = serve(crowded, np.ones(4, bool), np.ones(4))
    assert decision.chosen.tolist() == [True, False, True, True]
    assert decision.status.devices == {"crowded": (1,)}
    assert codes(outcomes(crowded, decision)) == ["scheduled", "crowded", "scheduled", "scheduled"]


def test_floors_fit_up_to_half_of_the_tolerance():
    for excess, both in ((-0.6, True), (0.0, True), (0.4, True), (0.6, False)):
        second = 0.5 + excess * SHARE_TOLERANCE
        fitting = _fitting(np.array([True, False, True, True]), np.array([0.9, 0.0, 0.5, second]))
        assert fitting.tolist() == [False, False, True, both] if excess >= 0 else fitting[[2, 3]].all()


def test_floors_that_add_up_to_the_last_sum_that_fits():
    last = 1.0 + 0.5 * SHARE_TOLERANCE
    for total, both in ((last, True), (np.nextafter(last, 2.0), False)):
        assert _fitting(np.ones(2, bool), np.array([0.5, total - 0.5])).tolist() == [True, both]


def test_of_equal_floors_the_first_stay():
    """Among others that are smaller: of 134 with an eighth each, the first seven."""
    floor = np.where(np.arange(200) % 3 == 0, 1e-4, 0.125)
    kept = np.flatnonzero(_fitting(np.ones(200, bool), floor) & (floor == 0.125))
    assert kept.tolist() == np.flatnonzero(floor == 0.125)[:7].tolist()


def test_a_hard_budget_keeps_a_margin_of_its_joules_that_rounding_cannot_spend():
    """A relative 1e-12 of the battery and one of what is left for the upload."""
    n = 50
    battery_j = observe(n).curve.energy_j(np.linspace(0.02, 0.9, n))
    seen = observe(n, base_energy_j=np.zeros(n), battery_j=battery_j, hard_budget=True)
    margin = 1 - seen.curve.energy_j(share_floor(seen)) / battery_j
    assert margin == pytest.approx(2e-12, rel=0.1)


def test_who_has_nothing_and_needs_nothing_can_take_part():
    seen = observe(1, base_energy_j=np.zeros(1), battery_j=np.zeros(1), payload_bits=[0.0], hard_budget=True)
    assert share_floor(seen).tolist() == [0.0]


def test_the_allocator_gets_the_members_alone_with_their_weights_and_floors():
    asked = []

    def allocator(uplink, weight, floor):
        asked.append((uplink.gain.tolist(), weight.tolist(), floor.tolist()))
        solution = solve_shares(uplink, weight, floor)
        return replace(solution, share=np.array([0.25, 0.5]), energy_j=np.array([1.0, 2.0]))

    seen = observe(4, gain=[1e-9, 2e-9, 3e-9, 4e-9])
    decision = serve(seen, [False, True, False, True], [9, 5, 9, 7], allocator)
    assert asked == [([2e-9, 4e-9], [5.0, 7.0], share_floor(seen)[[1, 3]].tolist())]
    assert decision.share.tolist() == [0.0, 0.25, 0.0, 0.5]
    assert decision.upload_energy_j.tolist() == [0.0, 1.0, 0.0, 2.0]
    assert decision.upload_time_s.tolist() == [0.0, 0.5, 0.0, 0.5]
    assert decision.power_w.tolist() == [0.0, 2.0, 0.0, 4.0]  # the joules over half a second
    assert decision.compute_energy_j == pytest.approx([0.0, 0.02, 0.0, 0.04])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e-300])
def test_a_weight_of_a_member_that_is_none_is_refused(bad):
    with pytest.raises(ConfigError, match=r"^weight of device 2 is .*, but must be a finite number, 0 or more"):
        serve(observe(), np.ones(4, bool), np.array([1.0, 0.0, bad, bad]))
    others = serve(observe(), np.array([True, True, False, False]), np.array([1.0, 0.0, bad, bad]))
    assert others.chosen.tolist() == [True, True, False, False]


def test_a_decision_of_given_shares():
    seen = observe(3)
    decision = decision_for(seen, np.array([2]), np.array([0.5]))
    power_w = seen.uplink.power_w(np.full(3, 0.5))[2]
    assert decision.chosen.tolist() == [False, False, True]
    assert decision.share.tolist() == [0.0, 0.0, 0.5]
    assert decision.power_w == pytest.approx([0.0, 0.0, power_w])
    assert decision.upload_energy_j == pytest.approx([0.0, 0.0, power_w * 0.5])
    assert decision.compute_time_s.tolist() == [0.0, 0.0, 0.4]
    assert decision.status.ok and decision.clock_hz is None
    nobody = decision_for(seen, np.array([], int), np.array([]))
    assert not nobody.chosen.any() and nobody.status.ok and nobody.upload_time_s.tolist() == [0.0] * 3


def test_a_decision_of_whole_devices_has_their_own_times_joules_and_clocks():
    n, one = 3, np.ones(3)
    plain = observe(n).uplink
    link = device_uplink(
        **flat(plain),
        fastest_s=0.1 * one,
        slowest_s=0.4 * one,
        work_j_s2=1e-4 * one,
        static_power_w=0 * one,
        circuit_power_w=0 * one,
        amplifier_efficiency=one,
        min_power_w=0 * one,
        once_j=0.25 * one,
        cpu_hz=1e9 * one,
    )
    seen = observe(n, uplink=link, base_energy_j=9 * one)
    decision = decision_for(seen, np.array([1]), np.array([0.5]))
    run = link.take(np.array([1])).operation(np.array([0.5]))
    assert 0.1 < decision.compute_time_s[1] == run.compute_time_s[0] < 0.6
    assert decision.compute_energy_j[1] == run.compute_energy_j[0] == pytest.approx(1e-4 / run.compute_time_s[0] ** 2)
    assert decision.clock_hz.tolist() == [0.0, pytest.approx(1e9 * 0.1 / run.compute_time_s[0]), 0.0]
    assert decision.upload_energy_j[1] == pytest.approx(0.25 + run.power_w[0] * run.upload_time_s[0])


def test_nobody_is_there_or_nobody_has_any_charge():
    gone = observe(2, available=np.zeros(2, bool))
    assert nobody_there(gone).code == "nobody_available" and nobody_there(gone).devices == {}
    dry = replace(gone, empty=np.array([False, True]))
    assert nobody_there(dry).code == "nobody_charged"
    assert nobody_there(dry).devices == {"empty": (1,)}


def test_reasons_are_told_of_those_who_were_asked_for():
    outcome = np.array([CODES.index(code) for code in ("scheduled", "not_chosen", "unavailable", "crowded", "crowded")])
    assert by_reason(outcome, np.array([True, True, True, True, False])) == {"unavailable": (2,), "crowded": (3,)}
    assert by_reason(outcome, np.ones(5, bool)) == {"unavailable": (2,), "crowded": (3, 4)}
    assert by_reason(outcome, np.array([True, True, False, False, False])) == {}
