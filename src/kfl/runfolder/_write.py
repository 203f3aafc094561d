"""The run folder: everything that was asked, what it ran on, and what came out.

    config.toml        the exact configuration; `kfl run --config config.toml` repeats the run
    environment.json   schema version, versions of kfl, Python and PyTorch, commit, hardware, data
    rounds.jsonl       one line per round, appended as it happens
    trail.jsonl        knowledge and every device's accuracy after at most fifty of the rounds (kfl.runfolder._trail)
    state/             while it runs: checkpoints, from which `kfl resume` continues
    devices.json       per device: rounds, energy, budget, accuracy, model, samples
    knowledge.npz      the server's arrays at the end (for KFL the knowledge and which classes it covers)
    models/            what each device that ever trained holds at the end, one safetensors file per device
    summary.json       totals and final accuracy; its presence means the run is finished

Every file is written whole or not at all; a line of rounds.jsonl or trail.jsonl is written in one piece, and a torn
last line (power loss) is ignored when it is read.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kfl.core.config import differences
from kfl.core.errors import RunFolderError
from kfl.core.files import is_part, jsonable, write_atomic, write_json, write_json_list
from kfl.core.lock import LockedError, only_one
from kfl.core.parse import parse_json, parse_toml, read_json, read_toml
from kfl.engine.plan import Plan
from kfl.experiment.experiment import Experiment, identity_fields
from kfl.runfolder._history import History, RoundLog
from kfl.runfolder._tensors import write_states
from kfl.runfolder._trail import Snapshot, round_of

if TYPE_CHECKING:
    from kfl.models import State

SCHEMA_VERSION = 1
LOCK = ".lock"


class RunFolder:
    """A folder of one run, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = _hash()
        self._trail = _hash()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder while the block runs. A folder of something else is refused."""
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                strangers = any(path.name != LOCK and not is_part(path) for path in self.path.iterdir())
                if strangers and not (self.path / "config.toml").exists():
                    raise RunFolderError(
                        f"The folder {self.path} is not empty and is no run folder; choose another with --out."
                    )
                stack.enter_context(only_one(self.path / LOCK))
                self._sweep()
            except LockedError:
                raise RunFolderError(
                    f"The run folder {self.path} is in use by another process; wait, or choose another with --out."
                ) from None
            except OSError as problem:
                raise cannot_write(self.path, problem) from problem
            yield

    def _sweep(self) -> None:
        """Remove what a process that was killed had begun to write; nobody else writes here while we hold the lock."""
        for folder in (self.path, self.path / "state", self.path / "models"):
            for path in folder.iterdir() if folder.is_dir() else ():
                if is_part(path):
                    path.unlink(missing_ok=True)

    def prepare(self, experiment: Experiment) -> Literal["new", "unfinished", "finished"]:
        """Make the folder ready for this experiment, and say what it already holds of it.

        Refused with the difference shown if it belongs to another experiment.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            existing = self.path / "config.toml"
            if existing.exists():
                self._refuse_other(experiment, existing)
                return "finished" if (self.path / "summary.json").exists() else "unfinished"
            # The config first: it makes this a run folder, and a folder that holds anything else but no config is not.
            write_atomic(existing, experiment.to_toml().encode())
            write_atomic(self.path / "rounds.jsonl", b"")
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        return "new"

    def plan(self) -> Plan | None:
        """How an unfinished run of this folder executed, so that it goes on the same way; None for a new one."""
        environment = _read_json(self.path / "environment.json", {})
        plan = environment.get("plan") if isinstance(environment, dict) else None
        if (self.path / "summary.json").exists() or not isinstance(plan, dict):
            return None
        return Plan.read(plan)

    def rewind(self, rounds: int) -> tuple[RoundLog, ...]:
        """Cut the history back to its first `rounds` rounds, so that the next can follow, and return them."""
        path = self.path / "rounds.jsonl"
        kept = _lines(path)[:rounds]
        trail = self._trail_before(rounds)
        self._history, self._trail = _hash(kept), _hash(trail)
        try:
            write_atomic(path, "".join(line + "\n" for line in kept).encode())
            write_atomic(self.path / "trail.jsonl", "".join(line + "\n" for line in trail).encode())
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        return tuple(_log(path, number, line) for number, line in enumerate(kept))

    def whole_rounds(self) -> int:
        """How many rounds the history holds without a gap or damage, counted from the first."""
        path = self.path / "rounds.jsonl"
        count = 0
        for number, line in enumerate(_lines(path)):
            try:
                if _log(path, number, line).round != number:
                    break
            except RunFolderError:
                break
            count += 1
        return count

    def history_sum(self, rounds: int) -> str:
        """Checksum of the first `rounds` rounds in the file, and of the trail up to there."""
        return _sums(_hash(_lines(self.path / "rounds.jsonl")[:rounds]), _hash(self._trail_before(rounds)))

    def sync(self) -> str:
        """Make sure that the rounds so far are on the disk, so that a checkpoint never knows more than the history.

        Returns the checksum of these rounds, as `history_sum` would from the file.
        """
        try:
            for name in ("rounds.jsonl", "trail.jsonl"):
                with (self.path / name).open("ab") as file:
                    os.fsync(file.fileno())
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        return _sums(self._history, self._trail)

    def _trail_before(self, rounds: int) -> list[str]:
        """The lines of the trail before a round, up to the first that is damaged."""
        kept: list[str] = []
        for line in _lines(self.path / "trail.jsonl"):
            number = round_of(line)
            if number is None or number >= rounds:
                break
            kept.append(line)
        return kept

    def _refuse_other(self, experiment: Experiment, existing: Path) -> None:
        try:
            before = read_toml(existing)
        except ValueError as problem:
            raise RunFolderError(
                f"The configuration {existing} is damaged ({problem}); choose another folder."
            ) from problem
        changed = differences(identity_fields(before), parse_toml(experiment.identity()))
        if changed:
            raise RunFolderError(
                f"The run folder {self.path} belongs to another configuration ({'; '.join(changed)}); "
                "choose another folder with --out."
            )

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """What the run ran on."""
        self._json("environment.json", {"schema_version": SCHEMA_VERSION, **environment})

    def append(self, log: RoundLog) -> None:
        """Add one round: one write of one whole line."""
        line = json.dumps(jsonable(log.to_dict()), allow_nan=False) + "\n"
        self._append("rounds.jsonl", line.encode())
        self._history.update(line.encode())

    def append_snapshot(self, snapshot: Snapshot) -> None:
        """Add to the trail: one write of one whole line."""
        line = snapshot.to_line() + "\n"
        self._append("trail.jsonl", line.encode())
        self._trail.update(line.encode())

    def _append(self, name: str, line: bytes) -> None:
        try:
            descriptor = os.open(self.path / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(descriptor, line) < len(line):  # a disk that is full takes a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(descriptor)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem

    def finish(self, history: History, server: State, devices: Mapping[int, State] | None = None) -> None:
        """Write what is known at the end; the summary last, because it marks the run as finished.

        `devices` are the states to keep as models; None keeps none.
        """
        buffer = io.BytesIO()
        arrays = {name: value.cpu().numpy() for name, value in server.items()}
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy types its keyword arguments as a flag
        try:
            write_atomic(self.path / "knowledge.npz", buffer.getvalue())
            if devices is not None:
                write_states(self.path, devices)
            write_json_list(self.path / "devices.json", history.devices)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        self._json("summary.json", history.summary)

    def _json(self, name: str, value: object) -> None:
        try:
            write_json(self.path / name, value)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem


def load_experiment(path: Path) -> Experiment:
    """The experiment of a run folder."""
    if not (path / "config.toml").exists():
        raise RunFolderError(f"{path} is no run folder: it has no config.toml.")
    return Experiment.load(path / "config.toml")


def load_run(path: Path) -> tuple[Experiment, History]:
    """Read a run folder: its experiment and what happened so far."""
    experiment = load_experiment(path)
    rounds = []
    for number, line in enumerate(_lines(path / "rounds.jsonl")):
        rounds.append(_log(path / "rounds.jsonl", number, line))
    summary = _read_json(path / "summary.json", {})
    devices = _read_json(path / "devices.json", [])
    return experiment, History(tuple(rounds), summary, tuple(devices), str(path))


def _log(path: Path, number: int, line: str) -> RoundLog:
    try:
        return RoundLog.from_dict(parse_json(line))
    except (ValueError, TypeError, AttributeError) as problem:
        raise RunFolderError(f"Line {number + 1} of {path} is damaged ({problem}).") from problem


def _lines(path: Path) -> list[str]:
    """Whole lines of a file; a last line without its end was torn by a crash and does not count."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return text.split("\n")[:-1]


def _hash(lines: Iterable[str] = ()) -> hashlib.blake2b:
    """Checksum of a history, round after round."""
    digest = hashlib.blake2b(digest_size=16)
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest


def _sums(history: hashlib.blake2b, trail: hashlib.blake2b) -> str:
    """Both checksums in one text; an empty trail adds nothing, as in folders from before there were trails."""
    if trail.digest() == _hash().digest():
        return history.hexdigest()
    return f"{history.hexdigest()}-{trail.hexdigest()}"


def read_environment(path: Path) -> dict[str, Any]:
    """What a run ran on: the environment.json of its folder, with the facts that others ask for."""
    found = _read_json(path / "environment.json", {})
    if isinstance(found, dict) and isinstance(found.get("dataset"), dict) and "note" in found["dataset"]:
        return {"repeatable": "yes", **found}
    raise RunFolderError(f"{path / 'environment.json'} is missing or damaged: it does not say which data was used.")


def _read_json(path: Path, missing: Any) -> Any:
    if not path.exists():
        return missing
    try:
        return read_json(path)
    except ValueError as problem:
        raise RunFolderError(f"{path} is damaged ({problem}).") from problem


def cannot_write(path: Path, problem: OSError) -> RunFolderError:
    """The sentence for a folder that cannot be written."""
    return RunFolderError(
        f"The run folder {path} cannot be written ({problem.strerror or problem}); choose another with --out."
    )
