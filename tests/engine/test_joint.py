"""A run at a table with others gets what it gets alone, whatever the others do."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.algorithms import ALGORITHMS
from kfl.data import Dataset, partition
from kfl.engine import LocalData, RoundKey, Sgd, Supervised
from kfl.engine.joint import ClosedError, JointEngine
from kfl.engine.joint_calls import Train
from kfl.engine.joint_fleet import join_data, join_models
from kfl.engine.stacked import StackedEngine
from kfl.models import fleet_from_name

torch.set_num_threads(1)
DEVICES, SEEDS = 5, (3, 4, 8)
STEPS = Sgd(3, 0.05, 0.03, 0.9)


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = (0.5 * draw.normal(size=(240, 8)) + draw.normal(size=(4, 8))[y]).astype(np.float32)
    return Dataset.from_arrays(x, y)


def parts(data, seed, model="mlp", widths=(6, 9)):
    """The data and the models of one run: its own split, its own mix of widths, its own proxy samples."""
    proxy = np.random.default_rng(seed).choice(len(data.train_y), 12, replace=False)
    split = partition("dirichlet", data.train_y, data.test_y, 4, DEVICES, seed)
    return LocalData(data, split, proxy), fleet_from_name(model, widths, DEVICES, (8,), 4, seed)


def play(engine, algorithm, seed, rounds=3, test_in=(0, 1, 2)):
    """Rounds of a few devices, which differ from run to run; tests only in some rounds."""
    server, states, right = algorithm.server_init(engine, seed), {}, []
    for number in range(rounds):
        draw = np.random.default_rng([seed, number])
        chosen = sorted(draw.choice(DEVICES, draw.integers(0, 4), replace=False).tolist())
        before = [states.get(k) or algorithm.device_init(engine, k, seed) for k in chosen]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, chosen, before, engine, RoundKey(seed, number))
        server, rejected = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(seed, number))
        assert not rejected
        states.update(zip(chosen, after, strict=True))
        if number in test_in:
            every = [states.get(k) or algorithm.device_init(engine, k, seed) for k in range(DEVICES)]
            right.append(engine.correct(range(DEVICES), [algorithm.predictor(server, state) for state in every]))
    return server, states, right


def seated(table, data, tasks, **shape):
    """One thread for each seat: seed and what to do with the engine. What each returned or raised."""

    def sit(number):
        seed, task = tasks[number]
        with table.playing(number):
            return task(table.sit(number, *parts(data, seed, **shape)), seed)

    with ThreadPoolExecutor(len(tasks)) as threads:
        found = [threads.submit(sit, number) for number in range(len(tasks))]
    return [one.exception() or one.result() for one in found]


def assert_same(found, wanted, tolerance=1e-5):
    (server, states, right), (wanted_server, wanted_states, wanted_right) = found, wanted
    assert right == wanted_right and list(states) == list(wanted_states)
    for one, other in [(server, wanted_server), *((states[k], wanted_states[k]) for k in states)]:
        assert list(one) == list(other)
        for name in other:
            torch.testing.assert_close(one[name], other[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [*((name, None) for name in sorted(ALGORITHMS)), ("kfl", 8), ("fedkd", 8), ("self-knowledge", 8)],
)
def test_every_algorithm_learns_together_what_it_learns_alone(name, batch_size, data):
    """In float64, where nothing but the order of a sum is left to differ; float32 is tested with whole runs."""
    algorithm = ALGORITHMS[name](batch_size=batch_size, local_steps=3)
    shape = {"widths": (9,) if algorithm.needs_equal_models else (6, 9)}
    table = JointEngine(len(SEEDS), "cpu", "float64")
    found = seated(table, data, [(seed, lambda engine, s: play(engine, algorithm, s)) for seed in SEEDS], **shape)
    for seed, one in zip(SEEDS, found, strict=True):
        alone = StackedEngine(*parts(data, seed, **shape), "cpu", "float64")
        assert_same(one, play(alone, algorithm, seed), 1e-6 if name == "fedkd" else 1e-12)  # logits travel in float32
    assert table.batches[3] > 0


def test_a_batch_of_three_runs_is_one_training_with_everyones_own_knowledge_and_draws(data):
    """Not only the same result: what is trained at once really is one call of the engine."""
    algorithm, sizes = ALGORITHMS["kfl"](batch_size=8), []
    table = JointEngine(3, "cpu")

    def watched(engine, seed):
        before = [engine.initial(k, seed) for k in range(DEVICES)]
        message = engine.place(algorithm.broadcast(algorithm.server_init(engine, seed)))
        algorithm.local_update(message, range(DEVICES), before, engine, RoundKey(seed, 0))
        sizes.append(dict(table.batches))

    assert seated(table, data, [(seed, watched) for seed in SEEDS]) == [None] * 3
    assert sizes[0] == {1: 0, 2: 0, 3: 2}, "one training and one reading of class means"


def test_runs_that_fall_out_of_step_meet_again_at_the_next_training(data):
    algorithm = ALGORITHMS["fedrep"]()
    tests = {3: (0, 1, 2, 3), 4: (), 8: (3,)}
    table = JointEngine(3, "cpu")

    def task(engine, seed):
        states = [engine.initial(k, seed, common=True) for k in range(DEVICES)]
        server = algorithm.server_init(engine, seed)
        for number in range(4):
            message = engine.place(algorithm.broadcast(server))
            heads = [{name: value for name, value in state.items() if name.startswith("head.")} for state in states]
            algorithm.local_update(message, range(DEVICES), heads, engine, RoundKey(seed, number))
            if number in tests[seed]:
                engine.correct(range(DEVICES), states)

    assert seated(table, data, [(seed, task) for seed in SEEDS], widths=(9,)) == [None] * 3
    # Head and body of four rounds, always all three; tests of one run three times, and of two in the last round.
    assert table.batches == {1: 3, 2: 1, 3: 8}


def test_a_run_that_ends_or_fails_leaves_the_others_alone(data):
    algorithm = ALGORITHMS["kfl"]()

    def fail(engine, seed):
        play(engine, algorithm, seed, rounds=1)
        raise KeyError("mine")

    tasks = [(3, lambda engine, s: play(engine, algorithm, s)), (4, fail), (8, lambda engine, s: 7)]
    long, failed, short = seated(JointEngine(3, "cpu"), data, tasks)
    assert_same(long, play(StackedEngine(*parts(data, 3), "cpu"), algorithm, 3))
    assert isinstance(failed, KeyError) and short == 7


def test_a_table_that_is_closed_ends_every_run_at_its_next_call(data):
    """Also those that wait, and whoever asks later."""
    table, algorithm = JointEngine(3, "cpu"), ALGORITHMS["local"]()

    def close(engine, seed):
        play(engine, algorithm, seed, rounds=1)
        table.close()

    tasks = [(3, lambda engine, s: play(engine, algorithm, s)), (4, lambda engine, s: play(engine, algorithm, s))]
    *others, closer = seated(table, data, [*tasks, (8, close)])
    assert closer is None
    assert [type(one) for one in others] == [ClosedError, ClosedError]


def test_a_seat_that_is_never_taken_can_be_left(data):
    table = JointEngine(3, "cpu")
    table.leave(2)
    algorithm = ALGORITHMS["local"]()
    found = seated(table, data, [(seed, lambda engine, s: play(engine, algorithm, s)) for seed in SEEDS[:2]])
    assert all(len(right) == 3 for _, _, right in found)


def test_a_batch_that_fails_is_done_one_by_one_and_only_the_guilty_fail(data, caplog):
    def task(engine, seed):
        states = [engine.initial(k, seed) for k in range(2)]
        if seed == 4:
            del states[1]["head.bias"]
        return engine.train([0, 1], states, Supervised(), STEPS, RoundKey(seed, 0))

    with caplog.at_level(logging.WARNING, "kfl"):
        one, guilty, two = seated(JointEngine(3, "cpu"), data, [(seed, task) for seed in SEEDS], widths=(9,))
    assert isinstance(guilty, KeyError)
    assert "failed as one batch" in caplog.text
    for seed, found in ((3, one), (8, two)):
        own = StackedEngine(*parts(data, seed, widths=(9,)), "cpu")
        wanted = own.train([0, 1], [own.initial(k, seed) for k in range(2)], Supervised(), STEPS, RoundKey(seed, 0))
        for state, other in zip(found, wanted, strict=True):
            assert all(torch.allclose(state[name], other[name], atol=1e-6) for name in other)


def test_different_steps_and_losses_are_never_one_batch(data):
    table = JointEngine(3, "cpu")
    steps = {3: STEPS, 4: Sgd(1, 0.05, 0.03, 0.9), 8: STEPS}

    def task(engine, seed):
        states = [engine.initial(k, seed) for k in range(2)]
        return engine.train([0, 1], states, Supervised(), steps[seed], RoundKey(seed, 0))

    found = seated(table, data, [(seed, task) for seed in SEEDS])
    assert table.batches == {1: 1, 2: 1, 3: 0}
    for seed, states in zip(SEEDS, found, strict=True):
        own = StackedEngine(*parts(data, seed), "cpu")
        wanted = own.train(
            [0, 1], [own.initial(k, seed) for k in range(2)], Supervised(), steps[seed], RoundKey(seed, 0)
        )
        for state, other in zip(states, wanted, strict=True):
            assert all(torch.allclose(state[name], other[name], atol=1e-6) for name in other)


def dropping(input_shape, classes, width):
    """Draws random numbers, so that its devices are trained one after another."""
    body = nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Dropout(0.3))
    return kfl.SplitModel(body, nn.Linear(width, classes))


def test_modules_that_cannot_be_vectorised_draw_as_they_do_alone(data, monkeypatch):
    monkeypatch.setitem(kfl.models.fleet.MODELS, "dropping", dropping)
    algorithm, shape = ALGORITHMS["kfl"](batch_size=8), {"model": "dropping", "widths": (7,)}
    tasks = [(seed, lambda engine, s: play(engine, algorithm, s)) for seed in SEEDS]
    found = seated(JointEngine(3, "cpu"), data, tasks, **shape)
    for seed, one in zip(SEEDS, found, strict=True):
        assert_same(one, play(StackedEngine(*parts(data, seed, **shape), "cpu"), algorithm, seed), 0.0)


def test_nobody_is_asked_about_nobody(data):
    """A run without a chosen device waits for no one."""
    table = JointEngine(2, "cpu")
    with table.playing(0):
        engine = table.sit(0, *parts(data, 3))
        assert engine.train([], [], Supervised(), STEPS, RoundKey(0, 0)) == []
        assert engine.class_means([], [])[0].shape == (0, 4, engine.features)
        assert engine.logits([], [], engine.proxy()[0]).shape == (0, 12, 4)
        assert engine.correct([], []) == []
    assert engine.plan.together == 2


def test_only_runs_of_one_shape_sit_together(data):
    (one, narrow), (other, wide) = parts(data, 3), parts(data, 4, widths=(6, 10))
    with pytest.raises(ValueError, match="architectures"):
        join_models([narrow, wide])
    copied = LocalData(Dataset.from_arrays(data.train_x, data.train_y), other.partition)
    with pytest.raises(ValueError, match="one dataset"):
        join_data([one, copied])
    joined = join_data([one, other])
    assert joined.partition.devices == 2 * DEVICES
    assert joined.partition.train[DEVICES + 1] is other.partition.train[1]


def test_losses_that_differ_in_tensors_alone_are_one_batch_but_never_data_of_different_runs():
    states = [{}]
    first, second = (Train([0], states, Supervised(), STEPS, RoundKey(0, 0), None) for _ in range(2))
    assert first.batch == second.batch
    given = (torch.zeros(1, 2), torch.zeros(1))
    third, fourth = (Train([0], states, Supervised(), STEPS, RoundKey(0, 0), given) for _ in range(2))
    assert third.kind == fourth.kind and third.batch != fourth.batch
