"""`kfl deploy keys`: certificates and keys of a fleet's project, and which keys the SuperLink lets in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse
from kfl.core.errors import KflError

DESCRIPTION = """Make the certificates and keys of a fleet's project that are missing; none is ever overwritten.

With --register, let all devices in at the running SuperLink. With --replace 3, give device 3 a new key: the old one is
shut out at once, and the device's number and model stay. With --revoke 3, shut it out for good."""


@dataclass(frozen=True)
class KeysOptions:
    """What `kfl deploy keys` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """The project that kfl deploy new wrote. By default the current folder."""
    hosts: tuple[str, ...] = ()
    """Names and addresses by which devices reach the server. By default the one in device.env."""
    register: bool = False
    """Let all devices in at the SuperLink, which must run."""
    replace: Annotated[int | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Give this device a new key and shut the old one out."""
    revoke: Annotated[int | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Shut this device out."""
    renew_server: bool = False
    """Make a new server certificate, for other hosts or because the old one ends."""


def main(arguments: Sequence[str]) -> int:
    """Make, renew, replace, register: what was asked for."""
    options = parse(KeysOptions, arguments, "kfl deploy keys", DESCRIPTION)
    from kfl.deploy.starter import Project
    from kfl.deploy.starter.flower_command import FlowerCommand
    from kfl.deploy.starter.keys import make_missing, renew_server, replace_device_key

    if sum(map(bool, (options.replace is not None, options.revoke is not None, options.renew_server))) > 1:
        raise KflError("--replace, --revoke and --renew-server are three different things; give one of them.")
    project = Project.need(options.folder)
    flower = FlowerCommand(project)
    if options.revoke is not None:
        known = flower.revoke(options.revoke)
        print(f"Device {options.revoke} is shut out." if known else unknown(options.revoke))
        return 0
    if options.replace is not None:
        flower.nodes()  # before anything is changed: is the SuperLink there?
        pair = replace_device_key(project, options.replace)
        known = flower.revoke(options.replace)
        flower.register(options.replace)
        print(f"Device {options.replace} has a new key. " + ("The old one is shut out." if known else ""))
        if not known:
            print(unknown(options.replace))
        print(f"Copy {pair.private} to the device and restart it there.")
        return 0
    if options.renew_server:
        print(f"{renew_server(project, options.hosts)} is new: restart the SuperLink and reload the proxy.")
        return 0
    made = make_missing(project, options.hosts)
    print(f"{len(made)} files made in {project.keys}." if made else f"Nothing is missing in {project.keys}.")
    if any(path.name == "ca.key" for path in made):
        print("Keep ca.key somewhere else: it is needed only for new server certificates, and whoever has it can")
        print("pose as the server.")
    if options.register:
        new = [device for device in range(project.config.experiment.devices) if flower.register(device)]
        print(f"{len(new)} devices let in, {project.config.experiment.devices - len(new)} were in before.")
    return 0


def unknown(device: int) -> str:
    """For a key that was let in by other means."""
    return (
        f"No key of device {device} was let in from here. If one was let in by other means, find its id with "
        "'flwr supernode list fleet' and shut it out with 'flwr supernode unregister ID fleet'."
    )
