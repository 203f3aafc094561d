"""Run what is missing of some figures: nothing twice, resumable, in shards, in processes or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kfl.comparison import Execution, ResultStore
from kfl.comparison.entries import Run
from kfl.comparison.question import play
from kfl.comparison.store import Plan, PlannedRow
from kfl.core.errors import DivergedError
from kfl.core.text import several
from kfl.experiment import Experiment
from kfl.progress import Progress
from reproduction.results import Store
from reproduction.setting import Figure, Scale, run_key, runs

if TYPE_CHECKING:
    pass


def expected_work(experiment: Experiment) -> float:
    """A rough measure of how long a run takes, to share it out evenly: devices × samples × rounds × network."""
    count = getattr(experiment.scheduler, "count", 20)
    network = 4.0 if experiment.dataset == "cifar10" else 1.0
    samples = 600 if experiment.samples_per_device is None else experiment.samples_per_device
    return network * count * samples * experiment.rounds


def wanted(figures: Iterable[Figure], scale: Scale) -> dict[str, Experiment]:
    """Every run of these figures by name, the longest first, so that shards take about as long."""
    found = {name: experiment for figure in figures for name, experiment in runs(figure, scale)}
    return dict(sorted(found.items(), key=lambda item: -expected_work(item[1])))


def execute(
    figures: Sequence[Figure],
    scale: Scale,
    folder: Path,
    *,
    execution: Execution | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Run what these figures still need, as `kfl.compare` does: each result is written as it comes.

    Raises:
        DivergedError: The training of a run of this shard diverged.
    """
    how = execution or Execution(keep_runs=False)
    store, every = ResultStore.open(folder, how.shard), wanted(figures, scale)
    lines = {line.key: line for figure in figures for line in figure.lines(scale)}
    names = {run_key(key, seed, scale): key for key in lines for seed in scale.seeds}
    rows = [PlannedRow(key, {seed: every[run_key(key, seed, scale)].digest() for seed in scale.seeds}) for key in lines]
    play(store, Plan(tuple(rows)), [Run(names[name], "", one) for name, one in every.items()], how, on_progress)
    gone = {name: store.diverged[d] for name, one in every.items() if (d := one.digest()) in store.diverged}
    if gone:
        first = next(iter(gone))
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise DivergedError(f"{first}{more} of {several(len(every), 'run')}: {gone[first]['problem']}")
    return Store.open(folder, every)
