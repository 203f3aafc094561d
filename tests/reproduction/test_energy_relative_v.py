"""V without a unit: the same decisions in any units, a bound on what devices overspend, patience in a deep fade."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.comparison.records import read_records
from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.experiment import Experiment
from kfl.scheduling import Dual, Lyapunov, Observation, SchedulerState, Uplink
from kfl.scheduling.objective import data_weight
from kfl.scheduling.simulate import simulate
from kfl.wireless import PRESETS, Cell
from reproduction.figures import schedulers

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "paper"
KINDS = pytest.mark.parametrize("kind", [Lyapunov, Dual], ids=lambda kind: kind.name)


def some_round(seed: int, joule: float = 1.0, sample: float = 1.0) -> tuple[SchedulerState, Observation]:
    """A round in which some are worth their energy: powers, budgets and queues in units of 1/joule J, data likewise."""
    draw, devices = stream(seed, "units"), 12
    compute_s = draw.uniform(0.2, 0.8, devices)
    state = SchedulerState(
        100, joule * draw.uniform(0.05, 0.2, devices), joule * draw.choice([0.0, 0.01, 0.1, 1.0], devices)
    )
    observation = Observation(
        round=40,
        seed=seed,
        samples=sample * draw.uniform(100, 1000, devices),
        available=np.ones(devices, dtype=bool),
        compute_time_s=compute_s,
        base_energy_j=joule * draw.uniform(0.02, 0.3, devices),
        battery_j=np.full(devices, np.inf),
        hard_budget=False,
        uplink=Uplink(
            bandwidth_hz=1e5,
            noise_w_per_hz=joule * 4e-21,
            gain=10 ** draw.uniform(-13, -9, devices),
            payload_bits=draw.uniform(1e3, 1e5, devices),
            time_s=1 - compute_s,
            max_power_w=np.full(devices, joule * 0.5),
        ),
    )
    return state, observation


@KINDS
@given(
    seed=st.integers(0, 10**6),
    joule=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
    sample=st.sampled_from([1e-2, 1.0, 1e3]),
)
@settings(max_examples=25)
def test_decisions_do_not_depend_on_the_units(kind, seed, joule, sample):
    plain = kind().decide(*some_round(seed))
    scaled = kind().decide(*some_round(seed, joule, sample))
    np.testing.assert_array_equal(plain.chosen, scaled.chosen)
    np.testing.assert_allclose(scaled.share, plain.share, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(scaled.upload_energy_j, joule * plain.upload_energy_j, rtol=1e-6)
    assert scaled.objective == pytest.approx(joule**2 * plain.objective, rel=1e-6)


@KINDS
@pytest.mark.parametrize("gamma", ["inverse", "constant"])
@pytest.mark.parametrize("horizon", [1, 20, 300])
def test_what_a_device_is_worth_in_the_last_round(kind, gamma, horizon):
    """A fleet of equals: taken in the last round as long as q E < e², whatever the horizon and γ."""
    devices = 4
    for queue, taken in ((0.19, True), (0.21, False)):
        state = SchedulerState(horizon, np.full(devices, 0.2), np.full(devices, queue))
        observation = replace(
            some_round(0)[1].take(np.arange(devices)),
            round=horizon - 1,
            samples=np.full(devices, 700.0),
            base_energy_j=np.full(devices, 0.2),
            uplink=None,
        )
        assert kind(gamma=gamma).decide(state, observation).chosen.all() == taken


@pytest.mark.parametrize("cell", ["paper-mnist", "paper-mnist-modem", "small-cell", "5g-phone", "nb-iot", "wifi"])
@pytest.mark.parametrize("rounds", [10, 60])
def test_nobody_overspends_by_more_than_its_last_participation_explains(cell, rounds):
    """Whom the dual scheduler takes has q E ≤ V γ D, and then rests: so its overspend is bounded round by round."""
    scheduler = Dual()
    problem = Cell.build(PRESETS[cell], 20, 7).problem(rounds, flops=1.65e9, payload_bits=640 * 32, samples=600)
    allowance_j = problem.budget_j / rounds
    v = scheduler.printed_v(scheduler.init(problem.budget_j, rounds), problem.samples)
    limit_j, spent_j, dearest_j = np.zeros((3, 20))
    for one in simulate(problem, scheduler):
        t, who = one.observation.round, one.decision.chosen
        energy_j = one.compute_j + one.upload_j
        spent_j, dearest_j = spent_j + energy_j, np.maximum(dearest_j, energy_j)
        worth = v * data_weight("inverse", t) * problem.samples
        assert (one.before.scheduler.queue_j[who] * energy_j[who] <= worth[who] * (1 + 1e-9)).all()
        beyond_j = energy_j[who] - one.observation.base_energy_j[who]  # connecting and tail are not what a fade costs
        assert (beyond_j <= 10 * allowance_j[who] * (1 + 1e-9)).all()
        left_j = worth[who] / energy_j[who] + energy_j[who] - (rounds - t) * allowance_j[who]
        limit_j[who] = np.maximum(limit_j[who], left_j)
    assert (spent_j - problem.budget_j <= limit_j * (1 + 1e-9) + 1e-12).all()
    assert (spent_j - problem.budget_j <= dearest_j).all()  # so in all of these cells by less than one participation


@KINDS
def test_a_deep_fade_is_waited_out_unless_v_is_printed(kind):
    """One device that reaches the server at half its power, which costs it 200 budgets per round."""
    observation = some_round(0)[1].take(np.arange(1))
    link = replace(observation.uplink, max_power_w=np.ones(1), time_s=np.ones(1), payload_bits=np.full(1, 1e4))
    seen = replace(observation, uplink=replace(link, gain=link.gain * float(link.power_w(1.0)[0]) / 0.5))
    state = SchedulerState(1000, np.full(1, 0.5 / 200), np.zeros(1))
    assert not kind().decide(state, seen).chosen.any()
    assert kind(dearest_upload=201.0).decide(state, seen).chosen.all()
    assert kind(dearest_upload=np.inf).decide(state, seen).chosen.all()
    assert kind(v=0.01).decide(state, seen).chosen.all()
    assert kind(v=0.01, relative_v=7.0, dearest_upload=1e-9).decide(state, seen).chosen.all()


@KINDS
def test_without_budgets_everybody_who_can_is_worth_it(kind):
    state, observation = some_round(3)
    free = replace(state, allowance_j=np.full(12, np.inf), queue_j=np.zeros(12))
    np.testing.assert_array_equal(
        kind().decide(free, observation).chosen, kind(v=0.01).decide(free, observation).chosen
    )


def test_runs_with_a_printed_v_are_found_by_the_digest_of_the_version_before():
    committed = {row["run"]: row["digest"] for row in read_records(RESULTS)}
    lines = [line for panel in schedulers("fig4a", "mnist", 2, "accuracy").panels for line in panel.lines]
    printed = [line for line in lines if line.style in ("v0.01", "v0.1")]
    assert len(printed) == 6
    for line in printed:
        experiment = replace(line.experiment, seed=3)
        assert committed[f"{line.key} seed3"] == experiment.digest()
        other = replace(experiment.scheduler, relative_v=9.0, dearest_upload=2.0)
        assert replace(experiment, scheduler=other).digest() == experiment.digest()


def test_the_relative_v_tells_runs_apart_where_it_decides():
    one = Experiment(scheduler=Dual())
    assert one.digest() != Experiment(scheduler=Dual(relative_v=2.0)).digest()
    assert one.digest() != Experiment(scheduler=Dual(dearest_upload=5.0)).digest()
    assert Experiment.from_toml(one.to_toml()).scheduler == Dual()
    assert Experiment.from_table({"scheduler": {"name": "dual", "v": 0.1}}).scheduler == Dual(v=0.1)


@KINDS
def test_whole_devices_with_empty_queues_need_not_hurry(kind):
    """A narrow share would make them compute at the fastest clock; the others would save next to nothing by it."""
    cell = Cell.build(PRESETS["paper-mnist-free-clock"], 40, 7)
    problem = cell.problem(200, flops=1.65e9, payload_bits=640 * 32, samples=600)
    observation = next(iter(simulate(problem, Dual()))).observation
    state = SchedulerState(200, np.full(40, 0.1), np.where(np.arange(40) < 20, 0.0, 0.05))
    spent_j = {}
    for epsilon in (1e-6, 0.01):
        decision = kind(device_epsilon=epsilon).decide(state, observation)
        assert decision.chosen.all()
        spent_j[epsilon] = (decision.compute_energy_j + decision.upload_energy_j).reshape(2, 20).sum(axis=1)
    empty, full = spent_j[0.01] / spent_j[1e-6]
    assert empty < 0.6 and full < 1.01


# ── The weights in numbers ───────────────────────────────────────────────────


def few(**changes: object) -> tuple[SchedulerState, Observation]:
    """Budgets per round of 2 J, 4 J, none and 0 J (mean 3), data 100, 300 and 0 (mean 200), round 4 of 10."""
    state = SchedulerState(10, np.array([2.0, 4.0, np.inf, 0.0]), np.array([0.0, 0.5, 2.0, 0.0]))
    seen = replace(
        some_round(0)[1].take(np.arange(4)),
        round=4,
        samples=np.array([100.0, 300.0, 0.0, 0.0]),
        base_energy_j=np.array([0.1, 0.2, 0.3, 0.6]),
    )
    return state, replace(seen, **changes)


def test_v_is_a_number_of_squared_budgets_per_sample_in_the_last_round() -> None:
    state, seen = few()
    assert Lyapunov(relative_v=0.5).printed_v(state, seen.samples) == pytest.approx(0.5 * 3**2 / (0.1 * 200))
    assert Lyapunov(gamma="constant").printed_v(state, seen.samples) == pytest.approx(3**2 / 200)
    assert Lyapunov(v=0.7, relative_v=9.0).printed_v(state, seen.samples) == 0.7
    assert Lyapunov(v=0.0).printed_v(state, seen.samples) == 0
    assert Lyapunov().printed_v(state, np.array([0.5, 1.0, 0.0, 0.0])) == pytest.approx(3**2 / (0.1 * 0.75))
    # Without budgets a joule is the unit, without data a sample.
    free = replace(state, allowance_j=np.full(4, np.inf))
    assert Lyapunov().printed_v(free, np.zeros(4)) == pytest.approx(1 / 0.1)
    assert Lyapunov(relative_v=1e30).printed_v(state, seen.samples / 100) == 1e30
    # Data that weigh nothing in the last rounds: the last weight that is one counts; where none is, 1.
    assert Lyapunov(gamma="operator:not_").printed_v(state, seen.samples) == pytest.approx(3**2 / 200)
    assert Lyapunov(gamma=f"{__name__}:nothing").printed_v(state, seen.samples) == pytest.approx(3**2 / 200)
    assert Lyapunov(gamma=f"{__name__}:early").printed_v(state, seen.samples) == pytest.approx(3**2 / (4 * 200))


def nothing(round_index: int) -> float:
    """γ: data never weigh anything."""
    return 0.0


def early(round_index: int) -> float:
    """γ: 2 in round 0, 3 and 4 in the next ones, then nothing."""
    return (2.0, 3.0, 4.0)[round_index] if round_index < 3 else 0.0


def test_where_a_harvest_fills_batteries_v_is_half_a_battery_in_every_round() -> None:
    state, seen = few(capacity_j=8.0)
    mean_j = (0.1 + 0.2 + 0.3 + 0.6) / 4
    assert Dual(relative_v=2.0).round_v(state, seen) == pytest.approx(2 * 4.0 * mean_j / (1 / 5 * 200))
    assert Dual(gamma="operator:not_").round_v(state, seen) == pytest.approx(4.0 * mean_j / 200)  # γ_4 = 0
    assert Dual(relative_v=1e30).round_v(state, replace(seen, capacity_j=1e6)) == 1e30
    assert Dual(v=0.7).round_v(state, seen) == 0.7
    assert Dual().round_v(*few()) == Dual().printed_v(state, seen.samples)
    # What data are worth in a round does not depend on the round.
    for t in (0, 9):
        assert Dual().worth(state, replace(seen, round=t))[0] == pytest.approx(4.0 * mean_j * 100 / 200)


@KINDS
def test_worth_weights_and_gamma_of_a_round(kind) -> None:
    state, seen = few()
    scheduler = kind(v=0.25)
    data = 0.25 / 5 * np.array([100.0, 300.0, 0.0, 0.0])
    np.testing.assert_allclose(scheduler.worth(state, seen), data - np.array([0.0, 0.5 * 0.2, 2.0 * 0.3, 0.0]))
    np.testing.assert_allclose(scheduler.energy_weight(state, seen), state.queue_j + 1e-6 * 3, rtol=1e-14)
    assert replace(scheduler, epsilon=0.5).small_price(state, seen) == pytest.approx(1.5)
    assert replace(scheduler, epsilon=0.5).small_price(state, replace(seen, uplink=None)) == pytest.approx(1.5)
    v, gamma = kind(relative_v=0.5).drift_weights(10 * state.allowance_j, 10, seen.samples)
    assert v == pytest.approx(0.5 * 3**2 / (0.1 * 200))
    np.testing.assert_allclose(gamma, 1 / np.arange(1, 11))


@KINDS
def test_a_joule_of_a_whole_device_has_its_own_small_price(kind) -> None:
    cell = Cell.build(PRESETS["paper-mnist-modem"], 4, 7)
    problem = cell.problem(10, flops=1.65e9, payload_bits=640 * 32, samples=600)
    observation = next(iter(simulate(problem, Dual()))).observation
    state, _ = few()
    assert kind().small_price(state, observation) == pytest.approx(0.01 * 3)
    assert kind(device_epsilon=0.2, epsilon=7.0).small_price(state, observation) == pytest.approx(0.6)


def test_the_dearest_upload_is_a_limit_on_what_a_round_may_cost() -> None:
    state, seen = few(battery_j=np.array([1.0, 100.0, np.inf, 5.0]))
    limited = Dual(dearest_upload=3.0).limited(state, seen)
    assert limited.hard_budget
    np.testing.assert_allclose(limited.battery_j, [0.1 + 3 * 2, 0.2 + 3 * 4, np.inf, 0.6])
    hard = Dual(dearest_upload=3.0).limited(state, replace(seen, hard_budget=True))
    np.testing.assert_allclose(hard.battery_j, [1.0, 0.2 + 3 * 4, np.inf, 0.6])
    harvest = Dual().limited(state, replace(seen, capacity_j=8.0))
    np.testing.assert_allclose(harvest.battery_j, 11 * seen.base_energy_j)
    for free in (Dual(v=0.1), Dual(dearest_upload=np.inf)):
        assert free.limited(state, seen) is seen
    quiet = replace(seen, uplink=None)
    assert Dual().limited(state, quiet) is quiet


@pytest.mark.parametrize("field", ["v", "relative_v", "epsilon", "device_epsilon"])
def test_weights_are_numbers_from_0_to_1e30(field) -> None:
    for value in (0.0, 1e30):
        assert getattr(Dual(**{field: value}), field) == value
    for value in (-1e-300, 1.1e30, np.inf, np.nan):
        with pytest.raises(ConfigError, match=rf"^scheduler\.{field} is .*, but must be a number from 0 to 1e\+30"):
            Dual(**{field: value})


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_the_dearest_upload_is_above_nothing(value) -> None:
    with pytest.raises(ConfigError, match=r"^scheduler\.dearest_upload"):
        Dual(dearest_upload=value)
    assert Dual(dearest_upload=1e-300).dearest_upload == 1e-300


def test_the_weight_of_a_round_is_a_finite_number_from_0() -> None:
    assert data_weight("operator:not_", 3) == 0.0 and data_weight("math:sqrt", 9) == 3.0
    for gamma, t in (("operator:neg", 1), ("math:exp", 1000), (f"{__name__}:no_number", 0), (f"{__name__}:endless", 0)):
        with pytest.raises((ConfigError, OverflowError)):
            data_weight(gamma, t)


def test_a_weight_that_cannot_be_is_found_before_a_run_starts() -> None:
    with pytest.raises(ConfigError, match=rf"^{__name__}:late_start\(0\) is -1\.0"):
        Dual(gamma=f"{__name__}:late_start")


def late_start(round_index: int) -> float:
    """γ: wrong in round 0 alone."""
    return 1.0 if round_index else -1.0


def no_number(round_index: int) -> float:
    """γ: not a number."""
    return float("nan")


def endless(round_index: int) -> float:
    """γ: infinite."""
    return float("inf")
