"""The published twin study: every method next to twins that upload nothing, in twelve conditions.

python -m reproduction twins --from docs/results/sharing --conditions cifar10-m2    # its committed results
python -m reproduction twins --search --out DIR --device cuda                       # again; a GPU, or days
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.cli.options import DataDir, Device, Precision, Quiet, RayAddress, numbers, parse, whole_numbers, worker_count
from kfl.comparison.entries import read_settings, with_settings
from kfl.comparison.records import results_in
from kfl.comparison.search import DEVELOPMENT_SEEDS, LEARNING_RATES, Search
from kfl.comparison.twins import TWINS, UPLOADING
from kfl.core.errors import ConfigError, KflError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.terminal import tell
from reproduction.twin_conditions import Condition, published
from reproduction.twin_picture import draw

if TYPE_CHECKING:
    from kfl.comparison import Comparison

PROG = "python -m reproduction twins"
DESCRIPTION = f"""Run the published twin study, or show its results again.

  {PROG} --from docs/results/sharing --conditions cifar10-m2
  {PROG} --search --out DIR --device cuda     a GPU, or days

Out come a table and a picture: points over the best twin, paired by seed and corrected for the number of questions,
against the bits that a device uploads in a round. Finished runs are never repeated."""


@dataclass(frozen=True)
class TwinsOptions:
    """What `python -m reproduction twins` takes."""

    conditions: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "all"
    """Which of the published conditions, separated by commas."""
    methods: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join((*UPLOADING, *TWINS))
    """Methods and twins, separated by commas; at least one twin."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Seeds: 0..4, 0,3,7 or 5."""
    search: bool = False
    """First give every method the same search: learning rates × its main parameter, on other seeds."""
    search_seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = ",".join(map(str, DEVELOPMENT_SEEDS))
    """Seeds of the search; never those that are reported."""
    learning_rates: Annotated[str, tyro.conf.arg(metavar="RATES")] = ",".join(map(str, LEARNING_RATES))
    """Learning rates that the search tries with every value of a method's main parameter."""
    settings: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """TOML file with hyper-parameters, a table per method."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder to write. Default: runs/twins."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None
    """Show what is finished in this folder, without running anything. Give the options it was run with."""
    keep_runs: bool = False
    """Keep the run folders as well, not only their results."""
    data_dir: DataDir = None
    device: Device = "cpu"
    precision: Precision = "float32"
    workers: int | None = None
    """Runs in parallel. Default: one per core, or one on a GPU."""
    ray: RayAddress = None
    quiet: Quiet = False


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is missing, answer."""
    options = parse(TwinsOptions, arguments, PROG, DESCRIPTION)
    folder = options.out or options.source or Path("runs/twins")
    problem: KflError | None = None
    try:
        found = answer(options, folder)
    except KeyboardInterrupt:
        tell("", "kfl: interrupted; finished runs are kept, and the same command continues.", file=sys.stderr)
        return 130
    except KflError as failed:
        if not results_in(folder):
            raise
        found, problem = answer(replace(options, source=folder), folder), failed
    show(found, folder, f"{PROG} {shlex.join(arguments)}")
    if problem is not None:
        raise problem
    return 0


def answer(options: TwinsOptions, folder: Path) -> Comparison:
    """The study: run in a folder, or only read from it."""
    from kfl.comparison import compare, read
    from kfl.progress import ManyDisplay

    labels = [word for word in options.methods.replace(" ", "").split(",") if word]
    asked = conditions(options.conditions)
    places = [one.searched for one in asked if one.searched is not None]
    only_searched = {place.name: place for place in places if place not in asked}
    entries = [entry for one in asked for entry in one.entries(labels)]
    if options.search:
        entries += [replace(entry, reported=False) for one in only_searched.values() for entry in one.entries(labels)]
    else:
        entries = [replace(entry, search_in="") for entry in entries]
    if options.settings is not None:
        tables = read_settings(options.settings, labels)
        entries = [with_settings(entry, tables) for entry in entries]
    seeds = whole_numbers(options.seeds, "seeds")
    search = None
    if options.search:
        rates = numbers(options.learning_rates, "learning_rates")
        search = Search(whole_numbers(options.search_seeds, "search_seeds"), rates)
    if options.source is not None:
        return read(entries, seeds, options.source, twins=True, search=search)
    with ManyDisplay("twins", quiet=options.quiet) as display:
        return compare(
            entries,
            seeds,
            folder,
            twins=True,
            search=search,
            on_progress=display.on_progress,
            workers=worker_count(options.workers, options.device),
            data_dir=options.data_dir,
            device=options.device,
            precision=options.precision,
            ray=options.ray,
            keep_runs=options.keep_runs,
        )


def show(found: Comparison, folder: Path, command: str) -> None:
    """Print the tables, and write them and the picture into the folder."""
    from kfl.cli.display import print_table

    if not found.rows:
        tell("Nothing is finished yet that could be compared with a twin.")
        return
    for table in found.tables():
        print_table(table.cells, table.title, table.notes)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "sharing.md", found.markdown(command, heading="###").encode())
    try:
        files = draw(found, folder)
    except MissingExtraError as problem:
        tell(problem, file=sys.stderr)
        files = []
    tell(f"The table is {folder / 'sharing.md'}", *(f"The picture is {file}" for file in files[:1]))


def conditions(names: str) -> list[Condition]:
    """The published conditions of these names, separated by commas; `all` are all."""
    known = published()
    words = list(known) if names == "all" else [word for word in names.replace(" ", "").split(",") if word]
    for word in words:
        if word not in known:
            raise ConfigError("conditions", word, f"one of {', '.join(known)}", choices=known)
    return [known[word] for word in words]
