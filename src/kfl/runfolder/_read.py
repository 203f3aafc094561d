"""A run folder as a page needs it: arrays, checked, and read without running anything that the folder names.

Unlike `kfl.load_run`, nothing is imported on behalf of the configuration, so that a stranger's folder can be looked
at. What a folder does not have is a note, not an error; what is damaged is a RunFolderError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Table, from_table
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.parse import parse_toml, read_json
from kfl.runfolder._rounds import Rounds, read_rounds
from kfl.runfolder._trail import Snapshot, read_trail
from kfl.wireless import Cell, CellConfig

FloatArray = NDArray[np.float64]

MOST_DEVICES = 2_000_000
TWIN = "local-only"
"""The folder in a run folder where `kfl run` puts the same run with nothing shared."""


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
        return math.inf if self.cell is None else self.cell.config.budget_j_per_round * self.planned

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
    """Read a run folder, finished or not; its local-only twin with it."""
    if not (path / "config.toml").is_file():
        raise RunFolderError(f"{path} is no run folder: it has no config.toml.")
    return _read(path, twin=_twin(path / TWIN))


def find_runs(paths: list[Path]) -> list[Path]:
    """The run folders that were named; a folder of run folders, such as kfl compare's, stands for those in it."""
    found: list[Path] = []
    for path in paths:
        if (path / "config.toml").is_file():
            found.append(path)
            continue
        inside = sorted(file.parent for file in path.glob("*/config.toml")) if path.is_dir() else []
        if not inside:
            raise RunFolderError(f"{path} is no run folder: it has no config.toml, nor has any folder in it.")
        found += inside
    return list(dict.fromkeys(found))


def _twin(path: Path) -> RunData | None:
    try:
        return _read(path, twin=None) if (path / "config.toml").is_file() else None
    except RunFolderError:
        return None  # the run itself is what was asked for


def _read(path: Path, twin: RunData | None) -> RunData:
    try:
        raw = (path / "config.toml").read_text(encoding="utf-8")
        config = parse_toml(raw)
    except (OSError, ValueError) as problem:
        raise RunFolderError(f"{path / 'config.toml'} is damaged ({problem}).") from problem
    devices = _whole(path, config, "devices", MOST_DEVICES)
    planned = _whole(path, config, "rounds", 10**9)
    rounds = read_rounds(path / "rounds.jsonl", devices)
    notes: list[str] = []
    trail = tuple(seen for seen in read_trail(path) if 0 <= seen.round < rounds.count)
    if not trail and rounds.count:
        notes.append("There is no trail.jsonl in this folder: nothing is known of single devices on the way.")
    return RunData(
        path=path,
        config=config,
        config_text=raw,
        devices=devices,
        planned=planned,
        rounds=rounds,
        trail=trail,
        accuracy=_accuracy(path, devices, trail),
        cell=_cell(config, devices),
        summary=_table(path / "summary.json"),
        environment=_table(path / "environment.json"),
        twin=twin,
        notes=tuple(notes),
    )


def _whole(path: Path, config: Table, name: str, most: int) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RunFolderError(f"{path / 'config.toml'} is damaged ({name} is {value!r}, not from 1 to {most:,}).")
    return value


def _table(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise RunFolderError(f"{path} is damaged ({problem}).") from problem
    return found if isinstance(found, dict) else {}


def _accuracy(path: Path, devices: int, trail: tuple[Snapshot, ...]) -> FloatArray:
    """Each device's accuracy at the end, or when it was last on the trail."""
    values = np.full(devices, np.nan)
    try:
        records = read_json(path / "devices.json")
    except FileNotFoundError:
        last = next(
            (s.accuracy for s in reversed(trail) if s.accuracy is not None and len(s.accuracy) == devices), None
        )
        return values if last is None else last
    except (OSError, ValueError) as problem:
        raise RunFolderError(f"{path / 'devices.json'} is damaged ({problem}).") from problem
    for place, record in enumerate(records if isinstance(records, list) else []):
        found = record.get("accuracy") if isinstance(record, dict) else None
        if place < devices and isinstance(found, float | int):
            values[place] = float(found)
    return values


def _cell(config: Table, devices: int) -> Cell | None:
    """The cell with its devices placed, which a configuration decides alone."""
    radio, seed = config.get("radio"), config.get("seed")
    if not isinstance(radio, dict) or not isinstance(seed, int):
        return None
    try:
        return Cell.build(from_table(CellConfig, radio), devices, seed)
    except (ConfigError, ValueError, OverflowError):
        return None
