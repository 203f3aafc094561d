"""The workloads of `benchmarks.workloads`, with prototypes, in BlazeFL.

BlazeFL needs an environment of its own (Python 3.12; version 3 asks for 3.14); kfl is only read from the source tree:

    python3.12 -m venv /tmp/peers-blazefl
    /tmp/peers-blazefl/bin/pip install blazefl==2.0.3 torch==2.13.0 numpy scipy
    PYTHONPATH=src:. /tmp/peers-blazefl/bin/python -m benchmarks.peers.blazefl_simulation --workload sensor

Its own client trainers, with the local work of our loops. `--mode threads` is what it recommends, though for a Python
without a global interpreter lock (`ThreadPoolClientTrainer`); `--mode processes` is its pool of processes
(`ProcessPoolClientTrainer`), which it starts in every round, and which send packages through files by default. One
worker per core, each with one PyTorch thread. Clients keep their models, in the first mode in memory, in the second in
the files they send. A client that trained is tested where it trained.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blazefl.core import ProcessPoolClientTrainer, ThreadPoolClientTrainer
from torch import Tensor, nn

from benchmarks.peers.tasks import NAMES, Task, told


@dataclass
class Down:
    """What the server sends."""

    number: int
    means: Tensor
    known: Tensor


@dataclass
class Up:
    """What a client sends; with processes also its model, which its next process needs."""

    device: int
    total: Tensor
    counts: Tensor
    right: int
    state: dict[str, Tensor]


def work(task: Task, model: nn.Module, device: int, payload: Down) -> Up:
    """A client's part of a round."""
    torch.set_num_threads(1)  # a thread's own setting
    task.train(model, device, payload.number, (payload.means, payload.known))
    total, counts = task.class_sums(model, device)
    return Up(device, total, counts, task.right(model, device), {})


class Threads(ThreadPoolClientTrainer[Up, Down]):
    """Clients in threads of this process."""

    def __init__(self, task: Task, workers: int) -> None:
        self.task, self.num_parallels, self.device, self.device_count = task, workers, "cpu", 0
        self.cache: list[Up] = []
        self.stop_event = threading.Event()
        self.models = [task.new_model(device) for device in range(task.devices)]

    def worker(self, cid: int, device: str, payload: Down, stop_event: threading.Event) -> Up:
        return work(self.task, self.models[cid], cid, payload)

    def uplink_package(self) -> list[Up]:
        found, self.cache = self.cache, []
        return found


_TASK: list[Task] = []
"""Of processes, which are forks of this one and so have the samples already."""


class Processes(ProcessPoolClientTrainer[Up, Down, dict[str, Any]]):
    """Clients in a pool of processes."""

    def __init__(self, task: Task, workers: int, folder: Path) -> None:
        self.num_parallels, self.share_dir, self.device, self.device_count = workers, folder, "cpu", 0
        self.cache: list[Up] = []
        self.stop_event = torch.multiprocessing.Manager().Event()
        _TASK[:] = [task]
        self.states = [task.new_model(device).state_dict() for device in range(task.devices)]

    def get_client_config(self, cid: int) -> dict[str, Any]:
        return {"device": cid, "state": self.states[cid], "folder": self.share_dir}

    @staticmethod
    def worker(
        config: Any, payload: Any, device: str, stop_event: threading.Event, *, shm_buffer: Up | None = None
    ) -> Path:
        own, down = torch.load(config, weights_only=False), torch.load(payload, weights_only=False)
        model = _TASK[0].new_model(own["device"])
        model.load_state_dict(own["state"])
        found = work(_TASK[0], model, own["device"], down)
        found.state = model.state_dict()
        path = Path(own["folder"]) / f"up-{own['device']}.pkl"
        torch.save(found, path)
        return path

    def uplink_package(self) -> list[Up]:
        found, self.cache = self.cache, []
        for package in found:
            self.states[package.device] = package.state
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=NAMES, default="sensor")
    parser.add_argument("--mode", choices=("threads", "processes"), default="threads")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, workers = Task(options.workload), os.cpu_count() or 1
    for device in range(task.devices):
        task.samples(device, "train"), task.samples(device, "test")
    means, known = torch.zeros(task.classes, task.features), torch.zeros(task.classes)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = Threads(task, workers) if options.mode == "threads" else Processes(task, workers, Path(folder))
        for number, chosen in enumerate(task.schedule(options.rounds + 1)):
            started = time.perf_counter()
            trainer.local_process(Down(number, means, known), chosen)
            packages = trainer.uplink_package()
            counts = sum(package.counts for package in packages)
            total = sum(package.total for package in packages)
            assert isinstance(counts, Tensor) and isinstance(total, Tensor)
            means = torch.where(counts[:, None] > 0, total / counts.clamp(min=1)[:, None], means)
            known = torch.where(counts > 0, 1.0, known)
            right = sum(package.right for package in packages)
            seconds.append(time.perf_counter() - started)
    print(f"{task.name} prototypes BlazeFL, {options.mode} {told(seconds)}   {right} right", flush=True)


if __name__ == "__main__":
    main()
