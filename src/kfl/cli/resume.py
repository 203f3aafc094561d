"""`kfl resume`: continue a run that was interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kfl.cli.options import parse
from kfl.cli.run import TRACK, Job, execute
from kfl.report.trackers import tracker_names


@dataclass(frozen=True)
class ResumeOptions:
    """What `kfl resume` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_FOLDER")]
    """The run folder to continue."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where MNIST and CIFAR-10 lie. By default the environment variable KFL_DATA_DIR."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Processor that trains; the same as before gives bit for bit the same run."""
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TRACK] = ()
    """Trackers (tensorboard, mlflow, wandb), or none. By default those the run was started with."""


DESCRIPTION = """Continue a run that was interrupted by Ctrl-C, a crash, a full disk or a power cut.

It goes on from the last checkpoint, at most half a minute (or one round) back, and ends as the run that was never
interrupted. A finished run only shows its summary."""


def main(arguments: Sequence[str]) -> int:
    """Parse, continue, print."""
    from kfl.runfolder import load_experiment

    options = parse(ResumeOptions, arguments, "kfl resume", DESCRIPTION)
    experiment = load_experiment(options.folder)
    job = Job.load(options.folder, options.data_dir, options.device)
    if options.track:
        wanted = () if options.track == ("none",) else tracker_names(options.track)
        job = replace(job, track=wanted)
    return execute(experiment, options.folder, job)
