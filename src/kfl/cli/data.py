"""`kfl data`: see how a dataset is split over devices; fetch a dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from kfl.cli.main import dispatch
from kfl.cli.options import DataDir, parse, typed, usual_devices
from kfl.core.terminal import tell
from kfl.data import downloadable
from kfl.experiment import DataSettings, check_idle

if TYPE_CHECKING:
    Downloadable = str
else:
    Downloadable = Literal[tuple(downloadable())]
    """The datasets that can be fetched, so that help names them and the parser knows them."""


SHOW = "Show how a dataset is split over devices."
SHOW_EXAMPLES = """kfl data show --dataset mnist-5k --devices 20 --classes-per-device 3
kfl data show --dataset readings.csv,y=activity --split natural --plot split.png"""


@dataclass(frozen=True)
class ShowOptions:
    """What `kfl data show` takes."""

    settings: Annotated[DataSettings, tyro.conf.arg(name="")] = DataSettings()
    data_dir: DataDir = None
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Plot the split into this file (.png, .svg or .pdf)."""


@dataclass(frozen=True)
class DownloadOptions:
    """What `kfl data download` takes."""

    dataset: Annotated[Downloadable, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Dataset to download, such as cifar10."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to put it in. Default: KFL_DATA_DIR, else the user's data folder."""


COMMANDS = {
    "show": ("kfl.cli.data:show", "Show the split, devices × classes, in the terminal and as a plot."),
    "download": (
        "kfl.cli.data:fetch",
        "Download a dataset into the data folder, and verify it.",
    ),
}
"""Commands of `kfl data`: the function that serves each, and one line of help."""


def main(arguments: Sequence[str]) -> int:
    """Dispatch to a command of `kfl data`."""
    return dispatch("kfl data", COMMANDS, arguments)


def show(arguments: Sequence[str]) -> int:
    """Print the split, and draw it if asked to."""
    default = ShowOptions(DataSettings(devices=usual_devices(arguments, DataSettings())))
    options = parse(ShowOptions, arguments, "kfl data show", SHOW, default, examples=SHOW_EXAMPLES)
    from kfl.cli.split_table import data_line, split_table
    from kfl.data import load_dataset

    data = load_dataset(options.settings.dataset, options.data_dir)
    settings = options.settings.for_data(data)
    check_idle([settings], typed(arguments))
    split = settings.partition(data)
    tell(data_line(data))
    if data.note:
        tell(f"Note: {data.note}")
    tell(*split_table(split, class_names=data.class_names).split("\n"))
    if options.plot is not None:
        from kfl.plots import plot_split

        plot_split(split, options.plot, f"{data.name}: {settings.split} over {settings.devices} devices")
        tell("", f"Drawn into {options.plot}")
    return 0


def fetch(arguments: Sequence[str]) -> int:
    """Download with a progress bar on a terminal, silently elsewhere."""
    about = "Download a dataset from its public source, verify it, and put it where kfl finds it."
    options = parse(DownloadOptions, arguments, "kfl data download", about, examples="kfl data download cifar10")
    from rich.progress import Progress

    from kfl.data import download

    with Progress(disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(options.dataset, total=None)
        folder = download(
            options.dataset,
            options.data_dir,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    tell(f"{options.dataset} is in {folder}")
    return 0
