"""What checkpoints cost: the paper's MNIST setting with and without them, turn by turn.

    python -m benchmarks.checkpoint_cost --rounds 40 --repeats 3 [--device cuda]

100 devices with the paper's different networks on MNIST (made-up images of the same size where it is not installed), 10
of them in a round, tested after every round. Three numbers: the difference of the run times with and without
checkpoints, the fastest of the repeats of each, which a busy machine disturbs most; the share of a run's own time
between the marker of a checkpoint and the next phase; and the same share of its processor time, which waiting for
a disk does not enter and other programs disturb least.
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
from benchmarks.workloads import WORKLOADS


class Stopwatch(logging.Handler):
    """Adds up the time from each checkpoint's marker to the next marker."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self.seconds, self.busy, self.count = 0.0, 0.0, 0
        self.since: tuple[float, float] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """A checkpoint begins, or what came before has ended."""
        now = time.perf_counter(), time.process_time()
        if self.since is not None:
            self.seconds += now[0] - self.since[0]
            self.busy += now[1] - self.since[1]
            self.count += 1
        self.since = now if "checkpoint" in record.getMessage() else None


def seconds(experiment: kfl.Experiment, device: str, checkpoint_s: float | None) -> tuple[float, float]:
    """Seconds of a run, and of processor time, from its first round."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        begun: list[tuple[float, float]] = []
        kfl.run(
            experiment,
            Path(folder) / "run",
            dataset=WORKLOADS["W1"].data().dataset,
            device=device,
            keep_models=False,
            checkpoint_s=checkpoint_s,
            on_start=lambda _: begun.append((time.perf_counter(), time.process_time())),
        )
        return time.perf_counter() - begun[0][0], time.process_time() - begun[0][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    experiment = kfl.Experiment(devices=100, distinct_classes=False, rounds=options.rounds)
    watch, logger = Stopwatch(), logging.getLogger("kfl.phases")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(watch)
    seconds(kfl.Experiment(devices=100, distinct_classes=False, rounds=2), options.device, None)  # caches warm up
    with_them, without, shares, busy = [], [], [], []
    print(f"{'repeat':<8}{'without, s':>12}{'with, s':>10}{'checkpoints':>13}{'share, %':>10}{'of processor, %':>17}")
    for repeat in range(options.repeats):
        without.append(seconds(experiment, options.device, math.inf)[0])
        watch.reset()
        wall, processor = seconds(experiment, options.device, None)
        with_them.append(wall)
        shares.append(100 * watch.seconds / wall)
        busy.append(100 * watch.busy / processor)
        print(f"{repeat:<8}{without[-1]:>12.2f}{wall:>10.2f}{watch.count:>13}{shares[-1]:>10.2f}{busy[-1]:>17.2f}")
    print(f"fastest with over fastest without: {100 * (min(with_them) / min(without) - 1):+.2f} %")
    print(f"share of the run's own time in checkpoints, median: {statistics.median(shares):.2f} %")
    print(f"share of its processor time, median: {statistics.median(busy):.2f} %")


if __name__ == "__main__":
    main()
