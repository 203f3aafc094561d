"""How a fleet is doing, read from the server's run folder: while it runs, between two runs, and after the last round.

Nothing here talks to the server or to Flower, so it works on a copy of the folder too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from kfl.algorithms import Rejection
from kfl.core.errors import RunFolderError
from kfl.core.parse import read_json, read_json_lines
from kfl.experiment.experiment import Experiment
from kfl.runfolder import LOCK, History, RoundLog, load_run
from kfl.wireless import Cell

SILENT = ("late", "gone", "error", "garbled", "unsent", "outage")
"""Faults by which a round loses a device's answer; the others, such as energy, only note something."""


@dataclass(frozen=True)
class DeviceStatus:
    """One device, as far as the server knows it."""

    device: int
    seen: bool
    """Whether it ever introduced itself."""
    samples: int | None
    model: str | None
    meter: str | None
    chosen: int
    """Rounds it was asked to take part in."""
    used: int
    """Answers that were used."""
    late: int
    lost: int
    """Other answers that did not come: gone, error, garbled, unsent, outage."""
    rejected: int
    diverged: int
    energy_j: float
    budget_j: float
    """For the whole run: its own, or what the cell gives it; infinite without a cell."""
    accuracy: float | None
    """Right predictions on its own test samples, as it last reported."""
    last_round: int | None
    """Last round with an answer that was used, counted from 1."""
    answer_s: float | None
    """Seconds its last answer took."""


@dataclass(frozen=True)
class FleetStatus:
    """A fleet's run so far."""

    folder: str
    state: str
    """running, finished, or stopped (nobody holds the run folder and rounds are left)."""
    algorithm: str
    scheduler: str
    rounds_done: int
    rounds: int
    devices_seen: int
    devices_expected: int
    accuracy: float | None
    """Right predictions over all test samples of all devices that joined, as they last reported."""
    energy_j: float
    bits_up: float
    bits_down: float
    round_s: float | None
    """Mean real time of the last ten rounds."""
    late: int
    lost: int
    rejected: int
    metrics_port: int | None
    devices: tuple[DeviceStatus, ...]
    refused: Mapping[str, str]
    """Flower's nodes that could not join, with the reason."""
    problems: tuple[str, ...]
    """The last ten things that went wrong, newest first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def read_status(folder: Path) -> FleetStatus:
    """The status of the fleet whose server writes into `folder`.

    RunFolderError if there is no such folder, or it belongs to a simulation.
    """
    if not (folder / "config.toml").exists():
        raise RunFolderError(f"{folder} holds no run of a fleet, or its server has not begun yet.")
    table = _read(folder / "fleet.json")
    if not table:
        raise RunFolderError(f"{folder} has no fleet.json: it is the run folder of a simulation, not of a fleet.")
    experiment, history = load_run(folder)
    facts = read_json_lines(folder / "fleet.jsonl")
    members: dict[str, Any] = table.get("devices", {})
    final = {int(record["device"]): record for record in history.devices}
    budgets = _budgets(experiment)
    devices = tuple(
        _device(device, members.get(str(device), {}), history, facts, final.get(device), budgets[device])
        for device in range(experiment.devices)
    )
    last = history.rounds[-10:]
    port = table.get("metrics_port")
    state = "finished" if history.summary else ("running" if is_held(folder) else "stopped")
    return FleetStatus(
        folder=str(folder),
        state=state,
        algorithm=experiment.algorithm.name,
        scheduler=experiment.scheduler.name,
        rounds_done=len(history.rounds),
        rounds=experiment.rounds,
        devices_seen=len(members),
        devices_expected=experiment.devices,
        accuracy=next((entry.accuracy for entry in reversed(history.rounds) if entry.accuracy is not None), None),
        energy_j=sum(entry.energy_j for entry in history.rounds),
        bits_up=sum(entry.bits_up for entry in history.rounds),
        bits_down=sum(entry.bits_down for entry in history.rounds),
        round_s=sum(entry.time_s for entry in last) / len(last) if last else None,
        late=sum(one.late for one in devices),
        lost=sum(one.lost for one in devices),
        rejected=sum(one.rejected for one in devices),
        metrics_port=port if isinstance(port, int) and state == "running" else None,
        devices=devices,
        refused={str(node): str(reason) for node, reason in table.get("refused", {}).items()},
        problems=tuple(_problems(history.rounds))[:10],
    )


def _device(
    device: int,
    member: Mapping[str, Any],
    history: History,
    facts: list[dict[str, Any]],
    final: Mapping[str, Any] | None,
    allowed_j: float,
) -> DeviceStatus:
    profile: Mapping[str, Any] = member.get("profile", {})
    asked = [entry for entry in history.rounds if device in entry.devices]
    silent = [fault for entry in asked for fault in entry.faults if _mine(fault, device) and fault["fault"] in SILENT]
    late = sum(fault["fault"] == "late" for fault in silent)
    used = [entry for entry in asked if _used(entry, device)]
    answers = [answer for fact in facts if "bytes" in (answer := fact.get("answers", {}).get(str(device), {}))]
    own = profile.get("budget_j")
    return DeviceStatus(
        device=device,
        seen=bool(profile),
        samples=profile.get("samples"),
        model=profile.get("model"),
        meter=profile.get("meter"),
        chosen=len(asked),
        used=len(used),
        late=late,
        lost=len(silent) - late,
        rejected=sum(_mine(one, device) for entry in asked for one in entry.rejected),
        diverged=sum(device in entry.diverged for entry in asked),
        energy_j=sum(_energy(entry, device) for entry in asked),
        budget_j=allowed_j if own is None else float(own),
        accuracy=_accuracy(device, profile, facts, final),
        last_round=used[-1].round + 1 if used else None,
        answer_s=float(answers[-1]["seconds"]) if answers else None,
    )


def _budgets(experiment: Experiment) -> list[float]:
    """What the cell lets each device spend in the whole run."""
    radio = experiment.cell_config
    if radio is None:
        return [inf] * experiment.devices
    cell = Cell.build(radio, experiment.devices, experiment.seed)
    return [float(joules) for joules in cell.budget_j(experiment.rounds)]


def _used(entry: RoundLog, device: int) -> bool:
    refused = any(_mine(one, device) for one in entry.rejected)
    return not refused and device not in entry.lost and device not in entry.diverged


def _energy(entry: RoundLog, device: int) -> float:
    place = entry.devices.index(device)
    return entry.compute_energy_j[place] + entry.upload_energy_j[place]


def _accuracy(
    device: int, profile: Mapping[str, Any], facts: list[dict[str, Any]], final: Mapping[str, Any] | None
) -> float | None:
    """The end's account, or the last answer, or what the device said when it joined."""
    if final is not None:
        found = final.get("accuracy")
        return None if found is None else float(found)
    tests = profile.get("test_samples")
    if not tests:
        return None
    said = [fact["correct"][str(device)] for fact in facts if str(device) in fact.get("correct", {})]
    return float((said or [profile.get("correct", 0)])[-1]) / float(tests)


def _problems(rounds: tuple[RoundLog, ...]) -> list[str]:
    """What went wrong, newest first, a sentence each."""
    found = []
    for entry in reversed(rounds):
        where = f"Round {entry.round + 1}"
        for one in entry.faults:
            reason = f": {one['reason']}" if one.get("reason") else ""
            found.append(f"{where}, device {one.get('device')}, {one.get('fault')}{reason}")
        found += [
            f"{where}, device {one.get('device')}, rejected: {Rejection.from_dict(one).describe()}"
            for one in entry.rejected
        ]
        found += [f"{where}, device {device}, its training ran off to infinity" for device in entry.diverged]
    return [f"{sentence.rstrip('.')}." for sentence in found]


def _mine(entry: Mapping[str, Any], device: int) -> bool:
    return entry.get("device") == device


def is_held(folder: Path) -> bool:
    """Whether a server writes into a run folder now. Only reads, so anybody who may read the folder may ask.

    The server holds its lock alone; while somebody else does, it cannot be shared.
    """
    try:
        import fcntl

        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def find_run(folder: Path) -> Path:
    """The run folder that a person means: the folder itself, a project's, or that of `kfl deploy up` in it."""
    tried = (folder, folder / "run", folder / "local" / "run")
    return next((path for path in tried if (path / "fleet.json").exists()), folder)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise RunFolderError(f"{path} cannot be read ({problem}).") from problem
    return found if isinstance(found, dict) else {}
