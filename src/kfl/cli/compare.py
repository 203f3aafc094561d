"""`kfl compare`: several algorithms on the same setting and seeds, in one table and one plot."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.options import in_short, new_folder, peek, whole_numbers
from kfl.cli.setting import Setting, chosen_algorithms, command_line, interrupted, parse_setting
from kfl.core.errors import ConfigError, MissingExtraError
from kfl.core.files import write_atomic
from kfl.core.text import DASH, bit_count, quantity
from kfl.experiment import Experiment
from kfl.plots import Axis
from kfl.scheduling import describe
from kfl.simulation.compare import STANDARD, Row, line_up, pick_reference, summarise_rows
from kfl.simulation.records import RESULTS, Record, data_note, read_records, record, write_records
from kfl.simulation.statistics import Difference, Spread

DESCRIPTION = """Compare algorithms on the same setting and seeds: one table, one plot, raw results as JSON lines.

Every option of kfl run applies to all algorithms alike, so do --algorithm.learning-rate and the other fields that all
algorithms have. Without --algorithms, KFL stands beside the three that share nothing."""


@dataclass(frozen=True)
class CompareOptions:
    """What `kfl compare` takes."""

    setting: Annotated[Setting, tyro.conf.arg(name="")]
    algorithms: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ",".join(STANDARD)
    """Algorithms, separated by commas."""
    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0..4"
    """Seeds: 0..4, 0,3,7 or 5."""
    reference: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Algorithm that the others are compared with. Default: local, or the first if local is not compared."""
    x: Axis = "rounds"
    """Horizontal axis of the plot: rounds, or what all devices have spent so far."""
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
    command = command_line("compare", arguments, folder)
    try:
        problem = execute(experiments, folder, options)
    except KeyboardInterrupt:
        return interrupted(command)
    if (folder / RESULTS).exists():
        show(read_records(folder), reference, options.x, folder, command)
    if problem is not None:
        raise problem
    return 0


def execute(experiments: Sequence[Experiment], folder: Path, options: CompareOptions) -> Exception | None:
    """Run everything, writing results as they come; what failed, or None."""
    from kfl.simulation.many import Progress, run_paths

    paths = run_paths(experiments, folder)
    names = {path.name: experiment for path, experiment in zip(paths, experiments, strict=True)}
    results: dict[str, Record] = {}

    def on_progress(progress: Progress) -> None:
        if progress.history is not None and progress.history.folder is not None:
            note = data_note(Path(progress.history.folder))
            results[progress.name] = record(names[progress.name], progress.history, note)
            write_records(folder / RESULTS, [results[name] for name in names if name in results])

    return options.setting.run_many(experiments, folder, "comparing", on_progress)[1]


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
    show(chosen, pick_reference(names, options.reference), options.x, folder, command_line("compare", arguments))
    return 0


def show(records: Sequence[Record], reference: str, x: Axis, folder: Path, command: str) -> None:
    """Print the table, and write it and the plot into the folder."""
    from kfl.cli.display import markdown, print_table
    from kfl.plots import plot_curves

    rows, title = summarise_rows(records, reference), title_of(records)
    cells, notes = columns(rows, records, reference), sentences(rows, records, reference)
    print_table(cells, title, notes)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "table.md", markdown(cells, title, notes, command).encode())
    files = [folder / f"accuracy-by-{x}.{kind}" for kind in ("png", "svg")]
    try:
        plot_curves(records, x, files, title)
    except MissingExtraError as problem:
        print(problem, file=sys.stderr)
        files = []
    wall_s = sum(line["wall_s"] for line in records)
    print(f"The runs took {wall_s:.0f} s together.", *[f"The plot is {files[0]}"] * bool(files))
    print(f"Other axes: kfl compare --from {shlex.quote(str(folder))} --x joules (or seconds, bits)")


def columns(rows: Sequence[Row], records: Sequence[Record], reference: str) -> dict[str, list[str]]:
    """Cells by column, one per row."""
    rounds = max(line["rounds"] for line in records)
    found = {
        "algorithm": [row.algorithm for row in rows],
        "accuracy, %": [mean_and_deviation(row.accuracy) for row in rows],
        f"minus {reference}, points [95 %]": [
            difference(row.difference) if row.feasible else "not feasible" for row in rows
        ],
        "worst tenth, %": [mean_and_deviation(row.worst_tenth) for row in rows],
        "uploaded": [bit_count(row.bits_up) for row in rows],
    }
    if any(line["radio"] for line in records):
        found["energy"] = [quantity(row.energy_j, "J") for row in rows]
        found["time"] = [quantity(row.time_s, "s") for row in rows]
    if any(row.devices_over_budget for row in rows):
        found["devices over budget"] = [f"{row.devices_over_budget:.3g}" for row in rows]
    found["devices per round"] = [f"{row.devices_per_round:.3g}" for row in rows]
    if any(row.rounds_with_nobody for row in rows) or any(line["hard_budget"] for line in records):
        found["rounds with nobody"] = [f"{row.rounds_with_nobody:.3g} of {rounds}" for row in rows]
    return found


def mean_and_deviation(value: Spread) -> str:
    """In per cent.

    >>> mean_and_deviation(Spread(0.98312, 0.0021, 5)), mean_and_deviation(Spread(0.5, None, 1))
    ('98.31 ± 0.21', '50.00')
    """
    spread = "" if value.deviation is None else f" ± {100 * value.deviation:.2f}"
    return f"{100 * value.mean:.2f}{spread}"


def difference(value: Difference | None) -> str:
    """In points, with its interval.

    >>> difference(Difference(0.01, -0.002, 0.022, 5)), difference(None)
    ('+1.00 [−0.20, +2.20]', '–')
    """
    if value is None:
        return DASH
    if value.low is None or value.high is None:
        return _signed(value.mean)
    return f"{_signed(value.mean)} [{_signed(value.low)}, {_signed(value.high)}]"


def _signed(value: float) -> str:
    return f"{100 * value:+.2f}".replace("-", "−")


def title_of(records: Sequence[Record]) -> str:
    """What was compared, in a line."""
    first, seeds = records[0], sorted({line["seed"] for line in records})
    few = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {in_short(seeds)}"
    tested = f" ({first['tested_devices']:,} tested)" if "tested_devices" in first else ""
    fleet = f"{first['devices']:,} devices{tested}"
    return f"{first['dataset']}: {fleet}, {first['rounds']} rounds, {first['scheduler']}, {few}"


def sentences(rows: Sequence[Row], records: Sequence[Record], reference: str) -> list[str]:
    """What the numbers are and what they say."""
    seeds = len({line["seed"] for line in records})
    notes = [_how_to_read(seeds)]
    compared = {row.algorithm: row.difference for row in rows if row.difference is not None and row.feasible}
    above = [name for name, found in compared.items() if found.clear and found.mean > 0]
    below = [name for name, found in compared.items() if found.clear and found.mean < 0]
    open_ = [name for name, found in compared.items() if not found.clear]
    if seeds > 1:
        parts = [f"above {reference}: {', '.join(above)}"] if above else []
        parts += [f"below {reference}: {', '.join(below)}"] if below else []
        parts += [f"not told apart from {reference} by these seeds: {', '.join(open_)}"] if open_ else []
        if parts:
            joined = "; ".join(parts)
            notes.append(f"{joined[0].upper()}{joined[1:]}.")
    notes += [sentence for row in rows if (sentence := feasibility(row, records))]
    notes += sorted({f"Note: {line['note']}" for line in records if line["note"]})
    return notes


def _how_to_read(seeds: int) -> str:
    if seeds == 1:
        return "One seed, so no spread and no interval; --seeds 0..4 gives both."
    return (
        f"Mean ± standard deviation over {seeds} seeds; differences are paired by seed, with the 95 % interval of a "
        "paired t-test, each taken alone."
    )


def feasibility(row: Row, records: Sequence[Record]) -> str:
    """Whether an algorithm could run at all under the radio and the budgets; empty where it could."""
    rounds = max(line["rounds"] for line in records)
    devices = max(line["devices"] for line in records)
    why = "" if row.why_nobody is None else f" {describe(row.why_nobody)}"
    if not row.feasible:
        return f"{row.algorithm} is not feasible here, its accuracy is that of untrained models.{why}"
    if row.rounds_with_nobody > 0:
        found = f"{row.algorithm}: nobody took part in {row.rounds_with_nobody:.3g} of {rounds} rounds on average."
        if row.devices_never_chosen:
            found += f" {row.devices_never_chosen:.3g} of {devices} devices never took part."
        return found + why
    return ""
