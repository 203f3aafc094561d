"""Training of one device against `torch.optim.SGD`, and what a state may rely on."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from kfl.data import Dataset, partition
from kfl.engine import FeatureTargets, LocalData, RoundKey, Sgd, Supervised
from kfl.engine.autograd import AutogradEngine
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

KEY = RoundKey(seed=0, round=2)


@pytest.fixture(scope="module", params=[AutogradEngine, PlainEngine])
def engine(request):
    """The engine with one worker, and the reference implementation that others are held to."""
    draw = np.random.default_rng(0)
    y = np.arange(240) % 4
    x = draw.normal(size=(240, 6)).astype(np.float32) + y[:, None]
    data = Dataset.from_arrays(x, y)
    split = partition("shards", data.train_y, data.test_y, 4, 6, 0, classes_per_device=2)
    models = fleet_from_name("mlp", (8, 12), 6, data.input_shape, 4, seed=0)
    return request.param(LocalData(data, split), models)


def plain_training(engine, device, sgd, pull=None):
    """The same with torch.optim.SGD, written out."""
    module = copy.deepcopy(engine._models.builders[engine._models.architecture[device]]())
    module.load_state_dict(engine.initial(device, 0))
    groups = [
        {"params": module.body.parameters(), "lr": sgd.body_rate},
        {"params": module.head.parameters(), "lr": sgd.head_rate},
    ]
    optimizer = torch.optim.SGD(groups, momentum=sgd.momentum)
    x, y = engine._data.read(device, "train")
    for _ in range(sgd.steps):
        optimizer.zero_grad()
        feature = module.body(x)
        loss = cross_entropy(module.head(feature), y)
        if pull is not None:
            squares = ((feature - pull.targets[y]) ** 2).sum(1) / 2
            loss = loss + pull.weight * squares[pull.known[y]].sum() / len(y)
        loss.backward()
        optimizer.step()
    return module.state_dict()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_is_gradient_descent_with_momentum(engine, momentum):
    sgd = Sgd(4, 0.05, 0.02, momentum)
    targets = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    pull = FeatureTargets(0.3, targets, torch.tensor([True, False, True, True]))
    states = [engine.initial(device, 0) for device in (1, 4)]
    for objective, used in ((Supervised(), None), (Supervised(pull), pull)):
        trained = engine.train([1, 4], states, objective, sgd, KEY)
        for device, state in zip((1, 4), trained, strict=True):
            for name, value in plain_training(engine, device, sgd, used).items():
                torch.testing.assert_close(state[name], value, atol=1e-6, rtol=1e-5)


def test_rate_zero_keeps_a_part_exactly(engine):
    state = engine.initial(0, 0)
    trained = engine.train([0], [state], Supervised(), Sgd(3, 0.0, 0.1, 0.9), KEY)[0]
    for name in state:
        assert torch.equal(trained[name], state[name]) == name.startswith("body.")


def test_mini_batches_see_every_sample_once_per_pass_and_are_named_by_device(engine):
    from kfl.engine.descent import batches

    sgd = Sgd(2, 0.1, 0.1, 0.0, batch_size=7)
    steps = list(batches(30, sgd, KEY, device=3))
    first, second = torch.cat(steps[:5]), torch.cat(steps[5:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(30))
    assert not torch.equal(first, second)
    again = list(batches(30, sgd, KEY, device=3))
    assert all(torch.equal(a, b) for a, b in zip(steps, again, strict=True))
    assert not torch.equal(torch.cat(list(batches(30, sgd, KEY, device=4))[:5]), first)


def test_class_means_are_means_per_class(engine):
    states = [engine.initial(device, 0) for device in range(6)]
    means, counts = class_means(engine, range(6), states)
    said, _ = class_means(engine, range(6), states, of="logits")
    for device, state in enumerate(states):
        x, y = engine._data.read(device, "train")
        module = engine.template(device)
        module.load_state_dict(state)
        feature = module.body(x).detach()
        for c in range(4):
            assert counts[device, c] == (y == c).sum()
            expected = feature[y == c].mean(0) if counts[device, c] else torch.zeros(64)
            torch.testing.assert_close(means[device, c], expected, atol=1e-6, rtol=1e-5)
            logits = module.head(feature[y == c]).detach().mean(0) if counts[device, c] else torch.zeros(4)
            torch.testing.assert_close(said[device, c], logits, atol=1e-6, rtol=1e-5)


def test_a_device_alone_gets_what_it_gets_in_company(engine):
    states = [engine.initial(device, 0) for device in range(3)]
    sgd = Sgd(2, 0.05, 0.05, 0.9, batch_size=9)
    together = engine.train([0, 1, 2], states, Supervised(), sgd, KEY)
    alone = engine.train([1], [states[1]], Supervised(), sgd, KEY)[0]
    assert all(torch.equal(together[1][name], alone[name]) for name in alone)


def test_own_modules_with_buffers_and_dropout_repeat_and_stay_untouched():
    draw = np.random.default_rng(0)
    y = np.arange(60) % 3
    data = Dataset.from_arrays((draw.normal(size=(60, 5)) + y[:, None]).astype(np.float32), y)
    split = partition("iid", data.train_y, data.test_y, 3, 2, 0)
    modules = [
        SplitModel(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.5), nn.ReLU()), nn.Linear(7, 3))
        for _ in range(2)
    ]
    given = copy.deepcopy([module.state_dict() for module in modules])
    engine = AutogradEngine(LocalData(data, split), fleet_from_modules(modules, 2, (5,), 3))
    states = [engine.initial(device, 0) for device in range(2)]
    runs = [engine.train([0, 1], states, Supervised(), Sgd(3, 0.1, 0.1, 0.9), KEY) for _ in range(2)]
    for device in range(2):
        assert runs[0][device]["body.1.num_batches_tracked"] == 3
        assert not torch.equal(runs[0][device]["body.1.running_mean"], states[device]["body.1.running_mean"])
        for name in states[device]:
            assert torch.equal(runs[0][device][name], runs[1][device][name])
            assert torch.equal(modules[device].state_dict()[name], given[device][name])
            assert torch.equal(states[device][name], given[device][name])
