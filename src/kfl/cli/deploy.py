"""`kfl deploy`: the same algorithm on real devices, over Flower."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from kfl.core.errors import KflError

COMMANDS = {
    "up": ("kfl.cli.deploy_up", "Start a whole fleet on this machine, with TLS and authenticated devices."),
    "new": ("kfl.cli.deploy_new", "Write a small working project for a fleet on several machines."),
    "keys": ("kfl.cli.deploy_keys", "Make certificates and keys; let devices in, replace their keys, shut them out."),
    "run": ("kfl.cli.deploy_run", "Start a project's run on its SuperLink and keep it going."),
    "status": ("kfl.cli.deploy_status", "How a fleet is doing: rounds, devices, faults, energy, accuracy."),
}
"""Commands of `kfl deploy`: the module whose `main(arguments)` serves each, and one line of help."""

SUBCOMMANDS = {name: text for name, (_, text) in COMMANDS.items()}


def main(arguments: Sequence[str]) -> int:
    """Dispatch to a command of `kfl deploy`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] not in COMMANDS:
        raise KflError(f"There is no command 'kfl deploy {arguments[0]}'; use {' or '.join(COMMANDS)}.")
    status: int = importlib.import_module(COMMANDS[arguments[0]][0]).main(arguments[1:])
    return status


def usage() -> str:
    """What `kfl deploy --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  kfl deploy {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join([f"usage: kfl deploy {{{','.join(COMMANDS)}}} [OPTIONS]", "", *lines, "", "Each has --help."])
