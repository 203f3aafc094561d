"""What a person sees while many runs go on: a bar with the time left on a terminal, a line per run elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kfl.core.text import percent
from kfl.simulation.many import Progress as ManyProgress


class ManyDisplay:
    """Progress of many runs."""

    def __init__(self, label: str) -> None:
        self._console = Console(highlight=False)
        self._label = label
        self._started = time.perf_counter()
        self._found = 0
        """Rounds of runs that were finished before this command."""
        self._moved = False
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[runs]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> ManyDisplay:
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=None, runs="starting …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def on_progress(self, progress: ManyProgress) -> None:
        """Show a finished round or run."""
        runs = f"{progress.runs_done} of {progress.runs} runs"
        self._progress.update(self._task, total=progress.rounds, completed=progress.rounds_done, runs=runs)
        if progress.history is None and progress.problem is None:
            self._moved = True
            return
        if not self._moved:  # it was there before
            self._found = progress.rounds_done
            said = f"{percent(progress.history.accuracy)}, finished before" if progress.history else "failed"
        elif progress.history is None:
            said = f"failed: {progress.problem}"
        else:
            said = f"{percent(progress.history.accuracy)}  {progress.history.summary['wall_s']:.0f} s"
        left = "" if self._console.is_terminal else self._left(progress)
        self._progress.console.print(
            f"[{progress.runs_done}/{progress.runs}] {progress.name}: {said}{left}", markup=False, soft_wrap=True
        )

    def _left(self, progress: ManyProgress) -> str:
        """The time that is left if it goes on like this."""
        done, rest = progress.rounds_done - self._found, progress.rounds - progress.rounds_done
        if done <= 0 or rest <= 0:
            return ""
        seconds = (time.perf_counter() - self._started) * rest / done
        return f"  (about {seconds:.0f} s left)" if seconds < 120 else f"  (about {seconds / 60:.0f} min left)"
