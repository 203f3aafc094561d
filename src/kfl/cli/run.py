"""`kfl run` and `kfl resume`: one experiment, with progress while it runs and a summary a person understands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

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
    typed,
    with_devices_of_data,
    with_radio_asked,
    with_radio_fields,
)
from kfl.core.terminal import tell
from kfl.experiment import Experiment, check_idle
from kfl.report.trackers import Tracking, tracker_names

if TYPE_CHECKING:
    from kfl.runner import RunOptions
    from kfl.simulation import RoundLog
    from kfl.simulation.world import World

DESCRIPTION = """Run an experiment: federated learning on a fleet of simulated devices.

By default, fifty devices with different networks learn five thousand real digits with KFL."""
MOST_USED = ("algorithm", "dataset", "devices", "rounds", "split", "model", "scheduler", "radio", "seed", "out")
EXAMPLES = """kfl run --out runs/first                                      then: kfl report runs/first --open
kfl run --algorithm fedavg --widths 32 --algorithm.learning-rate 0.1
kfl run --dataset readings.csv,y=activity --split natural     own data with known owners
kfl run --radio nb-iot --scheduler lyapunov                   devices with batteries in a cell
kfl run --config runs/first/config.toml --seed 1              an earlier run with another seed
kfl run --algorithm fedprox --help-all                        the options of FedProx"""

TRACK = tyro.conf.arg(metavar="NAME[,NAME]", help_behavior_hint="")
"""How --track is shown; it may also be given several times."""


@dataclass(frozen=True)
class RunArgs:
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
    """No effect, and said to have none: training alone no longer runs along with it; kfl compare --twins does that."""
    no_models: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not keep the devices' models in the run folder; kfl export needs them."""
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TRACK] = ()
    """Log the run to tensorboard, mlflow or wandb as well, separated by commas; each is an extra of kfl."""
    quiet: Quiet = False


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print."""
    start = starting_point(arguments)
    shown = with_radio_fields(start, arguments)
    default = RunArgs(shown, algorithm_name=start.algorithm.name, **names_of(start, shown))
    options = parse(RunArgs, arguments, "kfl run", DESCRIPTION, default, examples=EXAMPLES, most_used=MOST_USED)
    experiment = with_radio_asked(options.experiment, start, arguments)
    experiment = with_devices_of_data(experiment, options.data_dir)
    check_idle([experiment], typed(arguments))
    if options.no_baseline:
        tell("kfl: --no-baseline has no effect any more: no baseline runs along with it.", file=sys.stderr)
    folder = options.out or new_folder(experiment.algorithm.name, experiment.dataset)
    from kfl.runner import RunOptions  # PyTorch, which help texts do not need

    how = RunOptions(
        data_dir=options.data_dir,
        device=options.device,
        precision=options.precision,
        deterministic=options.deterministic,
        keep_models=not options.no_models,
        track=tracker_names(options.track) if options.track else (),
    )
    return execute(experiment, folder, how, quiet=options.quiet)


def execute(experiment: Experiment, folder: Path, how: RunOptions, *, quiet: bool = False) -> int:
    """Run the experiment, then print the summary."""
    from kfl.cli.display import print_summary
    from kfl.progress import RunDisplay
    from kfl.runfolder import load_experiment
    from kfl.runner import run_with

    begun = False
    tracking: AbstractContextManager[Tracking | None] = nullcontext()
    if how.track:
        tracking = Tracking(how.track, folder, partial(tell, file=sys.stderr, flush=True))
    label = experiment.algorithm.name
    with GentleStop() as stop, RunDisplay(experiment.rounds, label, quiet=quiet) as display, tracking as tracked:
        watchers: list[RunDisplay | Tracking] = [display] if tracked is None else [display, tracked]

        def on_start(world: World) -> None:
            nonlocal begun
            begun = True
            how.save(folder)
            for watcher in watchers:
                watcher.on_start(world)

        def on_round(log: RoundLog) -> None:
            for watcher in watchers:
                watcher.on_round(log)

        watched = replace(how, on_start=on_start, on_round=on_round, should_stop=stop)
        history = run_with(experiment, folder, watched)
        experiment = load_experiment(folder)  # with what the data said
        if tracked is not None:
            tracked.finish(experiment, history)
    if not begun:
        tell(f"{folder} is finished already: nothing was run again. Its summary:")
    print_summary(experiment, history, folder)
    return 0


@dataclass(frozen=True)
class ResumeArgs:
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
    options = parse(ResumeArgs, arguments, "kfl resume", RESUME, examples="kfl resume runs/first")
    from kfl.runfolder import load_experiment
    from kfl.runner import RunOptions

    experiment = load_experiment(options.folder)
    how = replace(RunOptions.load(options.folder), data_dir=options.data_dir, device=options.device)
    if options.track:
        how = replace(how, track=() if options.track == ("none",) else tracker_names(options.track))
    return execute(experiment, options.folder, how, quiet=options.quiet)
