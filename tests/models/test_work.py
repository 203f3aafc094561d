"""Parameters and FLOPs against formulas written out by hand, and against PyTorch's own counter."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

from kfl.models import MODELS, SplitModel, inspect_model, mobilenet, resnet8, resnet18, sensor, transformer

# ── The zoo ──────────────────────────────────────────────────────────────────
#
# Each formula gives (parameters, FLOPs) of a network from its layout alone: k×k convolutions as (in, out, side of the
# output), two operations per multiply-add; a normalization with 2 parameters per channel and 5 operations per number.


def dense(inputs, outputs, times=1):
    numbers = inputs * outputs + outputs
    return numbers, numbers * times


def normalised(inputs, outputs, pixels, k=3, groups=1):
    weights = outputs * (inputs // groups) * k * k
    return weights + 2 * outputs, 2 * weights * pixels + 5 * outputs * pixels


def total(*pieces):
    return tuple(sum(column) for column in zip(*pieces, strict=True))


def residual_formula(channels, side, classes, widths, blocks):
    found, inputs = [normalised(channels, widths[0], side * side)], widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            if stage and not block:
                side = math.ceil(side / 2)
            found += [normalised(inputs, outputs, side * side), normalised(outputs, outputs, side * side)]
            if inputs != outputs:
                found.append(normalised(inputs, outputs, side * side, k=1))
            inputs = outputs
    return total(*found, dense(inputs, 64), dense(64, classes))


@pytest.mark.parametrize("width", [8, 16, 24])
@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((1, 28, 28), 7)])
def test_residual_networks(width, shape, classes):
    channels, side, _ = shape
    for build, widths, blocks in (
        (resnet8, (width, 2 * width, 4 * width), 1),
        (resnet18, (width, 2 * width, 4 * width, 8 * width), 2),
    ):
        found = inspect_model(build(shape, classes, width), shape, classes)
        assert (found.parameters, found.flops) == residual_formula(channels, side, classes, widths, blocks)
        assert found.flops - found.body_flops == found.parameters - found.body_parameters == 65 * classes


@pytest.mark.parametrize("w", [2, 8, 16])
def test_mobilenet(w):
    def separable(inputs, outputs, pixels):
        return total(normalised(inputs, inputs, pixels, groups=inputs), normalised(inputs, outputs, pixels, k=1))

    expected = total(
        normalised(3, w, 1024),
        separable(w, 2 * w, 1024),
        separable(2 * w, 4 * w, 256),
        separable(4 * w, 4 * w, 256),
        separable(4 * w, 8 * w, 64),
        separable(8 * w, 8 * w, 64),
        separable(8 * w, 16 * w, 16),
        dense(16 * w, 64),
        dense(64, 10),
    )
    found = inspect_model(mobilenet((3, 32, 32), 10, w), (3, 32, 32), 10)
    assert (found.parameters, found.flops) == expected


@pytest.mark.parametrize("w", [4, 32, 64])
def test_sensor(w):
    convolutions = [(9, w, 128), (w, 2 * w, 42), (2 * w, 2 * w, 14)]
    parameters = sum((9 * i + 1) * o for i, o, _ in convolutions) + (8 * w + 1) * 64 + 65 * 6
    flops = sum(2 * 9 * i * o * steps for i, o, steps in convolutions) + (8 * w + 1) * 64 + 65 * 6
    found = inspect_model(sensor((9, 128), 6, w), (9, 128), 6)
    assert (found.parameters, found.flops) == (parameters, flops)


@pytest.mark.parametrize("w", [8, 32, 64])
@pytest.mark.parametrize(
    ("shape", "patches", "size"), [((3, 32, 32), 64, 48), ((1, 28, 28), 49, 16), ((9, 125), 16, 72)]
)
def test_transformer(w, shape, patches, size):
    norm = (2 * w, 5 * w * patches)
    attention = (0, 2 * patches * patches * w)  # queries with keys, then weights with values, over all heads
    layers = [(w, 3 * w), (w, w), (w, 4 * w), (4 * w, w)]
    block = total(norm, norm, attention, *(dense(i, o, patches) for i, o in layers))
    places = (patches * w, patches * w)
    expected = total(dense(size, w, patches), places, block, block, norm, dense(w, 64), dense(64, 5))
    found = inspect_model(transformer(shape, 5, w), shape, 5)
    assert (found.parameters, found.flops) == expected


@pytest.mark.parametrize(
    ("build", "shape"),
    [(resnet8, (3, 32, 32)), (mobilenet, (3, 32, 32)), (sensor, (9, 128)), (transformer, (3, 32, 32))],
)
def test_products_and_convolutions_are_those_that_pytorch_counts(build, shape):
    model = build(shape, 10, 16)
    found = inspect_model(model, shape, 10)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, *shape))
    counts = counter.get_flop_counts()["Global"]
    convolutions = sum(number for operation, number in counts.items() if "conv" in str(operation))
    products = (counter.get_total_flops() - convolutions) / 2  # PyTorch counts a multiply-add as two
    rest = found.flops - convolutions - products  # biases, normalizations, positions
    assert 0 < rest < 0.12 * found.flops


def test_the_table_in_the_docs_is_what_the_networks_are():
    page = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)-(\d+)` \| ([\d×]+) \| ([\d,]+) \| ([\d.,]+) M \|", page, re.MULTILINE)
    assert {name for name, *_ in rows} == set(MODELS)
    for name, width, size, parameters, millions in rows:
        shape = tuple(map(int, size.split("×")))
        classes = 6 if name == "sensor" else 10
        found = inspect_model(MODELS[name](shape, classes, int(width)), shape, classes)
        assert found.parameters == int(parameters.replace(",", ""))
        assert found.flops / 1e6 == pytest.approx(float(millions.replace(",", "")), rel=4e-3)


# ── A user's own ─────────────────────────────────────────────────────────────


class Called(nn.Module):
    """A body whose work is in functions and not in layers, with a filter that is not a parameter of any layer."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 1, 3, 3))
        self.matrix = nn.Parameter(torch.randn(36, 8))

    def forward(self, x):
        x = conv2d(x, self.kernel, groups=2)  # 2 → 4 channels, 5×5 → 3×3
        return torch.einsum("ni,ij->nj", x.flatten(1), self.matrix)


def test_functions_count_like_layers():
    found = inspect_model(SplitModel(Called(), nn.Linear(8, 3)), (2, 5, 5), 3)
    assert found.body_flops == 2 * 4 * 9 * 9 + 36 * 8
    assert found.body_parameters == 36 + 36 * 8


def test_a_head_without_parameters_still_works():
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("centers", torch.randn(8, 3))

        def forward(self, x):
            return x @ self.centers

    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU())
    found = inspect_model(SplitModel(body, Distances()), (1, 4, 4), 3)
    assert (found.parameters, found.body_parameters) == (17 * 8, 17 * 8)
    assert found.flops - found.body_flops == 8 * 3
    free = inspect_model(SplitModel(body, nn.Identity()), (1, 4, 4), 8)
    assert free.flops == free.body_flops == 17 * 8


def test_shared_weights_are_one_set_of_parameters_and_twice_the_work():
    layer = nn.Linear(6, 6)
    tied = SplitModel(nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer), nn.Linear(6, 2))
    found = inspect_model(tied, (6,), 2)
    assert found.parameters == 42 + 14
    assert found.flops == 2 * 42 + 14


def test_a_linear_layer_counts_the_same_however_its_input_lies_in_memory():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x.transpose(1, 2)).flatten(1)

    found = inspect_model(SplitModel(Turned(), nn.Linear(15, 2)), (4, 5), 2)
    assert found.body_flops == 5 * (4 * 3 + 3)


class Read(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0][:, -1]


@pytest.mark.parametrize(("build", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_recurrent_layer_works_in_every_time_step(build, gates, bias):
    found = inspect_model(SplitModel(Read(build(5, 6, batch_first=True, bias=bias)), nn.Linear(6, 2)), (7, 5), 2)
    assert found.body_flops == 7 * gates * (5 * 6 + 6 * 6 + 2 * 6 * bias)


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean(1)


def test_pytorchs_own_transformer_counts_like_its_layers():
    tokens, w, inner = 5, 8, 12
    layer = nn.TransformerEncoderLayer(w, 2, inner, dropout=0.0, batch_first=True)
    fused = torch.backends.mha.get_fastpath_enabled()
    found = inspect_model(SplitModel(nn.Sequential(layer, Averaged()), nn.Linear(w, 2)), (tokens, w), 2)
    layers = [(w, 3 * w), (w, w), (w, inner), (inner, w)]
    expected = sum(tokens * (i * o + o) for i, o in layers) + 2 * tokens * tokens * w + 2 * 5 * tokens * w
    assert found.body_flops == expected
    assert torch.backends.mha.get_fastpath_enabled() == fused


@pytest.mark.parametrize(
    ("norm", "each"),
    [
        (nn.BatchNorm2d(4), 5),
        (nn.BatchNorm2d(4, affine=False), 4),
        (nn.GroupNorm(2, 4), 5),
        (nn.InstanceNorm2d(4), 4),
        (nn.LayerNorm((4, 3, 3)), 5),
        (nn.LayerNorm((4, 3, 3), elementwise_affine=False), 4),
    ],
)
def test_a_normalisation_works_on_every_number(norm, each):
    body = nn.Sequential(norm, nn.Flatten())
    before = {name: value.clone() for name, value in body.state_dict().items()}
    found = inspect_model(SplitModel(body, nn.Linear(36, 2)), (4, 3, 3), 2)
    assert found.body_flops == each * 36
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())


def test_a_transposed_convolution_works_once_for_each_input():
    body = nn.Sequential(nn.ConvTranspose2d(2, 3, 3, stride=2), nn.Flatten())
    found = inspect_model(SplitModel(body, nn.Linear(243, 2)), (2, 4, 4), 2)
    assert found.body_flops == 2 * (2 * 3 * 9) * 16
