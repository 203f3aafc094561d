"""Finished runs of the paper's experiments as JSON lines, found by key and seed.

A folder may hold several files `results*.jsonl`, one for each machine or sitting that shared the work: put them
together and they are one store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfl.paper.setting import Line, Scale, run_key
from kfl.simulation.records import RESULTS, Record, read_lines, write_records


@dataclass
class Store:
    """Results by the name of the run."""

    folder: Path
    file: str = RESULTS
    """Where new results go."""
    rows: dict[str, Record] = field(default_factory=dict)
    _own: dict[str, Record] = field(default_factory=dict)

    @staticmethod
    def open(folder: Path, file: str = RESULTS) -> Store:
        """What a folder holds; a new folder holds nothing."""
        store = Store(folder, file)
        for path in sorted(folder.glob("results*.jsonl")):
            for row in read_lines(path, "kfl paper", ("run", "digest")):
                store.rows[row["run"]] = row
                if path.name == file:
                    store._own[row["run"]] = row
        return store

    def add(self, rows: Mapping[str, Record]) -> None:
        """Keep new results, and write them down at once."""
        for name, row in rows.items():
            self.rows[name] = self._own[name] = {"run": name, **row}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_records(self.folder / self.file, [self._own[name] for name in sorted(self._own)])

    def has(self, name: str, digest: str) -> bool:
        """Whether this very run is finished: a result of other settings under the same name does not count."""
        return name in self.rows and self.rows[name]["digest"] == digest

    def seeds(self, line: Line | str, scale: Scale) -> dict[int, Record]:
        """The results of a line by seed."""
        key = line if isinstance(line, str) else line.key
        found = {seed: self.rows.get(run_key(key, seed, scale)) for seed in scale.seeds}
        return {seed: row for seed, row in found.items() if row is not None}

    def missing(self, lines: Iterable[Line], scale: Scale) -> int:
        """How many runs of these lines have no result."""
        return sum(len(scale.seeds) - len(self.seeds(line, scale)) for line in lines)
