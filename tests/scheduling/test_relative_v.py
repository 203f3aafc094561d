"""V without a unit: the same decisions in any units, a bound on what devices overspend, patience in a deep fade."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfl.core.errors import ConfigError
from kfl.core.randomness import stream
from kfl.experiment import Experiment
from kfl.paper.figures import schedulers
from kfl.scheduling import Dual, Lyapunov, Observation, SchedulerState, Uplink, cell_problem, data_weight
from kfl.scheduling.horizon import play
from kfl.wireless import PRESETS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "paper" / "results.jsonl"
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
            upload_time_s=1 - compute_s,
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
@settings(max_examples=25, deadline=None)
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
    problem = cell_problem(PRESETS[cell], 20, rounds, 7, flops=1.65e9, payload_bits=640 * 32, samples=600)
    allowance_j = problem.budget_j / rounds
    v = scheduler.printed_v(scheduler.init(problem.budget_j, rounds), problem.samples)
    limit_j, spent_j, dearest_j = np.zeros((3, 20))
    for one in play(problem, scheduler):
        t, who = one.observation.round, one.decision.chosen
        energy_j = one.compute_j + one.upload_j
        spent_j, dearest_j = spent_j + energy_j, np.maximum(dearest_j, energy_j)
        worth = v * data_weight("inverse", t) * problem.samples
        assert (one.before.queue_j[who] * energy_j[who] <= worth[who] * (1 + 1e-9)).all()
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
    link = replace(observation.uplink, max_power_w=np.ones(1), upload_time_s=np.ones(1), payload_bits=np.full(1, 1e4))
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


@pytest.mark.parametrize(("field", "value"), [("relative_v", -1.0), ("relative_v", np.nan), ("dearest_upload", 0.0)])
def test_values_that_cannot_work_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"scheduler\.{field} is"):
        Lyapunov(**{field: value})


def test_runs_with_a_printed_v_are_found_by_the_digest_of_the_version_before():
    committed = {row["run"]: row["digest"] for row in map(json.loads, RESULTS.read_text().splitlines())}
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
    problem = cell_problem(
        PRESETS["paper-mnist-free-clock"], 40, 200, 7, flops=1.65e9, payload_bits=640 * 32, samples=600
    )
    observation = next(iter(play(problem, Dual()))).observation
    state = SchedulerState(200, np.full(40, 0.1), np.where(np.arange(40) < 20, 0.0, 0.05))
    spent_j = {}
    for epsilon in (1e-6, 0.01):
        decision = kind(device_epsilon=epsilon).decide(state, observation)
        assert decision.chosen.all()
        spent_j[epsilon] = (decision.compute_energy_j + decision.upload_energy_j).reshape(2, 20).sum(axis=1)
    empty, full = spent_j[0.01] / spent_j[1e-6]
    assert empty < 0.6 and full < 1.01
