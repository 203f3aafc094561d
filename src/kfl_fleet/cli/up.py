"""`kfl deploy up`: a whole fleet on this machine, from certificates to the last round, and no process left behind."""

from __future__ import annotations

import itertools
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.interrupt import termination_as_interrupt
from kfl.cli.options import new_folder, parse
from kfl.core.errors import KflError
from kfl.core.terminal import tell
from kfl.core.text import several

if TYPE_CHECKING:
    from kfl_fleet import ServerConfig
    from kfl_fleet.project import Project

DESCRIPTION = """Start a whole fleet on this machine: a server and its devices as separate processes on 127.0.0.1,
with TLS, authenticated devices, a database and process isolation, as a real fleet has them.

In a project that kfl deploy new wrote, its own server.toml, device.toml and device function are used. In any other
folder it is a rehearsal: three devices share the embedded digits, as in kfl run, and the run is kept under runs/.
Ctrl-C ends everything, and so does the last round."""

DEMO = "kfl_fleet.device.simulated:device"
"""The device function outside of a project."""


@dataclass(frozen=True)
class UpOptions:
    """What `kfl deploy up` takes."""

    devices: int | None = None
    """Number of devices, each its own process. Default: 3, or what the config says."""
    rounds: int | None = None
    """Number of rounds. Default: 3, or what the config says."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The server's TOML file: an experiment as for kfl run, with a table [fleet]."""
    device: Annotated[str | None, tyro.conf.arg(metavar="PACKAGE.MODULE:FUNCTION")] = None
    """Function that returns a device's model and data. Default: devices of the experiment's dataset."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to keep everything in; given again, the fleet continues. Default: a new one under runs/, or in a project
    its folder local, where every start is a new one; the one before it is kept as local-1, local-2 …"""


def main(arguments: Sequence[str]) -> int:
    """Parse, start, stream the rounds, end."""
    options = parse(
        UpOptions,
        arguments,
        "kfl deploy up",
        DESCRIPTION,
        UpOptions(),
        examples="kfl deploy up --devices 5 --rounds 10",
    )
    from kfl_fleet.project import Project

    project = Project.find() if options.config is None and options.device is None else None
    config = server_config(options, project)
    config.validate()
    if options.out is not None:
        folder = options.out
    else:
        folder = new_folder("fleet", config.experiment.dataset) if project is None else rehearsal(project)
    with termination_as_interrupt():
        return up(config, folder, options, project)


def rehearsal(project: Project) -> Path:
    """The folder `local` of a project; what an earlier rehearsal left there is kept next to it, if it has a round."""
    from kfl.runfolder import RunReader, is_held

    folder = project.folder / "local"
    if is_held(folder / "run"):
        raise KflError(f"A fleet is up in {folder} already; end it first, or choose another folder with --out.")
    if (folder / "superlink.db").exists():  # it is a fleet's, and nothing else
        if done := len(RunReader(folder / "run").whole_rounds()):
            kept = next(path for n in itertools.count(1) if not (path := project.folder / f"local-{n}").exists())
            folder.rename(kept)
            tell(f"The run before this one, of {several(done, 'round')}, is kept in {kept}.")
        else:
            shutil.rmtree(folder)
    return folder


def server_config(options: UpOptions, project: Project | None) -> ServerConfig:
    """The file's configuration, or a small one, with what the command line says on top."""
    from kfl.experiment import Experiment
    from kfl_fleet import ServerConfig

    if project is not None:
        config = project.config
    elif options.config is None:
        config = ServerConfig(Experiment(devices=3, rounds=3, widths=(128, 192, 256)))
    else:
        config = ServerConfig.load(options.config)
    given = {name: getattr(options, name) for name in ("devices", "rounds") if getattr(options, name) is not None}
    return replace(config, experiment=replace(config.experiment, **given))


def up(config: ServerConfig, folder: Path, options: UpOptions, project: Project | None) -> int:
    """Run the fleet and print a line for every round."""
    from kfl_fleet.local.fleet import LocalFleet
    from kfl_fleet.logs import logging_as
    from kfl_fleet.server.metrics import round_sentence

    rounds, devices = config.experiment.rounds, config.experiment.devices
    if project is not None:
        fleet = LocalFleet(folder, config, project.device, project.device_config, python_path=[project.app])
    else:
        fleet = LocalFleet(folder, config, options.device or DEMO, python_path=[Path.cwd()])
    if project is None and options.config is None and options.device is None:
        tell(
            f"There is no fleet's project in {Path.cwd()}, so this is a rehearsal: {devices} devices on this machine "
            f"share {config.experiment.dataset}. Begin your own project: kfl deploy new my-fleet"
        )
    tell(f"Starting {devices} devices and a server on {fleet.address}; logs in {fleet.folder / 'logs'}", flush=True)
    status = 0
    try:
        with logging_as(config.fleet.log_format, stream=sys.stdout), fleet:
            tell(
                "All processes are running; the first round takes longer: devices introduce themselves.",
                flush=True,
            )
            for entry in fleet.rounds():
                tell(round_sentence(entry, rounds), flush=True)
    except KeyboardInterrupt:
        tell("", "Interrupted.")
        status = 130
    left = fleet.processes.members()
    tell(f"{len(left)} processes could not be stopped: {left}" if left else "All processes stopped.")
    again = "" if fleet.finished or options.out is None else "; the same command continues with the next round"
    tell(f"The run folder is {fleet.run_folder}{again}. Look at it: kfl report {shlex.quote(str(fleet.run_folder))}")
    return status
