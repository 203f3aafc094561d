"""`kfl data`: see how a dataset is split over devices; fetch a dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from kfl.cli.options import parse
from kfl.core.errors import KflError
from kfl.data import downloadable
from kfl.experiment import DataSettings

if TYPE_CHECKING:
    Downloadable = str
else:
    Downloadable = Literal[tuple(downloadable())]
    """The datasets that can be fetched, so that help names them and the parser knows them."""


@dataclass(frozen=True)
class ShowOptions:
    """What `kfl data show` takes."""

    settings: Annotated[DataSettings, tyro.conf.arg(name="")] = DataSettings()
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder that holds MNIST and CIFAR-10. Default: the environment variable KFL_DATA_DIR."""
    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Plot the split into this file (.png, .svg or .pdf)."""


@dataclass(frozen=True)
class DownloadOptions:
    """What `kfl data download` takes."""

    dataset: Annotated[Downloadable, tyro.conf.Positional]
    """Dataset to download."""
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to put it in. Default: KFL_DATA_DIR, else the user's data folder."""


USAGE = f"""usage: kfl data {{show,download}} [OPTIONS]

  kfl data show      show the split, devices × classes, in the terminal and as a plot
  kfl data download  download {" or ".join(downloadable())} into the data folder, and verify it

Each has --help."""


def main(arguments: Sequence[str]) -> int:
    """Dispatch to show or download."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "show":
        return show(parse(ShowOptions, arguments[1:], "kfl data show", "Show how a dataset is split over devices."))
    if arguments[0] == "download":
        about = "Download a dataset from its public source, verify it, and put it where kfl finds it."
        return fetch(parse(DownloadOptions, arguments[1:], "kfl data download", about))
    raise KflError(f"There is no command 'kfl data {arguments[0]}'; use show or download.")


def show(options: ShowOptions) -> int:
    """Print the split, and draw it if asked to."""
    from kfl.data import load_dataset, split_table

    settings = options.settings
    data = load_dataset(settings.dataset, options.data_dir)
    split = settings.partition(data)
    print(split_table(split))
    if options.plot is not None:
        from kfl.plots import plot_split

        plot_split(split, options.plot, f"{data.name}: {settings.split} over {settings.devices} devices")
        print(f"\nDrawn into {options.plot}")
    return 0


def fetch(options: DownloadOptions) -> int:
    """Download with a progress bar on a terminal, silently elsewhere."""
    from rich.progress import Progress

    from kfl.data import download

    with Progress(disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(options.dataset, total=None)
        folder = download(
            options.dataset,
            options.data_dir,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(f"{options.dataset} is in {folder}")
    return 0
