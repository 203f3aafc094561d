"""Runs that train together: those that differ in nothing but their seed, as one batch on one processor.

Each run plays its ordinary loop into its own folder, in a thread of its own, at a seat of one table
(`kfl.engine.joint`). The thread that called hears of every round and run, and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, cast

from kfl.core.errors import KflError
from kfl.data import Dataset, load_dataset
from kfl.runfolder.folder import RunFolder
from kfl.simulation.jobs import Job, Tell, guarded

if TYPE_CHECKING:
    from kfl.engine.joint import JointEngine
    from kfl.engine.plan import Precision

MOST_TOGETHER = 8
"""Runs of one batch, unless told otherwise: about as many as fill a GPU with ten devices each."""


def in_groups(jobs: Sequence[Job], together: int | None) -> list[list[Job]]:
    """Jobs that are played together, at most so many, and single ones, in the order of the first of each.

    None: as many as fit on a GPU, and none on a CPU. Several small groups rather than a large one and a single run.
    """
    if len(jobs) < 2:
        return [[job] for job in jobs]
    alike: dict[object, list[Job]] = {}
    for job in jobs:
        most = _most(job, together)
        key = _shape(job) if most > 1 and _may_join(job) else job.path
        alike.setdefault(key, []).append(job)
    found = []
    for group in alike.values():
        parts = -(-len(group) // max(_most(group[0], together), 1))
        found += [group[part * len(group) // parts : (part + 1) * len(group) // parts] for part in range(parts)]
    return found


def _most(job: Job, together: int | None) -> int:
    from kfl.engine.factory import check_device

    if together is not None:
        return together
    return MOST_TOGETHER if check_device(job.device) == "cuda" else 1


def _shape(job: Job) -> object:
    """Equal for jobs that differ in nothing but their seed."""
    settings = replace(job.experiment, seed=0).to_toml()
    return settings, id(job.dataset), job.data_dir, job.device, job.precision, job.keep_models


def _may_join(job: Job) -> bool:
    """Whether a run is new, or was executed so far as it would be now; otherwise it goes on alone as it was."""
    from kfl.engine.factory import check_device

    try:
        plan = RunFolder(job.path).plan()
    except KflError:  # said when the run itself reads it
        return False
    if plan is None:
        return True
    stacked = set(plan.paths) == {"stacked"}
    return stacked and (plan.device, plan.precision) == (check_device(job.device), job.precision)


def play_together(jobs: Sequence[Job], threads: int, tell: Tell) -> None:
    """All jobs at one table, each in a thread.

    Interrupted, every run ends after its round with a checkpoint; interrupted again, after the batch in progress.
    """
    import torch

    from kfl.engine.factory import check_device
    from kfl.engine.joint import JointEngine

    before = torch.get_num_threads()
    table = JointEngine(len(jobs), check_device(jobs[0].device), cast("Precision", jobs[0].precision))
    party = _Party(table, _Shared(jobs[0]), threads)
    crew = [Thread(target=party.play, args=(seat, job), name=f"kfl-run-{seat}") for seat, job in enumerate(jobs)]
    try:
        for thread in crew:
            thread.start()
        playing = len(jobs)
        while playing:
            job, ended, problem = party.news.get()
            playing -= ended
            tell(job, ended, problem)
    except BaseException:
        party.stop.set()
        _wait_for_the_end(table, crew)
        raise
    finally:
        torch.set_num_threads(before)


def _wait_for_the_end(table: JointEngine, crew: Sequence[Thread]) -> None:
    """Wait until every run has ended; interrupted once more, they are told not to finish their round."""
    try:
        for seat, thread in enumerate(crew):
            if thread.ident is None:  # it could not be started
                table.leave(seat)
        for thread in crew:
            if thread.ident is not None:
                thread.join()
    except BaseException:
        table.close()
        raise


class _Shared:
    """The dataset of all runs at a table: read once, by the first that needs it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def dataset(self) -> Dataset:
        given = self._job.dataset
        return load_dataset(self._job.experiment.dataset, self._job.data_dir) if given is None else given


@dataclass(frozen=True, eq=False)
class _Party:
    """What the threads of one table have in common."""

    table: JointEngine
    shared: _Shared
    threads: int
    news: SimpleQueue[tuple[Job, bool, str | None]] = field(default_factory=SimpleQueue)
    stop: Event = field(default_factory=Event)

    def play(self, seat: int, job: Job) -> None:
        """The life of a thread: one run, and the news of it."""
        import torch

        problem: str | None = "It ended unexpectedly."
        try:
            with self.table.playing(seat):
                torch.set_num_threads(self.threads)
                problem = guarded(job, partial(self._run, seat, job, lambda: self.news.put((job, False, None))))
        except BaseException as unusual:  # such as a user's module that exits
            problem = f"{type(unusual).__name__}: {unusual}"
        finally:
            self.news.put((job, True, problem))

    def _run(self, seat: int, job: Job, on_round: Callable[[], None]) -> None:
        from kfl.simulation.runner import run_world
        from kfl.simulation.world import build_world

        world = build_world(job.experiment, dataset=self.shared.dataset, seat=partial(self.table.sit, seat))
        if job.dataset is None:  # it has a name: sharing it takes nothing away from that
            world = replace(world, repeatable="yes")
        run_world(
            world,
            job.path,
            keep_models=job.keep_models,
            on_round=lambda _: on_round(),
            should_stop=self.stop.is_set,
        )
