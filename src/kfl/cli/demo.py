"""`kfl demo`: seven ways to learn in one cell that is short of energy and of band, side by side.

The cell and the settings of each method are a preset of `kfl.comparison`, and what the runs show comes from
`kfl.comparison.demo_account`; here is what the demo prints of them.
"""

from __future__ import annotations

import contextlib
import os
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
from kfl.cli.options import parse, peek, whole_numbers, worker_count
from kfl.cli.terminal_plot import PlotLine, plot
from kfl.comparison.demo_account import ALONE, KNOWLEDGE, TWIN, account, not_equal, rounds_each
from kfl.comparison.entries import Entry
from kfl.comparison.presets import DEMO, DEMO_SETTING, SENSORS_NAME, demo, demo_setting, demo_tuning
from kfl.comparison.records import Record, label_of
from kfl.comparison.rows import summarise_rows
from kfl.core.config import dump_toml, to_table
from kfl.core.errors import KflError
from kfl.core.files import write_atomic
from kfl.core.names import markdown_table
from kfl.core.terminal import tell
from kfl.core.text import DASH, bit_count, quantity
from kfl.experiment import Experiment
from kfl.plots.curves import LABELS, curves_of
from kfl.wireless import PRESETS

PAGE, SETTING_FILE, METHODS_FILE = "demo.md", "setting.toml", "methods.toml"
"""Files of a demo's folder: what was printed, and the cell and the methods for other commands."""
WIDE, PLOT_WIDTH = 110, 80
"""Characters in a line where the terminal does not say, and of the plot at most."""
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

DESCRIPTION = f"""Compare seven methods in one cell that is short of energy and of band, in about a minute.

Common knowledge, FedAvg, KFL, a shared stem, training alone, and two zero-upload baselines have the same devices, data,
batteries, band, deadline and scheduler. Finished runs are not repeated.

Cells: {SENSORS_NAME}, {", ".join(PRESETS)}."""
EXAMPLES = """kfl demo                     one seed: table, plot, findings
kfl demo --seeds 0..4        five seeds, with intervals
kfl demo --radio nb-iot      a radio that must connect before it sends
kfl demo --battery-j 2       a larger battery for every device"""


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
    no_open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Do not open the runs as a page, as a terminal on a desktop does."""

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
    options = parse(DemoArgs, arguments, "kfl demo", DESCRIPTION, examples=EXAMPLES)
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
        if not options.no_open and has_browser():
            open_page(folder)
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
                [Entry(label, one, tuned=demo_tuning().get(label, "")) for label, one in entries.items()],
                seeds,
                folder,
                on_progress=display.on_progress,
                workers=worker_count(workers, "cpu"),
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
    sentences = [part for sentence in account(records) for part in ("", *textwrap.wrap(sentence, width))]
    tell(*plot(*lines_of(records), min(width, PLOT_WIDTH)), *sentences)


def page(records: Sequence[Record], options: DemoArgs) -> str:
    """The same as Markdown, with what was compared above it and the command below."""
    text = ["```text", *introduction(options.setting(), options.radio), "```", "", *markdown_table(columns(records))]
    text += ["", "```text", *plot(*lines_of(records), PLOT_WIDTH), "```"]
    text += [part for sentence in (*account(records), not_equal(records)) for part in ("", sentence)]
    return "\n".join([*text, "", "```", options.command(), "```", ""])


def write_settings(setting: Experiment, folder: Path) -> None:
    """The cell, and what each method was set to, for other commands."""
    write_atomic(folder / SETTING_FILE, setting.to_toml().encode())
    tables = {name: to_table(algorithm) for name, algorithm in DEMO.items()}
    write_atomic(folder / METHODS_FILE, dump_toml(tables).encode())


# What it says: the setting, the table, the plot, what the numbers show, what they do not, what to type next.


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
        f"{quantity(cell.deadline_s, 's')}. Computing and sending drain the battery, and no device can overdraw it. "
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


def lines_of(records: Sequence[Record]) -> tuple[list[PlotLine], str, str]:
    """Accuracy against the joules of all devices, a line for each method that ran; and the labels of the axes."""
    label, unit = LABELS["joules"]
    lines = [
        PlotLine(f"{curve.name} {curve.mean[-1]:.1f}", curve.x.tolist(), curve.mean.tolist())
        for curve in curves_of(records, "joules")
        if curve.feasible
    ]
    return lines, f"{unit} {label}".replace("energy ", ""), "accuracy, %"


def activation() -> list[str]:
    """Return the command that puts kfl on the path, where it is in an environment that is not active."""
    scripts = Path(sys.executable).parent  # not resolved: a virtual environment links to its Python
    found = shutil.which("kfl")
    if sys.prefix == sys.base_prefix or (found is not None and Path(found).parent == scripts):
        return []
    script = scripts / "activate"
    shown = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return [f"source {shlex.quote(str(shown))}"] if script.exists() else []


def has_browser() -> bool:
    """Return whether a person at a desktop sees the output."""
    desktop = sys.platform in ("darwin", "win32") or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return desktop and sys.stdout.isatty()


def open_page(folder: Path) -> None:
    """Write the page of the runs and open it in the web browser, if there is one."""
    import webbrowser

    from kfl.report import build_report

    page = build_report([folder])
    with contextlib.suppress(webbrowser.Error):
        if webbrowser.open(page.resolve().as_uri()):
            tell("", f"{page} is open in the browser (--no-open: not).")


def next_commands(folder: Path) -> list[str]:
    """What to type next."""
    runs, cell = (shlex.quote(str(path)) for path in (folder, folder / SETTING_FILE))
    return [
        "Next:",
        *(f"  {line}" for line in activation()),
        f"  kfl report {runs} --open",
        "      these runs as a page: participation, energy breakdown; what was not equal is in "
        f"{shlex.quote(str(folder / PAGE))}",
        f"  kfl compare --config {cell} --search --seeds 0..2 \\",
        "      --algorithms fedproto,shared-stem,local",
        "      another method in this cell, all after the same search (minutes); my_module:MyAlgorithm is one of yours",
        "  kfl schedule --example | kfl schedule -",
        "      who sends, with which share and power: devices of your own in a file",
    ]
