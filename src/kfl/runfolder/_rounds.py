"""The rounds of a run as arrays: one entry per round, and one entry per device and round it took part in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.algorithms import Rejection
from kfl.core.errors import RunFolderError
from kfl.core.parse import parse_json
from kfl.scheduling import Status, describe

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PER_DEVICE = ("share", "power_w", "compute_energy_j", "upload_energy_j")


@dataclass(frozen=True)
class Incident:
    """Something that went wrong with a device in a round."""

    round: int
    kind: str
    device: int
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened, round by round."""

    accuracy: FloatArray
    """Of all devices; NaN in rounds without a test."""
    time_s: FloatArray
    bits_up: FloatArray
    bits_down: FloatArray
    status: tuple[str, ...]
    round: IntArray
    """From here on one entry for each time a device took part: in which round,"""
    device: IntArray
    """which device, and what it was given and spent."""
    share: FloatArray
    power_w: FloatArray
    compute_energy_j: FloatArray
    upload_energy_j: FloatArray
    troubles: tuple[Incident, ...]

    @property
    def count(self) -> int:
        """Rounds that were played."""
        return len(self.accuracy)

    @property
    def energy_j(self) -> FloatArray:
        """Of each time a device took part."""
        return self.compute_energy_j + self.upload_energy_j

    def per_round(self, values: FloatArray | None = None) -> FloatArray:
        """Sum over the devices of each round; how many they were without values."""
        return np.bincount(self.round, weights=values, minlength=self.count).astype(np.float64)

    def per_device(self, devices: int, values: FloatArray | None = None) -> FloatArray:
        """Sum over the rounds of each device; how many they were without values."""
        return np.bincount(self.device, weights=values, minlength=devices).astype(np.float64)


def read_rounds(path: Path, devices: int) -> Rounds:
    """The rounds in a history file; a last line without its end was torn by a crash and does not count."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        lines = []
    except OSError as problem:
        raise RunFolderError(f"{path} cannot be read ({problem.strerror}).") from problem
    logs = []
    for number, line in enumerate(lines):
        try:
            logs.append(_checked(parse_json(line), number, devices))
        except (ValueError, TypeError, KeyError) as problem:
            raise RunFolderError(f"Line {number + 1} of {path} is damaged ({problem}).") from problem
    joined = {name: np.concatenate([np.empty(0), *(log[name] for log in logs)]) for name in PER_DEVICE}
    sizes = [len(log["devices"]) for log in logs]
    return Rounds(
        **{name: np.array([log[name] for log in logs]) for name in ("accuracy", "time_s", "bits_up", "bits_down")},
        status=tuple(log["status"] for log in logs),
        round=np.repeat(np.arange(len(logs)), sizes),
        device=np.concatenate([np.empty(0, dtype=np.int64), *(log["devices"] for log in logs)]),
        **joined,
        troubles=tuple(trouble for log in logs for trouble in log["troubles"]),
    )


def _checked(line: Any, number: int, devices: int) -> dict[str, Any]:
    """One line with its values in arrays of the right size, or a ValueError."""
    if not isinstance(line, dict) or line.get("round") != number:
        raise ValueError(f"it is not round {number}")
    if not isinstance(line["devices"], list) or not all(type(d) is int and 0 <= d < devices for d in line["devices"]):
        raise ValueError(f"it names a device that is not one of {devices}")
    who = np.array(line["devices"], dtype=np.int64)
    log: dict[str, Any] = {"devices": who, "status": describe(_status(line.get("status", "")))}
    for name in PER_DEVICE:
        values = np.array([_number(value) for value in line[name]], dtype=np.float64)
        if values.shape != who.shape:
            raise ValueError(f"{name} has {values.size} values for {who.size} devices")
        log[name] = np.nan_to_num(values) if name.endswith("_j") else values
    for name in ("accuracy", "time_s", "bits_up", "bits_down"):
        log[name] = _number(line.get(name))
    log["troubles"] = _troubles(line, number, devices)
    return log


def _status(value: Any) -> Status:
    if not isinstance(value, dict | str):
        raise ValueError(f"{value!r} is not a status")
    return Status.from_dict(value)


def _number(value: Any) -> float:
    """A finite number; NaN for null and for what no number can hold."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    found = float(value) if abs(value) < 1e300 else math.nan
    return found if math.isfinite(found) else math.nan


def _troubles(line: dict[str, Any], number: int, devices: int) -> list[Incident]:
    """Faults by their kind, refused uploads with the reason, and what else was lost; one entry for one thing."""
    refused = {device: Rejection.from_dict(entry).describe() for device, entry in _entries(line, "rejected", devices)}
    found = {
        device: Incident(number, str(entry.get("fault", "fault")), device)
        for device, entry in _entries(line, "faults", devices)
    }
    found |= {device: Incident(number, "diverged", device) for device in _known(line, "diverged", devices)}
    found |= {
        device: Incident(number, "outage", device) for device in _known(line, "lost", devices) if device not in found
    }
    found |= {device: Incident(number, "refused", device, reason) for device, reason in refused.items()}
    return [found[device] for device in sorted(found)]


def _known(line: dict[str, Any], name: str, devices: int) -> list[int]:
    """Device numbers of a list, if they are such."""
    return [device for device in line.get(name) or () if type(device) is int and 0 <= device < devices]


def _entries(line: dict[str, Any], name: str, devices: int) -> list[tuple[int, dict[str, Any]]]:
    """The entries of a list that are about a device."""
    entries = [entry for entry in line.get(name) or () if isinstance(entry, dict)]
    return [(who, entry) for entry in entries if type(who := entry.get("device")) is int and 0 <= who < devices]
