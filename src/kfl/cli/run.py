"""`kfl run` and `kfl resume`: one experiment, with progress while it runs and a summary a person understands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kfl.algorithms import Local
from kfl.cli.interrupt import GentleStop
from kfl.cli.options import (
    AlgorithmName,
    ConfigFile,
    DataDir,
    Device,
    FadingName,
    GainTraceFile,
    HarvestName,
    HarvestTraceFile,
    MobilityName,
    Precision,
    Quiet,
    RadioName,
    SchedulerName,
    names_of,
    new_folder,
    parse,
    starting_point,
    with_devices_of_data,
    with_radio_fields,
)
from kfl.core.errors import ConfigError, StoppedError
from kfl.core.terminal import tell
from kfl.experiment import Experiment, common_settings
from kfl.report.trackers import Tracking, tracker_names
from kfl.runfolder import JOB, LOCAL_ONLY, read_note, write_note

if TYPE_CHECKING:
    from kfl.simulation import RoundLog
    from kfl.simulation.world import World

DESCRIPTION = """Run an experiment: federated learning on a fleet of simulated devices.

Without options, fifty devices with different networks learn five thousand real digits by sharing knowledge.
The options of the chosen algorithm, scheduler and radio are listed below; choose others with --algorithm,
--scheduler or --radio and ask for help again to see theirs."""

TRACK = tyro.conf.arg(metavar="NAME[,NAME]", help_behavior_hint="")
"""How --track is shown; it may also be given several times."""


@dataclass(frozen=True)
class RunOptions:
    """What `kfl run` takes."""

    experiment: Annotated[Experiment, tyro.conf.arg(name="")]
    config: ConfigFile = None
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Run folder to write. Default: a new one under runs/."""
    data_dir: DataDir = None
    algorithm_name: AlgorithmName = "kfl"
    scheduler_name: SchedulerName = "uniform"
    radio_name: RadioName = "auto"
    fading_name: FadingName = "rayleigh"
    harvest_name: HarvestName = "none"
    mobility_name: MobilityName = "none"
    gain_trace: GainTraceFile = None
    harvest_trace: HarvestTraceFile = None
    device: Device = "cpu"
    precision: Precision = "float32"
    deterministic: bool = False
    """Use only deterministic algorithms on a GPU; slower. A CPU is always deterministic."""
    no_baseline: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Skip the local-only run, which shows what sharing adds."""
    no_models: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not keep the devices' models in the run folder; kfl export needs them."""
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TRACK] = ()
    """Log the run to tensorboard, mlflow or wandb as well, separated by commas; each is an extra of kfl."""
    quiet: Quiet = False


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print."""
    start = starting_point(arguments)
    shown = with_radio_fields(start, arguments)
    default = RunOptions(shown, algorithm_name=start.algorithm.name, **names_of(start, shown))
    options = parse(RunOptions, arguments, "kfl run", DESCRIPTION, default)
    experiment = options.experiment if start.cell_config is not None else replace(options.experiment, radio=None)
    experiment = with_devices_of_data(experiment, options.data_dir)
    experiment.validate()
    folder = options.out or new_folder(experiment.algorithm.name, experiment.dataset)
    job = Job(
        options.data_dir,
        options.device,
        options.precision,
        deterministic=options.deterministic,
        baseline=not options.no_baseline,
        models=not options.no_models,
        track=tracker_names(options.track),
    )
    return execute(experiment, folder, job, quiet=options.quiet)


@dataclass(frozen=True)
class Job:
    """How a run is carried out: what is not part of the experiment but must be the same when it is resumed."""

    data_dir: Path | None
    device: str
    precision: str = "float32"
    deterministic: bool = False
    baseline: bool = True
    models: bool = True
    track: tuple[str, ...] = ()

    def save(self, folder: Path) -> None:
        """Leave a note in the run folder for `kfl resume`."""
        write_note(
            folder, JOB, {name: getattr(self, name) for name in ("baseline", "models", "deterministic", "track")}
        )

    @staticmethod
    def load(folder: Path, data_dir: Path | None, device: str) -> Job:
        """Read the note; a run that was not started by `kfl run` has none, and gets no baseline."""
        try:
            note = read_note(folder, JOB)
            baseline, models, deterministic = (bool(note[name]) for name in ("baseline", "models", "deterministic"))
            track = tracker_names(str(name) for name in note.get("track", ()))
            return Job(data_dir, device, deterministic=deterministic, baseline=baseline, models=models, track=track)
        except (OSError, ValueError, KeyError, TypeError, ConfigError):
            return Job(data_dir, device, baseline=False)


def execute(experiment: Experiment, folder: Path, job: Job, *, quiet: bool = False) -> int:
    """Run the experiment and, unless it is one already, its local-only twin; then print the summary."""
    from kfl.cli.display import RunDisplay, print_summary
    from kfl.runner import run

    how: dict[str, Any] = {
        "data_dir": job.data_dir,
        "device": job.device,
        "precision": job.precision,
        "deterministic": job.deterministic,
    }
    twin, begun = None, False
    tracking = Tracking(job.track, folder, tell=lambda sentence: tell(sentence, file=sys.stderr, flush=True))
    label = experiment.algorithm.name
    with GentleStop() as stop, RunDisplay(experiment.rounds, label, quiet=quiet) as display, tracking:

        def on_start(world: World) -> None:
            nonlocal begun
            begun = True
            job.save(folder)
            display.on_start(world)
            tracking.on_start(world)

        def on_round(log: RoundLog) -> None:
            display.on_round(log)
            tracking.on_round(log)

        history = run(
            experiment,
            folder,
            keep_models=job.models,
            on_start=on_start,
            on_round=on_round,
            should_stop=stop,
            **how,
        )
        tracking.finish(experiment, history)
    if job.baseline and not isinstance(experiment.algorithm, Local):
        alone = replace(experiment, algorithm=common_settings(experiment.algorithm, Local))
        with GentleStop() as stop, RunDisplay(experiment.rounds, "local-only", sentences=False, quiet=quiet) as display:
            try:
                twin = run(
                    alone,
                    folder / LOCAL_ONLY,
                    keep_models=False,
                    on_round=display.on_round,
                    should_stop=stop,
                    **how,
                )
            except StoppedError as stopped:
                raise StoppedError(folder, stopped.rounds) from None
    if not begun:
        tell(f"{folder} is finished already: nothing was run again. Its summary:")
    print_summary(experiment, history, twin, folder)
    return 0


@dataclass(frozen=True)
class ResumeOptions:
    """What `kfl resume` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_FOLDER")]
    """The run folder to continue."""
    data_dir: DataDir = None
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device to train on; the same one as before gives the same run bit for bit."""
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TRACK] = ()
    """Trackers (tensorboard, mlflow, wandb), or none. Default: those the run was started with."""
    quiet: Quiet = False


RESUME = """Continue a run that was interrupted by Ctrl-C, a crash, a full disk or a power cut.

It continues from the last checkpoint, at most half a minute (or one round) back, and ends exactly as if it had never
been interrupted. For a finished run, only the summary is shown."""


def resume(arguments: Sequence[str]) -> int:
    """Parse, continue, print."""
    from kfl.runfolder import load_experiment

    options = parse(ResumeOptions, arguments, "kfl resume", RESUME)
    experiment = load_experiment(options.folder)
    job = Job.load(options.folder, options.data_dir, options.device)
    if options.track:
        wanted = () if options.track == ("none",) else tracker_names(options.track)
        job = replace(job, track=wanted)
    return execute(experiment, options.folder, job, quiet=options.quiet)
