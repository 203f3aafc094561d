"""What checkpoints cost: the paper's MNIST setting with and without them, turn by turn.

    python -m benchmarks.checkpoint_cost --rounds 40 --repeats 3 [--device cuda]

100 devices with the paper's different networks on MNIST (made-up images of the same size where it is not installed), 10
of them in a round, tested after every round. Two numbers: the difference of the run times with and without
checkpoints, the fastest of the repeats of each, which a busy machine disturbs; and the share of a run's own time
between the marker of a checkpoint and the next phase, which it does not.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import tempfile
import time
from pathlib import Path

import kfl
from benchmarks.workloads import workload_dataset


class Stopwatch(logging.Handler):
    """Adds up the time from each checkpoint's marker to the next marker."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self.seconds, self.count, self.since = 0.0, 0, math.nan

    def emit(self, record: logging.LogRecord) -> None:
        """A checkpoint begins, or what came before has ended."""
        now = time.perf_counter()
        if not math.isnan(self.since):
            self.seconds, self.count, self.since = self.seconds + now - self.since, self.count + 1, math.nan
        if "checkpoint" in record.getMessage():
            self.since = now


def seconds(experiment: kfl.Experiment, device: str, checkpoint_s: float | None) -> float:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        begun: list[float] = []
        kfl.run(
            experiment,
            Path(folder) / "run",
            dataset=workload_dataset("W1"),
            device=device,
            keep_models=False,
            checkpoint_s=checkpoint_s,
            on_start=lambda _: begun.append(time.perf_counter()),
        )
        return time.perf_counter() - begun[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    experiment = kfl.Experiment(devices=100, rounds=options.rounds)
    watch, logger = Stopwatch(), logging.getLogger("kfl.phases")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(watch)
    seconds(kfl.Experiment(devices=100, rounds=2), options.device, None)  # caches warm up
    with_them, without, shares, counts = [], [], [], []
    print(f"{'repeat':<8}{'without, s':>12}{'with, s':>10}{'checkpoints':>13}{'in them, s':>12}{'share, %':>10}")
    for repeat in range(options.repeats):
        without.append(seconds(experiment, options.device, math.inf))
        watch.reset()
        with_them.append(seconds(experiment, options.device, None))
        shares.append(watch.seconds / with_them[-1])
        counts.append(watch.count)
        print(
            f"{repeat:<8}{without[-1]:>12.2f}{with_them[-1]:>10.2f}{watch.count:>13}{watch.seconds:>12.3f}"
            f"{100 * shares[-1]:>10.2f}"
        )
    print(f"fastest with over fastest without: {100 * (min(with_them) / min(without) - 1):+.2f} %")
    print(f"share of the run's own time in checkpoints: {100 * statistics.median(shares):.2f} % (median)")


if __name__ == "__main__":
    main()
