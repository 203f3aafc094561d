"""Does a fleet grow? Hundreds of rounds with real processes, and the memory of each kind of them along the way.

    python -m studies.fleet.soak --out docs/results/fleet-soak.txt

Five devices with a small model and a server on 127.0.0.1. After every few rounds the memory that each process has for
itself is read (anonymous pages: libraries are not in it, whose share depends on who else is running), and the size of
Flower's database. A line through what was read after the first fifth of the rounds,
in which caches fill, says how much a process grows; its standard error, how well that is known. Takes about ten
minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from kfl.algorithms import Kfl
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.device.worker_link import WORKER
from kfl_fleet.local.fleet import LocalFleet

PROGRAMS = {
    WORKER: "worker of a device",
    "kfl_fleet.device.node": "node of a device",
    "flwr-serverapp": "server app",
    "superlink": "SuperLink",
    "superexec": "SuperExec",
}
EVERY = 5
"""Rounds between two looks."""

Series = dict[str, list[tuple[int, float]]]


def own_memory(process: int) -> float:
    """Anonymous memory of a process in megabytes."""
    lines = (Path("/proc") / str(process) / "smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def look(fleet: LocalFleet) -> dict[str, float]:
    """Megabytes by program; of several of a kind the mean."""
    sizes: dict[str, list[float]] = defaultdict(list)
    for process in fleet.processes.members():
        with contextlib.suppress(OSError, StopIteration):
            words = (Path("/proc") / str(process) / "cmdline").read_bytes().decode().split("\0")[:4]
            name = next((title for part, title in PROGRAMS.items() if any(part in word for word in words)), None)
            if name is not None:
                sizes[name].append(own_memory(process))
    found = {name: sum(values) / len(values) for name, values in sizes.items()}
    files = [path for path in fleet.folder.glob("superlink.db*") if path.exists()]
    return {**found, "database, with its log": sum(path.stat().st_size for path in files) / 2**20}


def slope(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Growth per 100 rounds by least squares, and its standard error."""
    x, y = np.array(points, dtype=float).T
    if len(x) < 3:
        return float("nan"), float("nan")
    spread = ((x - x.mean()) ** 2).sum()
    rise = ((x - x.mean()) * (y - y.mean())).sum() / spread
    rest = y - y.mean() - rise * (x - x.mean())
    return 100 * float(rise), 100 * float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))


def soak(rounds: int, devices: int, folder: Path) -> tuple[Series, float, int]:
    """Play; what was seen by program, seconds it took, and how many answers were not used."""
    experiment = Experiment(
        devices=devices,
        distinct_classes=False,
        rounds=rounds,
        widths=(32,),
        algorithm=Kfl(local_steps=2),
        scheduler=SCHEDULERS["all"](),
    )
    found: Series = defaultdict(list)
    lost, started = 0, time.monotonic()
    with LocalFleet(folder, ServerConfig(experiment, FleetSettings())) as fleet:
        for log in fleet.rounds(patience_s=240):
            lost += len(log.lost) + len(log.rejected)
            if log.round % EVERY == 0 and not fleet.finished:
                for name, size in look(fleet).items():
                    found[name].append((log.round, size))
    return found, time.monotonic() - started, lost


def report(found: Series, rounds: int) -> list[str]:
    """A row per program."""
    lines = [f"{'':<26}{'first, MB':>10}{'last, MB':>10}{'MB per 100 rounds':>20}{'standard error':>16}"]
    for name, points in found.items():
        late = [point for point in points if point[0] >= rounds // 5]
        rise, error = slope(late or points)
        lines.append(f"{name:<26}{points[0][1]:>10.1f}{points[-1][1]:>10.1f}{rise:>20.3f}{error:>16.3f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--devices", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kfl-soak-") as folder:
        found, seconds, lost = soak(options.rounds, options.devices, Path(folder) / "fleet")
    text = [
        f"python -m studies.fleet.soak; {options.rounds} rounds, {options.devices} devices; {machine()}",
        f"{seconds / options.rounds:.2f} s per round; {lost} answers were not used.",
        "",
        *report(found, options.rounds),
    ]
    print("\n".join(text))
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
