"""Any module on all cores: the bits of one device after another, whatever it is and however many workers there are."""

import logging
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import kfl
from kfl.core.threads import torch_threads
from kfl.data import Dataset, partition
from kfl.engine import FeatureTargets, LocalData, Mixture, RoundKey, Sgd, Supervised
from kfl.engine.autograd import PIECE_ROWS, AutogradEngine
from kfl.engine.plan import make_engine
from kfl.engine.workers import spread
from kfl.models import SplitModel, fleet_from_modules
from tests.reference.plain_engine import class_means

KEY = RoundKey(0, 3)
SGD = Sgd(2, 0.05, 0.05, 0.9, batch_size=7)
FEATURES = 8


class Remembers(nn.Module):
    """A layer whose output depends on how often this very object was called, which no state holds."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return x / (1 + 0.1 * self.calls + 0.1 * self.seen)


class DrawsLate(nn.Module):
    """A layer that draws random numbers in some steps only."""

    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training and len(x) < 7 else x


def wrapped(*middle, feature=FEATURES):
    return SplitModel(nn.Sequential(*middle, nn.Linear(feature, FEATURES), nn.ReLU()), nn.Linear(FEATURES, 3))


def convolutional():
    return wrapped(
        nn.Conv1d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), feature=24
    )


def flat(*layers):
    return wrapped(nn.Flatten(), nn.Linear(16, FEATURES), *layers)


MODULES = {
    "convolutional": convolutional,
    "batch norm": lambda: flat(nn.BatchNorm1d(FEATURES), nn.ReLU()),
    "remembers": lambda: flat(Remembers(), nn.ReLU()),
    "dropout": lambda: flat(nn.Dropout(0.3), nn.ReLU()),
    "draws late": lambda: flat(DrawsLate(), nn.ReLU()),
}


def fleet(*kinds, samples=20, devices=6, proxy=None, length=8):
    draw = np.random.default_rng(0)
    y = np.arange(samples * devices) % 3
    x = (draw.normal(size=(len(y), 2, length)) + y[:, None, None]).astype(np.float32)
    data = Dataset.from_arrays(x, y, x[: 5 * devices], y[: 5 * devices])
    split = partition("iid", data.train_y, data.test_y, 3, devices, 0)
    modules = [MODULES[kinds[device % len(kinds)]]() for device in range(devices)]
    return LocalData(data, split, proxy), fleet_from_modules(modules, devices, (2, length), 3)


def engines(data, models):
    """One worker, two, five; and the reference with one thread."""
    plan = make_engine(data, models).plan
    return [make_engine(data, models, plan=replace(plan, workers=workers)) for workers in (1, 2, 5)]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def everything(engine, states, objective):
    """What an algorithm can ask for, three rounds of it."""
    devices = range(len(states))
    for number in range(3):
        states = engine.train(devices, states, objective, SGD, RoundKey(0, number))
    means = class_means(engine, devices, states, clip_norm=0.5)
    means += class_means(engine, devices, states, of="logits")
    return states, *means, engine.logits(devices, states, engine.proxy()[0]), engine.correct(devices, states)


def pull():
    draw = torch.Generator().manual_seed(0)
    targets = torch.randn(6, 3, FEATURES, generator=draw)
    return Supervised(FeatureTargets(0.3, targets, torch.rand(6, 3, generator=draw) < 0.7))


@pytest.mark.parametrize("kinds", [(name,) for name in MODULES] + [tuple(MODULES)], ids=", ".join)
def test_any_number_of_workers_gives_the_same_bits_and_draws_nothing_of_the_callers(kinds):
    data, models = fleet(*kinds, proxy=np.arange(12))
    before = torch.get_rng_state()
    found = []
    for engine in engines(data, models):
        found.append(everything(engine, [engine.initial(k, 0) for k in range(6)], pull()))
    assert torch.equal(torch.get_rng_state(), before)
    for other in found[1:]:
        assert all(same(mine, theirs) for mine, theirs in zip(found[0][0], other[0], strict=True))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0][1:-1], other[1:-1], strict=True))
        assert found[0][-1] == other[-1]


@pytest.mark.parametrize("kind", [name for name in MODULES if name != "remembers"])
def test_workers_give_the_bits_of_one_device_after_another(kind):
    data, models = fleet(kind, proxy=np.arange(12))
    engine, reference = engines(data, models)[1], AutogradEngine(data, models)
    states = [engine.initial(k, 0) for k in range(6)]
    with torch_threads(1):
        expected = everything(reference, states, pull())
    found = everything(engine, states, pull())
    assert all(same(mine, theirs) for mine, theirs in zip(found[0], expected[0], strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[1:-1], expected[1:-1], strict=True))
    assert found[-1] == expected[-1]


def test_shared_weights_are_shared_in_workers_too():
    layer = nn.Linear(FEATURES, FEATURES)
    MODULES["shared"] = lambda: flat(layer, nn.ReLU(), layer, nn.ReLU())
    data, models = fleet("shared", proxy=np.arange(12))
    engine, reference = engines(data, models)[1], AutogradEngine(data, models)
    states = [engine.initial(k, 0) for k in range(6)]
    with torch_threads(1):
        expected = everything(reference, states, pull())
    found = everything(engine, states, pull())
    assert all(same(mine, theirs) for mine, theirs in zip(found[0], expected[0], strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[1:-1], expected[1:-1], strict=True))


def test_two_models_in_one_state_and_given_data_go_through_workers_too():
    data, models = fleet("convolutional", "batch norm")
    engine, reference = engines(data, models)[2], AutogradEngine(data, models)
    starts = [engine.initial(k, 0) for k in range(6)]
    both = [{**s, **{f"personal/{n}": v + 0 for n, v in s.items()}, "mixing": torch.tensor(0.4)} for s in starts]
    given = data.read(0, "train")
    for states, objective in ((both, Mixture(0.1)), (starts, Supervised())):
        kept = [{name: value.clone() for name, value in state.items()} for state in states]
        with torch_threads(1):
            expected = reference.train(range(6), states, objective, SGD, KEY, given)
        found = engine.train(range(6), states, objective, SGD, KEY, given)
        assert all(same(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
        assert all(same(now, then) for now, then in zip(states, kept, strict=True))


def test_only_architectures_that_draw_are_trained_one_after_another_and_the_log_says_so_once(caplog):
    data, models = fleet("convolutional", "draws late")
    engine = engines(data, models)[1]
    states = [engine.initial(k, 0) for k in range(6)]
    with caplog.at_level(logging.INFO, "kfl"):
        for _ in range(2):
            engine.train(range(6), states, Supervised(), SGD, KEY)
    said = [record.message for record in caplog.records if "random" in record.message]
    names = ", ".join(models.names[k] for k in (1, 3, 5))
    assert said == [f"{names} (with Supervised) draw random numbers: trained one device after another."]


@dataclass(frozen=True, eq=False)
class Noisy(Supervised):
    """An objective that draws."""

    def loss(self, forward, state, inputs, targets, weights=None):
        return super().loss(forward, state, inputs + 0.1 * torch.randn_like(inputs), targets, weights)


def test_an_objective_that_draws_is_repeated_by_name():
    data, models = fleet("convolutional")
    results = []
    for engine in [*engines(data, models), AutogradEngine(data, models)]:
        states = [engine.initial(k, 0) for k in range(6)]
        with torch_threads(1):
            results.append([engine.train(range(6), states, Noisy(), SGD, KEY) for _ in range(2)])
    for run in results:
        for again in run:
            assert all(same(mine, theirs) for mine, theirs in zip(again, results[0][0], strict=True))


@pytest.mark.parametrize("running", [True, False])
def test_evaluation_goes_in_pieces_unless_a_layer_looks_at_the_whole_batch(running):
    MODULES["norm"] = lambda: flat(nn.BatchNorm1d(FEATURES, track_running_stats=running), nn.ReLU())
    data, models = fleet("norm", samples=PIECE_ROWS * 2 + 30, devices=2)
    engine, reference = make_engine(data, models), AutogradEngine(data, models)
    sizes = []
    for device in range(2):
        norm = engine.template(device).body[2]
        norm.register_forward_hook(lambda _layer, inputs, _output: sizes.append(len(inputs[0])))
    states = [engine.initial(k, 0) for k in range(2)]
    found, expected = class_means(engine, [0, 1], states), class_means(reference, [0, 1], states)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert (max(sizes) <= PIECE_ROWS) == running


def test_a_worker_that_fails_says_why():
    data, models = fleet("convolutional")
    engine = engines(data, models)[1]
    states = [engine.initial(k, 0) for k in range(6)]
    states[4]["body.0.weight"] = torch.zeros(6, 3, 3)
    with pytest.raises(RuntimeError, match=r"\[6, 3, 3\]"):
        engine.train(range(6), states, Supervised(), SGD, KEY)


def test_work_is_spread_in_order_and_the_dearest_begins_first():
    begun = []

    def work(item):
        begun.append(item)
        return -item

    assert spread(work, [1, 3, 2, 5], 2, cost=float) == [-1, -3, -2, -5]
    assert begun[0] == 5 and sorted(begun) == [1, 2, 3, 5]


class CountsThreads(nn.Module):
    """A layer that notes how many threads PyTorch would use where it is called."""

    seen: ClassVar[list[int]] = []

    def forward(self, x):
        self.seen.append(torch.get_num_threads())
        return x


def test_in_a_whole_run_every_pass_of_a_network_has_one_thread():
    """Two threads in one small operation wait for each other: on a busy machine for most of the time."""

    def model(device):
        layers = (nn.Conv1d(2, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        return wrapped(CountsThreads(), *(layers if device % 2 else (nn.Flatten(),)), feature=4 if device % 2 else 16)

    y = np.arange(60) % 3
    data = kfl.Dataset.from_arrays(np.random.default_rng(0).random((60, 2, 8), dtype=np.float32), y)
    experiment = kfl.Experiment(devices=4, rounds=2, split="iid", radio="none", scheduler=kfl.Uniform(count=3))
    passes_before = []
    CountsThreads.seen.clear()
    with torch_threads(2):
        kfl.run(
            experiment, dataset=data, models=model, on_start=lambda _: passes_before.append(len(CountsThreads.seen))
        )
        assert torch.get_num_threads() == 2
    # Before the first round each network is measured, in rounds it is trained, read and tested: by two workers.
    assert passes_before[0] >= 4 and len(CountsThreads.seen) > passes_before[0] + 2 * 3
    assert set(CountsThreads.seen) == {1}
