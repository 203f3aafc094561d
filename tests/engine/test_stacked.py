"""The stacked engine gives what one device after another gives."""

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kfl.core.errors import ConfigError
from kfl.data import Dataset, Partition, partition
from kfl.engine import (
    Distillation,
    FeatureTargets,
    LabelDistillation,
    LocalData,
    Mixture,
    Objective,
    Proximal,
    RoundKey,
    Sgd,
    Supervised,
)
from kfl.engine.autograd import AutogradEngine
from kfl.engine.cuda.convolutions import choose_convolutions
from kfl.engine.cuda.network import CohortNetwork, train_cohort
from kfl.engine.objectives import MIXING, PERSONAL, Descent, class_loss
from kfl.engine.precision import Arithmetic
from kfl.engine.samples import StoredTable
from kfl.engine.stack import Stack
from kfl.engine.stacked import StackedEngine
from kfl.engine.vectorized import CohortStep, split_objective, try_module
from kfl.models import SplitModel, fleet_from_modules, fleet_from_name
from tests.reference.plain_engine import PlainEngine, class_means

torch.set_num_threads(1)

CLASSES, DEVICES = 4, 6
COUNTS = [23, 40, 12, 31, 23, 5]
"""Training samples of each device: unequal, and one with few."""
FULL, SMALL = Sgd(3, 0.05, 0.03, 0.9), Sgd(2, 0.05, 0.03, 0.9, batch_size=9)


def local_data(shape, counts=COUNTS, seed=0):
    draw = np.random.default_rng(seed)
    total = sum(counts)
    y = draw.integers(0, CLASSES, size=total)
    y[:CLASSES] = np.arange(CLASSES)
    x = (0.4 * draw.normal(size=(total, *shape)) + 0.3 * y.reshape(-1, *[1] * len(shape))).astype(np.float32)
    rows = np.split(draw.permutation(total), np.cumsum(counts)[:-1])
    test = [own[: len(own) // 2] for own in rows]
    test[2] = test[2][:0]  # a device without a test sample
    tables = [np.stack([np.bincount(y[own], minlength=CLASSES) for own in part]) for part in (rows, test)]
    data = Dataset.from_arrays(x, y, x, y)
    return LocalData(data, Partition(tuple(rows), tuple(test), *tables), proxy=np.arange(11))


def engines(model="mlp", widths=(8, 12), **options):
    shape = (1, 4, 5) if model == "mlp" else (2, 16, 18)
    data = local_data(shape)
    models = fleet_from_name(model, widths, DEVICES, shape, CLASSES, seed=0)
    assert models.mixed == (len(widths) > 1)
    return PlainEngine(data, models), StackedEngine(data, models, "cpu", **options)


def pull(devices=None, seed=1):
    draw = torch.Generator().manual_seed(seed)
    first = () if devices is None else (devices,)
    targets = torch.randn(*first, CLASSES, 64, generator=draw)
    known = torch.rand(*first, CLASSES, generator=draw) < 0.7
    return FeatureTargets(0.3, targets, known)


def assert_same(found, wanted, tolerance=1e-5):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for name in other:
            assert one[name].shape == other[name].shape and one[name].is_contiguous()
            torch.testing.assert_close(one[name], other[name], atol=tolerance, rtol=tolerance)


def three_rounds(engine, states, objective, sgd, data=None, devices=range(DEVICES)):
    for number in range(3):
        states = engine.train(devices, states, objective, sgd, RoundKey(0, number), data)
    return states


@pytest.mark.parametrize("sgd", [FULL, SMALL], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("targets", ["none", "shared", "own"])
def test_mlp_of_mixed_widths_on_labels(sgd, fused, targets):
    plain, stacked = engines(fused=fused)
    objective = Supervised({"none": None, "shared": pull(), "own": pull(DEVICES)}[targets])
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    wanted = three_rounds(plain, states, objective, sgd)
    found = three_rounds(stacked, states, objective, sgd)
    assert_same(found, wanted)
    for clip_norm in (None, 0.7):
        for of in ("features", "logits"):
            means, counts = class_means(stacked, range(DEVICES), found, clip_norm, of)
            expected, numbers = class_means(plain, range(DEVICES), wanted, clip_norm, of)
            torch.testing.assert_close(means, expected, atol=1e-5, rtol=1e-5)
            assert torch.equal(counts, numbers)
    assert stacked.correct(range(DEVICES), found) == plain.correct(range(DEVICES), wanted)
    inputs, labels = stacked.proxy()
    assert len(labels) == 11
    said = stacked.logits(range(DEVICES), found, inputs)
    torch.testing.assert_close(said, plain.logits(range(DEVICES), wanted, inputs), atol=1e-5, rtol=1e-5)


def test_cnn_of_mixed_widths_on_labels():
    plain, stacked = engines("cnn", (6, 10), convolution="grouped")
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    wanted = three_rounds(plain, states, Supervised(pull()), FULL)
    found = three_rounds(stacked, states, Supervised(pull()), FULL)
    assert_same(found, wanted)
    assert stacked.correct(range(DEVICES), found) == plain.correct(range(DEVICES), wanted)
    assert list(stacked.choices.families.values()) == ["fused, convolutions by grouped: asked for"]


def two_models(engine):
    """For each device a shared model, a personal one and how they mix, from not at all to half."""
    states = []
    for device in range(DEVICES):
        shared, own = engine.initial(device, 0), engine.initial(device, 1)
        personal = {PERSONAL + name: value for name, value in own.items()}
        states.append({**shared, **personal, MIXING: torch.tensor(0.1 * device)})
    return states


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("batch_size", [None, 9], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_mixture_of_two_models(model, batch_size, fused):
    plain, stacked = engines(model, (7, 9), fused=fused)
    states, sgd = two_models(plain), Sgd(2, 0.2, 0.1, 0.9, batch_size=batch_size)
    wanted = three_rounds(plain, states, Mixture(0.5), sgd)
    assert any(state[MIXING] in (0.0, 1.0) for state in wanted), "the projection should be seen at work"
    # Mini-batches are many steps at a large rate, which enlarge what float32 rounds.
    assert_same(three_rounds(stacked, states, Mixture(0.5), sgd), wanted, 1e-5 if batch_size is None else 1e-4)
    assert stacked.choices.objectives == {"Mixture": "handwritten" if fused else "torch.func"}


def test_a_mixing_weight_may_be_an_array_of_one():
    plain, stacked = engines("mlp", (7, 9))
    states = [{**state, MIXING: state[MIXING].reshape(1)} for state in two_models(plain)]
    sgd = Sgd(3, 0.2, 0.1, 0.9)
    assert_same(three_rounds(stacked, states, Mixture(0.1), sgd), three_rounds(plain, states, Mixture(0.1), sgd))


@pytest.mark.parametrize("sgd", [FULL, SMALL], ids=["full batch", "mini-batches"])
@pytest.mark.parametrize("sloped", [False, True])
def test_weights_that_are_pulled_and_sloped(sloped, sgd):
    """Each device has a slope of its own, all have one center."""
    plain, stacked = engines("mlp", (7,))
    start = plain.initial(0, 3, common=True)
    states, numbers = [start] * DEVICES, sum(value.numel() for value in start.values())
    slopes = 0.1 * torch.randn(DEVICES, numbers, generator=torch.Generator().manual_seed(1)) if sloped else None
    center = torch.cat([value.flatten() for value in start.values()])
    objective = Proximal(5.0, tuple(start), center, slopes)
    found, wanted = (
        engine.train(range(DEVICES), states, objective, sgd, RoundKey(0, 0)) for engine in (stacked, plain)
    )
    assert_same(found, wanted, 1e-5 if sgd is FULL else 1e-4)
    moved = [torch.cat([value.flatten() for value in state.values()]) for state in wanted]
    free = plain.train(range(DEVICES), states, Supervised(), sgd, RoundKey(0, 0))
    assert (moved[0] - torch.cat([value.flatten() for value in free[0].values()])).abs().max() > 1e-3


@dataclass(frozen=True, eq=False)
class Limited(Supervised):
    """Steps no longer than a gradient of norm 0.1 makes them."""

    @property
    def gradient_limit(self):
        return 0.1


def test_gradients_of_a_limited_norm():
    plain, stacked = engines("mlp", (7,))
    states, sgd = [plain.initial(device, 3) for device in range(DEVICES)], Sgd(1, 0.1, 0.1, 0.0)
    one_by_one = AutogradEngine(local_data((1, 4, 5)), fleet_from_name("mlp", (7,), DEVICES, (1, 4, 5), CLASSES, 0))
    found = [engine.train(range(DEVICES), states, Limited(), sgd, RoundKey(0, 0)) for engine in (stacked, one_by_one)]
    free = plain.train(range(DEVICES), states, Supervised(), sgd, RoundKey(0, 0))
    assert_same(*found)
    for before, after, longer in zip(states, found[0], free, strict=True):
        step, wanted = (torch.cat([(s[n] - v).flatten() for n, v in before.items()]) for s in (after, longer))
        torch.testing.assert_close(step, wanted / wanted.norm() * 0.1 * 0.1, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("body", "head", "mixing"), [(0.2, 0.1, 0.0), (0.0, 0.1, 0.5), (0.2, 0.0, 0.5)])
def test_mixture_of_which_a_part_stays(body, head, mixing):
    plain, stacked = engines("mlp", (7, 9))
    states, sgd = two_models(plain), Sgd(3, body, head, 0.9)
    wanted = three_rounds(plain, states, Mixture(mixing), sgd)
    assert_same(three_rounds(stacked, states, Mixture(mixing), sgd), wanted)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("sgd", [FULL, SMALL], ids=["full batch", "mini-batches"])
def test_distillation_on_given_samples(sgd, model, fused):
    plain, stacked = engines(model, fused=fused)
    inputs, _ = plain.proxy()
    wanted_logits = torch.randn(len(inputs), CLASSES, generator=torch.Generator().manual_seed(0))
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    given = (inputs, wanted_logits)
    wanted = three_rounds(plain, states, Distillation(2.0), sgd, given)
    # The convolutions of many small batches round differently, in handwritten kernels and in PyTorch alike.
    tolerance = 1e-4 if model == "cnn" and sgd is SMALL else 1e-5
    assert_same(three_rounds(stacked, states, Distillation(2.0), sgd, given), wanted, tolerance)
    assert stacked.choices.objectives == {"Distillation": "handwritten" if fused else "torch.func"}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_distillation_by_labels(model, fused):
    plain, stacked = engines(model, fused=fused)
    logits = 3 * torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(0))
    objective = LabelDistillation(0.7, logits, torch.arange(CLASSES) != 1)
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    assert_same(three_rounds(stacked, states, objective, FULL), three_rounds(plain, states, objective, FULL))
    assert stacked.choices.objectives == {"LabelDistillation": "handwritten" if fused else "torch.func"}


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_bf16_is_near_float32_for_every_objective(model):
    plain, stacked = engines(model, (7, 9), precision="bf16")
    given = (plain.proxy()[0], torch.randn(11, CLASSES, generator=torch.Generator().manual_seed(0)))
    single = [plain.initial(device, 0) for device in range(DEVICES)]
    for objective, states, data in (
        (Supervised(pull()), single, None),
        (Mixture(0.1), two_models(plain), None),
        (Distillation(2.0), single, given),
    ):
        wanted = plain.train(range(DEVICES), states, objective, FULL, RoundKey(0, 0), data)
        found = stacked.train(range(DEVICES), states, objective, FULL, RoundKey(0, 0), data)
        for before, one, other in zip(states, found, wanted, strict=True):
            moved = torch.cat([(other[name] - before[name]).flatten() for name in other])
            off = torch.cat([(one[name] - other[name]).flatten() for name in other])
            assert off.norm() < 0.2 * moved.norm(), type(objective).__name__
    assert set(stacked.choices.objectives.values()) == {"handwritten"}


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_with_rates_of_zero_nothing_moves(model):
    plain, stacked = engines(model, (7, 9))
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    assert_same(stacked.train(range(DEVICES), states, Supervised(), Sgd(2, 0.0, 0.0, 0.9), RoundKey(0, 0)), states, 0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rates", [(0.0, 0.1), (0.1, 0.0)])
def test_a_frozen_part_stays_exactly_as_it_is(fused, rates):
    for model in ("mlp", "cnn"):
        plain, stacked = engines(model, fused=fused)
        states = [plain.initial(device, 0) for device in range(DEVICES)]
        sgd = Sgd(3, *rates, 0.9)
        found = stacked.train(range(DEVICES), states, Supervised(pull()), sgd, RoundKey(0, 0))
        assert_same(found, plain.train(range(DEVICES), states, Supervised(pull()), sgd, RoundKey(0, 0)))
        frozen = "body." if rates[0] == 0 else "head."
        for before, after in zip(states, found, strict=True):
            assert all(torch.equal(before[name], after[name]) == name.startswith(frozen) for name in before)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("fused", [True, False])
def test_units_that_fill_a_narrow_layer_up_stay_exactly_zero(model, fused):
    _, stacked = engines(model, (7, 12), fused=fused)
    order = sorted(range(DEVICES), key=stacked._families.architecture)
    family = stacked._families.of(0)
    stack = Stack(family.shapes, [stacked.initial(device, 0) for device in order], torch.float32, torch.device("cpu"))
    held = {name: one.fill(None) for name, one in stack.inputs().items()}
    rows = torch.arange(20).expand(DEVICES, -1)
    table = StoredTable(stacked._data.dataset, "train", torch.float32, torch.device("cpu"))
    steps = [lambda: (*table.gather(rows), None)] * 4
    descent = Descent(dict.fromkeys(held, 0.5), 0.9)
    if fused:
        way = choose_convolutions("grouped", (), Arithmetic("float32", "cpu"), torch.device("cpu"))
        layers = family.network
        network = CohortNetwork(layers, Arithmetic("float32", "cpu"), way if layers.convolutions else None)
        after = train_cohort(network, held, steps, Supervised(pull()), descent)
    else:
        parts = split_objective([Supervised(pull())])
        cpu = Arithmetic("float32", "cpu")
        step = CohortStep(family.template, parts, descent, family.buffers, False, cpu)
        after, velocity = held, {name: torch.zeros_like(value) for name, value in held.items()}
        for read in steps:
            step(after, velocity, parts.shared, read(), None, None)
    filled = 0
    for name, value in after.items():
        for place, state in enumerate(stack.states):
            outside = torch.ones(value.shape[1:], dtype=torch.bool)
            outside[tuple(slice(size) for size in state[name].shape)] = False
            filled += int(outside.sum())
            assert torch.equal(value[place][outside], torch.zeros(int(outside.sum())))
            assert not torch.equal(value[place][~outside], state[name].flatten()), "the real units should learn"
    assert filled > 0


def test_states_that_come_in_are_not_changed_and_those_that_go_out_are_their_own():
    _, stacked = engines()
    states = [stacked.initial(device, 0) for device in range(DEVICES)]
    copies = [{name: value.clone() for name, value in state.items()} for state in states]
    first = stacked.train(range(DEVICES), states, Supervised(), FULL, RoundKey(0, 0))
    kept = [{name: value.clone() for name, value in state.items()} for state in first]
    stacked.train(range(DEVICES), first, Supervised(), FULL, RoundKey(0, 1))
    class_means(stacked, range(DEVICES), first)
    for one, other in zip([*states, *first], [*copies, *kept], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    frozen = stacked.train(range(DEVICES), states, Supervised(), Sgd(1, 0.0, 0.1, 0.0), RoundKey(0, 0))
    places = {value.untyped_storage().data_ptr() for state in states for value in state.values()}
    assert all(value.untyped_storage().data_ptr() not in places for state in frozen for value in state.values())


def test_the_order_of_devices_does_not_matter_and_a_device_may_come_alone_or_twice():
    _, stacked = engines()
    states = [stacked.initial(device, 0) for device in range(DEVICES)]
    objective = Supervised(pull(DEVICES))
    wanted = stacked.train(range(DEVICES), states, objective, SMALL, RoundKey(0, 4))
    order = [4, 0, 5, 1, 3, 2, 0]
    shuffled = Supervised(FeatureTargets(0.3, objective.pull.targets[order], objective.pull.known[order]))
    found = stacked.train(order, [states[device] for device in order], shuffled, SMALL, RoundKey(0, 4))
    assert_same(found, [wanted[device] for device in order], 1e-6)
    alone = Supervised(FeatureTargets(0.3, objective.pull.targets[3], objective.pull.known[3]))
    assert_same(stacked.train([3], [states[3]], alone, SMALL, RoundKey(0, 4)), [wanted[3]], 1e-6)


def test_nobody_is_no_problem():
    _, stacked = engines()
    assert stacked.train([], [], Supervised(pull()), FULL, RoundKey(0, 0)) == []
    means, counts = class_means(stacked, [], [])
    assert means.shape == (0, CLASSES, 64) and counts.shape == (0, CLASSES) and counts.dtype == torch.int64
    assert class_means(stacked, [], [], of="logits")[0].shape == (0, CLASSES, CLASSES)
    assert stacked.logits([], [], stacked.proxy()[0]).shape == (0, 11, CLASSES)
    assert stacked.correct([], []) == []


def test_gradients_are_finite_differences_in_float64():
    for model, fused in (("mlp", True), ("mlp", False), ("cnn", True)):
        _, stacked = engines(model, (7,), precision="float64", fused=fused)
        device, objective = 1, Supervised(pull())
        objective = Supervised(FeatureTargets(0.3, objective.pull.targets.double(), objective.pull.known))
        state = stacked.initial(device, 0)
        rate = 1e-3
        after = stacked.train([device], [state], objective, Sgd(1, rate, rate, 0.0), RoundKey(0, 0))[0]
        family = stacked._families.of(device)
        inputs, labels = (part.double() if part.is_floating_point() else part for part in _read(stacked, device))

        def loss(values, module=family.template, x=inputs, y=labels, task=objective):
            def forward(given, images):
                module.load_state_dict(given)
                feature = module.body(images)
                return feature, module.head(feature)

            return task.loss(forward, values, x, y).item()

        draw = np.random.default_rng(0)
        for name, value in state.items():
            for _ in range(2):
                place = tuple(int(draw.integers(size)) for size in value.shape)
                sides = []
                for step in (1e-6, -1e-6):
                    moved = {key: other.clone() for key, other in state.items()}
                    moved[name][place] += step
                    sides.append(loss(moved))
                slope = (sides[0] - sides[1]) / 2e-6
                assert (state[name][place] - after[name][place]).item() / rate == pytest.approx(slope, abs=2e-7)


def _read(engine, device):
    return engine._data.read(device, "train")


def test_bf16_products_stay_near_float32():
    for model, fused in (("mlp", True), ("mlp", False), ("cnn", True)):
        plain, stacked = engines(model, precision="bf16", fused=fused)
        states = [plain.initial(device, 0) for device in range(DEVICES)]
        wanted = plain.train(range(DEVICES), states, Supervised(pull()), FULL, RoundKey(0, 0))
        found = stacked.train(range(DEVICES), states, Supervised(pull()), FULL, RoundKey(0, 0))
        for before, one, other in zip(states, found, wanted, strict=True):
            assert all(value.dtype == torch.float32 for value in one.values())
            error = sum(float((one[name] - other[name]).square().sum()) for name in other) ** 0.5
            moved = sum(float((before[name] - other[name]).square().sum()) for name in other) ** 0.5
            assert 1e-4 * moved < error < 0.15 * moved


def test_unknown_words_are_refused():
    with pytest.raises(ConfigError, match="precision"):
        engines(precision="float8")
    with pytest.raises(ConfigError, match="convolution"):
        _, stacked = engines("cnn", convolution="magic")
        stacked.correct([0], [stacked.initial(0, 0)])
    with pytest.raises(ConfigError, match="NVIDIA"):
        _, stacked = engines("cnn", convolution="kernel")
        stacked.correct([0], [stacked.initial(0, 0)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_sentence():
    data = local_data((6,))
    with pytest.raises(ConfigError, match="no GPU"):
        StackedEngine(data, fleet_from_name("mlp", (8,), DEVICES, (6,), CLASSES, seed=0), "cuda")


class Memory(TorchFunctionMode):
    """Matrix products of more than two devices need more memory than there is."""

    refused = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.baddbmm, torch.bmm) and len(args[-1]) > 2:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return function(*args, **(kwargs or {}))


def test_a_cohort_that_does_not_fit_into_memory_is_halved(caplog):
    _, stacked = engines()
    states = [stacked.initial(device, 0) for device in range(DEVICES)]
    wanted = stacked.train(range(DEVICES), states, Supervised(), FULL, RoundKey(0, 0))
    caplog.set_level(logging.WARNING, "kfl")
    with Memory() as memory:
        found = stacked.train(range(DEVICES), states, Supervised(), FULL, RoundKey(0, 0))
        refused = memory.refused
        assert refused > 0 and "do not fit into memory" in caplog.text
        means, _ = class_means(stacked, range(DEVICES), found)
        assert memory.refused == refused, "what was learned about memory should be remembered"
    assert_same(found, wanted, 1e-6)
    assert list(stacked.choices.most_devices.values()) == [2]
    torch.testing.assert_close(means, class_means(stacked, range(DEVICES), found)[0])


@dataclass(frozen=True, eq=False)
class Smoothed(Objective):
    """A user's objective that does not know weights."""

    smoothing: float

    def loss(self, forward, state, inputs, targets):
        return nn.functional.cross_entropy(forward(state, inputs)[1], targets, label_smoothing=self.smoothing)


@dataclass(frozen=True, eq=False)
class Decay(Objective):
    """A user's objective that looks at the weights themselves, with an own strength for each device."""

    strength: torch.Tensor
    power: int = 2

    def loss(self, forward, state, inputs, targets, weights=None):
        assert weights is None or weights.sum() > 0.99
        size = sum(value.abs().pow(self.power).mean() for value in state.values())
        return class_loss(forward(state, inputs)[1], targets, weights) + self.strength * size

    def for_device(self, index):
        return Decay(self.strength[index], self.power)


@dataclass(frozen=True, eq=False)
class Different(Objective):
    """Objectives that differ in more than tensors."""

    def loss(self, forward, state, inputs, targets, weights=None):
        raise AssertionError("each device has its own")

    def for_device(self, index):
        return Smoothed(0.1 * index)


@pytest.mark.parametrize("objective", [Smoothed(0.2), Different()])
def test_objectives_without_weights_or_of_different_kinds(objective):
    plain, stacked = engines()
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    for sgd in (FULL, SMALL):
        wanted = plain.train(range(DEVICES), states, objective, sgd, RoundKey(0, 0))
        assert_same(stacked.train(range(DEVICES), states, objective, sgd, RoundKey(0, 0)), wanted)


def test_an_objective_that_looks_at_weights_is_not_given_padded_ones():
    plain, _ = engines()
    # `mean` over a padded layer would be another number.
    data = local_data((1, 4, 5), [20] * DEVICES)
    models = fleet_from_name("mlp", (8, 12), DEVICES, (1, 4, 5), CLASSES, seed=0)
    plain, stacked = PlainEngine(data, models), StackedEngine(data, models, "cpu")
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    objective = Decay(torch.linspace(0, 1, DEVICES))
    wanted = plain.train(range(DEVICES), states, objective, FULL, RoundKey(0, 0))
    assert_same(stacked.train(range(DEVICES), states, objective, FULL, RoundKey(0, 0)), wanted)


class Own(nn.Module):
    """Neither a chain of layers nor named like one."""

    def __init__(self, scale):
        super().__init__()
        self.enter, self.norm, self.scale = nn.Linear(6, 10), nn.LayerNorm(10), scale
        self.register_buffer("shift", torch.full((10,), 0.1))

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.enter(x) + self.shift)
        return self.norm(hidden) * self.scale + hidden


class Forked(nn.Module):
    """What it computes depends on what it sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 7)

    def forward(self, x):
        out = self.layer(x)
        return out.relu() if out.sum() > 0 else out.tanh()


def own_fleet(bodies, features):
    torch.manual_seed(0)
    modules = [SplitModel(body(device), nn.Linear(features, CLASSES)) for device, body in enumerate(bodies)]
    data = local_data((6,))
    models = fleet_from_modules(modules, DEVICES, (6,), CLASSES)
    return PlainEngine(data, models), StackedEngine(data, models, "cpu")


def compare_own(plain, stacked):
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    for sgd in (FULL, SMALL):
        wanted = three_rounds(plain, states, Supervised(), sgd)
        assert_same(three_rounds(stacked, states, Supervised(), sgd), wanted)
    assert stacked.correct(range(DEVICES), wanted) == plain.correct(range(DEVICES), wanted)
    for of in ("features", "logits"):
        found, counts = class_means(stacked, range(DEVICES), wanted, of=of)
        expected, numbers = class_means(plain, range(DEVICES), wanted, of=of)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(counts, numbers)
    return stacked.choices.families


def test_own_modules_that_are_built_alike_are_one_batch():
    alike = compare_own(*own_fleet([lambda device: Own(1.0)] * DEVICES, 10))
    assert list(alike.values()) == ["torch.func"]
    different = compare_own(*own_fleet([lambda device: Own(1.0 + device % 2)] * DEVICES, 10))
    assert len(different) == 2, "a number that is no weight makes another architecture"


class Noisy(nn.Module):
    """Draws by itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 7)

    def forward(self, x):
        out = self.layer(x)
        return out + 0.1 * torch.rand(out.shape, dtype=out.dtype) if self.training else out


@pytest.mark.parametrize(
    ("body", "features", "reason"),
    [(lambda _: Noisy(), 7, "other means than dropout"), (lambda _: Forked(), 7, "decides in Python")],
    ids=["noise", "control flow"],
)
def test_modules_that_cannot_be_vectorized_run_one_after_another_and_it_is_said_once(body, features, reason, caplog):
    caplog.set_level(logging.WARNING, "kfl")
    kinds = compare_own(*own_fleet([body] * DEVICES, features))
    assert len(kinds) == 1 and all(kind.startswith("sequential") and reason in kind for kind in kinds.values())
    said = [record for record in caplog.records if "cannot be vectorized" in record.getMessage()]
    assert len(said) == 1


class Windowed(nn.Module):
    """Convolutions, pooling, norms and dropout of whole channels, over images made of the inputs."""

    def __init__(self):
        super().__init__()
        self.spread = nn.Linear(6, 3 * 6 * 6)
        self.layers = nn.Sequential(
            nn.Unflatten(1, (3, 6, 6)),
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 7, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x):
        return self.layers(self.spread(x))


@pytest.mark.parametrize(
    "body",
    [
        lambda _: nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.ReLU()),
        lambda _: nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7, momentum=0.3, affine=False), nn.ReLU()),
        lambda _: nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.3)),
        lambda _: nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.3), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.1)),
        lambda _: Windowed(),
    ],
    ids=["batch norm", "without weights", "dropout", "both", "windows"],
)
def test_batch_norm_and_dropout_are_one_batch_and_equal_what_each_device_does_alone(body):
    kinds = compare_own(*own_fleet([body] * DEVICES, 7))
    assert list(kinds.values()) == ["torch.func"]


@pytest.mark.parametrize("tracked", [True, False], ids=["running statistics", "none"])
@pytest.mark.parametrize("batch_size", [11, 1])
def test_batch_norm_takes_a_batch_of_one_sample(tracked, batch_size):
    def body(_):
        return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7, track_running_stats=tracked), nn.ReLU())

    plain, stacked = own_fleet([body] * DEVICES, 7)
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    sgd = Sgd(1, 0.05, 0.03, 0.9, batch_size=batch_size)
    assert any(count % batch_size == 1 for count in COUNTS) or batch_size == 1
    wanted = three_rounds(plain, states, Supervised(), sgd)
    assert_same(three_rounds(stacked, states, Supervised(), sgd), wanted)
    assert all(torch.isfinite(value).all() for state in wanted for value in state.values())


def test_running_statistics_belong_to_the_device():
    plain, stacked = own_fleet([lambda _: nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7))] * DEVICES, 7)
    states = [plain.initial(device, 0) for device in range(DEVICES)]
    for engine in (plain, stacked):
        after = engine.train(range(DEVICES), states, Supervised(), FULL, RoundKey(0, 0))
        means = torch.stack([state["body.1.running_mean"] for state in after])
        assert len(torch.unique(means, dim=0)) == DEVICES
        assert [int(state["body.1.num_batches_tracked"]) for state in after] == [FULL.steps] * DEVICES


def test_draws_have_names_and_do_not_depend_on_the_company():
    _, stacked = own_fleet([lambda _: nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.5))] * DEVICES, 7)
    states = [stacked.initial(device, 0) for device in range(DEVICES)]
    together = stacked.train(range(DEVICES), states, Supervised(), SMALL, RoundKey(0, 0))
    alone = [stacked.train([k], [states[k]], Supervised(), SMALL, RoundKey(0, 0))[0] for k in range(DEVICES)]
    assert_same(alone, together)
    other = stacked.train(range(DEVICES), states, Supervised(), SMALL, RoundKey(0, 1))
    assert not torch.allclose(other[0]["body.0.weight"], together[0]["body.0.weight"])


def test_modules_are_tried_in_float64_so_that_rounding_is_no_difference():
    """A deep network in float32 rounds so much that a batch seems to differ from a device alone."""
    torch.manual_seed(0)
    layers = [part for _ in range(40) for part in (nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU())]
    module = SplitModel(nn.Sequential(*layers, nn.Linear(6, 4)), nn.Linear(4, 3))
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(3.0)
    verdict = try_module(module, torch.randn(3, 6), torch.tensor([0, 1, 2]))
    assert verdict.vectorized and verdict.separable, verdict.reason


def test_a_module_that_insists_on_float32_is_tried_in_that():
    class Insists(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x.to(torch.float32))

    verdict = try_module(SplitModel(Insists(), nn.Linear(4, 3)), torch.randn(3, 6), torch.tensor([0, 1, 2]))
    assert verdict.vectorized, verdict.reason


def test_a_module_whose_samples_depend_on_each_other_is_never_filled_up():
    def body(_):
        return nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7, track_running_stats=False), nn.ReLU())

    kinds = compare_own(*own_fleet([body] * DEVICES, 7))
    assert all(kind.startswith("torch.func") for kind in kinds.values())


def test_a_network_that_uses_a_layer_twice_is_not_read_as_if_it_used_it_once():
    """PyTorch lists a shared layer once, under its first name."""

    def build(device):
        torch.manual_seed(device)
        relu = nn.ReLU()
        body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), relu, nn.Linear(5, 4), relu)
        return SplitModel(body, nn.Linear(4, 3))

    draw = np.random.default_rng(0)
    data = Dataset.from_arrays(draw.normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3)
    local = LocalData(data, partition("iid", data.train_y, data.test_y, 3, 2, 0))
    models = fleet_from_modules(build, 2, (6,), 3)
    plain, stacked = PlainEngine(local, models), StackedEngine(local, models, "cpu")
    states = [plain.initial(device, 0) for device in range(2)]
    inputs = torch.from_numpy(data.train_x[:5])
    torch.testing.assert_close(stacked.logits(range(2), states, inputs), plain.logits(range(2), states, inputs))
