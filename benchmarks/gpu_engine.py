"""The stacked engine on a GPU: are its kernels right, does it agree with the CPU, how fast is a round.

    python -m benchmarks.gpu_engine [--out gpu.json] [--device cuda] [--quick] [--parts checks,rounds]

W1 is the paper's MLP with 600 samples of 28×28 on each of 100 devices, W2 its CNN with 500 samples of 3×32×32. A
round is KFL's: five full-batch steps with momentum, class means, aggregation; no evaluation. Images are random,
since speed does not depend on what they show. Parts: `kernels` times each of the CNN's alone; `convolutions` those of
any module, our three passes against a grouped convolution; `checks` compares with the CPU; `rounds` times rounds in
every precision and way. Whatever fails is printed with its traceback, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kfl.algorithms import Kfl, Upload
from kfl.data import Dataset, partition
from kfl.engine import Engine, FeatureTargets, LocalData, RoundKey, Supervised
from kfl.engine.autograd import AutogradEngine
from kfl.engine.plan import Plan, Precision
from kfl.engine.stacked import StackedEngine
from kfl.models import FleetModels, State, fleet_from_name

PRECISIONS: tuple[Precision, ...] = ("tf32", "bf16", "float32")
TARGETS_MS = {("W1", 10): 3.0, ("W1", 50): 8.0, ("W2", 10): 8.0, ("W2", 50): 30.0}
PARTS = ("kernels", "convolutions", "checks", "rounds")
REPEATS = 20


@cache
def world(which: str, devices: int, samples: int, widths: tuple[int, ...]) -> tuple[LocalData, FleetModels]:
    """Random images in the shape of a workload, two classes on each device."""
    draw = np.random.default_rng(0)
    shape = (1, 28, 28) if which == "W1" else (3, 32, 32)
    y = np.arange(devices * samples) % 10
    x = draw.integers(0, 200, size=(len(y), *shape), dtype=np.uint8) + (5 * y).astype(np.uint8).reshape(-1, 1, 1, 1)
    test = slice(0, 10 * devices)
    mean, std = (None, None) if which == "W1" else ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))
    data = Dataset.from_arrays(x, y, x[test], y[test], scale=1 / 255, mean=mean, std=std)
    split = partition("shards", data.train_y, data.test_y, 10, devices, 0, classes_per_device=2)
    models = fleet_from_name("mlp" if which == "W1" else "cnn", widths, devices, shape, 10, seed=0)
    return LocalData(data, split), models


def play(engine: Engine, cohorts: Sequence[Sequence[int]]) -> tuple[State, dict[int, State]]:
    """Rounds of KFL."""
    algorithm = Kfl()
    server, states = algorithm.server_init(engine, 0), dict[int, State]()
    for number, cohort in enumerate(cohorts):
        before = [states.get(k) or algorithm.device_init(engine, k, 0) for k in cohort]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, cohort, before, engine, RoundKey(0, number))
        server, _ = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(0, number))
        states.update(zip(cohort, after, strict=True))
    return server, states


def distance(found: dict[int, State], wanted: dict[int, State]) -> float:
    """The largest difference of any weight."""
    return max(
        float((value.double().cpu() - wanted[device][name].double().cpu()).abs().max())
        for device, state in found.items()
        for name, value in state.items()
    )


def check(which: str, device: str, quick: bool) -> list[dict[str, Any]]:
    """Four rounds on mixed widths against the CPU engine in float64."""
    widths = (128, 192, 256) if which == "W1" else (64, 96, 128)
    data, models = world(which, 12, 40 if quick else 120, widths)
    cohorts = [[0, 3, 5, 7, 9, 11], [1, 2, 4, 5, 8, 10], [0, 3, 5, 7, 9, 11], [11, 2, 7, 6, 1, 0]]
    _, wanted = play(AutogradEngine(data, models, Plan(precision="float64")), cohorts)
    rows = []
    ways = ("auto", "grouped") if which == "W2" else ("auto",)
    precisions: tuple[Precision, ...] = ("float32", "float64", "tf32", "bf16")
    for precision in precisions:
        for way in ways:
            row: dict[str, Any] = {"workload": which, "precision": precision, "convolution": way}
            try:
                engine = StackedEngine(data, models, device, precision, convolution=way)
                _, found = play(engine, cohorts)
                row |= {"max_difference": distance(found, wanted), "choices": asdict(engine.choices)}
            except Exception:
                row["failed"] = failure()
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def failure() -> str:
    text = traceback.format_exc()
    print(text, flush=True)
    return text


def timed(work: Callable[[], object], device: str, repeats: int) -> tuple[float, float]:
    """Median and least milliseconds, until the processor has finished."""
    found = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(1000 * (time.perf_counter() - start))
    return statistics.median(found), min(found)


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


def to_cpu(messages: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The same messages on the CPU, arrays of one name, shape and type in one copy: each copy waits for the GPU."""
    found = [dict(message) for message in messages]
    groups: dict[tuple[str, torch.Size, torch.dtype, torch.device], list[int]] = {}
    for index, message in enumerate(messages):
        for name, value in message.items():
            if value.device.type != "cpu":
                groups.setdefault((name, value.shape, value.dtype, value.device), []).append(index)
    arrived = {
        key: torch.stack([messages[index][key[0]] for index in indices]).to("cpu", non_blocking=False)
        for key, indices in groups.items()
    }
    for (name, *_), indices, stacked in zip(groups, groups.values(), arrived.values(), strict=True):
        for index, value in zip(indices, stacked.unbind(0), strict=True):
            found[index][name] = value
    return found


def time_rounds(
    which: str, chosen: int, device: str, precision: Precision, repeats: int, **options: Any
) -> dict[str, Any]:
    """One configuration: the whole round, and the engine's part of it."""
    count, samples = (100, 600 if which == "W1" else 500) if device == "cuda" else (20, 20)
    data, models = world(which, count, samples, (256,) if which == "W1" else (128,))
    engine = StackedEngine(data, models, device, precision, **options)
    algorithm, draw = Kfl(), np.random.default_rng(1)
    server = algorithm.server_init(engine, 0)
    states = {k: algorithm.device_init(engine, k, 0) for k in range(count)}
    number = 0

    def choose() -> list[int]:
        return sorted(draw.choice(count, min(chosen, count), replace=False).tolist())

    def whole_round() -> None:
        nonlocal server, number
        cohort = choose()
        message = engine.place(algorithm.broadcast(server))
        before = [states[k] for k in cohort]
        after, uploads = algorithm.local_update(message, cohort, before, engine, RoundKey(0, number))
        arrived = to_cpu([upload.arrays for upload in uploads])
        uploads = [Upload(upload.device, arrays) for upload, arrays in zip(uploads, arrived, strict=True)]
        server, _ = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(0, number))
        states.update(zip(cohort, after, strict=True))
        number += 1

    def engine_only() -> None:
        cohort = choose()
        placed = engine.place(server)
        objective = Supervised(FeatureTargets(1 / 32, placed["knowledge"], placed["known"]))
        after = engine.train(cohort, [states[k] for k in cohort], objective, algorithm.sgd(), RoundKey(0, 0))
        engine.class_statistics(cohort, after)
        states.update(zip(cohort, after, strict=True))

    row: dict[str, Any] = {"workload": which, "devices": chosen, "precision": precision, **options}
    for name, work in (("round", whole_round), ("engine", engine_only)):
        for _ in range(4):
            work()
        row[f"{name}_ms"], row[f"{name}_least_ms"] = timed(work, device, repeats)
    row["engine_busy_ms"] = busy_ms(engine_only, device)
    row["target_ms"] = TARGETS_MS.get((which, chosen))
    row["finite"] = all(bool(torch.isfinite(v).all()) for v in states[0].values())
    if device == "cuda":
        row["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        torch.cuda.reset_peak_memory_stats()
    row["choices"] = asdict(engine.choices)
    print(json.dumps({name: value for name, value in row.items() if name != "choices"}), flush=True)
    return row


def time_kernels(device: str) -> list[dict[str, Any]]:
    """Each kernel of the CNN alone, with the rate of multiply-adds it reaches."""
    from kfl.engine.cuda.kernel_convolutions import _Kept, try_kernels
    from kfl.engine.precision import Arithmetic
    from kfl.models import cnn, read_network

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
    from kfl.engine.precision import Arithmetic
    from kfl.engine.stacked_convolution import Window, forward, input_gradient, weight_gradient

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


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rounds as a table."""
    lines = [
        f"{'':4}{'devices':>8}{'precision':>10} {'convolution':12}{'round ms':>9}{'engine':>8}{'busy':>8}{'target':>8}"
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"failed: {row['what']}")
            continue
        way = f"{row.get('convolution', '-')}{'' if row.get('graphs', True) else ', no graph'}"
        lines.append(
            f"{row['workload']:4}{row['devices']:>8}{row['precision']:>10} {way:12}{row['round_ms']:>9.2f}"
            f"{row['engine_ms']:>8.2f}{row['engine_busy_ms']:>8.2f}{row['target_ms'] or 0:>8.0f}"
        )
    return "\n".join(lines)


def plans(quick: bool) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What is timed: (workload, devices, precision) and options; when quick, only what has a target."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for precision in PRECISIONS[:1] if quick else PRECISIONS:
        for devices in (10, 50):
            found.append((("W1", devices, precision), {}))
            found.append((("W2", devices, precision), {"convolution": "auto"}))
    if quick:
        return found
    for devices in (10, 50):
        found.append((("W1", devices, "tf32"), {"graphs": False}))
        found.append((("W2", devices, "tf32"), {"convolution": "auto", "graphs": False}))
        found.append((("W2", devices, "tf32"), {"convolution": "grouped"}))
    # The gate of the hand-written network: it goes where the general path takes at most 1.5 times as long.
    found.extend(((which, devices, "tf32"), {"fused": False}) for which in ("W1", "W2") for devices in (10, 50))
    return found


def rounds(device: str, quick: bool, keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Every plan, one after another; what is there is kept after each."""
    rows: list[dict[str, Any]] = []
    for (which, devices, precision), options in plans(quick):
        try:
            rows.append(time_rounds(which, devices, device, precision, REPEATS, **options))
        except Exception:
            rows.append({"what": f"{which} {devices} {precision} {options}", "failed": failure()})
        if device == "cuda":
            torch.cuda.empty_cache()
        keep(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="rounds in TF32 alone, checks with fewer samples")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts, with commas (default: all)")
    arguments = parser.parse_args()
    device, quick, wanted = arguments.device, arguments.quick, arguments.parts.split(",")
    if not set(wanted) <= set(PARTS):
        parser.error(f"--parts: {arguments.parts} has something else than {', '.join(PARTS)}")
    result: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device == "cuda":
        result["gpu"] = torch.cuda.get_device_name()
    print(json.dumps(result), flush=True)
    work: dict[str, Callable[[], Any]] = {
        "kernels": lambda: time_kernels(device),
        "convolutions": lambda: time_convolutions(device),
        "checks": lambda: [*check("W1", device, quick), *check("W2", device, quick)],
        "rounds": lambda: rounds(device, quick, lambda rows: save({**result, "rounds": rows}, arguments.out)),
    }
    for name in wanted:
        started = time.perf_counter()
        try:
            result[name] = work[name]()
        except Exception:
            result[name] = {"failed": failure()}
        print(f"[{name}: {time.perf_counter() - started:.1f} s]", flush=True)
        save(result, arguments.out)
    if isinstance(result.get("rounds"), list):
        print(table(result["rounds"]))


def save(result: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
