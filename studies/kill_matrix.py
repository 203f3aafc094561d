"""Kill a run with SIGKILL again and again, in every phase, resume it, and compare the result byte for byte.

    python -m studies.kill_matrix --kills 300

A child process plays a small run with a checkpoint after every round and says which phase it enters: training,
aggregation, evaluation, history, checkpoint (the logger `kfl.phases` at debug level). A random moment after a marker
of the phase that was hit least so far, SIGKILL comes: half of the time from this process, which watches the markers,
half of the time from a timer in the child, which can hit phases that last microseconds. The last marker tells which
phase was hit. One kill in ten comes at the start, while the folder is made or the checkpoint read, and one for each
run at its end, while results are written. The run is resumed, and killed again, until it has taken its share of
kills; then it is left to end, and every file of it must equal the undisturbed run's. Children are forked from here,
where PyTorch is imported already, so that a kill takes milliseconds instead of seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import kfl
from kfl.experiment.faults import Faults
from kfl.scheduling import Lyapunov
from tests.reference.runs import SMALL, data, difference

PHASES = ("training", "aggregation", "evaluation", "history", "checkpoint")
KILLS_PER_RUN = 15
AT_START = 0.1
"""Share of the kills that come before the first marker."""
EXPERIMENTS = (
    SMALL,
    replace(SMALL, scheduler=Lyapunov(v=0.01), hard_budget=True, radio=kfl.CellConfig(fading_correlation=0.9)),
    replace(SMALL, faults=Faults(drop_before=0.1, late=0.1, corrupt=0.2, join=0.3, leave=0.2, poisoned=0.2)),
)


@dataclass(frozen=True)
class Aim:
    """Where a kill is to come: so many seconds after so many markers of a phase."""

    phase: str
    times: int
    delay_s: float
    by_timer: bool


class Markers(logging.Handler):
    """Writes each phase and its time into a pipe, in one piece; arms the timer at the phase that is aimed at."""

    def __init__(self, pipe: int, aim: Aim | None) -> None:
        super().__init__(logging.DEBUG)
        self.pipe, self.aim, self.seen = pipe, aim, 0
        if aim is not None and aim.phase == "start":
            self.arm(aim)

    def emit(self, record: logging.LogRecord) -> None:
        """One phase per line."""
        word = record.getMessage().split()[1].rstrip(",")
        os.write(self.pipe, f"{word} {time.monotonic_ns()}\n".encode())
        if self.aim is not None and self.aim.by_timer and word == self.aim.phase:
            self.seen += 1
            if self.seen == self.aim.times:
                self.arm(self.aim)

    def arm(self, aim: Aim) -> None:
        """Start the timer that kills."""
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, max(aim.delay_s, 1e-6))


class Child:
    """A forked process that plays a run, and the markers it has sent."""

    def __init__(self, experiment: kfl.Experiment, folder: Path, aim: Aim | None = None) -> None:
        self.pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _play(experiment, folder, theirs, aim)
        os.close(theirs)
        self.markers = [("start", time.monotonic_ns())]
        self.aim = aim
        self._rest = b""

    def end(self) -> int:
        """Wait for the child's end, or bring it about; its exit status, which is −9 for one that was killed."""
        seen = 0
        while (word := self._read()) is not None:
            if self.aim is None or self.aim.by_timer:
                continue
            seen += word == self.aim.phase
            if seen == self.aim.times and word == self.aim.phase:
                time.sleep(self.aim.delay_s)
                os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> str | None:
        """The next marker; None at the end."""
        while b"\n" not in self._rest:
            got = os.read(self.pipe, 4096)
            if not got:
                return None
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        word, _, when = line.decode().partition(" ")
        self.markers.append((word, int(when)))
        return word


def _play(experiment: kfl.Experiment, folder: Path, pipe: int, aim: Aim | None) -> None:
    """What the child does; it never returns."""
    status = 1
    try:
        logger = logging.getLogger("kfl.phases")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Markers(pipe, aim))
        kfl.run(experiment, folder, dataset=data(), checkpoint_s=0.0)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def lengths(markers: list[tuple[str, int]]) -> dict[str, float]:
    """The median length of each phase in seconds."""
    found: dict[str, list[float]] = {phase: [] for phase in ("start", *PHASES)}
    for (phase, start), (_, end) in itertools.pairwise(markers):
        found[phase].append((end - start) / 1e9)
    return {phase: statistics.median(values) for phase, values in found.items()}


def _aim(hits: Counter[str], length: dict[str, float], draw: random.Random, *, last: bool) -> Aim:
    """Where to kill next: at the phase that was hit least, now and then at the start, and at last at the end."""
    if last:
        return Aim("end", 1, draw.uniform(0, 20 * length["history"]), by_timer=True)
    if draw.random() < AT_START:
        return Aim("start", 1, draw.uniform(0, length["start"]), by_timer=True)
    wanted = min(PHASES, key=lambda phase: (hits[phase], draw.random()))
    return Aim(wanted, draw.randint(1, 2), draw.uniform(0, length[wanted]), by_timer=draw.random() < 0.5)


def matrix(kills: int, folder: Path, seed: int = 0) -> dict[str, object]:
    """Kill so many times, over several runs, and compare each at its end."""
    draw = random.Random(seed)
    length: dict[str, float] = {}
    for number, experiment in enumerate(EXPERIMENTS):
        child = Child(experiment, folder / f"whole-{number}")
        if child.end() != 0:
            raise SystemExit("The undisturbed run failed.")
        length = length or lengths(child.markers)
    hits: Counter[str] = Counter()
    torn, runs, differences = 0, 0, []
    while hits.total() < kills:
        which, target = runs % len(EXPERIMENTS), folder / f"killed-{runs}"
        share = min(KILLS_PER_RUN, kills - hits.total())
        for number in range(share):
            child = Child(EXPERIMENTS[which], target, _aim(hits, length, draw, last=number == share - 1))
            if child.end() != -signal.SIGKILL:
                break
            hits[child.markers[-1][0]] += 1
            torn += any(path.name.endswith(".part") for path in target.rglob(".*"))
        if Child(EXPERIMENTS[which], target).end() != 0:
            differences.append(f"run {runs}: the resumed run failed")
        elif found := difference(folder / f"whole-{which}", target):
            differences.append(f"run {runs}: {found}")
        else:
            shutil.rmtree(target)
        runs += 1
    return {
        "kills": hits.total(),
        "phases": {phase: hits[phase] for phase in ("start", *PHASES, "end")},
        "during_a_file": torn,
        "runs": runs,
        "different": differences,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = matrix(options.kills, Path(folder), options.seed)
    print(json.dumps(result, indent=2))
    return 1 if result["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
