"""A run as arrays, for pages: one entry per round, and one per device and round in which it took part.

`read_run` makes them of a run folder, `RunData.of_schedule` of rounds that were only scheduled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfl.core.config import Table, from_table
from kfl.core.errors import ConfigError, RunFolderError
from kfl.core.names import shortened
from kfl.experiment import identity_fields
from kfl.runfolder import Incident, RoundLog, RunReader, Snapshot
from kfl.scheduling import Status
from kfl.scheduling.problem import CellProblem
from kfl.scheduling.simulate import RoundResult
from kfl.scheduling.uplink import ENERGY_PARTS
from kfl.wireless import Cell, CellConfig

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_DEVICES = 2_000_000
MOST_ROUNDS = 10**9
PER_ROUND = ("accuracy", "time_s", "bits_up", "bits_down", "objective", "lower_bound")
PER_UPLOAD = ("share", "power_w", "compute_energy_j", "upload_energy_j")


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened, round by round."""

    accuracy: FloatArray
    """Of all devices; NaN in rounds without a test."""
    time_s: FloatArray
    bits_up: FloatArray
    bits_down: FloatArray
    objective: FloatArray
    """Drift plus penalty of the decision; NaN where the scheduler minimizes nothing."""
    lower_bound: FloatArray
    """Of the objective of any decision; NaN where the scheduler knows none."""
    status: tuple[Status, ...]
    round: IntArray
    """From here on one entry for each time a device took part: the round,"""
    device: IntArray
    """the device, and what it was given and spent."""
    share: FloatArray
    power_w: FloatArray
    compute_energy_j: FloatArray
    upload_energy_j: FloatArray
    gain: FloatArray
    """Channel gain that the server planned with; NaN in runs of earlier versions and without a radio."""
    incidents: tuple[Incident, ...] = ()
    parts_j: Mapping[str, FloatArray] | None = None
    """Energy by part, in the words of `kfl.scheduling.uplink.ENERGY_PARTS`; None in the printed energy model."""
    harvest_j: FloatArray | None = None
    """Harvest of each device in each round, (rounds, devices); None where nothing is harvested."""
    empty: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Devices without the charge to take part, in each round."""
    outcome: NDArray[np.int8] | None = None
    """Of a schedule: what became of each device, (devices, rounds), as positions in `OUTCOMES` of its statuses."""

    @staticmethod
    def of(logs: Sequence[RoundLog]) -> Rounds:
        """Return the arrays of a history. Energy that is not known counts as none."""
        joined = {name: np.array([v for log in logs for v in getattr(log, name)], dtype=float) for name in PER_UPLOAD}
        joined |= {name: np.nan_to_num(values) for name, values in joined.items() if name.endswith("_j")}
        counts = np.array([len(log.devices) for log in logs], dtype=np.int64)
        harvested = bool(logs) and all(log.harvest_j for log in logs)
        return Rounds(
            # None, where a round has no value, becomes NaN.
            **{name: np.array([getattr(log, name) for log in logs], dtype=float) for name in PER_ROUND},
            status=tuple(log.status for log in logs),
            round=np.repeat(np.arange(len(logs)), counts),
            device=np.array([device for log in logs for device in log.devices], dtype=np.int64),
            **joined,
            gain=np.array([g for log in logs for g in log.gain or [math.nan] * len(log.devices)], dtype=float),
            incidents=tuple(incident for log in logs for incident in log.incidents()),
            parts_j=_parts(logs) if any(log.clock_hz for log in logs) else None,
            harvest_j=np.array([log.harvest_j for log in logs]) if harvested else None,
            empty=np.array([len(log.empty) for log in logs], dtype=np.int64),
        )

    @property
    def count(self) -> int:
        """Rounds played so far."""
        return len(self.accuracy)

    @property
    def energy_j(self) -> FloatArray:
        """Energy for each time a device took part."""
        return self.compute_energy_j + self.upload_energy_j

    def per_round(self, values: FloatArray | None = None) -> FloatArray:
        """Return the sum over the devices of each round; without values the number of devices."""
        return np.bincount(self.round, weights=values, minlength=self.count).astype(np.float64)

    def per_device(self, devices: int, values: FloatArray | None = None) -> FloatArray:
        """Return the sum over the rounds of each device; without values the number of rounds."""
        return np.bincount(self.device, weights=values, minlength=devices).astype(np.float64)


def _parts(logs: Sequence[RoundLog]) -> dict[str, FloatArray]:
    """Energy by part, one entry for each time a device took part. What is not known counts as none."""
    found = [log.parts_j() for log in logs]
    return {
        name: np.nan_to_num(np.array([v for one in found for v in one[name]], dtype=float)) for name in ENERGY_PARTS
    }


@dataclass(frozen=True)
class Fairness:
    """How evenly accuracy is spread over the devices that have test samples."""

    devices: int
    worst_tenth: float
    """Mean of the worst tenth of the devices."""
    worst: float
    best: float
    deviation: float
    """Standard deviation over devices."""
    jain: float
    """Jain's index (Σa)² / (n Σa²): 1 where all are equal, 1/n where one has everything."""


def fairness(accuracy: FloatArray) -> Fairness | None:
    """Return the fairness of accuracies, one per device; None where none is known.

    >>> fairness(np.array([1.0, 0.5, np.nan])).jain
    0.9
    """
    known = np.sort(accuracy[np.isfinite(accuracy)])
    if not known.size:
        return None
    squares = float((known**2).sum())
    return Fairness(
        devices=known.size,
        worst_tenth=float(known[: max(1, known.size // 10)].mean()),
        worst=float(known[0]),
        best=float(known[-1]),
        deviation=float(known.std()),
        jain=float(known.sum() ** 2 / (known.size * squares)) if squares > 0 else 1.0,
    )


@dataclass(frozen=True, eq=False)
class BatteryCurves:
    """The batteries of a run after each round."""

    capacity_j: float
    least_j: FloatArray
    """Charge of the emptiest device, of the mean device and of the fullest."""
    mean_j: FloatArray
    most_j: FloatArray
    harvested_j: FloatArray
    """Of all devices since the start: harvested (wasted joules included), spent, and wasted on full batteries."""
    spent_j: FloatArray
    wasted_j: FloatArray
    empty: IntArray
    """Devices without the charge to take part in the round."""


@dataclass(frozen=True, eq=False)
class JudgedRound(RoundResult):
    """A scheduled round, and how far its decision is from the best possible one."""

    objective: float
    """Drift plus penalty (22) of the decision, also of a scheduler that minimizes something else."""
    lower_bound: float
    """No decision of this round within the scheduler's limits has an objective below this."""
    parts_j: Mapping[str, FloatArray]
    """Energy of each device by part; empty in the printed model."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run, as far as it went. Sums and curves are computed from the rounds, here and nowhere else."""

    path: Path
    devices: int
    """The number of devices K."""
    planned: int
    """Rounds that were asked for, T."""
    rounds: Rounds
    accuracy: FloatArray
    """Of each device when last tested; NaN where it is not known."""
    cell: Cell | None
    config: Table = field(default_factory=dict)
    config_text: str = ""
    trail: tuple[Snapshot, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def of_schedule(problem: CellProblem, cell: Cell, rounds: Sequence[JudgedRound], config: Table) -> RunData:
        """Return scheduled rounds as a run in which nothing was trained.

        Args:
            problem: what was scheduled.
            cell: its devices' positions, which a map shows.
            rounds: those decided so far.
            config: names of scheduler and cell, for titles.
        """
        chosen = [np.flatnonzero(one.decision.chosen) for one in rounds]
        times = [one.decision.compute_time_s + one.decision.upload_time_s for one in rounds]

        def of_chosen(values: Sequence[FloatArray]) -> FloatArray:
            found = [each[who] for each, who in zip(values, chosen, strict=True)]
            return np.concatenate([np.empty(0), *found])

        parts: dict[str, FloatArray] | None = None
        if not problem.device.is_paper_model:
            names = rounds[0].parts_j if rounds else {}
            parts = {name: of_chosen([one.parts_j[name] for one in rounds]) for name in names}
        data = Rounds(
            accuracy=np.full(len(rounds), np.nan),
            time_s=np.array([each[who].max(initial=0.0) for each, who in zip(times, chosen, strict=True)]),
            bits_up=np.array([problem.payload_bits[who].sum() for who in chosen]),
            bits_down=np.zeros(len(rounds)),
            objective=np.array([one.objective for one in rounds]),
            lower_bound=np.array([one.lower_bound for one in rounds]),
            status=tuple(one.decision.status for one in rounds),
            round=np.repeat(np.arange(len(rounds)), [len(who) for who in chosen]),
            device=np.concatenate([np.empty(0, dtype=np.int64), *chosen]),
            share=of_chosen([one.decision.share for one in rounds]),
            power_w=of_chosen([one.decision.power_w for one in rounds]),
            compute_energy_j=of_chosen([one.compute_j for one in rounds]),
            upload_energy_j=of_chosen([one.upload_j for one in rounds]),
            gain=of_chosen([problem.gain[index] for index in range(len(rounds))]),
            parts_j=parts,
            outcome=np.stack([one.outcome for one in rounds], axis=1) if rounds else None,
        )
        return RunData(
            Path("schedule"), problem.size, problem.rounds, data, np.full(problem.size, np.nan), cell, config
        )

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
        """Name of the algorithm."""
        return self._named("algorithm")

    @property
    def scheduler(self) -> str:
        """Name of the scheduler."""
        return self._named("scheduler")

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.config.get("dataset", "?"))

    def _named(self, part: str) -> str:
        table = self.config.get(part)
        return str(table.get("name", "?") if isinstance(table, dict) else table or "?")

    @property
    def class_names(self) -> list[str]:
        """What the data calls its classes; empty where it does not."""
        data = self.environment.get("dataset")
        names = data.get("class_names") if isinstance(data, dict) else None
        return [shortened(str(name), 16) for name in names] if isinstance(names, list) else []

    @property
    def seed(self) -> int:
        """The seed; -1 where the configuration has none."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else -1

    @property
    def setting(self) -> Table:
        """The configuration without the seed: runs that have it in common differ by chance only."""
        return {name: value for name, value in identity_fields(dict(self.config)).items() if name != "seed"}

    @property
    def tested(self) -> str:
        """Which devices the accuracy is of, in words."""
        known = int(np.isfinite(self.accuracy).sum())
        some = known or self.config.get("tested_devices")
        if isinstance(some, int) and some < self.devices:
            return f"{some:,} of {self.devices:,} devices"
        return f"all {self.devices:,} devices"

    # ── Sums ──

    @property
    def last_accuracy(self) -> float | None:
        """Accuracy of all devices when last tested."""
        tested = self.rounds.accuracy[np.isfinite(self.rounds.accuracy)]
        return float(tested[-1]) if tested.size else None

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy of any test."""
        tested = self.rounds.accuracy[np.isfinite(self.rounds.accuracy)]
        return float(tested.max()) if tested.size else None

    @property
    def uploads(self) -> int:
        """How many times a device took part."""
        return len(self.rounds.device)

    @cached_property
    def participation(self) -> FloatArray:
        """In how many rounds each device took part."""
        return self.rounds.per_device(self.devices)

    @cached_property
    def device_energy_j(self) -> FloatArray:
        """Energy of each device so far."""
        return self.rounds.per_device(self.devices, self.rounds.energy_j)

    @property
    def energy_j(self) -> float:
        """Energy of all devices so far."""
        return float(self.device_energy_j.sum())

    @property
    def upload_energy_j(self) -> float:
        """Part of `energy_j` spent on communication."""
        return float(self.rounds.upload_energy_j.sum())

    @property
    def time_s(self) -> float:
        """Simulated time so far."""
        return float(np.nansum(self.rounds.time_s))

    @property
    def bits_up(self) -> float:
        """Bits uploaded by all devices so far."""
        return float(np.nansum(self.rounds.bits_up))

    @property
    def budget_j(self) -> float:
        """Energy budget of a device for the whole run; infinite where there is none."""
        if self.cell is None or self.cell.config.source.fills:
            return math.inf
        return self.cell.config.budget_j_per_round * self.planned

    @property
    def use_of_budget(self) -> float | None:
        """Mean energy of a device over its budget; None without budgets."""
        return float(self.device_energy_j.mean()) / self.budget_j if math.isfinite(self.budget_j) else None

    @property
    def over_budget(self) -> int:
        """Devices that spent more than their budget."""
        limited = math.isfinite(self.budget_j)
        return int((self.device_energy_j > self.budget_j * (1 + 1e-9)).sum()) if limited else 0

    @property
    def parts_j(self) -> dict[str, FloatArray]:
        """Energy by part for each time a device took part, without parts that took nothing.

        In the printed model these are computing and sending.
        """
        if self.rounds.parts_j is None:
            return {"computing": self.rounds.compute_energy_j, "sending": self.rounds.upload_energy_j}
        return {name: energy_j for name, energy_j in self.rounds.parts_j.items() if energy_j.any()}

    # ── Curves over the rounds ──

    @cached_property
    def spent(self) -> dict[str, FloatArray]:
        """What all devices together had spent after each round, by the unit in which it is counted."""
        rounds = self.rounds
        return {
            "rounds": np.arange(1.0, rounds.count + 1),
            "joules": np.cumsum(rounds.per_round(rounds.energy_j)),
            "seconds": np.cumsum(np.nan_to_num(rounds.time_s)),
            "bits": np.cumsum(np.nan_to_num(rounds.bits_up)),
        }

    def energy_between(self, kept: IntArray) -> Iterator[FloatArray]:
        """Yield the energy of each device between the round kept before and each of the `kept` rounds."""
        energy_j, before = self.rounds.energy_j, 0
        for end in np.searchsorted(self.rounds.round, kept, side="right"):
            which = slice(before, int(end))
            yield np.bincount(self.rounds.device[which], weights=energy_j[which], minlength=self.devices).astype(float)
            before = int(end)

    @cached_property
    def trail_accuracy(self) -> tuple[IntArray, FloatArray]:
        """Rounds whose snapshots hold accuracies, and these: one row per round, one column per device."""
        seen = [s for s in self.trail if s.accuracy is not None and len(s.accuracy) == self.devices]
        rows = {s.round: s.accuracy for s in seen if s.accuracy is not None and np.isfinite(s.accuracy).any()}
        if not rows:
            return np.empty(0, dtype=np.int64), np.empty((0, self.devices))
        return np.array(list(rows)), np.stack(list(rows.values()))

    @cached_property
    def batteries(self) -> BatteryCurves | None:
        """Charge of the batteries, which follows from the energy of every round; None where devices have none."""
        batteries = None if self.cell is None else self.cell.batteries()
        if batteries is None or not self.played:
            return None
        rounds, nothing, no_one = self.rounds, np.zeros(self.devices), np.zeros(self.devices, dtype=bool)
        charge, sums = [], []
        for index, spent_j in enumerate(self.energy_between(np.arange(self.played))):
            harvest_j = nothing if rounds.harvest_j is None else np.nan_to_num(rounds.harvest_j[index])
            batteries = batteries.after(spent_j, harvest_j, no_one)
            charge.append((batteries.charge_j.min(), batteries.charge_j.mean(), batteries.charge_j.max()))
            sums.append((batteries.harvested_j.sum(), spent_j.sum(), batteries.wasted_j.sum()))
        least, mean, most = np.array(charge).T
        harvested, spent, wasted = np.array(sums).T
        return BatteryCurves(batteries.capacity_j, least, mean, most, harvested, np.cumsum(spent), wasted, rounds.empty)


def read_run(path: Path) -> RunData:
    """Read a run folder, finished or not. Nothing that it names is imported."""
    reader = RunReader(path)
    config, records = reader.config(), reader.devices()
    devices = _count(path, config, "devices", MOST_DEVICES)
    rounds = Rounds.of(reader.rounds(devices))
    trail = tuple(seen for seen in reader.trail() if 0 <= seen.round < rounds.count)
    missing = "There is no trail.jsonl in this folder, so that nothing is known of single devices during the run."
    return RunData(
        path=path,
        devices=devices,
        planned=_count(path, config, "rounds", MOST_ROUNDS),
        rounds=rounds,
        accuracy=_accuracy(records, devices, trail),
        cell=_cell(config, devices, records),
        config=config,
        config_text=reader.config_text(),
        trail=trail,
        summary=reader.summary(),
        environment=reader.environment(),
        notes=(missing,) if rounds.count and not trail else (),
    )


def _count(path: Path, config: Table, name: str, most: int) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RunFolderError(
            f"The file {path / 'config.toml'} is damaged ({name} is {value!r}, not from 1 to {most:,})."
        )
    return value


def _accuracy(records: Sequence[dict[str, Any]], devices: int, trail: tuple[Snapshot, ...]) -> FloatArray:
    """Each device's accuracy at the end, or when it was last on the trail."""
    values = np.full(devices, np.nan)
    if not records:
        known = (s.accuracy for s in reversed(trail) if s.accuracy is not None and len(s.accuracy) == devices)
        return next(known, values)
    for device, record in enumerate(records[:devices]):
        found = record.get("accuracy")
        if isinstance(found, float | int):
            values[device] = float(found)
    return values


def _cell(config: Table, devices: int, records: Sequence[dict[str, Any]]) -> Cell | None:
    """The cell with its devices placed as the configuration says, and the processors that a real fleet reported."""
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
