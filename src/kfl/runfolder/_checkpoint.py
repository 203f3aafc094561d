"""Checkpoints: the state of a run on disk, written whole or not at all and read back without trusting it.

    state/rows-000042.safetensors    device states that changed since the previous checkpoint
    state/rest-000042.npz            server, scheduler, energies, batteries, accuracy counts, channel
    state/point-000042.json          the checkpoint: which file holds each device's row, with checksums

A checkpoint exists once its `point` file does, which is written last. It comes before the lines that its round adds to
the history, and holds them: a process killed in between adds them when it resumes, so that a line which a reader may
have read is never taken back. The two newest checkpoints are kept with the files they need, so that a damaged one can
be replaced by its predecessor. Superseded rows stay in their files until they are more than half of what is stored;
then the current rows are written into one new file.

Checkpoints are as frequent as is cheap: one is due when the work since the last is fifty times the expected cost of
the next (by the rows that have changed and the cost of the last), and at the latest after thirty seconds or one round,
whichever is longer.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfl.core.errors import RunFolderError
from kfl.core.files import Folder
from kfl.core.parse import parse_json
from kfl.data.untrusted import read_npz
from kfl.runfolder._files import MOST_ARRAYS, MOST_BYTES, damaged
from kfl.runfolder._tensors import read_rows, rows_sum, write_rows
from kfl.scheduling import SchedulerState
from kfl.scheduling.accounts import Accounts, Batteries
from kfl.simulation.state import RunState
from kfl.wireless import Fading

if TYPE_CHECKING:
    from kfl.models import State

FORMAT_VERSION = 1
LONGEST_S = 30.0
"""Work that a crash can lose at most (or one round, where a round takes longer)."""
COST_SHARE = 0.02
"""Share of the time between two checkpoints that one may take."""
KEPT = 2
"""Checkpoints that are kept."""
FIELDS = {"round": int, "rest": str, "rows": dict, "sums": dict, "identity": str, "history": str}
"""What a checkpoint must hold."""

log = logging.getLogger("kfl")


@dataclass
class Checkpoints:
    """The checkpoints of one run folder."""

    folder: Path
    clock: Callable[[], float] = time.monotonic
    identity: str = ""
    """Identifies the run: a checkpoint of another configuration, plan or dataset is refused, not continued."""
    interval_s: float | None = None
    """Work between two checkpoints: 0 for one after every round, infinity for none; None for as often as is cheap."""
    last: Mapping[str, str] = field(default_factory=dict)
    """After `read`: the lines of the last round by file, which may not be in the history yet."""
    _rows: dict[int, str] = field(default_factory=dict)
    """For each device, the file that holds its newest row."""
    _written: dict[int, State] = field(default_factory=dict)
    """The state objects that are on disk, to find the rows that changed since."""
    _sums: dict[str, str] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _last: float = field(init=False)
    _took: float = 0.0
    _rows_written: int = 1
    """By the last checkpoint, at least 1."""

    def __post_init__(self) -> None:
        self._last = self.clock()

    def due(self, state: RunState) -> bool:
        """Whether enough work has been done since the last checkpoint to make another worth its cost."""
        since = self.clock() - self._last
        if self.interval_s is not None:
            return since >= self.interval_s
        # The first checkpoint of a run holds a few devices, a later one may hold them all.
        rows = sum(self._written.get(device) is not row for device, row in state.devices.items())
        expected = self._took * max(1.0, rows / self._rows_written)
        return since >= min(LONGEST_S, expected / COST_SHARE)

    def write(self, state: RunState, history: str = "", last: Mapping[str, str] | None = None) -> None:
        """Write a checkpoint: the rows that changed, everything else, and last the file that makes it valid.

        `history` is the checksum of the history up to here, with the lines `last` of the last round, by file, that
        will be added to it.
        """
        started = self.clock()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with Folder(self.folder.parent) as run, run.make(self.folder.name) as folder:
            written = self._write(folder, state, history, last)
        self._written = dict(state.devices)
        self._last = self.clock()
        self._took = self._last - started
        self._rows_written = max(1, written)

    def _write(self, folder: Folder, state: RunState, history: str, last: Mapping[str, str] | None) -> int:
        """Write the files of a checkpoint and remove those that are not needed; how many rows were written."""
        changed = {d: row for d, row in state.devices.items() if self._written.get(d) is not row}
        if self._wasteful(changed):
            changed = dict(state.devices)
        number = f"{state.round:06d}"
        if changed:
            name = f"rows-{number}.safetensors"
            self._sums[name], self._sizes[name] = write_rows(folder, name, changed)
            self._rows.update(dict.fromkeys(changed, name))
        name, rest = f"rest-{number}.npz", _pack_rest(state)
        folder.write(name, rest)
        self._sums[name], self._sizes[name] = _sum(rest), len(rest)
        point = {
            "format_version": FORMAT_VERSION,
            "round": state.round,
            "rest": f"rest-{number}.npz",
            "rows": {str(device): name for device, name in self._rows.items()},
            "sums": {name: self._sums[name] for name in {*self._rows.values(), f"rest-{number}.npz"}},
            "identity": self.identity,
            "history": history,
            **({"last": dict(last)} if last else {}),
        }
        body = json.dumps(point, sort_keys=True)
        folder.write(f"point-{number}.json", json.dumps({"sum": _sum(body.encode()), "point": body}).encode())
        self._clean(folder)
        return len(changed)

    def read(self, lines: int, history: Callable[[int, Mapping[str, str]], str] | None = None) -> RunState | None:
        """The newest checkpoint that is whole and whose rounds are in the history, or there and in it; None without.

        `lines` is how many rounds the history file holds, `history` the checksum of so many, the last of them given
        where the checkpoint holds it. A damaged checkpoint, or one with another history, is reported and the one before
        it used instead.
        """
        try:
            with Folder(self.folder.parent) as run, run.folder(self.folder.name) as folder:
                return self._read(folder, lines, history)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise damaged(self.folder, problem.strerror or problem) from problem

    def _read(
        self, folder: Folder, lines: int, history: Callable[[int, Mapping[str, str]], str] | None
    ) -> RunState | None:
        for name in reversed(_points(folder)):
            path = self.folder / name
            try:
                point = _read_point(folder, name)
                last = _lines(point.get("last", {}))
                if point["round"] - bool(last) > lines:
                    raise _DamagedError(f"the history holds {lines} rounds, the checkpoint {point['round']}")
                if history is not None and point["history"] != history(point["round"], last):
                    raise _DamagedError("the history is not the one it was written with")
                state = _load(folder, point)
            except _DamagedError as problem:
                log.warning("The checkpoint %s is damaged (%s); the one before it is used.", path.name, problem)
                continue
            self.last = last
            self._rows = {int(device): name for device, name in point["rows"].items()}
            self._sums = dict(point["sums"])
            self._sizes = {name: folder.size(name) for name in self._sums}
            self._written = dict(state.devices)
            if point["identity"] != self.identity:
                raise RunFolderError(
                    f"The checkpoint {path} belongs to another configuration, plan or dataset than this run, so that "
                    "resuming from it would mix two; restore what was changed, or start a new run in another folder."
                )
            return state
        return None

    def _wasteful(self, changed: dict[int, State]) -> bool:
        """Whether more than half of the rows on disk would be superseded after these changes."""
        rows = sum(size for name, size in self._sizes.items() if name.startswith("rows-"))
        one = sum(value.nbytes for value in next(iter(self._written.values()), {}).values())
        return rows + one * len(changed) > 3 * one * len({*self._rows, *changed})

    def _clean(self, folder: Folder) -> None:
        """Remove the files that no kept checkpoint needs."""
        points, needed = _points(folder), set[str]()
        for name in points[:-KEPT]:
            folder.remove(name)
        for name in points[-KEPT:]:
            try:
                needed |= set(_read_point(folder, name)["sums"])
            except _DamagedError:
                continue
        for name in folder.names():
            if name.startswith(("rows-", "rest-")) and name not in needed:
                folder.remove(name)
                self._sizes.pop(name, None)
                self._sums.pop(name, None)


def _points(folder: Folder) -> list[str]:
    return [name for name in folder.names() if name.startswith("point-") and name.endswith(".json")]


class _DamagedError(Exception):
    """A checkpoint does not hold what was written."""


def _sum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _load(folder: Folder, point: dict[str, Any]) -> RunState:
    content = {name: _read_checked(folder, name, expected) for name, expected in point["sums"].items()}
    try:
        rows = {name: read_rows(content[name]) for name in set(point["rows"].values())}
        # A file without rows is complete by its checksum: its devices hold nothing, as in FedAvg.
        devices = {int(device): rows[name][int(device)] if rows[name] else {} for device, name in point["rows"].items()}
        return _unpack_rest(content[point["rest"]], point["round"], devices)
    except (KeyError, ValueError, TypeError) as problem:
        raise _DamagedError(f"{problem}") from problem


def _read_point(folder: Folder, name: str) -> dict[str, Any]:
    try:
        outer = parse_json(folder.read(name, MOST_BYTES))
        body = outer["point"]
        if _sum(body.encode()) != outer["sum"]:
            raise _DamagedError("its checksum is wrong")
        point: dict[str, Any] = parse_json(body)
        version = point.get("format_version")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise _DamagedError(f"it cannot be read, {problem}") from problem
    if version != FORMAT_VERSION:
        raise RunFolderError(
            f"The checkpoint {folder.path / name} has format version {version}, but this kfl reads version "
            f"{FORMAT_VERSION}; use the kfl that wrote it."
        )
    if not all(isinstance(point.get(name), kind) for name, kind in FIELDS.items()):
        raise _DamagedError("a field of it is missing, or not what it should be")
    return point


def _lines(found: object) -> dict[str, str]:
    """Lines by file, each whole."""
    if not isinstance(found, dict) or not all(isinstance(text, str) and text[-1:] == "\n" for text in found.values()):
        raise _DamagedError("the lines of its last round cannot be read")
    return dict(found)


def _read_checked(folder: Folder, name: str, expected: str) -> bytes:
    """A file of a checkpoint, if its checksum is right. Names cannot lead out of the folder."""
    try:
        data = folder.read(name, MOST_ARRAYS)
    except ValueError:
        raise _DamagedError(f"the name {name!r} leads out of the folder") from None
    except OSError as problem:
        raise _DamagedError(f"{name} cannot be read, {problem.strerror}") from problem
    if (rows_sum(data) if name.startswith("rows-") else _sum(data)) != expected:
        raise _DamagedError(f"the checksum of {name} is wrong")
    return data


def _pack_rest(state: RunState) -> bytes:
    accounts = state.accounts
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "compute_energy_j": accounts.compute_j,
        "upload_energy_j": accounts.upload_j,
        "taken": accounts.participation_count,
        "correct": state.correct,
        "untested": np.array(sorted(state.untested), dtype=np.int64),
        "scheduler.horizon": np.array(accounts.scheduler.horizon),
        "scheduler.allowance_j": accounts.scheduler.allowance_j,
        "scheduler.queue_j": accounts.scheduler.queue_j,
    }
    arrays |= {f"memory.{name}": value for name, value in accounts.scheduler.memory.items()}
    arrays |= {f"server.{name}": value.cpu().numpy() for name, value in state.server.items()}
    if state.fading is not None:
        arrays |= {"fading.round": np.array(state.fading.round), "fading.coefficient": state.fading.coefficient}
        arrays |= {f"fading.memory.{name}": value for name, value in state.fading.memory.items()}
    if accounts.batteries is not None:
        held = {one.name: np.asarray(getattr(accounts.batteries, one.name)) for one in fields(Batteries)}
        arrays |= {f"batteries.{name}": values for name, values in held.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy types its keyword arguments as a flag
    return buffer.getvalue()


def _unpack_rest(data: bytes, number: int, devices: dict[int, State]) -> RunState:
    import torch

    arrays = read_npz(data)

    def part(prefix: str) -> dict[str, Any]:
        return {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}

    fading, batteries = part("fading."), part("batteries.")
    accounts = Accounts(
        round=number,
        scheduler=SchedulerState(
            int(arrays["scheduler.horizon"]),
            arrays["scheduler.allowance_j"],
            arrays["scheduler.queue_j"],
            part("memory."),
        ),
        compute_j=arrays["compute_energy_j"],
        upload_j=arrays["upload_energy_j"],
        participation_count=arrays["taken"],
        batteries=Batteries(**{**batteries, "capacity_j": float(batteries["capacity_j"])}) if batteries else None,
    )
    return RunState(
        accounts=accounts,
        server={name: torch.from_numpy(value) for name, value in part("server.").items()},
        devices=devices,
        correct=arrays["correct"],
        # Checkpoints of versions that tested all devices every time do not say; then all are tested once more.
        untested=frozenset(arrays.get("untested", np.arange(len(arrays["correct"]))).tolist()),
        fading=Fading(int(fading["round"]), fading["coefficient"], part("fading.memory.")) if fading else None,
    )
