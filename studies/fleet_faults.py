"""Kill everything once: a fleet of real processes on 127.0.0.1, with TLS and authenticated devices.

    python -m studies.fleet_faults --out docs/results/fleet-faults.txt

Takes about seven minutes on two cores. Each step says what is done and what is seen, and raises where that is not
what a fleet has to do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.machine import machine
from kfl.algorithms import Kfl
from kfl.deploy import FleetSettings, ServerConfig
from kfl.deploy.certificates import make_device_key
from kfl.deploy.local_fleet import LocalFleet
from kfl.deploy.memory import Memory
from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment, RoundLog

DEADLINE_S = 30.0
ROUNDS = 20


class Script:
    """A fleet, its rounds as they come, and what is written about them."""

    def __init__(self, fleet: LocalFleet, out: Path | None) -> None:
        self.fleet, self.out = fleet, out
        self.lines: list[str] = []
        self.started = time.monotonic()
        self.logs: list[RoundLog] = []
        self._rounds: Iterator[RoundLog] = iter(())

    def begin(self) -> None:
        self._rounds = self.fleet.rounds(patience_s=240)

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.started:6.1f} s] {text}"
        print(line, flush=True)
        self.lines.append(line)
        if self.out is not None:
            self.out.write_text("\n".join(self.lines) + "\n")

    def next(self) -> RoundLog:
        log = next(self._rounds)
        assert log.round == len(self.logs), "the round number only ever advances, by one"
        self.logs.append(log)
        told = {int(f["device"]): str(f["fault"]) for f in log.faults}
        used = sorted(set(log.devices) - set(log.lost) - {int(r["device"]) for r in log.rejected})
        missing = ", ".join(f"device {device}: {told.get(device, 'lost')}" for device in log.lost)
        self.say(
            f"  round {log.round}: chosen {list(log.devices)}, used {used}{'; ' + missing if missing else ''}; "
            f"{log.time_s:.1f} s, accuracy {log.accuracy:.1%}"
        )
        return log

    def until(self, condition: Callable[[RoundLog], bool], what: str, most: int = 6) -> RoundLog:
        for _ in range(most):
            log = self.next()
            if condition(log):
                return log
        raise AssertionError(f"not within {most} rounds: {what}")

    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.fleet.run_folder / "fleet.json").read_text())
        return found

    def node(self, device: int) -> str:
        devices = self.facts()["devices"]
        assert isinstance(devices, dict)
        return str(devices[str(device)]["node"])

    def server(self) -> int:
        return int(json.loads((self.fleet.run_folder / "environment.json").read_text())["process"])

    def kept_round(self, device: int) -> int:
        kept = Memory(self.fleet.device_folder(device) / "state", str(self.facts()["run"]), device).load()
        assert kept is not None
        return kept.round

    def mid_round(self) -> None:
        """Messages of the next round are out, devices have not answered."""
        time.sleep(3.0)


def used(log: RoundLog) -> set[int]:
    return set(log.devices) - set(log.lost) - {int(r["device"]) for r in log.rejected}


def play(script: Script) -> None:
    fleet = script.fleet
    script.say("python -m studies.fleet_faults; " + machine())
    script.say("Four devices, TLS, authenticated, database, process isolation. Deadline 30 s, quorum 0.25.")
    script.until(lambda log: used(log) == {0, 1, 2, 3}, "all devices take part")

    script.say("kill -9 of device 1 and all its processes in mid-round.")
    node, done = script.node(1), script.kept_round(1)
    script.mid_round()
    fleet.processes.kill("device-1")
    log = script.next()
    assert 1 in log.lost and {0, 2, 3} <= used(log)

    script.say("It is started again with the same key, every 5 s until the server takes it.")
    script.until(lambda log: 1 in used(log), "device 1 is back", most=10)
    assert script.node(1) == node, "the same identity"
    assert script.kept_round(1) > done
    script.say(f"  Back as the same node, with its model from disk (it had done round {done}).")

    script.say("kill -9 of the SuperLink in mid-round; it is started again at once.")
    server = script.server()
    script.mid_round()
    fleet.processes.kill("superlink")
    script.next()
    script.until(lambda log: used(log) == {0, 1, 2, 3}, "all devices are back")
    assert script.server() == server
    assert fleet.runs == 1
    script.say("  The same server process went on; no new run was needed.")

    script.say("kill -9 of the server process in mid-round; a new Flower run is started when it is missed.")
    script.mid_round()
    os.kill(script.server(), signal.SIGKILL)
    script.next()
    assert script.server() != server
    script.until(lambda log: used(log) == {0, 1, 2, 3}, "all devices take part")
    script.say("  A new process went on with the next round.")

    script.say("The key of device 2 is revoked: flwr supernode unregister.")
    old = script.node(2)
    fleet.flwr("supernode", "unregister", old, "fleet")
    script.until(lambda log: 2 not in log.devices, "device 2 is shut out")
    fleet.processes.kill("device-2")
    log = script.next()
    assert 2 not in log.devices, "a revoked key does not come back"
    script.say("  Device 2 is chosen no more, and its old key is refused when it is started again.")

    script.say("Device 2 gets a new key: registered under the same name.")
    done = script.kept_round(2)
    pair = make_device_key(fleet.folder / "new-keys", 2)
    fleet.register([2], {2: pair})
    fleet.start_device(2, key=pair.private)
    script.until(lambda log: 2 in used(log), "device 2 is back under its new key")
    assert script.node(2) != old
    assert script.kept_round(2) > done
    script.say(f"  Device 2 is back as another node with its own model (it had done round {done}).")

    while len(script.logs) < ROUNDS:
        script.next()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    experiment = Experiment(
        devices=4, rounds=ROUNDS, widths=(128, 192, 256), algorithm=Kfl(), scheduler=SCHEDULERS["all"]()
    )
    config = ServerConfig(experiment, FleetSettings(deadline_s=DEADLINE_S, quorum=0.25))
    with tempfile.TemporaryDirectory(prefix="kfl-faults-") as folder:
        fleet = LocalFleet(Path(folder) / "fleet", config)
        script = Script(fleet, out)
        with fleet:
            script.begin()
            play(script)
        left = fleet.processes.members()
        assert not left, f"processes left: {left}"
        script.say(f"Ended after {len(script.logs)} rounds, 0 to {script.logs[-1].round}; no process is left.")


if __name__ == "__main__":
    main()
