"""What happened: one log per round, and the totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kfl.scheduling import Status


@dataclass(frozen=True)
class RoundLog:
    """One round. Lists have one entry per device that took part, in the order of `devices`."""

    round: int
    """Counted from 0."""
    accuracy: float | None
    """Right test predictions over all test samples of all devices; None in rounds without a test."""
    devices: tuple[int, ...]
    share: tuple[float, ...]
    power_w: tuple[float, ...]
    compute_energy_j: tuple[float, ...]
    upload_energy_j: tuple[float, ...]
    time_s: float
    """Simulated duration: the slowest device's computation and upload."""
    bits_up: float
    bits_down: float
    objective: float | None
    lower_bound: float | None
    status: Status
    lost: tuple[int, ...] = ()
    """Devices whose upload did not arrive."""
    rejected: tuple[dict[str, Any], ...] = ()
    """Uploads the server refused: device, code and facts, as `kfl.algorithms.Rejection` reads them."""
    faults: tuple[dict[str, Any], ...] = ()
    """What went wrong with which device."""
    diverged: tuple[int, ...] = ()
    """Devices whose training ran off to infinity; they keep the model they had."""

    @property
    def energy_j(self) -> float:
        """Energy of all devices in this round."""
        return sum(self.compute_energy_j) + sum(self.upload_energy_j)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON line."""
        return {**asdict(self), "status": self.status.to_dict()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> RoundLog:
        """Read what `to_dict` wrote, in this version or an earlier one."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return RoundLog(**{**fields, "status": Status.from_dict(fields["status"])})


@dataclass(frozen=True)
class History:
    """A finished run: every round, totals, and what each device did and can."""

    rounds: tuple[RoundLog, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    devices: tuple[dict[str, Any], ...] = ()
    """One record per device: rounds, energy, budget, accuracy, model, samples."""
    folder: str | None = None

    @property
    def accuracy(self) -> float:
        """Accuracy after the last round."""
        return next(log.accuracy for log in reversed(self.rounds) if log.accuracy is not None)

    @property
    def worst_tenth(self) -> float:
        """Mean accuracy of the worst tenth of the devices that have test samples."""
        values = sorted(device["accuracy"] for device in self.devices if device["accuracy"] is not None)
        part = values[: max(1, len(values) // 10)]
        return float(sum(part) / len(part))

    @property
    def energy_j(self) -> float:
        """Energy of all devices over all rounds."""
        return sum(log.energy_j for log in self.rounds)

    @property
    def bits_up(self) -> float:
        """Bits uploaded by all devices over all rounds."""
        return sum(log.bits_up for log in self.rounds)

    def curve(self) -> tuple[list[int], list[float]]:
        """Rounds and accuracies, for a plot."""
        tested = [(log.round, log.accuracy) for log in self.rounds if log.accuracy is not None]
        return [r for r, _ in tested], [a for _, a in tested]


def totals(rounds: Sequence[RoundLog]) -> dict[str, float]:
    """Sums over all rounds."""
    return {
        "energy_j": sum(log.energy_j for log in rounds),
        "compute_energy_j": sum(sum(log.compute_energy_j) for log in rounds),
        "upload_energy_j": sum(sum(log.upload_energy_j) for log in rounds),
        "time_s": sum(log.time_s for log in rounds),
        "bits_up": sum(log.bits_up for log in rounds),
        "bits_down": sum(log.bits_down for log in rounds),
        "uploads": sum(len(log.devices) for log in rounds),
    }
