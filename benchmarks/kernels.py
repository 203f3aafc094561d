"""The GPU's own kernels, one by one: each of the CNN's, and the convolutions of any module next to grouped ones.

    python -m benchmarks.kernels [--device cuda] [--out kernels.json]

`kernels` are those of `convolution.cu`, with 500 samples on each device; `convolutions` our three passes (`unfold.cu`
and batched products) next to one grouped convolution of PyTorch. Whole rounds are timed by `benchmarks.rounds`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kfl.engine.cuda.kernel_convolutions import _Kept, try_kernels
from kfl.engine.precision import Arithmetic
from kfl.engine.stacked_convolution import Window, forward, input_gradient, weight_gradient
from kfl.models import cnn
from kfl.models.network import read_network


def busy_ms(work: Callable[[], object], device: str) -> float:
    """Milliseconds between two marks in the GPU's own queue, median of ten."""
    if device != "cuda":
        return float("nan")
    found: list[float] = []
    for _ in range(10):
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        second.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(second))
    return statistics.median(found)


def time_kernels(device: str) -> list[dict[str, Any]]:
    """Each kernel of the CNN alone, with the rate of multiply-adds it reaches."""
    network = read_network(cnn(), (3, 32, 32))
    assert network is not None
    where = torch.device(device)
    kernels, reason = try_kernels(network.convolutions, Arithmetic("float32", device), where)
    print("kernels:", reason, flush=True)
    if kernels is None:
        return [{"refused": reason}]
    rows = []
    for devices in (10, 50):
        for layer in network.convolutions:
            shape = (devices, layer.channels_in, layer.height, layer.width, 500)
            weight = torch.randn(devices, layer.channels_out, layer.channels_in, 5, 5, device=where)
            state = {f"{layer.name}.weight": weight, f"{layer.name}.bias": weight[:, :, 0, 0, 0].contiguous()}
            images = torch.randn(shape, device=where)
            pooled, code = kernels._forward(layer, state, images)
            kept, gradient = _Kept(images, code), torch.randn_like(pooled)
            work: dict[str, Callable[[], object]] = {
                "forward": partial(kernels._forward, layer, state, images),
                "weight gradient": partial(kernels._weight_gradient, layer, kept, gradient),
                "input gradient": partial(kernels._input_gradient, layer, state, kept, gradient),
            }
            products = 4 * layer.pooled[0] * layer.pooled[1] * layer.channels_out * layer.channels_in * 25
            for name, one in work.items():
                one()
                spent = busy_ms(one, device)
                rate = devices * 500 * products / spent / 1e9
                row = {"kernel": name, "layer": layer.name, "devices": devices, "ms": spent, "tera_fma_per_s": rate}
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


CONVOLUTIONS = {
    # channels, height, width, filters, kernel, stride, padding
    "9 to 32, over time": (9, 1, 128, 32, (1, 5), (1, 1), (0, 2)),
    "32 to 64, over time": (32, 1, 64, 64, (1, 5), (1, 1), (0, 2)),
    "64 to 64, over time": (64, 1, 32, 64, (1, 3), (1, 1), (0, 1)),
    "3 to 16": (3, 32, 32, 16, (3, 3), (1, 1), (1, 1)),
    "16 to 16": (16, 32, 32, 16, (3, 3), (1, 1), (1, 1)),
    "16 to 32, stride 2": (16, 32, 32, 32, (3, 3), (2, 2), (1, 1)),
    "32 to 32": (32, 16, 16, 32, (3, 3), (1, 1), (1, 1)),
    "64 to 64": (64, 8, 8, 64, (3, 3), (1, 1), (1, 1)),
    "16 to 32, one place": (16, 32, 32, 32, (1, 1), (2, 2), (0, 0)),
    "512 to 512": (512, 4, 4, 512, (3, 3), (1, 1), (1, 1)),
}


def time_convolutions(device: str) -> list[dict[str, Any]]:
    """Forward and backward of single layers for stacked devices with 50 samples each: ours, and as PyTorch would."""
    where, rows = torch.device(device), []
    for name, (channels, height, width, filters, kernel, stride, padding) in CONVOLUTIONS.items():
        window = Window(kernel, stride, padding, (1, 1))
        for devices in (5, 25) if device == "cuda" else (2,):
            samples = 50 if device == "cuda" else 2
            x = torch.randn(devices, samples, channels, height, width, device=where, requires_grad=True)
            weight = torch.randn(devices, filters, channels, *kernel, device=where, requires_grad=True)
            d = torch.randn(forward(x.detach(), weight.detach(), window).shape, device=where)

            def passes(x: Tensor = x, weight: Tensor = weight, d: Tensor = d, window: Window = window) -> None:
                with torch.no_grad():
                    forward(x, weight, window)
                    weight_gradient(x, d, window)
                    input_gradient(d, weight, (x.shape[3], x.shape[4]), window)

            def grouped(x: Tensor = x, weight: Tensor = weight, d: Tensor = d, window: Window = window) -> None:
                many = x.transpose(0, 1).flatten(1, 2)
                y = torch.conv2d(many, weight.flatten(0, 1), None, window.stride, window.padding, 1, len(x))
                torch.autograd.grad(y.unflatten(1, (len(x), -1)).transpose(0, 1), (x, weight), d)

            row: dict[str, Any] = {"layer": name, "devices": devices}
            with Arithmetic("tf32", device).products():
                for way, work in (("ours", passes), ("grouped", grouped)):
                    work()
                    row[f"{way}_ms"] = busy_ms(work, device)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if options.device == "cuda":
        result["gpu"] = torch.cuda.get_device_name()
    result |= {"kernels": time_kernels(options.device), "convolutions": time_convolutions(options.device)}
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
