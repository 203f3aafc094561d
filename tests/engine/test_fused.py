"""Blocks of convolution, ReLU and pooling in C: those of PyTorch, forward and backward, and what is no block."""

import platform
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional

from kfl.engine import compile as compiling
from kfl.engine import fused
from kfl.engine.compile import CompileError, find_compiler, load_library
from kfl.engine.fused import Block, BlockFunction, Shape, check, compiled_block, has_blocks, rewrite
from kfl.models import SplitModel, cnn

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")

SHAPES = [
    Shape(3, 6, 32, 32, 5),
    Shape(6, 16, 14, 14, 5),
    Shape(1, 7, 9, 12, 3),
    Shape(20, 3, 7, 6, 2),
    Shape(2, 1, 2, 3, 1),
    Shape(16, 13, 8, 9, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_agrees_with_pytorch(shape):
    assert check(compiled_block(shape, torch.float64), torch.float64) < 1e-12
    assert check(compiled_block(shape, torch.float32), torch.float32) < 1e-5


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3"] if platform.machine() == "x86_64" else ["native"])
def test_processors_with_shorter_vectors_agree_too(target, monkeypatch, tmp_path):
    options = [f"-march={target}" if option.startswith("-march") else option for option in compiling.OPTIONS]
    monkeypatch.setattr(compiling, "OPTIONS", tuple(options))
    monkeypatch.setattr(compiling, "_cache", lambda: tmp_path)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        assert check(compiled_block.__wrapped__(Shape(3, 7, 9, 12, 4), dtype), dtype) < tolerance


@settings(max_examples=30, deadline=None)
@given(samples=some.integers(0, 40), shape=some.sampled_from(SHAPES), seed=some.integers(0, 99))
def test_any_number_of_samples(samples, shape, seed):
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, shape.channels, shape.height, shape.width, generator=draw, dtype=torch.float64)
    images = (images * 2).round()  # equal pixels in a cell: the first of them gets the gradient
    weight = torch.randn(shape.filters, shape.channels, shape.kernel, shape.kernel, generator=draw).round().double()
    bias = torch.randn(shape.filters, generator=draw, dtype=torch.float64).round()
    leaves = [value.requires_grad_() for value in (images, weight, bias)]
    block = compiled_block(shape, torch.float64)
    found = BlockFunction.apply(*leaves, block)
    wanted = functional.max_pool2d(functional.relu(functional.conv2d(*leaves)), 2) if samples else found.detach()
    assert torch.equal(found, wanted)
    if samples:
        slope = torch.randn(found.shape, generator=draw, dtype=torch.float64)
        for mine, theirs in zip(
            torch.autograd.grad(found, leaves, slope), torch.autograd.grad(wanted, leaves, slope), strict=True
        ):
            torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


def test_gradients_are_finite_differences():
    shape = Shape(2, 3, 6, 7, 3)
    block, draw = compiled_block(shape, torch.float64), torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(*size, generator=draw, dtype=torch.float64).requires_grad_()
        for size in ((5, 2, 6, 7), (3, 2, 3, 3), (3,))
    ]
    assert torch.autograd.gradcheck(lambda *values: BlockFunction.apply(*values, block), leaves)


def test_what_is_not_a_number_stays_so():
    shape = Shape(1, 2, 6, 6, 3)
    images = torch.zeros(3, 1, 6, 6)
    images[1, 0, 2, 2] = float("nan")
    found = BlockFunction.apply(images, torch.ones(2, 1, 3, 3), torch.zeros(2), compiled_block(shape, torch.float32))
    assert found[1].isnan().all() and not found[[0, 2]].isnan().any()


@pytest.mark.parametrize("training", [True, False])
def test_a_rewritten_network_is_the_network(training):
    module, images = cnn(width=16), torch.randn(9, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    fast = cnn(width=16)
    fast.load_state_dict(module.state_dict())
    assert rewrite(fast) and not rewrite(fast)
    for one in (module, fast):
        one.train(training)
    torch.testing.assert_close(fast(images), module(images), atol=1e-5, rtol=1e-5)
    assert {name for name, _ in fast.named_parameters()} == set(module.state_dict())


def test_images_of_any_strides_and_other_types_are_taken():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    images = torch.randn(4, 8, 9, 3, generator=torch.Generator().manual_seed(0)).permute(0, 3, 1, 2)
    wanted = module(images)
    holder = SplitModel(module, nn.Identity())
    rewrite(holder)
    torch.testing.assert_close(holder.body(images), wanted, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(holder.body(images.bfloat16()), wanted, atol=0.05, rtol=0.05)
    assert torch.equal(torch.func.vmap(holder.body)(images[None])[0].isnan(), wanted.isnan())


def block(conv=None, relu=None, pool=None):
    return [conv or nn.Conv2d(3, 6, 5), relu or nn.ReLU(), pool or nn.MaxPool2d(2)]


class OwnConvolution(nn.Conv2d):
    pass


def hooked():
    layer = nn.Conv2d(3, 6, 5)
    layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        block(nn.Conv2d(3, 6, 5, padding=1)),
        block(nn.Conv2d(3, 6, 5, stride=2)),
        block(nn.Conv2d(3, 6, 5, dilation=2)),
        block(nn.Conv2d(3, 6, (5, 3))),
        block(nn.Conv2d(3, 6, 5, bias=False)),
        block(nn.Conv2d(3, 6, 5, groups=3)),
        block(nn.Conv2d(400, 6, 5)),
        block(OwnConvolution(3, 6, 5)),
        block(hooked()),
        block(relu=nn.LeakyReLU()),
        block(pool=nn.MaxPool2d(3)),
        block(pool=nn.MaxPool2d(2, stride=1)),
        block(pool=nn.MaxPool2d(2, ceil_mode=True)),
        block(pool=nn.AvgPool2d(2)),
        block()[:2],
    ],
)
def test_what_is_not_certain_is_no_block(layers):
    assert not has_blocks(SplitModel(nn.Sequential(*layers), nn.Identity()))


def test_blocks_are_found_in_sequences_inside_the_body_and_nowhere_else():
    inner = nn.Sequential(nn.BatchNorm2d(3), *block())
    assert has_blocks(SplitModel(nn.Sequential(inner, nn.Flatten()), nn.Identity()))

    class Uses(nn.Module):
        """Calls only some layers of a sequence."""

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*block())

        def forward(self, x):
            return self.layers[0](x)

    assert not has_blocks(SplitModel(Uses(), nn.Identity()))
    module = SplitModel(nn.Sequential(inner, nn.Flatten()), nn.Identity())
    rewrite(module)
    assert isinstance(module.body[0][1], Block)


def test_a_library_is_kept_and_written_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_cache", lambda: tmp_path)
    macros = ["REAL=float", "INTEGER=int32_t", "IC=1", "OC=1", "H=4", "W=4", "KS=3"]
    load_library(fused.SOURCE, macros)
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    load_library(fused.SOURCE, macros)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [written]
    load_library(fused.SOURCE, [*macros[:-1], "KS=1"])
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(CompileError, match="error"):
        load_library(fused.SOURCE, ["REAL=nothing"])
    assert len(list(tmp_path.iterdir())) == 2  # nothing half is left behind


def test_the_compiler_is_the_one_asked_for(monkeypatch, tmp_path):
    script = tmp_path / "mycc"
    script.write_text(f'#!/bin/sh\nexec {find_compiler().command[0]} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert find_compiler().command == (str(script),)
    monkeypatch.setenv("CC", f"{sys.executable} -c 1/0")  # it does not run: the next is taken
    assert find_compiler().command[0] != sys.executable


def test_loops_that_deviate_are_not_used(monkeypatch, caplog):
    monkeypatch.setattr(fused, "check", lambda *_: float("nan"))
    assert compiled_block.__wrapped__(Shape(3, 6, 8, 8, 3), torch.float32) is None
    assert "deviate from PyTorch" in caplog.text


def test_the_largest_image_fits_on_the_stack():
    side = int(np.sqrt(fused.MOST_VALUES / 2))
    block = compiled_block(Shape(2, 2, side, side, 3), torch.float64)
    images, weight = torch.ones(1, 2, side, side, dtype=torch.float64), torch.ones(2, 2, 3, 3, dtype=torch.float64)
    weight.requires_grad_()
    BlockFunction.apply(images, weight, torch.zeros(2, dtype=torch.float64), block).sum().backward()
    assert weight.grad is not None and compiled_block(Shape(2, 2, side + 1, 2 * side, 3), torch.float64) is None
