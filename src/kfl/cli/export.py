"""`kfl export`: trained models out of a run folder, as safetensors with what is needed to load them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import parse, whole_numbers
from kfl.core.errors import ConfigError
from kfl.core.terminal import tell

DESCRIPTION = """Write the trained models of chosen devices as safetensors, each with a JSON that says what it is.

The weights are those the device predicts with at the end of the run. load.py next to them loads one in a line."""


@dataclass(frozen=True)
class ExportOptions:
    """What `kfl export` takes."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that holds its models."""
    devices: Annotated[str, tyro.conf.arg(metavar="DEVICES")] = "all"
    """Devices: 0,3,7 or 0..4 or all."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to write into. Default: exported in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Parse, write, say how to load."""
    options = parse(
        ExportOptions, arguments, "kfl export", DESCRIPTION, examples="kfl export runs/first --devices 0..4"
    )
    from kfl.core.text import percent, quantity
    from kfl.export import FinishedRun, export_models

    run = FinishedRun.open(options.run)
    devices = (
        list(range(run.experiment.devices)) if options.devices == "all" else whole_numbers(options.devices, "devices")
    )
    wrong = [device for device in devices if device >= run.experiment.devices]
    if wrong:
        raise ConfigError("devices", wrong[0], f"from 0 to {run.experiment.devices - 1}, the devices of {options.run}")
    out = options.out or options.run / "exported"
    files = export_models(options.run, devices, out)
    total = quantity(sum(path.stat().st_size for path in files), "B")
    tell(f"{len(files)} model{'s' * (len(files) != 1)} of {run.experiment.algorithm.name}, {total}, in {out}:")
    for device, path in list(zip(devices, files, strict=True))[:10]:
        about = run.history.devices[device]
        accuracy = "not tested" if about["accuracy"] is None else percent(about["accuracy"])
        rounds = "never trained" if about["rounds"] == 0 else f"trained in {about['rounds']} rounds"
        tell(f"  {path.name}  {about['model']}, {about['parameters']:,} parameters, {accuracy}, {rounds}")
    if len(files) > 10:
        tell(f"  … and {len(files) - 10} more")
    if run.named_models:
        tell(f'Load one, in {out}: from load import load; model, about = load("{files[0].stem}")')
    return 0
