"""The CPU engine as a whole: the same as plain loops, whatever the plan, and other ways where it has no own."""

import importlib.util
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cpu import kind
from kfl._kernels.cpu.cnn import ImageSamples
from kfl._kernels.memory import BoundedCache, OwnedValue
from kfl.algorithms import FedAvg, FedKd, FedRep, Kfl
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.data import Dataset, partition
from kfl.engine import LocalData, Mixture, RoundKey, Sgd, Supervised, factory
from kfl.engine.base import Plan
from kfl.engine.cpu import CpuEngine
from kfl.engine.factory import check_device, make_engine, make_plan
from kfl.engine.sequential import SequentialEngine
from kfl.models import SplitModel, cnn, fleet_from_modules, fleet_from_name, mlp, read_network

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
    runs = [play(engine, algorithm, SCHEDULE) for engine in (SequentialEngine(data, models), make_engine(data, models))]
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
def test_other_modules_are_trained_by_autograd_and_the_log_says_so_once(body, caplog):
    data, models = other_fleet(lambda: SplitModel(body(), nn.Linear(5, 3)))
    factory._logged.clear()
    with caplog.at_level(logging.INFO, "kfl"):
        engine = make_engine(data, models)
        make_engine(data, models)
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and "SplitModel of device 0, SplitModel of device 1: trained by autograd" in said[0]
    assert engine.plan.paths == ("worker", "worker")
    reference = SequentialEngine(data, models)
    states = [engine.initial(k, 0) for k in range(2)]
    one, other = (e.train([0, 1], states, Supervised(), SGD, KEY) for e in (engine, reference))
    for mine, theirs in zip(one, other, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert engine.correct([0, 1], one) == reference.correct([0, 1], other)
    for of in ("features", "logits"):
        found, wanted = (e.class_means([0, 1], one, of=of) for e in (engine, reference))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))


class Own(Supervised):
    """An objective that an engine knows nothing about."""


def test_mini_batches_and_other_objectives_go_the_way_of_autograd(caplog):
    data, models = fleet(widths=(16,))
    engine, reference = make_engine(data, models), SequentialEngine(data, models)
    states = [engine.initial(k, 0) for k in range(3)]
    both = [{**s, **{f"personal/{n}": v for n, v in s.items()}, "mixing": torch.tensor(0.4)} for s in states]
    with caplog.at_level(logging.INFO, "kfl"):
        for _ in range(2):
            for objective, sgd, start in (
                (Supervised(), replace(SGD, batch_size=7), states),
                (Own(), SGD, states),
                (Mixture(0.1), replace(SGD, body_rate=0.0), both),
            ):
                one, other = (e.train(range(3), start, objective, sgd, KEY) for e in (engine, reference))
                for mine, theirs in zip(one, other, strict=True):
                    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert sorted(record.message.split(":")[0] for record in caplog.records) == [
        "Mini-batches",
        "The objective Mixture",
        "The objective Own",
    ]


def test_an_empty_cohort_gives_empty_results():
    data, models = fleet()
    engine = make_engine(data, models)
    assert engine.train([], [], Supervised(), SGD, KEY) == []
    assert engine.correct([], []) == []
    means, counts = engine.class_means([], [])
    assert means.shape == (0, 10, 64) and counts.shape == (0, 10)
    assert engine.class_means([], [], of="logits")[0].shape == (0, 10, 10)
    assert engine.logits([], [], torch.zeros(4, 1, 14, 14)).shape == (0, 4, 10)


def test_devices_without_test_samples_and_with_one_common_model():
    data, models = fleet(widths=(16,))
    cut = list(data.partition.test)
    cut[1], cut[3] = cut[1][:0], cut[3][:1]
    data = replace(data, partition=replace(data.partition, test=tuple(cut)))
    engine, reference = make_engine(data, models), SequentialEngine(data, models)
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
    means, counts = engine.class_means([0], [state])
    assert means[counts > 0].isnan().all()


def test_choices_that_cannot_be():
    data, models = fleet()
    with pytest.raises(ConfigError, match="precision is 'half'"):
        make_plan(models, precision="half")
    with pytest.raises(ConfigError, match="device is 'tpu'"):
        check_device("tpu")
    if not torch.cuda.is_available():
        assert check_device("auto") == "cpu"
        with pytest.raises(ConfigError, match="finds no GPU"):
            make_engine(data, models, device="cuda")
        with pytest.raises(ConfigError, match="finds no GPU"):
            make_plan(models, device="cuda")
    with pytest.raises(ConfigError, match=r"plan\.paths"):
        make_engine(data, models, plan=Plan(paths=("mlp",)))
    with pytest.raises(ConfigError, match=r"plan\.workers"):
        Plan.read({"workers": "two"})


def test_without_the_compiler_convolutions_still_work_and_a_plan_that_needs_it_says_so(monkeypatch, caplog):
    data, models = fleet("cnn", (3, 20, 20))
    plan = make_plan(models)
    monkeypatch.setattr(factory, "_compiles", lambda: False)
    factory._logged.clear()
    with caplog.at_level(logging.INFO, "kfl"):
        engine = make_engine(data, models)
    assert engine.plan.paths == ("worker", "worker")
    assert len(caplog.records) == 1 and "kfl[fast]" in caplog.text
    trained = engine.train([0], [engine.initial(0, 0)], Supervised(), Sgd(1, 0.1, 0.1, 0.0), KEY)
    assert len(trained) == 1
    with pytest.raises(MissingExtraError, match="llvmlite"):
        make_engine(data, models, plan=plan)


def hooked():
    module = mlp((6,), 3, 4)
    module.body[1].register_forward_hook(lambda *_: None)
    return module


def shared():
    layer = nn.Linear(6, 6)
    return SplitModel(nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU()), nn.Linear(6, 3))


class OwnLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    "module",
    [
        hooked(),
        shared(),
        SplitModel(nn.Sequential(OwnLinear(6, 4), nn.ReLU()), nn.Linear(4, 3)),
        SplitModel(nn.Sequential(nn.Linear(6, 4, bias=False), nn.ReLU()), nn.Linear(4, 3)),
        SplitModel(nn.Sequential(nn.Linear(6, 4)), nn.Linear(4, 3)),
        SplitModel(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3, bias=False)),
        SplitModel(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 3))),
        SplitModel(nn.Sequential(nn.Flatten(0), nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3)),
    ],
)
def test_what_is_not_certain_is_not_recognised(module):
    assert kind(read_network(module, (6,))) is None


@pytest.mark.parametrize(
    ("place", "layer"),
    [
        (0, nn.Conv2d(3, 6, 5, padding=1)),
        (0, nn.Conv2d(3, 6, 5, stride=2)),
        (0, nn.Conv2d(3, 6, 5, bias=False)),
        (0, nn.Conv2d(3, 7, 5)),
        (2, nn.MaxPool2d(3)),
        (2, nn.MaxPool2d(2, ceil_mode=True)),
        (3, nn.Conv2d(6, 12, 5)),
        (3, nn.Conv2d(6, 16, 5, groups=2)),
        (5, nn.AvgPool2d(2)),
    ],
)
def test_other_convolutions_are_not_recognised(place, layer):
    module = cnn()
    module.body[place] = layer
    assert kind(read_network(module, (3, 32, 32))) is None


def test_the_papers_networks_are_recognised():
    found = read_network(mlp(), (1, 28, 28))
    assert kind(found) == "mlp" and found.dense_names == ("body.1", "body.3", "body.5", "head")
    assert kind(read_network(SplitModel(mlp().body[1:], nn.Linear(64, 10)), (784,))) == "mlp"
    net = read_network(cnn(), (3, 32, 32))
    assert kind(net) == "cnn" and net.dense_names == ("body.7", "body.9", "head")
    assert set(net.parameters) == set(cnn().state_dict())


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
    cache.put("b", "another", 30)
    assert cache.find("b") == "another" and cache.find("large") is None and cache.held_bytes <= 100
    cache.put("b", "too large", 101)
    assert cache.find("b") is None


def test_inputs_in_memory_do_not_grow_with_the_fleet(monkeypatch):
    monkeypatch.setattr("kfl._kernels.cpu.device.CACHE_BYTES", 200_000)
    data, models = fleet(devices=30)
    engine = make_engine(data, models)
    assert isinstance(engine, CpuEngine)
    for device in range(30):
        state = engine.initial(device, 0)
        engine.class_means([device], engine.train([device], [state], Supervised(), SGD, KEY))
        assert engine._kernels._mlp.cache.held_bytes <= 200_000


def test_inputs_written_are_inputs_read():
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    for x in (draw.integers(0, 255, (40, 3, 4, 5)).astype(np.uint8), draw.random((40, 3, 4, 5), dtype=np.float32)):
        stored = Dataset("made up", x, y, x[:9], y[:9], 2, 1 / 255, (0.1, 0.2, 0.3), (0.5, 0.7, 0.9))
        data = LocalData(stored, partition("iid", y, y[:9], 2, 2, 0))
        for split in ("train", "test"):
            expected, _ = data.read(1, split)
            out = torch.empty(len(expected), 4, 5, 3).permute(0, 3, 1, 2)
            data.write(1, split, out, torch.empty(expected.shape, dtype=torch.from_numpy(x).dtype))
            assert torch.equal(out, expected)
            if (table := data.byte_table()) is not None and importlib.util.find_spec("llvmlite"):
                indices = (data.partition.train if split == "train" else data.partition.test)[1]
                images, room = ImageSamples.empty(len(indices), (3, 4, 5), Arithmetic())
                images.read(x if split == "train" else x[:9], table, indices)
                assert torch.equal(room, expected)
                with pytest.raises(IndexError):
                    images.read(x[:1], table, indices)


def small_fleet():
    """Three MLPs with so few samples for so many inputs that the Gram matrix pays."""
    shape, y = (1, 20, 20), np.arange(720) % 4
    x = np.random.default_rng(0).normal(size=(len(y), *shape)).astype(np.float32)
    data = Dataset.from_arrays(x, y, x[:12], y[:12])
    local = LocalData(data, partition("iid", data.train_y, data.test_y, 4, 3, 0))
    return local, fleet_from_name("mlp", (8,), 3, shape, 4, seed=0)


@pytest.mark.parametrize("precision", ["float32", "float64", "bf16"])
def test_training_that_begins_with_what_was_read_gives_the_same_bits(precision):
    local, models = small_fleet()
    sgd, key = Sgd(4, 0.05, 0.05, 0.9), RoundKey(0, 0)
    read, unread = (make_engine(local, models, precision=precision) for _ in range(2))
    states = [read.initial(k, 0) for k in range(3)]
    read.class_means(range(3), states)
    kept = [read._kernels._mlp._start(k, read._network(k), states[k]) for k in range(3)]
    assert all((start is None) == (precision == "bf16") for start in kept), "in bf16 the two are rounded differently"
    for one, other in zip(*(e.train(range(3), states, Supervised(), sgd, key) for e in (read, unread)), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("change", ["another bias", "equal weights", "written into"])
def test_what_was_read_is_not_used_for_a_model_that_changed(change):
    data, models = small_fleet()
    sgd, key = Sgd(4, 0.05, 0.05, 0.9), RoundKey(0, 0)
    read, unread = (make_engine(data, models) for _ in range(2))
    states = [read.initial(k, 0) for k in range(3)]
    read.class_means(range(3), states)
    for state in states:
        if change == "another bias":
            state["body.1.bias"] = state["body.1.bias"] + 1
        elif change == "equal weights":
            state["body.1.weight"] = state["body.1.weight"].clone()
        else:
            state["body.1.weight"].mul_(0.5)
    assert all(read._kernels._mlp._start(k, read._network(k), states[k]) is None for k in range(3))
    for one, other in zip(*(e.train(range(3), states, Supervised(), sgd, key) for e in (read, unread)), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_value_forgets_owners_that_are_gone_and_has_none_that_cannot_be_watched():
    owner = torch.zeros(1)
    value = OwnedValue.of(torch.ones(3), [owner])
    assert value.belongs_to([owner]) and not value.belongs_to([torch.zeros(1)])
    del owner
    assert not value.belongs_to([torch.zeros(1)])
    with torch.inference_mode():
        assert OwnedValue.of(torch.ones(3), [torch.zeros(1)]) is None
