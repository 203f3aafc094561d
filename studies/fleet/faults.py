"""Faults of a fleet, drawn from a seed: each begins, lasts a while, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from studies.fleet.harness import ChaosFleet
from studies.fleet.member import HARM
from studies.fleet.network import MODES, Relay

Act = Callable[[], None]

WEIGHTS = {
    "kill node": 3,
    "kill worker": 3,
    "kill server app": 2,
    "kill SuperLink": 1,
    "kill SuperExec": 1,
    "power cut of a device": 2,
    "pause node": 2,
    "pause worker": 2,
    "pause server app": 1,
    "pause SuperLink": 1,
    "connections cut": 2,
    "partition of a device": 5,
    "partition of all devices": 1,
    "partition of the server app": 1,
    "disk of a device full": 3,
    "disk of the server full": 1,
    "clock of a device": 4,
    "clock of the server": 1,
    "member: object trees": 2,
    "member: floods": 2,
    "member: slow bytes": 2,
    "member: replays": 2,
}
LEAST_HARM_S = 8.0
"""Below that a member has hardly come online."""
LONG = 0.08
"""Share of faults that outlast the minute after which Flower calls a device gone."""


@dataclass
class Fault:
    """One fault; times are seconds since the chaos began."""

    kind: str
    target: str
    begins_s: float
    lasts_s: float
    begin: Act
    end: Act

    @property
    def ends_s(self) -> float:
        return self.begins_s + self.lasts_s

    def __str__(self) -> str:
        return f"{self.kind} ({self.target}) for {self.lasts_s:.1f} s"


def draw(random: Random, fleet: ChaosFleet, now_s: float) -> Fault:
    """The next fault. The same seed draws the same faults; when each hits a round depends on the machine."""
    kind = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    device = random.randrange(fleet.config.experiment.devices)
    lasts_s = random.uniform(65, 95) if random.random() < LONG else random.uniform(0.3, 18)
    mode, delay_s, pages = random.choice(MODES), random.uniform(0.2, 4), random.choice((0, 0, 0, 1, 2, 4))
    ahead_s = random.choice((-1, 1)) * 10 ** random.uniform(0.5, 5)
    target = f"device {device}"
    begin: Act = _nothing
    end: Act = _nothing
    if kind.startswith(("kill", "pause", "power")):
        begin, end, target = _of_process(kind, fleet, device)
    elif kind in HARM:
        lasts_s = max(lasts_s, LEAST_HARM_S)
        begin, end, target = partial(fleet.begin_mischief, kind), fleet.end_mischief, "another member"
    elif kind == "connections cut":
        begin = fleet.relays[device].cut
    elif kind.startswith("partition"):
        relays = {"a device": [fleet.relays[device]], "all devices": fleet.relays}
        chosen = relays.get(kind.removeprefix("partition of "), [fleet.server_relay])
        target = f"{target}, {mode}" if kind.endswith("a device") else mode
        begin, end = partial(_become, chosen, mode, delay_s), partial(_become, chosen, "pass", 0.0)
    elif kind.startswith("disk"):
        disk = fleet.server_disk if "server" in kind else fleet.disks[device]
        target = f"{'server' if 'server' in kind else target}, {4 * pages} kB left"
        begin, end = partial(disk.fill, pages), disk.free
    else:
        machine = "server" if "server" in kind else f"device-{device}"
        ahead_s = max(min(ahead_s, 90.0), -90.0) if machine == "server" else max(ahead_s, -3000.0)
        target = f"{machine}, {ahead_s:+.0f} s"
        begin, end = partial(fleet.clocks.set, machine, ahead_s), partial(fleet.clocks.set, machine, 0.0)
    return Fault(kind, target, now_s, lasts_s, begin, end)


def _become(relays: Sequence[Relay], mode: str, delay_s: float) -> None:
    for relay in relays:
        relay.become(mode, delay_s)


def _nothing() -> None:
    """A fault that is over at once."""


def _of_process(kind: str, fleet: ChaosFleet, device: int) -> tuple[Act, Act, str]:
    """Kill or pause one process, found when the fault begins."""
    what, _, who = kind.partition(" ")
    if what == "power":
        return lambda: fleet.processes.kill(f"device-{device}"), _nothing, f"device {device}"
    find: dict[str, Callable[[], int | None]] = {
        "node": lambda: fleet.node(device),
        "worker": lambda: fleet.worker(device),
        "server app": fleet.server,
        "SuperLink": fleet.superlink,
        "SuperExec": lambda: fleet.processes.program("superexec").pid,
    }
    held: list[int] = []

    def send(number: signal.Signals) -> None:
        found = find[who]() if not held else held[0]
        if found is not None:
            held[:] = [found]
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, number)
        elif number is not signal.SIGCONT:
            fleet.missed[kind] += 1

    target = f"device {device}" if who in ("node", "worker") else "server"
    if what == "kill":
        return lambda: send(signal.SIGKILL), _nothing, target
    return lambda: send(signal.SIGSTOP), lambda: send(signal.SIGCONT), target
