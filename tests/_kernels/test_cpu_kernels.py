"""The compiled convolutions against PyTorch's, in float64, for sample counts that fill no vector."""

import numpy as np
import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d, relu

pytest.importorskip("llvmlite")

from kfl._kernels.arithmetic import Arithmetic
from kfl._kernels.cpu.cnn import ConvolutionWeights, ConvPass, ImageSamples
from kfl._kernels.cpu.conv_kernels import to_blocks_kernel, to_samples_kernel, winner_offsets
from kfl._kernels.memory import Workspace
from kfl.models import Convolution, Dense, Network

EXACT = Arithmetic("float64")


def network(channels, height, width):
    first = Convolution("a", channels, 6, 5, height, width)
    second = Convolution("b", 6, 16, 5, *first.pooled)
    dense = Dense("c", second.outputs, 8, rectified=True)
    return Network((first, second), (dense,), Dense("head", 8, 4, rectified=False), (channels, height, width))


def weights(net, seed=0):
    draw = torch.Generator().manual_seed(seed)
    one = net.convolutions[0]
    return {
        "a.weight": torch.randn(6, one.channels_in, 5, 5, generator=draw, dtype=torch.float64) / 5,
        "a.bias": torch.randn(6, generator=draw, dtype=torch.float64),
        "b.weight": torch.randn(16, 6, 5, 5, generator=draw, dtype=torch.float64) / 5,
        "b.bias": torch.randn(16, generator=draw, dtype=torch.float64) / 2,
    }


def by_torch(state, images):
    inner = max_pool2d(relu(conv2d(images, state["a.weight"], state["a.bias"])), 2)
    return max_pool2d(relu(conv2d(inner, state["b.weight"], state["b.bias"])), 2).flatten(1)


@pytest.mark.parametrize(
    ("channels", "height", "width", "samples"),
    [(3, 32, 32, 37), (1, 28, 28, 16), (3, 16, 16, 1), (2, 21, 34, 18)],  # odd sides lose a row or column in pooling
)
def test_convolutions_forward_and_backward_are_pytorchs(channels, height, width, samples):
    net, memory = network(channels, height, width), Workspace()
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(samples, channels, height, width, generator=draw, dtype=torch.float64)
    state = weights(net)
    passes = ConvPass(net, ImageSamples.of(images, EXACT), EXACT, memory)
    first, second = (ConvolutionWeights(layer, state) for layer in net.convolutions)
    pooled = passes.forward(first, second)

    leaves = {name: value.clone().requires_grad_() for name, value in state.items()}
    expected = by_torch(leaves, images)
    torch.testing.assert_close(pooled, expected.detach(), atol=1e-12, rtol=1e-12)

    upstream = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    expected.backward(upstream)
    slope = memory.take("slope", *expected.shape, dtype=torch.float64).copy_(upstream * (pooled > 0))
    passes.backward(first, second, slope, 0.0)
    for convolution in (first, second):
        convolution.rows.zero_()
        convolution.bias.zero_()
        convolution.descend(-1.0)  # now the "weights" are the gradient
        for name, value in convolution.trained().items():
            torch.testing.assert_close(value, leaves[name].grad, atol=1e-10, rtol=1e-10)


def test_gradients_add_to_momentum_times_velocity():
    net, memory = network(1, 16, 16), Workspace()
    images = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    passes = ConvPass(net, ImageSamples.of(images, EXACT), EXACT, memory)
    first, second = (ConvolutionWeights(layer, weights(net)) for layer in net.convolutions)
    pooled = passes.forward(first, second)
    slope = memory.take("slope", *pooled.shape, dtype=torch.float64).copy_(pooled)
    passes.backward(first, second, slope, 0.0)
    once = [convolution.trained_velocity.clone() for convolution in (_Velocity(first), _Velocity(second))]
    passes.backward(first, second, slope, 0.5)
    for convolution, gradient in zip((first, second), once, strict=True):
        torch.testing.assert_close(_Velocity(convolution).trained_velocity, 1.5 * gradient)


class _Velocity:
    """The lanes of a velocity that belong to weights."""

    def __init__(self, convolution):
        used = convolution.layer.kernel * convolution.layer.channels_in
        self.trained_velocity = convolution.velocity[:, :, :used]


def test_a_model_that_is_not_a_number_says_so():
    net = network(1, 16, 16)
    state = weights(net)
    state["a.weight"][2] = float("nan")
    passes = ConvPass(net, ImageSamples.of(torch.ones(3, 1, 16, 16, dtype=torch.float64), EXACT), EXACT, Workspace())
    first, second = (ConvolutionWeights(layer, state) for layer in net.convolutions)
    assert passes.forward(first, second).isnan().all()


@pytest.mark.parametrize("rows", [16, 17, 31, 400])
@pytest.mark.parametrize("number", ["float32", "float64", None])
def test_blocks_and_samples_are_the_same_numbers_in_another_order(rows, number):
    kind = torch.uint8 if number is None else getattr(torch, number)
    blocks = torch.randint(0, 255, (3, rows, 16), generator=torch.Generator().manual_seed(0)).to(kind)
    stride = rows + 5
    samples = torch.zeros(48, stride, dtype=kind)
    to_samples_kernel(rows, stride, number)(blocks.data_ptr(), samples.data_ptr(), 3)
    assert torch.equal(samples[:, :rows], blocks.transpose(1, 2).reshape(48, rows))
    assert not samples[:, rows:].any()
    if number is not None:
        tight, back = samples[:, :rows].contiguous(), torch.zeros_like(blocks)
        to_blocks_kernel(rows, number)(tight.data_ptr(), back.data_ptr(), 3)
        assert torch.equal(back, blocks)


def test_winners_lie_where_the_image_has_them():
    layer = Convolution("a", 3, 6, 5, 9, 12)
    image = np.arange(9 * 12 * 3).reshape(9, 12, 3)
    offsets = np.array(winner_offsets(layer)).reshape(*layer.pooled, 2, 2)
    assert layer.pooled == (2, 4)
    for row, column, down, right in np.ndindex(offsets.shape):
        assert image.ravel()[offsets[row, column, down, right]] == image[2 * row + down, 2 * column + right, 0]
