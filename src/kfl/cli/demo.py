"""`kfl demo`: five ways to learn in one cell that is short of energy and of band, side by side.

The cell and the settings of each method are a preset of `kfl.comparison`; here is what the demo says of them.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from kfl.cli.compare import interrupted
from kfl.cli.demo_words import ALONE, account, columns, introduction, lines_of, next_commands
from kfl.cli.options import parse, whole_numbers, worker_count
from kfl.cli.plain_text import for_encoding, plot, table
from kfl.comparison.presets import DEMO, DEMO_SETTING, SENSORS_NAME, demo, demo_setting
from kfl.comparison.records import Record, read_records
from kfl.comparison.rows import summarise_rows
from kfl.core import terminal
from kfl.core.config import dump_toml, to_table
from kfl.core.errors import ConfigError, KflError
from kfl.core.files import write_atomic
from kfl.core.names import markdown_table
from kfl.experiment import Experiment
from kfl.wireless import PRESETS

PAGE, SETTING_FILE, METHODS_FILE = "demo.md", "setting.toml", "methods.toml"
"""Files of a demo's folder: what was printed, and the cell and the methods for other commands."""
WIDE, PLOT_WIDTH = 110, 80
"""Characters in a line where the terminal does not say, and of the plot at most."""

DESCRIPTION = f"""A first run: five ways to learn in one cell that is short of energy and of band, in half a minute.

  kfl demo                     one seed: table, plot, what it shows and what it does not
  kfl demo --seeds 0..4        five seeds, with intervals
  kfl demo --radio nb-iot      the same devices behind a radio that must connect first: another verdict
  kfl demo --battery-j 2       a larger battery for every device

Training alone, FedAvg, KFL, a shared stem, and KFL's twin that uploads nothing have the same devices, data, batteries,
band, deadline and scheduler. Finished runs are not repeated. Radios: {SENSORS_NAME}, {", ".join(PRESETS)}."""


@dataclass(frozen=True)
class DemoOptions:
    """What `kfl demo` takes."""

    seeds: Annotated[str, tyro.conf.arg(metavar="SEEDS")] = "0"
    """Seeds: 0..4, 0,3,7 or 5."""
    radio: Annotated[str, tyro.conf.arg(metavar="CELL")] = SENSORS_NAME
    """The cell: that of the demo, or one of the ready-made ones."""
    battery_j: Annotated[float | None, tyro.conf.arg(metavar="JOULES", help_behavior_hint="")] = None
    """What each device may spend in the whole run. Default: the cell's budget for all rounds."""
    devices: int = DEMO_SETTING.devices
    """Number of devices."""
    rounds: int = DEMO_SETTING.rounds
    """Number of rounds."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder to write; runs already finished in it are not repeated. Default: runs/demo."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Runs in parallel, each a process with one thread. Default: one per core."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER", help_behavior_hint="")] = None
    """Show the results of this folder again, without running anything; writes only where --out says so."""

    def setting(self) -> Experiment:
        """Devices, data and cell that these options describe."""
        return demo_setting(self.radio, self.battery_j, self.devices, self.rounds)

    def command(self) -> str:
        """The command that gives these results, wherever they are written.

        >>> DemoOptions(seeds="0..4", radio="nb-iot").command()
        'kfl demo --seeds 0..4 --radio nb-iot'
        """
        usual, words = DemoOptions(), ["kfl", "demo"]
        for name in ("seeds", "radio", "battery_j", "devices", "rounds"):
            if (value := getattr(self, name)) != getattr(usual, name):
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shlex.join(words)

    def folder(self) -> Path:
        """Where results go: one folder for each setting, so that none is mixed with another."""
        words = [] if self.radio == SENSORS_NAME else [self.radio]
        words += [] if self.battery_j is None else [f"{self.battery_j:g}J"]
        words += [f"{self.devices}-devices"] * (self.devices != DEMO_SETTING.devices)
        words += [f"{self.rounds}-rounds"] * (self.rounds != DEMO_SETTING.rounds)
        return self.out or Path("runs", "-".join(["demo", *words]))


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is not finished, show."""
    options = parse(DemoOptions, arguments, "kfl demo", DESCRIPTION)
    setting, folder = options.setting(), options.folder()
    entries, seeds = demo(setting), whole_numbers(options.seeds, "seeds")
    for entry in entries.values():
        entry.validate()
    about = introduction(setting, options.radio, DEMO)
    problem: KflError | None = None
    records: Sequence[Record]
    if options.source is not None:
        records = earlier(options.source, setting)
    else:
        tell([*about, ""])
        try:
            records, problem = execute(entries, seeds, folder, options.workers)
        except KeyboardInterrupt:
            return interrupted(shlex.join(["kfl", "demo", *arguments]))
    if records:
        show(records, about, options.command(), None if options.source and not options.out else folder)
    if records and options.source is None:
        write_settings(setting, folder)
        tell(["", *next_commands(folder, folder / SETTING_FILE, folder / METHODS_FILE)])
    if problem is not None:
        raise problem
    return 0


def earlier(source: Path, setting: Experiment) -> list[Record]:
    """Results of an earlier demo with this setting."""
    records = read_records(source)
    for line in records:
        if line["algorithm"] not in DEMO or (line["devices"], line["rounds"]) != (setting.devices, setting.rounds):
            found = f"{line['algorithm']} with {line['devices']} devices and {line['rounds']} rounds"
            raise ConfigError("from", source, f"results of kfl demo with the same options; it holds {found}")
    return records


def execute(
    entries: Mapping[str, Experiment], seeds: Sequence[int], folder: Path, workers: int | None
) -> tuple[Sequence[Record], KflError | None]:
    """Run what is not finished; a record of each run that is, and what failed."""
    from kfl.cli.display import ManyDisplay
    from kfl.comparison import Comparison, RunsFailedError, compare

    with ManyDisplay("demo") as display:
        try:
            found = compare(
                entries, seeds, folder, on_progress=display.on_progress, workers=worker_count(workers, "cpu")
            )
        except RunsFailedError as failed:
            if not any(history is not None for history in failed.histories):
                return [], failed
            return Comparison.load(folder).records, failed
    return found.records, None


def show(records: Sequence[Record], about: Sequence[str], command: str, folder: Path | None) -> None:
    """Print the table, the plot and the sentences; with a folder, write them and the results there as well."""
    rows = summarise_rows(records, ALONE)
    cells, sentences = columns(rows, records), account(rows, records)
    lines, across, up = lines_of(records)
    width = min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)
    told = [part for sentence in sentences for part in ("", *textwrap.wrap(sentence, width))]
    tell(["", *table(cells, width), "", *plot(lines, across, up, min(width, PLOT_WIDTH)), *told])
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    picture = ["```text", *plot(lines, across, up, PLOT_WIDTH), "```"]
    text = ["```text", *about, "```", "", *markdown_table(cells), "", *picture]
    text += [part for sentence in sentences for part in ("", sentence)]
    write_atomic(folder / PAGE, "\n".join([*text, "", "```", command, "```", ""]).encode())


def write_settings(setting: Experiment, folder: Path) -> None:
    """The cell, and what each method was set to, for other commands."""
    write_atomic(folder / SETTING_FILE, setting.to_toml().encode())
    tables = {name: to_table(algorithm) for name, algorithm in DEMO.items()}
    write_atomic(folder / METHODS_FILE, dump_toml(tables).encode())


def tell(lines: Sequence[str]) -> None:
    """Print lines, in ASCII where the terminal has nothing else."""
    whole = "\n".join(lines).split("\n")
    terminal.tell(*(for_encoding(line, sys.stdout.encoding) for line in whole), flush=True)
