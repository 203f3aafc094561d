"""Whether somebody looks while `run` and `run_many` are at work, and what they are shown then.

The display is rich's, which the library itself does not need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from kfl.core.errors import KflError

if TYPE_CHECKING:
    from kfl.experiment import Experiment
    from kfl.runfolder import RoundLog
    from kfl.simulation.many import Progress
    from kfl.simulation.world import World

    OnStart = Callable[[World], None]
    OnRound = Callable[[RoundLog], None]
    OnProgress = Callable[[Progress], None]


def in_notebook() -> bool:
    """Whether this is a notebook: its shell has a kernel, a terminal's has none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def is_shown(progress: bool | None, watched: bool) -> bool:
    """Whether progress is shown: as asked, or else where somebody looks and nobody `watched` the run otherwise."""
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
    from kfl.simulation.progress import RunDisplay, error_console

    with RunDisplay(experiment.rounds, experiment.algorithm.name, sentences=False, console=error_console()) as display:
        yield _both(display.on_start, on_start), _both(display.on_round, on_round)


@contextmanager
def watching_many(progress: bool | None, on_progress: OnProgress | None) -> Iterator[OnProgress | None]:
    """The same of many runs."""
    if not is_shown(progress, watched=on_progress is not None):
        yield on_progress
        return
    from kfl.simulation.progress import ManyDisplay, error_console

    with ManyDisplay("runs", console=error_console()) as display:
        yield _both(display.on_progress, on_progress)


T = TypeVar("T")


def _both(first: Callable[[T], None], second: Callable[[T], None] | None) -> Callable[[T], None]:
    def call(news: T) -> None:
        first(news)
        if second is not None:
            second(news)

    return call
