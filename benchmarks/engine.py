"""Speed of the CPU engine against a plain PyTorch loop, with the same models at the end.

    python -m benchmarks.engine                       the table: W1 and W2, federated averaging and prototypes
    python -m benchmarks.engine --accuracy            float32 and bf16 side by side over 3 seeds
    python -m benchmarks.engine --scale               100,000 devices against 100: memory and time per round

Variants take turns, one round each on the same schedule, so that a busy moment of the machine hits all of them;
times are medians, and "spread" is the slowest over the fastest round. The models after three rounds are compared
with the loop's and with those of a float64 run: the largest difference of any weight. The floor is what the plain
method's products would take at the machine's matrix rate, measured in the same run (2048 × 2048, all cores); an
engine that saves products can be past it. A round is complete: local steps, knowledge or weights, aggregation, and
the number of right predictions of all 100 devices. A device whose model has not changed since its last test is not
tested again; "tests all" tests it all the same, as the loop does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.naive_loop import NaiveRun
from benchmarks.own_loop import finish
from benchmarks.workloads import DEVICES, STEPS, schedule, workload_data, workload_dataset, workload_models
from kfl.algorithms import Algorithm, FedAvg, Kfl
from kfl.core.threads import torch_threads
from kfl.engine import Engine, RoundKey
from kfl.engine.base import Plan
from kfl.engine.factory import make_engine

ALGORITHMS: dict[str, Algorithm] = {"fedavg": FedAvg(), "prototypes": Kfl()}
CHECKED_ROUNDS = 3
MACS = {
    # (first layer, the rest), multiply-adds of one sample forward
    "W1": (784 * 512, 512 * 256 + 256 * 64 + 640),
    "W2": (6 * 75 * 28 * 28, 16 * 150 * 100 + 400 * 128 + 128 * 64 + 640),
}


class EngineRun:
    """Rounds through an engine, as the simulator plays them."""

    def __init__(
        self, engine: Engine, algorithm: Algorithm, seed: int = 0, *, tests_all: bool = False, devices: int = DEVICES
    ) -> None:
        self.engine, self.algorithm, self.seed = engine, algorithm, seed
        self.tests_all = tests_all or not algorithm.predicts_alone
        self.server = algorithm.server_init(engine, seed)
        # Models exist before the first timed round, as the loop's do.
        self.devices = {k: algorithm.device_init(engine, k, seed) for k in range(devices)}
        self.right = dict.fromkeys(range(devices), 0)
        self.round = 0

    def play(self, chosen: list[int]) -> int:
        """One round; returns the right predictions of all devices."""
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
        tested = list(self.right) if self.tests_all else chosen
        states = [self.algorithm.predictor(self.server, self.devices[k]) for k in tested]
        self.right.update(zip(tested, self.engine.correct(tested, states), strict=True))
        return sum(self.right.values())

    def state(self, device: int) -> dict[str, Tensor]:
        """A device's model."""
        return self.algorithm.predictor(self.server, self.devices[device])


@dataclass
class Variant:
    """One line of the table."""

    name: str
    run: NaiveRun | EngineRun
    seconds: list[float] = field(default_factory=list)
    difference: float | None = None
    """Largest difference of any weight from the naive loop's after three rounds."""
    error: float | None = None
    """The same from float64's."""

    def play(self, chosen: list[int], *, timed: bool = True) -> None:
        """One round."""
        started = time.perf_counter()
        self.run.play(chosen)
        if timed:
            self.seconds.append(time.perf_counter() - started)

    @property
    def rate(self) -> float:
        """Rounds per second, the median."""
        return 1 / statistics.median(self.seconds)


def matrix_rate(dtype: torch.dtype, size: int = 2048, device: str = "cpu") -> float:
    """Floating-point operations per second of a large product with all cores or on a GPU, the best of a few."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.mm(a, b)
        finish(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def round_flops(workload: str, algorithm: str) -> float:
    """Operations of a round by the plain method: 10 devices train, read features, and what changed is tested."""
    first, rest = MACS[workload]
    samples = {"W1": 600, "W2": 500}[workload]
    training = STEPS * samples * (2 * first + 3 * rest)  # the first layer has no gradient for its input
    knowledge = samples * (first + rest) if algorithm == "prototypes" else 0
    tested = 100 * (100 if algorithm == "fedavg" else 10)
    return 2.0 * (10 * (training + knowledge) + tested * (first + rest))


def largest_difference(one: Variant, other: Variant, devices: list[int]) -> float:
    """Largest difference of any weight of these devices' models."""
    worst = 0.0
    for device in devices:
        mine, theirs = one.run.state(device), other.run.state(device)
        worst = max(worst, *(float((mine[name] - theirs[name]).abs().max()) for name in mine))
    return worst


def warm(engine: Engine, algorithm: Algorithm) -> EngineRun:
    """A fresh run on an engine that has seen every device once: what it keeps is warm, as the loop's tensors are.

    A run of 200 rounds meets every device 20 times, so this is the state it spends its time in.
    """
    before = EngineRun(engine, algorithm)
    for first in range(0, DEVICES, 10):
        before.play(list(range(first, first + 10)))
    return EngineRun(engine, algorithm)


def compare(workload: str, algorithm: str, rounds: int, precisions: list[str]) -> None:
    data, models = workload_data(workload), workload_models(workload)
    train = [data.read(k, "train") for k in range(DEVICES)]
    test = [data.read(k, "test") for k in range(DEVICES)]
    naive = Variant("naive loop", NaiveRun(workload, algorithm, train, test))
    variants = [naive]
    for precision in precisions:
        engine = make_engine(data, models, precision=precision)
        variants.append(Variant(f"kfl {precision}", warm(engine, ALGORITHMS[algorithm])))
    if algorithm == "prototypes":
        again = warm(make_engine(data, models), ALGORITHMS[algorithm])
        again.tests_all = True
        variants.append(Variant("kfl float32, tests all", again))
    truth = Variant("float64", EngineRun(make_engine(data, models, precision="float64"), ALGORITHMS[algorithm]))
    plan = schedule(max(rounds + 1, CHECKED_ROUNDS))
    rates: dict[str, list[float]] = {"float32": [], "bf16": []}
    for number, chosen in enumerate(plan):
        for variant in variants:
            variant.play(chosen, timed=number > 0)  # the first round of each warms up
        rates["float32"].append(matrix_rate(torch.float32))
        rates["bf16"].append(matrix_rate(torch.bfloat16))
        if number < CHECKED_ROUNDS:
            truth.play(chosen)
        if number == CHECKED_ROUNDS - 1:
            trained = sorted({k for some in plan[:CHECKED_ROUNDS] for k in some})
            for variant in variants:
                variant.difference = largest_difference(variant, naive, trained)
                variant.error = largest_difference(variant, truth, trained)
    show(workload, algorithm, variants, {name: statistics.median(values) for name, values in rates.items()})


def show(workload: str, algorithm: str, variants: list[Variant], rates: dict[str, float]) -> None:
    flops = round_flops(workload, algorithm)
    for variant in variants:
        kind = "bf16" if "bf16" in variant.name else "float32"
        times_floor = variant.rate * flops / rates[kind]
        print(
            f"{workload}  {algorithm:10s}  {variant.name:22s}  {variant.rate:7.2f}  "
            f"{variant.rate / variants[0].rate:6.2f}  {times_floor:6.2f}  {variant.difference:8.1e}  "
            f"{variant.error:9.1e}  {max(variant.seconds) / min(variant.seconds):6.1f}",
            flush=True,
        )
    print(
        f"    floor {rates['float32'] / flops:.2f} rounds/s in float32 ({rates['float32'] / 1e9:.0f} GFLOP/s), "
        f"{rates['bf16'] / flops:.2f} in bf16 ({rates['bf16'] / 1e9:.0f}); {flops / 1e9:.0f} GFLOP per round\n",
        flush=True,
    )


def accuracy(workload: str, algorithm: str, rounds: int, seeds: int) -> None:
    """Final accuracy in float32 and bf16, the mean of the last five rounds."""
    print(f"{workload} {algorithm}, {rounds} rounds, accuracy in %:")
    differences = []
    for seed in range(seeds):
        data, models = workload_data(workload, seed=seed), workload_models(workload, seed=seed)
        total = sum(data.size(k, "test") for k in range(DEVICES))
        final = {}
        for precision in ("float32", "bf16"):
            run = EngineRun(make_engine(data, models, precision=precision), ALGORITHMS[algorithm], seed)
            last = [run.play(chosen) for chosen in schedule(rounds, seed=seed)][-5:]
            final[precision] = 100 * statistics.mean(last) / total
        differences.append(final["bf16"] - final["float32"])
        print(f"  seed {seed}   float32 {final['float32']:6.2f}   bf16 {final['bf16']:6.2f}", flush=True)
    print(f"  mean difference {statistics.mean(differences):+.3f} points\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("W1", "W2"), nargs="+", default=["W1", "W2"])
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), nargs="+", default=sorted(ALGORITHMS))
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"])
    parser.add_argument("--rounds", type=int, help="timed rounds (7; 50 for --scale; 100 for --accuracy)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--scale", action="store_true")
    options = parser.parse_args()
    if options.scale:
        from benchmarks.engine_scale import compare_sizes

        compare_sizes(options.rounds or 50)
        return
    over: Callable[[str, str], None]
    if options.accuracy:
        over = lambda w, a: accuracy(w, a, options.rounds or 100, options.seeds)  # noqa: E731  # one line each
    else:
        over = lambda w, a: compare(w, a, options.rounds or 7, options.precision)  # noqa: E731  # as above
        data = ", ".join(f"{w} on {workload_dataset(w).name}" for w in options.workload)
        print(f"{os.cpu_count()} cores, PyTorch {torch.__version__}, load {os.getloadavg()[0]:.1f}; {data}")
        print(f"plan: {Plan(workers=torch.get_num_threads())}")
        print("                  variant                 rounds/s   ratio  ×floor  to naive  to float64  spread")
    for workload in options.workload:
        for algorithm in options.algorithm:
            over(workload, algorithm)


if __name__ == "__main__":
    main()
