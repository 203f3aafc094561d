"""Compiled convolutions: PyTorch's, for any shape that they take, and nothing else is touched."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("llvmlite")

from kfl._kernels.cpu import CompiledLayers
from kfl._kernels.cpu.convolution import Shape, convolved, input_gradient, pays, weight_gradient

pair = st.tuples(st.integers(1, 2), st.integers(1, 2))


@given(
    channels=st.integers(1, 9),
    outputs=st.integers(1, 18),
    image=st.tuples(st.integers(1, 20), st.integers(1, 40)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    stride=pair,
    padding=st.tuples(st.integers(0, 3), st.integers(0, 5)),
    dilation=pair,
    samples=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_any_shape_gives_the_convolution_and_its_gradients(
    channels, outputs, image, kernel, stride, padding, dilation, samples, seed
):
    shape = Shape(channels, outputs, image, kernel, stride, padding, dilation)
    assume(min(shape.result) >= 1)
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, channels, *image, generator=draw)
    weights = torch.randn(outputs, channels, *kernel, generator=draw)
    bias = torch.randn(outputs, generator=draw)
    slopes = torch.randn(samples, outputs, *shape.result, generator=draw)
    exact = [tensor.double().requires_grad_() for tensor in (inputs, weights, bias)]
    expected = torch.conv2d(*exact, stride, padding, dilation)
    gradients = torch.autograd.grad(expected, exact[:2], slopes.double())
    for found, wanted in (
        (convolved(inputs, weights, bias, shape), expected.detach()),
        (input_gradient(slopes, weights, shape), gradients[0]),
        (weight_gradient(inputs, slopes, shape), gradients[1]),
    ):
        assert found.shape == wanted.shape
        scale = float(wanted.abs().max()) + 1
        torch.testing.assert_close(found.double(), wanted, atol=2e-6 * scale, rtol=0)


def test_memory_that_is_used_again_holds_nothing_of_the_last_batch():
    shape = Shape(3, 5, (9, 17), (3, 3), (2, 2), (1, 1), (1, 1))
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 4, 3, 9, 17, generator=draw)
    weights, slopes = torch.randn(5, 3, 3, 3, generator=draw), torch.randn(4, 5, *shape.result, generator=draw)
    first = convolved(one, weights, None, shape), weight_gradient(one, slopes, shape)
    convolved(torch.full_like(other, 1e30), weights, None, shape)
    weight_gradient(torch.full_like(other, 1e30), slopes, shape)
    input_gradient(torch.full_like(slopes, 1e30), weights, shape)
    again = convolved(one, weights, None, shape), weight_gradient(one, slopes, shape)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(first, again, strict=True))


class Counted(CompiledLayers):
    """Counts what was taken over."""

    def __init__(self):
        super().__init__()
        self.ours = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        self.ours += isinstance(result, torch.Tensor) and type(_origin(result)).__name__ in (
            "ConvolutionFunctionBackward",
            "PoolingFunctionBackward",
        )
        return result


def _origin(result):
    """The function that made a result, through the views around it."""
    node = result.grad_fn
    while node is not None and ("Squeeze" in type(node).__name__ or "Unsqueeze" in type(node).__name__):
        node = node.next_functions[0][0]
    return node


@pytest.mark.parametrize(
    ("layer", "shape", "ours"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32), True),
        (nn.Conv2d(3, 8, 3, padding=1, bias=False, stride=2), (3, 32, 32), True),
        (nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), (3, 32, 32), True),
        (nn.Conv1d(9, 6, 9, padding=4), (9, 128), True),
        (nn.Conv1d(9, 6, 9, padding=4, stride=2, dilation=2), (9, 128), True),
        (nn.Conv2d(3, 8, 3, padding="same"), (3, 32, 32), False),
        (nn.Conv2d(4, 8, 3, groups=2), (4, 32, 32), False),
        (nn.Conv2d(3, 8, 3, stride=3), (3, 32, 32), False),
        (nn.Conv2d(3, 8, 3), (3, 4, 4), False),
        (nn.Conv2d(3, 8, 3).double(), (3, 32, 32), False),
        (nn.MaxPool2d(2), (3, 9, 40), True),
        (nn.MaxPool1d(3), (3, 40), True),
        (nn.MaxPool2d((2, 3), stride=(2, 3)), (3, 9, 40), True),
        (nn.MaxPool2d(3, stride=2), (3, 9, 40), False),
        (nn.MaxPool2d(2, padding=1), (3, 9, 40), False),
        (nn.MaxPool1d(3, ceil_mode=True), (3, 40), False),
        (nn.MaxPool1d(3, dilation=2), (3, 40), False),
    ],
)
def test_modules_give_what_they_give_and_only_what_is_faster_is_taken_over(layer, shape, ours):
    draw = torch.Generator().manual_seed(0)
    number = layer.weight.dtype if isinstance(layer, nn.Conv1d | nn.Conv2d) else torch.float32
    x = torch.randn(5, *shape, generator=draw, dtype=number)
    slopes = torch.randn(layer(x).shape, generator=draw, dtype=x.dtype)
    found = []
    for inputs in (x.clone().requires_grad_(), x.clone().requires_grad_()):
        mode = Counted()
        if found:
            with mode:
                output = layer(inputs)
            assert mode.ours == ours
        else:
            output = layer(inputs)
        found.append((output, *torch.autograd.grad(output, [inputs, *layer.parameters()], slopes)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5 * float(theirs.detach().abs().max()), rtol=0)


def test_gradients_of_gradients_and_function_transforms_still_work():
    layer = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2))
    weight = layer[0].weight
    x = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))

    def penalty():
        inputs = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), weight)[0]

    def by_function():
        return torch.func.grad(lambda w: torch.conv2d(x, w, None, padding=1).square().sum())(weight.detach())

    for work in (penalty, by_function):
        expected = work()
        with CompiledLayers():
            found = work()
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-5)


@given(
    cell=st.tuples(st.integers(1, 4), st.integers(1, 8)),
    more=st.tuples(st.integers(0, 9), st.integers(0, 70)),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_pooling_gives_the_bits_of_pytorch_with_equal_numbers_and_what_is_no_number(cell, more, seed):
    draw = torch.Generator().manual_seed(seed)
    image = torch.randint(-2, 3, (2, 3, cell[0] + more[0], cell[1] + more[1]), generator=draw).float()
    image[torch.rand(image.shape, generator=draw) < 0.05] = float("nan")
    image[torch.rand(image.shape, generator=draw) < 0.05] = float("-inf")
    found = []
    for mode in (CompiledLayers(), nullcontext()):
        inputs = image.clone().requires_grad_()
        with mode:
            pooled = nn.functional.max_pool2d(inputs, cell)
        slopes = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(1))
        found.append((pooled, *torch.autograd.grad(pooled, inputs, slopes)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0, rtol=0, equal_nan=True)


def test_what_pytorch_does_faster_is_left_to_it():
    assert pays(Shape(16, 16, (32, 32), (3, 3), (1, 1), (1, 1), (1, 1)))
    assert pays(Shape(9, 32, (1, 128), (1, 9), (1, 1), (0, 4), (1, 1)))
    assert pays(Shape(16, 32, (16, 16), (1, 1), (2, 2), (0, 0), (1, 1)))
    assert not pays(Shape(32, 64, (1, 42), (1, 9), (1, 1), (0, 4), (1, 1)))
    assert not pays(Shape(64, 64, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1)))
