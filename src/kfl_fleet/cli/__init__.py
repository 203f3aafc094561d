"""`kfl deploy`: the same algorithm on real devices, over Flower. `kfl deploy up` is a module of its own."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.main import dispatch
from kfl.cli.options import parse
from kfl.core.errors import KflError
from kfl.core.files import jsonable
from kfl.core.names import shortened
from kfl.core.terminal import tell, tell_json
from kfl.core.text import DASH, bit_count, percent, quantity

if TYPE_CHECKING:
    from kfl_fleet.project import Project
    from kfl_fleet.server.status import DeviceStatus, FleetStatus

COMMANDS = {
    "up": ("kfl_fleet.cli.up:main", "Start a whole fleet on this machine, with TLS and authenticated devices."),
    "new": ("kfl_fleet.cli:new", "Write a small working project for a fleet on several machines."),
    "keys": ("kfl_fleet.cli:keys", "Make certificates and keys; admit devices, replace their keys, revoke them."),
    "device": ("kfl_fleet.cli.device:main", "Be one device of a fleet: wait for messages, train, answer."),
    "run": ("kfl_fleet.cli:run", "Start a project's run on its SuperLink and keep it going."),
    "status": ("kfl_fleet.cli:status", "How a fleet is doing: rounds, devices, faults, energy, accuracy."),
}
"""Commands of `kfl deploy`: the function that serves each, and one line of help."""
GATED = ("superlink", "superexec")
"""Flower's programs on the server, which `kfl_fleet._flower.control_auth` starts."""


def main(arguments: Sequence[str]) -> int:
    """Dispatch to a command of `kfl deploy`; two more, with options of Flower's, are for the scripts of a project."""
    if arguments and arguments[0] in GATED:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "kfl_fleet._flower.control_auth", *arguments])
    return dispatch("kfl deploy", COMMANDS, arguments)


NEW = """Write a small working project for a fleet: configurations, a device function, scripts, systemd units,
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
    """Folder of the project on server and devices. Default: /opt and its name."""


def new(arguments: Sequence[str]) -> int:
    """Write the project and say what to do next."""
    options = parse(NewOptions, arguments, "kfl deploy new", NEW, examples="kfl deploy new my-fleet --devices 5")
    from kfl_fleet.project import write_project

    project = write_project(options.folder, options.devices, options.host, options.home)
    tell(
        f"{project.folder} is ready. The whole fleet on this machine:",
        "",
        f"  cd {options.folder} && kfl deploy up",
        "",
    )
    tell(
        f"On several machines, follow README.md there. Devices will look for the server at {options.host}:8443;",
        "--host or SERVER in device.env gives another name or address.",
    )
    return 0


KEYS = """Make the certificates and keys of a fleet's project that are missing; none is ever overwritten.

With --register, admit all devices at the running SuperLink. With --replace 3, give device 3 a new key: the old one is
revoked at once, and the device keeps its number and model. With --revoke 3, lock it out for good."""


@dataclass(frozen=True)
class KeysOptions:
    """What `kfl deploy keys` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """Project that kfl deploy new wrote. Default: the current folder."""
    hosts: tuple[str, ...] = ()
    """Names and addresses by which devices reach the server. Default: the one in device.env."""
    register: bool = False
    """Admit all devices at the SuperLink, which must be running."""
    replace: Annotated[int | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Give this device a new key and revoke the old one."""
    revoke: Annotated[int | None, tyro.conf.arg(metavar="DEVICE")] = None
    """Revoke the key of this device."""
    renew_server: bool = False
    """Make a new server certificate, for other hosts or because the old one expires."""


def keys(arguments: Sequence[str]) -> int:
    """Make, renew, replace, register: what was asked for."""
    options = parse(
        KeysOptions,
        arguments,
        "kfl deploy keys",
        KEYS,
        examples="kfl deploy keys\nkfl deploy keys --register\nkfl deploy keys --replace 3",
    )
    from kfl_fleet.project import Project
    from kfl_fleet.project.project import make_missing, renew_server, replace_device_key

    if sum(map(bool, (options.replace is not None, options.revoke is not None, options.renew_server))) > 1:
        raise KflError("--replace, --revoke and --renew-server are three different things; give one of them.")
    project = Project.need(options.folder)
    flower = project.control()
    if options.revoke is not None:
        known = flower.revoke(options.revoke)
        tell(f"Device {options.revoke} is locked out." if known else unknown(options.revoke))
        return 0
    if options.replace is not None:
        flower.nodes()  # before anything is changed: is the SuperLink there?
        pair = replace_device_key(project, options.replace)
        known = flower.revoke(options.replace)
        flower.register({options.replace: project.public_key(options.replace)})
        tell(f"Device {options.replace} has a new key. " + ("The old one is revoked." if known else ""))
        if not known:
            tell(unknown(options.replace))
        tell(f"Copy {pair.private} to the device and restart it there.")
        return 0
    if options.renew_server:
        tell(f"{renew_server(project, options.hosts)} is new: restart the SuperLink and reload the proxy.")
        return 0
    warn_exposed(project)
    made = make_missing(project, options.hosts)
    tell(f"{len(made)} files made in {project.keys}." if made else f"Nothing is missing in {project.keys}.")
    if any(path.name == "ca.key" for path in made):
        tell("Keep ca.key somewhere else: it is needed only for new server certificates, and anyone who has it can")
        tell("pose as the server.")
    if options.register:
        devices = project.config.experiment.devices
        new = flower.register({device: project.public_key(device) for device in range(devices)})
        tell(f"{len(new)} devices admitted, {devices - len(new)} were admitted before.")
    return 0


def warn_exposed(project: Project) -> None:
    """Say on stderr, in one sentence, which keys others can read."""
    from kfl_fleet.private import exposed

    if (sentence := exposed(project.private_files())) is not None:
        tell(f"kfl: {sentence}", file=sys.stderr)


def unknown(device: int) -> str:
    """For a key that was admitted by other means."""
    return (
        f"No key of device {device} was admitted from here. If one was admitted by other means, find its id with "
        "'flwr supernode list fleet' and revoke it with 'flwr supernode unregister ID fleet'."
    )


RUN = """Start the run of a fleet's project on its SuperLink, or continue it, and print what its server says.

A server that dies is restarted and continues with the next round; a SuperLink that is unreachable is waited for.
Ctrl-C ends only this command, which watches over the run; the run itself continues."""


@dataclass(frozen=True)
class RunOptions:
    """What `kfl deploy run` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """Project that kfl deploy new wrote. Default: the current folder."""


def run(arguments: Sequence[str]) -> int:
    """Submit, watch, and restart where needed."""
    options = parse(RunOptions, arguments, "kfl deploy run", RUN, examples="kfl deploy run")
    from kfl.runfolder import RunReader
    from kfl_fleet.local.supervisor import keep_running
    from kfl_fleet.logs import SERVER_LOG, following, logging_as, note
    from kfl_fleet.project import Project
    from kfl_fleet.server.metrics import round_sentence

    project = Project.need(options.folder)
    warn_exposed(project)
    config = project.config
    rounds = config.experiment.rounds
    said, before = project.run_folder / SERVER_LOG, len(RunReader(project.run_folder).whole_rounds())
    try:
        with logging_as(config.fleet.log_format, stream=sys.stdout), following(said, sys.stdout):
            for entry in keep_running(project):
                if entry.round < before:  # later ones the server tells of itself
                    note("round_seen", round_sentence(entry, rounds), round=entry.round + 1, rounds=rounds)
            note("run_finished", f"The run is finished: {project.run_folder}")
    except KeyboardInterrupt:
        tell("", "kfl: interrupted; the run itself continues. To watch over it again: kfl deploy run", file=sys.stderr)
        return 130
    return 0


STATUS = """How a fleet is doing: rounds, devices seen, late, lost, rejected, energy, and accuracy as devices
report it. Read from the server's run folder, while it runs and afterward."""


@dataclass(frozen=True)
class StatusOptions:
    """What `kfl deploy status` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """The fleet's project, or the server's run folder. Default: the current folder."""
    json: bool = False
    """Print everything as JSON instead."""
    schema: bool = False
    """Print the JSON schema of that instead."""


def status(arguments: Sequence[str]) -> int:
    """Read and show, or print as JSON."""
    options = parse(StatusOptions, arguments, "kfl deploy status", STATUS, examples="kfl deploy status --json")
    from kfl_fleet.server.status import find_run, read_status, status_schema

    if options.schema:
        tell_json(json.dumps(status_schema(), indent=2, ensure_ascii=False))
        return 0
    status = read_status(find_run(options.folder))
    if options.json:
        tell_json(json.dumps(jsonable(status.to_dict()), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show_status(status)
    return 0


def show_status(status: FleetStatus) -> None:
    """The status as a table with a few sentences."""
    from kfl.cli.display import print_table

    done = f"round {status.rounds_done} of {status.rounds}"
    speed = "" if status.round_s is None else f", {status.round_s:.1f} s per round"
    there = "" if status.devices_there is None else f", {status.devices_there} there when the last round began"
    reached = "" if status.accuracy is None else f" Accuracy {percent(status.accuracy)}."
    notes = [
        f"{status.devices_seen} of {status.devices_expected} devices seen{there}.{reached} "
        f"Energy {quantity(status.energy_j, 'J')}, up {bit_count(status.bits_up)}, "
        f"down {bit_count(status.bits_down)}{speed}.",
        *privacy_notes(status.devices),
        *(f"Device {one.device} says too much: {cut}." for one in status.devices for cut in one.cuts),
        *(f"Node {shortened(node)} cannot join: {reason}." for node, reason in status.refused.items()),
        *status.problems,
    ]
    if status.state == "stopped":
        notes.append(f"No server is running; {continued_by(Path(status.folder))}")
    if status.metrics_port is not None:
        notes.append(f"Metrics: http://127.0.0.1:{status.metrics_port}/metrics")
    title = f"{status.algorithm}, {status.scheduler}: {done}, {status.state}"
    print_table(device_columns(status.devices), title, notes)


def continued_by(run: Path) -> str:
    """The command that goes on with a stopped run: it is a project's, or one of `kfl deploy up`."""
    fleet = run.resolve().parent
    if not (fleet / "superlink.db").exists() or (fleet / "server.env").exists():
        return "kfl deploy run (or the unit of that name) continues with the next round."
    if fleet.name == "local":
        return f"kfl deploy up begins a new run; kfl deploy up --out {fleet.name} continues this one."
    return f"kfl deploy up --out {shlex.quote(str(fleet))}, with the options it began with, continues it."


def device_columns(devices: Sequence[DeviceStatus]) -> dict[str, list[str]]:
    """Cells by column, one per device."""
    found = {
        "device": [str(one.device) for one in devices],
        "model": [one.model or "not seen" for one in devices],
        "samples": [_or_dash(one.samples) for one in devices],
        "chosen": [str(one.chosen) for one in devices],
        "used": [str(one.used) for one in devices],
        "late": [str(one.late) for one in devices],
        "lost": [str(one.lost) for one in devices],
        "rejected": [str(one.rejected) for one in devices],
        "energy": [quantity(one.energy_j, "J") for one in devices],
        "of budget": [_share(one) for one in devices],
        "accuracy, %": [DASH if one.accuracy is None else f"{100 * one.accuracy:.1f}" for one in devices],
        "last round": [_or_dash(one.last_round) for one in devices],
        "answer, s": [DASH if one.answer_s is None else f"{one.answer_s:.1f}" for one in devices],
    }
    for name in ("unanswered", "missed", "diverged", "restarts", "clipped"):
        counts = [getattr(one, name) for one in devices]
        if any(counts):
            found[name] = [str(count) for count in counts]
    if any(one.privacy for one in devices):
        found["ε"] = [DASH if one.privacy is None else f"{one.privacy.epsilon:.3g}" for one in devices]
    return found


def privacy_notes(devices: Sequence[DeviceStatus]) -> list[str]:
    """What the column ε means, where there is one."""
    spent = [one.privacy for one in devices if one.privacy is not None]
    if not spent:
        return []
    worst = max(one.epsilon_with_training for one in spent)
    return [
        f"ε: privacy spent so far, for δ = {spent[0].delta:g} and one sample of a device; with the training of the "
        f"body counted, up to {worst:.3g}."
    ]


def _share(one: DeviceStatus) -> str:
    return percent(one.energy_j / one.budget_j, 0) if 0 < one.budget_j < float("inf") else DASH


def _or_dash(value: object) -> str:
    return DASH if value is None else str(value)
