"""`kfl deploy new`: write a small working project for a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse

DESCRIPTION = """Write a small working project for a fleet: configurations, a device function, scripts, systemd units,
a reverse proxy, and a README that leads from nothing to a running fleet."""


@dataclass(frozen=True)
class NewOptions:
    """What `kfl deploy new` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """The new folder; its name becomes the fleet's."""
    devices: int = 3
    """How many devices there will be."""
    host: str = "fleet.example.org"
    """Name or address by which devices reach the server."""
    home: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """Where the project will lie on server and devices. By default /opt and its name."""


def main(arguments: Sequence[str]) -> int:
    """Write the project and say what to do next."""
    options = parse(NewOptions, arguments, "kfl deploy new", DESCRIPTION)
    from kfl.deploy.starter import write_project

    project = write_project(options.folder, options.devices, options.host, options.home)
    print(f"{project.folder} is ready. The whole fleet on this machine:\n\n  cd {options.folder} && kfl deploy up\n")
    print("On several machines: see README.md there.")
    return 0
