"""Convolutions of stacked weights against PyTorch's own, and the kernels of unfold.cu compiled for a CPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import grad as gradients

import kfl.engine.stacked_convolution as ours
from kfl.engine.layers import Layers
from kfl.engine.precision import Arithmetic
from kfl.engine.stacked_convolution import StackedConvolution, Window

sizes = st.integers(1, 3)
windows = st.builds(
    Window,
    kernel=st.tuples(sizes, sizes),
    stride=st.tuples(sizes, sizes),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
shapes = st.tuples(sizes, sizes, st.integers(1, 6), st.integers(5, 8), st.integers(5, 8))


@settings(max_examples=60)
@given(window=windows, shape=shapes, filters=st.sampled_from([1, 5, 80]))
def test_all_three_passes_equal_each_device_alone(window, shape, filters):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    weight = torch.randn(shape[0], filters, shape[2], *window.kernel, generator=draw, dtype=torch.float64)
    moves = window.stride, window.padding, window.dilation
    wanted = torch.stack([torch.conv2d(one, own, None, *moves) for one, own in zip(x, weight, strict=True)])
    torch.testing.assert_close(ours.forward(x, weight, window), wanted)
    d = torch.randn(wanted.shape, generator=draw, dtype=torch.float64)
    to_input = [gradients.conv2d_input(x[k].shape, weight[k], d[k], *moves) for k in range(shape[0])]
    torch.testing.assert_close(ours.input_gradient(d, weight, shape[3:], window), torch.stack(to_input))
    to_weight = [gradients.conv2d_weight(x[k], weight[k].shape, d[k], *moves) for k in range(shape[0])]
    torch.testing.assert_close(ours.weight_gradient(x, d, window), torch.stack(to_weight))


def test_a_module_inside_vmap_has_the_gradients_it_has_without():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 5, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, padding="same", bias=False),
        nn.Conv2d(6, 6, 3, padding=1, groups=2),
        nn.Flatten(2),
        nn.Conv1d(6, 5, 3, dilation=2),
        nn.Flatten(),
        nn.Linear(60, 4),
    ).double()
    state = {name: torch.stack([value.detach(), 0.9 * value.detach()]) for name, value in module.named_parameters()}
    x, y = torch.randn(2, 6, 3, 8, 8).double(), torch.randint(0, 4, (2, 6))
    calls = []

    class Counted(StackedConvolution):
        def __call__(self, *arguments, **settings):
            calls.append(1)
            return super().__call__(*arguments, **settings)

    def loss(own, inputs, labels, convolution):
        with Layers(convolve=convolution):
            return nn.functional.cross_entropy(functional_call(module, own, (inputs,)), labels)

    counted = Counted(Arithmetic("float64", "cpu"), torch.device("cpu"))
    found = vmap(grad(lambda *one: loss(*one, counted)))(state, x, y)
    wanted = vmap(grad(lambda *one: loss(*one, None)))(state, x, y)
    torch.testing.assert_close(found, wanted)
    assert len(calls) == 4
    # Inputs that all devices share are not copied for each.
    shared = vmap(lambda own: loss(own, x[0], y[0], counted))(state)
    torch.testing.assert_close(shared, vmap(lambda own: loss(own, x[0], y[0], None))(state))


class Emulated:
    """The kernels, compiled for a CPU: a loop over blocks and threads."""

    def __init__(self, folder: Path) -> None:
        source = folder / "unfold.cpp"
        source.write_text(f"""
            struct Place {{ int x, y, z; }};
            static Place blockIdx, blockDim, gridDim, threadIdx;
            #define __global__
            #include "{ours.SOURCE}"
            #define ARGUMENTS const float* in, float* out, GEOMETRY
            #define PASSED in, out, maps, channels, height, width, rows, columns, kernel_h, kernel_w, \\
                stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, per
            #define RUN(name) extern "C" void run_##name(int gx, int gy, int gz, int threads, ARGUMENTS) {{ \\
                gridDim = {{gx, gy, gz}}; blockDim = {{threads, 1, 1}}; \\
                for (int x = 0; x < gx; ++x) for (int y = 0; y < gy; ++y) for (int z = 0; z < gz; ++z) \\
                    for (int t = 0; t < threads; ++t) {{ \\
                        blockIdx = {{x, y, z}}; threadIdx = {{t, 0, 0}}; name(PASSED); }} }}
            RUN(unfold)
            RUN(fold)
        """)
        library = folder / "unfold.so"
        subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
        self.compiled = ctypes.CDLL(str(library))

    def launch(self, name, grid, threads, arguments):
        values = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else ctypes.c_int(one) for one in arguments
        ]
        self.compiled[f"run_{name}"](*grid, threads, *values)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("per", [1, 3])
def test_the_kernels_write_windows_out_and_add_them_up_as_pytorch_does(tmp_path, per):
    kernels = Emulated(tmp_path)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 9, 7, generator=draw)
    for window in (
        Window((3, 3), (1, 1), (1, 1), (1, 1)),
        Window((3, 2), (2, 1), (1, 0), (1, 2)),
        Window((1, 1), (2, 2), (0, 0), (1, 1)),
        Window((1, 5), (1, 1), (0, 2), (1, 1)),
    ):
        wanted = ours.unfold(x, window, per)
        found = torch.full_like(wanted, torch.nan)
        geometry = ours._geometry(6, 4, (9, 7), window, per)
        kernels.launch("unfold", (1, 4, 2), 128, [x, found, *geometry])
        assert torch.equal(found, wanted)
        image = torch.full_like(x, torch.nan)
        kernels.launch("fold", (1, 4, 5), 128, [wanted, image, *geometry])
        torch.testing.assert_close(image, ours.fold(wanted, x.shape, window, per))
