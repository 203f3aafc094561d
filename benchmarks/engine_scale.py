"""Memory and time per round of a fleet of 100,000 devices against one of 100: `benchmarks.engine --scale`.

Devices have 500 samples each, drawn with overlap from one stored set of 32×32 colour images, and the paper's CNN.
Each round 20 of them train, upload knowledge and are tested. Each size runs in a process of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarks.workloads import CLASSES, SGD, schedule, workload_dataset, workload_models
from kfl.algorithms import Kfl
from kfl.core.randomness import stream
from kfl.data import Partition
from kfl.engine import LocalData, RoundKey
from kfl.engine.factory import make_engine
from kfl.models import State

SIZES = (100, 100_000)
SAMPLES, TESTS, CHOSEN = 500, 100, 20


def overlapping(devices: int, seed: int = 0) -> Partition:
    """500 training and 100 test samples of two classes for each device, the same sample for many of them.

    For each pair of classes there is one sequence that alternates between them in random order; a device's samples
    are a window of it, a view, so that nothing is stored per device but where its window starts.
    """
    data, draw = workload_dataset("W2"), stream(seed, "overlap")
    pairs = [(a, b) for a in range(CLASSES) for b in range(a)]
    own = draw.integers(len(pairs), size=devices)
    parts, counts = [], []
    for labels, size in ((data.train_y, SAMPLES), (data.test_y, TESTS)):
        members = [draw.permutation(np.flatnonzero(labels == c)) for c in range(CLASSES)]
        least = min(len(some) for some in members)
        sequences = [np.stack([members[a][:least], members[b][:least]], axis=1).ravel() for a, b in pairs]
        starts = 2 * draw.integers(least - size // 2 + 1, size=devices)
        parts.append(tuple(sequences[p][s : s + size] for p, s in zip(own.tolist(), starts.tolist(), strict=True)))
        count = np.zeros((devices, CLASSES), dtype=np.int64)
        np.put_along_axis(count, np.array(pairs)[own], size // 2, axis=1)
        counts.append(count)
    return Partition(parts[0], parts[1], counts[0], counts[1])


def measure(devices: int, rounds: int) -> dict[str, float]:
    """Play rounds; peak memory in MB and the median time of a round in seconds."""
    started = time.perf_counter()
    data = LocalData(workload_dataset("W2"), overlapping(devices))
    engine = make_engine(data, workload_models("W2", devices))
    algorithm = Kfl(local_steps=SGD.steps)
    server, states = algorithm.server_init(engine, 0), dict[int, State]()
    seconds = []
    ready = time.perf_counter() - started
    for t, chosen in enumerate(schedule(rounds, devices, CHOSEN)):
        begun = time.perf_counter()
        before = [states[k] if k in states else algorithm.device_init(engine, k, 0) for k in chosen]
        message = engine.place(algorithm.broadcast(server))
        after, uploads = algorithm.local_update(message, chosen, before, engine, RoundKey(0, t))
        server, _ = algorithm.aggregate(server, uploads)
        states.update(zip(chosen, after, strict=True))
        engine.correct(chosen, after)
        seconds.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"devices": devices, "peak_mb": peak, "round_s": statistics.median(seconds), "ready_s": ready}


def compare_sizes(rounds: int) -> None:
    """Both sizes, each in its own process."""
    found = []
    for devices in SIZES:
        command = [sys.executable, "-m", "benchmarks.engine_scale", str(devices), str(rounds)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(
            f"K = {devices:7,d}   {rounds} rounds of {CHOSEN}   {found[-1]['round_s']:.3f} s per round   "
            f"peak {found[-1]['peak_mb']:,.0f} MB   ready after {found[-1]['ready_s']:.1f} s",
            flush=True,
        )
    small, large = found
    more, slower = large["peak_mb"] - small["peak_mb"], large["round_s"] / small["round_s"]
    print(f"memory {more:+,.0f} MB, time per round × {slower:.2f}")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
