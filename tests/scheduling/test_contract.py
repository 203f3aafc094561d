"""What every scheduler promises, tried on all of `SCHEDULERS`.

Your own scheduler joins in one line, before this file is collected (a `conftest.py` next to it will do):

    kfl.scheduling.SCHEDULERS["mine"] = Mine

If it draws at random or depends on the order of the devices, add its name to ORDERED as well.
"""

import json
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.scheduling import SCHEDULERS, Decision, Observation, Scheduler, SchedulerState, Status, Uplink
from kfl.scheduling.share_band import reachable
from kfl.scheduling.status import describe
from kfl.wireless import PRESETS, Cell
from kfl.wireless.costs import in_outage, transmit_power

HORIZON, DEVICES = 40, 30
CELLS = {
    "paper": ("paper-mnist", 640 * 32, 1.0, {}),
    "nb-iot": ("nb-iot", 640 * 32, 1.0, {}),
    "crowded": ("small-cell", 550_346 * 32, 0.5, {}),
    "circuits": ("paper-mnist", 640 * 32, 0.02, {"circuit_power_w": 0.5, "amplifier_efficiency": 0.3}),
    "free clock": ("paper-mnist", 640 * 32, 0.02, {"min_cpu_hz": 2e8, "static_power_w": 0.05, "tail_power_w": 0.1}),
    "everything": (
        "small-cell",
        550_346 * 32,
        0.5,
        {
            "min_cpu_hz": 1e8,
            "static_power_w": 0.02,
            "circuit_power_w": 0.2,
            "amplifier_efficiency": 0.4,
            "min_power_dbm": 0.0,
            "connect_energy_j": 0.01,
            "tail_power_w": 0.05,
            "tail_s": 2.0,
        },
    ),
}


@pytest.fixture(params=sorted(SCHEDULERS))
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return SCHEDULERS[request.param]()


def _frozen(value: object) -> object:
    """The same dataclass with read-only copies of its arrays: writing to one raises."""
    changes: dict[str, object] = {}
    assert is_dataclass(value)
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, np.ndarray):
            item = item.copy()
            item.setflags(write=False)
        elif is_dataclass(item):
            item = _frozen(item)
        changes[field.name] = item
    return type(value)(**changes)


def _case(scheduler: Scheduler, cell_name: str, seed: int, hard_budget: bool) -> tuple[SchedulerState, Observation]:
    """A round in the middle of a run: some devices away, some batteries low, some queues empty."""
    preset, bits, narrow, device = CELLS[cell_name]
    draw = stream(seed, "contract")
    samples = draw.integers(200, 900, DEVICES).astype(float)
    cell = Cell.build(replace(PRESETS[preset], **device), DEVICES, seed)
    link = cell.link_state(7, 5 * 550_346 * samples, bits * draw.uniform(0.5, 1.0, DEVICES))
    state = scheduler.init(cell.budget_j(HORIZON), HORIZON)
    queue = draw.exponential(0.3, DEVICES) * (draw.random(DEVICES) > 0.3)
    uplink = replace(link.uplink, bandwidth_hz=link.uplink.bandwidth_hz * narrow)
    need = uplink.base_energy_j(link.compute_energy_j)
    battery = need * draw.choice([0.5, 1.0 + 1e-7, 1.5, 5.0, 100.0], DEVICES) * (HORIZON - 7) ** draw.integers(0, 2)
    observation = Observation(
        round=7,
        seed=seed,
        samples=samples,
        available=draw.random(DEVICES) > 0.2,
        compute_time_s=link.uplink.device.fastest_s,
        base_energy_j=need,
        battery_j=battery,
        hard_budget=hard_budget,
        uplink=uplink,
    )
    frozen_state, frozen_observation = _frozen(replace(state, queue_j=queue)), _frozen(observation)
    assert isinstance(frozen_state, SchedulerState) and isinstance(frozen_observation, Observation)
    return frozen_state, frozen_observation


def _cases(scheduler: Scheduler) -> list[tuple[SchedulerState, Observation]]:
    seeds = {cell: range(2 if CELLS[cell][3] else 4) for cell in CELLS}
    return [_case(scheduler, cell, seed, hard) for cell in CELLS for seed in seeds[cell] for hard in (False, True)]


@cache
def _decided(scheduler: Scheduler) -> list[tuple[SchedulerState, Observation, Decision]]:
    """The cases with what the scheduler decides; nothing in them can be written to, so tests share them."""
    return [(state, seen, scheduler.decide(state, seen)) for state, seen in _cases(scheduler)]


def _same(one: Decision, two: Decision) -> bool:
    pairs = [(getattr(one, f.name), getattr(two, f.name)) for f in fields(Decision)]
    return all(np.array_equal(a, b, equal_nan=not isinstance(a, Status | None)) for a, b in pairs)


def test_some_case_schedules_somebody(scheduler: Scheduler) -> None:
    """Else the promises below would be kept by doing nothing."""
    sizes = [int(decision.chosen.sum()) for _, _, decision in _decided(scheduler)]
    assert max(sizes) >= 2


def test_pure(scheduler: Scheduler) -> None:
    """The same question has the same answer, and nothing that was passed in is written to."""
    for state, observation, decision in _decided(scheduler):
        assert _same(decision, scheduler.decide(state, observation))
        scheduler.update(state, decision, np.zeros(DEVICES))


def test_chosen_devices_can_take_part(scheduler: Scheduler) -> None:
    for _, observation, decision in _decided(scheduler):
        assert decision.chosen.dtype == bool and decision.chosen.shape == (DEVICES,)
        assert not (decision.chosen & ~reachable(observation)[0]).any()


def test_band_and_power_limits(scheduler: Scheduler) -> None:
    for _, observation, decision in _decided(scheduler):
        assert observation.uplink is not None
        assert decision.share.sum() <= 1 + 1e-9
        assert (decision.share >= 0).all() and (decision.power_w >= 0).all()
        assert (decision.power_w <= observation.uplink.max_power_w * (1 + 1e-9)).all()
        assert (decision.share[decision.chosen] > 0).all()
        times = (decision.upload_time_s, decision.compute_time_s)
        energies = (decision.upload_energy_j, decision.compute_energy_j)
        for array in (decision.share, decision.power_w, *times, *energies):
            assert (array[~decision.chosen] == 0).all() and np.isfinite(array).all()


def test_uploads_arrive_before_the_deadline_at_the_stated_energy(scheduler: Scheduler) -> None:
    """By the formulas of `kfl.wireless`, which no scheduler uses."""
    for _, observation, decision in _decided(scheduler):
        uplink = observation.uplink
        assert uplink is not None
        on = decision.chosen
        assert (decision.upload_time_s[on] <= uplink.upload_time_s[on] * (1 + 1e-12)).all()
        radio = (uplink.bandwidth_hz, uplink.noise_w_per_hz)
        sent = (decision.share[on], decision.power_w[on], uplink.payload_bits[on], decision.upload_time_s[on])
        assert not in_outage(*sent, uplink.gain[on], *radio).any()
        power = transmit_power(
            decision.share[on], uplink.payload_bits[on], decision.upload_time_s[on], uplink.gain[on], *radio
        )
        assert decision.power_w[on] == pytest.approx(power, rel=1e-9)
        if uplink.device.is_paper_model:
            assert decision.upload_energy_j[on] == pytest.approx(power * decision.upload_time_s[on], rel=1e-9)
            assert (decision.compute_energy_j[on] == observation.base_energy_j[on]).all()


def test_whole_devices_keep_their_limits_and_spend_what_the_parts_add_up_to(scheduler: Scheduler) -> None:
    """By the formulas of the model, and by the cost curve."""
    served = 0
    for _, observation, decision in _decided(scheduler):
        uplink = observation.uplink
        if uplink.device.is_paper_model:
            assert decision.clock_hz is None
            continue
        on = np.flatnonzero(decision.chosen)
        if not len(on):
            continue
        served += len(on)
        one, work_s, send_s = uplink.take(on), decision.compute_time_s[on], decision.upload_time_s[on]
        assert (work_s >= one.device.fastest_s * (1 - 1e-12)).all() and (
            work_s <= one.device.slowest_s * (1 + 1e-12)
        ).all()
        assert (work_s + send_s <= (one.device.fastest_s + one.upload_time_s) * (1 + 1e-12)).all()
        assert (decision.power_w[on] >= one.device.min_power_w * (1 - 1e-9)).all()
        assert decision.clock_hz is not None
        assert decision.clock_hz[on] * work_s == pytest.approx(one.device.cpu_hz * one.device.fastest_s, rel=1e-12)
        compute_j = one.device.work_j_s2 / work_s**2 + one.device.static_power_w * work_s
        send_w = decision.power_w[on] / one.device.amplifier_efficiency + one.device.circuit_power_w
        assert decision.compute_energy_j[on] == pytest.approx(compute_j, rel=1e-12)
        assert decision.upload_energy_j[on] == pytest.approx(send_w * send_s + one.device.once_j, rel=1e-12)
        whole_j = observation.base_energy_j[on] + one.curve.energy_j(decision.share[on])
        assert compute_j + decision.upload_energy_j[on] == pytest.approx(whole_j, rel=1e-9)
        parts = decision.parts_j(observation.uplink)
        assert parts["computing"] + parts["static"] == pytest.approx(decision.compute_energy_j, rel=1e-12)
        radio_j = sum(parts[name] for name in ("radiating", "circuits", "tail", "receiving"))
        assert radio_j == pytest.approx(decision.upload_energy_j, rel=1e-12)
    assert served > 0


def test_a_hard_budget_is_never_overspent(scheduler: Scheduler) -> None:
    served = 0
    for _, observation, decision in _decided(scheduler):
        if observation.hard_budget:
            spent = np.where(decision.chosen, decision.compute_energy_j + decision.upload_energy_j, 0.0)
            assert (spent <= observation.battery_j).all()
            served += int(decision.chosen.sum())
    assert served > 0


def test_nobody_to_schedule_is_a_sentence(scheduler: Scheduler) -> None:
    state, observation = _case(scheduler, "paper", 0, hard_budget=False)
    assert observation.uplink is not None
    late = replace(observation, uplink=replace(observation.uplink, time_s=observation.uplink.device.fastest_s - 0.1))
    away = replace(observation, available=np.zeros(DEVICES, dtype=bool))
    broke = replace(observation, battery_j=np.zeros(DEVICES), hard_budget=True)
    deaf = replace(observation, uplink=replace(observation.uplink, gain=np.zeros(DEVICES)))
    for nothing in (late, away, broke, deaf):
        decision = scheduler.decide(state, nothing)
        assert not decision.chosen.any() and decision.share.sum() == 0
        assert not decision.status.ok and describe(decision.status).endswith(".")
        assert Status.from_dict(json.loads(json.dumps(decision.status.to_dict()))) == decision.status
        following = scheduler.update(state, decision, np.zeros(DEVICES))
        assert (following.queue_j <= state.queue_j).all()


def test_the_names_of_devices_do_not_matter(scheduler: Scheduler) -> None:
    if scheduler.order_matters:
        pytest.skip("depends on the order of the devices by design")
    for state, observation, decision in _decided(scheduler):
        order = stream(0, "permutation").permutation(DEVICES)
        moved = scheduler.decide(_permuted(state, order), _permuted(observation, order))
        assert (moved.chosen == decision.chosen[order]).all()
        assert moved.share == pytest.approx(decision.share[order], rel=1e-6, abs=1e-12)


def _permuted(thing: Any, order: np.ndarray) -> Any:
    changes: dict[str, object] = {}
    for field in fields(thing):
        item = getattr(thing, field.name)
        if isinstance(item, np.ndarray):
            changes[field.name] = item[order]
        elif isinstance(item, Uplink):
            changes[field.name] = item.take(order)
    return replace(thing, **changes)


def test_queues_follow_their_equation(scheduler: Scheduler) -> None:
    """Equation (21): q(t+1) = max(q(t) + spent − E/T, 0), from zero."""
    budget_j = np.array([4.0, 40.0, np.inf])
    state = scheduler.init(budget_j, HORIZON)
    assert state.horizon == HORIZON and (state.queue_j == 0).all()
    decision = replace(Decision.nobody(3, Status()), chosen=np.array([True, True, False]))
    for spent in ([0.5, 0.5, 0.0], [0.0, 2.0, 9.0], [0.0, 0.0, 0.0]):
        following = scheduler.update(state, decision, np.array(spent))
        expected = np.maximum(state.queue_j + spent - budget_j / HORIZON, 0)
        assert following.queue_j == pytest.approx(expected)
        assert following.horizon == HORIZON and (following.allowance_j == state.allowance_j).all()
        state = following
    assert state.queue_j == pytest.approx([0.2, 0.0, 0.0])


def test_works_without_a_radio(scheduler: Scheduler) -> None:
    state, observation = _case(scheduler, "paper", 1, hard_budget=False)
    quiet = replace(observation, uplink=None, battery_j=np.full(DEVICES, np.inf))
    if scheduler.needs_radio:
        with pytest.raises(ConfigError, match="radio"):
            scheduler.decide(state, quiet)
        return
    decision = scheduler.decide(state, quiet)
    assert decision.chosen.any() and not (decision.chosen & ~quiet.available).any()
    assert decision.upload_energy_j.sum() == 0 and decision.upload_time_s.sum() == 0


def test_a_bound_is_a_bound(scheduler: Scheduler) -> None:
    for _, _, decision in _decided(scheduler):
        assert not decision.lower_bound > decision.objective
