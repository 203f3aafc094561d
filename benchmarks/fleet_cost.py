"""What a device costs: seconds from message to answer, memory of its processes, bytes on the wire by kind of request.

    python -m benchmarks.fleet_cost --out docs/results/fleet-cost.txt
    python -m benchmarks.fleet_cost --most          how many devices this machine carries, and what gives first
    python -m benchmarks.fleet_cost --profile       where CPU goes with ten devices: by program, and in the SuperLink
    python -m benchmarks.fleet_cost --bare          ten of Flower's own SuperNodes, which send a message back

A server and its devices as real processes on 127.0.0.1, with TLS. Devices reach the server through a relay that reads
along (`benchmarks.relay`). Takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bare_flower import BareFleet
from benchmarks.machine import machine
from benchmarks.relay import Relay
from kfl.algorithms import Algorithm, FedAvg, Kfl
from kfl.experiment import Experiment
from kfl.scheduling import SCHEDULERS
from kfl_fleet import FleetSettings, ServerConfig
from kfl_fleet.device.worker_link import WORKER
from kfl_fleet.local.fleet import LocalFleet
from kfl_fleet.local.processes import marked

ROUNDS = 20
BEFORE = {
    "kfl": {"answer": "6.4", "work": "0.13", "idle": "200", "peak": "490", "up": "24,605", "down": "9,380"},
    "fedavg": {"answer": "8.4", "work": "0.13", "idle": "222", "peak": "513", "up": "2,256,054", "down": "2,219,973"},
}
"""As published on 2026-11-15: a process of Flower's per message, 2 devices, 4 rounds, the same machine. At rest there
were Flower's SuperNode and SuperExec, without PyTorch."""
SLOW_S = 1.0
TEN = 10
BARE_ROUNDS, BARE_BYTES = 4, 680
PROGRAMS = {
    b"worker_process": "devices: workers",
    b"device.node": "devices: nodes",
    b"superlink_cpu": "SuperLink",
    b"flwr-serverapp": "server app",
    b"control_auth": "SuperExec",
}
"""What is in a program's command line."""
LEAST_FREE = 0.1


@dataclass(frozen=True)
class Cost:
    """What was measured of one fleet."""

    answers: list[float]
    work: list[float]
    idle: dict[str, float]
    """Megabytes by program, the mean over devices."""
    peak: dict[str, float]
    together: float
    up: float
    down: float
    kinds: dict[str, tuple[float, float, float]]
    """For each kind of request how many there were, and bytes up and down, per answer."""
    content: int


class Sampler(threading.Thread):
    """Watches the processes of devices: proportional set size by program."""

    def __init__(self, fleet: LocalFleet) -> None:
        super().__init__(daemon=True)
        self.fleet, self.stop = fleet, threading.Event()
        self.peak: dict[str, float] = defaultdict(float)
        self.together = 0.0

    def run(self) -> None:
        while not self.stop.wait(2.0):  # reading sizes takes time that answers then wait for
            for sizes in self.look().values():
                for name, size in sizes.items():
                    self.peak[name] = max(self.peak[name], size)
                self.together = max(self.together, sum(sizes.values()))

    def look(self) -> dict[int, dict[str, float]]:
        """Megabytes of every device by program, now."""
        devices = range(self.fleet.config.experiment.devices)
        sessions = {self.fleet.processes.program(f"device-{device}").pid: device for device in devices}
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for process in marked(self.fleet.processes.mark):
            with contextlib.suppress(OSError, ValueError, IndexError):
                folder = Path("/proc") / str(process)
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                if session in sessions:
                    name = "worker" if WORKER.encode() in (folder / "cmdline").read_bytes() else "node"
                    found[sessions[session]][name] = pss(process)
        return found


def pss(process: int) -> float:
    """Proportional set size in megabytes: memory that several processes share counts in parts."""
    lines = (Path("/proc") / str(process) / "smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class Relayed(LocalFleet):
    """A fleet whose devices reach the server through relays."""

    def start_device(self, device: int, key: Path | None = None, superlink: str | None = None) -> None:
        relays = self.__dict__.setdefault("relays", {})
        relays[device] = Relay(self.port, self.folder / "keys")
        super().start_device(device, key, f"127.0.0.1:{relays[device].port}")


class Profiled(LocalFleet):
    """A fleet whose SuperLink counts where its CPU time goes."""

    @property
    def samples(self) -> Path:
        """What the SuperLink's sampler writes."""
        return self.folder / "superlink-cpu.json"

    def start_superlink(self, wait: bool = True) -> None:
        """Start it with a sampler."""
        processes: Any = self.processes
        start, processes.start = processes.start, self._start
        self.__dict__["plain_start"] = start
        try:
            super().start_superlink(wait)
        finally:
            processes.start = start

    def _start(self, name: str, command: Sequence[str], *rest: Any, **more: str) -> Any:
        words = list(command)
        at = words.index("kfl_fleet._flower.control_auth")
        words[at : at + 1] = ["benchmarks.superlink_cpu", str(self.samples)]
        return self.__dict__["plain_start"](name, words, *rest, **more)


def measure(algorithm: Algorithm, devices: int, rounds: int, folder: Path) -> Cost:
    """Run a fleet and watch it."""
    fleet = Relayed(folder, ServerConfig(experiment_of(algorithm, devices, rounds), FleetSettings()))
    with fleet:
        relays: list[Relay] = list(fleet.__dict__["relays"].values())
        sampler = Sampler(fleet)
        sampler.start()
        counted = []
        for _ in fleet.rounds(patience_s=240, restart=False):
            done = len(fleet.history())  # several rounds may have been finished since the last look
            counted.append((done, [(dict(r.requests), dict(r.up), dict(r.down)) for r in relays]))
        sampler.stop.set()
        sampler.join()
        time.sleep(3.0)
        resting = sampler.look().values()
    for relay in relays:
        relay.close()
    facts, answers = facts_of(fleet), answers_of(fleet)
    (begin, first), (end, last) = counted[0], counted[-1]
    per = max(sum(len(fact["answers"]) for fact in facts[begin:end]), 1)  # an algorithm may not choose all devices
    kinds = {
        kind: tuple(
            sum(to[part].get(kind, 0) - since[part].get(kind, 0) for since, to in zip(first, last, strict=True)) / per
            for part in range(3)
        )
        for kind in sorted({kind for to in last for kind in to[0]})
    }
    return Cost(
        answers=[float(answer["seconds"]) for answer in answers],
        work=[float(answer["work_s"]) for answer in answers],
        idle={name: statistics.mean(sizes[name] for sizes in resting) for name in ("node", "worker")},
        peak=dict(sampler.peak),
        together=sampler.together,
        up=sum(up for _, up, _ in kinds.values()),
        down=sum(down for _, _, down in kinds.values()),
        kinds={kind: (counts[0], counts[1], counts[2]) for kind, counts in kinds.items() if counts[0] > 0},
        content=int(answers[-1]["bytes"]),
    )


def experiment_of(algorithm: Algorithm, devices: int, rounds: int) -> Experiment:
    """What is played."""
    return Experiment(
        devices=devices,
        distinct_classes=False,
        rounds=rounds,
        widths=(256,),
        algorithm=algorithm,
        scheduler=SCHEDULERS["all"](),
    )


def facts_of(fleet: LocalFleet) -> list[dict[str, Any]]:
    """Real times and sizes of each round."""
    return [json.loads(line) for line in (fleet.run_folder / "fleet.jsonl").read_text().splitlines()]


def answers_of(fleet: LocalFleet) -> list[dict[str, Any]]:
    """Those of each answer."""
    return [answer for fact in facts_of(fleet) for answer in fact["answers"].values() if "bytes" in answer]


def table(name: str, costs: dict[int, Cost]) -> list[str]:
    """Before and after, one column per number of devices."""
    before = BEFORE[name]
    rows: dict[str, tuple[str, list[str]]] = {}
    every = list(costs.values())

    def row(title: str, old: str, values: list[str]) -> None:
        rows[title] = (old, values)

    quarters = [statistics.quantiles(cost.answers, n=4) for cost in every]
    row("message to answer, s: median", before["answer"], [f"{q[1]:.2f}" for q in quarters])
    row("  first and third quartile", "", [f"{q[0]:.2f} to {q[2]:.2f}" for q in quarters])
    row("  of it training and testing", before["work"], [f"{statistics.median(cost.work):.2f}" for cost in every])
    row("memory of a device at rest, MB", before["idle"], [f"{sum(cost.idle.values()):.0f}" for cost in every])
    row("  node", "", [f"{cost.idle['node']:.0f}" for cost in every])
    row("  worker", "", [f"{cost.idle['worker']:.0f}" for cost in every])
    row("  most at one time", before["peak"], [f"{cost.together:.0f}" for cost in every])
    row("content of an upload, bytes", "3,129" if name == "kfl" else "2,202,772", [f"{c.content:,}" for c in every])
    row("on the wire per round, up, bytes", before["up"], [f"{cost.up:,.0f}" for cost in every])
    row("on the wire per round, down, bytes", before["down"], [f"{cost.down:,.0f}" for cost in every])
    kinds = sorted({kind for cost in every for kind in cost.kinds})
    for kind in kinds:
        told = [cost.kinds.get(kind, (0.0, 0.0, 0.0)) for cost in every]
        row(f"  {kind}", "", [f"{count:.1f} × {up / max(count, 1e-9):,.0f} up" for count, up, _ in told])
    head = f"{name:<36}{'2026-11-15':>14}" + "".join(f"{f'{devices} devices':>18}" for devices in costs)
    return [head, *(f"{t:<36}{o:>14}" + "".join(f"{v:>18}" for v in vs) for t, (o, vs) in rows.items()), ""]


def profile(rounds: int) -> list[str]:
    """CPU time per round of each program of a fleet of ten, and of the parts of its SuperLink."""
    with tempfile.TemporaryDirectory(prefix="kfl-cost-") as folder:
        fleet = Profiled(Path(folder) / "fleet", ServerConfig(experiment_of(Kfl(), TEN, rounds), FleetSettings()))
        with fleet:
            looks = []
            for _ in fleet.rounds(patience_s=240, restart=False):
                looks.append((len(fleet.history()), cpu_s(fleet), samples(fleet)))
        answers = answers_of(fleet)
    (begin, first, before), (end, last, after) = looks[0], looks[-1]
    rounds = max(end - begin, 1)
    median_s = statistics.median(float(answer["seconds"]) for answer in answers)
    lines = [f"{TEN} devices, kfl, no relay: message to answer {median_s:.2f} s", "", "CPU per round, ms"]
    lines += [f"  {name:<40}{1e3 * (last[name] - first.get(name, 0.0)) / rounds:>8.0f}" for name in sorted(last)]
    for title, kind in (("by part of the program", "parts"), ("by request", "requests")):
        spent = {name: value - before[kind].get(name, 0.0) for name, value in after[kind].items()}
        lines += ["", f"SuperLink {title}, ms per round"]
        for name, value in sorted(spent.items(), key=lambda pair: -pair[1]):
            lines.append(f"  {name:<40}{1e3 * value / rounds:>8.0f}")
    return lines


def samples(fleet: Profiled) -> dict[str, dict[str, float]]:
    """What the SuperLink's sampler has counted by now."""
    found: dict[str, dict[str, float]] = json.loads(fleet.samples.read_text())
    return found


def cpu_s(fleet: LocalFleet) -> dict[str, float]:
    """CPU seconds by program; of devices all together."""
    found: dict[str, float] = defaultdict(float)
    ticks = os.sysconf("SC_CLK_TCK")
    for process in marked(fleet.processes.mark):
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = Path("/proc") / str(process)
            words = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            name = next((name for mark, name in PROGRAMS.items() if mark in words), "other")
            found[name] += (int(fields[11]) + int(fields[12])) / ticks
    return dict(found)


def bare(rounds: int, size: int) -> list[str]:
    """Seconds from message to answer with Flower's own SuperNodes."""
    with tempfile.TemporaryDirectory(prefix="kfl-cost-") as folder:
        fleet = BareFleet(Path(folder) / "fleet", ServerConfig(experiment_of(Kfl(), TEN, 1), FleetSettings()))
        answers = fleet.measure(rounds, size)
    if len(answers) < 2:
        return [f"Flower's own app with {TEN} SuperNodes: no answers"]
    low, median, high = statistics.quantiles(answers, n=4)
    return [
        f"Flower's own app with {TEN} SuperNodes, {size:,} bytes there and back, nothing trained: message to answer "
        f"{median:.2f} s ({low:.2f} to {high:.2f}), {len(answers)} answers"
    ]


def most(rounds: int) -> list[str]:
    """Ever more devices, until an answer takes too long or memory runs out."""
    lines, devices = [], 5
    while True:
        with tempfile.TemporaryDirectory(prefix="kfl-cost-") as folder:
            cost = measure(Kfl(), devices, rounds, Path(folder) / "fleet")
        median = statistics.median(cost.answers)
        free = memory("MemAvailable") / memory("MemTotal")
        lines.append(
            f"{devices:>3} devices: message to answer {median:.2f} s, {sum(cost.idle.values()):.0f} MB each at rest"
        )
        print(lines[-1], flush=True)
        if median > SLOW_S:
            return [*lines, f"Time gives first: with {devices} devices an answer takes more than {SLOW_S:g} s."]
        if free - devices * sum(cost.idle.values()) / memory("MemTotal") < LEAST_FREE:
            return [*lines, f"Memory gives first: with {devices} devices less than {LEAST_FREE:.0%} of it is free."]
        devices += 5


def memory(name: str) -> float:
    """A line of /proc/meminfo, in megabytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--devices", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--algorithms", nargs="+", choices=("kfl", "fedavg"), default=["kfl", "fedavg"])
    parser.add_argument("--most", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    words = " --profile" * options.profile + " --bare" * options.bare
    text = [f"python -m benchmarks.fleet_cost{words}; {options.rounds} rounds; {machine()}", ""]
    if options.most:
        text += most(options.rounds)
        print(text[-1])
    elif options.profile or options.bare:
        text += profile(options.rounds) if options.profile else []
        text += bare(BARE_ROUNDS, BARE_BYTES) if options.bare else []
        print("\n".join(text[1:]))
    else:
        for algorithm in (Kfl(), FedAvg(learning_rate=0.05)):
            if algorithm.name not in options.algorithms:
                continue
            costs = {}
            for devices in options.devices:
                with tempfile.TemporaryDirectory(prefix="kfl-cost-") as folder:
                    costs[devices] = measure(algorithm, devices, options.rounds, Path(folder) / "fleet")
            text += table(algorithm.name, costs)
            print("\n".join(table(algorithm.name, costs)), flush=True)
    if options.out is not None:
        options.out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
