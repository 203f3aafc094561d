"""What must hold whatever happens to a fleet, looked for in what is on the disk and what the fleet says of itself.

Nothing of kfl reads the records here, except where its own reading is what is checked.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kfl.core.errors import KflError
from kfl_fleet.server.status import read_status
from studies.fleet.harness import ChaosFleet

CLOSE = 1e-9
INVARIANTS = {
    "history": "rounds are 0, 1, 2 …; what was written once is never changed",
    "record": "every number of a round is finite and possible, accuracy within 0 and 1",
    "budget": "no device spends more than its budget, by the server's record and by its own book",
    "joules": "every joule in a device's book is in the server's record",
    "upload": "an upload is used at most once, and is the one the device made for that round",
    "knowledge": "the server's checkpoint is finite and agrees with the history",
    "status": "kfl deploy status and the metrics say what the folder says",
    "absent": "a device that has been unreachable for over a minute is asked no more",
    "secrets": "private keys are readable by their owner only",
    "end": "the run ends with its last round, all devices come back, all processes stopped",
}


class Checker:
    """Looks at one run of a fleet."""

    def __init__(self, fleet: ChaosFleet, budgets: dict[int, float]) -> None:
        self.fleet, self.folder, self.budgets = fleet, fleet.run_folder, budgets
        self.checked: Counter[str] = Counter()
        """Checks so far. What a round used and spent is checked again after every later round."""
        self.violations: list[tuple[str, str]] = []
        self.rounds: list[dict[str, Any]] = []
        self.seen_s: list[float] = []
        """When each round was first seen, on this process's own clock."""
        self._written = b""
        self._uploads: dict[int, dict[str, int]] = defaultdict(dict)
        self._reported: set[str] = set()

    def expect(self, invariant: str, holds: bool, sentence: str) -> None:
        """Count a check; note a violation once."""
        self.checked[invariant] += 1
        if not holds and sentence not in self._reported:
            self._reported.add(sentence)
            self.violations.append((invariant, sentence))
            print(f"    VIOLATION of {invariant}: {sentence}", flush=True)

    def look(self) -> int:
        """Check the history; and where it has grown, everything. How many rounds there are."""
        found = _read(self.folder / "rounds.jsonl")
        whole = found[: found.rfind(b"\n") + 1]
        if whole == self._written:
            return len(self.rounds)
        grown = whole.startswith(self._written)
        before, now = len(self.rounds), whole.count(b"\n")
        self.expect("history", grown, f"the history of {before} rounds was rewritten, {now} rounds are left of it")
        if not grown:  # go on with what is there now
            self.rounds, self.seen_s = [], []
            self._uploads.clear()
        self._written = whole
        for number, line in enumerate(whole.splitlines()):
            if number >= len(self.rounds):
                self._round(number, line)
        books = {device: self.book(device) for device in self.budgets}
        self._joules(books)
        self._used(books)
        self._checkpoint()
        self._status()
        self._metrics()
        return len(self.rounds)

    def book(self, device: int) -> list[dict[str, Any]]:
        """What a device wrote down of its own work."""
        return _lines(_read(self.fleet.outside / f"device-{device}.book"))

    def _round(self, number: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = {}
        self.expect("history", entry.get("round") == number, f"line {number + 1} is not about round {number}")
        self.rounds.append(entry)
        self.seen_s.append(time.monotonic())
        devices, accuracy = entry.get("devices", []), entry.get("accuracy")
        lists = [entry.get(name, []) for name in ("share", "power_w", "compute_energy_j", "upload_energy_j")]
        fine = all(len(values) == len(devices) for values in lists) and len(set(devices)) == len(devices)
        fine = fine and all(_number(value) and value >= 0 for values in lists for value in values)
        fine = fine and sum(lists[0]) <= 1 + CLOSE and set(entry.get("lost", ())) <= set(devices)
        self.expect("record", fine, f"round {number}: its devices or their numbers are impossible")
        fine = accuracy is None or (_number(accuracy) and 0 <= accuracy <= 1)
        self.expect("record", fine, f"round {number}: accuracy {accuracy}")

    def _joules(self, books: dict[int, list[dict[str, Any]]]) -> None:
        recorded: dict[int, dict[int, float]] = {device: {} for device in self.budgets}
        for entry in self.rounds:
            parts = zip(entry["devices"], entry["compute_energy_j"], entry["upload_energy_j"], strict=False)
            for device, compute_j, upload_j in parts:
                recorded[device][entry["round"]] = compute_j + upload_j
        for device, budget_j in self.budgets.items():
            limit_j = budget_j * (1 + CLOSE)
            spent_j = sum(recorded[device].values())
            self.expect("budget", spent_j <= limit_j, f"device {device}: {spent_j:g} J recorded of {budget_j:g} J")
            own: dict[int, float] = defaultdict(float)
            for entry in books[device]:
                if entry["what"] == "trained":
                    own[entry["round"]] += entry["compute_j"] + entry["upload_j"]
            own_j = sum(own.values())
            self.expect("budget", own_j <= limit_j, f"device {device}: {own_j:g} J in its book of {budget_j:g} J")
            for number, joules in own.items():
                if number < len(self.rounds):
                    in_record = recorded[device].get(number, 0.0)
                    why = f"device {device} spent {joules:g} J in round {number}, the record says {in_record:g} J"
                    self.expect("joules", joules <= in_record * (1 + CLOSE) + 1e-15, why)

    def _used(self, books: dict[int, list[dict[str, Any]]]) -> None:
        facts = {fact.get("round"): fact for fact in _lines(_read(self.folder / "fleet.jsonl"))}
        answered = {d: {(e["round"], e["upload"]) for e in book} for d, book in books.items()}
        for number, entry in enumerate(self.rounds[:-1]):  # the facts of the last may be on their way
            lost = {*entry.get("missed", ()), *entry["lost"], *entry["diverged"]}
            lost |= {one["device"] for one in entry["rejected"]}
            fact = facts.get(number)
            if fact is None:
                continue
            for device in set(entry["devices"]) - lost:
                digest = fact["answers"].get(str(device), {}).get("upload")
                fine = digest is not None and (number, digest) in answered[device]
                self.expect("upload", fine, f"round {number} used an upload {digest} that device {device} did not make")
                first = self._uploads[device].setdefault(str(digest), number)
                why = f"the upload of device {device} in round {number} was used in round {first} already"
                self.expect("upload", first == number, why)

    def _checkpoint(self) -> None:
        """The newest checkpoint that can be read; one may be swept away while it is read."""
        for path in sorted((self.folder / "state").glob("rest-*.npz"), reverse=True):
            number = int(path.stem.removeprefix("rest-"))
            try:
                with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                    found = {name: arrays[name] for name in arrays.files}
            except (OSError, ValueError, KeyError, EOFError):
                continue
            server = [value for name, value in found.items() if name.startswith("server.")]
            fine = bool(server) and all(np.isfinite(v).all() for v in server if v.dtype.kind == "f")
            self.expect("knowledge", fine, f"the server's state of round {number} is not finite")
            if number <= len(self.rounds):
                spent = np.zeros(len(self.budgets))
                for entry in self.rounds[:number]:
                    spent[entry["devices"]] += np.add(entry["compute_energy_j"], entry["upload_energy_j"])
                held = found["compute_energy_j"] + found["upload_energy_j"]
                fine = np.allclose(spent, held, rtol=1e-6, atol=1e-15)
                self.expect("knowledge", fine, f"the checkpoint of round {number} and the history differ in joules")
            return

    def _status(self) -> None:
        before = len(self.rounds)
        try:
            status = read_status(self.folder)
        except KflError as problem:
            self.expect("status", False, f"it cannot be read: {problem}")
            return
        after = _read(self.folder / "rounds.jsonl").count(b"\n")
        fine = before <= status.rounds_done <= max(after, before)
        self.expect("status", fine, f"it says {status.rounds_done} rounds are done, the folder {before} to {after}")
        self.expect("status", status.state in ("running", "stopped", "finished"), f"state {status.state}")
        if after != before:
            return
        for one in status.devices:
            asked = [entry for entry in self.rounds if one.device in entry["devices"]]
            spent_j = sum(_of(entry, one.device) for entry in asked)
            fine = one.chosen == len(asked) and math.isclose(one.energy_j, spent_j, rel_tol=1e-6, abs_tol=1e-15)
            self.expect("status", fine, f"device {one.device}: chosen {one.chosen}, {one.energy_j:g} J in the status")

    def command(self) -> None:
        """The command that a person would use."""
        words = [sys.executable, "-m", "kfl.cli.main", "deploy", "status", str(self.folder), "--json"]
        before = _read(self.folder / "rounds.jsonl").count(b"\n")
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        after = _read(self.folder / "rounds.jsonl").count(b"\n")
        said = json.loads(done.stdout)["rounds_done"] if done.returncode == 0 else -1
        self.expect(
            "status", before <= said <= after, f"the command says {said} rounds, the folder {before} to {after}"
        )

    def _metrics(self) -> None:
        """What Prometheus would read, unless the server is away."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            port = json.loads(_read(self.folder / "fleet.json"))["metrics_port"]
            before = len(self.rounds)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1) as answer:
                text = answer.read().decode()
            after = _read(self.folder / "rounds.jsonl").count(b"\n")
            done = float(re.findall(r"^kfl_rounds_done (\S+)$", text, re.M)[0])
            fine = before - 1 <= done <= after  # a round is on the disk before it is counted
            self.expect("status", fine, f"the metrics say {done:g} rounds are done, the folder {before} to {after}")
            for device, spent in re.findall(r'^kfl_device_energy_joules_total\{device="(\d+)"\} (\S+)$', text, re.M):
                record = sum(_of(entry, int(device)) for entry in self.rounds[: int(done)])
                fine = after != before or math.isclose(float(spent), record, rel_tol=1e-6, abs_tol=1e-12)
                self.expect("status", fine, f"metrics: device {device} spent {spent} J, the record says {record:g} J")

    def absent(self, device: int, since_s: float) -> None:
        """A device was unreachable from then on: no round that began over a minute later may ask it."""
        for earlier, entry in zip(self.seen_s, self.rounds[1:], strict=False):
            if earlier > since_s + 65:
                why = f"device {device} is unreachable for over a minute and is asked in round {entry['round']}"
                self.expect("absent", device not in entry["devices"], why)

    def secrets(self) -> None:
        """Private keys after `prepare`, and as long as there are any."""
        keys = self.fleet.folder / "keys"
        for path in [*keys.glob("*.key"), *keys.glob("*.secret"), *(p for p in keys.glob("device-*") if not p.suffix)]:
            self.expect("secrets", path.stat().st_mode & 0o077 == 0, f"{path.name} can be read by others")

    def finished(self, last: Iterable[dict[str, Any]]) -> None:
        """After the last round; `last` are the rounds of the calm at the end."""
        rounds = self.fleet.config.experiment.rounds
        whole = len(self.rounds) == rounds
        self.expect("end", whole, f"the run is finished with {len(self.rounds)} rounds of {rounds}")
        summary = json.loads(_read(self.folder / "summary.json") or b"{}")
        self.expect("end", summary.get("rounds") == rounds, f"the summary says {summary.get('rounds')} rounds")
        with np.load(self.folder / "server.npz", allow_pickle=False) as arrays:
            fine = all(np.isfinite(arrays[name]).all() for name in arrays.files)
        self.expect("knowledge", fine, "the server's last state is not finite")
        came = {device for entry in last for device in set(entry["devices"]) - set(entry["lost"])}
        for device, budget_j in self.budgets.items():
            if budget_j == math.inf:
                self.expect("end", device in came, f"device {device} did not come back in the calm at the end")

    def no_process(self) -> None:
        """After the end of the fleet."""
        left = self.fleet.processes.members()
        self.expect("end", not left, f"processes are left: {left}")


def _of(entry: dict[str, Any], device: int) -> float:
    if device not in entry["devices"]:
        return 0.0
    index = entry["devices"].index(device)
    return float(entry["compute_energy_j"][index] + entry["upload_energy_j"][index])


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _lines(data: bytes) -> list[dict[str, Any]]:
    found = []
    for line in data.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
