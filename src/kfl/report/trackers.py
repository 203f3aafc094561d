"""Trackers: log a run to TensorBoard, MLflow or Weights & Biases while it is running.

A tracker is off unless it is asked for, and never stops a run: a missing package is one sentence before training
starts, and a tracker that fails later is reported once. A resumed run continues the tracker's run by the means of its
package. trackers.json in the run folder notes what was logged.

    with Tracking(["tensorboard"], folder) as tracking:
        history = kfl.run(experiment, folder, on_start=tracking.on_start, on_round=tracking.on_round)
        tracking.finish(experiment, history)

Your own tracker is one class and one line: `TRACKERS["mine"] = Mine`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from kfl.core.errors import ConfigError, KflError, MissingExtraError, RunFolderError
from kfl.core.names import for_label
from kfl.core.telemetry import hush
from kfl.core.text import scrub
from kfl.experiment import Experiment
from kfl.report.tracker_metrics import RunningMetrics
from kfl.runfolder import TRACKER_RUNS, History, RoundLog, read_note, write_note

if TYPE_CHECKING:
    from kfl.simulation.world import World

_logger = logging.getLogger("kfl.trackers")
Metrics = Mapping[str, float]
LONGEST_RUN = 128
"""Characters of a run's name in a tracker."""


@dataclass(frozen=True)
class RunFacts:
    """What a tracker needs to name a run, and to find it again when it is resumed."""

    name: str
    """The run folder's name."""
    folder: Path | None
    """None for a run that is kept in memory; then nothing is remembered."""
    tags: Mapping[str, str]
    """Versions, algorithm, scheduler and dataset."""

    def remembered(self, tracker: str) -> dict[str, Any]:
        """Return a tracker's note about this run; empty the first time, or when the note is damaged.

        `rounds` are those that were logged when it was last closed, `finished` whether the summary was, too.
        """
        found = self._notes().get(tracker)
        return dict(found) if isinstance(found, dict) and type(found.get("rounds", 0)) is int else {}

    def remember(self, tracker: str, **note: Any) -> None:
        """Add to a tracker's note."""
        if self.folder is not None:
            merged = {**self.remembered(tracker), **note}
            write_note(self.folder, TRACKER_RUNS, {**self._notes(), tracker: merged})

    def _notes(self) -> dict[str, Any]:
        with contextlib.suppress(RunFolderError):
            return {} if self.folder is None else read_note(self.folder, TRACKER_RUNS)
        return {}


class Tracker(ABC):
    """A service that shows runs. The three methods are called in this order, `log` once per round."""

    name: ClassVar[str]
    package: ClassVar[str]
    """The package it needs, also the name of kfl's extra."""

    @abstractmethod
    def open(self, run: RunFacts, config: Mapping[str, Any]) -> int:
        """Begin, or continue what `run` remembers; return how many rounds the tracker already holds of it."""

    @abstractmethod
    def log(self, log: RoundLog, metrics: Metrics) -> None:
        """Show one round. Its step is `log.round + 1`: the number of rounds played."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End: with the summary of a finished run, or None when the run was stopped and may be resumed."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Where to find the run, in words; known once it is open."""


_BUILT_IN = {
    "tensorboard": "kfl.report.trackers_tensorboard:TensorBoardTracker",
    "mlflow": "kfl.report.trackers_mlflow:MlflowTracker",
    "wandb": "kfl.report.trackers_wandb:WandbTracker",
}
TRACKERS: dict[str, str | type[Tracker]] = dict(_BUILT_IN)
"""Every tracker by the word that selects it: its class, or where to import it from."""


def tracker_names(words: Iterable[str]) -> tuple[str, ...]:
    """Return names from words that may hold several, separated by commas; each once, unknown ones refused.

    >>> tracker_names(["tensorboard,mlflow", "mlflow"])
    ('tensorboard', 'mlflow')
    """
    names = [part.strip().lower() for word in words for part in word.split(",") if part.strip()]
    for name in names:
        if name not in TRACKERS:
            raise ConfigError("track", name, f"one of {', '.join(TRACKERS)}, or several with commas", choices=TRACKERS)
    return tuple(dict.fromkeys(names))


def make_trackers(wanted: Sequence[str | Tracker]) -> list[Tracker]:
    """Return trackers by their names, or as they are; the packages of all must be installed."""
    hush()
    made = [_make(one) if isinstance(one, str) else one for one in wanted]
    missing = [tracker for tracker in made if importlib.util.find_spec(tracker.package) is None]
    if len(missing) > 1:
        names = " and ".join(tracker.name for tracker in missing)
        raise MissingExtraError.of_several({one.package: one.name for one in missing}, f"The trackers {names}")
    if missing:
        raise MissingExtraError(missing[0].package, missing[0].name, f"The tracker {missing[0].name}")
    return made


def _make(name: str) -> Tracker:
    kind = TRACKERS[tracker_names([name])[0]]
    if isinstance(kind, str):
        module, _, attribute = kind.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
    assert isinstance(kind, type)
    made: Tracker = kind()
    return made


class Tracking:
    """All trackers of one run, as the callbacks of `kfl.run`.

    Args:
        trackers: names, or trackers of your own.
        folder: the run folder; None for a run in memory.
        tell: is given each sentence for the user; by default they are logged to "kfl.trackers".

    >>> import kfl, numpy as np
    >>> class Printer(Tracker):
    ...     name, package, where = "printer", "kfl", "here"
    ...     def open(self, run, config): return 0
    ...     def log(self, log, metrics): print("round", log.round + 1, sorted(metrics)[:2])
    ...     def close(self, summary): print("done" if summary else "stopped")
    >>> x, y = np.random.default_rng(0).random((100, 4), dtype=np.float32), np.arange(100) % 2
    >>> experiment = kfl.Experiment(devices=4, rounds=2, widths=(8,))
    >>> with Tracking([Printer()]) as tracking:
    ...     history = kfl.run(experiment, dataset=kfl.Dataset.from_arrays(x, y), on_start=tracking.on_start,
    ...                       on_round=tracking.on_round)
    ...     tracking.finish(experiment, history)
    round 1 ['accuracy', 'bits/down']
    round 2 ['accuracy', 'bits/down']
    done
    """

    def __init__(
        self,
        trackers: Sequence[str | Tracker],
        folder: str | Path | None = None,
        tell: Callable[[str], None] = _logger.warning,
    ) -> None:
        self._waiting = make_trackers(trackers)
        self._open: dict[Tracker, int] = {}
        self._folder = None if folder is None else Path(folder)
        self._tell = tell
        self._metrics: RunningMetrics | None = None
        self._facts: RunFacts | None = None

    def __enter__(self) -> Tracking:
        return self

    def on_start(self, world: World) -> None:
        """Begin with the world of a run that is about to start."""
        self._begin(world.experiment)

    def on_round(self, log: RoundLog) -> None:
        """Show a round, also one that a resumed run only repeats: trackers that hold it already are spared."""
        if self._metrics is None:
            raise KflError("Tracking.on_round needs Tracking.on_start before it; hand both to kfl.run.")
        metrics = self._metrics.of(log)
        for tracker, held in list(self._open.items()):
            if log.round >= held and self._try(tracker, partial(tracker.log, log, metrics)):
                self._open[tracker] = log.round + 1

    def finish(self, experiment: Experiment, history: History) -> None:
        """Close with the summary. A run that was finished before is shown now, whole, where it is not yet."""
        if self._metrics is None:
            self._begin(experiment)
            for log in history.rounds:
                self.on_round(log)
        self._close(history.summary)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None)

    def _begin(self, experiment: Experiment) -> None:
        """Open every tracker. One that cannot begin stops the run: now it costs nothing yet."""
        self._metrics = RunningMetrics(experiment)
        self._facts = facts = run_facts(experiment, self._folder)
        while self._waiting:
            tracker = self._waiting.pop(0)
            try:
                self._open[tracker] = tracker.open(facts, experiment.to_table())
            except KflError:
                raise
            except Exception as problem:  # their packages raise all sorts of things, and each means: not today
                self._close(None)
                raise KflError(
                    f"The tracker {tracker.name} could not begin: {in_one_line(problem)}. "
                    f"Fix the cause, or leave {tracker.name} out of --track."
                ) from problem
            self._tell(f"Tracked by {tracker.name}: {tracker.where}")

    def _close(self, summary: Mapping[str, Any] | None) -> None:
        for tracker in list(self._open):
            self._try(tracker, partial(self._end, tracker, summary))
            self._open.pop(tracker, None)

    def _end(self, tracker: Tracker, summary: Mapping[str, Any] | None) -> None:
        """Close a tracker, and note what it holds."""
        tracker.close(summary)
        if self._facts is not None:
            finished = {} if summary is None else {"finished": True}
            self._facts.remember(tracker.name, rounds=self._open[tracker], **finished)

    def _try(self, tracker: Tracker, call: Callable[[], None]) -> bool:
        """Call a tracker; one that fails is reported once and left alone from then on."""
        try:
            call()
        except Exception as problem:  # a run must not end because a server did
            self._open.pop(tracker, None)
            self._tell(f"The tracker {tracker.name} failed; the run continues without it: {in_one_line(problem)}.")
            return False
        return True


def run_facts(experiment: Experiment, folder: Path | None) -> RunFacts:
    """Return name and tags of a run."""
    from kfl._version import __version__

    tags = {
        "kfl": __version__,
        "algorithm": experiment.algorithm.name,
        "scheduler": experiment.scheduler.name,
        "dataset": experiment.dataset,
    }
    name = f"{experiment.algorithm.name}-{experiment.dataset}" if folder is None else folder.resolve().name
    return RunFacts(for_label(name, LONGEST_RUN), folder, {key: for_label(tag) for key, tag in tags.items()})


def without_password(text: str) -> str:
    """Return a text in which no address has a user's name and password or token.

    >>> without_password("http://me:secret@mlflow.test:5000 does not answer")
    'http://…@mlflow.test:5000 does not answer'
    """
    return re.sub(r"(?<=://)[^/@\s]+@", "…@", text)


def in_one_line(problem: BaseException, most: int = 300) -> str:
    """Return an exception of another package as the part of a sentence.

    >>> in_one_line(OSError("disk is full.\\nAborting"))
    'disk is full. Aborting'
    """
    said = without_password(str(problem))
    return scrub(said, most, hide_paths=False).rstrip(".") or type(problem).__name__
