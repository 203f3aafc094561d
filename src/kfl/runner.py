"""Run an experiment from its first round to its last, into a run folder if one is given.

`Runner` plays rounds with any fleet and makes them last: the checkpoint that holds the round, then the history, so that
a process killed at any moment resumes with the round after the last checkpoint. `run` and `resume` are for
simulated fleets; the server of a real one is `kfl_fleet.server.app`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfl.core.config import Fields
from kfl.core.errors import ConfigError, DivergedError, InfeasibleRunError, ShortOfMemoryError, StoppedError
from kfl.core.text import several
from kfl.core.threads import torch_threads
from kfl.experiment import Experiment, check_idle, require_experiment
from kfl.progress import watching
from kfl.runfolder import (
    JOB,
    RunFolder,
    RunReader,
    cannot_write,
    describe_environment,
    is_run_folder,
    load_experiment,
    load_run,
    require_safetensors,
    snapshot,
    write_note,
)
from kfl.simulation.feasibility import check_feasibility
from kfl.simulation.fleet import Fleet
from kfl.simulation.logs import History, RoundLog
from kfl.simulation.rehearsal import budget_warnings
from kfl.simulation.round import begin, initial_state, play_round
from kfl.simulation.sanity_checks import sanity_warnings
from kfl.simulation.simulated_fleet import SimulatedFleet
from kfl.simulation.state import RunState
from kfl.simulation.summary import device_records, summarise
from kfl.simulation.world import World, build_world

if TYPE_CHECKING:
    from kfl.data.dataset import Data
    from kfl.models import Models

WATCHED = 5
"""Rounds that are looked at to see whether training diverges."""
phases = logging.getLogger("kfl.phases")
log = logging.getLogger("kfl")

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""cuBLAS repeats exactly only with workspaces of a fixed size, which this variable sets before its first use."""


@dataclass(frozen=True)
class RunOptions(Fields):
    """How a run is executed, recorded and watched: everything that is not part of the experiment."""

    data_dir: Path | None = None
    """Folder that holds the datasets that have names; by default `KFL_DATA_DIR`."""
    device: str = "cpu"
    """Processor that trains: cpu, cuda, or auto for the GPU where there is one."""
    precision: str = "float32"
    """Number format: float32, tf32 (GPU), bf16 products with float32 weights, or float64."""
    deterministic: bool = False
    """On a GPU, use only algorithms that give the same result every time; slower. A CPU always does."""
    keep_models: bool = True
    """Write the devices' models into the run folder, for `kfl export` and `load_model`."""
    checkpoint_s: float | None = None
    """Seconds of work between two checkpoints: 0 for one after every round, infinity for none; None for as often as
    is cheap."""
    on_start: Callable[[World], None] | None = None
    on_round: Callable[[RoundLog], None] | None = None
    should_stop: Callable[[], bool] | None = None
    keep_rounds: bool = True
    """Keep the log of every round in memory; without, those of a run with a folder are read from there at its end."""
    allow_nobody: bool = False
    """Play a run in which no device can ever take part, too: in a comparison that is an answer."""
    track: tuple[str, ...] = ()
    """Experiment trackers that `kfl run` reports to."""

    def __post_init__(self) -> None:
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))

    def save(self, folder: Path) -> None:
        """Leave a note in the run folder, so that `kfl resume` continues in the same way."""
        write_note(
            folder, JOB, {"models": self.keep_models, "deterministic": self.deterministic, "track": list(self.track)}
        )

    @staticmethod
    def load(folder: Path) -> RunOptions:
        """Read the note; the defaults for a run that was not started by `kfl run`."""
        note = RunReader(folder).job()
        models, deterministic = note.get("models", True), note.get("deterministic", False)
        return RunOptions(keep_models=models, deterministic=deterministic, track=tuple(note.get("track", ())))


def run(
    experiment: Experiment,
    folder: str | Path | None = None,
    *,
    dataset: Data | None = None,
    models: Models | None = None,
    on_start: Callable[[World], None] | None = None,
    on_round: Callable[[RoundLog], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> History:
    """Run an experiment and return what happened.

    Args:
        experiment: the whole configuration.
        folder: run folder to write; None keeps everything in memory.
        dataset: your own data instead of the one `experiment.dataset` names: a `Dataset`, arrays or tensors `(x, y)`,
            `(x, y, test_x, test_y)` or `((x, y), (test_x, test_y))`, a `torch.utils.data.Dataset`, or two of them.
            Without a test set, a fifth of each class is set aside as one.
        models: your own networks, each with a `body` and a `head`: one module, of which every device gets a copy with
            these weights; a class or function without arguments, which builds every device's, with initial weights
            of its own by the seed; a function of the device number; or a list with one per device. The last two keep
            the weights they come with.
        on_start: called once with the world, before the first round.
        on_round: called after every round with its log.
        should_stop: asked after every round of a run with a folder; if it says yes, a checkpoint is written and
            `StoppedError` raised.
        progress: show progress on the error stream, or in a notebook. None shows it where a user is likely to look,
            in a notebook or on a terminal, unless `on_round` watches the run already.
        **options: how the run is executed and recorded, by the names of the fields of `kfl.runner.RunOptions`:
            data_dir, device, precision, deterministic, keep_models, checkpoint_s, allow_nobody.

    A folder that already holds this very run is continued from its last checkpoint, or only read if the run is
    finished.

    >>> import kfl, numpy as np
    >>> draw = np.random.default_rng(0)
    >>> x, y = draw.random((400, 1, 8, 8), dtype=np.float32), np.arange(400) % 10
    >>> history = kfl.run(kfl.Experiment(devices=10, rounds=2, widths=16), dataset=(x + y[:, None, None, None] / 5, y))
    >>> len(history.rounds), 0 <= history.accuracy <= 1
    (2, True)
    """
    if "track" in options:
        raise ConfigError("track", options["track"], "left out: on_start and on_round are those of kfl.report.Tracking")
    require_experiment(experiment)
    check_idle([experiment])
    for name, default in (("model", "auto"), ("widths", None)) if models is not None else ():
        if (value := getattr(experiment, name)) != default:
            raise ConfigError(name, value, "left out where networks are given as models=…")
    how = RunOptions(on_start=on_start, on_round=on_round, should_stop=should_stop, **options)
    return run_with(experiment, folder, how, dataset=dataset, models=models, progress=progress)


def run_with(
    experiment: Experiment,
    folder: str | Path | None,
    options: RunOptions,
    *,
    dataset: Data | None = None,
    models: Models | None = None,
    progress: bool | None = None,
) -> History:
    """Run an experiment as `run` does, with its options in one object."""
    require_experiment(experiment)
    plan = None if folder is None else RunFolder(Path(folder)).plan()
    shown = watching(progress, experiment, options.on_start, options.on_round)
    try:
        with deterministic_algorithms(options.deterministic), shown as (on_start, on_round):
            world = build_world(
                experiment,
                dataset=dataset,
                models=models,
                data_dir=options.data_dir,
                device=options.device,
                precision=options.precision,
                plan=plan,
            )
            return run_world(world, folder, replace(options, on_start=on_start, on_round=on_round))
    except (MemoryError, RuntimeError) as problem:
        if ShortOfMemoryError.means(problem):
            raise ShortOfMemoryError from problem
        raise


def run_world(world: World, folder: str | Path | None = None, options: RunOptions | None = None) -> History:
    """Run in a world that is built already. Data, device and precision are then the world's, not the options'."""
    fleet, options = SimulatedFleet(world), options or RunOptions()
    if folder is None or not is_run_folder(Path(folder)):
        _need_somebody(fleet, options)
        for sentence in (*sanity_warnings(world), *budget_warnings(fleet)):
            log.warning("%s", sentence)
    if folder is None:
        return _play(world, Runner(fleet, options))
    if options.keep_models:
        require_safetensors()  # now, rather than after hours of training
    target = RunFolder(Path(folder))
    with target.locked():
        finished, facts = target.prepare(world.experiment) == "finished", world.describe()
        target.refuse_other_files(facts)
        if finished:
            return load_run(target.path)[1]
        target.write_environment({**describe_environment(), **facts, "deterministic": options.deterministic})
        return _play(world, Runner(fleet, options, target, world.identity(target.identity())))


def resume(folder: str | Path, **options: Any) -> History:
    """Continue a run that was interrupted, from its last checkpoint, as if nothing had happened.

    The result is bit for bit the run that was never interrupted (same machine, same kind of processor). A finished
    run is only read. `options` are those of `run` except the experiment, which is the folder's own.

    Args:
        folder: The run folder.
        **options: Those of `run`, without the experiment.

    Returns:
        The history of the whole run.

    Raises:
        RunFolderError: The folder holds no run, or a damaged one.

    >>> import kfl, tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> experiment = kfl.Experiment(devices=10, rounds=2, widths=(8,))
    >>> try:
    ...     kfl.run(experiment, folder, should_stop=lambda: True)
    ... except kfl.KflError:
    ...     print("stopped")
    stopped
    >>> len(kfl.resume(folder).rounds)
    2
    """
    watchers = {name: options.pop(name) for name in ("dataset", "models", "progress") if name in options}
    return run_with(load_experiment(Path(folder)), folder, RunOptions(**options), **watchers)


def _need_somebody(fleet: Fleet, options: RunOptions) -> None:
    """Say who can never take part, before the first round; InfeasibleRunError where that is every device."""
    found = check_feasibility(fleet, initial_state(fleet))
    if found.nobody and not options.allow_nobody:
        raise InfeasibleRunError(found.sentence())
    if found.never:
        log.warning("%s", found.sentence())


def _play(world: World, runner: Runner) -> History:
    """Play a simulation. Those who watch it are also told about rounds of before an interruption."""
    # The engine spreads devices over threads itself. Between its calls there are only small operations, and PyTorch
    # sharing those out over threads, and switching that off and on in every call, took half of a small run's time.
    with torch_threads(1) if world.engine.plan.device == "cpu" else nullcontext():
        if runner.options.on_start is not None:
            runner.options.on_start(world)
        runner.start()
        if runner.options.on_round is not None:
            for entry in runner.logs:
                runner.options.on_round(entry)
        return runner.play()


@dataclass
class Runner:
    """Plays the rounds of a fleet one after another, and records them if there is a run folder.

    It holds the only copy of the state. The folder must be prepared and locked.
    """

    fleet: Fleet
    options: RunOptions = field(default_factory=RunOptions)
    folder: RunFolder | None = None
    identity: str = ""
    """What run the checkpoints belong to."""
    state: RunState = field(init=False)
    logs: list[RoundLog] = field(init=False, default_factory=list)
    """The rounds so far; only the last few with any device where `options.keep_rounds` is off."""

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        if self.folder is not None:
            self._checkpoints = self.folder.checkpoints(self.identity, self.options.checkpoint_s)

    @property
    def finished(self) -> bool:
        """Whether the last round has been played."""
        return self.state.round >= self.fleet.experiment.rounds

    @property
    def _forgets(self) -> bool:
        """Whether rounds are on the disk alone."""
        return self.folder is not None and not self.options.keep_rounds

    def start(self) -> None:
        """Take up the folder's last good checkpoint, or begin before round 0."""
        self.fleet.assemble()
        stored = None
        if self.folder is not None:
            stored = self._checkpoints.read(self.folder.whole_rounds(), self.folder.history_sum)
            last = {} if stored is None else self._checkpoints.last
            self.logs = list(self.folder.rewind(0 if stored is None else stored.round, last))
        self.state = begin(self.fleet) if stored is None else self.fleet.restore(stored)

    def play(self) -> History:
        """Play the rounds that are left, and finish."""
        while not self.finished:
            self.step()
        return self.finish()

    def step(self) -> None:
        """Play one round and make it last."""
        self.state, entry = play_round(self.fleet, self.state)
        self._watch_bits(entry)
        self.logs.append(entry)
        if self._forgets:
            self.logs = [one for one in self.logs if one.devices][-WATCHED:]
        self._watch_divergence()
        if self.folder is not None:
            self._record(self.folder, entry)
        if self.options.on_round is not None:
            self.options.on_round(entry)

    def finish(self) -> History:
        """The whole history, written as the end of the run folder."""
        phases.debug("phase end, round %d", self.state.round)
        logs = self.folder.rounds() if self.folder is not None and self._forgets else tuple(self.logs)
        summary = summarise(self.fleet, self.state, logs, time.perf_counter() - self._began)
        where = None if self.folder is None else str(self.folder.path)
        history = History(logs, summary, device_records(self.fleet, self.state), where)
        if self.folder is not None:
            states = self.state.devices if self.options.keep_models else None
            self.folder.finish(history, self.state.server, states)
        return history

    def _record(self, folder: RunFolder, entry: RoundLog) -> None:
        """The checkpoint first, which holds what the history then says: no line is ever there for a round that is not.

        A kill before the checkpoint repeats the round, which nothing has observed; one after it adds the lines.
        """
        experiment, tests = self.fleet.experiment, self.fleet.table.test_samples
        lines = folder.lines(entry, snapshot(experiment.rounds, tests, self.state, entry, experiment.algorithm))
        should_stop = self.options.should_stop
        stopping = should_stop is not None and should_stop() and not self.finished
        if stopping or self._checkpoints.due(self.state):
            phases.debug("phase checkpoint, round %d", self.state.round)
            history = folder.sync(lines)
            try:
                self._checkpoints.write(self.state, history, lines)
            except OSError as problem:
                raise cannot_write(folder.path, problem) from problem
        phases.debug("phase history, round %d", entry.round)
        folder.append(lines)
        if stopping:
            raise StoppedError(folder.path, self.state.round)

    def _watch_bits(self, entry: RoundLog) -> None:
        """Say, the first time, that uploads are not as large as the algorithm declares."""
        if entry.declared_bits_up is not None and all(log.declared_bits_up is None for log in self.logs):
            log.warning("%s", other_bits(self.fleet.experiment.algorithm.name, entry))

    def _watch_divergence(self) -> None:
        problem = divergence(self.logs, ended=self.finished)
        if problem is not None and self.fleet.stops_on_divergence:
            raise DivergedError(problem)
        if problem is not None:
            log.warning("%s", problem)


def other_bits(name: str, entry: RoundLog) -> str:
    """What to say of a round whose uploads are not as large as the algorithm of that name declares."""
    declared = entry.declared_bits_up or 0.0
    return (
        f"Devices sent {entry.bits_up:,.0f} bits in round {entry.round + 1}, but {name} declares {declared:,.0f}: "
        "bits_up counts what was sent, while times and energies are planned with what is declared. Compare its "
        "upload_format, or its bits(), with the arrays of its uploads."
    )


def divergence(logs: Sequence[RoundLog], *, ended: bool = False) -> str | None:
    """What to say of a run in which training diverges on more than half of the devices, round after round.

    That is so after five rounds in which any device took part, or at the end of a run with fewer.
    """
    last = [entry for entry in logs if entry.devices][-WATCHED:]
    if len(last) < (1 if ended else WATCHED) or any(len(one.diverged) * 2 <= len(one.devices) for one in last):
        return None
    before = f", and of more than half in the {several(len(last) - 1, 'round')} before" if len(last) > 1 else ""
    return (
        f"The training of {len(last[-1].diverged)} of {len(last[-1].devices)} devices diverged in round "
        f"{last[-1].round + 1}{before}: lower --algorithm.learning-rate."
    )


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """While the block runs, PyTorch uses only algorithms that give the same result every time, if `wanted`.

    A CPU always repeats a run bit for bit with the same plan (threads, kernels, precision), which the run folder
    records. On a GPU a few of PyTorch's kernels add in an order that differs from run to run; this makes PyTorch take
    others, or fail where there is none.

    >>> import torch
    >>> with deterministic_algorithms(True):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    >>> torch.are_deterministic_algorithms_enabled()
    False
    """
    if not wanted:
        yield
        return
    import torch

    os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # which would choose kernels by a stopwatch
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
