"""The local pool: runs one after another here, or in worker processes that report every round.

A worker that dies (killed for memory, say) loses the run it was playing and no other. Results travel through the
run folders, which are written whole or not at all, so that stopping everything at any moment loses no finished run.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.core.errors import DivergedError, KflError
from kfl.core.files import write_atomic

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from kfl.data import Dataset
    from kfl.experiment import Experiment
    from kfl.runner import RunOptions


FAILURE = ".error.txt"
"""End of the name of a file next to a run folder, with the traceback of a run that failed."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run and its folder."""

    experiment: Experiment
    path: Path
    dataset: Dataset | None
    options: RunOptions


@dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    sentence: str
    diverged: bool = False
    """Training diverged. Runs are deterministic, so retrying will not help; other failures may not repeat."""


Tell = Callable[[Job, bool, Failure | None], None]
"""Called with a job, whether it has ended, and why it failed if it did. Not ended: one more round is done."""


def play_here(jobs: Sequence[Job], threads: int, tell: Tell) -> None:
    """Play all jobs one after another in this process, with as many threads as a worker has."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for job in jobs:
            tell(job, True, attempt(job, partial(tell, job, False, None)))
    finally:
        torch.set_num_threads(before)


def play_in_processes(jobs: Sequence[Job], workers: int, threads: int, tell: Tell) -> None:
    """Play all jobs in `workers` processes; an interrupt terminates them all."""
    waiting = deque(jobs)
    running: dict[Connection, tuple[SpawnProcess, Job]] = {}
    try:
        while running or waiting:
            while waiting and len(running) < workers:
                pipe, process = _start_worker(threads)
                running[pipe] = process, _send(pipe, waiting.popleft())
            for pipe in [found for found in wait(list(running)) if isinstance(found, Connection)]:
                process, job = running[pipe]
                try:
                    ended, problem = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    del running[pipe]
                    code = process.exitcode
                    sentence = f"Its process died with exit status {code}; memory may have run out."
                    tell(job, True, Failure(sentence))
                    continue
                tell(job, ended, problem)
                if ended and waiting:
                    running[pipe] = process, _send(pipe, waiting.popleft())
                elif ended:
                    del running[pipe]
                    pipe.close()
                    process.join()
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _start_worker(threads: int) -> tuple[Connection, SpawnProcess]:
    """A new worker and the pipe to it. Spawned, because a fork of a process with threads can hang."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs, threads), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _send(pipe: Connection, job: Job) -> Job:
    """Send a job. If the worker has died, reading from its pipe will tell."""
    with suppress(OSError):
        pipe.send(job)
    return job


def serve(pipe: Connection, threads: int) -> None:
    """A worker process: play the jobs from the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides what to do
    import torch

    torch.set_num_threads(threads)
    try:
        while True:
            job = pipe.recv()
            pipe.send((True, attempt(job, lambda: pipe.send((False, None)))))
    except (EOFError, OSError):  # no more jobs, or the parent is gone
        return


def attempt(job: Job, on_round: Callable[[], None]) -> Failure | None:
    """Play one run; why it failed, if it did. A failure that is a bug leaves its traceback next to the run folder."""
    from kfl.runner import run_with

    note = job.path.with_name(f"{job.path.name}{FAILURE}")
    try:
        # That a method cannot work in a cell is an answer, too.
        options = replace(job.options, on_round=lambda _: on_round(), allow_nobody=True)
        run_with(job.experiment, job.path, options, dataset=job.dataset)
    except KflError as problem:
        return Failure(str(problem), diverged=isinstance(problem, DivergedError))
    except Exception as problem:  # a bug in one run, or in a user's own model, must not lose the others
        job.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, traceback.format_exc().encode())
        first_line = (str(problem).strip().splitlines() or [""])[0]
        return Failure(f"{type(problem).__name__}: {first_line} (the traceback is in {note}).")
    note.unlink(missing_ok=True)
    return None
