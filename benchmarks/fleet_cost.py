"""What a device costs: memory and time of its processes, bytes on the wire, and where a round's time goes.

    python -m benchmarks.fleet_cost --out docs/results/fleet-cost.txt

Two devices and a server as real processes on 127.0.0.1, with TLS. Each device reaches the server through a small relay
that counts bytes, so what is counted is TCP payload: TLS, HTTP, Flower's envelopes, polls and heartbeats included.
Takes about three minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from benchmarks.machine import machine
from kfl.algorithms import Algorithm, FedAvg, Kfl
from kfl.deploy import FleetSettings, ServerConfig
from kfl.deploy.local_fleet import LocalFleet
from kfl.deploy.processes import free_ports, marked
from kfl.scheduling import SCHEDULERS
from kfl.simulation import Experiment

ROUNDS = 4
DEVICES = 2


class Relay:
    """Passes connections on to another port of 127.0.0.1 and counts the bytes each way."""

    def __init__(self, target: int) -> None:
        self.target, (self.port,) = target, free_ports(1)
        self.up = self.down = 0
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            for source, sink, up in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(source, sink, up), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()


class Sampler(threading.Thread):
    """Watches the processes of device 0: the largest memory of each kind, and how long client apps live."""

    def __init__(self, fleet: LocalFleet) -> None:
        super().__init__(daemon=True)
        self.fleet, self.stop = fleet, threading.Event()
        self.peak: dict[str, float] = defaultdict(float)
        self.together = 0.0
        self.then: dict[str, int] = {}
        self.cpu: dict[int, float] = {}
        self.life: dict[int, tuple[float, float]] = {}

    def run(self) -> None:
        while not self.stop.wait(0.25):
            sizes: dict[str, list[float]] = defaultdict(list)
            session = self.fleet.processes.program("device-0").pid
            for process in marked(self.fleet.processes.mark):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    self._look(process, session, sizes)
            total = sum(sum(values) for values in sizes.values())
            if total > self.together:
                self.together = total
                self.then = {name: len(values) for name, values in sorted(sizes.items())}

    def _look(self, process: int, session: int, sizes: dict[str, list[float]]) -> None:
        folder = Path("/proc") / str(process)
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if int(fields[3]) != session:
            return
        words = (folder / "cmdline").read_bytes().decode().split("\0")
        name = next((Path(word).name for word in words[:3] if "fl" in Path(word).name), "other")
        own = {
            line.split(":")[0]: float(line.split()[1]) / 1024
            for line in (folder / "smaps_rollup").read_text().splitlines()[1:]
            if line.startswith("Pss:")
        }
        sizes[name].append(own.get("Pss", 0.0))
        self.peak[name] = max(self.peak[name], own.get("Pss", 0.0))
        if name == "flwr-clientapp":
            now = time.monotonic()
            self.life[process] = (self.life.get(process, (now, now))[0], now)
            self.cpu[process] = (int(fields[11]) + int(fields[12])) / 100


def measure(algorithm: Algorithm, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Run a small fleet; lines for a table, and bytes up and down of device 0 per round."""
    experiment = Experiment(
        devices=DEVICES, rounds=ROUNDS, widths=(256,), algorithm=algorithm, scheduler=SCHEDULERS["all"]()
    )
    relays: dict[int, Relay] = {}

    class Relayed(LocalFleet):
        def start_device(self, device: int, key: Path | None = None, superlink: str | None = None) -> None:
            relays[device] = Relay(self.port)
            super().start_device(device, key, f"127.0.0.1:{relays[device].port}")

    fleet = Relayed(folder, ServerConfig(experiment, FleetSettings()))
    counted = []
    with fleet:
        sampler = Sampler(fleet)
        sampler.start()
        for _ in fleet.rounds(patience_s=240, restart=False):
            counted.append((relays[0].up, relays[0].down))
        sampler.stop.set()
        sampler.join()
    for relay in relays.values():
        relay.close()
    facts = [json.loads(line) for line in (fleet.run_folder / "fleet.jsonl").read_text().splitlines()]
    rounds = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counted)]
    up, down = (sum(values) / len(values) for values in zip(*rounds, strict=True))
    answers = [fact["answers"]["0"] for fact in facts]
    lives = [last - first for first, last in sampler.life.values()]
    own = mean([fact["decide_s"] + fact["judge_s"] + fact["keep_s"] for fact in facts])
    sizes = ", ".join(f"{name} {size:.0f} MB" for name, size in sorted(sampler.peak.items()))
    then = ", ".join(f"{count} {name}" for name, count in sampler.then.items())
    profile = json.loads((fleet.run_folder / "fleet.json").read_text())["devices"]["0"]["profile"]
    lines = [
        f"{algorithm.name}: {DEVICES} devices, {ROUNDS} rounds; device 0 has {profile['parameters']:,} parameters and "
        f"{profile['samples']:,} samples",
        f"  content of one upload                    {answers[-1]['bytes']:>12,} bytes",
        f"  on the wire per device and round, up     {up:>12,.0f} bytes (all its traffic, polls included)",
        f"  on the wire per device and round, down   {down:>12,.0f} bytes",
        f"  a round                                  {mean([fact['wait_s'] for fact in facts]) + own:>12.1f} s",
        f"    the server's own work                  {own:>12.3f} s",
        f"    from message to answer, device 0       {mean([a['seconds'] for a in answers]):>12.1f} s",
        f"      life of the process that does it     {mean(lives):>12.1f} s",
        f"      its processor time                   {mean(list(sampler.cpu.values())):>12.1f} s",
        f"      training and testing                 {mean([a['work_s'] for a in answers]):>12.2f} s",
        f"  memory of device 0 (proportional set size), most at one time {sampler.together:.0f} MB: {then}",
        f"    largest by program: {sizes}",
    ]
    return lines, {"up": up, "down": down}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    text = ["python -m benchmarks.fleet_cost; " + machine(), ""]
    found = {}
    for algorithm in (Kfl(), replace(FedAvg(), learning_rate=0.05)):
        with tempfile.TemporaryDirectory(prefix="kfl-cost-") as folder:
            lines, found[algorithm.name] = measure(algorithm, Path(folder) / "fleet")
        print("\n".join(lines), flush=True)
        text += [*lines, ""]
    knowledge, weights = 640 * 4, 550_346 * 4
    text += [
        f"Numbers alone: knowledge 640 × 4 = {knowledge:,} bytes, weights 550,346 × 4 = {weights:,} bytes, "
        f"{weights / knowledge:.0f} times as much.",
        f"On the wire, up: {found['fedavg']['up'] / found['kfl']['up']:.0f} times as much; "
        f"down: {found['fedavg']['down'] / found['kfl']['down']:.0f} times as much.",
    ]
    print("\n".join(text[-2:]))
    if out is not None:
        out.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
