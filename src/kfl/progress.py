"""Progress of runs while a person watches: of one run, or of many.

On a terminal it is a live line with a bar, in a notebook a line that changes, elsewhere (a log file, a pipe) plain
lines, about twenty of them. The command line shows it on its output; `run` and `run_many` on the error stream, and by
default only where a user is likely to look. The display is rich's, which the library itself does not need.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from kfl.core.errors import KflError
from kfl.core.names import LONGEST_NAME, for_terminal
from kfl.core.terminal import plain_console, tell, tell_exactly
from kfl.core.text import duration, percent, quantity
from kfl.simulation.logs import History, RoundLog

if TYPE_CHECKING:
    from rich.console import Console

    from kfl.experiment import Experiment
    from kfl.simulation.world import World

    OnStart = Callable[[World], None]
    OnRound = Callable[[RoundLog], None]

T = TypeVar("T")
LINE = 80
"""Characters of a notebook's line, which the next one covers."""


@dataclass(frozen=True)
class Progress:
    """How far many runs have come, reported after every round and every run."""

    name: str
    """The run that advanced."""
    rounds_done: int
    """Over all runs, including those that were finished already."""
    rounds: int
    runs_done: int
    runs: int
    history: History | None = None
    """The run's history, where it has just finished."""
    problem: str | None = None
    """Why the run failed, where it did."""
    diverged: bool = False
    """Whether it failed because its training diverged."""


def error_console() -> Console:
    """Where the library shows progress: the error stream; in a notebook its output, as plain text."""
    if in_notebook():
        return plain_console(file=sys.stdout, force_jupyter=False, force_terminal=False, width=10_000)
    return plain_console(stderr=True)


class _LiveBar:
    """A progress bar on a terminal, while the block runs; nothing elsewhere."""

    def __init__(self, console: Console, label: str, total: int | None, facts: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = console
        self._started = time.perf_counter()
        self._progress = Bar(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal or console.quiet,
        )
        self._task = self._progress.add_task(for_terminal(label, LONGEST_NAME), total=total, facts=facts)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._progress.tasks[0].completed:  # all was finished before
            self._progress.update(self._task, visible=False)
        self._progress.stop()


class _Sentences(logging.Handler):
    """What the log says, such as how each architecture runs: next to the bar; warnings to the error stream."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Show one sentence."""
        if record.levelno >= logging.WARNING:
            tell(record.getMessage(), file=sys.stderr, flush=True)
        else:
            self._console.print(for_terminal(record.getMessage()), soft_wrap=True)


class RunDisplay(_LiveBar):
    """Progress of one run: round, accuracy, devices, energy so far, time left.

    With `sentences`, what the log says too. With `quiet`, only its warnings.
    """

    def __init__(
        self, rounds: int, label: str, *, sentences: bool = True, quiet: bool = False, console: Console | None = None
    ) -> None:
        super().__init__(console or plain_console(quiet=quiet), label, rounds, "reading data …")
        self._sentences = _Sentences(self._progress.console) if sentences else None
        self._logger = logging.getLogger("kfl")
        self._level = self._logger.level
        self._live = self._console.is_terminal or quiet
        self._rounds = rounds
        self._label = label
        self._energy_j = 0.0
        self._accuracy = "…"
        self._every = max(1, rounds // 20)
        self._overwrites = in_notebook()

    def __enter__(self) -> Self:
        if self._sentences is not None:
            self._logger.addHandler(self._sentences)
            self._logger.setLevel(min(self._logger.getEffectiveLevel(), logging.INFO))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, problem, trace)
        if self._sentences is not None:
            self._logger.setLevel(self._level)
            self._logger.removeHandler(self._sentences)

    def on_start(self, world: World) -> None:
        """Say what is about to run."""
        drawn = set(world.models.architecture.tolist())
        sizes = [world.models.profiles[which].parameters for which in drawn]
        kinds = len({world.models.names[which] for which in drawn})
        kind = f"{kinds} different networks" if kinds > 1 else "equal networks"
        size = f"{min(sizes):,} to {max(sizes):,}" if min(sizes) < max(sizes) else f"{sizes[0]:,}"
        models = f"{kind} of {size} parameters"
        self._progress.console.print(
            for_terminal(
                f"{world.devices:,} devices, {len(world.dataset.train_y):,} samples of {world.dataset.name}, {models}."
            ),
            soft_wrap=True,
        )
        if world.dataset.note:
            self._progress.console.print(for_terminal(f"Note: {world.dataset.note}"), soft_wrap=True)
        self._progress.update(self._task, facts="evaluating the initial models …")

    def on_round(self, log: RoundLog) -> None:
        """Show a finished round."""
        self._energy_j += log.energy_j
        if log.accuracy is not None:
            self._accuracy = percent(log.accuracy)
        facts = f"accuracy {self._accuracy}  {len(log.devices)} devices  {quantity(self._energy_j, 'J')}"
        if self._live:
            self._progress.update(self._task, advance=1, facts=facts)
        elif log.round % self._every == 0 or log.round + 1 == self._rounds:
            passed = time.perf_counter() - self._started
            line = f"{self._label}: round {log.round + 1}/{self._rounds}  {facts}  {passed:.0f} s"
            again = self._overwrites and log.round + 1 < self._rounds
            start, end = ("\r", "" if again else "\n") if self._overwrites else ("", "\n")
            tell_exactly(
                start + for_terminal(line).ljust(LINE * self._overwrites) + end, self._console.file, flush=True
            )


class ManyDisplay(_LiveBar):
    """Progress of many runs; with `quiet`, none is shown."""

    def __init__(self, label: str, *, quiet: bool = False, console: Console | None = None) -> None:
        super().__init__(console or plain_console(quiet=quiet), label, None, "rounds  starting …")
        self._found = 0
        """Rounds of runs that were finished before this command."""
        self._moved = False
        self._last = ""
        """The last run that finished, with its accuracy."""

    def on_progress(self, progress: Progress) -> None:
        """Show a finished round or run."""
        self._update(progress)
        if progress.history is None and progress.problem is None:
            self._moved = True
            return
        name = readable_name(progress.name)
        if not self._moved:  # it was there before
            self._found = progress.rounds_done
            outcome = f"{percent(progress.history.accuracy)}, finished before" if progress.history else "failed"
        elif progress.history is None:
            outcome = f"failed: {progress.problem}"
        else:
            outcome = f"{percent(progress.history.accuracy)}  {progress.history.summary['wall_s']:.0f} s"
        if self._console.is_terminal and progress.history is not None:  # one bar is enough
            self._last = f"  {name}: {percent(progress.history.accuracy)}"
            self._update(progress)
            return
        left = "" if self._console.is_terminal else self._left(progress)
        self._progress.console.print(
            for_terminal(f"[{progress.runs_done}/{progress.runs}] {name}: {outcome}{left}"), soft_wrap=True
        )

    def _update(self, progress: Progress) -> None:
        """Move the bar."""
        runs = for_terminal(f"rounds  {progress.runs_done} of {progress.runs} runs{self._last}")
        self._progress.update(self._task, total=progress.rounds, completed=progress.rounds_done, facts=runs)

    def _left(self, progress: Progress) -> str:
        """The time that is left at the speed so far."""
        done, rest = progress.rounds_done - self._found, progress.rounds - progress.rounds_done
        if done <= 0 or rest <= 0:
            return ""
        seconds = (time.perf_counter() - self._started) * rest / done
        return f"  (about {duration(round(seconds))} left)"


def readable_name(name: str) -> str:
    """Return the name of a run's folder as people read it.

    >>> readable_name("kfl-knowledge_weight0.1-seed0-b5223770"), readable_name("mine")
    ('kfl-knowledge_weight0.1 · seed 0', 'mine')
    """
    found = re.fullmatch(r"(.+)-seed(\d+)-[0-9a-f]+", name)
    return f"{found[1]} · seed {found[2]}" if found else name


def in_notebook() -> bool:
    """Whether this is a notebook: its shell has a kernel, a terminal's has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_shown(progress: bool | None, watched: bool) -> bool:
    """Whether progress is shown: as asked, or else where a user looks and nothing `watched` the run otherwise."""
    looked_at = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if not (looked_at and not watched if progress is None else progress):
        return False
    try:
        import rich  # noqa: F401  # only whether it is there
    except ImportError as problem:
        if progress is None:
            return False
        raise KflError("progress=True needs the package 'rich', which is not installed: pip install rich.") from problem
    return True


@contextmanager
def watching(
    progress: bool | None, experiment: Experiment, on_start: OnStart | None, on_round: OnRound | None
) -> Iterator[tuple[OnStart | None, OnRound | None]]:
    """What is called at the start of a run and after each of its rounds: what the caller gave, and the display."""
    if not is_shown(progress, watched=on_round is not None):
        yield on_start, on_round
        return
    with RunDisplay(experiment.rounds, experiment.algorithm.name, sentences=False, console=error_console()) as display:
        yield _both(display.on_start, on_start), _both(display.on_round, on_round)


@contextmanager
def watching_many(
    progress: bool | None, on_progress: Callable[[Progress], None] | None
) -> Iterator[Callable[[Progress], None] | None]:
    """The same of many runs."""
    if not is_shown(progress, watched=on_progress is not None):
        yield on_progress
        return
    with ManyDisplay("runs", console=error_console()) as display:
        yield _both(display.on_progress, on_progress)


def _both(first: Callable[[T], None], second: Callable[[T], None] | None) -> Callable[[T], None]:
    def call(news: T) -> None:
        first(news)
        if second is not None:
            second(news)

    return call
