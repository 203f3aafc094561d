"""Speed of whole rounds: kfl next to a careful PyTorch loop, or next to another version of kfl.

    python -m benchmarks.rounds --workload W1,W2,sensor,resnet,four
    python -m benchmarks.rounds --workload W1,W2 --algorithm fedavg --precision bf16
    python -m benchmarks.rounds --against v0.2 --rounds 11          a commit, or a folder with a package kfl in it
    python -m benchmarks.rounds --check                             the models after three rounds, weight by weight
    python -m benchmarks.rounds --busy 4                            next to four processes that keep cores busy
    python -m benchmarks.rounds --device cuda --precision tf32 --rounds 30 --warm-up 20 --out own.json
    python -m benchmarks.rounds --device cuda --workload W1,W2 --chosen 50 --without fused

The workloads are in `benchmarks.workloads`, the loop in `benchmarks.loop`. Each side is a process of its own. They take
turns, one round each on the same schedule and the same mini-batches, and the one that goes first changes from round to
round, so that a busy moment of the machine hits all of them. A round is complete: training, class means or weights,
aggregation, and the test of the devices that trained (of all devices in federated averaging). Warm-up rounds do not
count. The ratio is the median over rounds of the other side's time over kfl's, with its quartiles. "of the matrix rate"
compares a round's products, as PyTorch counts them, with a product of two large matrices in the same precision.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, is_dataclass, replace
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.workloads import WORKLOADS, Workload
from kfl.algorithms import Algorithm, FedAvg
from kfl.core.threads import torch_threads
from kfl.engine import Engine, RoundKey

CHECKED_ROUNDS = 3
BUSY = "while True: pass"
WITHOUT: dict[str, dict[str, Any]] = {
    "fused": {"fused": False},
    "graphs": {"graphs": False},
    "kernels": {"convolution": "grouped"},
}
"""What the stacked engine can do without, to see what it buys: the hand-written network, CUDA graphs, our kernels."""


class EngineRun:
    """Rounds through an engine, as the simulator plays them."""

    def __init__(self, engine: Engine, algorithm: Algorithm, seed: int = 0, *, devices: int = 100) -> None:
        self.engine, self.algorithm, self.seed = engine, algorithm, seed
        self.server = algorithm.server_init(engine, seed)
        # Models exist before the first timed round, as the loop's do.
        self.devices = {k: algorithm.device_init(engine, k, seed) for k in range(devices)}
        self.right = dict.fromkeys(range(devices), 0)
        self.round = 0

    def play(self, chosen: list[int]) -> int:
        """One round; returns the right predictions of all devices at their last test."""
        # The engine has a worker per core. A server's small sums are faster with one thread than with several.
        with torch_threads(1) if self.engine.plan.device == "cpu" else nullcontext():
            return self._play(chosen)

    def _play(self, chosen: list[int]) -> int:
        message = self.engine.place(self.algorithm.broadcast(self.server))
        before = [self.devices[k] for k in chosen]
        key = RoundKey(self.seed, self.round)
        after, uploads = self.algorithm.local_update(message, chosen, before, self.engine, key)
        self.server, _ = self.algorithm.aggregate(self.server, uploads, engine=self.engine, key=key)
        self.devices.update(zip(chosen, after, strict=True))
        self.round += 1
        # Where a device predicts with its own model, only those that trained have another one than before.
        tested = chosen if self.algorithm.predicts_alone else list(self.right)
        states = [self.algorithm.predictor(self.server, self.devices[k]) for k in tested]
        self.right.update(zip(tested, self.engine.correct(tested, states), strict=True))
        return sum(self.right.values())

    def state(self, device: int) -> dict[str, Tensor]:
        """A device's model."""
        return self.algorithm.predictor(self.server, self.devices[device])


# ── A side: a process that plays rounds on request ───────────────────


class Player:
    """A side of the comparison, in a process of its own."""

    def __init__(self, name: str, options: argparse.Namespace, workload: str, kind: str, package: Path | None) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.rounds", "--player", kind, "--workload", workload]
        for field in ("algorithm", "device", "precision", "devices", "samples", "chosen", "without"):
            command.append(f"--{field}={getattr(options, field)}")
        environment = dict(os.environ)
        if package is not None:
            environment["PYTHONPATH"] = str(package)
        root = Path(__file__).parents[1]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=root, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.ready = self._answer()

    def play(self, chosen: list[int]) -> dict[str, Any]:
        """One round; its seconds, processor seconds and right predictions."""
        return self._ask({"play": chosen})

    def save(self, devices: list[int], path: Path) -> dict[tuple[int, str], Tensor]:
        """The models of some devices."""
        self._ask({"save": devices, "path": str(path)})
        found: dict[tuple[int, str], Tensor] = torch.load(path)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The process of {self.name} ended with code {self._process.wait()}.")
        found: dict[str, Any] = json.loads(line)
        return found


def serve(options: argparse.Namespace) -> None:
    """The loop of a player's process: one answer for each line of its input."""
    workload = smaller(WORKLOADS[options.workload], options)
    run, facts = begin(options.player, workload, options)
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        asked, found = json.loads(line), dict[str, Any]()
        if "play" in asked:
            wall, used = time.perf_counter(), time.process_time()
            found["right"] = run.play(asked["play"])
            if options.device == "cuda":
                torch.cuda.synchronize()
            found |= {"seconds": time.perf_counter() - wall, "processor": time.process_time() - used}
            found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        else:
            states = {(k, name): v.double().cpu() for k in asked["save"] for name, v in run.state(k).items()}
            torch.save(states, asked["path"])
        print(json.dumps(found), flush=True)


def begin(kind: str, workload: Workload, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """A run that can be played round by round, and what it says of itself."""
    data, models, own = workload.data(), workload.fleet(), workload.algorithm
    averages = options.algorithm == "fedavg"
    if kind == "loop":
        from benchmarks.loop import LoopRun

        settings = {"common": averages, "device": options.device, "precision": options.precision}
        return LoopRun(data, models, own.sgd(), own.knowledge_weight, **settings), {}
    if options.without:
        from kfl.engine.stacked import StackedEngine

        engine: Any = StackedEngine(data, models, options.device, options.precision, **WITHOUT[options.without])
    else:
        engine = engine_maker()(data, models, options.device, options.precision)
    algorithm: Algorithm = FedAvg(local_steps=own.local_steps, batch_size=own.batch_size) if averages else own
    facts: dict[str, Any] = {"plan": engine.plan.table()}
    if is_dataclass(choices := getattr(engine, "choices", None)):
        facts["choices"] = asdict(choices)  # type: ignore[arg-type]  # an instance
    return EngineRun(engine, algorithm, devices=workload.devices), facts


def engine_maker() -> Any:
    """The function that makes an engine, wherever this version of kfl has it."""
    for module in ("plan", "factory"):  # the second in older versions
        try:
            return importlib.import_module(f"kfl.engine.{module}").make_engine
        except ImportError:
            continue
    raise SystemExit("This version of kfl has no make_engine.")


def smaller(workload: Workload, options: argparse.Namespace) -> Workload:
    """The workload, or a smaller one to try something out."""
    if options.chosen:
        workload = replace(workload, chosen=options.chosen)
    if not options.devices and not options.samples:
        return workload
    return workload.smaller(options.devices or workload.devices, options.samples or workload.train)


# ── The comparison ───────────────────────────────────────────────────────────


def compare(name: str, options: argparse.Namespace, package: Path | None) -> dict[str, Any]:
    """Time one workload and print what was found."""
    workload = smaller(WORKLOADS[name], options)
    other = "loop" if package is None else options.against
    with ExitStack() as stack:
        sides = {}
        for side, kind, where in (("kfl", "kfl", None), (other, "loop" if package is None else "kfl", package)):
            sides[side] = Player(side, options, name, kind, where)
            stack.callback(sides[side].close)
        stack.enter_context(load(options.busy))
        schedule = workload.schedule(options.warm_up + options.rounds)
        played: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for number, chosen in enumerate(schedule):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                played[side].append(sides[side].play(chosen))
        plan = sides["kfl"].ready["plan"]
    models = workload.fleet()
    flops = statistics.mean(workload.flops(models, chosen) for chosen in schedule)
    rate = matrix_rate(options.precision, options.device)
    timed = {side: [one["seconds"] for one in rounds[options.warm_up :]] for side, rounds in played.items()}
    ratios = [b / a for a, b in zip(timed["kfl"], timed[other], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    found: dict[str, Any] = {
        "workload": name,
        **{
            field: getattr(options, field)
            for field in ("algorithm", "device", "precision", "rounds", "busy", "chosen", "without")
        },
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "gflop_per_round": flops / 1e9,
        "matrix_gflop_per_s": rate / 1e9,
        "load": os.getloadavg()[0],
        "plan": plan,
    }
    for side, rounds in played.items():
        found[side] = {
            "first_s": rounds[0]["seconds"],
            "median_s": statistics.median(timed[side]),
            "least_s": min(timed[side]),
            "processor_s": statistics.median(one["processor"] for one in rounds[options.warm_up :]),
            "of_matrix_rate": flops / statistics.median(timed[side]) / rate,
            "peak_mb": rounds[-1]["peak_mb"],
            "right_last_round": rounds[-1]["right"],
            "seconds": timed[side],
        }
    show(found, list(sides))
    return found


def show(found: dict[str, Any], sides: list[str]) -> None:
    """One workload as text."""
    low, high = found["ratio_quartiles"]
    print(
        f"{found['workload']} {found['algorithm']} {found['device']} {found['precision']}: {sides[1]} takes "
        f"{found['ratio']:.2f} times as long as kfl (quartiles {low:.2f} to {high:.2f}), {found['rounds']} rounds, "
        f"{found['busy']} busy processes, load {found['load']:.1f}"
    )
    for side in sides:
        one = found[side]
        print(
            f"    {side:12.12s} median {1000 * one['median_s']:8.1f} ms   least {1000 * one['least_s']:8.1f}   "
            f"first {1000 * one['first_s']:8.1f}   processor {1000 * one['processor_s']:8.1f}   "
            f"{100 * one['of_matrix_rate']:5.1f} % of the matrix rate   peak {one['peak_mb']:6.0f} MB"
        )
    print(f"    plan {found['plan']}", flush=True)


def check(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Three rounds on each side; the largest difference of any weight, and the largest weight.

    In float32 a network with many layers enlarges rounding: how far the two float32 sides are from the loop in float64
    says by how much. In float64 both should agree.
    """
    workload = smaller(WORKLOADS[name], options)
    schedule = workload.schedule(CHECKED_ROUNDS)
    trained = sorted({k for chosen in schedule for k in chosen})
    weights: dict[str, dict[tuple[int, str], Tensor]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("kfl", "loop"):
            for precision in dict.fromkeys((options.precision, "float64")):
                asked = argparse.Namespace(**{**vars(options), "precision": precision})
                player = Player(kind, asked, name, kind, None)
                for chosen in schedule:
                    player.play(chosen)
                weights[f"{kind} {precision}"] = player.save(trained, Path(folder) / "states.pt")
                player.close()

    def distance(one: str, other: str) -> float:
        return max(float((value - weights[other][at]).abs().max()) for at, value in weights[one].items())

    differences = {f"{one} to {other}": distance(one, other) for one, other in combinations(weights, 2)}
    largest = max(float(value.abs().max()) for value in weights[f"kfl {options.precision}"].values())
    print(f"{name} {options.algorithm} after {CHECKED_ROUNDS} rounds; largest weight {largest:.2f}")
    for pair, value in differences.items():
        print(f"    {pair:40s} {value:.1e}", flush=True)
    return {"workload": name, "precision": options.precision, "largest_weight": largest, **differences}


def matrix_rate(precision: str, device: str) -> float:
    """Floating-point operations per second of a large product with all cores or on a GPU, the best of a few."""
    dtype = {"bf16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)
    size = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


@contextmanager
def load(count: int) -> Iterator[None]:
    """Processes that keep cores busy, for a while."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def package_of(against: str) -> Iterator[Path | None]:
    """The folder that holds another version of the package: as given, or the `src` of a commit."""
    if not against:
        yield None
        return
    given = Path(against)
    if (given / "kfl").is_dir():
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", against, "src"]
        packed = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, check=False)
        if packed.returncode:
            raise SystemExit(f"--against {against}: neither a folder with kfl in it nor a commit of this repository.")
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder) / "src"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W1,W2,sensor,resnet", help="some of them, with commas")
    parser.add_argument("--algorithm", choices=("prototypes", "fedavg"), default="prototypes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16", "float64"), default="float32")
    parser.add_argument("--rounds", type=int, default=11, help="timed rounds")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them")
    parser.add_argument("--against", default="", help="a commit, or a folder with a package kfl in it")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep cores busy meanwhile")
    parser.add_argument("--check", action="store_true", help="compare models instead of times")
    parser.add_argument("--devices", type=int, default=0, help="fewer, to try something out")
    parser.add_argument("--samples", type=int, default=0, help="fewer training samples of each device")
    parser.add_argument("--chosen", type=int, default=0, help="devices of a round, where not the workload's own")
    parser.add_argument("--without", choices=("", *WITHOUT), default="", help="a part of the stacked engine")
    parser.add_argument("--out", type=Path, help="file for everything measured, JSON")
    parser.add_argument("--player", choices=("kfl", "loop"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.workload.split(",")
    if not set(names) <= set(WORKLOADS):
        parser.error(f"--workload: {options.workload} has something else than {', '.join(WORKLOADS)}")
    if options.player:
        serve(options)
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    print(f"PyTorch {torch.__version__}, {machine}, load {os.getloadavg()[0]:.1f}", flush=True)
    rows: list[dict[str, Any]] = []
    with package_of(options.against) as package:
        for name in names:
            rows.append(check(name, options) if options.check else compare(name, options, package))
            if options.out is not None:
                result = {"torch": torch.__version__, "machine": machine, "rows": rows}
                options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
