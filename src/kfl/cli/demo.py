"""`kfl demo`: seven ways to learn in one cell that is short of energy and of band, side by side.

The cell and the settings of each method are a preset of `kfl.comparison`; here is what the demo says of them. Every
sentence follows from the numbers, whatever they are. Whether an upload was worth its joules is asked of the best method
that uploads and the best that does not, both chosen after the fact.
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import tyro

from kfl.cli.compare import interrupted
from kfl.cli.options import parse, peek, whole_numbers, worker_count
from kfl.cli.terminal_plot import PlotLine, plot
from kfl.comparison.presets import DEMO, DEMO_SETTING, SENSORS_NAME, demo, demo_setting
from kfl.comparison.records import Record, label_of
from kfl.comparison.rows import Row, summarise_rows
from kfl.comparison.statistics import paired_difference
from kfl.core.config import dump_toml, to_table
from kfl.core.errors import KflError
from kfl.core.files import write_atomic
from kfl.core.names import markdown_table
from kfl.core.terminal import tell
from kfl.core.text import DASH, bit_count, in_short, quantity
from kfl.experiment import Experiment
from kfl.plots.curves import LABELS, curves_of
from kfl.scheduling import describe
from kfl.wireless import PRESETS

PAGE, SETTING_FILE, METHODS_FILE = "demo.md", "setting.toml", "methods.toml"
"""Files of a demo's folder: what was printed, and the cell and the methods for other commands."""
WIDE, PLOT_WIDTH = 110, 80
"""Characters in a line where the terminal does not say, and of the plot at most."""
ALONE, TWIN, KNOWLEDGE = "local", "fixed-knowledge", "kfl"
ONE_SEED_TIE = 4.0
"""Accuracies of one seed that are nearer than these points are called level: two seeds of one method differ by as
much."""
TEXTS = {
    "common-knowledge": "one fixed encoder; uploads class means once, trains nothing",
    "own-kernel": "its twin: same encoder, own samples alone; uploads nothing",
    "shared-stem": "uploads updates of the first layers, 4 bits a value",
    KNOWLEDGE: "uploads the mean features of its classes, its knowledge",
    TWIN: "twin of these two: their pull, to fixed points; no upload",
    ALONE: "trains alone; uploads nothing",
    "fedavg": "uploads the whole network",
}
"""What each method does, in a few words."""

DESCRIPTION = f"""A first run: seven ways to learn in one cell that is short of energy and of band, in a minute.

  kfl demo                     one seed: table, plot, what it shows and what it does not
  kfl demo --seeds 0..4        five seeds, with intervals
  kfl demo --radio nb-iot      the same devices behind a radio that must connect first: another verdict
  kfl demo --battery-j 2       a larger battery for every device

Common knowledge, FedAvg, KFL, a shared stem, training alone, and twins that upload nothing have the same devices, data,
batteries, band, deadline and scheduler. Finished runs are not repeated.
Radios: {SENSORS_NAME}, {", ".join(PRESETS)}."""


@dataclass(frozen=True)
class DemoArgs:
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

    def setting(self) -> Experiment:
        """Devices, data and cell that these options describe."""
        return demo_setting(self.radio, self.battery_j, self.devices, self.rounds)

    def command(self) -> str:
        """The command that gives these results, wherever they are written.

        >>> DemoArgs(seeds="0..4", radio="nb-iot").command()
        'kfl demo --seeds 0..4 --radio nb-iot'
        """
        usual, words = DemoArgs(), ["kfl", "demo"]
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
    if (earlier := peek(arguments, "from")) is not None:
        raise KflError(f"kfl demo --from is now kfl compare --from {shlex.quote(earlier)}.")
    options = parse(DemoArgs, arguments, "kfl demo", DESCRIPTION)
    setting, folder = options.setting(), options.folder()
    entries, seeds = demo(setting), whole_numbers(options.seeds, "seeds")
    for entry in entries.values():
        entry.validate()
    tell(*introduction(setting, options.radio), "", flush=True)
    try:
        records, problem = execute(entries, seeds, folder, options.workers)
    except KeyboardInterrupt:
        return interrupted(shlex.join(["kfl", "demo", *arguments]))
    if records:
        show(records)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / PAGE, page(records, options).encode())
        write_settings(setting, folder)
        tell("", *next_commands(folder))
    if problem is not None:
        raise problem
    return 0


def execute(
    entries: Mapping[str, Experiment], seeds: Sequence[int], folder: Path, workers: int | None
) -> tuple[Sequence[Record], KflError | None]:
    """Run what is not finished; a record of each run that is, and what failed."""
    from kfl.comparison import Comparison, RunsFailedError, compare
    from kfl.progress import ManyDisplay

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


def show(records: Sequence[Record]) -> None:
    """Print the table, the plot and the sentences."""
    from kfl.cli.display import print_table

    width = min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)
    print_table(columns(records), "", ())
    told = [part for sentence in account(records) for part in ("", *textwrap.wrap(sentence, width))]
    tell(*plot(*lines_of(records), min(width, PLOT_WIDTH)), *told)


def page(records: Sequence[Record], options: DemoArgs) -> str:
    """The same as Markdown, with what was compared above it and the command below."""
    text = ["```text", *introduction(options.setting(), options.radio), "```", "", *markdown_table(columns(records))]
    text += ["", "```text", *plot(*lines_of(records), PLOT_WIDTH), "```"]
    text += [part for sentence in account(records) for part in ("", sentence)]
    return "\n".join([*text, "", "```", options.command(), "```", ""])


def write_settings(setting: Experiment, folder: Path) -> None:
    """The cell, and what each method was set to, for other commands."""
    write_atomic(folder / SETTING_FILE, setting.to_toml().encode())
    tables = {name: to_table(algorithm) for name, algorithm in DEMO.items()}
    write_atomic(folder / METHODS_FILE, dump_toml(tables).encode())


# What it says: the setting, the table, the plot, what the numbers show, what they do not, what to type next.


class Verdict(NamedTuple):
    """How one method compares with another."""

    word: Literal["above", "level", "below"]
    size: str
    """The difference in points without its sign, and its interval where there are several seeds."""


def introduction(setting: Experiment, radio: str) -> list[str]:
    """What is compared, and in which cell."""
    cell = setting.cell_config
    if cell is None:
        raise ValueError("the demo needs a cell")
    battery, width = quantity(cell.budget_j_per_round * setting.rounds, "J"), max(map(len, DEMO))
    said = (
        f"{setting.devices} devices, each with {setting.samples_per_device} images of {setting.classes_per_device} "
        f"digits and the same small network. Cell {radio}: a battery of {battery} for each device, "
        f"{quantity(cell.bandwidth_hz, 'Hz')} of band for all, {setting.rounds} rounds of at most "
        f"{quantity(cell.deadline_s, 's')}. Computing and sending drain the battery, and nobody can overdraw it. "
        f"Who takes part in a round, the same scheduler ({setting.scheduler.name}) decides for all:"
    )
    return [*textwrap.wrap(said, 80), "", *(f"  {name:<{width}}  {TEXTS[name]}" for name in DEMO)]


def columns(records: Sequence[Record]) -> dict[str, list[str]]:
    """The table: cells by column, one per row."""
    rows = summarise_rows(records, ALONE)
    steps = {label_of(line): line["settings"]["local_steps"] for line in records}
    gains = [DASH if row.difference is None else row.difference.text(1) for row in rows]
    return {
        "method": [row.label for row in rows],
        "accuracy, %": [row.accuracy.text(1) for row in rows],
        f"minus {ALONE}": [gain if row.feasible else "not feasible" for row, gain in zip(rows, gains, strict=True)],
        "worst tenth, %": [f"{100 * row.worst_tenth.mean:.1f}" for row in rows],
        "energy": [quantity(row.energy_j, "J") for row in rows],
        "time": [quantity(row.time_s, "s") for row in rows],
        "uploaded": [bit_count(row.bits_up) for row in rows],
        "rounds × steps": [
            f"{rounds_each(row, records):.1f}" + ("" if fixed(row.label) else f" × {steps[row.label]}") for row in rows
        ],
    }


def fixed(label: str) -> bool:
    """Whether a method takes no training steps."""
    return label in DEMO and not DEMO[label].trains


def rounds_each(row: Row, records: Sequence[Record]) -> float:
    """Rounds in which a device took part, on average over devices."""
    return row.devices_per_round * float(records[0]["rounds"] / records[0]["devices"])


def lines_of(records: Sequence[Record]) -> tuple[list[PlotLine], str, str]:
    """Accuracy against the joules of all devices, a line for each method that ran; and the labels of the axes."""
    label, unit = LABELS["joules"]
    lines = [
        PlotLine(f"{curve.name} {curve.mean[-1]:.1f}", curve.x.tolist(), curve.mean.tolist())
        for curve in curves_of(records, "joules")
        if curve.feasible
    ]
    return lines, f"{unit} {label}".replace("energy ", ""), "accuracy, %"


def account(records: Sequence[Record]) -> list[str]:
    """What was learnt, what was not, and of how many seeds."""
    rows = summarise_rows(records, ALONE)
    return [f"Findings: {learnt(rows, records)}", f"Not shown: {not_learnt(rows, records)}", seeds_of(records)]


def learnt(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Whether what was uploaded was worth its joules, and what became of whole networks."""
    able = [row for row in rows if row.feasible]
    sending = [row for row in rows if row.bits_up > 0]
    silent = [row for row in able if row.bits_up == 0]
    if not able:
        return f"no method could run in this cell. {_why(rows[0])}".rstrip()
    if not sending or not silent:
        return f"{_best(able).label} is the best of those that could run." + _stopped(rows, _best(able), records)
    ours, theirs = _best(sending), _best(silent)
    verdict = verdict_of(ours.label, theirs.label, records)
    spent = f"{quantity(ours.energy_j, 'J')} against {quantity(theirs.energy_j, 'J')}"
    if verdict.word == "above":
        said = f"{ours.label} ends {verdict.size} above {theirs.label}, the best that uploads nothing"
        if theirs.label != ALONE and any(row.label == ALONE for row in silent):
            said += f", and {verdict_of(ours.label, ALONE, records).size} above training alone"
        said += f", for {spent}: here its upload is worth the energy."
    elif verdict.word == "below":
        said = f"{theirs.label}, which uploads nothing, ends {verdict.size} above {ours.label}, the best that "
        said += (
            f"uploads, for {quantity(theirs.energy_j, 'J')} against {quantity(ours.energy_j, 'J')}: here the energy "
        )
        said += "is better spent on training."
    else:
        said = f"{ours.label}, the best that uploads, and {theirs.label}, which uploads nothing, are level "
        said += f"({ours.accuracy.text(1)} and {theirs.accuracy.text(1)} %; {spent}): no upload shows its worth here."
    return said + _stopped(rows, ours, records)


def not_learnt(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """What these numbers do not show: that knowledge helps, where its twin does as well; anything beyond this cell."""
    beyond = "how it is in another cell, with other data or other networks."
    named = {row.label: row for row in rows if row.feasible}
    if KNOWLEDGE not in named or TWIN not in named:
        return beyond
    verdict = verdict_of(KNOWLEDGE, TWIN, records)
    if verdict.word == "above":
        return beyond
    where = "is level with it" if verdict.word == "level" else f"ends {verdict.size} above it"
    return f"that {KNOWLEDGE}'s knowledge helps: {TWIN}, the same pull without an upload, {where}. Nor {beyond}"


def seeds_of(records: Sequence[Record]) -> str:
    """How many seeds there are, and what follows from it."""
    seeds = sorted({line["seed"] for line in records})
    if len(seeds) == 1:
        return f"One seed ({seeds[0]}); seeds differ by several points. Five, with intervals: kfl demo --seeds 0..4"
    return (
        f"Seeds {in_short(seeds)}: mean ± standard deviation; differences are paired by seed, with the 95 % interval "
        "of the t-test."
    )


def verdict_of(name: str, other: str, records: Sequence[Record]) -> Verdict:
    """One method against another: by the interval of the paired difference, or of one seed by its size."""
    first, second = (
        {line["seed"]: 100 * line["accuracy"] for line in records if label_of(line) == one} for one in (name, other)
    )
    found = paired_difference(first, second)
    if found is None:
        raise ValueError(f"{name} and {other} have no seed in common")
    size = f"{abs(found.mean):.1f} points"
    level = abs(found.mean) < ONE_SEED_TIE
    if found.low is not None and found.high is not None:
        low, high = sorted((-1 if found.mean < 0 else 1) * end for end in (found.low, found.high))
        size, level = f"{size} [{low:.1f}, {high:.1f}]".replace("-", "−"), not found.clear
    return Verdict("level" if level else "above" if found.mean > 0 else "below", size)


def next_commands(folder: Path) -> list[str]:
    """What to type next."""
    runs, cell = (shlex.quote(str(path)) for path in (folder, folder / SETTING_FILE))
    return [
        "Next:",
        f"  kfl report {runs} --open",
        "      these runs as a page: who took part, where the joules went",
        f"  kfl compare --config {cell} --search --seeds 0..2 \\",
        "      --algorithms fedproto,shared-stem,local",
        "      another method in this cell, all after the same search (minutes); my_module:MyAlgorithm is one of yours",
        "  kfl schedule --example | kfl schedule -",
        "      who sends, with which share and power: devices of your own in a file",
    ]


def _best(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.accuracy.mean)


def _stopped(rows: Sequence[Row], beside: Row, records: Sequence[Record]) -> str:
    """Which methods could not run, and which, by the size of their uploads, ran far less often than one `beside`."""
    told, most = [], rounds_each(beside, records)
    for row in rows:
        taken = rounds_each(row, records)
        if not row.feasible:
            told.append(f" {row.label} could not run: {_why(row)}".rstrip())
        elif row.bits_up > beside.bits_up and taken < 0.6 * most:
            size = bit_count(row.bits_up / (taken * records[0]["devices"]))
            told.append(
                f" {row.label} uploads {size} at a time and got into {taken:.1f} rounds per device, "
                f"{beside.label} into {most:.1f}."
            )
    return "".join(told)


def _why(row: Row) -> str:
    return "" if row.why_nobody is None else describe(row.why_nobody)
