"""`kfl compare`: several algorithms on the same setting and seeds, in one table and one plot."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.number_list import whole_numbers
from kfl.cli.options import peek
from kfl.cli.setting import Setting, chosen_algorithms, new_folder, parse_setting
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.experiment.experiment import Experiment
from kfl.plots import Axis
from kfl.simulation.compare import STANDARD, line_up, pick_reference, summarise_rows
from kfl.simulation.records import Record, data_note, read_records, record, write_records

DESCRIPTION = """Compare algorithms on the same setting and seeds: one table, one plot, raw results as JSON lines.

Every option of kfl run applies to all algorithms alike, so do --algorithm.learning-rate and the other fields that all
algorithms have. Without --algorithms, KFL stands beside the three that share nothing."""


@dataclass(frozen=True)
class CompareOptions:
    """What `kfl compare` takes."""

    setting: Annotated[Setting, tyro.conf.arg(name="")]
    algorithms: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join(STANDARD)
    """Which algorithms, with commas between."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Which seeds: 0..4, 0,3,7 or 5."""
    reference: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The algorithm the others are compared with. By default local, or the first where local is not compared."""
    x: Axis = "rounds"
    """What the plot shows accuracy against: rounds, or what all devices spent up to then."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None
    """Show the results of an earlier comparison again, without running anything."""


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is not finished yet, show."""
    options, experiment = parse_setting(CompareOptions, arguments, "kfl compare", DESCRIPTION)
    if options.source is not None:
        return show_again(options, arguments)
    algorithms = chosen_algorithms(options.algorithms, experiment, options.setting, arguments)
    experiments = line_up(experiment, algorithms, whole_numbers(options.seeds, "seeds"))
    reference = pick_reference(list(algorithms), options.reference)
    folder = options.setting.out or new_folder("compare", experiment.dataset)
    command = command_line(arguments, folder)
    try:
        problem = execute(experiments, folder, options)
    except KeyboardInterrupt:
        print(f"\nkfl: interrupted; finished runs are kept. Go on: {command}", file=sys.stderr)
        return 130
    if (folder / "results.jsonl").exists():
        show(read_records(folder), reference, options.x, folder, command)
    if problem is not None:
        raise problem
    return 0


def execute(experiments: Sequence[Experiment], folder: Path, options: CompareOptions) -> Exception | None:
    """Run everything, writing results as they come; what failed, or None."""
    from kfl.cli.many_display import ManyDisplay
    from kfl.simulation.many import Progress, RunsFailedError, run_many, run_paths

    names = {
        path.name: experiment for path, experiment in zip(run_paths(experiments, folder), experiments, strict=True)
    }
    order = list(names)
    results: dict[str, Record] = {}

    def on_progress(progress: Progress) -> None:
        display.on_progress(progress)
        if progress.history is not None and progress.history.folder is not None:
            note = data_note(Path(progress.history.folder))
            results[progress.name] = record(names[progress.name], progress.history, note)
            write_records(folder / "results.jsonl", [results[name] for name in order if name in results])

    setting = options.setting
    with ManyDisplay("comparing") as display:
        try:
            run_many(
                experiments,
                folder,
                setting.worker_count(),
                on_progress,
                setting.keep_models,
                data_dir=setting.data_dir,
                device=setting.device,
                precision=setting.precision,
                ray=setting.ray,
            )
        except RunsFailedError as problem:
            return problem
    return None


def show_again(options: CompareOptions, arguments: Sequence[str]) -> int:
    """The table and the plot of finished results, of all algorithms and seeds or of those asked for."""
    source = options.source or Path()
    records = read_records(source)
    names = list(dict.fromkeys(line["algorithm"] for line in records))
    if peek(arguments, "algorithms") is not None:
        names = [name for name in options.algorithms.replace(" ", "").split(",") if name]
        missing = [name for name in names if not any(line["algorithm"] == name for line in records)]
        if missing:
            raise ConfigError("algorithms", missing[0], f"one that is in {source}")
    seeds = {line["seed"] for line in records}
    if peek(arguments, "seeds") is not None:
        seeds &= set(whole_numbers(options.seeds, "seeds"))
    chosen = [line for name in names for line in records if line["algorithm"] == name and line["seed"] in seeds]
    if not chosen:
        raise ConfigError("seeds", options.seeds, f"seeds that are in {source}")
    folder = options.setting.out or (source if source.is_dir() else source.parent)
    show(chosen, pick_reference(names, options.reference), options.x, folder, command_line(arguments))
    return 0


def show(records: Sequence[Record], reference: str, x: Axis, folder: Path, command: str) -> None:
    """Print the table, and write it and the plot into the folder."""
    from kfl.cli.compare_table import columns, markdown, print_table, sentences, title_of
    from kfl.plots import plot_curves

    rows, title = summarise_rows(records, reference), title_of(records)
    cells, said = columns(rows, records, reference), sentences(rows, records, reference)
    print_table(cells, title, said)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "table.md", markdown(cells, title, said, command).encode())
    files = [folder / f"accuracy-by-{x}.{kind}" for kind in ("png", "svg")]
    try:
        plot_curves(records, x, files, title)
    except MissingExtraError as problem:
        print(problem, file=sys.stderr)
        files = []
    wall_s = sum(line["wall_s"] for line in records)
    print(f"The runs took {wall_s:.0f} s together.", *[f"The plot is {files[0]}"] * bool(files))
    print(f"Other axes: kfl compare --from {shlex.quote(str(folder))} --x joules (or seconds, bits)")


def command_line(arguments: Sequence[str], folder: Path | None = None) -> str:
    """The command that was given; with the folder it made up, where it did."""
    words = ["kfl", "compare", *arguments]
    if folder is not None and peek(arguments, "out") is None:
        words += ["--out", str(folder)]
    return shlex.join(words)
