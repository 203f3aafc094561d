"""Many independent runs: each in its own run folder, here, over processes or over a cluster; none is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfl.algorithms import Kfl
from kfl.comparison.pool import Failure, Job, Tell, play_here, play_in_processes
from kfl.comparison.store import Shard
from kfl.core.config import flatten
from kfl.core.errors import ConfigError, KflError
from kfl.core.names import for_file_name
from kfl.data import Dataset, load_dataset
from kfl.encoders import AUTO
from kfl.experiment import Experiment, Faults, check_idle, require_experiment
from kfl.progress import Progress, watching_many
from kfl.runfolder import is_finished, load_run
from kfl.runner import RunOptions
from kfl.scheduling import Uniform
from kfl.simulation.logs import History

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Execution:
    """Where and how many runs are played."""

    workers: int = 1
    """Number of processes. More than one needs the usual `if __name__ == "__main__":` in a script."""
    threads: int = 1
    """PyTorch threads of each run. Independent of `workers`, because the last digits of sums depend on it: so results
    do not depend on `workers`."""
    device: str = "cpu"
    """Processor that trains: cpu, cuda, or auto for the GPU where there is one."""
    precision: str = "float32"
    """Number format, as in `kfl.run`."""
    data_dir: str | Path | None = None
    """Folder that holds the datasets that have names; by default `KFL_DATA_DIR`."""
    dataset: Dataset | None = field(default=None, repr=False)
    """Your own data instead of the one each experiment names, as in `kfl.run`."""
    ray: str | None = None
    """Address of a Ray cluster that plays the runs instead of processes here: `HOST:PORT`, `ray://HOST:PORT`, `auto`
    for the one that this machine belongs to, or `local` for one of this machine alone."""
    shard: Shard = Shard()
    """The part of the runs to play here; other machines play the others, and their results are collected."""
    keep_runs: bool = True
    """Keep the run folders, and not only their results."""
    keep_models: bool = False
    """Write the devices' models into the run folders."""

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "1 or more")
        if self.dataset is not None:
            object.__setattr__(self, "dataset", Dataset.of(self.dataset))

    @classmethod
    def of(cls, options: Mapping[str, Any], without: Sequence[str] = ()) -> Execution:
        """The execution that keyword arguments describe; ConfigError for one that there is not."""
        known = [one.name for one in fields(cls) if one.name not in without]
        for name, value in options.items():
            if name not in known:
                raise ConfigError(name, value, f"left out; how runs are played is set by {', '.join(known)}")
        return cls(**options)

    @property
    def data_folder(self) -> Path | None:
        """`data_dir` as a path."""
        return None if self.data_dir is None else Path(self.data_dir)

    def play(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Play all jobs: on a cluster, in processes, or one after another here; `tell` hears of every round and end."""
        if self.ray is not None:
            from kfl.comparison.ray import play_on_ray

            play_on_ray(jobs, self.ray, self.threads, tell, workers=self.workers)
        elif min(self.workers, len(jobs)) > 1:
            play_in_processes(jobs, self.workers, self.threads, tell)
        else:
            play_here(jobs, self.threads, tell)

    def options(self) -> RunOptions:
        """How each run is played."""
        return RunOptions(
            data_dir=self.data_folder, device=self.device, precision=self.precision, keep_models=self.keep_models
        )


class RunsFailedError(KflError):
    """Some of many runs failed; the others are finished."""

    def __init__(self, folder: Path, failures: dict[str, Failure], histories: list[History | None]) -> None:
        problems = {name: failure.sentence for name, failure in failures.items()}
        reasons: dict[str, list[str]] = {}
        for name, problem in problems.items():
            reasons.setdefault(problem, []).append(name)
        sentences = " ".join(f"{_and_more(names)}: {problem}" for problem, names in reasons.items())
        total = len(histories)
        rest = f"; the other {total - len(problems)} are in {folder}" if len(problems) < total else ""
        super().__init__(f"{len(problems)} of {total} runs failed{rest}. {sentences}")
        self.problems = problems
        """Sentences by the name of the run."""
        self.histories = histories
        """In the order of the experiments; None where a run failed."""
        self.only_diverged = all(failure.diverged for failure in failures.values())
        """Whether nothing worse happened than diverged training."""


def run_many(
    experiments: Sequence[Experiment],
    folder: str | Path,
    workers: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    *,
    progress: bool | None = None,
    **execution: Any,
) -> list[History]:
    """Run every experiment in a run folder of its own under `folder`; histories in the order of the experiments.

    Args:
        experiments: what to run. The same one twice is run once.
        folder: parent of the run folders. Runs that are finished there are read, not repeated, unless your own modules
            or data that they name have changed since.
        workers: number of processes. More than one needs the usual `if __name__ == "__main__":` in a
            script.
        on_progress: called after every round and every run.
        progress: show progress on the error stream, or in a notebook. None shows it in a notebook or on a terminal,
            unless `on_progress` watches the runs already.
        **execution: how runs are played, by the names of the fields of `kfl.comparison.Execution`: threads, device,
            precision, data_dir, dataset, ray, keep_models.

    Returns:
        What happened in each run.

    Raises:
        RunsFailedError: some runs failed. They do not stop the others, and the error carries all histories.

    >>> import tempfile, kfl, numpy as np
    >>> y = np.arange(200) % 4
    >>> data = kfl.Dataset.from_arrays(np.random.default_rng(0).random((200, 6)) + y[:, None], y)
    >>> tiny = [kfl.Experiment(devices=4, rounds=1, widths=(8,), seed=seed) for seed in (0, 1)]
    >>> [len(history.rounds) for history in run_many(tiny, tempfile.mkdtemp(), dataset=data)]
    [1, 1]
    """
    if isinstance(experiments, Experiment):
        raise ConfigError("experiments", "one experiment", "a list: [experiment], or one for each seed or setting")
    for experiment in experiments:
        require_experiment(experiment)
    how = Execution.of({"workers": workers, **execution}, without=("shard", "keep_runs"))
    for experiment in experiments:
        if not experiment.asks_data:
            experiment.validate()
    experiments = settled(experiments, how)
    check_idle(experiments)
    paths = run_paths(experiments, Path(folder))
    open_runs = {path: one for path, one in zip(paths, experiments, strict=True) if not _holds(path, one)}
    if len(open_runs) > 1:
        check_first(next(iter(open_runs.values())), how)
    with watching_many(progress, on_progress) as tell:
        return play_all(experiments, Path(folder), how, tell)


def play_all(
    experiments: Sequence[Experiment],
    folder: Path,
    how: Execution,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[History]:
    """Play settled, valid experiments in run folders below `folder`, what is finished there excepted."""
    paths = run_paths(experiments, folder)
    unique = dict(zip(paths, experiments, strict=True))
    if any(path.exists() for path in unique):
        from kfl.comparison.sources import set_outdated_aside

        set_outdated_aside(unique, how.dataset, how.data_folder)
    options = how.options()
    jobs = [
        Job(experiment, path, how.dataset, options)
        for path, experiment in unique.items()
        if not _holds(path, experiment)
    ]
    ledger = _Ledger(unique, {job.path for job in jobs}, on_progress)
    if jobs:
        how.play(jobs, ledger.tell)
    histories = [ledger.histories.get(path) for path in paths]
    if ledger.failures:
        raise RunsFailedError(folder, ledger.failures, histories)
    return [history for history in histories if history is not None]


def settled(experiments: Sequence[Experiment], how: Execution) -> list[Experiment]:
    """The experiments with what only the data can say, by which their folders are found: devices, and cells.

    Those with the same data, networks and rounds have the same cell, whatever their algorithms.
    """
    from kfl.simulation.world import with_cell

    data: dict[str, Dataset] = {}
    cells: dict[Experiment, Experiment] = {}

    def settle(asked: Experiment) -> Experiment:
        if not (asked.asks_data or asked.radio == AUTO):
            return asked
        if asked.dataset not in data:
            data[asked.dataset] = load_dataset(asked.dataset, how.data_folder) if how.dataset is None else how.dataset
        found = asked.for_data(data[asked.dataset])
        found.validate()
        setting = replace(found, algorithm=Kfl(), scheduler=Uniform(), faults=Faults(), evaluate_every=1, seed=0)
        if setting not in cells:
            try:
                cells[setting] = with_cell(setting, data[asked.dataset])
            except KflError:  # which its runs meet again, and the others do not
                return found
        return replace(found, radio=cells[setting].radio, hard_budget=cells[setting].hard_budget)

    return [settle(experiment) for experiment in experiments]


def run_paths(experiments: Sequence[Experiment], folder: Path) -> list[Path]:
    """The run folder of each experiment: an existing one, found by its hash, or a new name."""
    places = (folder / "runs", folder)  # studies of earlier versions have them in a folder of their own
    found = [path for place in places for path in sorted(place.glob("*-seed*-*")) if path.is_dir()]
    present = {path.name.rpartition("-")[2]: path for path in found}
    names = run_names(experiments)
    return [
        present.get(experiment.digest(), folder / name) for experiment, name in zip(experiments, names, strict=True)
    ]


def run_names(experiments: Sequence[Experiment]) -> list[str]:
    """One name per experiment: algorithm, what differs among them, seed, hash.

    >>> from kfl.algorithms import Kfl, Local
    >>> some = [Kfl(), Kfl(knowledge_weight=0.1), Local()]
    >>> [name.rpartition("-")[0] for name in run_names([Experiment(algorithm=one) for one in some])]
    ['kfl-knowledge_weight0.03125-seed0', 'kfl-knowledge_weight0.1-seed0', 'local-seed0']
    """
    tables = [flatten(experiment.to_table()) for experiment in experiments]
    scopes = [{name: _scope(name, table) for name in table} for table in tables]
    values: dict[tuple[str, str], set[str]] = {}
    for table, scope in zip(tables, scopes, strict=True):
        for name, value in table.items():
            values.setdefault((scope[name], name), set()).add(str(value))
    names = []
    for experiment, table, scope in zip(experiments, tables, scopes, strict=True):
        words = [table["algorithm.name"].replace(":", ".")]
        for name, value in table.items():
            if name not in ("seed", "algorithm.name") and len(values[scope[name], name]) > 1:
                words.append(str(value) if name.endswith(".name") else f"{name.rpartition('.')[2]}{value}")
        readable = for_file_name("-".join(words), between="")
        names.append(f"{readable}-seed{experiment.seed}-{experiment.digest()}")
    return names


def _scope(name: str, table: Mapping[str, Any]) -> str:
    """Parameters of an algorithm or a scheduler are compared with others of the same one only."""
    part, dot, rest = name.partition(".")
    return str(table[f"{part}.name"]) if dot and rest != "name" and f"{part}.name" in table else ""


def _holds(path: Path, experiment: Experiment) -> bool:
    """Whether a folder holds this very run, finished."""
    return is_finished(path) and load_run(path)[0].identity() == experiment.identity()


def check_first(experiment: Experiment, how: Execution) -> None:
    """Build one world here, so that what is wrong for all runs, such as missing data, is reported once and at once.

    The machines of a cluster have what this one may not.
    """
    if how.ray is not None:
        return
    from kfl.simulation.world import build_world

    build_world(experiment, dataset=how.dataset, data_dir=how.data_folder, device=how.device, precision=how.precision)


class _Ledger:
    """Keeps track of all runs, and turns what workers report into progress."""

    def __init__(
        self, unique: dict[Path, Experiment], open_runs: set[Path], on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.histories: dict[Path, History] = {}
        self.failures: dict[str, Failure] = {}
        self._rounds = {path: experiment.rounds for path, experiment in unique.items()}
        self._played = dict.fromkeys(unique, 0)
        self._on_progress = on_progress
        for path in unique:
            if path not in open_runs:
                self._end(path, None)

    def tell(self, job: Job, ended: bool, failure: Failure | None) -> None:
        if ended:
            self._end(job.path, failure)
        else:
            self._played[job.path] += 1
            self._report(job.path)

    def _end(self, path: Path, failure: Failure | None) -> None:
        self._played[path] = self._rounds[path]
        if failure is None:
            self.histories[path] = load_run(path)[1]
        else:
            self.failures[path.name] = failure
        self._report(path, self.histories.get(path), failure)

    def _report(self, path: Path, history: History | None = None, failure: Failure | None = None) -> None:
        if self._on_progress is None:
            return
        done = len(self.histories) + len(self.failures)
        played, total = sum(self._played.values()), sum(self._rounds.values())
        problem, diverged = (None, False) if failure is None else (failure.sentence, failure.diverged)
        self._on_progress(Progress(path.name, played, total, done, len(self._rounds), history, problem, diverged))


def _and_more(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
