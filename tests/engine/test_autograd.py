"""The engine of CPU cores: the same as plain loops, for every network, objective and number of workers."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kfl.algorithms import FedAvg, FedKd, FedRep, Kfl
from kfl.data import Dataset, partition
from kfl.engine import LocalData, Mixture, RoundKey, Sgd, Supervised
from kfl.engine.cache import BoundedCache
from kfl.engine.plan import Plan, make_engine
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

KEY = RoundKey(0, 0)
SGD = Sgd(5, 0.05, 0.05, 0.9)


def fleet(model="mlp", shape=(1, 14, 14), samples=40, devices=6, widths=(12, 20), proxy=None):
    draw = np.random.default_rng(0)
    y = np.arange(samples * devices) % 10
    patterns = draw.random((10, *shape))
    x = (patterns[y] * 160 + draw.random((len(y), *shape)) * 90).astype(np.uint8)
    data = Dataset("made up", x, y, x[: len(x) // 4], y[: len(y) // 4], 10, scale=1 / 255)
    split = partition("shards", data.train_y, data.test_y, 10, devices, 0)
    models = fleet_from_name(model, widths, devices, shape, 10, seed=0)
    return LocalData(data, split, proxy), models


def plain_kfl():
    path = Path(__file__).parents[2] / "examples" / "plain_kfl.py"
    spec = importlib.util.spec_from_file_location("plain_kfl", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(engine, algorithm, schedule, seed=0):
    """Rounds as the simulator plays them; returns server, device states and right predictions of all."""
    server, states = algorithm.server_init(engine, seed), {}
    for t, chosen in enumerate(schedule):
        before = [states[k] if k in states else algorithm.device_init(engine, k, seed) for k in chosen]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, chosen, before, engine, RoundKey(seed, t))
        server, rejected = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(seed, t))
        assert not rejected
        states.update(zip(chosen, after, strict=True))
    devices = range(6)
    held = [states.get(k, algorithm.device_init(engine, k, seed)) for k in devices]
    right = engine.correct(devices, [algorithm.predictor(server, state) for state in held])
    return server, held, right


SCHEDULE = [[0, 2, 5], [1, 2, 3, 4], [0, 5]]


@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 14, 14)), ("cnn", (3, 20, 20))])
def test_three_rounds_are_those_of_the_plain_loop(model, shape):
    data, models = fleet(model, shape)
    engine = make_engine(data, models)
    server, states, _ = play(engine, Kfl(), SCHEDULE)
    modules = []
    for device in range(6):
        modules.append(models.builders[models.architecture[device]]())
        modules[-1].load_state_dict(models.initial(device, 0))
    train = [data.read(device, "train") for device in range(6)]
    trained, knowledge = plain_kfl().plain_kfl(modules, train, SCHEDULE, 10, 64)
    torch.testing.assert_close(server["knowledge"], knowledge, atol=1e-5, rtol=0)
    for state, module in zip(states, trained, strict=True):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(state[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedRep(), FedKd(proxy_per_class=2)], ids=lambda a: a.name)
@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 14, 14)), ("cnn", (3, 20, 20))])
def test_every_algorithm_gets_what_autograd_gives_it(algorithm, model, shape):
    data, models = fleet(model, shape, widths=(16,), proxy=np.arange(20))
    runs = [play(engine, algorithm, SCHEDULE) for engine in (PlainEngine(data, models), make_engine(data, models))]
    (slow, slow_states, slow_right), (fast, fast_states, fast_right) = runs
    assert slow_right == fast_right
    for one, other in zip([slow, *slow_states], [fast, *fast_states], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 14, 14)), ("cnn", (3, 20, 20))])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_plan_repeats_bit_for_bit_with_any_number_of_workers_and_any_company(model, shape, precision):
    data, models = fleet(model, shape)
    first = make_engine(data, models, precision=precision)
    plan = Plan.read(first.plan.table())
    states = [first.initial(k, 0) for k in range(6)]
    kept = [{name: value.clone() for name, value in state.items()} for state in states]
    trained = first.train(range(6), states, Supervised(), SGD, KEY)
    again = make_engine(data, models, plan=replace(plan, workers=3))
    reversed_order = again.train([5, 4, 3, 2, 1, 0], states[::-1], Supervised(), SGD, KEY)[::-1]
    for device in range(6):
        alone = first.train([device], [states[device]], Supervised(), SGD, KEY)[0]
        for name, value in trained[device].items():
            assert torch.equal(value, reversed_order[device][name])
            assert torch.equal(value, alone[name])
            assert torch.equal(states[device][name], kept[device][name])
            assert value.data_ptr() not in {alone[name].data_ptr(), states[device][name].data_ptr()}


@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 14, 14)), ("cnn", (3, 20, 20))])
def test_bf16_stays_close(model, shape):
    data, models = fleet(model, shape)
    exact, short = make_engine(data, models), make_engine(data, models, precision="bf16")
    states = [exact.initial(k, 0) for k in range(6)]
    one, other = (engine.train(range(6), states, Supervised(), SGD, KEY) for engine in (exact, short))
    for before, mine, theirs in zip(states, one, other, strict=True):
        moved = sum(float((mine[name] - before[name]).square().sum()) for name in mine) ** 0.5
        apart = sum(float((mine[name] - theirs[name]).square().sum()) for name in mine) ** 0.5
        assert 0 < apart < 0.05 * moved
        assert all(value.dtype == torch.float32 for value in theirs.values())


class CountsItsCalls(nn.Module):
    """A layer with state that it changes in place, and that changes what it computes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.inner = nn.Linear(6, 5)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return torch.relu(self.inner(x)) / (1 + self.calls)


def other_fleet(build):
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    data = Dataset.from_arrays((draw.normal(size=(60, 6)) + y[:, None]).astype(np.float32), y)
    split = partition("iid", data.train_y, data.test_y, 3, 2, 0)
    return LocalData(data, split), fleet_from_modules([build() for _ in range(2)], 2, (6,), 3)


@pytest.mark.parametrize(
    "body",
    [
        CountsItsCalls,
        lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh()),
    ],
)
def test_any_module_is_trained_as_alone(body):
    data, models = other_fleet(lambda: SplitModel(body(), nn.Linear(5, 3)))
    engine, reference = make_engine(data, models), PlainEngine(data, models)
    states = [engine.initial(k, 0) for k in range(2)]
    one, other = (e.train([0, 1], states, Supervised(), SGD, KEY) for e in (engine, reference))
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert engine.correct([0, 1], one) == reference.correct([0, 1], one)
    for of in ("inputs", "features", "logits"):
        found, wanted = (e.class_statistics([0, 1], one, of) for e in (engine, reference))
        torch.testing.assert_close(found.means, wanted.means, atol=1e-6, rtol=1e-5)
        assert torch.equal(found.counts, wanted.counts)


@dataclass(frozen=True, eq=False)
class Augmented(Supervised):
    """A loss on inputs that it has changed: a first layer cannot be trained in the space of the samples."""

    def loss(self, forward, state, inputs, targets, weights=None):
        return super().loss(forward, state, 0.5 * inputs, targets, weights)


@dataclass(frozen=True, eq=False)
class Decayed(Supervised):
    """A loss that looks at the weights themselves."""

    def loss(self, forward, state, inputs, targets, weights=None):
        size = sum(value.square().sum() for name, value in state.items() if name.endswith("weight"))
        return super().loss(forward, state, inputs, targets, weights) + 0.01 * size


@dataclass(frozen=True, eq=False)
class Clipped(Supervised):
    """An objective that keeps weights in a box."""

    def project(self, name, value):
        return value.clamp(-0.05, 0.05)


@dataclass(frozen=True, eq=False)
class Layered(Supervised):
    """An objective in which weights and biases of a layer have different rates."""

    def rate(self, name, sgd):
        return 0.1 if name.endswith("bias") else 0.02


@pytest.mark.parametrize("objective", [Augmented(), Decayed(), Clipped(), Layered()], ids=lambda o: type(o).__name__)
def test_an_objective_of_ones_own_is_not_rewritten(objective):
    data, models = fleet(widths=(16,))
    engine, reference = make_engine(data, models, precision="float64"), PlainEngine(data, models, "float64")
    states = [engine.initial(k, 0) for k in range(3)]
    one, other = (e.train(range(3), states, objective, SGD, KEY) for e in (engine, reference))
    torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_mini_batches_and_frozen_mixtures():
    data, models = fleet(widths=(16,))
    engine, reference = make_engine(data, models), PlainEngine(data, models)
    states = [engine.initial(k, 0) for k in range(3)]
    both = [{**s, **{f"personal/{n}": v for n, v in s.items()}, "mixing": torch.tensor(0.4)} for s in states]
    cases = (
        (Supervised(), replace(SGD, batch_size=7), states),
        (Mixture(0.1), replace(SGD, body_rate=0.0), both),
        (Supervised(), replace(SGD, body_rate=0.0, head_rate=0.0), states),
    )
    for objective, sgd, start in cases:
        one, other = (e.train(range(3), start, objective, sgd, KEY) for e in (engine, reference))
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("model", "shape"), [("mlp", (1, 14, 14)), ("cnn", (3, 20, 20)), ("resnet8", (3, 8, 8))])
@pytest.mark.parametrize("batch_size", [None, 16])
def test_bf16_shortens_the_products_of_every_network(model, shape, batch_size):
    """It once computed in float32 for all but two networks, and said nothing."""
    data, models = fleet(model, shape, widths=(8,))
    exact, short = make_engine(data, models), make_engine(data, models, precision="bf16")
    states, sgd = [exact.initial(k, 0) for k in range(2)], replace(SGD, steps=1, batch_size=batch_size)
    one, other = (engine.train(range(2), states, Supervised(), sgd, KEY) for engine in (exact, short))
    for mine, theirs in zip(one, other, strict=True):
        assert not torch.equal(mine["head.weight"], theirs["head.weight"])
        assert all(value.dtype == mine[name].dtype for name, value in theirs.items())
    read, shortly = (engine.class_statistics(range(2), states, "logits").means for engine in (exact, short))
    assert not torch.equal(read, shortly) and shortly.dtype == torch.float32
    torch.testing.assert_close(read, shortly, atol=0.05, rtol=0.05)


def test_statistics_are_counts_means_and_scatter():
    data, models = fleet(widths=(16,))
    engine, reference = make_engine(data, models, precision="float64"), PlainEngine(data, models, "float64")
    states = [engine.initial(k, 0) for k in range(6)]
    for of in ("inputs", "features", "logits"):
        for clip_norm in (None, 0.3):
            found = engine.class_statistics(range(6), states, of, scatter=True, clip_norm=clip_norm)
            wanted = reference.class_statistics(range(6), states, of, scatter=True, clip_norm=clip_norm)
            torch.testing.assert_close(found.means, wanted.means)
            torch.testing.assert_close(found.scatter, wanted.scatter, atol=1e-9, rtol=1e-9)
            assert found.scatter.dtype == torch.float64 and torch.equal(found.counts, wanted.counts)
    one = found.cpu()[2]
    assert len(found) == 6 and torch.equal(one.means, found.means[2]) and torch.equal(one.scatter, found.scatter[2])
    assert engine.class_statistics(range(6), states).scatter is None


def test_an_empty_cohort_gives_empty_results():
    data, models = fleet()
    engine = make_engine(data, models)
    assert engine.train([], [], Supervised(), SGD, KEY) == []
    assert engine.correct([], []) == []
    means, counts = class_means(engine, [], [])
    assert means.shape == (0, 10, 64) and counts.shape == (0, 10)
    assert class_means(engine, [], [], of="logits")[0].shape == (0, 10, 10)
    assert engine.logits([], [], torch.zeros(4, 1, 14, 14)).shape == (0, 4, 10)


def test_devices_without_test_samples_and_with_one_common_model():
    data, models = fleet(widths=(16,))
    cut = list(data.partition.test)
    cut[1], cut[3] = cut[1][:0], cut[3][:1]
    data = replace(data, partition=replace(data.partition, test=tuple(cut)))
    engine, reference = make_engine(data, models), PlainEngine(data, models)
    common = engine.initial(0, 0, common=True)
    own = [engine.initial(k, 0) for k in range(6)]
    for states in ([common] * 6, own, [common, own[1], common, common, own[4], own[5]]):
        found = engine.correct(range(6), states)
        assert found == reference.correct(range(6), states)
        assert found[1] == 0


def test_a_model_that_is_not_a_number_gives_knowledge_that_is_not():
    data, models = fleet()
    engine = make_engine(data, models)
    state = engine.initial(0, 0)
    state["body.1.weight"][:] = float("nan")
    means, counts = class_means(engine, [0], [state])
    assert means[counts > 0].isnan().all()


def test_the_cache_keeps_to_its_bytes_and_drops_the_least_lately_used():
    cache, made = BoundedCache(100), []

    def value(key):
        def make():
            made.append(key)
            return key

        return cache.get(key, make, lambda _: 40)

    for key in ("a", "b", "a", "c", "a", "b"):
        assert value(key) == key
        assert cache.held_bytes <= 100
    assert made == ["a", "b", "c", "b"]
    assert cache.get("large", lambda: "large", lambda _: 101) == "large"
    assert cache.held_bytes <= 100


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_inputs_in_memory_do_not_grow_with_the_fleet(monkeypatch, model):
    monkeypatch.setattr("kfl.engine.autograd.CACHE_BYTES", 200_000)
    data, models = fleet(model, (1, 20, 20), devices=30)
    engine = make_engine(data, models)
    for device in range(30):
        state = engine.initial(device, 0)
        engine.class_statistics([device], engine.train([device], [state], Supervised(), SGD, KEY))
        assert engine._cache.held_bytes <= 200_000


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16"])
def test_training_after_reading_gives_the_same_bits(precision):
    """What is kept of a device's samples is what would be read again."""
    data, models = fleet()
    read, unread = (make_engine(data, models, precision=precision) for _ in range(2))
    states = [read.initial(k, 0) for k in range(3)]
    read.class_statistics(range(3), states)
    for _ in range(2):
        one, other = (e.train(range(3), states, Supervised(), SGD, KEY) for e in (read, unread))
        for mine, theirs in zip(one, other, strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_state_that_does_not_fit_is_a_sentence():
    data, models = fleet(widths=(16,))
    engine = make_engine(data, models)
    state = engine.initial(0, 0)
    for wrong, words in (
        ({name: value for name, value in state.items() if name != "head.bias"}, "no head.bias"),
        ({**state, "head.bias": torch.zeros(1)}, r"head.bias has the shape \[1\], but the network's is \[10\]"),
    ):
        with pytest.raises(RuntimeError, match=words):
            engine.correct([0], [wrong])
