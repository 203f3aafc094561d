"""Write a run folder: every file whole or not at all, every line of a history in one piece.

The order matters for a process that may be killed at any moment: the configuration comes first, because it makes the
folder a run folder; the summary comes last, because it marks the run as finished; rounds are on the disk before a
checkpoint counts on them, the last one in the checkpoint itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kfl.core.columns import Records
from kfl.core.config import differences, dump_toml
from kfl.core.errors import RunFolderError
from kfl.core.files import Folder, LockedError, UnsafeFileError, is_part, jsonable, only_one, write_atomic, write_json
from kfl.core.parse import parse_toml
from kfl.engine.plan import Plan
from kfl.experiment import Experiment, identity_fields, in_todays_words
from kfl.runfolder import _files as files
from kfl.runfolder._checkpoint import Checkpoints
from kfl.runfolder._columns import without_columns, write_records
from kfl.runfolder._files import cannot_write, whole_lines
from kfl.runfolder._read import RunReader, read_log
from kfl.runfolder._snapshot import Snapshot, round_of
from kfl.runfolder._tensors import write_states
from kfl.simulation.logs import History, RoundLog

if TYPE_CHECKING:
    from kfl.models import State

SCHEMA_VERSION = 1


class RunFolder:
    """The folder of one run, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = _hash()
        self._trail = _hash()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock while the block runs. A folder that holds something else is refused."""
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                strangers = any(path.name != files.LOCK and not is_part(path) for path in self.path.iterdir())
                if strangers and not files.is_run_folder(self.path):
                    raise RunFolderError(
                        f"The folder {self.path} is not empty and is not a run folder; {files.ELSEWHERE}."
                    )
                stack.enter_context(only_one(self.path / files.LOCK))
                self._sweep()
            except LockedError:
                raise RunFolderError(
                    f"The run folder {self.path} is in use by another process; wait, or {files.ELSEWHERE}."
                ) from None
            except UnsafeFileError as problem:
                raise files.damaged(Path(problem.filename), problem.strerror) from problem
            except OSError as problem:
                raise cannot_write(self.path, problem) from problem
            yield

    def _sweep(self) -> None:
        """Remove unfinished files of a process that was killed; no other process writes here while we hold the lock.

        A link may lead out of the folder, so a folder with one is refused.
        """
        with Folder(self.path) as folder:
            _sweep(folder)
            for name in (files.CHECKPOINTS, files.MODELS, files.COLUMNS):
                with contextlib.suppress(FileNotFoundError), folder.folder(name) as below:
                    _sweep(below)

    def prepare(self, experiment: Experiment) -> Literal["new", "unfinished", "finished"]:
        """Make the folder ready for this experiment, and say what it already holds of it.

        A folder of another experiment is refused, with the differences.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            existing = self.path / files.CONFIG
            if files.is_run_folder(self.path):
                self._refuse_other(experiment, existing)
                if not files.is_finished(self.path):
                    return "unfinished"
                self._remove_checkpoints()  # a kill may have come just before that
                return "finished"
            # The config first: it makes this a run folder, and a folder that holds anything else but no config is not.
            write_atomic(existing, experiment.to_toml().encode())
            write_atomic(self.path / files.ROUNDS, b"")
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        return "new"

    def identity(self) -> str:
        """The configuration that the folder holds, as text by which runs are told apart, after `prepare`.

        For a new run it is `Experiment.identity`. An earlier version may have said the same in other words, and its
        checkpoints go by those.
        """
        return dump_toml(identity_fields(parse_toml(RunReader(self.path).config_text())))

    def plan(self) -> Plan | None:
        """The execution plan of an unfinished run, so that it resumes the same way; None for a new run."""
        plan = RunReader(self.path).environment().get("plan")
        if files.is_finished(self.path) or not isinstance(plan, dict):
            return None
        return Plan.read(plan)

    def checkpoints(self, identity: str, interval_s: float | None = None) -> Checkpoints:
        """The checkpoints of this run, for a run of this identity."""
        return Checkpoints(self.path / files.CHECKPOINTS, identity=identity, interval_s=interval_s)

    def _remove_checkpoints(self) -> None:
        with Folder(self.path) as folder:
            folder.remove_folder(files.CHECKPOINTS)

    def rewind(self, rounds: int, last: Mapping[str, str] | None = None) -> tuple[RoundLog, ...]:
        """Truncate the history to its first `rounds` rounds and return them.

        `last` are the lines of the last of them, where a checkpoint holds them and they may not be there yet.
        """
        path = self.path / files.ROUNDS
        kept, trail = self._kept(rounds, last or {})
        self._history, self._trail = _hash(kept), _hash(trail)
        try:
            write_atomic(path, "".join(line + "\n" for line in kept).encode())
            write_atomic(self.path / files.TRAIL, "".join(line + "\n" for line in trail).encode())
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        return tuple(read_log(path, number, line) for number, line in enumerate(kept))

    def rounds(self) -> tuple[RoundLog, ...]:
        """Every round so far."""
        return RunReader(self.path).rounds()

    def whole_rounds(self) -> int:
        """Number of rounds from the first that the history holds without a gap or damage."""
        return len(RunReader(self.path).whole_rounds())

    def history_sum(self, rounds: int, last: Mapping[str, str] | None = None) -> str:
        """Checksum of the first `rounds` rounds on disk, and of the trail up to there; `last` as in `rewind`.

        It is empty, and that of no history, where the columns of the last of them are missing or damaged.
        """
        kept, trail = self._kept(rounds, last or {})
        try:
            if last and kept:
                read_log(self.path / files.ROUNDS, rounds - 1, kept[-1])
        except RunFolderError:
            return ""
        return _sums(_hash(kept), _hash(trail))

    def _kept(self, rounds: int, last: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """The lines of the first `rounds` rounds and of their trail, those of the last round given or on disk."""
        given = {name: [line.rstrip("\n")] for name, line in last.items()}
        before = rounds - bool(last)
        kept = whole_lines(self.path / files.ROUNDS)[:before]
        return kept + given.get(files.ROUNDS, []), self._trail_before(before) + given.get(files.TRAIL, [])

    def lines(self, log: RoundLog, snapshot: Snapshot | None = None) -> dict[str, str]:
        """What a round adds to the history: a line for each file. Columns that a line names are on the disk already."""
        try:
            values = without_columns(self.path, log.round, log.to_dict())
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        found = {files.ROUNDS: json.dumps(jsonable(values), allow_nan=False) + "\n"}
        return found if snapshot is None else {**found, files.TRAIL: snapshot.to_line() + "\n"}

    def sync(self, last: Mapping[str, str] | None = None) -> str:
        """Flush the rounds so far to the disk, so that no checkpoint is ahead of the history.

        Returns the checksum of these rounds and of the lines `last`, which the checkpoint holds and which are added
        after it, as `history_sum` would from the file.
        """
        try:
            with Folder(self.path) as folder:
                for name in (files.ROUNDS, files.TRAIL):
                    folder.append(name)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        history, trail = self._history.copy(), self._trail.copy()
        history.update((last or {}).get(files.ROUNDS, "").encode())
        trail.update((last or {}).get(files.TRAIL, "").encode())
        return _sums(history, trail)

    def _trail_before(self, rounds: int) -> list[str]:
        """The lines of the trail before a round, up to the first that is damaged."""
        kept: list[str] = []
        for line in whole_lines(self.path / files.TRAIL):
            number = round_of(line)
            if number is None or number >= rounds:
                break
            kept.append(line)
        return kept

    def _refuse_other(self, experiment: Experiment, existing: Path) -> None:
        try:
            before = in_todays_words(parse_toml(RunReader(self.path).config_text()))
        except ValueError as problem:
            raise RunFolderError(
                f"The configuration {existing} is damaged ({problem}); choose another folder."
            ) from problem
        changed = differences(identity_fields(before), parse_toml(experiment.identity()))
        if changed:
            raise RunFolderError(
                f"The run folder {self.path} belongs to another configuration ({'; '.join(changed)}); "
                f"{files.ELSEWHERE}."
            )

    def refuse_other_files(self, environment: Mapping[str, Any]) -> None:
        """Refuse to go on, or to take a finished run for this one, with a trace or data file that has changed."""
        before = RunReader(self.path).environment()
        traces, now = before.get("traces"), environment.get("traces")
        if isinstance(traces, Mapping) and isinstance(now, Mapping):
            for name, trace in now.items():
                if traces.get(name, trace) != trace:
                    raise self._changed(f"The {name} trace {trace['path']}")
        data, found = before.get("dataset"), environment.get("dataset")
        if isinstance(data, Mapping) and isinstance(found, Mapping) and "path" in found:
            fingerprint = found["fingerprint"]
            if data.get("fingerprint", fingerprint) != fingerprint:
                raise self._changed(f"The dataset {found['path']}")

    def _changed(self, what: str) -> RunFolderError:
        return RunFolderError(
            f"{what} has changed since the run in {self.path} began; restore it, or {files.ELSEWHERE} for a new run."
        )

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Record what the run runs on."""
        self._json(files.ENVIRONMENT, {"schema_version": SCHEMA_VERSION, **environment})

    def append(self, lines: Mapping[str, str]) -> None:
        """Add what `lines` says of a round: one write of one whole line for each file."""
        sums = {files.ROUNDS: self._history, files.TRAIL: self._trail}
        for name, line in lines.items():
            self._append(name, line.encode())
            sums[name].update(line.encode())

    def write_fleet(self, members: Mapping[str, Any]) -> None:
        """Record who is in a real fleet."""
        self._json(files.FLEET, members)

    def write_asked(self, round_index: int, devices: Iterable[int]) -> None:
        """Record who is there before devices are asked: a round that is played again is played with the same."""
        self._json(files.ASKED, {"round": round_index, "devices": list(devices)})

    def append_fleet(self, facts: Mapping[str, Any]) -> None:
        """Add the real times and sizes of a fleet's round."""
        self._append(files.FLEET_ROUNDS, (json.dumps(jsonable(facts), allow_nan=False) + "\n").encode())

    def _append(self, name: str, line: bytes) -> None:
        try:
            with Folder(self.path) as folder:
                folder.append(name, line)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem

    def finish(self, history: History, server: State, devices: Mapping[int, State] | None = None) -> None:
        """Write what is known at the end, the summary last, and remove the checkpoints.

        `devices` are the states to keep as models; None keeps none.
        """
        buffer = io.BytesIO()
        arrays = {name: value.cpu().numpy() for name, value in server.items()}
        np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy types its keyword arguments as a flag
        try:
            write_atomic(self.path / files.SERVER, buffer.getvalue())
            if devices is not None:
                write_states(self.path, devices)
            if isinstance(history.devices, Records):
                write_records(self.path / files.DEVICE_COLUMNS, history.devices)
            else:
                files.write_rows(self.path / files.DEVICES, history.devices)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        self._json(files.SUMMARY, history.summary)
        self._remove_checkpoints()

    def receive(self, contents: Mapping[str, bytes]) -> None:
        """Write a finished run that was played on another machine, as `RunReader.contents` read it there."""
        order = {files.CONFIG: 0, files.SUMMARY: 2}
        with self.locked():
            try:
                for name in sorted(contents, key=lambda name: order.get(name, 1)):
                    self._put(name, contents[name])
            except ValueError:
                raise RunFolderError(
                    f"The file {name!r} of a run from another machine leads out of its folder."
                ) from None
            except OSError as problem:
                raise cannot_write(self.path, problem) from problem
            self._remove_checkpoints()  # of an attempt that was begun here

    def _put(self, name: str, data: bytes) -> None:
        """Write a file by its path in the folder; ValueError where that leads out of it."""
        *places, last = name.split("/")
        with ExitStack() as stack:
            folder = stack.enter_context(Folder(self.path))
            for place in places:
                folder = stack.enter_context(folder.make(place))
            folder.write(last, data)

    def _json(self, name: str, value: object) -> None:
        try:
            write_json(self.path / name, value)
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem


def _sweep(folder: Folder) -> None:
    folder.refuse_links()
    for name in folder.names():
        if is_part(Path(name)):
            folder.remove(name)


def _hash(lines: Iterable[str] = ()) -> hashlib.blake2b:
    """Checksum of a history, round after round."""
    digest = hashlib.blake2b(digest_size=16)
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest


def _sums(history: hashlib.blake2b, trail: hashlib.blake2b) -> str:
    """Both checksums in one text; an empty trail adds nothing, as in folders of versions without trails."""
    if trail.digest() == _hash().digest():
        return history.hexdigest()
    return f"{history.hexdigest()}-{trail.hexdigest()}"
