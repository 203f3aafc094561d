"""Training with both rewrites against finite differences and against plain autograd, in float64."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from kfl.data import Dataset, partition
from kfl.engine import Distillation, FeatureTargets, LabelDistillation, LocalData, RoundKey, Sgd, Supervised
from kfl.engine.objectives import MIXING, PERSONAL, Mixture
from kfl.engine.plan import make_engine
from kfl.engine.precision import Arithmetic
from kfl.engine.sample_space import FlatSamples, first_dense, gram_pays
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

KEY = RoundKey(0, 0)
CLASSES = 4


def local_data(shape, samples, devices=3, zero_columns=False, seed=0):
    draw = np.random.default_rng(seed)
    count = samples * devices
    y = np.concatenate([np.arange(count) % 3, [3]])  # class 3 has one sample, so most devices have none of it
    x = draw.normal(size=(count + 1, *shape)) + y.reshape(-1, *[1] * len(shape)) / 3
    if zero_columns:
        x.reshape(len(x), -1)[:, ::3] = 0
    data = Dataset.from_arrays(x, y, x[:40], y[:40], classes=CLASSES)
    return LocalData(data, partition("iid", data.train_y, data.test_y, CLASSES, devices, 0))


def engines(model, shape, samples, widths=(8, 13), **options):
    data = local_data(shape, samples, **options)
    models = fleet_from_name(model, widths, data.partition.devices, shape, CLASSES, seed=0)
    return PlainEngine(data, models, "float64"), make_engine(data, models, precision="float64")


def targets(per_device, devices=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (devices, CLASSES) if per_device else (CLASSES,)
    known = torch.rand(shape, generator=draw) < 0.6
    return FeatureTargets(0.3, torch.randn(*shape, 64, generator=draw, dtype=torch.float64), known)


def assert_same(slow, fast, tolerance=1e-11):
    for one, other in zip(slow, fast, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], atol=tolerance, rtol=tolerance)


@settings(max_examples=25)
@given(
    samples=some.integers(2, 40) | some.integers(200, 240),  # from 200 on, zero columns are left out
    inputs=some.integers(1, 30),
    steps=some.integers(1, 4),
    momentum=some.sampled_from([0.0, 0.9]),
    rates=some.sampled_from([(0.1, 0.05), (0.0, 0.05), (0.1, 0.0), (0.0, 0.0)]),
    pull=some.sampled_from([None, False, True]),
    zero_columns=some.booleans(),
)
def test_mlp_steps_are_autograds(samples, inputs, steps, momentum, rates, pull, zero_columns):
    slow, fast = engines("mlp", (inputs,), samples, zero_columns=zero_columns)
    objective = Supervised(None if pull is None else targets(per_device=pull))
    sgd = Sgd(steps, *rates, momentum)
    states = [slow.initial(k, 0) for k in range(3)]
    assert_same(*(engine.train(range(3), states, objective, sgd, KEY) for engine in (slow, fast)))


def mixtures(engine, mixing):
    """A shared and a personal model for each of three devices."""
    shared, personal = ([engine.initial(k, seed) for k in range(3)] for seed in (0, 1))
    return [
        {
            **w,
            **{PERSONAL + name: value for name, value in v.items()},
            MIXING: torch.tensor(mixing, dtype=torch.float64),
        }
        for w, v in zip(shared, personal, strict=True)
    ]


@settings(max_examples=25)
@given(
    samples=some.integers(2, 40) | some.integers(200, 240),
    inputs=some.integers(1, 30),
    steps=some.integers(1, 4),
    momentum=some.sampled_from([0.0, 0.9]),
    mixing=some.floats(0, 1),
    mixing_rate=some.sampled_from([0.0, 0.1, 20.0]),
    zero_columns=some.booleans(),
)
def test_mixed_mlp_steps_are_autograds(samples, inputs, steps, momentum, mixing, mixing_rate, zero_columns):
    slow, fast = engines("mlp", (inputs,), samples, zero_columns=zero_columns)
    states, sgd = mixtures(slow, mixing), Sgd(steps, 0.1, 0.05, momentum)
    copies = [{name: value.clone() for name, value in state.items()} for state in states]
    found = [engine.train(range(3), states, Mixture(mixing_rate), sgd, KEY) for engine in (slow, fast)]
    assert_same(*found)
    assert_same(copies, states, tolerance=0)  # no device's start was changed
    assert all(0 <= float(state[MIXING]) <= 1 for state in found[1])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_mixed_cnn_steps_are_autograds(momentum):
    slow, fast = engines("cnn", (2, 18, 20), 21)
    states, sgd = mixtures(slow, 0.3), Sgd(3, 0.1, 0.05, momentum)
    assert_same(*(engine.train(range(3), states, Mixture(0.1), sgd, KEY) for engine in (slow, fast)))


@pytest.mark.parametrize(("samples", "inputs", "steps"), [(40, 300, 5), (40, 300, 1), (200, 8, 5)])
def test_the_gram_matrix_changes_nothing(samples, inputs, steps):
    slow, fast = engines("mlp", (inputs,), samples)
    assert gram_pays(samples, inputs, 512, steps) == (samples == 40 and steps == 5)
    states = [slow.initial(k, 0) for k in range(3)]
    objective, sgd = Supervised(targets(per_device=False)), Sgd(steps, 0.1, 0.1, 0.9)
    for _ in range(2):  # the second time the Gram matrix is remembered
        assert_same(*(engine.train(range(3), states, objective, sgd, KEY) for engine in (slow, fast)))


@pytest.mark.parametrize("samples", [40, 220])
def test_weights_of_inputs_that_are_always_zero_stay_as_they_are(samples):
    slow, fast = engines("mlp", (300,), samples, zero_columns=True)
    before = fast.initial(0, 0)
    after = fast.train([0], [before], Supervised(), Sgd(5, 0.1, 0.1, 0.9), KEY)[0]
    changed = (after["body.1.weight"] != before["body.1.weight"]).any(0)
    assert not changed[::3].any() and changed[1::3].any() and changed[2::3].any()
    for of in ("features", "logits"):
        torch.testing.assert_close(class_means(fast, [0], [after], of=of), class_means(slow, [0], [after], of=of))
    rows = torch.zeros(samples, 9)
    rows[:, 4] = 1
    assert (FlatSamples.of(rows, Arithmetic()).rows.shape[1] == 1) == (samples == 220)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rates", [(0.1, 0.05), (0.0, 0.05), (0.1, 0.0)])
@pytest.mark.parametrize("pull", [None, False, True])
def test_cnn_steps_are_autograds(momentum, rates, pull):
    slow, fast = engines("cnn", (2, 18, 20), 21)
    assert fast.plan.compiler
    objective = Supervised(None if pull is None else targets(per_device=pull))
    states = [slow.initial(k, 0) for k in range(3)]
    assert_same(*(engine.train(range(3), states, objective, Sgd(3, *rates, momentum), KEY) for engine in (slow, fast)))


@pytest.mark.parametrize(("model", "shape"), [("mlp", (70,)), ("cnn", (2, 18, 20))])
def test_distillation_on_given_samples(model, shape):
    slow, fast = engines(model, shape, 11)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(19, *shape, generator=draw)
    data = (inputs.double(), torch.randn(19, CLASSES, generator=draw, dtype=torch.float64))
    states = [slow.initial(k, 0) for k in range(3)]
    trained = [e.train(range(3), states, Distillation(2.0), Sgd(4, 0.1, 0.1, 0.9), KEY, data) for e in (slow, fast)]
    assert_same(*trained)
    torch.testing.assert_close(fast.logits(range(3), trained[0], inputs), slow.logits(range(3), trained[0], inputs))


@pytest.mark.parametrize(("model", "shape"), [("mlp", (70,)), ("cnn", (2, 18, 20))])
def test_distillation_by_labels(model, shape):
    slow, fast = engines(model, shape, 11)
    logits = 3 * torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    objective = LabelDistillation(0.7, logits, torch.arange(CLASSES) != 1)
    states = [slow.initial(k, 0) for k in range(3)]
    assert_same(*(e.train(range(3), states, objective, Sgd(4, 0.1, 0.1, 0.9), KEY) for e in (slow, fast)))


@pytest.mark.parametrize(("model", "shape"), [("mlp", (30,)), ("cnn", (1, 16, 16))])
def test_one_step_goes_down_the_slope_that_differences_of_the_loss_have(model, shape):
    _, fast = engines(model, shape, 12)
    state, pull = fast.initial(1, 0), targets(per_device=False)
    module = fast.template(1)
    x, y = (values.double() if values.is_floating_point() else values for values in fast._data.read(1, "train"))

    def loss(values):
        module.load_state_dict(values)
        with torch.no_grad():
            feature = module.body(x)
            distance = 0.5 * ((feature - pull.targets[y]) ** 2).sum(1)
            return nn.functional.cross_entropy(module.head(feature), y) + 0.3 * (distance * pull.known[y]).mean()

    after = fast.train([1], [state], Supervised(pull), Sgd(1, 1.0, 1.0, 0.0), KEY)[0]
    draw = torch.Generator().manual_seed(0)
    for name, value in state.items():
        direction = torch.randn(value.shape, generator=draw, dtype=torch.float64)
        step = 1e-7
        up, down = ({**state, name: value + sign * step * direction} for sign in (1, -1))
        slope = (loss(up) - loss(down)) / (2 * step)
        taken = ((value - after[name]) * direction).sum()
        torch.testing.assert_close(taken, slope, atol=2e-6, rtol=2e-6)


@settings(max_examples=10)
@given(depth=some.integers(1, 3), width=some.integers(1, 9), samples=some.integers(1, 20))
def test_any_depth_of_dense_layers(depth, width, samples):
    data = local_data((5,), samples, devices=2)

    def build(_):
        sizes = [5] + [width] * depth
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return SplitModel(nn.Sequential(*layers), nn.Linear(width, CLASSES))

    models = fleet_from_modules([build(k) for k in range(2)], 2, (5,), CLASSES)
    slow = PlainEngine(data, models, "float64")
    fast = make_engine(data, models, precision="float64")
    states = [slow.initial(k, 0) for k in range(2)]
    sgd = Sgd(3, 0.1, 0.1, 0.9)
    trained = [engine.train(range(2), states, Supervised(), sgd, KEY) for engine in (slow, fast)]
    assert_same(*trained)
    for clip, of in product((None, 0.1), ("features", "logits")):
        for mine, theirs in zip(*(class_means(e, range(2), trained[0], clip, of) for e in (fast, slow)), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert fast.correct(range(2), trained[0]) == slow.correct(range(2), trained[0])


def sequence(*layers):
    return SplitModel(nn.Sequential(*layers), nn.Linear(4, 3))


def hooked():
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


def shared():
    layer = nn.Linear(6, 6)
    return sequence(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 4))


class OwnLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    "module",
    [
        shared(),
        sequence(hooked()),
        sequence(OwnLinear(6, 4), nn.ReLU()),
        sequence(nn.Linear(6, 4, bias=False), nn.ReLU()),
        sequence(nn.Linear(6, 4), nn.ReLU(inplace=True)),
        sequence(nn.Flatten(0), nn.Linear(6, 4), nn.ReLU()),
        sequence(nn.ReLU(), nn.Linear(6, 4)),
        sequence(nn.Sequential(nn.Linear(6, 4)), nn.ReLU()),
    ],
)
def test_a_layer_that_is_not_certainly_the_first_is_not_rewritten(module):
    assert first_dense(module, (6,)) is None


@pytest.mark.parametrize(
    "body",
    [
        lambda: [nn.Linear(40, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5)],
        lambda: [nn.Flatten(), nn.Linear(40, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 5)],
        lambda: [nn.Linear(40, 5)],
    ],
)
def test_any_layers_may_follow_one_that_is_trained_in_the_space_of_the_samples(body):
    data = local_data((40,), 9)
    models = fleet_from_modules(
        [SplitModel(nn.Sequential(*body()), nn.Linear(5, CLASSES)) for _ in range(3)], 3, (40,), CLASSES
    )
    slow, fast = PlainEngine(data, models, "float64"), make_engine(data, models, precision="float64")
    assert gram_pays(9, 40, 6, 3) and first_dense(models.builders[0](), (40,)) is not None
    states = [slow.initial(k, 0) for k in range(3)]
    assert_same(*(engine.train(range(3), states, Supervised(), Sgd(3, 0.1, 0.1, 0.9), KEY) for engine in (slow, fast)))


def test_a_layer_that_is_applied_to_each_place_of_a_sample_is_not_flattened():
    data = local_data((3, 8), 9)
    modules = [
        SplitModel(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5)), nn.Linear(5, CLASSES))
        for _ in range(3)
    ]
    models = fleet_from_modules(modules, 3, (3, 8), CLASSES)
    slow, fast = PlainEngine(data, models, "float64"), make_engine(data, models, precision="float64")
    states = [slow.initial(k, 0) for k in range(3)]
    assert_same(*(engine.train(range(3), states, Supervised(), Sgd(3, 0.1, 0.1, 0.9), KEY) for engine in (slow, fast)))
    assert fast.correct(range(3), states) == slow.correct(range(3), states)
