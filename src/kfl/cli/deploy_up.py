"""`kfl deploy up`: a whole fleet on this machine, from certificates to the last round, and nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.options import parse

if TYPE_CHECKING:
    from kfl.deploy import ServerConfig

DESCRIPTION = """Start a whole fleet on this machine: a server and its devices as separate processes on 127.0.0.1,
with TLS, authenticated devices, a database and process isolation, as a real fleet has them.

Every device holds its part of the dataset, as in kfl run. Ctrl-C ends everything, and so does the last round."""


@dataclass(frozen=True)
class UpOptions:
    """What `kfl deploy up` takes."""

    devices: int | None = None
    """Number of devices, each a process of its own. By default 3, or what the config says."""
    rounds: int | None = None
    """Number of rounds. By default 3, or what the config says."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The server's TOML file: an experiment as for kfl run, with a table [fleet]."""
    device: Annotated[str, tyro.conf.arg(metavar="PACKAGE.MODULE:FUNCTION")] = "kfl.deploy.demo:device"
    """The function that returns a device's model and data. By default devices of the experiment's dataset."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Where everything is kept; given again, the fleet goes on. By default a temporary folder, removed at the end."""


def main(arguments: Sequence[str]) -> int:
    """Parse, start, stream the rounds, end."""
    options = parse(UpOptions, arguments, "kfl deploy up", DESCRIPTION, UpOptions())
    config = server_config(options)
    config.validate()
    with contextlib.ExitStack() as stack:
        if options.out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kfl-fleet-")))
        else:
            folder = options.out
        stack.enter_context(termination_as_interrupt())
        return up(config, folder, options)


def server_config(options: UpOptions) -> ServerConfig:
    """The file's configuration, or a small one, with what the command line says on top."""
    from kfl.deploy import ServerConfig
    from kfl.simulation.experiment import Experiment

    if options.config is None:
        config = ServerConfig(Experiment(devices=3, rounds=3, widths=(128, 192, 256)))
    else:
        config = ServerConfig.load(options.config)
    given = {name: getattr(options, name) for name in ("devices", "rounds") if getattr(options, name) is not None}
    return replace(config, experiment=replace(config.experiment, **given))


def up(config: ServerConfig, folder: Path, options: UpOptions) -> int:
    """Run the fleet and print a line for every round."""
    from kfl.deploy.local_fleet import LocalFleet
    from kfl.deploy.sentences import round_sentence

    rounds, devices = config.experiment.rounds, config.experiment.devices
    fleet = LocalFleet(folder, config, options.device, python_path=[Path.cwd()])
    print(f"Starting {devices} devices and a server on {fleet.address}; logs in {fleet.folder / 'logs'}", flush=True)
    status = 0
    try:
        with fleet:
            print("All processes run; the first round takes longer, devices introduce themselves.", flush=True)
            for entry in fleet.rounds():
                print(round_sentence(entry, rounds), flush=True)
    except KeyboardInterrupt:
        print("\nInterrupted.")
        status = 130
    left = fleet.processes.members()
    print(f"Ended: {len(left)} processes could not be ended: {left}" if left else "Ended: no process is left.")
    if options.out is not None:
        again = "" if fleet.finished else "; the same command goes on with the next round"
        print(f"The run folder is {fleet.run_folder}{again}.")
    return status


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """While the block runs, a request to terminate ends it as Ctrl-C does, so that all processes are ended too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
