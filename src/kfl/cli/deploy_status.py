"""`kfl deploy status`: how a fleet is doing, from the server's run folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.options import parse
from kfl.core.files import jsonable

if TYPE_CHECKING:
    from kfl.deploy.status import DeviceStatus, FleetStatus

DESCRIPTION = """How a fleet is doing: rounds, devices seen, late, lost, rejected, energy, and accuracy as devices
report it. Read from the server's run folder, while it runs and afterwards."""


@dataclass(frozen=True)
class StatusOptions:
    """What `kfl deploy status` takes."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path()
    """The fleet's project, or the server's run folder. By default the current folder."""
    json: bool = False
    """Print everything as JSON instead."""


def main(arguments: Sequence[str]) -> int:
    """Read and show."""
    options = parse(StatusOptions, arguments, "kfl deploy status", DESCRIPTION)
    from kfl.deploy.status import find_run, read_status

    status = read_status(find_run(options.folder))
    if options.json:
        print(json.dumps(jsonable(status.to_dict()), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        show(status)
    return 0


def show(status: FleetStatus) -> None:
    """The status as a table with a few sentences."""
    from kfl.cli.compare_table import print_table
    from kfl.core.text import percent, quantity

    done = f"round {status.rounds_done} of {status.rounds}"
    speed = "" if status.round_s is None else f", {status.round_s:.1f} s per round"
    reached = "" if status.accuracy is None else f" Accuracy {percent(status.accuracy)}."
    said = [
        f"{status.devices_seen} of {status.devices_expected} devices seen.{reached} "
        f"Energy {quantity(status.energy_j, 'J')}, up {quantity(status.bits_up / 8, 'B')}, "
        f"down {quantity(status.bits_down / 8, 'B')}{speed}.",
        *(f"Node {node} cannot join: {reason}." for node, reason in status.refused.items()),
        *status.problems,
    ]
    if status.state == "stopped":
        said.append("No server is at work; kfl deploy run (or the unit of that name) goes on with the next round.")
    if status.metrics_port is not None:
        said.append(f"Metrics: http://127.0.0.1:{status.metrics_port}/metrics")
    title = f"{status.algorithm}, {status.scheduler}: {done}, {status.state}"
    print_table(columns(status.devices), title, said)


def columns(devices: Sequence[DeviceStatus]) -> dict[str, list[str]]:
    """Cells by column, one per device."""
    from kfl.core.text import quantity

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
        "accuracy, %": ["–" if one.accuracy is None else f"{100 * one.accuracy:.1f}" for one in devices],
        "last round": [_or_dash(one.last_round) for one in devices],
        "answer, s": ["–" if one.answer_s is None else f"{one.answer_s:.1f}" for one in devices],
    }
    if any(one.diverged for one in devices):
        found["diverged"] = [str(one.diverged) for one in devices]
    return found


def _share(one: DeviceStatus) -> str:
    return f"{100 * one.energy_j / one.budget_j:.0f} %" if 0 < one.budget_j < float("inf") else "–"


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)
