"""`kfl deploy device`: one device of a fleet, a small process that talks and a warm one that learns."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse

DESCRIPTION = """Be one device of a fleet: ask its server for messages, train, answer, until it is ended.

PyTorch, data and model stay loaded in a process of their own, so that an answer begins at once. The device function is
called once per run; SIGHUP has it called again, for data that changed."""


@dataclass(frozen=True)
class DeviceOptions:
    """What `kfl deploy device` takes."""

    superlink: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")]
    """The fleet's server, as this device reaches it."""
    root_certificates: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Certificate of the authority that signed the server's: keys/ca.crt."""
    key: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """This device's private key: keys/device-3."""
    number: int
    """This device's number in the fleet, from 0."""
    state: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("state")
    """Where its model and the app are kept."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Its own TOML file, handed to the device function."""
    device: Annotated[str | None, tyro.conf.arg(metavar="PACKAGE.MODULE:FUNCTION")] = None
    """The device function. Default: the one that the app names."""
    meter: str = "formula"
    """What measures energy: formula, codecarbon, or fake:J for tests."""
    poll_s: float = 0.5
    """Seconds between two looks for messages while rounds are played."""
    idle_poll_s: float = 3.0
    """Seconds between two looks when no message has come for a while."""
    idle_after_s: float = 60.0
    """How long that while is."""


def main(arguments: Sequence[str]) -> int:
    """Check the options and become the device: this process is replaced, since it has imported more than one needs."""
    options = parse(DeviceOptions, arguments, "kfl deploy device", DESCRIPTION)
    from kfl_fleet.device.node import NodeOptions, command

    found = NodeOptions(
        superlink=options.superlink,
        root_certificates=str(options.root_certificates),
        key=str(options.key),
        number=options.number,
        state=str(options.state.absolute()),
        config="" if options.config is None else str(options.config),
        device=options.device or "",
        meter=options.meter,
        poll_s=options.poll_s,
        idle_poll_s=options.idle_poll_s,
        idle_after_s=options.idle_after_s,
    )
    found.validate()
    sys.stdout.flush()
    os.execv(sys.executable, command(found))
