import pytest
import torch
from torch import nn

from kfl.core.errors import ConfigError, ModelError
from kfl.models import SplitModel, cnn, fleet_from_modules, fleet_from_name, inspect_model, mlp


def test_the_sizes_the_paper_gives():
    multilayer = inspect_model(mlp(width=256), (1, 28, 28), 10)
    assert multilayer.parameters == 550_346  # the paper prints 553,406; 784-512-256-64-10 has 550,346
    assert multilayer.flops == multilayer.parameters
    convolutional = inspect_model(cnn(width=128), (3, 32, 32), 10)
    assert (convolutional.parameters, convolutional.flops) == (63_106, 1_245_834)
    assert multilayer.features == convolutional.features == 64


@pytest.mark.parametrize("width", [128, 192, 256, 320, 384])
def test_sizes_by_formula(width):
    # Written out by hand: weights and biases layer by layer, convolutions 2 operations per multiply-add.
    dense = lambda i, o: i * o + o  # noqa: E731  (a formula)
    multilayer = inspect_model(mlp(width=width), (1, 28, 28), 10)
    assert multilayer.parameters == dense(784, 512) + dense(512, width) + dense(width, 64) + dense(64, 10)
    convolutional = inspect_model(cnn(width=width), (3, 32, 32), 10)
    tail = dense(400, width) + dense(width, 64) + dense(64, 10)
    assert convolutional.parameters == (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16 + tail
    assert convolutional.flops == 2 * (6 * 28 * 28 * 75 + 16 * 10 * 10 * 150) + tail
    assert convolutional.body_flops == convolutional.flops - dense(64, 10)


def body(features: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, features), nn.ReLU())


def test_own_modules_of_different_kinds_form_a_fleet():
    modules = [SplitModel(body(8), nn.Linear(8, 3)) for _ in range(2)]
    modules.append(SplitModel(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(8)), nn.Linear(8, 3)))
    fleet = fleet_from_modules(modules, 3, (1, 4, 4), 3)
    assert fleet.features == 8
    assert fleet.mixed
    for device, module in enumerate(modules):
        for name, value in module.state_dict().items():
            assert torch.equal(fleet.initial(device, seed=0)[name], value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda k: SplitModel(body(8 if k else 7), nn.Linear(8 if k else 7, 3)), ["length 8", "7", "same size"]),
        (lambda k: nn.Linear(16, 3), ["no 'body'"]),
        (lambda k: SplitModel(body(8), nn.Linear(9, 3)), ["head", "cannot process"]),
        (lambda k: SplitModel(body(8), nn.Linear(8, 4)), ["head", "3 classes"]),
        (lambda k: SplitModel(nn.Conv2d(1, 2, 3), nn.Linear(8, 3)), ["body", "feature vector", "Flatten"]),
        (lambda k: "a string", ["device 0", "not a torch.nn.Module"]),
    ],
)
def test_a_model_that_does_not_fit_is_refused_early_and_clearly(build, words):
    with pytest.raises(ModelError) as problem:
        fleet_from_modules(build, 2, (1, 4, 4), 3)
    assert all(word in str(problem.value) for word in words), str(problem.value)


def test_number_of_models_must_match_devices():
    with pytest.raises(ModelError, match="1 models for 2 devices"):
        fleet_from_modules([mlp()], 2, (1, 28, 28), 10)


@pytest.mark.parametrize("name", ["resnet", "no.such:thing", "math:pi", "math:sqrt", ":", "kfl.models:"])
def test_an_unknown_network_is_named(name):
    with pytest.raises(ConfigError, match="model is"):
        fleet_from_name(name, (8,), 2, (1, 28, 28), 10, seed=0)


def test_a_named_builder_is_found():
    fleet = fleet_from_name("kfl.models:mlp", (8, 16), 4, (1, 28, 28), 10, seed=0)
    assert fleet.profile(0).features == 64


def test_starting_weights_have_names_and_leave_the_random_state_alone():
    fleet = fleet_from_name("mlp", (8,), 5, (1, 28, 28), 10, seed=0)
    before = torch.random.get_rng_state()
    one, again, other = fleet.initial(1, 0), fleet.initial(1, 0), fleet.initial(2, 0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["body.1.weight"], other["body.1.weight"])
    common = fleet.initial(1, 0, common=True), fleet.initial(2, 0, common=True)
    assert all(torch.equal(common[0][name], common[1][name]) for name in one)


def test_another_device_never_shifts_yours():
    small = fleet_from_name("mlp", (8, 12, 16), 10, (1, 28, 28), 10, seed=4)
    large = fleet_from_name("mlp", (8, 12, 16), 1000, (1, 28, 28), 10, seed=4)
    assert (small.architecture == large.architecture[:10]).all()
    assert set(large.architecture.tolist()) == {0, 1, 2}
