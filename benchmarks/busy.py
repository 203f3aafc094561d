"""What a busy machine does to a fleet of small networks of one's own: kfl against a plain PyTorch loop, under one load.

    python -m benchmarks.busy [--busy 4] [--rounds 3] [--repeats 1] [--out busy.json]

24 devices with 96 training samples each (6 channels × 128 time steps, 5 classes) and three small networks: a 1-D CNN, a
GRU, a CNN with BatchNorm. Ten devices a round take five steps over all their samples on KFL's loss, report the mean
feature of each class, and are tested. Three ways take turns, each from its networks to its last round:

    kfl                   `kfl.run`
    loop                  the careful loop of `benchmarks.own_loop`, PyTorch's own threads
    loop, one thread      the same with torch.set_num_threads(1)

first on the machine as it is, then beside processes that do nothing but keep its cores busy. Seconds are the median of
the repeats; the loop with PyTorch's threads takes minutes for three rounds beside four busy processes. Processor
seconds count what the threads of this process really used, spinning included; how many cores others leave to it does
not matter for them. So they should not grow with the load, and where they do, threads wait for each other. The ratio to
read is "loop" over "kfl" under the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kfl
from benchmarks.own_loop import LoopRun
from benchmarks.own_workloads import Workload
from kfl.core.threads import torch_threads
from kfl.models import FleetModels, SplitModel, fleet_from_modules

WORKLOAD = Workload("busy", (6, 128), 5, "", devices=24, chosen=10, train=96, test=24)
FEATURES = 64
BUSY = "while True: pass"


class Recurrent(nn.Module):
    """The last output of a GRU over time."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.GRU(channels, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, channels, steps) → (samples, 32)."""
        found: Tensor = self.layer(x.transpose(1, 2))[0][:, -1]
        return found


def network(device: int) -> nn.Module:
    """The three networks in turn."""
    channels, classes = WORKLOAD.shape[0], WORKLOAD.classes
    torch.manual_seed(device)
    if device % 3 == 1:
        body = nn.Sequential(Recurrent(channels), nn.Linear(32, FEATURES), nn.ReLU())
    else:
        layers: list[nn.Module] = []
        for before, after in ((channels, 16), (16, 32)):
            norm = [nn.BatchNorm1d(after)] if device % 3 == 2 else []
            layers += [nn.Conv1d(before, after, 5, padding=2), *norm, nn.ReLU(), nn.MaxPool1d(2)]
        body = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, FEATURES), nn.ReLU())
    return SplitModel(body, nn.Linear(FEATURES, classes))


def by_kfl(rounds: int) -> None:
    """A whole run, as a user starts it."""
    experiment = kfl.Experiment(
        devices=WORKLOAD.devices, rounds=rounds, split="iid", radio="none", scheduler=kfl.Uniform(count=WORKLOAD.chosen)
    )
    kfl.run(experiment, dataset=DATA.dataset, models=network)


def by_loop(rounds: int, threads: int | None = None) -> None:
    """The same work as a plain loop."""
    algorithm, count = kfl.Kfl(), WORKLOAD.chosen
    with nullcontext() if threads is None else torch_threads(threads):
        loop = LoopRun(DATA, _models(), algorithm.sgd(), algorithm.knowledge_weight)
        for number in range(rounds):
            loop.play([(count * number + index) % WORKLOAD.devices for index in range(count)])


def _models() -> FleetModels:
    with torch_threads(1):  # measuring networks is no part of a loop
        return fleet_from_modules(network, WORKLOAD.devices, WORKLOAD.shape, WORKLOAD.classes)


DATA = WORKLOAD.data()
WAYS: dict[str, Callable[[int], None]] = {
    "kfl": by_kfl,
    "loop": by_loop,
    "loop, one thread": lambda rounds: by_loop(rounds, 1),
}


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


def measure(rounds: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds and processor seconds of each way, taking turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, play in WAYS.items():
            began, used = time.perf_counter(), time.process_time()
            play(rounds)
            found[name].append((time.perf_counter() - began, time.process_time() - used))
    return {
        name: {
            "seconds": statistics.median(wall for wall, _ in times),
            "processor_seconds": statistics.median(used for _, used in times),
            "slowest_s": max(wall for wall, _ in times),
        }
        for name, times in found.items()
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=4, help="processes that keep cores busy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file for everything measured, JSON")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, PyTorch {torch.__version__} with {torch.get_num_threads()} threads"
    print(f"{machine}; {options.rounds} rounds, median of {options.repeats}, load {os.getloadavg()[0]:.1f}", flush=True)
    by_kfl(1)  # imports and compiled kernels
    rows: list[dict[str, Any]] = []
    print("| busy processes | way | seconds | slowest | processor seconds | seconds over kfl's |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count in (0, options.busy):
        with load(count):
            found = measure(options.rounds, options.repeats)
        for name, one in found.items():
            ratio = one["seconds"] / found["kfl"]["seconds"]
            rows.append({"busy": count, "way": name, "load": os.getloadavg()[0], "ratio": ratio, **one})
            print(
                f"| {count} | {name} | {one['seconds']:.1f} | {one['slowest_s']:.1f} | {one['processor_seconds']:.1f} "
                f"| {ratio:.1f} |",
                flush=True,
            )
    if options.out is not None:
        options.out.write_text(
            json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
