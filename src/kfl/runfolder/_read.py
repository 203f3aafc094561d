"""Read a run folder without trusting it: nothing that it names is imported or executed.

What a folder does not have is empty; what is damaged is a RunFolderError with one sentence. Only `load_experiment` and
`load_run`, which give the real Experiment, import the user's own algorithm or scheduler where the configuration names
one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from kfl.core.columns import Records
from kfl.core.config import Table
from kfl.core.errors import RunFolderError
from kfl.core.files import Folder, is_part
from kfl.core.parse import parse_json, parse_toml
from kfl.data.untrusted import read_npz
from kfl.experiment import Experiment, in_todays_words
from kfl.runfolder import _files as files
from kfl.runfolder import _schema as schema
from kfl.runfolder._columns import read_records, with_columns
from kfl.runfolder._environment import given_as_objects
from kfl.runfolder._snapshot import Snapshot
from kfl.runfolder._tensors import read_state
from kfl.simulation.logs import History, RoundLog

if TYPE_CHECKING:
    from kfl.models import State

WATCHED = (
    *(files.CONFIG, files.ENVIRONMENT, files.ROUNDS, files.TRAIL, files.DEVICES, files.DEVICE_COLUMNS),
    files.SUMMARY,
)
"""Files that a page about a run is made of."""


@dataclass(frozen=True)
class RunReader:
    """A run folder, finished or not, open for reading. Every method reads the file anew."""

    path: Path

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return files.is_finished(self.path)

    @property
    def held(self) -> bool:
        """Whether a process is writing into the folder now."""
        return files.is_held(self.path)

    def config_text(self) -> str:
        """The configuration as it was written."""
        files.require_run_folder(self.path)
        try:
            return files.read_file(self.path / files.CONFIG).decode()
        except ValueError as problem:
            raise files.damaged(self.path / files.CONFIG, problem) from problem

    def config(self) -> Table:
        """The configuration as plain values in today's words; `load_experiment` makes an Experiment of it."""
        try:
            return in_todays_words(parse_toml(self.config_text()))
        except ValueError as problem:
            raise files.damaged(self.path / files.CONFIG, problem) from problem

    def environment(self) -> dict[str, Any]:
        """What the run ran on: versions, hardware, data, models, execution plan."""
        path = self.path / files.ENVIRONMENT
        return schema.check_environment(path, files.read_object(path))

    def dataset(self, *needed: str) -> dict[str, Any]:
        """What the environment says about the data: its name, shape, scaling and a note for the reader.

        Args:
            needed: fields without which it is of no use.
        """
        path, found = self.path / files.ENVIRONMENT, self.environment().get("dataset")
        if found is None or "note" not in found:
            raise RunFolderError(f"{path} is missing or damaged: it does not say which data was used.")
        schema.check(path, found, {}, needed, "dataset.")
        return dict(found)

    def given_as_objects(self) -> tuple[str, ...]:
        """Which of "dataset" and "models" the configuration cannot rebuild: they were given as Python objects."""
        return given_as_objects(self.environment())

    def job(self) -> dict[str, Any]:
        """How `kfl run` was asked to carry out the run; empty for a run that it did not start."""
        found = files.read_note(self.path, files.JOB)
        schema.check(self.path / files.JOB, found, schema.JOB)
        return found

    def rounds(self, devices: int | None = None) -> tuple[RoundLog, ...]:
        """Every round so far. `devices`, the size of the fleet, is checked where it is given."""
        path = self.path / files.ROUNDS
        return tuple(read_log(path, number, line, devices) for number, line in enumerate(files.whole_lines(path)))

    def whole_rounds(self) -> list[RoundLog]:
        """The rounds up to the first that is damaged or out of order, for who watches a run that is being written."""
        found: list[RoundLog] = []
        try:
            lines = files.whole_lines(self.path / files.ROUNDS)
            for number, line in enumerate(lines):
                found.append(read_log(self.path / files.ROUNDS, number, line))
        except RunFolderError:
            pass
        return found

    def trail(self) -> list[Snapshot]:
        """The snapshots on the way, up to the first that is damaged; empty for a run of a version without them."""
        found: list[Snapshot] = []
        for line in files.whole_lines(self.path / files.TRAIL):
            try:
                found.append(Snapshot.from_line(line))
            except ValueError:
                break
        return found

    def summary(self) -> dict[str, Any]:
        """Totals; empty while the run is not finished."""
        path = self.path / files.SUMMARY
        return schema.check_summary(path, files.read_object(path))

    def devices(self, *needed: str) -> tuple[dict[str, Any], ...] | Records:
        """One record per device, with the fields that are needed; empty while the run is not finished."""
        records = read_records(self.path / files.DEVICE_COLUMNS)
        if records is not None:
            return schema.check_records(self.path / files.DEVICE_COLUMNS, records, needed)
        path = self.path / files.DEVICES
        try:
            return schema.check_devices(path, files.read_value(path), needed)
        except FileNotFoundError:
            return ()

    def history(self) -> History:
        """What happened so far."""
        return History(self.rounds(), self.summary(), self.devices(), str(self.path))

    def server(self) -> dict[str, NDArray[Any]]:
        """What the server holds at the end: its arrays by name."""
        path = self.path / files.SERVER
        if not path.exists() and (self.path / files.OLD_SERVER).exists():
            path = self.path / files.OLD_SERVER
        try:
            return read_npz(files.read_file(path, files.MOST_ARRAYS))
        except (OSError, ValueError, TypeError) as problem:
            raise RunFolderError(f"The file {path} is missing or damaged ({problem}).") from problem

    @property
    def has_models(self) -> bool:
        """Whether the run kept its devices' models."""
        return (self.path / files.MODELS).is_dir()

    def model(self, device: int) -> State | None:
        """What a device holds at the end; None where it has no file: it never trained, or keeps nothing."""
        return read_state(self.path, device)

    def no_model(self, device: int) -> RunFolderError:
        """The error for a device that trained and whose file is missing."""
        return RunFolderError(f"{self.path / files.MODELS} has no file for device {device}, though it trained.")

    @property
    def is_fleet(self) -> bool:
        """Whether a real fleet's server wrote the folder."""
        return (self.path / files.FLEET).exists()

    def fleet(self) -> dict[str, Any]:
        """The members of a real fleet: its name, who joined, who was refused; empty for a simulation."""
        return files.read_object(self.path / files.FLEET)

    def asked(self) -> tuple[int, frozenset[int]]:
        """The last round of a real fleet, and its devices; −1 and none before the first."""
        found = files.read_note(self.path, files.ASKED)
        schema.check(self.path / files.ASKED, found, schema.ASKED, ("round", "devices") if found else ())
        return found.get("round", -1), frozenset(found.get("devices", ()))

    def fleet_rounds(self) -> list[dict[str, Any]]:
        """Real times and sizes of a fleet's rounds. Lines that cannot be read are left out."""
        return files.read_lines(self.path / files.FLEET_ROUNDS)

    def contents(self) -> dict[str, bytes]:
        """Every file by its path inside the folder, for `RunFolder.receive` on another machine."""
        with Folder(self.path) as folder:
            return dict(_contents(folder, ""))

    def stamp(self) -> str:
        """A text that changes whenever a file does that a page about this run is made of."""
        stamps = []
        for name in WATCHED:
            try:
                found = (self.path / name).stat()
                stamps.append(f"{found.st_ino:x}.{found.st_size:x}.{found.st_mtime_ns:x}")
            except OSError:
                stamps.append("")
        return "-".join(stamps)

    def quiet_s(self) -> float:
        """Seconds since the last round was written."""
        try:
            return max(0.0, time.time() - (self.path / files.ROUNDS).stat().st_mtime)
        except OSError:
            return 0.0


def _contents(folder: Folder, place: str) -> Iterator[tuple[str, bytes]]:
    """The files of a folder and of those in it, without what is a link or no file."""
    for name in folder.names():
        if name == files.LOCK or is_part(Path(name)):
            continue
        try:
            with folder.folder(name) as below:
                yield from _contents(below, f"{place}{name}/")
        except NotADirectoryError:
            yield f"{place}{name}", folder.read(name, files.MOST_ARRAYS)


def read_log(path: Path, number: int, line: str, devices: int | None = None) -> RoundLog:
    """One line of a history, which must be about round `number`."""
    try:
        values = parse_json(line)
        if not isinstance(values, dict) or values.get("round") != number:
            raise ValueError(f"it is not round {number}")
        return RoundLog.from_dict(with_columns(path.parent, number, values), devices)
    except ValueError as problem:
        raise RunFolderError(f"Line {number + 1} of {path} is damaged ({problem}).") from problem


def load_experiment(path: Path) -> Experiment:
    """The experiment of a run folder."""
    return Experiment.from_table(RunReader(path).config())


def load_run(path: str | Path) -> tuple[Experiment, History]:
    """The experiment of a run folder and what happened so far.

    >>> import kfl, tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=(8,)), folder)
    >>> experiment, again = load_run(folder)
    >>> experiment.rounds, again == history
    (2, True)
    """
    return load_experiment(Path(path)), RunReader(Path(path)).history()
