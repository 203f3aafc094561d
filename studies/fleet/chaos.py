"""A fleet under chaos: processes killed and paused, networks cut, disks filled and clocks set wrong, from a seed.

    python -m studies.fleet.chaos --seed 0 --minutes 20 --devices 4 --out docs/results/fleet-chaos.txt

A fleet of real processes on 127.0.0.1, with TLS and authenticated devices, plays run after run while faults happen to
it at random, several at a time; among them one more member with a key, which sends object trees, floods, drips or
replays (`studies.fleet.member`). Every device has a relay of its own to the server, a disk of its own (a small tmpfs,
where this process may mount one) and a clock of its own (a preloaded library, where there is a C compiler). After every
round what is on the disk is checked against what must hold whatever happens (`studies.fleet.checks`). When the time is
up, faults end and the last run must come to its end.

Nothing outside the folder and 127.0.0.1 is touched; disks are mounted where no other process sees them. Ctrl-C ends
everything. The seed decides which faults happen and when, not what a process is doing at that moment.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from types import FrameType

from benchmarks.machine import machine
from kfl.algorithms import Kfl
from kfl.experiment import Experiment
from kfl.runner import run
from kfl.scheduling import SCHEDULERS
from kfl_fleet import FleetSettings, ServerConfig
from studies.fleet.checks import INVARIANTS, Checker
from studies.fleet.faults import WEIGHTS, Fault, draw
from studies.fleet.harness import ChaosFleet
from studies.fleet.machine import own_mounts

TICK_S = 0.1
CALM_ROUNDS = 25
"""Rounds without faults at the end of a run, in which every device must come back."""
EVERY_S = 10.0
"""Mean time between the beginnings of two faults."""
MOST_AT_ONCE = 4
STUCK_S = 300.0
"""A fleet without faults that does nothing for so long is stuck."""


@dataclass
class Tally:
    """What happened in all runs of a seed."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    overlapping: int = 0
    rounds: int = 0
    runs: int = 0
    lost: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    """Faults of processes that were not there, since another fault had hit them."""
    tried: Counter[str] = field(default_factory=Counter)
    """What the member with no data tried, and what became of it."""
    checked: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    without: set[str] = field(default_factory=set)

    def add(self, checker: Checker, fleet: ChaosFleet) -> None:
        self.rounds += len(checker.rounds)
        self.lost += sum(len(e["lost"]) + len(e["rejected"]) for e in checker.rounds)
        self.runs += 1
        self.restarts += fleet.restarts
        self.tried += fleet.tried
        self.missed += fleet.missed
        self.restarts["server app"] += fleet.runs - 1
        self.checked += checker.checked
        self.violations += checker.violations

    def report(self) -> list[str]:
        lines = [
            f"seed {self.seed}: {self.seconds / 60:.1f} minutes, {self.runs} runs, {self.rounds} rounds, "
            f"{self.faults.total()} faults ({self.overlapping} while another lasted), {self.lost} answers lost or "
            f"refused, {self.checked.total()} checks, violations: {len(self.violations)}",
            "  faults: " + ", ".join(f"{self.faults[kind]} {kind}" for kind in WEIGHTS if self.faults[kind]),
            "  of them hit nothing: " + (", ".join(f"{count} {kind}" for kind, count in self.missed.items()) or "none"),
            "  started again: " + ", ".join(f"{count} {name}" for name, count in sorted(self.restarts.items())),
            f"  the malicious member tried {self.tried.total()} things: "
            + ", ".join(f"{count} {name}" for name, count in sorted(self.tried.items())),
            "  checks: " + ", ".join(f"{self.checked[name]} {name}" for name in INVARIANTS),
            *(f"  VIOLATION of {name}: {sentence}" for name, sentence in self.violations),
        ]
        if self.without:
            lines.append(f"  not possible here: {', '.join(sorted(self.without))}")
        return lines


class Chaos:
    """Faults for one seed, over several runs."""

    def __init__(self, seed: int, seconds: float, devices: int, rounds: int, pause_s: float) -> None:
        self.random, self.tally = Random(f"chaos {seed}"), Tally(seed)
        self.began, self.seconds = time.monotonic(), seconds
        self.devices, self.rounds, self.pause_s = devices, rounds, pause_s
        self.next_s = 5.0
        self.active: list[Fault] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def config(self) -> ServerConfig:
        experiment = Experiment(
            devices=self.devices,
            rounds=self.rounds,
            seed=self.tally.seed,
            widths=(32,),
            algorithm=Kfl(local_steps=2),
            scheduler=SCHEDULERS["all"](),
            hard_budget=True,
        )
        settings = FleetSettings(
            deadline_s=8.0, profile_deadline_s=10.0, quorum=0.25, pause_s=self.pause_s, join_deadline_s=20.0,
            metrics_port=0,
        )  # fmt: skip
        return ServerConfig(experiment, settings)

    def play(self, folder: Path, budgets: dict[int, float]) -> None:
        """One run, from its first round to its last."""
        outside = folder / "outside"
        outside.mkdir(parents=True)
        extra = {
            device: {"book": str(outside / f"device-{device}.book"), "budget_j": budget_j}
            for device, budget_j in budgets.items()
        }
        fleet = ChaosFleet(
            folder / "fleet", self.config(), "local_fleet.witness:device", device_extra=extra, outside=outside
        )
        self.tally.without |= {
            n for n, ok in (("clocks", fleet.clocks.possible), ("disks", fleet.server_disk.possible)) if not ok
        }
        checker = Checker(fleet, budgets)
        try:
            started = time.monotonic()
            with fleet:
                self.began += time.monotonic() - started  # no chaos yet: this time does not count
                checker.secrets()
                self._rounds(fleet, checker)
            checker.no_process()
        finally:
            self.tally.add(checker, fleet)
            self.tally.seconds = self.now
            if checker.violations:
                shutil.copytree(folder, Path(f"{folder}-violated"), ignore=shutil.ignore_patterns("ballast"))
                print(f"    kept: {folder}-violated", flush=True)
            fleet.unmount()

    def _rounds(self, fleet: ChaosFleet, checker: Checker) -> None:
        calm_from = self.rounds - CALM_ROUNDS
        started = time.monotonic()
        while checker.look() < 2 and time.monotonic() < started + STUCK_S:
            fleet.supervise()
            time.sleep(TICK_S)
        self.began += time.monotonic() - started
        done, moved, quiet = 0, time.monotonic(), False
        while not fleet.finished:
            fleet.supervise()
            if quiet or self.now > self.seconds or done >= calm_from:
                if not quiet:
                    print(f"  {self.now:7.1f} s  calm from round {done} on", flush=True)
                    quiet, moved = True, time.monotonic()
                self._end(checker, all_=True)
            else:
                self._end(checker)
                self._begin(fleet)
            now_done = checker.look()
            if now_done != done:
                done, moved = now_done, time.monotonic()
                if done % 25 == 0:
                    checker.command()
                    print(f"  {self.now:7.1f} s  {done} rounds, {self.tally.faults.total()} faults", flush=True)
            if quiet and time.monotonic() - moved > STUCK_S:
                checker.expect("end", False, f"nothing has happened for {STUCK_S:g} s without a fault, round {done}")
                return
            time.sleep(TICK_S)
        self._end(checker, all_=True)
        checker.look()
        checker.finished(checker.rounds[-CALM_ROUNDS:])
        checker.secrets()

    def _begin(self, fleet: ChaosFleet) -> None:
        if self.now < self.next_s:
            return
        self.next_s = self.now + self.random.expovariate(1 / EVERY_S)
        fault = draw(self.random, fleet, self.now)
        if len(self.active) >= MOST_AT_ONCE or any(_clash(fault, other) for other in self.active):
            return
        self.tally.overlapping += bool(self.active)
        self.tally.faults[fault.kind] += 1
        fault.begin()
        self.active.append(fault)

    def _end(self, checker: Checker, all_: bool = False) -> None:
        for fault in list(self.active):
            if all_ or self.now >= fault.ends_s:
                self.active.remove(fault)
                fault.end()
                alone = fault.kind == "pause node" or fault.target.endswith(("refuse", "blackhole", "up-lost"))
                if alone and fault.target.startswith("device") and fault.lasts_s > 65 and not all_:
                    checker.absent(int(fault.target.split()[1].rstrip(",")), self.began + fault.begins_s)


def _clash(one: Fault, other: Fault) -> bool:
    """Whether two faults would end each other: the same kind at the same place."""
    return one.kind.split()[0] == other.kind.split()[0] and (
        "device" not in one.target or one.target.split(",")[0] == other.target.split(",")[0] or "all" in one.kind
        or "all" in other.kind
    )  # fmt: skip


def budgets_of(chaos: Chaos) -> dict[int, float]:
    """The first device can afford half of the rounds, the second four fifths; the others have no limit."""
    experiment = chaos.config().experiment
    history = run(Experiment(**{**vars(experiment), "rounds": 3, "hard_budget": False}))
    mean_j = [
        sum(log.compute_energy_j[d] + log.upload_energy_j[d] for log in history.rounds) / 3
        for d in range(chaos.devices)
    ]
    shares = {0: 0.5, 1: 0.8}
    return {d: mean_j[d] * chaos.rounds * shares[d] if d in shares else inf for d in range(chaos.devices)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=80, help="rounds of a run; as many runs as there is time for")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two rounds")
    parser.add_argument("--out", type=Path, help="file that the summary is added to")
    options = parser.parse_args()
    if options.devices < 3 or options.rounds <= 2 * CALM_ROUNDS:
        parser.error(f"at least 3 devices and {2 * CALM_ROUNDS + 1} rounds are needed")
    signal.signal(signal.SIGTERM, _interrupt)
    own_mounts()
    chaos = Chaos(options.seed, 60 * options.minutes, options.devices, options.rounds, options.pause)
    folder = Path(tempfile.mkdtemp(prefix=f"kfl-chaos-{options.seed}-"))
    command = f"python -m studies.fleet.chaos --seed {options.seed} --minutes {options.minutes:g}"
    head = f"{command} --devices {options.devices}; {machine()}"
    print(head, flush=True)
    failed = False
    try:
        budgets = budgets_of(chaos)
        chaos.began = time.monotonic()
        while chaos.now < chaos.seconds:
            print(f"  {chaos.now:7.1f} s  run {chaos.tally.runs} begins", flush=True)
            chaos.play(folder / f"run-{chaos.tally.runs}", budgets)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        failed = True
    lines = [head, *chaos.tally.report()]
    print("\n".join(lines[1:]), flush=True)
    if options.out is not None:
        with options.out.open("a") as file:
            file.write("\n".join(lines) + "\n\n")
    failed = failed or bool(chaos.tally.violations)
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
