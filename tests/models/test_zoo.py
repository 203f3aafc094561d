"""The networks of the zoo: sizes by formulas written out here, gradients stacked and alone, inputs that do not fit."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from kfl.core.errors import ModelError
from kfl.models import MODELS, inspect_model, mobilenet, resnet8, resnet18, sensor, transformer
from kfl.models.zoo import FEATURES

SMALL = [
    (resnet8, (3, 12, 10), 4),
    (resnet18, (1, 9, 8), 2),
    (mobilenet, (3, 11, 8), 2),
    (sensor, (9, 40), 4),
    (transformer, (3, 10, 8), 8),
    (transformer, (5, 30), 12),
]
"""A builder, an input that is not whole in its strides or patches, and a width."""


@pytest.mark.parametrize(("build", "shape", "width"), SMALL)
def test_stacked_gradients_are_those_of_each_device_alone(build, shape, width):
    torch.manual_seed(100)
    devices = [build(shape, 4, width).double() for _ in range(3)]
    x, y = torch.randn(3, 5, *shape, dtype=torch.float64), torch.randint(4, (3, 5))
    parameters, buffers = stack_module_state(devices)
    assert not buffers  # a device's weights are all there is to its model

    def loss(values, inputs, labels):
        return cross_entropy(functional_call(devices[0], values, (inputs,)), labels)

    found = vmap(grad(loss))({name: value.detach() for name, value in parameters.items()}, x, y)
    for device, module in enumerate(devices):
        module.zero_grad()
        cross_entropy(module(x[device]), y[device]).backward()
        for name, value in module.named_parameters():
            assert value.grad.abs().max() > 0, name
            torch.testing.assert_close(found[name][device], value.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("build", "shape", "width"), SMALL)
def test_a_sample_does_not_depend_on_its_batch_nor_on_the_mode(build, shape, width):
    torch.manual_seed(101)
    model, x = build(shape, 4, width).double(), torch.randn(6, *shape, dtype=torch.float64)
    together = model(x)
    torch.testing.assert_close(together[2:3], model(x[2:3]))
    torch.testing.assert_close(together, model.eval()(x))
    assert inspect_model(model.float(), shape, 4).features == FEATURES
    assert (model.body(x.float()) >= 0).all()


def test_a_transformer_sees_every_pixel_and_every_place():
    model = transformer((1, 10, 8), 4, 8)
    x = torch.randn(1, 1, 10, 8, requires_grad=True)
    model(x).sum().backward()
    assert (x.grad != 0).all()
    turned = torch.roll(x.detach(), 4, dims=3)  # whole patches change places
    assert not torch.allclose(model(x), model(turned))


@pytest.mark.parametrize(
    ("name", "shape", "width", "words"),
    [
        ("resnet8", (9, 128), 16, ["images", "(9, 128)"]),
        ("resnet18", (3, 4, 32), 16, ["at least 8×8", "(3, 4, 32)"]),
        ("mobilenet", (784,), 16, ["images", "(784,)"]),
        ("resnet8", (3, 32, 32), 7, ["width must be even", "7"]),
        ("mobilenet", (3, 32, 32), 15, ["width must be even", "15"]),
        ("sensor", (3, 32, 32), 32, ["(channels, time)", "(3, 32, 32)"]),
        ("sensor", (9, 20), 32, ["27 time steps", "(9, 20)"]),
        ("transformer", (784,), 64, ["images", "series", "(784,)"]),
        ("transformer", (3, 32, 32), 30, ["multiple of 4", "30"]),
        ("linear", (3, 32, 32), 8, ["width must be 1", "8"]),
    ],
)
def test_an_input_or_a_width_that_does_not_fit_is_named(name, shape, width, words):
    with pytest.raises(ModelError) as problem:
        MODELS[name](shape, 10, width)
    assert all(word in str(problem.value) for word in (name, *words)), str(problem.value)
