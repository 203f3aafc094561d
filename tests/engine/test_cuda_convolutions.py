"""The source of the CUDA kernels, compiled for the CPU with threads as fibers, against PyTorch."""

import ctypes
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kfl.engine.cuda.kernel_convolutions import (
    SOURCE,
    KernelConvolutions,
    compile_options,
    disagreement,
    group_size,
    try_kernels,
)
from kfl.engine.precision import Arithmetic
from kfl.models.network import Convolution

torch.set_num_threads(1)

EMULATOR = Path(__file__).with_name("emulate_cuda.cpp")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Emulated:
    """Kernels of one layer, run on the CPU."""

    def __init__(self, layer: Convolution, folder: Path) -> None:
        target = folder / f"layer{hash(layer)}.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", *compile_options(layer)]
        subprocess.run([*command, f"-I{SOURCE.parent}", "-o", str(target), str(EMULATOR)], check=True)
        self._library = ctypes.CDLL(str(target))

    def launch(self, name, grid, threads, arguments):
        values = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                assert argument.is_contiguous()
                values.append(ctypes.c_void_p(argument.data_ptr()))
            else:
                values.append(ctypes.c_int(argument))
        getattr(self._library, f"run_{name}")((ctypes.c_int * 3)(*grid), ctypes.c_int(threads), *values)


def layers_of(channels, size, kernel=5):
    found = []
    for place, (before, after) in enumerate(pairwise(channels)):
        found.append(Convolution(f"body.{3 * place}", before, after, kernel, *size))
        size = found[-1].pooled
    return tuple(found)


@needs_compiler
@pytest.mark.parametrize(
    ("layers", "samples"),
    [
        (layers_of((3, 6, 16), (16, 18)), 37),  # the paper's channels
        (layers_of((1, 4, 2), (17, 16)), 130),  # an odd number of rows: pooling leaves the last one out
        (layers_of((2, 3, 5), (11, 10), kernel=3), 5),
    ],
)
def test_kernels_agree_with_pytorch_in_float64(layers, samples, tmp_path):
    kernels = KernelConvolutions("", lambda layer: Emulated(layer, tmp_path))
    assert disagreement(kernels, layers, torch.device("cpu"), devices=2, samples=samples) < 1e-6


@needs_compiler
def test_the_first_of_equal_values_wins_and_nan_is_not_hidden(tmp_path):
    layer = layers_of((1, 1), (6, 6))[0]
    kernels = KernelConvolutions("", lambda layer: Emulated(layer, tmp_path))
    state = {"body.0.weight": torch.ones(1, 1, 1, 5, 5), "body.0.bias": torch.zeros(1, 1)}
    images = torch.ones(1, 3, 1, 6, 6)
    images[0, 1] = -1
    images[0, 2, 0, 0, 0] = float("nan")
    found, kept = kernels.forward([layer], state, kernels.prepare(images), keep=True)
    assert found[0, 0, 0] == 25 and found[0, 1, 0] == 0 and found[0, 2, 0].isnan()
    assert kept[0].code.flatten().tolist() == [0, 4, 0]


@needs_compiler
def test_weight_gradients_do_not_depend_on_how_the_work_is_cut(tmp_path):
    layer = layers_of((2, 4), (11, 10), kernel=3)[0]
    kernels = Emulated(layer, tmp_path)
    devices, samples, taps = 2, 300, layer.channels_in * layer.kernel**2
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(devices, 2, 11, 10, samples, generator=draw)
    gradient = torch.randn(devices, 4, *layer.pooled, samples, generator=draw)
    code = torch.randint(0, 5, gradient.shape, generator=draw).to(torch.uint8)
    found = []
    for parts, chunks in ((1, 1), (2, 1), (1, 2), (3, 3)):
        blocks = -(-samples // (128 * chunks))
        partial = torch.full((devices, parts * blocks, 4, taps + 1), float("nan"))
        groups = 4 // group_size(layer)
        grid = (blocks, parts * groups * 2, devices)
        kernels.launch("weight_gradient", grid, 128, [images, gradient, code, partial, samples, parts, chunks])
        found.append(partial.sum(1))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-4, rtol=1e-4)


def test_kernels_say_why_they_do_not_run():
    layers = layers_of((3, 6), (16, 16))
    kernels, reason = try_kernels(layers, Arithmetic("float32", "cpu"), torch.device("cpu"))
    assert kernels is None and "NVIDIA" in reason
