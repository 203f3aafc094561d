"""What a person sees of runs: progress (`kfl.progress`), a summary when they are done, tables."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kfl.core.columns import column_of
from kfl.core.names import for_terminal
from kfl.core.terminal import plain_console, tell_exactly
from kfl.core.text import bit_count, duration, fine_percent, percent, quantity, several
from kfl.scheduling.energy_report import beside_random, by_part, certified, dominant
from kfl.scheduling.status import describe
from kfl.scheduling.uplink import ENERGY_PARTS
from kfl.simulation import History
from kfl.simulation.logs import diverged_sentence

if TYPE_CHECKING:
    from rich.console import Console

    from kfl.experiment import Experiment


def print_summary(experiment: Experiment, history: History, folder: Path) -> None:
    """The result in a table and a few sentences."""
    summary, name = history.summary, experiment.algorithm.name
    title = f"{name} on {experiment.dataset}: {experiment.devices:,} devices, {experiment.rounds} rounds"
    table = Table(title=for_terminal(title))
    table.add_column("")
    table.add_column(name, justify="right", style="bold")
    tested = sum(value is not None for value in column_of(history.devices, "accuracy"))
    whose = f"{tested:,} tested devices" if experiment.tested_devices is not None else "all devices"
    table.add_row(f"accuracy, {whose}", percent(summary["accuracy"]))
    table.add_row("worst tenth of devices", percent(history.worst_tenth))
    table.add_row("uploaded", bit_count(summary["bits_up"]))
    if experiment.cell_config is not None:
        table.add_row("energy, all devices", quantity(summary["energy_j"], "J"))
        for row, energy_j in _of_energy(summary).items():
            table.add_row(f"   of it {row}", quantity(energy_j, "J"))
        table.add_row("time in the cell", quantity(summary["time_s"], "s"))
    where, config = shlex.quote(str(folder)), shlex.quote(str(folder / "config.toml"))
    told = [
        *sentences(experiment, history),
        f"This took {summary['wall_s']:.1f} s. Everything is in {folder}",
        f"Look at it: kfl report {where} --open",
        f"Repeat it: kfl run --config {config}",
    ]
    if experiment.algorithm.sends():
        told.append(f"Does uploading help? kfl compare --twins --config {config} --algorithms {_word_of(experiment)}")
    with page() as shown:
        shown.print()
        if warning := diverged_sentence(summary.get("diverged", 0), summary.get("uploads", 0)):
            shown.print(warning, style="bold", soft_wrap=True)
        shown.print(table)
        for sentence in told:
            shown.print(for_terminal(sentence), soft_wrap=True)


def _word_of(experiment: Experiment) -> str:
    """The word that selects the algorithm."""
    return str(experiment.to_table()["algorithm"]["name"])


def _of_energy(summary: Mapping[str, Any]) -> dict[str, float]:
    """What is said of the energy: transmitting; of whole devices every part that took any."""
    if "energy_by_part_j" not in summary:
        return {"transmitting": summary["upload_energy_j"]}
    parts = summary["energy_by_part_j"]
    return {name: parts[name] for name in ENERGY_PARTS if parts.get(name)}


def sentences(experiment: Experiment, history: History) -> list[str]:
    """What the numbers mean."""
    summary, name = history.summary, experiment.algorithm.name
    notes = []
    if history.rounds and not any(log.devices for log in history.rounds):
        why = Counter(describe(log.status) for log in history.rounds).most_common(1)[0][0]
        return [f"No device took part in any round, so nothing was learned. {why}"]
    never = column_of(history.devices, "rounds").count(0)
    if 2 * never > len(history.devices):
        notes.append(f"{never:,} of {len(history.devices):,} devices never took part; their models are as they began.")
    if experiment.tested_devices is not None and experiment.algorithm.predicts_alone:
        known, rounds = (column_of(history.devices, name) for name in ("accuracy", "rounds"))
        tested = [count for value, count in zip(known, rounds, strict=True) if value is not None]
        took = sum(count > 0 for count in tested)
        notes.append(f"{took:,} of the {len(tested):,} tested devices ever took part.")
    if "declared_bits_up" in summary:
        notes.append(
            f"{name} declares {quantity(summary['declared_bits_up'] / 8, 'B')} of uploads, which times and energies "
            f"were planned with, but devices sent {quantity(summary['bits_up'] / 8, 'B')}: mend its upload_format."
        )
    if "remark" in summary:
        notes.append(summary["remark"])
    if 0 < summary["bits_up"] < summary["fedavg_bits_up"]:
        part = summary["bits_up"] / summary["fedavg_bits_up"]
        notes.append(
            f"FedAvg would have uploaded {bit_count(summary['fedavg_bits_up'])} with the same devices in the "
            f"same rounds: {name} sent {fine_percent(part)} of that."
        )
    whole = summary.get("energy_by_part_j")
    if "devices_over_budget" in summary:
        decides = by_part(whole) if whole else dominant(summary["compute_energy_j"], summary["upload_energy_j"])
        notes.append(f"{decides} {budgets(summary, experiment.devices)}")
    elif whole:
        notes.append(by_part(whole))
    notes += beside_others(experiment, history)
    if "batteries" in summary:
        notes.append(charges(experiment, summary["batteries"], summary["energy_j"]))
    if summary["rejected_uploads"]:
        notes.append(f"{summary['rejected_uploads']} uploads were refused; rounds.jsonl says why.")
    if summary.get("missed_broadcasts"):
        notes.append(f"{several(summary['missed_broadcasts'], 'time')} the broadcast did not reach a chosen device.")
    if summary["lost_uploads"]:
        notes.append(f"{summary['lost_uploads']} uploads did not arrive.")
    return notes


def beside_others(experiment: Experiment, history: History) -> list[str]:
    """What random devices would have spent, where that is less, and what any schedule must have spent."""
    summary, sentences = history.summary, []
    taken, spent_j = column_of(history.devices, "rounds"), summary["energy_j"]
    random, least_j = summary.get("random_devices"), summary.get("least_energy_j")
    if random is not None and spent_j > 1.01 * random["energy_j"]:
        others = (random["count"], random["energy_j"], random["participations"])
        sentences.append(beside_random(experiment.scheduler.name, spent_j, sum(taken), *others))
    if least_j is not None:
        sentences.append(certified(taken, len(history.rounds), spent_j, least_j))
    return sentences


def budgets(summary: dict[str, Any], devices: int) -> str:
    """How the energy budgets fared."""
    over, most, mean = (
        summary[name] for name in ("devices_over_budget", "largest_use_of_budget", "mean_use_of_budget")
    )
    if over == 0:
        return f"Every device stayed within its budget; on average they used {percent(mean, 0)} of it."
    return f"{over} of {devices} devices are over their energy budget, the most with {percent(most, 1)} of it."


def charges(experiment: Experiment, batteries: dict[str, Any], spent_j: float) -> str:
    """How the batteries fared."""
    cell, spent = experiment.cell_config, quantity(spent_j, "J")
    if cell is None or not cell.source.fills:
        told = f"Devices spent {spent} of their batteries, which now hold {quantity(batteries['charge_j'], 'J')}."
    elif not batteries["harvested_j"]:
        told = f"In the {duration(experiment.rounds * cell.period_s)} of these rounds devices harvested nothing"
        told += f", and spent {spent}."
    else:
        told = f"Devices harvested {quantity(batteries['harvested_j'], 'J')}, spent {spent}"
        told += f" and could not store {quantity(batteries['wasted_j'], 'J')}."
    if batteries["devices_ever_empty"]:
        who, rounds = several(batteries["devices_ever_empty"], "device"), several(batteries["empty_rounds"], "round")
        told += f" {who} lacked the charge to take part, {rounds} in all."
    if batteries["ran_dry"]:
        told += f" {several(batteries['ran_dry'], 'time')} a device ran dry before the end of its round."
    return told


@contextmanager
def page(**options: Any) -> Iterator[Console]:
    """A console whose text is written in one piece, in what the stream can show.

    Rich itself would end the program with status 1 under `| head`, and with a traceback where there is only ASCII.
    """
    shown = plain_console(**options)
    with shown.capture() as text:
        yield shown
    tell_exactly(text.get())


def say(shown: Console, sentences: Iterable[str]) -> None:
    """Sentences as lines: wrapped at words on a terminal, whole in a pipe."""
    for sentence in sentences:
        shown.print(for_terminal(sentence), soft_wrap=not shown.is_terminal)


WIDE = 150
"""Characters in a line where there is no terminal: log files do not wrap."""
LONGEST_CELL = 96
"""Characters of a cell."""


def print_table(cells: dict[str, list[str]], title: str, notes: Sequence[str], head: Sequence[str] = ()) -> None:
    """The table and the sentences on the terminal, those of `head` above it."""
    wanted = {} if plain_console().is_terminal else {"width": max(plain_console().width, WIDE)}
    with page(**wanted) as shown:
        if head:
            shown.print()
            shown.print(for_terminal(title), style="italic", soft_wrap=True)
            title = ""
        for sentence in head:
            shown.print(for_terminal(sentence), soft_wrap=True)
        whole = _table(cells, title)
        parts = [whole]
        # A narrow terminal: first how good, then at which price.
        if plain_console(width=10 * WIDE).measure(whole).maximum > shown.width:
            names = list(cells)
            halves = (names[:4], [names[0], *names[4:]])
            parts = [_table({name: cells[name] for name in half}, title * (half is halves[0])) for half in halves]
        for part in parts:
            shown.print()
            shown.print(part)
        for sentence in notes:
            shown.print(for_terminal(sentence), soft_wrap=True)


def _table(cells: dict[str, list[str]], title: str) -> Table:
    table = Table(
        title=for_terminal(title) or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False
    )
    for number, name in enumerate(cells):
        table.add_column(
            _folded(for_terminal(name, LONGEST_CELL)),
            justify="left" if number == 0 else "right",
            style="bold" if number == 0 else "",
            no_wrap=True,
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*(for_terminal(cell, LONGEST_CELL) for cell in row))
    return table


def _folded(header: str) -> str:
    """A long header over two lines."""
    spaces = [at for at, letter in enumerate(header) if letter == " "]
    if len(header) < 12 or not spaces:
        return header
    middle = min(spaces, key=lambda at: abs(at - len(header) / 2))
    return f"{header[:middle]}\n{header[middle + 1 :]}"
