"""Run what is missing of some figures: none twice, resumable, in shards, over processes or a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kfl.core.errors import ConfigError
from kfl.experiment import Experiment
from kfl.paper.setting import Figure, Scale, runs
from kfl.paper.store import Store
from kfl.simulation.many import Progress, run_many, run_paths
from kfl.simulation.records import RESULTS, Record, data_note, record


@dataclass(frozen=True)
class Shard:
    """One part of the work: number `index` (from 1) of `count`."""

    index: int = 1
    count: int = 1

    @staticmethod
    def parse(text: str) -> Shard:
        """From i/n.

        >>> Shard.parse("2/4")
        Shard(index=2, count=4)
        """
        first, _, second = text.partition("/")
        if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
            raise ConfigError("shard", text, "i/n with i from 1 to n, such as 2/4")
        return Shard(int(first), int(second))

    @property
    def file(self) -> str:
        """Where its results go."""
        return RESULTS if self.count == 1 else f"results-{self.index}of{self.count}.jsonl"

    def share(self, names: Sequence[str]) -> list[str]:
        """Its part of some runs: every n-th."""
        return list(names[self.index - 1 :: self.count])


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
    shard: Shard | None = None,
    workers: int = 1,
    device: str = "cpu",
    precision: str = "float32",
    data_dir: Path | None = None,
    ray: str | None = None,
    keep_runs: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Store:
    """Run what these figures still need, writing each result as it comes; returns all results.

    A run folder is removed once its result is written, unless `keep_runs`.
    """
    shard = shard or Shard()
    store = Store.open(folder, shard.file)
    todo = wanted(figures, scale)
    todo = {name: todo[name] for name in shard.share(list(todo))}
    digests = {name: experiment.digest() for name, experiment in todo.items()}
    _copy_twins(store, digests)
    # Long and short ones mixed: what is done then tells how long the rest takes.
    order = sorted(todo, key=lambda name: digests[name])
    todo = {name: todo[name] for name in order if not store.has(name, digests[name])}
    if not todo:
        return store
    paths = run_paths(list(todo.values()), folder / "runs")
    names: dict[str, list[str]] = {}
    for path, name in zip(paths, todo, strict=True):
        names.setdefault(path.name, []).append(name)

    def finished(progress: Progress) -> None:
        if on_progress is not None:
            on_progress(replace(progress, name=names[progress.name][0]))
        if progress.history is None or progress.history.folder is None:
            return
        place = Path(progress.history.folder)
        experiment = todo[names[progress.name][0]]
        cell = experiment.cell_config
        budget_j = None if cell is None else cell.budget_j_per_round * experiment.rounds * experiment.devices
        row = {
            **_short(record(experiment, progress.history, data_note(place))),
            "budget_j": budget_j,
            "device": device,
            "precision": precision,
        }
        store.add(dict.fromkeys(names[progress.name], row))
        if not keep_runs:
            shutil.rmtree(place, ignore_errors=True)

    run_many(
        list(todo.values()),
        folder / "runs",
        workers,
        finished,
        device=device,
        precision=precision,
        data_dir=data_dir,
        ray=ray,
    )
    return store


def _copy_twins(store: Store, digests: dict[str, str]) -> None:
    """A run that stands under another name with the very same settings is that result."""
    known = {row["digest"]: row for row in store.rows.values()}
    twins = {
        name: {key: value for key, value in known[its].items() if key != "run"}
        for name, its in digests.items()
        if its in known and not store.has(name, its)
    }
    if twins:
        store.add(twins)


def _short(row: Record) -> Record:
    """What tables and plots need; a curve's numbers to five digits."""
    curve = {name: [float(f"{value:.5g}") for value in values] for name, values in row["curve"].items()}
    return {**row, "curve": curve}
