"""What a scheduler sees, decides and remembers: the parts that all of them share."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kfl.scheduling import Decision, Observation, Scheduler, SchedulerState, Status, Uplink


@dataclass(frozen=True)
class Silent(Scheduler):
    """No device, ever.

    More about it.
    """

    name: ClassVar[str] = "silent"

    def decide(self, state: SchedulerState, observation: Observation) -> Decision:
        return Decision.nobody(observation.size, Status())


def observe(uplink: bool = True, empty: bool = False) -> Observation:
    three = np.arange(1.0, 4.0)
    return Observation(
        round=2,
        seed=5,
        samples=10 * three,
        available=np.array([True, False, True]),
        compute_time_s=0.1 * three,
        base_energy_j=0.2 * three,
        battery_j=0.3 * three,
        hard_budget=True,
        uplink=Uplink(1e6, 4e-21, 1e-9 * three, 1e5 * three, 0.5 * three, three) if uplink else None,
        empty=np.array([False, True, False]) if empty else None,
        capacity_j=7.0,
    )


def test_an_observation_of_some_devices() -> None:
    few = observe(empty=True).take(np.array([2, 1]))
    assert few.size == 2 and (few.round, few.seed, few.hard_budget, few.capacity_j) == (2, 5, True, 7.0)
    for name, values in {
        "samples": [30, 20],
        "available": [True, False],
        "compute_time_s": [0.3, 0.2],
        "base_energy_j": [0.6, 0.4],
        "battery_j": [0.9, 0.6],
        "empty": [False, True],
    }.items():
        np.testing.assert_allclose(getattr(few, name), values)
    assert few.uplink is not None and few.uplink.payload_bits.tolist() == [3e5, 2e5]
    quiet = observe(uplink=False).take(np.array([0]))
    assert quiet.uplink is None and quiet.empty is None


def test_devices_without_charge_are_there_all_the_same() -> None:
    assert observe().present.tolist() == [True, False, True]
    assert observe(empty=True).present.tolist() == [True, True, True]
    assert not observe(empty=True).available[1]


def test_without_a_radio_uploads_cost_nothing_and_need_no_share() -> None:
    quiet, radio = observe(uplink=False), observe()
    assert quiet.power_floor.tolist() == [0, 0, 0] and quiet.curve.energy_j(0.5 * np.ones(3)).tolist() == [0, 0, 0]
    assert (radio.power_floor > 0).all() and (radio.curve.energy_j(0.5 * np.ones(3)) > 0).all()


def test_nobody() -> None:
    decision = Decision.nobody(3, Status("nobody_worth"))
    assert decision.chosen.tolist() == [False] * 3 and decision.status.code == "nobody_worth"
    for name in ("share", "power_w", "upload_energy_j", "upload_time_s", "compute_energy_j", "compute_time_s"):
        assert getattr(decision, name).tolist() == [0, 0, 0]
    assert np.isnan(decision.objective) and np.isnan(decision.lower_bound) and decision.clock_hz is None
    known = Decision.nobody(1, Status(), objective=2.0, lower_bound=-1.0)
    assert (known.objective, known.lower_bound, known.gap) == (2.0, -1.0, 3.0)


def test_a_scheduler_that_says_nothing_more() -> None:
    """Queues by equation (21) from nothing, no limits of its own, joules that weigh the same, no objective."""
    scheduler, seen = Silent(), observe()
    assert Silent.about() == "No device, ever." and not scheduler.order_matters and not scheduler.needs_radio
    state = scheduler.init(np.array([8.0, np.inf, 0.0]), 4)
    assert state.horizon == 4 and state.allowance_j.tolist() == [2.0, np.inf, 0.0] and state.memory == {}
    assert state.queue_j.tolist() == [0, 0, 0]
    assert scheduler.init(np.array([8.0]), 0).allowance_j.tolist() == [8.0]
    assert scheduler.init(np.array([8.0]), 1).allowance_j.tolist() == [8.0]
    after = scheduler.update(state, scheduler.decide(state, seen), np.array([5.0, 9.0, 0.25]))
    assert after.queue_j.tolist() == [3.0, 0.0, 0.25]
    assert scheduler.update(after, scheduler.decide(state, seen), np.zeros(3)).queue_j.tolist() == [1.0, 0.0, 0.25]
    assert scheduler.charged(state, np.array([7.0, 3.0, 0.0]), 7.0).queue_j.tolist() == [0, 4, 7]
    assert scheduler.limited(state, seen) is seen
    assert scheduler.energy_weight(state, seen).tolist() == [1, 1, 1]
    assert scheduler.worth(state, seen).tolist() == [np.inf] * 3
    assert np.isnan(scheduler.objective(state, seen, scheduler.decide(state, seen)))
    assert scheduler.drift_weights(np.ones(3), 4, seen.samples) is None


def test_a_scheduler_without_a_docstring_is_about_nothing() -> None:
    undocumented = type("Undocumented", (), {"__doc__": None})
    assert Scheduler.about.__func__(undocumented) == ""
