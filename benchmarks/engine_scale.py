"""Memory and time per round of a fleet of 100,000 devices against one of 100: `python -m benchmarks.engine_scale`.

Devices have 500 samples each, drawn with overlap from one stored set of 32×32 color images, and the paper's CNN.
Each round 20 of them take part. Two things are measured, each for each size in a process of its own:

    engine   devices train, upload knowledge and are tested; nothing else
    kfl.run  everything of a run: channel, scheduler, accounts, checkpoints, run folder; 100 devices are tested
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from tempfile import TemporaryDirectory

from benchmarks.workloads import WORKLOADS
from kfl.algorithms import Kfl
from kfl.data import partition
from kfl.engine import LocalData, RoundKey
from kfl.engine.plan import make_engine
from kfl.experiment import Experiment
from kfl.models import State
from kfl.runner import run
from kfl.scheduling import Uniform

SIZES = (100, 100_000)
SAMPLES, CHOSEN, CLASSES = 500, 20, 10
DATA = WORKLOADS["W2"]


def play_engine(devices: int, rounds: int) -> list[float]:
    """Rounds through the engine; the time when all is ready, and after each."""
    dataset = DATA.data().dataset
    split = partition("overlap", dataset.train_y, dataset.test_y, CLASSES, devices, seed=0, samples=SAMPLES)
    engine = make_engine(LocalData(dataset, split), replace(DATA, devices=devices).fleet())
    algorithm = Kfl()
    server, states = algorithm.server_init(engine, 0), dict[int, State]()
    stamps = [time.perf_counter()]
    for t, chosen in enumerate(replace(DATA, devices=devices, chosen=CHOSEN).schedule(rounds)):
        before = [states[k] if k in states else algorithm.device_init(engine, k, 0) for k in chosen]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, chosen, before, engine, RoundKey(0, t))
        server, _ = algorithm.aggregate(server, uploads, engine=engine, key=RoundKey(0, t))
        states.update(zip(chosen, after, strict=True))
        engine.correct(chosen, after)
        stamps.append(time.perf_counter())
    return stamps


def play_run(devices: int, rounds: int) -> list[float]:
    """A run into a folder, models included; the time after each round."""
    experiment = Experiment(
        devices=devices,
        rounds=rounds,
        split="overlap",
        samples_per_device=SAMPLES,
        tested_devices=100,
        model="cnn",
        widths=(128,),
        radio="paper-cifar10",
        scheduler=Uniform(count=CHOSEN),
    )
    stamps: list[float] = []
    with TemporaryDirectory() as folder:
        run(
            experiment,
            folder,
            dataset=DATA.data().dataset,
            on_round=lambda _: stamps.append(time.perf_counter()),
        )
    return stamps


WAYS = {"engine": play_engine, "kfl.run": play_run}


def measure(way: str, devices: int, rounds: int) -> dict[str, float]:
    """Play rounds; peak memory in MB, the median time of a round, and the time until the first is over, in seconds."""
    started = time.perf_counter()
    stamps = WAYS[way](devices, rounds)
    seconds = [after - before for before, after in pairwise(stamps)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "peak_mb": peak,
        "round_s": statistics.median(seconds),
        "first_s": stamps[0] - started + (seconds[0] if way == "engine" else 0),
    }


def compare_sizes(rounds: int) -> None:
    """Both sizes, each in its own process."""
    if rounds < 2:
        raise SystemExit(f"--rounds is {rounds}, but must be 2 or more: the first is not timed.")
    for way in WAYS:
        found = []
        for devices in SIZES:
            command = [sys.executable, "-m", "benchmarks.engine_scale", way, str(devices), str(rounds)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(
                f"{way:8} K = {devices:7,d}   {rounds} rounds of {CHOSEN}   {found[-1]['round_s']:.3f} s per round   "
                f"peak {found[-1]['peak_mb']:,.0f} MB   first round over after {found[-1]['first_s']:.1f} s",
                flush=True,
            )
        small, large = found
        more, slower = large["peak_mb"] - small["peak_mb"], large["round_s"] / small["round_s"]
        print(f"{way:8} memory {more:+,.0f} MB, time per round × {slower:.2f}")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
    else:
        compare_sizes(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
