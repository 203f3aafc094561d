"""The yardstick of `benchmarks.engine`: federated learning as a careful PyTorch loop, without kfl's engine.

    python -m benchmarks.naive_loop [--workload W1] [--algorithm prototypes] [--rounds 3]

What a good researcher writes on a free afternoon, and not slower than it must be: data converted once and kept as
float32 tensors, one module per device, fused `torch.optim.SGD`, PyTorch's own threads (on 2 cores two threads made
1.3 to 1.45 rounds per second of W1, one thread 0.9 to 1.0; see --threads), no work that is not asked for.
After every round all devices are tested, as these loops do.

The workloads W1 and W2 are in `benchmarks.workloads`. Algorithms:

    fedavg        10 devices train one common model, which is averaged
    prototypes    10 devices train their own models with the pull towards class means, which are averaged
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.workloads import (
    CLASSES,
    DEVICES,
    FEATURES,
    LAMBDA,
    MOMENTUM,
    RATE,
    STEPS,
    new_model,
    schedule,
    workload_data,
)
from kfl.models import SplitModel

Pair = tuple[Tensor, Tensor]


@dataclass
class Fleet:
    """Everything a loop needs: data and models of every device."""

    train: list[Pair]
    test: list[Pair]
    models: list[SplitModel]


def make_fleet(workload: str, train: list[Pair], test: list[Pair], *, common: bool, seed: int = 0) -> Fleet:
    """One module per device; with `common`, all start alike."""
    models = [new_model(workload, seed, None if common else device) for device in range(len(train))]
    return Fleet(train, test, models)


def local_steps(model: SplitModel, x: Tensor, y: Tensor, knowledge: Tensor | None, known: Tensor | None) -> None:
    """Five full-batch steps with momentum, fresh in every round."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
    for _ in range(STEPS):
        feature = model.body(x)
        loss = cross_entropy(model.head(feature), y)
        if knowledge is not None and known is not None:
            distance = 0.5 * (feature - knowledge[y]).square().sum(1)
            loss = loss + LAMBDA * (distance * known[y]).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(models: list[SplitModel], test: list[Pair]) -> int:
    """Right predictions of all devices."""
    return sum(int((model(x).argmax(1) == y).sum()) for model, (x, y) in zip(models, test, strict=True))


def fedavg_round(fleet: Fleet, server: SplitModel, chosen: list[int]) -> int:
    """Train copies of the server's model, average them, test everywhere."""
    total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
    weight = sum(len(fleet.train[k][1]) for k in chosen)
    for k in chosen:
        model = copy.deepcopy(server)
        local_steps(model, *fleet.train[k], None, None)
        for name, value in model.state_dict().items():
            total[name].add_(value, alpha=len(fleet.train[k][1]) / weight)
    server.load_state_dict(total)
    return evaluate([server] * len(fleet.test), fleet.test)


def prototype_round(fleet: Fleet, knowledge: Tensor, known: Tensor, chosen: list[int]) -> tuple[Tensor, Tensor, int]:
    """Train with the pull, read class means, average them, test everywhere."""
    total, counts = torch.zeros(CLASSES, FEATURES), torch.zeros(CLASSES)
    for k in chosen:
        x, y = fleet.train[k]
        local_steps(fleet.models[k], x, y, knowledge, known)
        with torch.no_grad():
            feature = fleet.models[k].body(x)
            total.index_add_(0, y, feature)
            counts += torch.bincount(y, minlength=CLASSES)
    reported = counts > 0
    knowledge = torch.where(reported[:, None], total / counts.clamp(min=1)[:, None], knowledge)
    return knowledge, known | reported, evaluate(fleet.models, fleet.test)


class NaiveRun:
    """A loop that can be played round by round."""

    def __init__(self, workload: str, algorithm: str, train: list[Pair], test: list[Pair]) -> None:
        self.common = algorithm == "fedavg"
        self.fleet = make_fleet(workload, train, test, common=self.common)
        self.server = copy.deepcopy(self.fleet.models[0])
        self.knowledge, self.known = torch.zeros(CLASSES, FEATURES), torch.zeros(CLASSES, dtype=torch.bool)

    def play(self, chosen: list[int]) -> int:
        """One round; returns the right predictions of all devices."""
        if self.common:
            return fedavg_round(self.fleet, self.server, chosen)
        self.knowledge, self.known, right = prototype_round(self.fleet, self.knowledge, self.known, chosen)
        return right

    def state(self, device: int) -> dict[str, Tensor]:
        """A device's model."""
        return (self.server if self.common else self.fleet.models[device]).state_dict()


def split(workload: str, devices: int = DEVICES) -> tuple[list[Pair], list[Pair]]:
    """Every device's samples, two classes each."""
    data = workload_data(workload, devices)
    return [data.read(k, "train") for k in range(devices)], [data.read(k, "test") for k in range(devices)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("W1", "W2"), nargs="+", default=["W1", "W2"])
    parser.add_argument("--algorithm", choices=("fedavg", "prototypes"), nargs="+", default=["fedavg", "prototypes"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="PyTorch's threads; its own choice if not given")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    for workload in options.workload:
        train, test = split(workload)
        for algorithm in options.algorithm:
            loop = NaiveRun(workload, algorithm, train, test)
            times = []
            for chosen in schedule(options.rounds + 1):
                started = time.perf_counter()
                right = loop.play(chosen)
                times.append(time.perf_counter() - started)
            median = sorted(times[1:])[len(times[1:]) // 2]
            print(f"{workload} {algorithm:10s} {1 / median:6.2f} rounds/s   {right} right", flush=True)


if __name__ == "__main__":
    main()
