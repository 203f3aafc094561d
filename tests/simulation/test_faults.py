"""Under every fault the accounts add up, budgets hold, the server stays sane, and the log says what happened."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kfl
from kfl.algorithms import ALGORITHMS, Upload
from kfl.cli.main import main
from kfl.core.errors import ConfigError
from kfl.experiment.faults import IN_ROUND, LASTING, Faults, corrupted, poisoned, spent_fraction
from kfl.scheduling import SCHEDULERS, Lyapunov, RoundRobin
from kfl.simulation import build_world
from kfl.simulation.round import begin, play_round
from kfl.simulation.simulated_fleet import SimulatedFleet
from tests.reference.algorithms import small
from tests.reference.toy import toy_data

SMALL = kfl.Experiment(devices=8, rounds=6, widths=(8, 12), scheduler=kfl.Uniform(count=3))
HIT = 2
"""The round in which something goes wrong."""


@pytest.fixture(scope="module")
def data():
    return toy_data(480, (5,))


def rounds_of(experiment, data, count):
    """States before and after each round, and the logs."""
    world = build_world(experiment, dataset=data)
    fleet = SimulatedFleet(world)
    states, logs = [begin(fleet)], []
    for _ in range(count):
        state, log = play_round(fleet, states[-1])
        states.append(state)
        logs.append(log)
    return world, states, logs


def same_state(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def calm(data):
    return rounds_of(SMALL, data, HIT + 1)


@pytest.mark.parametrize("kind", IN_ROUND)
@pytest.mark.parametrize("scheduler", [kfl.Uniform(count=3), Lyapunov(v=0.01)], ids=["uniform", "lyapunov"])
def test_what_a_fault_costs_and_what_it_leaves(data, kind, scheduler):
    """The table of kfl.experiment.faults, line by line, against the same round without the fault."""
    usual = replace(SMALL, scheduler=scheduler)
    world, calm_states, calm_logs = rounds_of(usual, data, HIT + 1)
    _, states, logs = rounds_of(replace(usual, faults=Faults(schedule=(f"{kind}:{HIT}:all",))), data, HIT + 1)
    assert logs[:HIT] == calm_logs[:HIT]
    before, after, log, well = states[HIT], states[HIT + 1], logs[HIT], calm_logs[HIT]
    assert log.devices == well.devices and log.devices, "a fault shows itself after the decision"
    assert [(entry["device"], entry["fault"]) for entry in log.faults] == [(device, kind) for device in log.devices]

    compute, upload = np.array(well.compute_energy_j), np.array(well.upload_energy_j)
    if kind == "drop_before":
        compute, upload = 0 * compute, 0 * upload
    elif kind == "drop_after":
        upload = 0 * upload
    elif kind == "battery_empty":
        drawn = [spent_fraction(0, HIT, device) for device in log.devices]
        assert [entry["spent_fraction"] for entry in log.faults] == drawn
        part = drawn * (compute + upload)
        compute, upload = np.minimum(part, compute), np.maximum(part - compute, 0)
        assert (part < np.array(well.compute_energy_j) + np.array(well.upload_energy_j)).all() and (part > 0).all()
    np.testing.assert_allclose(log.compute_energy_j, compute, rtol=1e-12)
    np.testing.assert_allclose(log.upload_energy_j, upload, rtol=1e-12)

    learns = kind not in ("drop_before", "battery_empty")
    for device in log.devices:
        expected = calm_states[HIT + 1].devices[device] if learns else before.devices.get(device)
        assert (after.devices.get(device) is None) == (expected is None)
        assert expected is None or same_state(after.devices[device], expected)
    assert set(log.lost) == (set(log.devices) if kind in ("drop_after", "late", "outage") else set())
    if kind == "corrupt":
        assert all(torch.isfinite(value).all() for value in after.server.values())
    else:
        assert same_state(after.server, before.server), "nothing arrived"
    sent = kind in ("late", "outage", "corrupt")
    assert log.bits_up == (well.bits_up if sent else 0)

    spent = np.zeros(8)
    spent[list(log.devices)] = compute + upload
    np.testing.assert_allclose(_total(after), _total(before) + spent, rtol=1e-12)
    allowance = world.table.budget_j / SMALL.rounds
    queue = np.maximum(before.accounts.scheduler.queue_j + spent - allowance, 0)
    np.testing.assert_allclose(after.accounts.scheduler.queue_j, queue, rtol=1e-12, atol=1e-15)


def _total(state):
    return state.accounts.compute_j + state.accounts.upload_j


def test_faults_that_do_not_hit_change_nothing(data, calm):
    unlikely = Faults(**dict.fromkeys((*IN_ROUND, "join", "leave"), 1e-12))
    assert unlikely.any and not Faults().any
    _, states, logs = rounds_of(replace(SMALL, faults=unlikely), data, HIT + 1)
    assert logs == calm[2]
    assert same_state(states[-1].server, calm[1][-1].server)
    _, _, later = rounds_of(replace(SMALL, faults=Faults(schedule=("late:5:all",))), data, HIT + 1)
    assert later == calm[2]


@given(
    st.sampled_from(IN_ROUND),
    st.floats(0.05, 0.9),
    st.sampled_from(IN_ROUND),
    st.floats(0.05, 0.9),
    st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_one_fault_never_shifts_anothers_draws(first, chance, second, other, seed):
    everybody = list(range(40))
    alone = Faults(**{first: chance}).strike(seed, 3, everybody, 40)
    both = Faults(**{second: other, first: chance}).strike(seed, 3, everybody, 40)
    for device in everybody:
        earlier = IN_ROUND.index(second) < IN_ROUND.index(first) and both.get(device) == second
        assert device not in alone or both[device] == first or earlier
        assert device in alone or both.get(device) in (None, second)


def test_probabilities_are_kept():
    """4,000 draws of 0.2: within five standard deviations of 800."""
    faults = Faults(late=0.2)
    hits = sum(len(faults.strike(1, t, list(range(40)), 40)) for t in range(100))
    assert abs(hits - 800) < 5 * np.sqrt(4000 * 0.2 * 0.8)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_who_is_not_there_is_not_chosen(data, name):
    faults = Faults(schedule=("join:3:0,1,2", "leave:2:5,6", "leave:4:7"))
    _, _, logs = rounds_of(replace(SMALL, scheduler=SCHEDULERS[name](), faults=faults), data, 6)
    for t, log in enumerate(logs):
        absent = ({0, 1, 2} if t < 3 else set()) | ({5, 6} if t >= 2 else set()) | ({7} if t >= 4 else set())
        assert not absent & set(log.devices)
    assert {device for log in logs for device in log.devices}


def test_devices_join_and_leave_at_random_rounds_for_good():
    faults = Faults(join=0.5, leave=0.5)
    there = np.array([faults.present(3, t, 200, 30) for t in range(30)])
    joined = np.diff(there.astype(int), axis=0)
    assert (there[0].sum() < 150) and (there[-1].sum() < 150)
    for device in range(200):
        changes = joined[:, device][joined[:, device] != 0].tolist()
        assert changes in ([], [1], [-1], [1, -1])


@pytest.mark.parametrize(
    "scheduler", [kfl.Uniform(count=4), RoundRobin(count=3), Lyapunov(v=0.1)], ids=lambda s: s.name
)
@settings(max_examples=6)
@given(chances=st.lists(st.floats(0, 0.5), min_size=6, max_size=6), seed=st.integers(0, 99), budget=st.floats(0.1, 3))
def test_a_hard_budget_is_never_overdrawn_and_the_accounts_add_up(data, scheduler, chances, seed, budget):
    """Budgets of none to a few rounds' worth: a round of these small models costs about a millijoule."""
    radio = kfl.CellConfig(budget_j_per_round=budget * 1e-3)
    faults = Faults(**dict(zip(IN_ROUND, chances, strict=True)), join=0.2, leave=0.2)
    experiment = replace(SMALL, seed=seed, rounds=8, scheduler=scheduler, radio=radio, hard_budget=True, faults=faults)
    world, states, logs = rounds_of(experiment, data, 8)
    spent = np.zeros(8)
    for state, log in zip(states[1:], logs, strict=True):
        spent[list(log.devices)] += np.add(log.compute_energy_j, log.upload_energy_j)
        np.testing.assert_allclose(_total(state), spent, rtol=1e-9)
        assert (_total(state) <= world.table.budget_j * (1 + 1e-12)).all()
        assert {fault["device"] for fault in log.faults} <= set(log.devices)
        assert set(log.lost) <= set(log.devices)
        assert {r["device"] for r in log.rejected} <= set(log.devices) - set(log.lost)
        assert all(torch.isfinite(value).all() for value in state.server.values() if value.is_floating_point())


def test_a_hard_budget_binds(data):
    """The budgets above are such that, unless they are hard, they are overdrawn."""
    radio = kfl.CellConfig(budget_j_per_round=2e-4)
    faults = Faults(late=0.3, battery_empty=0.3)
    used = {}
    for hard in (False, True):
        experiment = replace(SMALL, scheduler=kfl.Uniform(count=4), radio=radio, hard_budget=hard, faults=faults)
        world, states, _ = rounds_of(experiment, data, 6)
        used[hard] = float((_total(states[-1]) / world.table.budget_j).max())
    assert used[False] > 1.2 and 0.3 < used[True] <= 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_survives_every_fault(data, name):
    chaos = Faults(**dict.fromkeys(IN_ROUND, 0.15), join=0.2, leave=0.2, poisoned=0.25)
    history = kfl.run(replace(SMALL, widths=(8,), algorithm=small(name), faults=chaos), dataset=data)
    assert len(history.rounds) == 6 and 0 <= history.accuracy <= 1
    assert history.summary["faults"] == sum(len(log.faults) for log in history.rounds) > 0


@given(st.integers(0, 10**6), st.integers(0, 50))
@settings(max_examples=80)
def test_a_corrupt_upload_is_refused_or_harmless(seed, round_index):
    """Rubbish in the row of a class the device does not hold harms no device; all else is refused."""
    good = Upload(1, {"means": torch.ones(4, 3), "counts": torch.tensor([5.0, 0.0, 2.0, 0.0])})
    bad = corrupted(good, seed, round_index)
    assert all(torch.equal(good.arrays[name], torch.ones(4, 3)) for name in ("means",)), "the original is untouched"
    server = {"knowledge": torch.zeros(4, 3), "known": torch.zeros(4, dtype=torch.bool)}
    for rule in ("mean", "clip", "median", "trimmed"):
        after, rejected = kfl.Kfl(aggregation=rule).aggregate(server, [bad], engine=None, key=None)
        if rejected:
            assert after is server and [r.device for r in rejected] == [1]
        else:
            assert torch.equal(after["knowledge"], torch.tensor([[1.0] * 3, [0.0] * 3, [1.0] * 3, [0.0] * 3]))


def test_poisoned_devices_are_the_same_all_along_and_as_many_as_asked_for():
    faults = Faults(poisoned=1 / 3)
    first = faults.harmful(4, 0, 50)
    assert len(first) == 17
    assert all(faults.harmful(4, t, 50) == first for t in range(20))
    assert faults.harmful(5, 0, 50) != first
    scheduled = Faults(schedule=("poisoned:6:3,9",))
    assert scheduled.harmful(0, 5, 50) == set() and scheduled.harmful(0, 6, 50) == {3, 9}
    assert scheduled.strike(0, 7, [1, 3], 50) == {3: "poisoned"}


def test_what_poison_does_to_an_upload():
    upload = Upload(2, {"means": torch.tensor([[1.0, -2.0]]), "counts": torch.tensor([3])})
    for way, expected in (("flip", [[-1.0, 2.0]]), ("scale", [[100.0, -200.0]])):
        bad = poisoned(upload, way, 0, 0)
        assert bad.arrays["means"].tolist() == expected and bad.arrays["counts"].tolist() == [3]
    noise = poisoned(upload, "noise", 0, 0).arrays["means"]
    assert torch.isfinite(noise).all() and not torch.equal(noise, poisoned(upload, "noise", 0, 1).arrays["means"])
    assert upload.arrays["means"].tolist() == [[1.0, -2.0]]


def test_poison_reaches_the_server_and_the_device_still_learns(data, calm):
    _, states, logs = rounds_of(replace(SMALL, faults=Faults(schedule=(f"poisoned:{HIT}:all",))), data, HIT + 1)
    expected = calm[1][HIT + 1]
    assert same_state(states[-1].devices[logs[-1].devices[0]], expected.devices[logs[-1].devices[0]])
    seen = torch.tensor([False] * 4)
    for device in logs[-1].devices:
        seen |= torch.from_numpy(calm[0].partition.train_counts[device] > 0)
    torch.testing.assert_close(states[-1].server["knowledge"][seen], -expected.server["knowledge"][seen])


@pytest.mark.parametrize(
    "text",
    [
        "late",
        "late:1",
        "late:x:1",
        "late:1:",
        "late:1:a",
        "late:-1:2",
        "late:5-2:1",
        "boredom:1:1",
        "leave:1-2:3",
        "late:1:8",
        "late:1:1:1",
        "",
        "late:1:²",
        "late:99999999999:1",
    ],
)
def test_a_schedule_that_says_nothing_is_refused(text):
    with pytest.raises(ConfigError, match=r"faults\.schedule\[0\]"):
        replace(SMALL, faults=Faults(schedule=(text,))).validate()


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_probability_that_is_none_is_refused(value):
    for name in (*IN_ROUND, *LASTING):
        with pytest.raises(ConfigError, match=rf"faults\.{name} is"):
            Faults(**{name: value}).validate()


def test_faults_go_through_a_config_file():
    faults = Faults(late=0.25, poisoned=0.1, poison="scale", schedule=("late:1:0,3", "outage:2-4:all"))
    experiment = replace(SMALL, faults=faults)
    assert kfl.Experiment.from_toml(experiment.to_toml()) == experiment.resolved()
    with pytest.raises(ConfigError, match="poison is 'kindly'"):
        kfl.Experiment.from_toml('[faults]\npoison = "kindly"')


def test_faults_as_options_of_the_command(tmp_path, capsys):
    words = ["run", "--devices", "4", "--rounds", "3", "--widths", "8", "--scheduler.count", "4"]
    words += ["--no-models", "--faults.schedule", "late:1:0,3", "outage:2:all", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    rounds = kfl.load_run(tmp_path / "run")[1].rounds
    assert [{f["device"]: f["fault"] for f in log.faults} for log in rounds] == [
        {},
        {0: "late", 3: "late"},
        dict.fromkeys(range(4), "outage"),
    ]
