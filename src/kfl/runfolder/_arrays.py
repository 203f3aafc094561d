"""A run as arrays, for pages and charts: one entry per round, and one per device and round it took part in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Table, from_table
from kfl.core.errors import ConfigError, RunFolderError
from kfl.runfolder import _files as files
from kfl.runfolder._read import RunReader
from kfl.runfolder._snapshot import Snapshot
from kfl.scheduling import Status
from kfl.simulation.logs import PER_DEVICE, Incident, RoundLog
from kfl.wireless import ENERGY_PARTS, Cell, CellConfig

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_DEVICES = 2_000_000
MOST_ROUNDS = 10**9


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened, round by round."""

    accuracy: FloatArray
    """Of all devices; NaN in rounds without a test."""
    time_s: FloatArray
    bits_up: FloatArray
    bits_down: FloatArray
    status: tuple[Status, ...]
    round: IntArray
    """From here on one entry for each time a device took part: in which round,"""
    device: IntArray
    """which device, and what it was given and spent."""
    share: FloatArray
    power_w: FloatArray
    compute_energy_j: FloatArray
    upload_energy_j: FloatArray
    gain: FloatArray
    """Channel gain that the server planned with; NaN in runs of earlier versions and without a radio."""
    incidents: tuple[Incident, ...]
    parts_j: Mapping[str, FloatArray] | None = None
    """Where the joules went, by the words of `kfl.wireless.ENERGY_PARTS`; None for the printed energy model."""
    harvest_j: FloatArray | None = None
    """What each device harvested in each round, (rounds, devices); None where nothing is harvested."""
    empty: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """How many devices had not the charge to take part in each round."""

    @staticmethod
    def of(logs: Sequence[RoundLog]) -> Rounds:
        """The arrays of a history. Energy that is not known counts as none."""
        joined = {
            name: np.array([value for log in logs for value in getattr(log, name)], dtype=np.float64)
            for name in PER_DEVICE
        }
        joined |= {name: np.nan_to_num(values) for name, values in joined.items() if name.endswith("_j")}
        return Rounds(
            accuracy=np.array([math.nan if log.accuracy is None else log.accuracy for log in logs], dtype=np.float64),
            **{
                name: np.array([getattr(log, name) for log in logs], dtype=np.float64)
                for name in ("time_s", "bits_up", "bits_down")
            },
            status=tuple(log.status for log in logs),
            round=np.repeat(np.arange(len(logs)), np.array([len(log.devices) for log in logs], dtype=np.int64)),
            device=np.array([device for log in logs for device in log.devices], dtype=np.int64),
            **joined,
            gain=np.array([g for log in logs for g in log.gain or [math.nan] * len(log.devices)], dtype=np.float64),
            incidents=tuple(incident for log in logs for incident in log.incidents()),
            parts_j=_parts(logs) if any(log.clock_hz for log in logs) else None,
            harvest_j=np.array([log.harvest_j for log in logs])
            if logs and all(log.harvest_j for log in logs)
            else None,
            empty=np.array([len(log.empty) for log in logs], dtype=np.int64),
        )

    @property
    def count(self) -> int:
        """Rounds that were played."""
        return len(self.accuracy)

    @property
    def energy_j(self) -> FloatArray:
        """Of each time a device took part."""
        return self.compute_energy_j + self.upload_energy_j

    def per_round(self, values: FloatArray | None = None) -> FloatArray:
        """Sum over the devices of each round; the number of devices without values."""
        return np.bincount(self.round, weights=values, minlength=self.count).astype(np.float64)

    def per_device(self, devices: int, values: FloatArray | None = None) -> FloatArray:
        """Sum over the rounds of each device; the number of rounds without values."""
        return np.bincount(self.device, weights=values, minlength=devices).astype(np.float64)


def _parts(logs: Sequence[RoundLog]) -> dict[str, FloatArray]:
    """Energy by part, one entry for each time a device took part. What is not known counts as none."""
    found = [log.parts_j() for log in logs]
    return {
        name: np.nan_to_num(np.array([value for one in found for value in one[name]], dtype=np.float64))
        for name in ENERGY_PARTS
    }


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, as far as it went."""

    path: Path
    config: Table
    config_text: str
    devices: int
    """The number of devices K."""
    planned: int
    """Rounds that were asked for, T."""
    rounds: Rounds
    """What happened in those that were played."""
    trail: tuple[Snapshot, ...]
    accuracy: FloatArray
    """Of each device when last tested; NaN where it is not known."""
    cell: Cell | None
    summary: dict[str, Any]
    environment: dict[str, Any]
    twin: RunData | None = None
    """The same run with nothing shared, where there is one."""
    notes: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    @property
    def played(self) -> int:
        """Rounds so far."""
        return self.rounds.count

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary)

    @property
    def algorithm(self) -> str:
        """How devices learned."""
        return self._word("algorithm")

    @property
    def scheduler(self) -> str:
        """Who chose them."""
        return self._word("scheduler")

    @property
    def dataset(self) -> str:
        """What they learned."""
        return str(self.config.get("dataset", "?"))

    @property
    def budget_j(self) -> float:
        """Energy budget of a device for the whole run; infinite where there is none."""
        if self.cell is None or self.cell.config.source.fills:
            return math.inf
        return self.cell.config.budget_j_per_round * self.planned

    @property
    def tested(self) -> str:
        """Whose accuracy it is, in words."""
        known = int(np.isfinite(self.accuracy).sum())
        some = known or self.config.get("tested_devices")
        if isinstance(some, int) and some < self.devices:
            return f"{some:,} of {self.devices:,} devices"
        return f"all {self.devices:,} devices"

    def _word(self, part: str) -> str:
        table = self.config.get(part)
        return str(table.get("name", "?") if isinstance(table, dict) else table or "?")


def read_run(path: Path) -> RunData:
    """Read a run folder, finished or not, with its local-only twin. Nothing that it names is imported."""
    files.require_run_folder(path)
    return _read(path, twin=_twin(path / files.LOCAL_ONLY))


def _twin(path: Path) -> RunData | None:
    try:
        return _read(path, twin=None) if files.is_run_folder(path) else None
    except RunFolderError:
        return None  # the run itself is what was asked for


def _read(path: Path, twin: RunData | None) -> RunData:
    reader = RunReader(path)
    config = reader.config()
    devices = _whole(path, config, "devices", MOST_DEVICES)
    planned = _whole(path, config, "rounds", MOST_ROUNDS)
    rounds = Rounds.of(reader.rounds(devices))
    notes: list[str] = []
    trail = tuple(seen for seen in reader.trail() if 0 <= seen.round < rounds.count)
    if not trail and rounds.count:
        notes.append(f"There is no {files.TRAIL} in this folder: nothing is known of single devices on the way.")
    return RunData(
        path=path,
        config=config,
        config_text=reader.config_text(),
        devices=devices,
        planned=planned,
        rounds=rounds,
        trail=trail,
        accuracy=_accuracy(reader, devices, trail),
        cell=_cell(config, devices, reader.devices()),
        summary=reader.summary(),
        environment=reader.environment(),
        twin=twin,
        notes=tuple(notes),
    )


def _whole(path: Path, config: Table, name: str, most: int) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise files.damaged(path / files.CONFIG, f"{name} is {value!r}, not from 1 to {most:,}")
    return value


def _accuracy(reader: RunReader, devices: int, trail: tuple[Snapshot, ...]) -> FloatArray:
    """Each device's accuracy at the end, or when it was last on the trail."""
    values = np.full(devices, np.nan)
    records = reader.devices()
    if not records:
        known = (s.accuracy for s in reversed(trail) if s.accuracy is not None and len(s.accuracy) == devices)
        return next(known, values)
    for device, record in enumerate(records[:devices]):
        found = record.get("accuracy")
        if isinstance(found, float | int):
            values[device] = float(found)
    return values


def _cell(config: Table, devices: int, records: Sequence[dict[str, Any]]) -> Cell | None:
    """The cell with its devices placed, which a configuration decides, and their clocks, which a real fleet's tell."""
    radio, seed = config.get("radio"), config.get("seed")
    if not isinstance(radio, dict) or not isinstance(seed, int):
        return None
    try:
        cell = Cell.build(from_table(CellConfig, radio), devices, seed)
    except (ConfigError, ValueError, OverflowError):
        return None
    cpu_hz = cell.hardware.cpu_hz.copy()
    for record in records:
        device, clock = record.get("device"), record.get("cpu_hz")
        if isinstance(device, int) and 0 <= device < devices and isinstance(clock, float) and math.isfinite(clock):
            cpu_hz[device] = clock
    return replace(cell, hardware=replace(cell.hardware, cpu_hz=cpu_hz))
