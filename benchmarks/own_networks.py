"""Speed of the engine with networks of one's own, against a plain careful PyTorch loop.

    python -m benchmarks.own_networks [--workload sensor,resnet,four] [--device cpu] [--precision float32] [--rounds 10]
    python -m benchmarks.own_networks --alone             without the loop, to set beside benchmarks.peers
    python -m benchmarks.own_networks --check             the models after three rounds, compared weight by weight
    python -m benchmarks.own_networks --device cuda --precision tf32 --out own.json

The workloads are in `benchmarks.own_workloads`, the loop in `benchmarks.own_loop`. Both sides play the same rounds on
the same mini-batches, in turn, one round each, and the one that goes first changes from round to round. A round is
whole: training, class means, aggregation and the test of the ten devices that trained. Its first time is told apart
(workers start, graphs are recorded), and warm-up rounds do not count. The ratio is the median over rounds of loop time
over engine time, with its quartiles. After the timed rounds a few more are played with a stopwatch on each part, which
waits for a GPU in between. "of the matrix rate" compares a round's products, by PyTorch's own counter, with a product
of two large matrices in the same precision on the same processor.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, cast, get_args

import torch

from benchmarks.engine import EngineRun, matrix_rate
from benchmarks.own_loop import LoopRun, Optimiser, Stopwatch, finish
from benchmarks.own_workloads import ALGORITHM, WORKLOADS, Workload, round_flops
from benchmarks.peers.tasks import told
from kfl._kernels.arithmetic import Arithmetic
from kfl.data import LocalData
from kfl.engine import Engine
from kfl.engine.base import Precision
from kfl.engine.factory import make_engine
from kfl.engine.sequential import SequentialEngine
from kfl.models import FleetModels

CHECKED_ROUNDS = 3
WATCHED_ROUNDS = 3
PARTS = {"train": "train", "class_means": "means", "correct": "test"}
Run = LoopRun | EngineRun


class Watched:
    """An engine whose calls a stopwatch times."""

    def __init__(self, engine: Engine, watch: Stopwatch) -> None:
        self._engine, self._watch = engine, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._timed(PARTS[name], found) if name in PARTS else found

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self._watch.part(part):
                return work(*arguments, **named)

        return timed


def compare(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Times one workload and prints what was found."""
    data, models = workload.data(), workload.fleet()
    engine = make_engine(data, models, options.device, options.precision)
    watch = Stopwatch(options.device)
    watched = cast("Engine", Watched(engine, watch))
    runs: dict[str, Run] = {"loop": loop(data, models, options), "kfl": engine_run(watched, workload)}
    watches = {"loop": cast("LoopRun", runs["loop"]).watch, "kfl": watch}
    plan = workload.schedule(options.warm_up + options.rounds + WATCHED_ROUNDS)
    seconds: dict[str, list[float]] = {"loop": [], "kfl": []}
    right: dict[str, int] = {}
    for number, chosen in enumerate(plan[: options.warm_up + options.rounds]):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            finish(options.device)
            started = time.perf_counter()
            right[name] = runs[name].play(chosen)
            finish(options.device)
            seconds[name].append(time.perf_counter() - started)
        if options.verbose:
            print(f"  round {number}: " + ", ".join(f"{name} {times[-1]:.3f} s" for name, times in seconds.items()))
    for chosen in plan[-WATCHED_ROUNDS:]:
        for name, run in runs.items():
            watches[name].on = True
            started = time.perf_counter()
            run.play(chosen)
            whole = time.perf_counter() - started
            spent = watches[name].seconds
            spent["round"] = spent.get("round", 0.0) + whole
    found = summary(workload, models, plan, seconds, options)
    found["shares"] = {
        name: {part: spent / watch.seconds["round"] for part, spent in watch.seconds.items() if part != "round"}
        for name, watch in watches.items()
    }
    # The engine counts all devices it ever tested, the loop those of the last round.
    found["right_last_round"] = {"loop": right["loop"], "kfl": sum(cast("EngineRun", runs["kfl"]).right.values())}
    found["plan"] = asdict(engine.plan)
    if is_dataclass(choices := getattr(engine, "choices", None)):
        found["choices"] = asdict(choices)  # type: ignore[arg-type]  # an instance
    show(found)
    return found


def alone(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """The engine without the loop beside it, in the words of the peers."""
    run = engine_run(make_engine(workload.data(), workload.fleet(), options.device, options.precision), workload)
    seconds = []
    for chosen in workload.schedule(options.warm_up + options.rounds):
        started = time.perf_counter()
        run.play(chosen)
        finish(options.device)
        seconds.append(time.perf_counter() - started)
    print(f"{workload.name} prototypes kfl {told(seconds[options.warm_up - 1 :])}", flush=True)
    return {"workload": workload.name, "device": options.device, "precision": options.precision, "seconds": seconds}


def loop(data: LocalData, models: FleetModels, options: argparse.Namespace, precision: str = "") -> LoopRun:
    """A fresh loop."""
    return LoopRun(
        data,
        models,
        ALGORITHM.sgd(),
        ALGORITHM.knowledge_weight,
        device=options.device,
        precision=precision or options.precision,
        optimiser=options.optimiser,
    )


def engine_run(engine: Engine, workload: Workload) -> EngineRun:
    """A fresh run through an engine."""
    return EngineRun(engine, ALGORITHM, devices=workload.devices)


def summary(
    workload: Workload,
    models: FleetModels,
    plan: list[list[int]],
    seconds: dict[str, list[float]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Medians, ratio, rates."""
    timed = {name: times[options.warm_up :] for name, times in seconds.items()}
    ratios = [a / b for a, b in zip(timed["loop"], timed["kfl"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    flops = statistics.mean(round_flops(workload, models, chosen) for chosen in plan)
    arithmetic = Arithmetic(options.precision, options.device)
    with arithmetic.products():
        rate = matrix_rate(arithmetic.factor_dtype, 8192 if options.device == "cuda" else 2048, options.device)
    sides = {
        name: {
            "first_s": seconds[name][0],
            "median_s": statistics.median(times),
            "mean_s": statistics.mean(times),
            "least_s": min(times),
            "gflop_per_s": flops / statistics.median(times) / 1e9,
            "of_matrix_rate": flops / statistics.median(times) / rate,
            "seconds": seconds[name],
        }
        for name, times in timed.items()
    }
    return {
        "workload": workload.name,
        "device": options.device,
        "precision": options.precision,
        "optimiser": options.optimiser,
        "warm_up": options.warm_up,
        "rounds": options.rounds,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "gflop_per_round": flops / 1e9,
        "matrix_gflop_per_s": rate / 1e9,
        "load": os.getloadavg()[0],
        **sides,
    }


def show(found: dict[str, Any]) -> None:
    """One workload as text."""
    low, high = found["ratio_quartiles"]
    print(
        f"{found['workload']}  {found['device']} {found['precision']}: {found['ratio']:.2f} times the loop "
        f"(quartiles {low:.2f} to {high:.2f}), {found['rounds']} rounds after {found['warm_up']}; "
        f"{found['gflop_per_round']:.0f} GFLOP a round, matrices {found['matrix_gflop_per_s']:.0f} GFLOP/s, "
        f"load {found['load']:.1f}"
    )
    for name in ("loop", "kfl"):
        side = found[name]
        shares = ", ".join(f"{part} {100 * share:.0f} %" for part, share in found["shares"][name].items())
        print(
            f"    {name:5s} median {1000 * side['median_s']:9.1f} ms   mean {1000 * side['mean_s']:9.1f}   "
            f"least {1000 * side['least_s']:9.1f}   first {1000 * side['first_s']:9.1f}   "
            f"{side['gflop_per_s']:8.1f} GFLOP/s ({100 * side['of_matrix_rate']:.1f} % of the matrix rate)   {shares}"
        )
    print(f"    plan {found['plan']['paths']}, workers {found['plan']['workers']}", flush=True)


def check(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Three rounds on each side; the largest difference of any weight, and the largest weight.

    In float32 a network with many layers enlarges rounding: how far the loop is from the sequential engine, which do
    the same operations one by one, says by how much. In float64 all should agree.
    """
    data, models = workload.data(), workload.fleet()
    plan = workload.schedule(CHECKED_ROUNDS)
    runs: dict[str, Callable[[], Run]] = {
        "kfl": lambda: engine_run(make_engine(data, models, options.device, options.precision), workload),
        "loop": lambda: loop(data, models, options),
        "sequential": lambda: engine_run(SequentialEngine(data, models, options.device), workload),
        "kfl in float64": lambda: engine_run(make_engine(data, models, options.device, "float64"), workload),
        "loop in float64": lambda: loop(data, models, options, "float64"),
        "sequential in float64": lambda: engine_run(
            SequentialEngine(data, models, options.device, "float64"), workload
        ),
    }
    weights: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name, make in runs.items():
        run = make()
        for chosen in plan:
            run.play(chosen)
        trained = sorted({k for chosen in plan for k in chosen})
        weights[name] = {(k, n): v.double().cpu() for k in trained for n, v in run.state(k).items()}

    def distance(one: str, other: str) -> float:
        return max(float((value - weights[other][at]).abs().max()) for at, value in weights[one].items())

    names = list(runs)
    pairs = [*combinations(names[:3], 2), *((name, names[5]) for name in names[:5])]
    differences = {f"{one} to {other}": distance(one, other) for one, other in pairs}
    largest = max(float(value.abs().max()) for value in weights["kfl"].values())
    print(
        f"{workload.name}  {options.device} {options.precision}, after {CHECKED_ROUNDS} rounds; "
        f"largest weight {largest:.2f}"
    )
    for name, value in differences.items():
        print(f"    {name:45s} {value:.1e}", flush=True)
    return {"workload": workload.name, "precision": options.precision, "largest_weight": largest, **differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(WORKLOADS), help="some of them, with commas (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=get_args(Precision), help="default: float32, on a GPU tf32")
    parser.add_argument("--rounds", type=int, help="timed rounds (10; on a GPU 30)")
    parser.add_argument("--warm-up", type=int, help="rounds before them (2; on a GPU 20)")
    parser.add_argument("--optimiser", choices=get_args(Optimiser), default="foreach", help="of the loop's SGD")
    parser.add_argument("--check", action="store_true", help="compare models instead of times")
    parser.add_argument("--alone", action="store_true", help="without the loop, to set beside benchmarks.peers")
    parser.add_argument("--devices", type=int, default=100, help="fewer, to try something out")
    parser.add_argument("--samples", type=int, default=500, help="training samples of each device")
    parser.add_argument("--verbose", action="store_true", help="every round's time, and the engine's log")
    parser.add_argument("--out", type=Path, help="file for everything measured, JSON")
    options = parser.parse_args()
    names = options.workload.split(",")
    if not set(names) <= set(WORKLOADS):
        parser.error(f"--workload: {options.workload} has something else than {', '.join(WORKLOADS)}")
    on_gpu = options.device == "cuda"
    options.precision = options.precision or ("tf32" if on_gpu else "float32")
    options.rounds = options.rounds or (30 if on_gpu else 10)
    options.warm_up = (20 if on_gpu else 2) if options.warm_up is None else max(1, options.warm_up)
    torch.backends.cudnn.benchmark = True
    logging.basicConfig(format="    log: %(message)s", level=logging.INFO if options.verbose else logging.WARNING)
    machine = torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(f"PyTorch {torch.__version__}, {machine}, load {os.getloadavg()[0]:.1f}", flush=True)
    rows: list[dict[str, Any]] = []
    for name in names:
        workload = WORKLOADS[name].smaller(options.devices, options.samples)
        kind = "check" if options.check else "alone" if options.alone else "speed"
        rows.append({"check": check, "alone": alone, "speed": compare}[kind](workload, options))
        if options.out is not None:
            result = {"torch": torch.__version__, "machine": machine, kind: rows}
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
