"""`kfl demo`: five ways to learn in one cell that is short of energy and of band, side by side.

The cell, the settings of each method and the seeds they were chosen on are here, in one place; the documentation says
how they were chosen, and has five seeds.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from kfl.algorithms import Algorithm, FedAvg, FixedKnowledge, Kfl, Local, SharedStem
from kfl.cli.demo_words import ALONE, account, columns, introduction, lines_of, next_commands
from kfl.cli.options import parse, whole_numbers, worker_count
from kfl.cli.plain_text import for_encoding, plot, table
from kfl.cli.setting import interrupted
from kfl.comparison.entries import line_up, summarise_rows
from kfl.comparison.records import RESULTS, Record, read_records, record, write_records
from kfl.core import terminal
from kfl.core.config import dump_toml, to_table
from kfl.core.errors import ConfigError, KflError
from kfl.core.files import write_atomic
from kfl.core.names import markdown_table
from kfl.experiment import Experiment
from kfl.scheduling import Lyapunov
from kfl.wireless import PRESETS, CellConfig

if TYPE_CHECKING:
    from kfl.simulation import History

SENSORS = CellConfig(
    bandwidth_hz=250e3,
    noise_dbm_per_hz=-167.0,
    radius_m=50.0,
    reference_gain_db=-40.0,
    path_loss_exponent=3.19,
    max_power_dbm=8.0,
    min_power_dbm=-40.0,
    amplifier_efficiency=0.17,
    circuit_power_w=0.012,
    deadline_s=10.0,
    cpu_frequencies_hz=(64e6,),
    flops_per_cycle=1.0,
    power_coefficient=3.7e-26,
    budget_j_per_round=0.015,
)
"""Sensors around a hub on one narrow channel: processor and radio of an nRF52840, which stay joined to the network, so
that sending costs what is sent and nothing else."""

SENSORS_NAME = "sensors"

METHODS: dict[str, Algorithm] = {
    "shared-stem": SharedStem(local_steps=5, learning_rate=0.2, knowledge_weight=0.1),
    "kfl": Kfl(local_steps=5, learning_rate=0.1, knowledge_weight=0.1),
    "fixed-knowledge": FixedKnowledge(local_steps=10, learning_rate=0.1, knowledge_weight=1 / 32),
    "local": Local(local_steps=5, learning_rate=0.05),
    "fedavg": FedAvg(local_steps=20, learning_rate=0.0125),
}
"""What is compared, each with the settings that were best for it in this cell on seeds 100 and 101
(`python -m reproduction.demo_search`)."""

SETTING = Experiment(
    dataset="mnist-5k",
    devices=20,
    rounds=15,
    classes_per_device=5,
    distinct_classes=True,
    samples_per_device=20,
    model="cnn",
    widths=(32,),  # equal networks, because FedAvg needs them; the others do not
    scheduler=Lyapunov(relative_v=1.0, gamma="inverse"),
    radio=SENSORS,
    hard_budget=True,
    real_work=True,
)
"""Devices, data and cell, the same for every method."""

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
    devices: int = SETTING.devices
    """Number of devices."""
    rounds: int = SETTING.rounds
    """Number of rounds."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder to write; runs already finished in it are not repeated. Default: runs/demo."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Runs in parallel, each a process with one thread. Default: one per core."""
    source: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER", help_behavior_hint="")] = None
    """Show the results of this folder again, without running anything; writes only where --out says so."""

    def setting(self) -> Experiment:
        """Devices, data and cell that these options describe."""
        cell = SENSORS if self.radio == SENSORS_NAME else PRESETS.get(self.radio)
        if cell is None:
            raise ConfigError("radio", self.radio, f"one of {SENSORS_NAME}, {', '.join(PRESETS)}")
        if self.battery_j is not None:
            if not 0 < self.battery_j < float("inf"):
                raise ConfigError("battery_j", self.battery_j, "a positive number of joules")
            cell = replace(cell, budget_j_per_round=self.battery_j / max(self.rounds, 1))
        return replace(SETTING, devices=self.devices, rounds=self.rounds, radio=cell)

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
        words += [f"{self.devices}-devices"] * (self.devices != SETTING.devices)
        words += [f"{self.rounds}-rounds"] * (self.rounds != SETTING.rounds)
        return self.out or Path("runs", "-".join(["demo", *words]))


def main(arguments: Sequence[str]) -> int:
    """Parse, run what is not finished, show."""
    options = parse(DemoOptions, arguments, "kfl demo", DESCRIPTION)
    setting, folder = options.setting(), options.folder()
    experiments = line_up(setting, METHODS, whole_numbers(options.seeds, "seeds"))
    for experiment in experiments:
        experiment.validate()
    about = introduction(setting, options.radio, METHODS)
    problem: KflError | None = None
    if options.source is not None:
        records = earlier(options.source, setting)
    else:
        tell([*about, ""])
        try:
            records, problem = execute(experiments, folder, options.workers)
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
        if line["algorithm"] not in METHODS or (line["devices"], line["rounds"]) != (setting.devices, setting.rounds):
            found = f"{line['algorithm']} with {line['devices']} devices and {line['rounds']} rounds"
            raise ConfigError("from", source, f"results of kfl demo with the same options; it holds {found}")
    return records


def execute(
    experiments: Sequence[Experiment], folder: Path, workers: int | None
) -> tuple[list[Record], KflError | None]:
    """Run what is not finished; a record of each run that is, in the order of the experiments, and what failed."""
    from kfl.cli.display import ManyDisplay
    from kfl.comparison import RunsFailedError, run_many

    problem: KflError | None = None
    histories: Sequence[History | None]
    with ManyDisplay("demo") as display:
        try:
            histories = run_many(experiments, folder, worker_count(workers, "cpu"), display.on_progress)
        except RunsFailedError as failed:
            histories, problem = failed.histories, failed
    done = [(one, history) for one, history in zip(experiments, histories, strict=True) if history is not None]
    return [record(experiment, history) for experiment, history in done], problem


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
    write_records(folder / RESULTS, records)
    write_atomic(folder / PAGE, "\n".join([*text, "", "```", command, "```", ""]).encode())


def write_settings(setting: Experiment, folder: Path) -> None:
    """The cell, and what each method was set to, for other commands."""
    write_atomic(folder / SETTING_FILE, setting.to_toml().encode())
    tables = {name: to_table(algorithm) for name, algorithm in METHODS.items()}
    write_atomic(folder / METHODS_FILE, dump_toml(tables).encode())


def tell(lines: Sequence[str]) -> None:
    """Print lines, in ASCII where the terminal has nothing else."""
    whole = "\n".join(lines).split("\n")
    terminal.tell(*(for_encoding(line, sys.stdout.encoding) for line in whole), flush=True)
